"""Repeats: users come back to what they have."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from beamtree.data.inputs import HISTORY, WHOLE_HISTORY
from beamtree.data.views import recency
from beamtree.kernels.search_cpu import CompiledPart, Entries, Repeats
from beamtree.scorers.base import Contributions, Scorer, newest
from beamtree.scorers.memory import SubtreeMaxScorer
from beamtree.tree import Tree


class RepeatScorer(SubtreeMaxScorer):
    """Each event of the history speaks for its own item, (1 + t)^-power for the one t events ago.

    Args:
        power: how fast that fades.
        history: events that are read.
        seed: not used; there is nothing to draw.
    """

    recency: Tensor

    def __init__(self, power: float = 0.5, history: int = WHOLE_HISTORY, seed: int | None = 0) -> None:
        super().__init__()
        self.power, self.history = power, history
        self.register_buffer("recency", recency(power, history), persistent=False)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], kinds: Mapping[str, type[Scorer]]) -> Self:
        return super().from_settings({"history": HISTORY, **settings}, kinds)

    def entries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = newest(x, self.history)
        return x, self.recency[: x.shape[1]].expand(x.shape[0], -1)

    def compiled_part(self, tree: Tree) -> CompiledPart | None:
        if type(self).entries is not RepeatScorer.entries:
            return super().compiled_part(tree)
        return Repeats(self.recency, Entries(self.entries, self.columns, self.history))

    def contributions(self, tree: Tree, x: Tensor, items: Tensor) -> Contributions:
        """Each event gives its weight to its own item."""
        x = newest(x, self.history)
        entries = self.recency[: x.shape[1]] * (x.unsqueeze(1) == items.unsqueeze(2))
        return Contributions(entries, torch.zeros_like(entries[:, :, 0]))

    def settings(self) -> dict[str, Any]:
        return {"power": self.power, "history": self.history}

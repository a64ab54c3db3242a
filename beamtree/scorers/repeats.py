"""Repeats: users come back to what they have."""

from typing import Any

from torch import Tensor

from beamtree.data.views import recency
from beamtree.scorers.memory import SubtreeMaxScorer


class RepeatScorer(SubtreeMaxScorer):
    """Each event of the history speaks for its own item, (1 + t)^-power for the one t events ago.

    Args:
        power: how fast that fades.
        seed: not used; there is nothing to draw.
    """

    recency: Tensor

    def __init__(self, power: float = 0.5, seed: int | None = 0) -> None:
        super().__init__()
        self.power = power
        self.register_buffer("recency", recency(power), persistent=False)

    def entries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.recency[: x.shape[1]].expand(len(x), -1)

    def settings(self) -> dict[str, Any]:
        return {"power": self.power}

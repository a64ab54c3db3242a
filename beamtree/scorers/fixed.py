"""A scorer with given logits: for theory, where p_g is not learned."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from beamtree.scorers.base import Scorer
from beamtree.tree import PAD, Tree


class FixedScorer(Scorer):
    """g(x, n) read from logits [S, num_nodes]; x int64 [B, 1] says which of the S rows to read."""

    logits: Tensor
    cheap_levels = True

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        # Finite, also when added down a path, so that a node that is never relevant still ranks above none at all.
        lowest = torch.finfo(logits.dtype).min / 64
        self.register_buffer("logits", logits.clamp(min=lowest))

    @staticmethod
    def every(count: int) -> Tensor:
        """x for one query per row of logits."""
        return torch.arange(count).unsqueeze(1)

    def prepare(self, tree: Tree, x: Tensor) -> Tensor:
        return x

    def forward(self, prepared: Tensor, level: int, nodes: Tensor) -> Tensor:
        return self.logits[prepared, nodes.clamp(min=0)].masked_fill(nodes == PAD, -torch.inf)

    def settings(self) -> dict[str, Any]:
        return {"rows": len(self.logits), "num_nodes": self.logits.shape[1]}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], kinds: Mapping[str, type[Scorer]]) -> "FixedScorer":
        return cls(torch.zeros(settings["rows"], settings["num_nodes"]))

"""The linear scorer of the synthetic experiment (Sec. 5.1)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.scorers.base import TableScorer
from beamtree.scorers.table import NodeTable
from beamtree.tree import PAD, Tree

# Up to this size one matrix product over a whole level is cheaper than gathering a row per node.
WHOLE_LEVEL_SIZE = 4096


class PreparedLinear(NamedTuple):
    x: Tensor  # [B, d + 1]
    starts: list[int]  # the first node of each level
    levels: tuple[Tensor, ...]  # the logits of the small levels, each whole, after -inf for PAD [B, 1 + |N_h|]


class LinearScorer(TableScorer):
    """g(x, n) = θ_nᵀx + b_n: one weight vector and one bias per node, no more. No gradient goes to x."""

    cheap_levels = True
    exportable = True

    def __init__(self, num_nodes: int, dim: int, scale: float = 1.0, seed: int | None = 0) -> None:
        super().__init__()
        self.dim, self.scale = dim, scale
        self.table = NodeTable(num_nodes, dim + 1, scale, seed)  # the bias is the weight of a constant 1

    def prepare(self, tree: Tree, x: Tensor) -> PreparedLinear:
        x = torch.nn.functional.pad(x.detach(), (0, 1), value=1.0)
        spans = [tree.level(level) for level in range(tree.height + 1)]
        small = [span for span in spans if len(span) <= WHOLE_LEVEL_SIZE]
        pad = torch.nn.functional.pad(self.table.weight.new_zeros(1, self.dim), (0, 1), value=-torch.inf)  # scores -inf
        rows = [part for span in small for part in (pad, self.table.span(span))]
        logits = x @ torch.cat(rows or [x[:0]]).T
        return PreparedLinear(x, [span.start for span in spans], logits.split([1 + len(span) for span in small], dim=1))

    def forward(self, prepared: PreparedLinear, level: int, nodes: Tensor) -> Tensor:
        if level < len(prepared.levels):
            place = (nodes - (prepared.starts[level] - 1)).clamp_(min=0)
            return prepared.levels[level].gather(1, place.expand(prepared.x.shape[0], -1))
        logits = (self.table.rows(nodes) @ prepared.x.unsqueeze(-1)).squeeze(-1)
        return logits.masked_fill(nodes == PAD, -torch.inf)

    def whole_level(self, prepared: PreparedLinear, tree: Tree, level: int) -> Tensor:
        if level < len(prepared.levels):
            return prepared.levels[level][:, 1:]
        return prepared.x @ self.table.span(tree.level(level)).T

    def settings(self) -> dict[str, Any]:
        return {"num_nodes": len(self.table.weight), "dim": self.dim, "scale": self.scale}

    def check(self, x: Tensor) -> None:
        dtype = self.table.weight.dtype
        if x.dim() != 2 or x.shape[1] != self.dim or x.dtype != dtype:
            raise ValueError(f"x is {x.dtype} {list(x.shape)}: this scorer takes {dtype} [B, {self.dim}]")
        super().check(x)

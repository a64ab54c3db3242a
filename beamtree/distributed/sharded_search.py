"""Search over ranks: each has some subtrees, scores the candidates among them, and all get all scores.

All ranks have the levels down to the cut. Below it a rank scores its own candidates, and those of others are -inf, so
that one maximum over ranks combines the scores. What is read of a user's history comes from the ranks that have its
leaves, by one sum. All ranks call together, with the same users and nodes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beamtree.distributed.partition import Shard
from beamtree.scorers.base import Scorer
from beamtree.scorers.memory import SubtreeMaxScorer
from beamtree.scorers.subtree_max import SubtreeMax
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import PAD, Tree


class ShardedContext(NamedTuple):
    of_part: Any  # the context of this rank's scorer
    rows: int


class ShardedScorer(Scorer):
    """A scorer of which every rank has a part; see `load_shard.PartReader`.

    Args:
        scorer: this rank's part.
        shard: its subtrees.
        settings: those of the whole scorer.
    """

    capturable = False

    def __init__(self, scorer: Scorer, shard: Shard, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.scorer, self.shard, self._settings = scorer, shard, dict(settings)
        floats = (each.dtype for each in scorer.parameters() if each.dtype != torch.float16)
        self._dtype = next(floats, torch.float32)  # of scores, also on a rank without candidates
        sparse = (part for part in scorer.modules() if isinstance(part, SubtreeMaxScorer))
        self._is_sparse = any(part.subtree_max is not SubtreeMax for part in sparse)

    @property
    def reads_items(self) -> bool:  # type: ignore[override]
        return self.scorer.reads_items

    def is_local(self, level: int) -> bool:
        """Whether every rank can score a level by itself."""
        return level <= self.shard.cut and not self._is_sparse

    @torch.no_grad()
    def context(self, tree: Tree, x: Tensor) -> ShardedContext:
        return ShardedContext(self.scorer.context(tree, x), len(x))

    @torch.no_grad()
    def forward(self, context: ShardedContext, level: int, nodes: Tensor) -> Tensor:
        if level <= self.shard.cut:
            logits: Tensor = self.scorer(context.of_part, level, nodes)
            return logits
        own = self.shard.owned(level, nodes)
        result = torch.full((context.rows, nodes.shape[1]), -torch.inf, dtype=self._dtype, device=nodes.device)
        count = int(own.sum(1).max()) if nodes.shape[1] else 0  # own nodes of any row, at most
        if count:
            order = own.int().argsort(dim=1, descending=True)[:, :count]  # own nodes first
            scores = self.scorer(context.of_part, level, nodes.where(own, PAD).gather(1, order))
            result.scatter_(1, order.expand(context.rows, -1), scores.to(result))
        return self.shard.ranks.max_(result)

    def calibrated(self, level: int, logits: Tensor) -> Tensor:
        return self.scorer.calibrated(level, logits)

    def settings(self) -> dict[str, Any]:
        return dict(self._settings)

    def check(self, x: Tensor) -> None:
        self.scorer.check(x)


class LocalSubtreeMax(SubtreeMax):
    """Below the cut of this rank's nodes; above it of all nodes, by a maximum over ranks."""

    def __init__(self, tree: Tree, leaves: Tensor, scores: Tensor, *, shard: Shard) -> None:
        self.shard = shard
        super().__init__(tree, leaves.where(shard.owned(tree.height, leaves), PAD), scores)

    def at(self, level: int, nodes: Tensor) -> Tensor:
        scores = super().at(level, nodes)
        return scores if level > self.shard.cut else self.shard.ranks.max_(scores)


class LocalTable(NodeTable):
    """The vectors of one shard, followed by a row of zeros for the nodes of all other ranks.

    Args:
        shard: its subtrees.
        rows: the vectors, and zeros [shard.num_rows + 1, dim].
    """

    starts: Tensor
    stops: Tensor
    shifts: Tensor

    def __init__(self, shard: Shard, rows: Tensor) -> None:
        super().__init__(0, rows.shape[1], seed=None)
        self.shard, self.weight = shard, nn.Parameter(rows, requires_grad=False)
        spans = [shard.span(level, shard.ranks.rank) for level in shard.below]
        shifts = [shard.offset(level) for level in shard.below]
        numbers = {"starts": [span.start for span in spans], "stops": [span.stop for span in spans], "shifts": shifts}
        for name, values in numbers.items():  # of each level below the cut
            self.register_buffer(name, torch.tensor(values, dtype=torch.int64), persistent=False)

    @property
    def num_nodes(self) -> int:
        return self.shard.num_nodes

    def index(self, level: int, nodes: Tensor) -> Tensor:
        """Rows of nodes of a level, PAD for PAD, and the row of zeros for those of others."""
        if level <= self.shard.cut:
            return nodes
        owned = self.shard.owned(level, nodes)
        rows = torch.where(owned, nodes - self.shard.offset(level), self.shard.num_rows)
        return rows.masked_fill_(nodes == PAD, PAD)

    def reduce(self, level: int, values: Tensor) -> Tensor:
        return values if level <= self.shard.cut else self.shard.ranks.sum_(values)

    def read(self, tree: Tree, *, share: bool) -> "LocalVectors":
        if share:
            raise ValueError("these are path sums already: they are summed when they are read from a file")
        return LocalVectors(self)


class LocalVectors(Vectors):
    """The vectors of one shard, as a search reads them."""

    def __init__(self, table: LocalTable) -> None:
        super().__init__(table.weight.detach(), table.weight, None)
        self.table, self.shard = table, table.shard

    def index(self, levels: list[tuple[int, Tensor]]) -> list[Tensor]:
        return [self.table.index(level, nodes) for level, nodes in levels]

    def index_levels(self, nodes: Tensor) -> Tensor:
        first = self.shard.cut + 1
        below, shape = nodes[first:], (-1, *[1] * (nodes.dim() - 1))
        starts, stops, shifts = (each.view(shape) for each in (self.table.starts, self.table.stops, self.table.shifts))
        owned = (below >= starts) & (below < stops)
        return torch.cat([nodes[:first], torch.where(owned, below - shifts, self.shard.num_rows)])

    def reduce(self, sums: Tensor, levels: range) -> Tensor:
        """All ranks have the top, which is counted once."""
        top = max(0, self.shard.cut + 1 - levels.start)
        if top >= len(levels):
            return sums
        below = self.shard.ranks.sum_(sums[..., top:, :].contiguous())
        return below if not top else torch.cat([sums[..., :top, :], below], dim=-2)

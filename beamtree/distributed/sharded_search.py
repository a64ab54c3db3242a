"""Search over ranks: each has some subtrees, scores the candidates among them, and all get all scores.

All ranks have the levels down to the cut. Below it a rank scores its own candidates, and those of others are -inf, so
that one maximum over ranks combines the scores. What is read of a user's history comes from the ranks that have its
leaves, by one sum. All ranks call together, with the same users and nodes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from beamtree.distributed.partition import Shard
from beamtree.scorers.base import Scorer
from beamtree.scorers.deep import DeepScorer
from beamtree.scorers.factors import FactorScorer
from beamtree.scorers.memory import MemoryScorer, SubtreeMaxScorer
from beamtree.scorers.repeats import RepeatScorer
from beamtree.scorers.subtree_max import SubtreeMax
from beamtree.scorers.sum import SumScorer
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import PAD, Tree

READ_AT_ONCE = 1 << 22  # partners that are read at once


class ShardedContext(NamedTuple):
    of_part: Any  # the context of this rank's scorer
    rows: int


class ShardedScorer(Scorer):
    """A scorer of which every rank has a part; see `part_of`.

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
        self._dtype = next(floats, torch.float32)  # of scores, also of a rank that has none to give
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

    @property
    def lasting(self) -> Tensor:
        return self.values[: self.shard.num_top]

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


class Weights(Protocol):
    """Where the weights of a whole scorer are read from, by their names in its `state_dict`."""

    def length(self, name: str) -> int:
        """Rows of a tensor."""

    def read(self, name: str, rows: range) -> Tensor:
        """Some rows of a tensor."""

    def whole(self, name: str) -> Tensor:
        """All of a tensor."""

    def summed(self, name: str) -> str | None:
        """Where the sums of a table's rows over paths are kept; None where they are not."""


Make = Callable[[Mapping[str, Any], str, Tree, Shard, Weights], Scorer]


def part_of(kind: str, settings: Mapping[str, Any], tree: Tree, shard: Shard, weights: Weights) -> ShardedScorer:
    """One rank's part of a scorer; no more is read than this part, and the sizes of lists.

    Args:
        kind: the scorer's class, by name.
        settings: the scorer's.
        tree: the tree.
        shard: the subtrees that this rank has.
        weights: of the whole scorer.
    """
    return ShardedScorer(_make(kind, settings, "", tree, shard, weights), shard, settings)


def _make(kind: str, settings: Mapping[str, Any], prefix: str, tree: Tree, shard: Shard, weights: Weights) -> Scorer:
    if kind not in PARTS:
        raise ValueError(f"a {kind} cannot be sharded over ranks: start one process")
    return PARTS[kind](settings, prefix, tree, shard, weights)


def _of_deep(settings: Mapping[str, Any], prefix: str, tree: Tree, shard: Shard, weights: Weights) -> Scorer:
    scorer = DeepScorer(**{**settings, "num_nodes": 1, "share": False}, seed=None)
    name = f"{prefix}table.weight"
    summed = weights.summed(name) if settings["share"] else None
    rows = _rows(summed or name, shard, weights)
    if settings["share"] and summed is None:
        _sum_paths(shard, rows)
    return _with_table(scorer, prefix, shard, rows, weights)


def _of_factors(settings: Mapping[str, Any], prefix: str, tree: Tree, shard: Shard, weights: Weights) -> Scorer:
    scorer = FactorScorer(**{**settings, "num_nodes": 1}, seed=None)
    return _with_table(scorer, prefix, shard, _rows(f"{prefix}table.weight", shard, weights), weights)


def _of_memory(settings: Mapping[str, Any], prefix: str, tree: Tree, shard: Shard, weights: Weights) -> Scorer:
    """The partners that lie in this rank's subtrees, for all items that name them."""
    scorer = MemoryScorer(**{**settings, "entries": 0}, seed=None)
    scorer.recency = weights.whole(f"{prefix}recency")
    offsets, count = weights.whole(f"{prefix}offsets"), weights.length(f"{prefix}partners")
    starts, partners, values = torch.empty_like(offsets), [], []
    kept = first = 0
    for start in range(0, count, READ_AT_ONCE):
        piece = range(start, min(start + READ_AT_ONCE, count))
        columns = weights.read(f"{prefix}partners", piece)
        leaves = tree.leaf_of_item(columns.long())
        own = shard.owned(shard.height, leaves)
        last = int(torch.searchsorted(offsets, piece.stop))  # lists that begin in this piece
        before = torch.nn.functional.pad(own.cumsum(0), (1, 0))
        starts[first:last] = kept + before[offsets[first:last] - start]
        partners.append(columns[own])
        values.append(weights.read(f"{prefix}weights", piece)[own])
        kept, first = kept + int(before[-1]), last
    starts[first:] = kept
    scorer.offsets = starts
    scorer.partners = torch.cat([scorer.partners, *partners])
    scorer.weights = torch.cat([scorer.weights, *values])
    return _local(scorer, shard)


def _of_repeats(settings: Mapping[str, Any], prefix: str, tree: Tree, shard: Shard, weights: Weights) -> Scorer:
    return _local(RepeatScorer(**settings, seed=None), shard)


def _of_sum(settings: Mapping[str, Any], prefix: str, tree: Tree, shard: Shard, weights: Weights) -> Scorer:
    parts = {
        name: _make(kind, of_part, f"{prefix}parts.{name}.", tree, shard, weights)
        for name, (kind, of_part) in settings["parts"].items()
    }
    scorer = SumScorer(parts, settings["height"], settings["learned"], settings["made"])
    scorer.weights, scorer.calibration = weights.whole(f"{prefix}weights"), weights.whole(f"{prefix}calibration")
    return scorer


# Kinds of scorers that can be sharded; others are refused.
PARTS: dict[str, Make] = {
    DeepScorer.__name__: _of_deep,
    FactorScorer.__name__: _of_factors,
    MemoryScorer.__name__: _of_memory,
    RepeatScorer.__name__: _of_repeats,
    SumScorer.__name__: _of_sum,
}


def _local(scorer: SubtreeMaxScorer, shard: Shard) -> Scorer:
    if shard.cut < shard.height:
        scorer.subtree_max = partial(LocalSubtreeMax, shard=shard)
    return scorer


def _with_table(scorer: DeepScorer | FactorScorer, prefix: str, shard: Shard, rows: Tensor, weights: Weights) -> Scorer:
    """A scorer with its rows and all weights that are not rows."""
    scorer.table = LocalTable(shard, rows)
    names = [name for name in scorer.state_dict() if name != "table.weight"]
    state = {name: weights.whole(f"{prefix}{name}") for name in names}
    scorer.load_state_dict({**state, "table.weight": rows}, assign=True)
    return scorer


def _rows(name: str, shard: Shard, weights: Weights) -> Tensor:
    """The rows of a shard, and zeros after them."""
    first = weights.read(name, range(1))
    rows = first.new_empty(shard.num_rows + 1, first.shape[1])
    rows[-1] = 0
    for nodes, own in shard.spans():
        rows[own] = weights.read(name, nodes)
    return rows


def _sum_paths(shard: Shard, rows: Tensor) -> None:
    """Add to each row those above it, from the root down."""
    for level in range(1, shard.height + 1):
        rows[shard.rows(level)] += rows[shard.above(level)].repeat_interleave(shard.arity, dim=0)

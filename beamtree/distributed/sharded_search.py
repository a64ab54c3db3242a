"""Search over ranks: each holds some subtrees, scores the candidates among them, and all get all scores.

The levels down to the cut are everybody's. Below it a beam goes where its nodes live: a rank scores its own candidates,
and the others' are -inf, so that one maximum over ranks brings the scores back. What a user's history is known by comes
from the ranks that have its leaves, by one sum. All ranks call together, with the same users and nodes.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from beamtree.distributed.local_shard import OwnTable
from beamtree.distributed.partition import Shard
from beamtree.scorers.base import Scorer
from beamtree.scorers.deep import DeepScorer
from beamtree.scorers.factors import FactorScorer
from beamtree.scorers.memory import LiftedScorer, MemoryScorer
from beamtree.scorers.repeats import RepeatScorer
from beamtree.scorers.sum import SumScorer
from beamtree.tree import PAD, Tree

PIECE = 1 << 22  # partners that are read at once


class PartedContext(NamedTuple):
    of_part: Any  # what this rank's scorer knows of the users
    rows: int


class PartedScorer(Scorer):
    """A scorer of which every rank has a part; see `part_of`.

    Args:
        scorer: what this rank has.
        shard: which subtrees these are.
        settings: those of the whole scorer.
    """

    def __init__(self, scorer: Scorer, shard: Shard, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.scorer, self.shard, self._settings = scorer, shard, dict(settings)
        floats = (each.dtype for each in scorer.parameters() if each.dtype != torch.float16)
        self._dtype = next(floats, torch.float32)  # of scores, also of a rank that has none to give
        self._is_sparse = any(isinstance(part, LiftedScorer) and part.shard is not None for part in scorer.modules())

    @property
    def reads_items(self) -> bool:  # type: ignore[override]
        return self.scorer.reads_items

    @property
    def is_spread(self) -> bool:
        return True

    def is_local(self, level: int) -> bool:
        """Whether every rank can score a level alone."""
        return level <= self.shard.cut and not self._is_sparse

    @torch.no_grad()
    def context(self, tree: Tree, x: Tensor) -> PartedContext:
        return PartedContext(self.scorer.context(tree, x), len(x))

    @torch.no_grad()
    def forward(self, context: PartedContext, level: int, nodes: Tensor) -> Tensor:
        if level <= self.shard.cut:
            logits: Tensor = self.scorer(context.of_part, level, nodes)
            return logits
        own = self.shard.owned(level, nodes)
        whole = torch.full((context.rows, nodes.shape[1]), -torch.inf, dtype=self._dtype, device=nodes.device)
        count = int(own.sum(1).max()) if nodes.shape[1] else 0  # the most that any row has of ours
        if count:
            order = own.int().argsort(dim=1, descending=True)[:, :count]  # our nodes first
            scores = self.scorer(context.of_part, level, nodes.where(own, PAD).gather(1, order))
            whole.scatter_(1, order.expand(context.rows, -1), scores.to(whole))
        return self.shard.ranks.max_(whole)

    def calibrated(self, level: int, logits: Tensor) -> Tensor:
        return self.scorer.calibrated(level, logits)

    def settings(self) -> dict[str, Any]:
        return dict(self._settings)

    def check(self, x: Tensor) -> None:
        self.scorer.check(x)


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


def part_of(kind: str, settings: Mapping[str, Any], tree: Tree, shard: Shard, weights: Weights) -> PartedScorer:
    """One rank's part of a scorer; no more is read than this part, and the sizes of lists.

    Args:
        kind: the scorer's class, by name.
        settings: the scorer's.
        tree: the tree.
        shard: the subtrees that this rank has.
        weights: of the whole scorer.
    """
    return PartedScorer(_make(kind, settings, "", tree, shard, weights), shard, settings)


def _make(kind: str, settings: Mapping[str, Any], prefix: str, tree: Tree, shard: Shard, weights: Weights) -> Scorer:
    if kind not in PARTS:
        raise ValueError(f"a {kind} cannot be divided over ranks: start one rank")
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
    starts, partners, said = torch.empty_like(offsets), [], []
    kept = first = 0
    for start in range(0, count, PIECE):
        piece = range(start, min(start + PIECE, count))
        named = weights.read(f"{prefix}partners", piece)
        leaves = tree.leaf_of_item(named.long())
        own = shard.owned(shard.height, leaves)
        last = int(torch.searchsorted(offsets, piece.stop))  # lists that begin in this piece
        before = torch.nn.functional.pad(own.cumsum(0), (1, 0))
        starts[first:last] = kept + before[offsets[first:last] - start]
        partners.append(named[own])
        said.append(weights.read(f"{prefix}weights", piece)[own])
        kept, first = kept + int(before[-1]), last
    starts[first:] = kept
    scorer.offsets = starts
    scorer.partners = torch.cat([scorer.partners, *partners])
    scorer.weights = torch.cat([scorer.weights, *said])
    return _lifting(scorer, shard)


def _of_repeats(settings: Mapping[str, Any], prefix: str, tree: Tree, shard: Shard, weights: Weights) -> Scorer:
    return _lifting(RepeatScorer(**settings, seed=None), shard)


def _of_sum(settings: Mapping[str, Any], prefix: str, tree: Tree, shard: Shard, weights: Weights) -> Scorer:
    parts = {
        name: _make(kind, of_part, f"{prefix}parts.{name}.", tree, shard, weights)
        for name, (kind, of_part) in settings["parts"].items()
    }
    scorer = SumScorer(parts, settings["height"], settings["learned"], settings["made"])
    scorer.weights, scorer.calibration = weights.whole(f"{prefix}weights"), weights.whole(f"{prefix}calibration")
    return scorer


# What can be divided; a kind that is not here is refused.
PARTS: dict[str, Make] = {
    DeepScorer.__name__: _of_deep,
    FactorScorer.__name__: _of_factors,
    MemoryScorer.__name__: _of_memory,
    RepeatScorer.__name__: _of_repeats,
    SumScorer.__name__: _of_sum,
}


def _lifting(scorer: LiftedScorer, shard: Shard) -> Scorer:
    scorer.shard = shard if shard.cut < shard.height else None
    return scorer


def _with_table(scorer: DeepScorer | FactorScorer, prefix: str, shard: Shard, rows: Tensor, weights: Weights) -> Scorer:
    """A scorer with its rows and all weights that are not rows."""
    scorer.table = OwnTable(shard, rows)
    names = [name for name in scorer.state_dict() if name != "table.weight"]
    state = {name: weights.whole(f"{prefix}{name}") for name in names}
    scorer.load_state_dict({**state, "table.weight": rows}, assign=True)
    return scorer


def _rows(name: str, shard: Shard, weights: Weights) -> Tensor:
    """The rows of a shard, and zeros after them."""
    first = weights.read(name, range(1))
    rows = first.new_empty(shard.num_rows + 1, first.shape[1])
    rows[-1] = 0
    for nodes, place in shard.pieces():
        rows[place] = weights.read(name, nodes)
    return rows


def _sum_paths(shard: Shard, rows: Tensor) -> None:
    """Add to each row those above it, from the root down."""
    for level in range(1, shard.height + 1):
        rows[shard.rows(level)] += rows[shard.above(level)].repeat_interleave(shard.arity, dim=0)

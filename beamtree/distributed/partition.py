"""Which rows of a table of nodes are whose: whole subtrees, so that a path down leaves its rank once.

The levels down to `cut` are everybody's. Below it a rank owns the subtrees under a run of neighbours of that level, and
so a run of every level. Its rows are numbered as nodes are, level by level: the top first, then its own runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from beamtree.distributed.group import Ranks, ranks
from beamtree.tree import Tree

TOP = 1 << 12  # nodes that the last level which everybody has may have


@dataclass(frozen=True)
class Shard:
    """The rows of one of several ranks.

    Args:
        arity: b of the tree.
        height: H of the tree.
        cut: the last level that every rank has.
        ranks: who they are, and which of them this is.
    """

    arity: int
    height: int
    cut: int
    ranks: Ranks

    @classmethod
    def of(cls, tree: Tree, ranks: Ranks, top: int | None = None) -> "Shard":
        """One rank's part of a tree's nodes. The cut does not depend on how many ranks there are."""
        most = TOP if top is None else top
        cut = max((level for level in range(tree.height + 1) if tree.arity**level <= most), default=0)
        return cls(tree.arity, tree.height, cut, ranks)

    def level(self, level: int) -> range:
        """All nodes of a level."""
        start = (self.arity**level - 1) // (self.arity - 1)
        return range(start, start + self.arity**level)

    def runs(self, rank: int) -> range:
        """The nodes of the cut level whose subtrees are a rank's, counted from the first; as torch.chunk would."""
        nodes = self.arity**self.cut
        each = -(-nodes // self.ranks.size)
        return range(min(rank * each, nodes), min((rank + 1) * each, nodes))

    def span(self, level: int, rank: int) -> range:
        """The nodes of a level below the cut that are a rank's."""
        below, first, runs = self.arity ** (level - self.cut), self.level(level).start, self.runs(rank)
        return range(first + runs.start * below, first + runs.stop * below)

    def owned(self, level: int, nodes: Tensor) -> Tensor:
        """Which nodes of a level this rank has; PAD is nobody's."""
        span = self.level(level) if level <= self.cut else self.span(level, self.ranks.rank)
        return (nodes >= span.start) & (nodes < span.stop)

    @property
    def below(self) -> range:
        """The levels whose rows are divided."""
        return range(self.cut + 1, self.height + 1)

    @property
    def num_nodes(self) -> int:
        """|N| of the whole tree."""
        return self.level(self.height).stop

    @property
    def num_top(self) -> int:
        """Rows that everybody has."""
        return self.level(self.cut).stop

    @property
    def num_rows(self) -> int:
        """Rows that this rank has."""
        return self.num_top + sum(len(self.span(level, self.ranks.rank)) for level in self.below)

    @cached_property
    def bounds(self) -> list[int]:
        """The first node of every run, level by level and rank by rank, and the end of all."""
        return [self.span(level, rank).start for level in self.below for rank in range(self.ranks.size)] + [
            self.num_nodes
        ]

    @cached_property
    def offsets(self) -> list[int]:
        """What to take from a node of every run, in the same order, for the number of its row at its owner."""
        found = {}
        for rank in range(self.ranks.size):
            row = self.num_top
            for level in self.below:
                span = self.span(level, rank)
                found[level, rank] = span.start - row
                row += len(span)
        return [found[level, rank] for level in self.below for rank in range(self.ranks.size)]

    def rows(self, level: int) -> slice:
        """Where in this rank's table the rows of a level are: all of it in the top, its own run below."""
        if level <= self.cut:
            span = self.level(level)
            return slice(span.start, span.stop)
        span, offset = self.span(level, self.ranks.rank), self.offset(level)
        return slice(span.start - offset, span.stop - offset)

    def offset(self, level: int) -> int:
        """What to take from a node of a level that this rank has for the number of its row."""
        return 0 if level <= self.cut else self.offsets[(level - self.cut - 1) * self.ranks.size + self.ranks.rank]

    def above(self, level: int) -> slice:
        """Where in this rank's table the rows of the parents of its nodes of a level are, below the root."""
        rows, runs = self.rows(level - 1), self.runs(self.ranks.rank)
        return slice(rows.start + runs.start, rows.start + runs.stop) if level == self.cut + 1 else rows

    def part(self, rows: Tensor) -> Tensor:
        """The rows of this rank, of those of all nodes."""
        return torch.cat([rows[nodes.start : nodes.stop] for nodes, _ in self.pieces()])

    def pieces(self) -> Iterator[tuple[range, slice]]:
        """The runs of nodes that this rank has, and where their rows are."""
        yield range(self.num_top), slice(0, self.num_top)
        for level in self.below:
            yield self.span(level, self.ranks.rank), self.rows(level)


def own_shard(tree: Tree) -> Shard | None:
    """The rows that this process has of a table of nodes; None where it works alone."""
    return Shard.of(tree, ranks()) if ranks().size > 1 else None

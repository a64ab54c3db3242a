"""Which rank has which rows of a table of nodes: whole subtrees, so that a path down the tree changes ranks once.

All ranks have the levels down to `cut`. Below it a rank has the subtrees under consecutive nodes of that level, and so
consecutive nodes of every level. Its rows are in the order of the nodes: the top first, then its own nodes by level.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from beamtree.distributed.group import Ranks
from beamtree.mask import level_span
from beamtree.tree import Tree

TOP = 1 << 12  # nodes of the cut level, at most


@dataclass(frozen=True)
class Shard:
    """The rows of one rank.

    Args:
        arity: b of the tree.
        height: H of the tree.
        cut: the last level that every rank has.
        ranks: all ranks, and which of them this is.
    """

    arity: int
    height: int
    cut: int
    ranks: Ranks

    @classmethod
    def of(cls, tree: Tree, ranks: Ranks, top: int | None = None) -> "Shard":
        """One rank's part of a tree's nodes. The cut does not depend on how many ranks there are."""
        top = TOP if top is None else top
        cut = max((level for level in range(tree.height + 1) if tree.arity**level <= top), default=0)
        return cls(tree.arity, tree.height, cut, ranks)

    def level(self, level: int) -> range:
        """All nodes of a level."""
        return level_span(self.arity, level)

    def runs(self, rank: int) -> range:
        """The nodes of the cut level whose subtrees a rank has, counted from the first; divided as by torch.chunk."""
        nodes = self.arity**self.cut
        each = -(-nodes // self.ranks.size)
        return range(min(rank * each, nodes), min((rank + 1) * each, nodes))

    def span(self, level: int, rank: int) -> range:
        """The nodes of a level below the cut that a rank has."""
        below, first, runs = self.arity ** (level - self.cut), self.level(level).start, self.runs(rank)
        return range(first + runs.start * below, first + runs.stop * below)

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
        """Rows that all ranks have."""
        return self.level(self.cut).stop

    @property
    def num_rows(self) -> int:
        """Rows that this rank has."""
        return self.num_top + sum(len(self.span(level, self.ranks.rank)) for level in self.below)

    @cached_property
    def bounds(self) -> list[int]:
        """The first node of every rank on every level below the cut, and the end of all."""
        starts = [self.span(level, rank).start for level in self.below for rank in range(self.ranks.size)]
        return [*starts, self.num_nodes]

    @cached_property
    def offsets(self) -> list[int]:
        """For each of `bounds`, what to subtract from a node for its row on the rank that has it."""
        offsets, row = [], [self.num_top] * self.ranks.size
        for level in self.below:
            for rank in range(self.ranks.size):
                span = self.span(level, rank)
                offsets.append(span.start - row[rank])
                row[rank] += len(span)
        return offsets

    def rows(self, level: int) -> slice:
        """The rows of a level in this rank's table: all nodes in the top, its own below."""
        if level <= self.cut:
            span = self.level(level)
            return slice(span.start, span.stop)
        span, offset = self.span(level, self.ranks.rank), self.offset(level)
        return slice(span.start - offset, span.stop - offset)

    def offset(self, level: int) -> int:
        """What to subtract from a node of a level that this rank has for its row."""
        return 0 if level <= self.cut else self.offsets[(level - self.cut - 1) * self.ranks.size + self.ranks.rank]

    def above(self, level: int) -> slice:
        """The rows of the parents of this rank's nodes of a level below the root."""
        rows, runs = self.rows(level - 1), self.runs(self.ranks.rank)
        return slice(rows.start + runs.start, rows.start + runs.stop) if level == self.cut + 1 else rows

    def part(self, rows: Tensor) -> Tensor:
        """The rows of this rank, of those of all nodes."""
        return torch.cat([rows[nodes.start : nodes.stop] for nodes, _ in self.spans()])

    def spans(self) -> Iterator[tuple[range, slice]]:
        """The ranges of nodes that this rank has, and the rows of each."""
        yield range(self.num_top), slice(0, self.num_top)
        for level in self.below:
            yield self.span(level, self.ranks.rank), self.rows(level)

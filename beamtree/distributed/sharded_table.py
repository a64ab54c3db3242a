"""Rows of nodes that lie on several ranks, read by all of them at once.

A rank holds the rows of its shard, and Adam its moments for these alone. What a step reads it first pulls: distinct
nodes go to their owners, rows come back. Gradients go the same way back, once, when a step is done.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from beamtree.data.seeds import mix
from beamtree.distributed.exchange import Dealt, Pieces, to_first
from beamtree.distributed.partition import Shard
from beamtree.distributed.remote_rows import Pulled, SpreadVectors
from beamtree.distributed.reshard import carried, to_differences
from beamtree.scorers.table import NodeTable, same_depth
from beamtree.tree import PAD, Tree

SENT = 1 << 20  # rows that are sent at once
DRAWN = 1 << 16  # rows that are drawn at once: a multiple of 16, by which torch draws


class SpreadTable(NodeTable):
    """The rows of one shard of a table: the same numbers that the whole one would have there."""

    def __init__(
        self,
        shard: Shard,
        dim: int,
        scale: float = 1.0,
        seed: int | None = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shard.num_rows, dim, scale, None, dtype)
        self.shard = shard
        self.share = False  # whether what was read last were sums of rows
        self._summed: tuple[Tensor, Tensor] | None = None  # gradients and marks of own rows
        self.found: list[Pulled] = []  # gradients of a step that are not with their owners yet
        if seed is not None:
            self._draw(scale, torch.Generator().manual_seed(mix(seed, 2)))

    @classmethod
    def of(cls, table: NodeTable, shard: Shard) -> "SpreadTable":
        """One rank's rows of a table that it has whole."""
        weight = table.weight.detach()
        with torch.device(weight.device):
            found = cls(shard, weight.shape[1], seed=None, dtype=weight.dtype)
        with torch.no_grad():
            for nodes, rows in shard.pieces():
                found.weight[rows] = weight[nodes.start : nodes.stop]
        return found

    @property
    def num_nodes(self) -> int:
        return self.shard.num_nodes

    @torch.no_grad()
    def _draw(self, scale: float, generator: torch.Generator) -> None:
        """Draw the whole table, a piece at a time, and keep what is ours."""
        count, dim = self.num_nodes, self.weight.shape[1]
        if self.weight.is_meta:
            return
        starts = list(range(0, count, DRAWN))
        if len(starts) > 1 and (count - starts[-1]) * dim < 16:  # torch draws fewer than 16 another way
            starts.pop()
        for start, stop in zip(starts, [*starts[1:], count], strict=True):
            drawn = torch.empty(stop - start, dim, dtype=self.weight.dtype).normal_(0, scale, generator=generator)
            for nodes, rows in self.shard.pieces():
                low, high = max(start, nodes.start), min(stop, nodes.stop)
                if low < high:
                    at = rows.start - nodes.start
                    self.weight[low + at : high + at] = drawn[low - start : high - start]

    def rows(self, nodes: Tensor) -> Tensor:
        raise ValueError("these rows lie on several ranks: read them with `read`")

    def span(self, nodes: range) -> Tensor:
        raise ValueError("these rows lie on several ranks: read them with `read`")

    @torch.no_grad()
    def start_from(self, tree: Tree, vectors: Dealt, *, share: bool) -> None:
        shard, dim = self.shard, vectors.part.shape[1]
        slots = own_slots(tree, shard).to(vectors.part.device)
        real = slots != PAD
        sums = vectors.part.new_zeros(len(slots), dim)
        sums[real] = vectors.at(slots[real])
        count = real.to(sums.dtype).unsqueeze(1)
        for level in range(tree.height, -1, -1):
            if level == shard.cut < tree.height:
                sums, count = self._of_all(sums), self._of_all(count)
            mean = sums / count.clamp(min=1)
            self.weight[shard.rows(level), :dim] += mean
            if share and level < tree.height:
                above = mean[shard.runs(shard.ranks.rank)] if level == shard.cut else mean
                self.weight[shard.rows(level + 1), :dim] -= above.repeat_interleave(tree.arity, dim=0)
            if level:
                sums = sums.view(-1, tree.arity, dim).sum(1)
                count = count.view(-1, tree.arity, 1).sum(1)

    def _of_all(self, own: Tensor) -> Tensor:
        """What each rank knows of its nodes of the cut level, of all of them."""
        runs = self.shard.runs(self.shard.ranks.rank)
        whole = own.new_zeros(len(self.shard.level(self.shard.cut)), own.shape[1])
        whole[runs.start : runs.stop] = own
        return self.shard.ranks.sum_(whole)

    def pieces(self, rows: Tensor | None = None) -> Pieces:
        """All rows of the table, or others that lie as these do, for the first rank to write."""
        shard, own = self.shard, self.weight.detach() if rows is None else rows

        def parts() -> Iterator[Tensor]:
            yield own[: shard.num_top if shard.ranks.is_first else 0]
            for level in shard.below:
                of_level = own[shard.rows(level)]
                for rank in range(shard.ranks.size):  # in the order of the nodes
                    for start in range(0, len(shard.span(level, rank)), SENT):
                        mine = of_level[start : start + SENT] if rank == shard.ranks.rank else of_level[:0]
                        yield to_first(mine)[0]

        return Pieces((shard.num_nodes, own.shape[1]), own.dtype, parts())

    def of_items(self, tree: Tree, *, share: bool) -> Tensor:
        raise ValueError("the rows of this model lie on several ranks: save it, and open it on one")

    def shard_of(self, tree: Tree) -> Shard:
        """The rows that this rank has of another tree."""
        same = (tree.arity, tree.height) == (self.shard.arity, self.shard.height)
        return self.shard if same else Shard.of(tree, self.shard.ranks)

    @torch.no_grad()
    def on_tree(self, old: Tree, new: Tree, *, share: bool) -> Tensor:
        """What a whole table gives for another tree, of it the rows of this rank; all ranks must call it."""
        shard, depths = self.shard_of(new), [same_depth(new, level, old) for level in range(new.height + 1)]
        vectors, count = carried(lambda: self.read(old, share=share), old, new, shard, depths)
        if shard == self.shard:
            torch.where((count > 0).unsqueeze(1), vectors, self._values(old, share)[0], out=vectors)
        return to_differences(vectors, shard) if share else vectors

    def deeper(self, old: Tree, *, share: bool) -> Tensor:
        raise ValueError("the rows of this model lie on several ranks: save it, and open it on one")

    def read(self, tree: Tree, *, share: bool) -> "SpreadVectors":
        self.share = share
        values, learning = self._values(tree, share)
        return SpreadVectors(self.shard, self.weight, values, self.found if learning else None)

    @torch.no_grad()
    def _sum_paths(self, tree: Tree) -> Tensor:
        shard, weight = self.shard, self.weight
        sums = torch.empty_like(weight, requires_grad=False)  # written once, as of a whole table
        sums[0] = weight[0]
        for level in range(1, tree.height + 1):
            rows, above = shard.rows(level), sums[shard.above(level)]
            families = (len(above), tree.arity, weight.shape[1])
            torch.add(weight[rows].view(families), above.unsqueeze(1), out=sums[rows].view(families))
        return sums

    @torch.no_grad()
    def send_back(self) -> Tensor:
        """Bring the gradients of a step to their owners; the top's are left, to be summed over ranks.

        They are [rows of the top, dim + 1]; the last column is above 0 where a gradient may not be 0.
        """
        total, marks = self.blank()
        for pulled in self.found:
            pulled.send_back(total, marks)
        self.found.clear()
        if self.share:
            self._lift(total, marks, self.shard.below)
        top = self.shard.num_top
        self._summed = total, marks
        return torch.cat([total[:top], marks[:top].to(total).unsqueeze(1)], dim=1)

    @torch.no_grad()
    def take_sum(self, top: Tensor) -> None:
        """Take the top's gradients, summed over ranks, and hand all that were found to the weight."""
        assert self._summed is not None
        (total, marks), self._summed = self._summed, None
        total[: len(top)] = top[:, :-1]
        marks[: len(top)] = top[:, -1] > 0
        if self.share:
            self._lift(total, marks, range(1, self.shard.cut + 1))
        self.weight.grad, self.touched = total, marks

    def _lift(self, total: Tensor, marks: Tensor, levels: range) -> None:
        """Add the gradients of some levels to those of the rows above, from the last level up."""
        shard = self.shard
        for level in reversed(levels):
            span, above = shard.rows(level), shard.above(level)
            total[above] += total[span].view(-1, shard.arity, total.shape[1]).sum(1)
            if len(marks[span]):
                marks[above] |= marks[span].view(-1, shard.arity).amax(1)


def own_slots(tree: Tree, shard: Shard) -> Tensor:
    """The items on the leaf slots of one rank, PAD for none."""
    first = tree.level(tree.height).start
    own = shard.level(tree.height) if shard.cut == tree.height else shard.span(tree.height, shard.ranks.rank)
    return tree.items()[own.start - first : own.stop - first]

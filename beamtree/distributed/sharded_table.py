"""The table of a model that is trained over ranks: each rank has the rows of its subtrees.

Adam's moments are divided in the same way. What a step reads is first requested from the ranks that have it: see
`remote_rows`. Gradients go back the same way, once, when a step is done.
"""

import torch
from torch import Tensor, nn

from beamtree.distributed.exchange import PULL_AT_ONCE, InterleavedTable, lockstep, own_rows, send_to_first
from beamtree.distributed.partition import Shard
from beamtree.distributed.remote_rows import RemoteRows, ShardedVectors
from beamtree.scorers.table import NodeTable, same_depth
from beamtree.tree import PAD, Tree

SEND_AT_ONCE = 1 << 20  # rows that are sent at once


class ShardedTable(NodeTable):
    """This rank's rows of a table.

    Args:
        shard: which rows these are.
        rows: the rows [shard.num_rows, dim].
    """

    capturable = False

    def __init__(self, shard: Shard, rows: Tensor) -> None:
        super().__init__(0, rows.shape[1], seed=None, dtype=rows.dtype)
        self.weight = nn.Parameter(rows)
        self.shard = shard
        self.share = False  # whether what was read last were sums of rows
        self._summed: tuple[Tensor, Tensor] | None = None  # gradients and marks of own rows
        self.pending: list[RemoteRows] = []  # gradients of a step that are not with the ranks of their rows yet

    @classmethod
    def of(cls, table: NodeTable, shard: Shard) -> "ShardedTable":
        """This rank's rows of a table that it has whole."""
        sharded = cls(shard, shard.part(table.weight.detach()))
        sharded.weight.requires_grad_(table.weight.requires_grad)
        return sharded

    @property
    def num_nodes(self) -> int:
        return self.shard.num_nodes

    def rows(self, nodes: Tensor) -> Tensor:
        raise ValueError("these rows are sharded over ranks: read them with `read`")

    def span(self, nodes: range) -> Tensor:
        raise ValueError("these rows are sharded over ranks: read them with `read`")

    @torch.no_grad()
    def of_items(self, tree: Tree, *, share: bool) -> Tensor:
        """The vectors of all items' leaves, on every rank; all ranks must call it."""
        vectors = self.read(tree, share=share)
        (rows,) = vectors.index([(tree.height, tree.leaf_of_item(torch.arange(tree.num_items, device=tree.device)))])
        return vectors.at(rows)

    def with_extra_level(self, old: Tree, *, share: bool) -> NodeTable:
        raise ValueError("the rows of this model are sharded over ranks: save it, and open it in one process")

    def whole(self) -> Tensor | None:
        """All rows on the CPU of the first rank; None on the others."""
        shard, own = self.shard, self.weight.detach()
        table = torch.empty(shard.num_nodes, own.shape[1], dtype=own.dtype) if shard.ranks.is_first else None
        if table is not None:
            table[: shard.num_top] = own[: shard.num_top]
        for level in shard.below:
            rows = own[shard.rows(level)]
            for rank in range(shard.ranks.size):
                span = shard.span(level, rank)
                for start in range(0, len(span), SEND_AT_ONCE):
                    mine = rows[start : start + SEND_AT_ONCE] if rank == shard.ranks.rank else rows[:0]
                    (received,) = send_to_first(mine)
                    if table is not None:
                        table[span.start + start : span.start + start + len(received)] = received.cpu()
        return table

    # Other trees

    @torch.no_grad()
    def add_interleaved_means(self, tree: Tree, vectors: InterleavedTable) -> None:
        """`add_means` without `share`, of vectors of items that are divided over the ranks."""
        shard, dim = self.shard, vectors.part.shape[1]
        slots = _own_slots(tree, shard).to(vectors.part.device)
        real = slots != PAD
        sums = vectors.part.new_zeros(len(slots), dim)
        sums[real] = vectors.at(slots[real])
        count = real.to(sums.dtype).unsqueeze(1)
        for level in range(tree.height, -1, -1):
            if level == shard.cut < tree.height:
                sums, count = self._all_of_cut(sums), self._all_of_cut(count)
            self.weight[shard.rows(level), :dim] += sums / count.clamp(min=1)
            if level:
                sums = sums.view(-1, tree.arity, dim).sum(1)
                count = count.view(-1, tree.arity, 1).sum(1)

    def _all_of_cut(self, own: Tensor) -> Tensor:
        """Values of all nodes of the cut level, from those of each rank's."""
        runs = self.shard.runs(self.shard.ranks.rank)
        values = own.new_zeros(len(self.shard.level(self.shard.cut)), own.shape[1])
        values[runs.start : runs.stop] = own
        return self.shard.ranks.sum_(values)

    @torch.no_grad()
    def means_on(self, old: Tree, new: Tree) -> "ShardedTable":
        vectors = self.read(old, share=False)
        (rows,) = vectors.index([(old.height, old.leaf_of_item(own_rows(old.num_items, old.device)))])
        shard = self._shard_of(new)
        table = ShardedTable(shard, vectors.values.new_zeros(shard.num_rows, vectors.values.shape[1]).float())
        table.add_interleaved_means(new, InterleavedTable(vectors.at(rows).float(), old.num_items))
        return table

    @torch.no_grad()
    def on_tree(self, old: Tree, new: Tree, *, share: bool) -> "ShardedTable":
        """`NodeTable.on_tree`, of which every rank computes its rows; all ranks must call it.

        A rank reads the old vectors of the items on its leaves, some items at a time. Its part of the sums for the top
        is added to those of the others.
        """
        shard, depths = self._shard_of(new), [same_depth(new, level, old) for level in range(new.height + 1)]
        sums = self.weight.new_zeros(shard.num_rows, self.weight.shape[1])
        count = torch.zeros(shard.num_rows, dtype=torch.int32, device=sums.device)
        own, wanted = shard.span(new.height, shard.ranks.rank), sorted(set(depths))
        at_once = max(1, PULL_AT_ONCE // len(wanted))  # items
        for piece in lockstep(-(-len(own) // at_once)):
            span = own[:0] if piece is None else own[piece * at_once : (piece + 1) * at_once]
            leaves = torch.arange(span.start, span.stop, device=new.device)
            before = old.leaf_of_item(new.item_of_leaf(leaves))
            leaves, before = leaves[before != PAD], before[before != PAD]
            vectors = self.read(old, share=share)
            rows = vectors.index([(depth, old.ancestor(before, depth)) for depth in wanted])
            for level, depth in enumerate(depths):
                at = new.ancestor(leaves, level) - shard.offset(level)
                sums.index_add_(0, at, vectors.at(rows[wanted.index(depth)]))
                count.index_add_(0, at, torch.ones_like(at, dtype=torch.int32))
        for part in (sums, count):
            shard.ranks.sum_(part[: shard.num_top])
        means = sums.div_(count.clamp(min=1).unsqueeze(1))
        if shard == self.shard:
            torch.where((count > 0).unsqueeze(1), means, self._values(old, share)[0], out=means)
        if share:  # each row is the difference from its parent
            for level in range(shard.height, 0, -1):
                above = means[shard.above(level)].unsqueeze(1)
                means[shard.rows(level)].view(len(above), shard.arity, means.shape[1]).sub_(above)
        return ShardedTable(shard, means)

    def _shard_of(self, tree: Tree) -> Shard:
        same = (tree.arity, tree.height) == (self.shard.arity, self.shard.height)
        return self.shard if same else Shard.of(tree, self.shard.ranks)

    # A step

    def read(self, tree: Tree, *, share: bool) -> ShardedVectors:
        self.share = share
        values, learning = self._values(tree, share)
        return ShardedVectors(self.shard, self.weight, values, self.pending if learning else None)

    @torch.no_grad()
    def _sum_paths(self, tree: Tree) -> Tensor:
        shard, weight = self.shard, self.weight
        sums = torch.empty_like(weight, requires_grad=False)  # written once, as of a whole table
        sums[0] = weight[0]
        for level in range(1, tree.height + 1):
            rows, above = shard.rows(level), sums[shard.above(level)]
            siblings = (len(above), tree.arity, weight.shape[1])
            torch.add(weight[rows].view(siblings), above.unsqueeze(1), out=sums[rows].view(siblings))
        return sums

    @torch.no_grad()
    def send_gradients(self) -> Tensor:
        """Send the gradients of a step to the ranks of their rows; returns those of the top, to be summed over ranks.

        They are [rows of the top, dim + 1]; the last column is above 0 where a gradient may not be 0.
        """
        total, marks = self.zeros()
        for rows in self.pending:
            rows.send_gradients(total, marks)
        self.pending.clear()
        if self.share:
            self._add_to_parents(total, marks, self.shard.below)
        top = self.shard.num_top
        self._summed = total, marks
        return torch.cat([total[:top], marks[:top].to(total).unsqueeze(1)], dim=1)

    @torch.no_grad()
    def set_gradients(self, top: Tensor) -> None:
        """Set the gradient of the weight, given the top's, summed over ranks."""
        assert self._summed is not None
        (total, marks), self._summed = self._summed, None
        total[: len(top)] = top[:, :-1]
        marks[: len(top)] = top[:, -1] > 0
        if self.share:
            self._add_to_parents(total, marks, range(1, self.shard.cut + 1))
        self.weight.grad, self.touched = total, marks

    def _add_to_parents(self, total: Tensor, marks: Tensor, levels: range) -> None:
        """Add the gradients of levels to those of the level above each, from the last up."""
        shard = self.shard
        for level in reversed(levels):
            span, above = shard.rows(level), shard.above(level)
            total[above] += total[span].view(-1, shard.arity, total.shape[1]).sum(1)
            if len(marks[span]):
                marks[above] |= marks[span].view(-1, shard.arity).amax(1)


def _own_slots(tree: Tree, shard: Shard) -> Tensor:
    """The items on the leaf slots of this rank, PAD for none."""
    first = tree.level(tree.height).start
    own = shard.level(tree.height) if shard.cut == tree.height else shard.span(tree.height, shard.ranks.rank)
    return tree.items()[own.start - first : own.stop - first]

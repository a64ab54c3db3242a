"""Rows that follow their items to another tree, where both trees' rows lie on several ranks.

A rank makes the rows of its own subtrees of the new tree. What lay above the items there it pulls from the owners in
the old tree, distinct vectors for some items at a time; what it finds for the top is a part of a sum over ranks.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from beamtree.distributed.exchange import PULLED, in_step
from beamtree.distributed.partition import Shard
from beamtree.distributed.remote_rows import SpreadVectors
from beamtree.tree import PAD, Tree


def carried(
    read: Callable[[], SpreadVectors], old: Tree, new: Tree, shard: Shard, depths: list[int]
) -> tuple[Tensor, Tensor]:
    """For a shard of the new tree, the mean of vectors over the items below each node [rows, dim], and how many.

    All ranks call it. A mean of no items is 0.

    Args:
        read: gives the vectors of the old tree's nodes, with nothing pulled yet.
        old: the tree that the vectors are of.
        new: another one over the same items; those that one of the two does not hold are left out.
        shard: this rank's part of it.
        depths: for each level of the new tree, the level of the old one whose vectors count there.
    """
    own, wanted = shard.span(new.height, shard.ranks.rank), sorted(set(depths))
    top = read().top
    sums = top.new_zeros(shard.num_rows, top.shape[1])
    count = torch.zeros(shard.num_rows, dtype=torch.int32, device=top.device)
    each = max(1, PULLED // len(wanted))  # items
    for piece in in_step(-(-len(own) // each)):
        some = own[:0] if piece is None else own[piece * each : (piece + 1) * each]
        leaves = torch.arange(some.start, some.stop, device=new.device)
        was = old.leaf_of_item(new.item_of_leaf(leaves))
        leaves, was = leaves[was != PAD], was[was != PAD]
        vectors = read()
        places = vectors.place([(depth, old.ancestor(was, depth)) for depth in wanted])
        for level, depth in enumerate(depths):
            rows = new.ancestor(leaves, level) - shard.offset(level)
            sums.index_add_(0, rows, vectors.at(places[wanted.index(depth)]))
            count.index_add_(0, rows, torch.ones_like(rows, dtype=torch.int32))
    for part in (sums, count):
        shard.ranks.sum_(part[: shard.num_top])
    return sums.div_(count.clamp(min=1).unsqueeze(1)), count


def to_differences(vectors: Tensor, shard: Shard) -> Tensor:
    """The vectors of a shard's nodes, in place, as what each differs by from its parent's."""
    for level in range(shard.height, 0, -1):
        above = vectors[shard.above(level)].unsqueeze(1)
        vectors[shard.rows(level)].view(len(above), shard.arity, vectors.shape[1]).sub_(above)
    return vectors

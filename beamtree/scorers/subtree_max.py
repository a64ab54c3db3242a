"""Scores that are sparse over items, propagated to every node as the maximum of its subtree: a max-heap.

**A beam over such scores alone loses nothing.** Let s be the scores of items, 0 where none is kept, and let the score
of an inner node be the maximum over the items below it. Let item i be among the best m ≤ k with s_i > 0, and n be its
ancestor on some level. The score of n is at least s_i. Every other node of that level that scores as much has below it
an item that scores as much, and these items are different ones, since subtrees of one level share no item. So fewer
than m nodes score above n, n is among the best k (a tie aside), and by induction from the root i is found.
"""

import torch
from torch import Tensor

from beamtree import kernels
from beamtree.tree import PAD, Tree


class SubtreeMax:
    """For each user a few items with scores, and for each node the highest of those below it, but at least 0.

    The entries are sorted by leaf once, so those below a node are neighbours. Nothing has the length of the catalogue.
    The maxima of every run of 2^j entries are kept: that of any run is the larger one of two that overlap. All lists
    keep their lengths, whatever the entries are, so that a GPU does not wait for them.
    """

    def __init__(self, tree: Tree, leaves: Tensor, scores: Tensor) -> None:
        """`leaves` [B, E], PAD for none, and `scores` [B, E]; of a leaf that is named twice the scores are added."""
        if not leaves.shape[1]:
            leaves, scores = leaves.new_full((leaves.shape[0], 1), PAD), scores.new_zeros(leaves.shape[0], 1)
        self.tree, self.rows = tree, leaves.shape[0]
        size = len(tree.level(tree.height))
        slot = (
            leaves - tree.level(tree.height).start + torch.arange(self.rows, device=leaves.device).unsqueeze(1) * size
        )
        none = self.rows * size  # stands for no leaf
        keys, scores = slot.masked_fill_(leaves == PAD, none).flatten(), scores.flatten()
        if type(none) is int and none < 2**31:
            keys = keys.int()  # sorted in less time
        keys, order = keys.sort()
        new = torch.ones_like(keys, dtype=torch.bool)
        torch.ne(keys[1:], keys[:-1], out=new[1:])
        place = new.cumsum(0) - 1
        self.scores = torch.zeros_like(scores).index_add_(0, place, scores.take(order).masked_fill_(keys == none, 0.0))
        self.keys = torch.full_like(keys, none).scatter_(0, place, keys)
        self.runs = self._make(leaves.shape[1].bit_length())

    def _make(self, powers: int) -> Tensor:
        """Row j holds the maximum of the 2^j entries from each on, and of 0, which none can be below."""
        count = self.keys.shape[0] + 1  # one more, so that a run may begin at the end
        runs = self.scores.new_zeros(powers, count + 2**powers)
        torch.clamp(self.scores, min=0, out=runs[0, : count - 1])
        for j in range(1, powers):
            reach = 2 ** (j - 1)
            torch.maximum(runs[j - 1, :count], runs[j - 1, reach : reach + count], out=runs[j, :count])
        return runs

    def at(self, level: int, nodes: Tensor) -> Tensor:
        """The scores [B, W] of nodes [B or 1, W] of one level, and any number at PAD."""
        width = self.tree.arity ** (self.tree.height - level)
        if kernels.fits(self.scores) and self.keys.dtype == torch.int32:
            from beamtree.kernels.maxima import maxima

            return maxima(self.keys, self.scores, self.runs, nodes, self.tree.level(level), width, self.rows)
        first = (places(self.tree, self.rows, level, nodes) * width).to(self.keys.dtype)
        begin = torch.searchsorted(self.keys, first)
        if width == 1:
            begin.clamp_(max=self.keys.shape[0] - 1)
            return self.scores.take(begin).masked_fill_(self.keys.take(begin) != first, 0.0)
        length = torch.searchsorted(self.keys, first + width) - begin
        power = length.clamp(min=1).to(torch.float32).log2_().long()
        row = power * self.runs.shape[1]
        other = (begin + length - (1 << power)).clamp_(min=0)
        found = torch.maximum(self.runs.take(row + begin), self.runs.take(row + other))
        return found.masked_fill_(length <= 0, 0.0)


def places(tree: Tree, rows: int, level: int, nodes: Tensor) -> Tensor:
    """Where nodes [rows or 1, W] stand among those of a level, one user after another [rows, W]; below 0 for PAD."""
    span = tree.level(level)
    place = nodes - span.start
    if kernels.is_one(rows):
        return place
    user = torch.arange(rows, device=nodes.device).unsqueeze(1)
    return torch.where(nodes != PAD, user * len(span) + place, -1)

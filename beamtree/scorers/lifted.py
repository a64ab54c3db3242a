"""Scores that are sparse over items, lifted to every node by the maximum: a max-heap over the tree.

**A beam over such scores alone loses nothing.** Let s be the scores of items, 0 where none is kept, and let the score
of an inner node be the maximum over the items below it. Let item i be among the best m ≤ k with s_i > 0, and n be its
ancestor on some level. The score of n is at least s_i. Every other node of that level that scores as much has below it
an item that scores as much, and these items are different ones, since subtrees of one level share no item. So fewer
than m nodes score above n, n is among the best k (a tie aside), and by induction from the root i is found.
"""

import numpy as np
import torch
from torch import Tensor

from beamtree.tree import PAD, Tree


class Lifted:
    """For each user a few items with scores, and for each node the highest of those below it, but at least 0.

    The entries are sorted by leaf once; a level above is made of the one below by taking the maximum of neighbours
    with one parent. No list is longer than the number of entries, so nothing has the length of the catalogue.
    """

    def __init__(self, tree: Tree, leaves: Tensor, scores: Tensor) -> None:
        """`leaves` [B, E], PAD for none, and `scores` [B, E]; of a leaf that is named twice the scores are added."""
        self.tree = tree
        self._levels: list[tuple[Tensor, Tensor]] = []  # from the leaves up: keys in rising order, and scores
        size = len(tree.level(tree.height))
        user = torch.arange(len(leaves), device=leaves.device).unsqueeze(1)
        slot = leaves - tree.level(tree.height).start
        last = len(leaves) * size  # stands for none
        key = torch.where(leaves != PAD, user * size + slot, last).flatten()
        key, order = key.sort()
        self._levels.append(_merged(key, scores.flatten()[order], last, "sum"))
        self._last = last

    def at(self, level: int, nodes: Tensor, rows: int) -> Tensor:
        """The scores [rows, W] of nodes [rows or 1, W] of one level; 0 at PAD."""
        keys, scores = self._level(level)
        span = self.tree.level(level)
        user = torch.arange(rows, device=nodes.device).unsqueeze(1)
        wanted = torch.where(nodes != PAD, user * len(span) + (nodes - span.start), -1)
        if not len(keys):
            return torch.zeros(wanted.shape, device=nodes.device)
        place = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
        return scores.take(place).masked_fill_(keys.take(place) != wanted, 0.0)

    def _level(self, level: int) -> tuple[Tensor, Tensor]:
        while len(self._levels) <= self.tree.height - level:
            keys, scores = self._levels[-1]
            last = self._last // self.tree.arity ** len(self._levels)
            above = torch.div(keys, self.tree.arity, rounding_mode="floor")
            self._levels.append(_merged(above, scores.clamp(min=0), last, "amax"))
        return self._levels[self.tree.height - level]


def _merged(keys: Tensor, scores: Tensor, last: int, how: str) -> tuple[Tensor, Tensor]:
    """Each of sorted keys once, with the sum or the maximum of its scores.

    On a GPU the list keeps its length, so that nothing waits for it; the rest of it is `last`, scored 0.
    """
    if not keys.is_cuda:
        return _merged_on_cpu(keys, scores, how)
    new = torch.ones_like(keys, dtype=torch.bool)
    torch.ne(keys[1:], keys[:-1], out=new[1:])
    place = new.cumsum(0) - 1
    found = torch.zeros_like(scores)
    if how == "sum":
        found.index_add_(0, place, scores)
    else:
        found.scatter_reduce_(0, place, scores, "amax")  # with the 0 that is there: scores below it do not count
    return torch.full_like(keys, last).scatter_(0, place, keys), found


def _merged_on_cpu(keys: Tensor, scores: Tensor, how: str) -> tuple[Tensor, Tensor]:
    """By numpy, whose reductions of runs are many times faster than those of torch."""
    if not len(keys):
        return keys, scores
    numbers, values = keys.numpy(), scores.numpy()
    starts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    starts = np.concatenate([np.zeros(1, starts.dtype), starts])
    reduce = np.add if how == "sum" else np.maximum
    return torch.from_numpy(numbers[starts]), torch.from_numpy(reduce.reduceat(values, starts))

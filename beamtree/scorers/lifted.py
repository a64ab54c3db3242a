"""Scores that are sparse over items, lifted to every node by the maximum: a max-heap over the tree.

**A beam over such scores alone loses nothing.** Let s be the scores of items, 0 where none is kept, and let the score
of an inner node be the maximum over the items below it. Let item i be among the best m ≤ k with s_i > 0, and n be its
ancestor on some level. The score of n is at least s_i. Every other node of that level that scores as much has below it
an item that scores as much, and these items are different ones, since subtrees of one level share no item. So fewer
than m nodes score above n, n is among the best k (a tie aside), and by induction from the root i is found.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from beamtree.tree import PAD, Tree


class Lifted:
    """For each user a few items with scores, and for each node the highest of those below it, but at least 0.

    The entries are sorted by leaf once, so those below a node are neighbours. The maximum of every run of 2^j entries
    is kept: that of any run is the larger one of two that overlap. Nothing has the length of the catalogue.
    """

    def __init__(self, tree: Tree, leaves: Tensor, scores: Tensor) -> None:
        """`leaves` [B, E], PAD for none, and `scores` [B, E]; of a leaf that is named twice the scores are added."""
        self.tree = tree
        size = len(tree.level(tree.height))
        last = len(leaves) * size  # stands for none
        user = torch.arange(len(leaves), device=leaves.device).unsqueeze(1)
        slot = leaves - tree.level(tree.height).start
        key = torch.where(leaves != PAD, user * size + slot, last).flatten()
        if last < 2**31:
            key = key.int()  # sorted in less time
        key, order = key.sort()
        self.keys, self.scores = _added(key, scores.flatten().take(order), last)
        self._longest = leaves.shape[1]
        self._runs: Tensor | None = None  # [1 + log₂ E, entries]

    def at(self, level: int, nodes: Tensor, rows: int) -> Tensor:
        """The scores [rows, W] of nodes [rows or 1, W] of one level; 0 at PAD."""
        width = self.tree.arity ** (self.tree.height - level)
        span = self.tree.level(level)
        first = nodes - span.start
        if rows > 1:
            user = torch.arange(rows, device=nodes.device).unsqueeze(1)
            first = torch.where(nodes != PAD, user * len(span) + first, -1)
        first = (first * width).to(self.keys.dtype)  # below 0 at PAD, where nothing is found
        if width == 1:
            return self._at_leaves(first)
        if not first.is_cuda:
            return torch.from_numpy(self._highest_on_cpu(first.numpy(), width))
        begin = torch.searchsorted(self.keys, first)
        return self._highest(begin, torch.searchsorted(self.keys, first + width) - begin)

    def _at_leaves(self, wanted: Tensor) -> Tensor:
        if not len(self.keys):
            return torch.zeros(wanted.shape, device=wanted.device)
        place = torch.searchsorted(self.keys, wanted).clamp_(max=len(self.keys) - 1)
        return self.scores.take(place).masked_fill_(self.keys.take(place) != wanted, 0.0)

    def _highest(self, begin: Tensor, length: Tensor) -> Tensor:
        """The maximum of runs of entries, and of 0."""
        if self._runs is None:
            self._runs = self._make_runs()
        count = self._runs.shape[1]
        power = length.clamp(min=1).to(torch.float32).log2_().long()
        row = power * count
        other = begin + length - (1 << power)
        found = torch.maximum(self._runs.take(row + begin), self._runs.take(row + other.clamp_(min=0)))
        return found.masked_fill_(length <= 0, 0.0)

    def _highest_on_cpu(self, first: Any, width: int) -> Any:
        """The same by numpy, which needs half the time for so few."""
        if self._runs is None:
            self._runs = self._make_runs()
        keys, runs = self.keys.numpy(), self._runs.numpy()
        begin, end = keys.searchsorted(first), keys.searchsorted(first + width)
        length = end - begin
        power = np.log2(np.maximum(length, 1)).astype(np.int64)
        row = power * runs.shape[1]
        found = np.maximum(runs.take(row + begin), runs.take(row + np.maximum(end - (1 << power), 0)))
        return np.where(length > 0, found, np.float32(0))

    def _make_runs(self) -> Tensor:
        """Row j holds the maximum of the 2^j entries from each on, and of 0, which none can be below."""
        count = len(self.scores) + 1  # one more, so that a run may begin at the end
        runs = self.scores.new_zeros(max(1, self._longest.bit_length()), count)
        torch.clamp(self.scores, min=0, out=runs[0, :-1])
        for j in range(1, len(runs)):
            reach = min(2 ** (j - 1), count)
            runs[j] = runs[j - 1]
            torch.maximum(runs[j - 1, : count - reach], runs[j - 1, reach:], out=runs[j, : count - reach])
        return runs


def _added(keys: Tensor, scores: Tensor, last: int) -> tuple[Tensor, Tensor]:
    """Each of sorted keys once, with the sum of its scores.

    On a GPU the list keeps its length, so that nothing waits for it; the rest of it is `last`, scored 0.
    """
    if not keys.is_cuda:
        return _added_on_cpu(keys, scores, last)
    new = torch.ones_like(keys, dtype=torch.bool)
    torch.ne(keys[1:], keys[:-1], out=new[1:])
    place = new.cumsum(0) - 1
    found = torch.zeros_like(scores).index_add_(0, place, scores.masked_fill(keys == last, 0.0))
    return torch.full_like(keys, last).scatter_(0, place, keys), found


def _added_on_cpu(keys: Tensor, scores: Tensor, last: int) -> tuple[Tensor, Tensor]:
    """By numpy, whose reductions of runs are many times faster than those of torch."""
    numbers, values = keys.numpy(), scores.numpy()
    starts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    starts = np.concatenate([np.zeros(min(1, len(numbers)), starts.dtype), starts])
    if not len(starts):
        return keys, scores
    found, sums = numbers[starts], np.add.reduceat(values, starts)
    if found[-1] == last:
        found, sums = found[:-1], sums[:-1]
    return torch.from_numpy(found), torch.from_numpy(sums)

"""Scores that are sparse over items, propagated to every node as the maximum of its subtree: a max-heap.

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

from beamtree import kernels
from beamtree.tree import PAD, Tree

DENSE_FACTOR = 16  # a level is kept dense up to this many nodes per entry


class SubtreeMax:
    """For each user a few items with scores, and for each node the highest of those below it, but at least 0.

    The entries are sorted by leaf once, so those below a node are neighbours. Nothing has the length of the catalogue.
    """

    def __init__(self, tree: Tree, leaves: Tensor, scores: Tensor) -> None:
        """`leaves` [B, E], PAD for none, and `scores` [B, E]; of a leaf that is named twice the scores are added."""
        if not leaves.shape[1]:
            leaves, scores = leaves.new_full((len(leaves), 1), PAD), scores.new_zeros(len(leaves), 1)
        rows, size = len(leaves), len(tree.level(tree.height))
        slot = leaves - tree.level(tree.height).start
        if rows > 1:
            slot += torch.arange(rows, device=leaves.device).unsqueeze(1) * size
        key = slot.masked_fill_(leaves == PAD, rows * size).flatten()  # the last stands for none
        how = Runs if leaves.is_cuda else Levels
        self.maxima = how(tree, rows, key, scores.flatten())

    def at(self, level: int, nodes: Tensor) -> Tensor:
        """The scores [B, W] of nodes [B or 1, W] of one level, and any number at PAD."""
        return self.maxima.at(level, nodes)


def places(tree: Tree, rows: int, level: int, nodes: Tensor) -> Tensor:
    """Where nodes [rows or 1, W] stand among those of a level, one user after another [rows, W]; below 0 for PAD."""
    span = tree.level(level)
    place = nodes - span.start
    if rows == 1:
        return place
    user = torch.arange(rows, device=nodes.device).unsqueeze(1)
    return torch.where(nodes != PAD, user * len(span) + place, -1)


class Levels:
    """On a CPU: the maxima of every level, made from those of the level below when they are first asked for.

    By numpy, which needs less time for so few numbers.
    """

    def __init__(self, tree: Tree, rows: int, keys: Tensor, scores: Tensor) -> None:
        self.tree, self.rows = tree, rows
        none = rows * len(tree.level(tree.height))
        self._room = DENSE_FACTOR * len(keys)
        self._users = np.arange(rows).reshape(-1, 1)
        whole = none <= self._room
        self._found: list[Any] = [
            _sum_dense(keys, scores, none) if whole else _sum_sparse(keys, scores, none)
        ]  # leaves first

    def at(self, level: int, nodes: Tensor) -> Tensor:
        while len(self._found) <= self.tree.height - level:
            self._found.append(self._above())
        found, span = self._found[self.tree.height - level], self.tree.level(level)
        place = nodes.numpy() + (self._users * len(span) - span.start)  # PAD: anywhere, or nowhere
        if not isinstance(found, tuple):
            return torch.from_numpy(found.take(place, mode="clip"))
        keys, maxima = found
        at = keys.searchsorted(place.astype(keys.dtype))
        return torch.from_numpy(
            np.where(keys.take(at, mode="clip") == place, maxima.take(at, mode="clip"), np.float32(0))
        )

    def _above(self) -> Any:
        """The maxima of the level above the last: of the nodes that have any, or of all where there is room."""
        last, size = self._found[-1], self.rows * len(self.tree.level(self.tree.height - len(self._found)))
        if not isinstance(last, tuple):
            best = last.reshape(size, -1).max(1) if self.tree.arity > 2 else np.maximum(last[::2], last[1::2])
            return np.maximum(best, np.float32(0), out=best) if len(self._found) == 1 else best
        keys = last[0] // self.tree.arity
        starts = _starts(keys)
        keys, maxima = keys[starts], np.maximum(np.maximum.reduceat(last[1], starts), np.float32(0))
        if size > self._room:
            return keys, maxima
        whole = np.zeros(size, np.float32)
        named = slice(None, None if keys[-1] < size else -1)  # the last is that of none, where nothing else is known
        whole[keys[named]] = maxima[named]
        return whole


def _sum_dense(keys: Tensor, scores: Tensor, none: int) -> Any:
    """The sum of the scores of every key below `none`."""
    return scores.new_zeros(none + 1).scatter_add_(0, keys, scores)[:none].numpy()


def _sum_sparse(all_keys: Tensor, all_scores: Tensor, none: int) -> tuple[Any, Any]:
    """Each key below `none` once, in rising order, with the sum of its scores; at least one."""
    said = ((all_scores != 0) & (all_keys != none)).numpy().nonzero()[0]  # the others fill up short lists
    if not len(said):
        return np.zeros(1, np.int64), np.zeros(1, np.float32)
    keys, scores = all_keys.numpy().take(said), all_scores.numpy().take(said)
    if none < 2**32:  # two passes over 16 bits each are several times faster than one sort
        low = keys.astype(np.uint16).argsort(kind="stable")
        order = low[(keys[low] >> 16).astype(np.uint16).argsort(kind="stable")] if none >= 2**16 else low
    else:
        order = keys.argsort(kind="stable")
    keys = keys[order]
    starts = _starts(keys)
    return keys[starts], np.add.reduceat(scores[order], starts)


def _starts(keys: Any) -> Any:
    """Where sorted keys change, the first place among them."""
    new = np.empty(len(keys), np.bool_)
    new[0] = True
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    return new.nonzero()[0]


class Runs:
    """On a GPU: the maxima of every run of 2^j entries; that of any run is the larger one of two that overlap.

    The lists keep their lengths, whatever the entries are, so that nothing waits for them.
    """

    def __init__(self, tree: Tree, rows: int, keys: Tensor, scores: Tensor) -> None:
        self.tree, self.rows = tree, rows
        none = rows * len(tree.level(tree.height))
        if none < 2**31:
            keys = keys.int()  # sorted in less time
        keys, order = keys.sort()
        new = torch.ones_like(keys, dtype=torch.bool)
        torch.ne(keys[1:], keys[:-1], out=new[1:])
        place = new.cumsum(0) - 1
        self.scores = torch.zeros_like(scores).index_add_(0, place, scores.take(order).masked_fill_(keys == none, 0.0))
        self.keys = torch.full_like(keys, none).scatter_(0, place, keys)
        self.runs = self._make(max(1, (len(keys) // rows).bit_length()))

    def _make(self, powers: int) -> Tensor:
        """Row j holds the maximum of the 2^j entries from each on, and of 0, which none can be below."""
        count = len(self.keys) + 1  # one more, so that a run may begin at the end
        runs = self.scores.new_zeros(powers, count + 2**powers)
        torch.clamp(self.scores, min=0, out=runs[0, : count - 1])
        for j in range(1, powers):
            reach = 2 ** (j - 1)
            torch.maximum(runs[j - 1, :count], runs[j - 1, reach : reach + count], out=runs[j, :count])
        return runs

    def at(self, level: int, nodes: Tensor) -> Tensor:
        width = self.tree.arity ** (self.tree.height - level)
        if kernels.fits(self.scores) and self.keys.dtype == torch.int32:
            from beamtree.kernels.maxima import maxima

            return maxima(self.keys, self.scores, self.runs, nodes, self.tree.level(level), width, self.rows)
        first = (places(self.tree, self.rows, level, nodes) * width).to(self.keys.dtype)
        begin = torch.searchsorted(self.keys, first)
        if width == 1:
            begin.clamp_(max=len(self.keys) - 1)
            return self.scores.take(begin).masked_fill_(self.keys.take(begin) != first, 0.0)
        length = torch.searchsorted(self.keys, first + width) - begin
        power = length.clamp(min=1).to(torch.float32).log2_().long()
        row = power * self.runs.shape[1]
        other = (begin + length - (1 << power)).clamp_(min=0)
        found = torch.maximum(self.runs.take(row + begin), self.runs.take(row + other))
        return found.masked_fill_(length <= 0, 0.0)

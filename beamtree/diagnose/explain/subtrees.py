"""What lies below every node: how many items, and the most popular of them, by which people know a subtree."""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from beamtree.tree import PAD, Tree

_KNOWN: "WeakKeyDictionary[Tree, tuple[Tensor | None, Subtrees]]" = WeakKeyDictionary()


class Subtrees(NamedTuple):
    """Of every node of a tree, level by level."""

    items: Tensor  # how many lie below [num_nodes]
    popular: Tensor  # the one with the most events, of equals the lowest number; PAD where none is [num_nodes]


def subtrees(tree: Tree, popularity: Tensor | None = None) -> Subtrees:
    """What lies below the nodes of a tree; without events of each item [M], the lowest number is the most popular.

    It is made once for a tree, in time that grows with its nodes.
    """
    known = _KNOWN.get(tree)
    if known is None or known[0] is not popularity:
        known = _KNOWN[tree] = popularity, _make(tree, popularity)
    return known[1]


def _make(tree: Tree, popularity: Tensor | None) -> Subtrees:
    best = slots = tree.visible()
    events = torch.zeros_like(slots) if popularity is None else popularity.to(slots.device, torch.int64)[slots]
    key = (events * tree.num_items - slots).masked_fill(slots == PAD, torch.iinfo(torch.int64).min)
    count = (slots != PAD).long()
    counts, popular = [count], [best]
    for _ in range(tree.height):
        count = count.view(-1, tree.arity).sum(1)
        key, which = key.view(-1, tree.arity).max(1)
        best = best.view(-1, tree.arity).gather(1, which.unsqueeze(1)).squeeze(1)
        counts.append(count)
        popular.append(best)
    return Subtrees(torch.cat(counts[::-1]), torch.cat(popular[::-1]))

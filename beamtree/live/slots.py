"""Where a new item goes: a free slot of the subtree that holds most of what it is like."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from beamtree.tree import PAD, Tree


class Slots:
    """The leaf slots of a tree while items come and go; the tree itself stays as it is."""

    def __init__(self, tree: Tree, resting: Sequence[int] = ()) -> None:
        """`resting` slots are empty and not to be used yet."""
        self.arity = tree.arity
        self.items = tree.items().cpu().numpy().copy()
        free = self.items == PAD
        free[list(resting)] = False
        self._free_before = np.zeros(len(self.items) + 1, np.int64)
        np.cumsum(free, out=self._free_before[1:])

    def best(self, near: Tensor, weights: Tensor) -> int:
        """A free slot beside the slots `near` [n], which count so much each [n].

        From the root down it goes to the child below which most of them lie, of those that have room; where that says
        nothing, to the one with the most room.
        """
        places, counts = near.numpy(), weights.numpy()
        start, width = 0, len(self.items)
        while width > 1:
            inside = (places >= start) & (places < start + width)
            width //= self.arity
            said = np.bincount((places[inside] - start) // width, counts[inside], minlength=self.arity).astype(
                np.float64
            )
            room = np.diff(self._free_before[start : start + width * self.arity + 1 : width])
            said[room == 0] = -np.inf
            start += width * int(np.lexsort((room, said))[-1])
        return start

    def take(self, slot: int, item: int) -> None:
        """Put an item on a free slot."""
        self.items[slot] = item
        self._free_before[slot + 1 :] -= 1

    def tensor(self) -> Tensor:
        """The slots, as a `Tree` is made from."""
        return torch.from_numpy(self.items)

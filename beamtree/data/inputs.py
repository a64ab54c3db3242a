"""x, what a model reads of a user: the columns of a tensor of whole numbers [B, X].

First come the items of the history, newest first, PAD for none. A scorer that reads the clock gets the time of each
event after them, in the same order, and the time of the request: seconds since 1970, NO_TIME where it is not known. A
scorer that reads contexts gets the number of the value in each column of the context last. An x of at most HISTORY
columns is histories alone: nothing else is known.

    items [T] | times [T] and the time of the request | contexts [C]
"""

from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.tree import PAD

POOLING_WINDOWS = (1, 1, 1, 2, 2, 2, 10, 10, 20, 20)  # of the history, newest first, each averaged (supplement C.3)
HISTORY = sum(POOLING_WINDOWS)  # events of a history, and the width of x where nobody has more
WHOLE_HISTORY = 1000  # events that are read at most
WIDTHS = (HISTORY, 128, 256, 512, WHOLE_HISTORY)  # of x: few, so that a GPU can repeat searches that it recorded
NO_TIME = PAD


def history_width(longest: int, most: int) -> int:
    """How wide x is for histories of this length, of which at most so many events are read."""
    return min(next((width for width in WIDTHS if width >= longest), WHOLE_HISTORY), max(most, HISTORY))


class Inputs(NamedTuple):
    """The columns of x by what they are."""

    items: Tensor  # [B, T]
    times: Tensor  # of the events [B, T]; [B, 0] where they are not given
    request: Tensor  # its time [B, 1]; [B, 0] likewise
    context: Tensor  # [B, C]; [B, 0] likewise

    def joined(self) -> Tensor:
        """x."""
        given = [each for each in self if each.shape[1]]
        return torch.cat(given, dim=1) if len(given) > 1 else self.items


class InputColumns(NamedTuple):
    """Which columns follow the histories."""

    clock: bool = False  # times
    contexts: int = 0  # how many columns a context has

    def split(self, x: Tensor) -> Inputs:
        """The columns of x by what they are."""
        width, contexts = x.shape[1], self.contexts
        if width <= HISTORY or not any(self):
            return Inputs(*x.split_with_sizes([width, 0, 0, 0], dim=1))
        if not self.clock:
            return Inputs(*x.split_with_sizes([width - contexts, 0, 0, contexts], dim=1))
        count = (width - contexts - 1) // 2
        return Inputs(*x.split_with_sizes([count, count, width - contexts - 2 * count, contexts], dim=1))

    def items(self, x: Tensor) -> Tensor:
        """The histories alone."""
        return self.split(x).items if any(self) else x

    def narrowed(self, x: Tensor, to: "InputColumns", history: int) -> Tensor:
        """x for a scorer that reads no more columns than these, and at most so many events of a history."""
        if x.shape[1] <= HISTORY:
            return x
        items, times, request, context = self.split(x)
        if items.shape[1] > history:
            items, times = items[:, :history], times[:, :history]
        elif self == to:
            return x
        if not any(to):
            return items
        return torch.cat([items, *([times, request] if to.clock else []), *([context] if to.contexts else [])], dim=1)

    def check(self, x: Tensor) -> None:
        """Raise a ValueError in one line where x has no such columns."""
        if x.dim() != 2 or x.dtype != torch.int64:
            raise ValueError(f"x is {x.dtype} {list(x.shape)}: this scorer takes histories, int64 [B, T]")
        events, rest = x.shape[1] - self.contexts, 0
        if self.clock:
            events, rest = divmod(events - 1, 2)
        if x.shape[1] <= HISTORY or (events >= HISTORY and not rest):
            return
        columns = ["items"] + ["times"] * self.clock + ["contexts"] * bool(self.contexts)
        raise ValueError(f"x has {x.shape[1]} columns: give {', '.join(columns)} as `beamtree.data.inputs` describes")

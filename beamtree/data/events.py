"""Events: which users chose which items, in which order. How instances are read from them is in `views`."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from beamtree.data.csr import entries_of_rows
from beamtree.data.ids import Ids
from beamtree.tree import PAD

FAR_GAP = 10  # events between the distant pairs of `order_strength`
MAX_EVENTS = 1 << 22  # that `order_strength` reads


@dataclass(frozen=True)
class Events:
    """Every user's events, oldest first: those of user u are items[offsets[u]] … items[offsets[u + 1] - 1]."""

    offsets: Tensor  # int64 [U + 1]
    items: Tensor  # int32 or int64 item numbers [E]; may be mapped from a file
    name: str  # identifies these events
    ids: Ids | None = None  # of the items

    def __len__(self) -> int:
        """How many users there are."""
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"Events({int(self.offsets[-1] - self.offsets[0]):,} of {len(self):,} users)"

    def counts(self) -> Tensor:
        """How many events each user has [U]."""
        return self.offsets.diff()

    def item_numbers(self) -> Tensor:
        """The item of every event, user by user [E]."""
        return self.items[int(self.offsets[0]) : int(self.offsets[-1])]

    def of(self, users: Tensor, name: str) -> "Events":
        """The events of some users, in their order."""
        _, index = entries_of_rows(self.offsets, users)
        ends = (self.offsets[users + 1] - self.offsets[users]).cumsum(0)
        return replace(self, offsets=torch.nn.functional.pad(ends, (1, 0)), items=self.items[index], name=name)

    def popularity(self, num_items: int) -> Tensor:
        """How many events each item has [M]."""
        return torch.bincount(self.item_numbers(), minlength=num_items)

    @cached_property
    def order_strength(self) -> float:
        """Order strength: how much more often neighbours repeat as a pair than items ten events apart.

        It is 1 in a log without order, and where no user has enough events to tell.
        """
        users = int(torch.searchsorted(self.offsets, self.offsets[0] + MAX_EVENTS))
        user = torch.repeat_interleave(self.offsets[: users + 1].diff())
        items = self.item_numbers()[: len(user)].long()
        first = (user[FAR_GAP:] == user[:-FAR_GAP]).nonzero().squeeze(1)
        near, far = (_share_of_repeats(items[first], items[first + gap]) for gap in (1, FAR_GAP))
        return near / max(far, 1e-9) if near else 1.0

    def before(self, start: Tensor, cut: Tensor, length: int) -> Tensor:
        """The newest `length` events from start [B] up to cut [B], newest first [B, length], padded with PAD."""
        index = cut.unsqueeze(1) - 1 - torch.arange(length, device=cut.device)
        return self._read(index, index >= start.unsqueeze(1))

    def after(self, start: Tensor, stop: Tensor, most: int | None = None) -> Tensor:
        """The first `most` events from start to stop [B], oldest first, padded with PAD.

        On a GPU the result is always `most` wide, which saves a synchronization.
        """
        if most is None or not start.is_cuda:
            most = min(int((stop - start).max()), most or len(self.items))
        index = start.unsqueeze(1) + torch.arange(most, device=start.device)
        return self._read(index, index < stop.unsqueeze(1))

    def _read(self, index: Tensor, real: Tensor) -> Tensor:
        return torch.where(real, self.items[torch.where(real, index, 0)].long(), PAD)

    def to(self, device: torch.device | str) -> "Events":
        return replace(self, offsets=self.offsets.to(device), items=self.items.to(device))


def _share_of_repeats(first: Tensor, second: Tensor) -> float:
    """The share of pairs that occurred before; an item is no pair with itself."""
    if not len(first):
        return 0.0
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    pair = (low * (high.max() + 1) + high)[low != high]
    return 1 - len(torch.unique(pair)) / max(1, len(pair))

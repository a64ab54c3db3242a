"""Lists of different lengths, such as the items of each user, and how they are read in batches of about one length."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.data.events import Events
from beamtree.data.factors import pairs
from beamtree.distributed.exchange import dealt, send
from beamtree.distributed.group import ranks


@dataclass(frozen=True)
class Lists:
    """The entries of list i are entries[offsets[i]] … entries[offsets[i + 1] - 1]."""

    offsets: Tensor  # [n + 1]
    entries: Tensor  # [E]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def counts(self) -> Tensor:
        """How long each list is [n]."""
        return self.offsets.diff()

    def read(self, which: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """The first `width` entries of some lists [B, width], and which of them are real."""
        start, count = self.offsets[which], self.offsets[which + 1] - self.offsets[which]
        at = torch.arange(width, device=which.device)
        real = at < count.unsqueeze(1)
        return self.entries[torch.where(real, start.unsqueeze(1) + at, 0)], real

    def batches(self, room: int, most: int = 4096) -> Iterator[tuple[Tensor, int]]:
        """All lists with an entry, the short ones first: (which, the longest of them), at most `room` entries each."""
        counts, order = self.counts().cpu().sort()
        place = int(torch.searchsorted(counts, 1))
        most = -(-most // ranks().size)  # of a part of all lists, so that those of a batch are as much alike
        while place < len(order):
            # The longest of a batch is its last, so its size is known from its end.
            ends = torch.arange(1, len(order) - place + 1)
            fits = int((ends[:most] * counts[place : place + most] <= room).sum())
            stop = place + max(1, fits)
            yield order[place:stop].to(self.offsets.device), int(counts[stop - 1])
            place = stop

    def pairs(self, room: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Some lists, their entries [B, W], and which pairs of these are real [B, W, W]: at most `room` at once."""
        for which, width in self.batches(room):
            for some in which.split(max(1, room // width**2)):
                entries, real = self.read(some, width)
                yield some, entries, real.unsqueeze(2) & real.unsqueeze(1)


def as_lists(row: Tensor, entries: Tensor, count: int) -> Lists:
    """Lists of the entries of each row 0 … count - 1, in the order given."""
    order = row.argsort(stable=True)
    return Lists(pad(torch.bincount(row, minlength=count).cumsum(0), (1, 0)), entries[order])


def chosen(events: Events, num_items: int) -> tuple[Lists, Lists]:
    """The distinct items of each user, and the users of each item: of those users and items that are this rank's."""
    size, users = ranks().size, len(events)
    if size > 1:
        events = events.of(dealt(users, events.offsets.device), events.name)
    user, item = pairs(events, num_items)
    of_users = as_lists(user, item, len(events))
    if size > 1:
        item, user = send(item % size, item, user * size + ranks().rank)
        item //= size
    return of_users, as_lists(item, user, len(dealt(num_items)))

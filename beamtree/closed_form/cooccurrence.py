"""How often pairs of items occur together, or one after the other: sparse matrices over items, kept by rows.

Over ranks each counts the pairs of its own users, and keeps the rows of its own items.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.closed_form.lists import Lists, as_lists
from beamtree.closed_form.partners import summed
from beamtree.data.events import Events
from beamtree.data.factors import pairs
from beamtree.data.views import HISTORY, stretches
from beamtree.distributed.exchange import Route, entries_in, joined, send, turn
from beamtree.distributed.group import ranks
from beamtree.threads import one_thread
from beamtree.tree import PAD

ROOM = 1 << 22  # pairs that are listed at once
DENSE = 1 << 26  # cells of a matrix that is summed whole, and that every rank has
WAITING = 1 << 24  # pairs that are kept before they are summed
LONGEST = 300  # events of a user that are taken together; more are taken in runs


Entries = tuple[Tensor, Tensor, Tensor]  # row, column and value [n]


class Pairs:
    """A sparse matrix over items, by rows: of row i columns[offsets[i]:offsets[i + 1]] in rising order, and values.

    Where `owner` [M] says which rank keeps which row, those of others are empty here.
    """

    def __init__(self, key: Tensor, values: Tensor, num_items: int, owner: Tensor | None = None) -> None:
        row = key // num_items
        self.num_items, self.values, self.columns, self.owner = num_items, values, key % num_items, owner
        self.offsets = pad(torch.bincount(row, minlength=num_items).cumsum(0), (1, 0))

    def rows(self, which: Tensor) -> Entries:
        """The entries of some rows: place in `which`, column and value."""
        place, at = entries_in(self.offsets, which)
        return place, self.columns[at], self.values[at]

    def pulled(self, which: Tensor, columns: Tensor | None = None) -> Entries:
        """The entries of some rows, from whichever rank keeps them: place in `which`, column and value.

        With `columns`, in rising order, others need not be among them. All ranks ask together.
        """
        if self.owner is None:
            return self.rows(which)
        far = self.owner[which] != ranks().rank
        near, far = (~far).nonzero().squeeze(1), far.nonzero().squeeze(1)
        place, column, value = self.rows(which[near])
        theirs = self._asked(which[far], columns)
        if not len(theirs[0]):
            return near[place], column, value
        place, column, value = (
            torch.cat(both) for both in ((near[place], far[theirs[0]]), (column, theirs[1]), (value, theirs[2]))
        )
        order = place.argsort(stable=True)  # as one rank would find them
        return place[order], column[order], value[order]

    def _asked(self, which: Tensor, columns: Tensor | None) -> Entries:
        """The same of rows that others keep."""
        assert self.owner is not None
        route = Route(self.owner[which])
        asked, by = route.there(which), route.sender(which.device)
        place = route.there(torch.arange(len(which), device=which.device))
        at, column, value = self.rows(asked)
        if columns is not None:
            wanted = joined(columns + ranks().rank * self.num_items)  # rank by rank, so in rising order
            key = by[at] * self.num_items + column
            there = (wanted[torch.searchsorted(wanted, key).clamp_(max=len(wanted) - 1)] == key).nonzero().squeeze(1)
            at, column, value = at[there], column[there], value[there]
        place, column, value = send(by[at], place[at], column, value)
        return place, column, value

    def counts(self) -> Tensor:
        """How many entries each row has, wherever it is kept [M]."""
        return self._of_all(self.offsets.diff())

    def diagonal(self) -> Tensor:
        """The value of every item with itself [M]."""
        row = torch.repeat_interleave(self.offsets.diff())
        own = row == self.columns
        return self._of_all(self.values.new_zeros(self.num_items).index_add_(0, row[own], self.values[own]))

    def _of_all(self, values: Tensor) -> Tensor:
        return values if self.owner is None else ranks().sum_(values)

    def turned(self) -> "Pairs":
        """Rows for columns."""
        row, column, values = torch.repeat_interleave(self.offsets.diff()), self.columns, self.values
        if self.owner is not None:
            row, column, values = send(self.owner[column], row, column, values)
        key, order = (column * self.num_items + row).sort()
        return Pairs(key, values[order], self.num_items, self.owner)


def owners(num_items: int, order: Tensor | None, device: torch.device) -> Tensor:
    """The rank that keeps each item's row [M]: runs of items in order; all others are dealt out."""
    found = torch.arange(num_items, device=device) % ranks().size
    if order is not None:
        found[order] = torch.arange(len(order), device=device) * ranks().size // len(order)
    return found


def sum_pairs(found: Iterable[Entries], num_items: int, device: torch.device, order: Tensor | None = None) -> Pairs:
    """The matrix of all pairs (row, column, value), of all ranks.

    A large one is kept by rows over ranks, those of items that are neighbours in `order` on the same.
    """
    if num_items**2 <= DENSE:
        whole = torch.zeros(num_items**2, device=device)
        for row, column, value in found:
            whole.index_add_(0, row * num_items + column, value)
        ranks().sum_(whole)
        key = whole.nonzero().squeeze(1)
        return Pairs(key, whole[key], num_items)
    owner = None
    if ranks().size > 1:
        owner = owners(num_items, order, device)
        found = _sent(iter(found), num_items, owner)
    keys, values = [torch.empty(0, dtype=torch.int64, device=device)], [torch.empty(0, device=device)]
    waiting = 0
    for row, column, value in found:
        keys.append(row * num_items + column)
        values.append(value)
        waiting += len(row)
        if waiting > max(WAITING, len(keys[0])):
            key, total = summed(torch.cat(keys), torch.cat(values))
            keys, values, waiting = [key], [total], 0
    return Pairs(*summed(torch.cat(keys), torch.cat(values)), num_items, owner)


def _sent(found: Iterator[Entries], num_items: int, owner: Tensor) -> Iterator[Entries]:
    """Pairs to the ranks that keep their rows, summed before: some at a time, until all ranks are through."""
    more = True
    while any(ranks().gather(more)):
        keys, values, waiting = [owner[:0]], [torch.empty(0, device=owner.device)], 0
        for row, column, value in found:
            keys.append(row * num_items + column)
            values.append(value)
            waiting += len(row)
            if waiting > WAITING // ranks().size:
                break
        else:
            more = False
        key, total = summed(torch.cat(keys), torch.cat(values))
        row, column, total = send(owner[key // num_items], key // num_items, key % num_items, total)
        yield row, column, total


@one_thread()
def together(events: Events, num_items: int, order: Tensor | None = None) -> Pairs:
    """XᵀX: how many users, or runs of users with many events, have both of two items; `order` as for `sum_pairs`."""
    row, item = pairs(_in_runs(events.own()), num_items)
    lists = as_lists(row, item, int(row.max()) + 1 if len(row) else 0)
    return sum_pairs(_both(lists), num_items, row.device, order)


def _in_runs(events: Events) -> Events:
    """The same events with each long user in several of about equal length."""
    count = events.counts()
    runs = -(-count // LONGEST)
    user = torch.repeat_interleave(runs)
    place = torch.arange(len(user), device=user.device) - (runs.cumsum(0) - runs)[user]
    starts = events.offsets[:-1][user] + place * count[user] // runs[user]
    return Events(torch.cat([starts, events.offsets[-1:]]), events.items, events.name)


def _both(lists: Lists) -> Iterator[Entries]:
    for _, items, both in lists.pairs(ROOM):
        row, column = (part.expand_as(both)[both] for part in (items.unsqueeze(2), items.unsqueeze(1)))
        yield row, column, torch.ones(len(row), device=row.device)


@one_thread()
def followed(
    events: Events, num_items: int, recency: Tensor, *, readings: int, seed: int, order: Tensor | None = None
) -> tuple[Pairs, Pairs]:
    """PᵀP and PᵀF of `readings` stretches of every user: P is the past, weighted by recency [T], F what followed.

    `order` is as for `sum_pairs`.
    """
    view = stretches(events, forget=0.0)
    device = events.offsets.device
    generator = torch.Generator(device)

    def drawn() -> Iterator[tuple[Tensor, Tensor]]:
        generator.manual_seed(seed)
        for _ in range(readings):
            for place, rows in enumerate(torch.arange(len(view), device=device).split(max(1, ROOM // HISTORY**2))):
                stretch = view.drawn(rows, generator)  # by every rank, so that all go on with the same
                if turn(place) == 0:
                    yield view.read(*stretch)

    past = _pairs_of((x, x, recency, recency) for x, _ in drawn())
    future = _pairs_of((x, y, recency, None) for x, y in drawn())
    return sum_pairs(past, num_items, device, order), sum_pairs(future, num_items, device, order)


Both = tuple[Tensor, Tensor, Tensor, Tensor | None]


def _pairs_of(found: Iterable[Both]) -> Iterator[Entries]:
    """Every item of the first list with every one of the second; of a repeated item the newest counts."""
    for first, second, recency, other in found:
        value = recency[: first.shape[1]].unsqueeze(-1)
        if other is not None:
            value = value * other[: second.shape[1]]
        both = newest_of_each(first).unsqueeze(2) & newest_of_each(second).unsqueeze(1)
        parts = (first.unsqueeze(2), second.unsqueeze(1), value)
        row, column, weight = (part.expand_as(both)[both] for part in parts)
        yield row, column, weight


def newest_of_each(x: Tensor) -> Tensor:
    """Which entries of histories [B, T], newest first, are the first of their item; PAD is not."""
    before = (x.unsqueeze(2) == x.unsqueeze(1)).tril_(-1).any(2)
    return before.logical_not_() & (x != PAD)

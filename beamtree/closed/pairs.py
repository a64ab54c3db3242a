"""How often pairs of items occur together, or one after the other: sparse matrices over items, kept by rows."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.closed.lists import Lists, as_lists
from beamtree.closed.partners import entries_in, summed
from beamtree.data.events import Events
from beamtree.data.factors import pairs
from beamtree.data.views import HISTORY, stretches
from beamtree.tree import PAD

ROOM = 1 << 22  # pairs that are listed at once
DENSE = 1 << 26  # cells of a matrix that is summed whole
WAITING = 1 << 24  # pairs that are kept before they are summed
LONGEST = 300  # events of a user that are taken together; more are taken in runs


class Pairs:
    """A sparse matrix over items, by rows: of row i columns[offsets[i]:offsets[i + 1]] in rising order, and values."""

    def __init__(self, key: Tensor, values: Tensor, num_items: int) -> None:
        row = key // num_items
        self.num_items, self.values, self.columns = num_items, values, key % num_items
        self.offsets = pad(torch.bincount(row, minlength=num_items).cumsum(0), (1, 0))

    def rows(self, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The entries of some rows: place in `which`, column and value."""
        place, at = entries_in(self.offsets, which)
        return place, self.columns[at], self.values[at]

    def diagonal(self) -> Tensor:
        """The value of every item with itself [M]."""
        row = torch.repeat_interleave(self.offsets.diff())
        own = row == self.columns
        return self.values.new_zeros(self.num_items).index_add_(0, row[own], self.values[own])

    def turned(self) -> "Pairs":
        """Rows for columns."""
        row = torch.repeat_interleave(self.offsets.diff())
        key, order = (self.columns * self.num_items + row).sort()
        return Pairs(key, self.values[order], self.num_items)


def sum_pairs(found: Iterable[tuple[Tensor, Tensor, Tensor]], num_items: int, device: torch.device) -> Pairs:
    """The matrix of all pairs (row, column, value)."""
    if num_items**2 <= DENSE:
        whole = torch.zeros(num_items**2, device=device)
        for row, column, value in found:
            whole.index_add_(0, row * num_items + column, value)
        key = whole.nonzero().squeeze(1)
        return Pairs(key, whole[key], num_items)
    keys, values = [torch.empty(0, dtype=torch.int64, device=device)], [torch.empty(0, device=device)]
    waiting = 0
    for row, column, value in found:
        keys.append(row * num_items + column)
        values.append(value)
        waiting += len(row)
        if waiting > max(WAITING, len(keys[0])):
            key, total = summed(torch.cat(keys), torch.cat(values))
            keys, values, waiting = [key], [total], 0
    return Pairs(*summed(torch.cat(keys), torch.cat(values)), num_items)


def together(events: Events, num_items: int) -> Pairs:
    """XᵀX: how many users, or runs of users with many events, have both of two items."""
    row, item = pairs(_in_runs(events), num_items)
    lists = as_lists(row, item, int(row.max()) + 1)
    return sum_pairs(_both(lists), num_items, row.device)


def _in_runs(events: Events) -> Events:
    """The same events with each long user in several of about equal length."""
    count = events.counts()
    runs = -(-count // LONGEST)
    user = torch.repeat_interleave(runs)
    place = torch.arange(len(user), device=user.device) - (runs.cumsum(0) - runs)[user]
    starts = events.offsets[:-1][user] + place * count[user] // runs[user]
    return Events(torch.cat([starts, events.offsets[-1:]]), events.items, events.name)


def _both(lists: Lists) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for _, items, both in lists.pairs(ROOM):
        row, column = (part.expand_as(both)[both] for part in (items.unsqueeze(2), items.unsqueeze(1)))
        yield row, column, torch.ones(len(row), device=row.device)


def followed(events: Events, num_items: int, recency: Tensor, *, readings: int, seed: int) -> tuple[Pairs, Pairs]:
    """PᵀP and PᵀF of `readings` stretches of every user: P is the past, weighted by recency [T], F what followed."""
    view = stretches(events, forget=0.0)
    device = events.offsets.device
    generator = torch.Generator(device)

    def drawn() -> Iterator[tuple[Tensor, Tensor]]:
        generator.manual_seed(seed)
        for _ in range(readings):
            for rows in torch.arange(len(events), device=device).split(max(1, ROOM // HISTORY**2)):
                yield view.batch(rows, generator)

    past = _pairs_of((x, x, recency, recency) for x, _ in drawn())
    future = _pairs_of((x, y, recency, None) for x, y in drawn())
    return sum_pairs(past, num_items, device), sum_pairs(future, num_items, device)


Both = tuple[Tensor, Tensor, Tensor, Tensor | None]


def _pairs_of(found: Iterable[Both]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
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

"""Segments of what is to be predicted: by the time of the events, by users' histories, by items' popularity."""

import datetime
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.data import BeforeAfter
from beamtree.data.times import DAY, EPOCH, common_unit
from beamtree.evaluate.beyond_accuracy import ItemFacts

PERIODS = (3_600, DAY, 7 * DAY, 28 * DAY, 91 * DAY, 182 * DAY, 364 * DAY)  # of which the shortest that gives few
MOST_PERIODS = 12
HISTORIES = (5, 20, 100)  # the longest history of each segment but the last; the first are new users


class Segments(NamedTuple):
    """Names, and a function (rows [B], index of the targets [B, P], targets y [B, P]) -> segment numbers [B, P]."""

    names: list[str]
    of: Callable[[Tensor, Tensor, Tensor], Tensor]
    of_users: bool = False  # whether all targets of a user are in one segment


def by_time(data: BeforeAfter, facts: ItemFacts) -> Segments:
    """Equal periods from the first event to be predicted on, at most twelve: hours, days, weeks or longer."""
    times = data.events.times
    if times is None:
        raise ValueError("by='time': these events have no times")
    rows = torch.arange(len(data))
    cut = data.events.offsets[rows].cpu() + data.history_lengths(rows).cpu()
    stop = data.events.offsets[rows + 1].cpu()
    held_out = torch.cat([times[cut[cut < stop]], times[stop[cut < stop] - 1]])  # of each user, the first and the last
    first, last = int(held_out.min()), int(held_out.max())
    unit, most = common_unit(held_out), MOST_PERIODS - 1  # one more where they begin at midnight
    if unit is None:
        length = (last - first) // MOST_PERIODS + 1
        names = [f"{start} to {start + length - 1}" for start in range(first, last + 1, length)]
    else:
        seconds, longest = (last - first) // unit, PERIODS[-1]
        lengths = (*PERIODS, (seconds // (longest * most) + 1) * longest)
        period = next(each for each in lengths if seconds < each * most)
        length, align = period * unit, min(period, DAY) * unit
        first -= first % align
        names = [_period(start // unit, period) for start in range(first, last + 1, length)]
    return Segments(names, lambda rows, index, y: (times[index.clamp(min=0)] - first) // length)


def _period(start: int, seconds: int) -> str:
    """A period as text: its first and last day, or its hour."""
    begin = EPOCH + datetime.timedelta(seconds=start)
    if seconds < DAY:
        return f"{begin:%Y-%m-%d %H:%M}"
    end = begin + datetime.timedelta(seconds=seconds - DAY)
    return f"{begin:%Y-%m-%d}" if end == begin else f"{begin:%Y-%m-%d} to {end:%Y-%m-%d}"


def by_history(data: BeforeAfter, facts: ItemFacts) -> Segments:
    """Users by the number of events in their histories; those with at most five are new."""
    bounds = torch.tensor(HISTORIES)
    names = [f"new: up to {HISTORIES[0]} events"]
    names += [f"{low + 1} to {high} events" for low, high in pairwise(HISTORIES)]
    names += [f"over {HISTORIES[-1]} events"]

    def of(rows: Tensor, index: Tensor, y: Tensor) -> Tensor:
        return torch.bucketize(data.history_lengths(rows).cpu(), bounds).unsqueeze(1).expand_as(y)

    return Segments(names, of, of_users=True)


def by_popularity(data: BeforeAfter, facts: ItemFacts) -> Segments:
    """Items by popularity: those with the most training events, which have a third of them together, and so on.

    Items without training events are rare.
    """
    counts = facts.known_popularity
    order = counts.argsort(descending=True, stable=True)
    before = counts[order].cumsum(0) - counts[order]  # events of more popular items
    third = torch.empty_like(order)
    third[order] = (3 * before // max(1, facts.total)).clamp(max=2)
    third[counts == 0] = 2
    sizes = torch.bincount(third, minlength=3).tolist()
    names = [f"{name}: {size:,} items" for name, size in zip(("popular", "middle", "rare"), sizes, strict=True)]

    def of(rows: Tensor, index: Tensor, y: Tensor) -> Tensor:
        return third[y.clamp(min=0, max=len(third) - 1)].where((y >= 0) & (y < len(third)), 2)

    return Segments(names, of)


SEGMENTS: dict[str, Callable[[BeforeAfter, ItemFacts], Segments]] = {
    "time": by_time,
    "history": by_history,
    "popularity": by_popularity,
}

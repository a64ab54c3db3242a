"""What the times of a log are, a clock or only an order, and where a split by time cuts them.

Times are a clock if they were dates, or if most are Unix times (see `data.times`). Other numbers only say which event
was first: a log of these is not split by time unless that is asked for.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from beamtree.data.times import DAY, MICRO, UNIX_TIMES
from beamtree.ingest.arrays import Array, Read, user_ranges
from beamtree.ingest.times import TimeScale

SECONDS = {"h": 3600, "d": DAY, "w": 7 * DAY}  # of the units of a period
NEWEST = 10  # one event in so many is after the cut, where a split names none
BITS = 16  # of a time that one reading of the log decides


def period_seconds(text: str) -> int | None:
    """The seconds of a period such as 12h, 30d or 4w; None where the text is none."""
    match = re.fullmatch("([1-9][0-9]{0,5})([hdw])", text)
    return None if match is None else int(match[1]) * SECONDS[match[2]]


class LogTimes(NamedTuple):
    """The times of a log's events."""

    read: Read
    lengths: Array  # events of each user [U]
    scale: TimeScale
    first: int
    last: int
    unit: int | None  # per second, where they are a clock

    @classmethod
    def of(cls, read: Read, lengths: Array, scale: TimeScale) -> "LogTimes":
        """Those of a column of events, of which there is at least one."""
        ends, count, plausible = list[int](), 0, np.zeros(len(UNIX_TIMES), np.int64)
        for time in _blocks(read, lengths):
            ends += [int(time.min()), int(time.max())]
            count += len(time)
            plausible += [np.count_nonzero((time >= low) & (time < high)) for low, high in UNIX_TIMES.values()]
        most = (unit for unit, fitting in zip(UNIX_TIMES, plausible.tolist(), strict=True) if 2 * fitting > count)
        unit = MICRO if scale.dates else next(most, None)
        if not scale.dates and unit is not None:
            scale = scale._replace(unit=unit // scale.factor)
        return cls(read, lengths, scale, min(ends), max(ends), unit)

    @property
    def is_clock(self) -> bool:
        return self.unit is not None

    def newest(self) -> int:
        """The time from which on a tenth of the events happened, or more where many happened at that time."""
        count = int(self.lengths.sum())
        return self.of_rank(count - max(1, count // NEWEST))

    def of_rank(self, rank: int) -> int:
        """The time of the event that so many others come before, in the order of time.

        It is found a few bits at a time, from counts, so that the times need not be in memory.
        """
        first, prefix, bits = np.uint64(self.first % 2**64), 0, (self.last - self.first).bit_length()
        while bits:
            left = max(0, bits - BITS)
            counts = np.zeros(1 << (bits - left), np.int64)
            for time in _blocks(self.read, self.lengths):
                since = (time.astype(np.uint64) - first) >> np.uint64(left)  # also where int64 would overflow
                inside = since[since >> np.uint64(bits - left) == prefix] - np.uint64(prefix << (bits - left))
                counts += np.bincount(inside.astype(np.int64), minlength=len(counts))
            ends = counts.cumsum()
            found = int(np.searchsorted(ends, rank, side="right"))
            rank -= int(ends[found] - counts[found])
            prefix, bits = (prefix << (bits - left)) + found, left
        return self.first + prefix

    def before(self, cut: int) -> Array:
        """How many events of each user are before a time [U]."""
        counts = np.zeros_like(self.lengths)
        for users, events in user_ranges(self.lengths):
            length = self.lengths[users]
            owner = np.repeat(np.arange(len(length)), length)
            counts[users] = np.bincount(owner[self.read(events) < cut], minlength=len(length))
        return counts

    def format(self, time: int) -> str:
        """A time of the log as text."""
        return self.scale.format(time)

    def describe(self, cut: int | None) -> dict[str, Any]:
        """What the description of prepared data says."""
        numbers = {"unit": self.unit, "first": self.first, "last": self.last}
        return numbers if cut is None else {**numbers, "cut": cut}


def _blocks(read: Read, lengths: Array) -> Iterator[Array]:
    """The times, many users at once."""
    return (time for _, events in user_ranges(lengths) if len(time := read(events)))

"""Times of requests and of their events: what users write, as seconds since 1970.

The events of a history come in the order of their times; those with the same time stay in the order in which they are
given. Times that are no clock, such as 1, 2, 3, say nothing else.
"""

import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from beamtree.data.inputs import NO_TIME
from beamtree.data.times import as_seconds, as_time, common_unit

RequestTime = int | Sequence[int]  # of all histories, or one for each
Now = Callable[[], int]


def no_time() -> int:
    """The present time where nobody knows it."""
    return NO_TIME


def read_time(time: Any) -> RequestTime | None:
    """The time of a request as a caller gave it: one for all histories, or one for each; None if there is none."""
    if time is None:
        return None
    if isinstance(time, str) or not isinstance(time, Iterable) or getattr(time, "ndim", None) == 0:
        return _second(time)
    return [_second(each) for each in time]


def _second(time: object) -> int:
    try:
        seconds = as_seconds(time)
    except ValueError as error:
        raise ValueError(f"time: {error}") from error
    if seconds is None:
        raise ValueError(f"time: {str(time)[:80]!r} is no date, and no Unix time between 1990 and 2100")
    return seconds


def check_time(time: RequestTime | None, count: int) -> None:
    """Raise a ValueError unless this is one time for so many histories, or one for each."""
    if isinstance(time, Sequence) and len(time) != count:
        raise ValueError(f"{len(time):,} times for {count:,} histories: give one for each history, or one for all")


def in_order(items: Sequence[Any], times: Sequence[object]) -> tuple[list[Any], list[int]]:
    """The items of a history and the times of its events, by time; no times where they are no clock.

    A ValueError for other times than one for each item.
    """
    if len(times) != len(items):
        raise ValueError(f"{len(times):,} times for a history of {len(items):,} items: give one for each")
    try:
        moments = list(map(as_time, times))
    except ValueError as error:
        raise ValueError(f"times: {error}") from error
    order = sorted(range(len(moments)), key=moments.__getitem__)
    seconds = [as_seconds(moments[index]) for index in order]
    return [items[index] for index in order], [] if None in seconds else [each for each in seconds if each is not None]


def split_pairs(row: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The items and times of a history, which may be one of (item, time) pairs; no times otherwise."""
    pairs = [entry for entry in row if isinstance(entry, tuple)]
    if not pairs:
        return list(row), []
    if len(pairs) < len(row) or any(len(pair) != 2 for pair in pairs):
        raise ValueError("a history of (item, time) pairs has something else in it: give each event its time")
    return in_order([item for item, _ in pairs], [time for _, time in pairs])


def is_one_of_pairs(row: Sequence[Any]) -> bool:
    """Whether a list of tuples is one history of (item, time) pairs, and not several histories of two items.

    Some times may be missing, which is an error later.
    """
    if not all(isinstance(entry, tuple) and len(entry) == 2 for entry in row):
        return False
    given = [time for _, time in row if not _is_missing(time)]
    return bool(given) and all(map(_is_clock, given))


def _is_missing(time: Any) -> bool:
    """Whether this is None, or NaN or NaT, which differ from themselves."""
    return time is None or bool(time != time)


def _is_clock(time: object) -> bool:
    if isinstance(time, datetime.date | np.datetime64):
        return True
    try:
        return as_seconds(time) is not None
    except ValueError:
        return False


def clock_seconds(rows: Sequence[Sequence[int | None]]) -> list[list[int]]:
    """The times of several histories as they were read from one log, as seconds; none where they are no clock."""
    known = [time for row in rows for time in row if time is not None]
    unit = common_unit(torch.tensor(known, dtype=torch.int64)) if known else None
    if unit is None:
        return [[] for _ in rows]
    return [[NO_TIME if time is None else time // unit for time in row] for row in rows]


def request_times(time: RequestTime | None, times: Sequence[Sequence[int]], end: int | None, now: Now) -> list[int]:
    """The time of the request of each history, of whose events the times are given.

    Where the request has none it is `end` if that is given; else that of its newest event or, if that is later, now.
    Without times it is not known.
    """
    if time is not None:
        return [time] * len(times) if isinstance(time, int) else list(time)
    if end is not None:
        return [end] * len(times)
    return [max(max(row), now()) if row else NO_TIME for row in times]

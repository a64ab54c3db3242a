"""Times of requests and of their events: what users write, as seconds since 1970.

The events of a history come in the order of their times; those with the same time stay in the order in which they are
given. Times that are no clock, such as 1, 2, 3, say nothing else.
"""

import datetime
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from time import time as time_now
from typing import Any

import numpy as np
import torch

from beamtree.data import Ids
from beamtree.data.ids import as_id, is_integer
from beamtree.data.inputs import NO_TIME
from beamtree.data.times import DAY, MICRO, as_date, as_seconds, as_time, common_unit, unix_unit

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

    A ValueError for other times than one for each item, and where only some of them are a clock.
    """
    if len(times) != len(items):
        raise ValueError(f"{len(times):,} times for a history of {len(items):,} items: give one for each")
    try:
        moments = list(map(as_time, times))
    except ValueError as error:
        raise ValueError(f"times: {error}") from error
    order = sorted(range(len(moments)), key=moments.__getitem__)
    seconds = [as_seconds(moments[index]) for index in order]
    known = [each for each in seconds if each is not None]
    if known and len(known) < len(seconds):
        raise _other_than_others(repr(str(times[order[seconds.index(None)]])[:80]))
    return [items[index] for index in order], known


def _other_than_others(time: object) -> ValueError:
    return ValueError(f"times: {time} is no time between 1990 and 2100, as others are")


def check_past(times: Iterable[Sequence[int]], end: Now) -> None:
    """Raise a ValueError for an event of more than a day from now, and after the log, which may be ahead of this clock.

    Args:
        times: of the events of each history, in seconds.
        end: when the log ends, which is asked only for events of the future.
    """
    newest = max((max(row) for row in times if row), default=NO_TIME)
    if newest > time_now() + DAY and newest > end() + DAY:
        raise ValueError(f"times: an event of {as_date(newest * MICRO)} is in the future: give when it happened")


def split_pairs(row: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The items and times of a history, which may be one of (item, time) pairs; no times otherwise."""
    pairs = [entry for entry in row if isinstance(entry, tuple)]
    if not pairs:
        return list(row), []
    if len(pairs) < len(row) or any(len(pair) != 2 for pair in pairs):
        raise ValueError("a history of (item, time) pairs has something else in it: give each event its time")
    return in_order([item for item, _ in pairs], [time for _, time in pairs])


def is_one_of_pairs(row: Sequence[Any], ids: Ids) -> bool:
    """Whether a list is one history of (item, time) pairs, and not several histories, of which some are tuples of ids.

    What is not among the ids of the model, and is a date, a Unix time or, where ids are no numbers, a number, is a
    time. Other entries of such a history are an error later. A ValueError where the list may be both.
    """
    pairs = [entry for entry in row if isinstance(entry, tuple) and len(entry) > 1]
    known = ids.find([entry[1] for entry in pairs])
    others = [entry for entry, number in zip(pairs, known, strict=True) if number is None]
    has_times = any(_is_clock(entry[1]) for entry in others)
    is_order = len(others) == len(pairs) > 0 and all(isinstance(entry[1], Real) for entry in others)
    if (has_times and len(others) < len(pairs)) or (
        is_order and not has_times and any(is_integer(as_id(entry[0])) for entry in others)
    ):
        what = "give each event its time, or several histories as lists"
        raise ValueError(f"these tuples may be pairs of ids or of items and times: {what}")
    return has_times or is_order


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


def check_unit(rows: Sequence[Sequence[int | None]]) -> None:
    """Raise a ValueError where most times are Unix times of one unit, and one is not."""
    known = [time for row in rows for time in row if time is not None]
    unit = common_unit(torch.tensor(known, dtype=torch.int64)) if known else None
    other = None if unit is None else next((time for time in known if unix_unit(time) != unit), None)
    if other is not None:
        raise _other_than_others(as_date(other) if unit == MICRO else other)


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

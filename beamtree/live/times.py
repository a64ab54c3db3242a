"""Times of events, so that those of a log and those that are sent can be compared.

A number that is a Unix time between 1990 and 2100, in seconds, milliseconds, microseconds or nanoseconds, and a date
become microseconds since 1970. Other numbers, of a log with a clock of its own, stay as they are.
"""

import datetime
import math
import time

import numpy as np
from numpy.typing import NDArray

UNITS = (1, 10**3, 10**6, 10**9)  # of Unix times: how many make a second
FIRST, END = 631_152_000, 4_102_444_800  # the years from 1990 to 2100 in seconds; no two units share a number
MICRO, LARGEST = 10**6, 2**63 - 1
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

Time = int | float


def as_time(value: object) -> Time:
    """A time that a user wrote: a number, or a date such as 2026-12-31 23:59:59, in UTC unless it says otherwise."""
    if isinstance(value, str):
        try:
            return as_time(float(value) if not value.strip().lstrip("-").isdigit() else int(value))
        except (ValueError, OverflowError):
            return _as_micros(value)
    if isinstance(value, datetime.datetime):
        return _as_micros(value.isoformat())
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or abs(value) > LARGEST
    ):
        raise ValueError(f"{str(value)[:80]!r} is no time: give a number, or a date such as 2026-12-31 23:59:59")
    for unit in UNITS:
        if FIRST * unit <= value < END * unit:
            return value * MICRO // unit if isinstance(value, int) else round(value * MICRO / unit)
    return int(value) if value == int(value) else value


def _as_micros(text: str) -> int:
    try:
        moment = datetime.datetime.fromisoformat(text.strip().replace("/", "-"))
    except ValueError as error:
        raise ValueError(f"{text[:80]!r} is no time: give a number, or a date such as 2026-12-31 23:59:59") from error
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return (moment - EPOCH) // datetime.timedelta(microseconds=1)


def as_times(values: NDArray[np.int64]) -> list[int]:
    """The whole numbers of a log's times, likewise."""
    return [int(as_time(value)) for value in values.tolist()]


def is_date(value: Time) -> bool:
    """Whether a time that `as_time` gave is a moment of the calendar."""
    return FIRST * MICRO <= value < END * MICRO


def now() -> int:
    """The present, in microseconds since 1970."""
    return time.time_ns() // 1000

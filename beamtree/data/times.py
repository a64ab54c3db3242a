"""Times as users write them, and Unix times: which unit numbers are in.

A number that is a Unix time between 1990 and 2100, in seconds, milliseconds, microseconds or nanoseconds, and a date,
also one of digits alone such as 20240105, become microseconds since 1970. Other numbers, from a log with its own clock,
stay as they are. `ingest.times` reads whole columns of a log in the same way.
"""

import datetime
import re
from typing import Any

from torch import Tensor

from beamtree.errors import is_number, parse_number

EPOCH = datetime.datetime(1970, 1, 1)
# By units per second, what Unix times between 1990 and 2100 are: no two of these ranges overlap.
UNIX_TIMES = {unit: (631_152_000 * unit, 4_102_444_800 * unit) for unit in (1, 10**3, 10**6, 10**9)}
DATES = (1990_01_01, 2099_12_31)  # the first and the last of digits alone
MICRO, LARGEST = 10**6, 2**63 - 1
DAY = 86_400  # seconds

Time = int | float


def unix_unit(time: Time) -> int | None:
    """The units per second of a Unix time; None where it is not between 1990 and 2100 in any unit."""
    return next((unit for unit, (first, end) in UNIX_TIMES.items() if first <= time < end), None)


def common_unit(times: Tensor) -> int | None:
    """The units per second of most of these times, likewise."""
    counts = ((unit, int(((times >= first) & (times < end)).sum())) for unit, (first, end) in UNIX_TIMES.items())
    return next((unit for unit, count in counts if 2 * count > len(times)), None)


def convert(times: Any, unit: int, other: int) -> Any:
    """Unix times of one unit in another, rounded down: a number, an array or a tensor."""
    return times * (other // unit) if other >= unit else times // (unit // other)


def in_micros(times: Tensor) -> Tensor:
    """Unix times in microseconds; other times, from a log with its own clock, stay as they are."""
    unit = common_unit(times)
    return times if unit is None else convert(times, unit, MICRO)


def parse_date(text: str) -> int | None:
    """A date such as 2026-12-31 23:59:59 in microseconds since 1970; None if it is none.

    It is in UTC unless it has an offset. Years come first; months, days and hours may have one digit, and AM or PM may
    follow the hours.
    """
    text = text.strip()
    if re.match("[0-9]{8}", text) and not DATES[0] <= int(text[:8]) <= DATES[1]:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        try:
            moment = _loose_date(text)
        except ValueError:
            return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return (moment - EPOCH.replace(tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


def _loose_date(text: str) -> datetime.datetime:
    """A date that `fromisoformat` does not read as it is."""
    text = re.sub(r"(?i)\s*(z|utc|gmt)$", "", text)
    text = re.sub(r"^([0-9]{4})[-/.]([0-9]+)[-/.]([0-9]+)", r"\1-\2-\3", text)
    text = re.sub(r"(?<![0-9.,W])([0-9])(?![0-9])", r"0\1", text)  # one digit, but not of a fraction
    text = re.sub(r"\s+(?=[+-][0-9])", "", text)
    half = re.search(r"(?i)\s*([ap])m$", text)
    moment = datetime.datetime.fromisoformat(text if half is None else text[: half.start()])
    if half is None:
        return moment
    if not 1 <= moment.hour <= 12:
        raise ValueError(f"{moment.hour} is no hour before or after noon")
    return moment.replace(hour=moment.hour % 12 + 12 * (half[1] in "pP"))


def as_time(value: object) -> Time:
    """A time given by a user: a number, or a date such as 2026-12-31 23:59:59, in UTC unless it has an offset."""
    given = value
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, datetime.date):
        value = value.isoformat()
    if isinstance(value, str):
        date = None if is_number(value) else parse_date(value)
        if date is not None:
            return date
        value = parse_number(value) if is_number(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise ValueError(f"{str(given)[:80]!r} is not a time: give a number, or a date such as 2026-12-31 23:59:59")
    unit = unix_unit(value)
    if unit is not None:
        return value * MICRO // unit if isinstance(value, int) else round(value * MICRO / unit)
    if value != int(value):
        return value
    date = parse_date(str(int(value))) if DATES[0] <= value <= DATES[1] else None
    return int(value) if date is None else date


def as_date(micros: Time) -> str:
    """The day of a time in microseconds since 1970, as text."""
    try:
        return str((EPOCH + datetime.timedelta(microseconds=micros)).date())
    except OverflowError:
        return f"{micros} microseconds since 1970"


def as_seconds(value: object) -> int | None:
    """A time given by a user, in any form of `as_time`, in seconds since 1970; None for one that is only an order."""
    time = as_time(value)
    return int(time // MICRO) if unix_unit(time) == MICRO else None

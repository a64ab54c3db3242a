"""Unix times: which unit numbers are in, and how they are written as dates."""

import datetime

from torch import Tensor

EPOCH = datetime.datetime(1970, 1, 1)
UNITS = (1, 10**3, 10**6, 10**9)  # units of a Unix time per second
PLAUSIBLE = (631_152_000, 4_102_444_800)  # 1990 and 2100 in Unix seconds; the ranges of two units do not overlap


def unix_unit(times: Tensor) -> int | None:
    """The units per second of most of these times; None where they are not between 1990 and 2100 in any unit."""
    first, end = PLAUSIBLE
    fitting = (unit for unit in UNITS if 2 * int(((times >= first * unit) & (times < end * unit)).sum()) > len(times))
    return next(fitting, None)


def in_micros(times: Tensor) -> Tensor:
    """Unix times in microseconds; other times, from a log with its own clock, stay as they are."""
    unit = unix_unit(times)
    if unit is None:
        return times
    return times * (10**6 // unit) if unit <= 10**6 else times // (unit // 10**6)

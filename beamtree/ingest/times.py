"""Times of any kind as whole numbers, and the dates that users name as the same numbers.

Whole numbers stay as they are, in any unit. Where some have fractions, all become millionths; dates become microseconds
since 1970. Text is read in the one way that most rows allow: as numbers, or as dates with the year, the day or the
month first. Where the day and the month could as well change places, a format has to say which is which.

Numbers are taken for Unix times where most of them lie between 1990 and 2100 in seconds, milliseconds, microseconds or
nanoseconds since 1970. A date is then read in that unit, in universal time.
"""

import datetime
import decimal
import math
import re
from typing import NamedTuple

import polars as pl

WHITE = "".join(filter(str.isspace, map(chr, range(0x3001))))  # what str.strip() takes away, as at retrieval
LARGEST = decimal.Decimal(2**63 - 1)
EPOCH = datetime.datetime(1970, 1, 1)
UNITS = (1, 10**3, 10**6, 10**9)  # of Unix times: how many make a second
PLAUSIBLE = (631_152_000, 4_102_444_800)  # the years from 1990 to 2100 in Unix seconds; no two units share a number


class TimeScale(NamedTuple):
    """What the whole numbers of a log's times stand for."""

    dates: bool  # microseconds since 1970
    factor: int = 1  # else a number of the log times this
    unit: int | None = None  # where numbers of the log are known to be Unix times: how many make a second

    def read(self, text: str) -> int | None:
        """A date or a number that a user wrote, rounded up; None where the times of the log are not written so."""
        if self.dates:
            return read_date(text)
        number = self._read_number(text)
        if number is None or not number.is_finite():
            return None
        return math.ceil(min(max(number, -LARGEST), LARGEST))

    def _read_number(self, text: str) -> decimal.Decimal | None:
        """A number of the log, or the date that is one in its unit, times the factor."""
        date = None if self.unit is None else read_date(text)
        if date is not None and self.unit is not None:
            return decimal.Decimal(date) * self.unit * self.factor / 10**6
        try:
            return decimal.Decimal(text.strip()) * self.factor
        except decimal.DecimalException:
            return None

    def show(self, time: int) -> str:
        """A time of the log as people write it."""
        if self.unit is not None:
            time = time * 10**6 // (self.unit * self.factor)
        elif not self.dates:
            return f"{time / self.factor:g}" if self.factor > 1 else str(time)
        try:
            return str(EPOCH + datetime.timedelta(microseconds=time))
        except OverflowError:
            return f"{time} microseconds since 1970"


def whole_times(events: pl.LazyFrame, column: str, time_format: str | None = None) -> tuple[pl.Expr, TimeScale]:
    """Times as int64, null where one cannot be read, and their scale. Looks at all that are not whole numbers."""
    dtype, value = events.collect_schema()["time"], pl.col("time")
    if time_format is not None:
        return _in_format(events, column, time_format)
    if dtype.is_integer():
        return value.cast(pl.Int64, strict=False), TimeScale(dates=False)
    if dtype in (pl.Date, pl.Datetime):
        return value.dt.epoch("us"), TimeScale(dates=True)
    if not (dtype.is_numeric() or dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)):
        raise ValueError(f"column {column!r} holds {dtype}: times are numbers, dates or text")
    text = value.cast(pl.String).str.strip_chars(WHITE)
    whole = text.cast(pl.Int64, strict=False)
    times, whole_count = events.select(times=value.count(), whole=whole.count()).collect(engine="streaming").row(0)
    if 0 < times == whole_count:  # as is usual; the next look takes longer
        return whole, TimeScale(dates=False)
    number = (value if dtype.is_numeric() else text).cast(pl.Float64, strict=False)
    number = pl.when(number.is_finite()).then(number)
    return _most_read(events, column, text, whole, number)


def _most_read(
    events: pl.LazyFrame, column: str, text: pl.Expr, whole: pl.Expr, number: pl.Expr
) -> tuple[pl.Expr, TimeScale]:
    """The way that reads the most times."""
    look = events.select(
        rows=pl.len(),
        whole=whole.count(),
        number=number.count(),
        **{way: read(pl.when(number.is_null()).then(text)).count() for way, read in DATES.items()},
        fraction=(number != number.floor()).any(),
        largest=number.abs().max(),
        sample=text.drop_nulls().first(),
    )
    seen = look.collect(engine="streaming").row(0, named=True)
    if seen["rows"] and not any(seen[way] for way in ("whole", "number", *DATES)):
        raise ValueError(
            f"no time in column {column!r} can be read{_beginning(seen['sample'])}: times are numbers or dates such as "
            "2020-12-31 23:59:59; name another column with `time`, or say how dates are written with `time_format`"
        )
    factor = 1_000_000 if seen["fraction"] and seen["largest"] < 9e12 else 1  # int64 ends at 9.2e18
    ways = {
        "whole": (whole, TimeScale(dates=False)),
        "number": ((number * float(factor)).round().cast(pl.Int64, strict=False), TimeScale(False, factor)),
        **{way: (read(text), TimeScale(dates=True)) for way, read in DATES.items()},
    }
    best = max(ways, key=lambda way: seen[way])
    if best == "day first" and seen["day first"] == seen["month first"]:
        _check_alike(events, column, text)
    return ways[best]


def _check_alike(events: pl.LazyFrame, column: str, text: pl.Expr) -> None:
    """Raise a ValueError where dates with the day first are others with the month first."""
    other = day_first(text).ne_missing(month_first(text))
    found = events.select(sample=text.filter(other).first()).collect(engine="streaming").item()
    if found is not None:
        ways = " or ".join(f'"{_format_of(found, order)}"' for order in ("%d{0}%m{0}%Y", "%m{0}%d{0}%Y"))
        raise ValueError(
            f"column {column!r} holds dates such as {found!r}, and nothing tells the day from the month: "
            f"say how they are written with `time_format`, {ways}"
        )


def _format_of(sample: str, order: str) -> str:
    """The format of a date that does not begin with its year, in one order of day and month."""
    clock = re.sub(r"^\d+(.)\d+.\d+", lambda date: order.format(date[1]), sample)
    hour, ending = ("%I", "%p") if re.search(r"(?i)[ap]m$", sample) else ("%H", "")
    clock = re.sub(r"(?i)[ap]m$", ending, clock)
    return re.sub(
        r"\d+:\d+(:\d+)?(\.\d+)?", lambda at: f"{hour}:%M{':%S' if at[1] else ''}{'%.f' if at[2] else ''}", clock
    )


def _in_format(events: pl.LazyFrame, column: str, time_format: str) -> tuple[pl.Expr, TimeScale]:
    """Dates that are written in one format, that of strptime."""
    dtype = events.collect_schema()["time"]
    if dtype in (pl.Date, pl.Datetime) or dtype.is_nested():
        raise ValueError(f"time_format={time_format}: column {column!r} holds {dtype} and no text: leave it out")
    text = pl.col("time").cast(pl.String).str.strip_chars(WHITE)
    moment = text.str.to_datetime(time_format, time_unit="us", strict=False).dt.epoch("us")
    look = events.select(rows=pl.len(), read=moment.count(), sample=text.drop_nulls().first())
    seen = look.collect(engine="streaming").row(0, named=True)
    if seen["rows"] and not seen["read"]:
        sample = _beginning(seen["sample"])
        raise ValueError(
            f"time_format={time_format} reads no time in column {column!r}{sample}: give one such as %d/%m/%Y %H:%M"
        )
    return moment, TimeScale(dates=True)


def _beginning(sample: str | None) -> str:
    return f" (it begins with {sample!r})" if sample else ""


def with_unit(events: pl.LazyFrame, scale: TimeScale) -> TimeScale:
    """The scale of numbers with the unit of Unix times that most of them are in; without one where there is none."""
    number = pl.col("time").cast(pl.Float64) / scale.factor
    first, end = PLAUSIBLE
    inside = {str(unit): number.is_between(first * unit, end * unit, closed="left").sum() for unit in UNITS}
    seen = events.select(times=pl.col("time").count(), **inside).collect(engine="streaming").row(0, named=True)
    return scale._replace(unit=next((unit for unit in UNITS if 2 * seen[str(unit)] > seen["times"]), None))


def read_date(text: str) -> int | None:
    """A date that a user wrote, in microseconds since 1970; None where it is none."""
    found: int | None = pl.select(iso_date(pl.lit(text.strip()))).item()
    return found


def iso_date(text: pl.Expr) -> pl.Expr:
    """2020-12-31, 2020/12/31 23:59, 2020-12-31T23:59:59.5Z, 2020-12-31 11:59 PM UTC as microseconds since 1970."""
    text = text.str.replace(r"(?i)\s*(z|utc|gmt)$", "").str.replace("T", " ", literal=True)
    text = text.str.replace(r"^(\d{4})[-/.](\d+)[-/.](\d+)", "$1-$2-$3")
    text = text.str.replace(r"^(\S+ \d+:\d+)($|[^:\d])", "$1:00$2").str.replace(r"^(\S+)$", "$1 00:00:00")
    # Formats are spelled out: one that Polars infers may differ from one piece of the log to the next.
    found = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False).dt.epoch("us")
    for other in ("%Y-%m-%d %H:%M:%S%.f%z", "%Y-%m-%d %I:%M:%S%.f %p"):
        rest = pl.when(found.is_null()).then(text)
        found = pl.coalesce(found, rest.str.to_datetime(other, time_unit="us", strict=False).dt.epoch("us"))
    return found


def day_first(text: pl.Expr) -> pl.Expr:
    """The same for 31.12.2020, 31/12/2020 23:59 and 31-12-2020 23:59:59."""
    return _year_last(text, "[-/.]", "$3-$2-$1")


def month_first(text: pl.Expr) -> pl.Expr:
    """The same for 12/31/2020, 12-31-2020 and 12/31/2020 11:59 PM; with points, the day always comes first."""
    return _year_last(text, "[-/]", "$3-$1-$2")


def _year_last(text: pl.Expr, between: str, order: str) -> pl.Expr:
    date = rf"^(\d{{1,2}}){between}(\d{{1,2}}){between}(\d{{4}})\b"
    return iso_date(pl.when(text.str.contains(date)).then(text.str.replace(date, order)))


DATES = {"year first": iso_date, "day first": day_first, "month first": month_first}

"""Times of any kind as integers, and the dates that users name on the same scale.

Integers stay as they are, in any unit, unless most are dates such as 20240105. If some numbers have fractions, all
become millionths; dates become microseconds since 1970. Text is read in the one way that fits most rows: as numbers, or
as dates with the year, the day or the month first. If day and month cannot be told apart, `time_format` has to say
which is which.

Numbers are Unix times if most of them lie between 1990 and 2100 in seconds, milliseconds, microseconds or nanoseconds
since 1970. A date is then converted to that unit, in UTC. A clock that is ahead, or milliseconds among seconds, put
events into the future, where one of them would make all others old: `prepare` drops what is more than a day ahead.
"""

import datetime
import decimal
import math
import re
import time
from typing import NamedTuple

import polars as pl

from beamtree.data.times import DATES, DAY, EPOCH, MICRO, UNIX_TIMES, parse_date
from beamtree.errors import is_number

WHITESPACE = "".join(filter(str.isspace, map(chr, range(0x3001))))  # what str.strip() removes, as at retrieval
LARGEST = decimal.Decimal(2**63 - 1)
FIRST_ROWS = 10_000  # of a log of integers, which are read to the end only if most of these are dates
DIGITS = r"(199\d|20\d\d)(\d\d)(\d\d)"  # of a date without punctuation


class TimeScale(NamedTuple):
    """What the integers of a log's times mean."""

    dates: bool  # they are microseconds since 1970
    factor: int = 1  # else they are the numbers of the log, multiplied by this
    unit: int | None = None  # for Unix times: units per second

    def parse(self, text: str) -> int | None:
        """A date or a number given by a user, rounded up; None if the times of the log are of another kind."""
        date = parse_date(text) if self.dates or self.unit is not None else None
        if self.dates:
            return date
        try:
            if date is not None and self.unit is not None:
                number = decimal.Decimal(date) * self.unit * self.factor / 10**6
            elif is_number(text):
                number = decimal.Decimal(text.strip()) * self.factor
            else:
                return None
        except decimal.DecimalException:
            return None
        return math.ceil(min(max(number, -LARGEST), LARGEST)) if number.is_finite() else None

    def format(self, time: int) -> str:
        """A time of the log as text."""
        if self.unit is not None:
            time = time * 10**6 // (self.unit * self.factor)
        elif not self.dates:
            return f"{time / self.factor:g}" if self.factor > 1 else str(time)
        try:
            return str(EPOCH + datetime.timedelta(microseconds=time))
        except OverflowError:
            return f"{time} microseconds since 1970"


def parse_times(events: pl.LazyFrame, column: str, time_format: str | None = None) -> tuple[pl.Expr, TimeScale]:
    """Times as int64, null if one cannot be read, and their scale. Reads the column, of integers only the beginning."""
    dtype, value = events.collect_schema()["time"], pl.col("time")
    if time_format is not None:
        return _parse_format(events, column, time_format)
    if dtype.is_integer():
        return _integers_or_dates(events, value.cast(pl.Int64, strict=False))
    if dtype in (pl.Date, pl.Datetime):
        return value.dt.epoch("us"), TimeScale(dates=True)
    if not (dtype.is_numeric() or dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)):
        raise ValueError(f"column {column!r} holds {dtype}: times are numbers, dates or text")
    text = value.cast(pl.String).str.strip_chars(WHITESPACE)
    integer = text.cast(pl.Int64, strict=False)
    if dtype.is_numeric():  # integers become floats if one value is missing
        integer = pl.when(value == value.floor()).then(value.cast(pl.Int64, strict=False))
        text = pl.coalesce(integer.cast(pl.String), text)
    times, integer_count = (
        events.select(times=value.count(), integers=integer.count()).collect(engine="streaming").row(0)
    )
    if 0 < times == integer_count:  # the usual case; the next step takes longer
        return _integers_or_dates(events, integer)
    number = (value if dtype.is_numeric() else text).cast(pl.Float64, strict=False)
    number = pl.when(number.is_finite()).then(number)
    query = events.select(
        rows=pl.len(),
        integers=integer.count(),
        number=number.count(),
        dates=_digits_as_date(integer).count(),
        **{way: read(pl.when(number.is_null()).then(text)).count() for way, read in WAYS.items()},
        fraction=(number != number.floor()).any(),
        largest=number.abs().max(),
        sample=text.drop_nulls().first(),
    )
    stats = query.collect(engine="streaming").row(0, named=True)
    if stats["rows"] and not any(stats[way] for way in ("integers", "number", *WAYS)):
        raise ValueError(
            f"no time in column {column!r} can be read{_first_value(stats['sample'])}: times are numbers or dates "
            "such as 2020-12-31 23:59:59; name another column with `time`, or give their format with `time_format`"
        )
    if 2 * stats["dates"] > stats["integers"]:  # dates without punctuation, perhaps among others
        stats |= {"integers": 0, "number": stats["number"] - stats["integers"]}
        stats |= {"year first": stats["year first"] + stats["dates"]}
    factor = 1_000_000 if stats["fraction"] and stats["largest"] < 9e12 else 1  # int64 ends at 9.2e18
    ways = {
        "integers": (integer, TimeScale(dates=False)),
        "number": ((number * float(factor)).round().cast(pl.Int64, strict=False), TimeScale(False, factor)),
        **{way: (read(text), TimeScale(dates=True)) for way, read in WAYS.items()},
    }
    best = max(ways, key=lambda way: stats[way])  # the one that fits most times
    if best == "day first" and stats["day first"] == stats["month first"]:
        _check_day_and_month(events, column, text)
    return ways[best]


def _integers_or_dates(events: pl.LazyFrame, integer: pl.Expr) -> tuple[pl.Expr, TimeScale]:
    """Integers as they are, or dates such as 20240105 if most of them are such dates."""
    date = _digits_as_date(integer)
    for rows in (events.head(FIRST_ROWS), events):
        times, dates = rows.select(times=integer.count(), dates=date.count()).collect(engine="streaming").row(0)
        if 2 * dates <= times:
            return integer, TimeScale(dates=False)
    return date, TimeScale(dates=True)


def _digits_as_date(integer: pl.Expr) -> pl.Expr:
    """20240105 as microseconds since 1970; null for numbers that are no dates of 1990 to 2099."""
    return iso_date(pl.when(integer.is_between(*DATES)).then(integer).cast(pl.String))


def _check_day_and_month(events: pl.LazyFrame, column: str, text: pl.Expr) -> None:
    """Raise a ValueError if a date differs when read with the day first and with the month first."""
    differs = day_first(text).ne_missing(month_first(text))
    sample = events.select(sample=text.filter(differs).first()).collect(engine="streaming").item()
    if sample is not None:
        ways = " or ".join(f'"{_format_of(sample, order)}"' for order in ("%d{0}%m{0}%Y", "%m{0}%d{0}%Y"))
        raise ValueError(
            f"column {column!r} holds dates such as {sample!r}, and day and month cannot be told apart: "
            f"give their format with `time_format`, {ways}"
        )


def _format_of(sample: str, order: str) -> str:
    """The strptime format of a date that does not begin with the year, for one order of day and month."""
    clock = re.sub(r"^\d+(.)\d+.\d+", lambda date: order.format(date[1]), sample)
    hour, ending = ("%I", "%p") if re.search(r"(?i)[ap]m$", sample) else ("%H", "")
    clock = re.sub(r"(?i)[ap]m$", ending, clock)
    return re.sub(
        r"\d+:\d+(:\d+)?(\.\d+)?", lambda at: f"{hour}:%M{':%S' if at[1] else ''}{'%.f' if at[2] else ''}", clock
    )


def _parse_format(events: pl.LazyFrame, column: str, time_format: str) -> tuple[pl.Expr, TimeScale]:
    """Dates in a strptime format."""
    dtype = events.collect_schema()["time"]
    if dtype in (pl.Date, pl.Datetime) or dtype.is_nested():
        raise ValueError(f"time_format={time_format}: column {column!r} holds {dtype}, not text: leave it out")
    text = pl.col("time").cast(pl.String).str.strip_chars(WHITESPACE)
    moment = text.str.to_datetime(time_format, time_unit="us", strict=False).dt.epoch("us")
    query = events.select(rows=pl.len(), read=moment.count(), sample=text.drop_nulls().first())
    stats = query.collect(engine="streaming").row(0, named=True)
    if stats["rows"] and not stats["read"]:
        sample = _first_value(stats["sample"])
        raise ValueError(
            f"time_format={time_format} reads no time in column {column!r}{sample}: give one such as %d/%m/%Y %H:%M"
        )
    return moment, TimeScale(dates=True)


def _first_value(sample: str | None) -> str:
    return f" (the first is {sample!r})" if sample else ""


def detect_unix_unit(events: pl.LazyFrame, scale: TimeScale) -> TimeScale:
    """The scale with the unit of Unix times that fits most of the numbers, if there is one."""
    number = pl.col("time").cast(pl.Float64) / scale.factor
    inside = {str(unit): number.is_between(*ends, closed="left").sum() for unit, ends in UNIX_TIMES.items()}
    stats = events.select(times=pl.col("time").count(), **inside).collect(engine="streaming").row(0, named=True)
    return scale._replace(unit=next((unit for unit in UNIX_TIMES if 2 * stats[str(unit)] > stats["times"]), None))


def latest_time(events: pl.LazyFrame, scale: TimeScale | None) -> int | None:
    """The time after which events are dated in the future, a day from now; None where times are no clock.

    The first rows decide. Where most of these are in the future, this is no mistake of some events: None too.
    """
    if scale is None:
        return None
    first_rows = events.select("time").head(FIRST_ROWS)
    unit = MICRO if scale.dates else detect_unix_unit(first_rows, scale).unit
    if unit is None:
        return None
    latest = (int(time.time()) + DAY) * unit * scale.factor
    times, later = first_rows.select(times=pl.count("time"), later=(pl.col("time") > latest).sum()).collect().row(0)
    return None if 2 * later > times else latest


def iso_date(text: pl.Expr) -> pl.Expr:
    """2020-12-31, 20201231, 2020/12/31 23:59, 2020-12-31T23:59:59.5Z, 2020-12-31 11:59 PM UTC in microseconds."""
    text = text.str.replace(r"(?i)\s*(z|utc|gmt)$", "").str.replace("T", " ", literal=True)
    text = text.str.replace(f"^{DIGITS}($| )", "$1-$2-$3$4")
    text = text.str.replace(r"^(\d{4})[-/.](\d+)[-/.](\d+)", "$1-$2-$3")
    text = text.str.replace(r"^(\S+ \d+:\d+)($|[^:\d])", "$1:00$2").str.replace(r"^(\S+)$", "$1 00:00:00")
    # Formats are explicit: one that Polars infers may differ between parts of the log.
    micros = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False).dt.epoch("us")
    for other in ("%Y-%m-%d %H:%M:%S%.f%z", "%Y-%m-%d %I:%M:%S%.f %p"):
        rest = pl.when(micros.is_null()).then(text)
        micros = pl.coalesce(micros, rest.str.to_datetime(other, time_unit="us", strict=False).dt.epoch("us"))
    return micros


def day_first(text: pl.Expr) -> pl.Expr:
    """The same for 31.12.2020, 31/12/2020 23:59 and 31-12-2020 23:59:59."""
    return _year_last(text, "[-/.]", "$3-$2-$1")


def month_first(text: pl.Expr) -> pl.Expr:
    """The same for 12/31/2020, 12-31-2020 and 12/31/2020 11:59 PM; with dots, the day always comes first."""
    return _year_last(text, "[-/]", "$3-$1-$2")


def _year_last(text: pl.Expr, between: str, order: str) -> pl.Expr:
    date = rf"^(\d{{1,2}}){between}(\d{{1,2}}){between}(\d{{4}})\b"
    return iso_date(pl.when(text.str.contains(date)).then(text.str.replace(date, order)))


WAYS = {"year first": iso_date, "day first": day_first, "month first": month_first}

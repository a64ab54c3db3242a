"""The contexts of the events of a log: columns such as country and device, and the hour and the day of their times.

In the pipeline the context of an event is one text, the values of all columns as JSON, and is numbered like an id.
"""

from collections.abc import Callable, Iterable, Sequence

import polars as pl

from beamtree.data.times import DAY
from beamtree.ingest.times import WHITESPACE, TimeScale

HOUR = 3600  # seconds
THURSDAY = 3  # the first day of 1970, counted from Monday
DERIVED: dict[str, Callable[[pl.Expr], pl.Expr]] = {  # from seconds since 1970, in UTC
    "hour": lambda seconds: seconds // HOUR % 24,
    "day": lambda seconds: (seconds // DAY + THURSDAY) % 7 + 1,
}
MAX_CONTEXTS = 250_000  # distinct ones: they are read into memory


def context_columns(columns: Sequence[str], context: str | Iterable[str] | None, has_times: bool) -> list[str]:
    """The names of the columns of a context, from a list or text such as country,device; none unless given."""
    names = context.split(",") if isinstance(context, str) else () if context is None else context
    wanted = list(dict.fromkeys(str(name).strip() for name in names))
    for name in wanted:
        if name in columns or (name in DERIVED and has_times):
            continue
        reason = "the log has no times to take it from" if name in DERIVED else f"there are {', '.join(columns)}"
        raise ValueError(f"there is no column {name!r} for `context`: {reason}")
    return wanted


def check_contexts(count: int, columns: Sequence[str]) -> None:
    """A ValueError where a log has more distinct contexts than are possible."""
    if count > MAX_CONTEXTS:
        found = f"{count:,} combinations of {', '.join(columns)}"
        raise ValueError(f"context: the log has {found}, and {MAX_CONTEXTS:,} are possible: leave a column out")


def context_expression(names: Sequence[str], given: Sequence[str], scale: TimeScale | None) -> pl.Expr:
    """The context of a row as JSON, from columns `context NAME` of text where they are given, or from `time`."""
    values: dict[str, pl.Expr] = {}
    for name in names:
        if name in given:
            text = pl.col(f"context {name}").str.strip_chars(WHITESPACE)
            values[name] = pl.when(text != "").then(text)
            continue
        unit = None if scale is None else 10**6 if scale.dates else scale.unit and scale.unit * scale.factor
        if unit is None:
            raise ValueError(f"context: {name} needs dates or Unix times, and the times of the log are other numbers")
        values[name] = DERIVED[name](pl.col("time") // unit).cast(pl.String)
    return pl.struct([value.alias(name) for name, value in values.items()]).struct.json_encode()

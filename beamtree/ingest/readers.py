"""Reading logs: CSV with or without a header, Parquet, JSON lines and frames, as lazy rows of user, item and time.

Text files of whole numbers with spaces between them, or tabs of which not all lines have as many, have one user a line:
the user and all of their items.

Ids are text, as people would write them; a whole number is its digits. Times are integers, see `times`.
"""

import codecs
import errno
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import polars as pl

from beamtree.errors import DISK_FULL, short_message
from beamtree.ingest.columns import (
    USUAL_COLUMNS,
    Columns,
    LogColumns,
    find_columns,
    first_row,
    is_header,
    open_text,
    positions,
    shown,
)
from beamtree.ingest.contexts import DERIVED, context_columns, context_expression
from beamtree.ingest.event_weights import EventWeights, event_weights
from beamtree.ingest.sources import FRAME, LINES, PARQUET, TEXT, Location, column_names, is_frame, select_columns
from beamtree.ingest.times import WHITESPACE, TimeScale, detect_unix_unit, parse_times

SCHEMA_LINES = 10_000  # of a file, from which it is seen what it holds
USER_LINE = "[0-9]+(?:[ \t]+[0-9]+)*[ \t]*"  # of a text file with one user a line: the user and the items


class LogPart(NamedTuple):
    """A file or frame of a log, unread."""

    label: str  # the path of a file
    # user (text), item (text), and if any: time (int64), weight (float32: `event_weights`), context (text: `contexts`)
    events: pl.LazyFrame
    path: Location | None  # of a Parquet file, whose rows can be read from anywhere


class OpenedLog(NamedTuple):
    """A log of which only the columns are read, and the times unless they are integers."""

    events: pl.LazyFrame  # of all parts, one after the other
    parts: list[LogPart]
    columns: Columns
    ignored: list[str]  # the other columns
    scale: TimeScale | None  # of the times, if any
    names: list[str]  # of the files; "a frame" for a frame
    has_lazy_frame: bool
    weights: EventWeights | None = None
    context: Sequence[str] = ()  # the columns of a context
    numeric: Sequence[str] = ()  # those of `user` and `item` whose columns hold numbers


def open_logs(logs: Sequence[Any], wanted: LogColumns = USUAL_COLUMNS, names: Sequence[str] | None = None) -> OpenedLog:
    """All rows of some files and frames, one after the other.

    Args:
        logs: from `find_logs`.
        wanted: the columns to read; users, items and times are found by usual names unless given.
        names: the columns of text files without a header.
    """
    time_format = wanted.time_format
    by_name = [name for name in (wanted.user, wanted.item, wanted.time, wanted.weight) if name is not None]
    if names is not None and any(map(is_frame, logs)):
        raise ValueError(f"{FRAME} names its own columns: `names` is for text files without a header")
    tables = [log if is_frame(log) else scan_file(log, names, by_name) for log in logs]
    log_names = [FRAME if is_frame(log) else str(log.name) for log in logs]
    all_columns = list(map(column_names, tables))
    for name, other in zip(log_names, all_columns, strict=True):
        if other != all_columns[0]:
            first, second = (", ".join(shown(names, each) for each in names) for names in (all_columns[0], other))
            raise ValueError(f"the files have different columns: {log_names[0]} has {first}; {name} has {second}")
    columns = find_columns(all_columns[0], wanted)
    roles = {role: column for role, column in columns._asdict().items() if column is not None}
    weights = event_weights(all_columns[0], wanted)
    context_names = context_columns(all_columns[0], wanted.context, columns.time is not None)
    given = [name for name in context_names if name in all_columns[0]]
    used = dict.fromkeys((*roles.values(), *(() if weights is None else (weights.column,)), *given))
    ignored = [shown(all_columns[0], name) for name in all_columns[0] if name not in used]
    frames = [select_columns(table, list(used)) for table in tables]
    labels = [FRAME if is_frame(log) else str(log) for log in logs]
    numeric = [role for role in ("user", "item") if all(map(holds_numbers, logs, frames, [roles[role]] * len(logs)))]
    are_dates, scale = False, None
    if time_format is not None and columns.time is None:
        raise ValueError(f"time_format={time_format}: the log has no times; name their column with `time`")
    if columns.time is not None and time_format is None:
        frames, are_dates = _dates_to_microseconds(frames, columns.time, log_names)
    for index, frame in enumerate(frames):
        schema = frame.collect_schema()
        ids = {role: text_id(roles[role], schema[roles[role]]) for role in ("user", "item")}
        optional = {} if columns.time is None else {"time": pl.col(columns.time)}
        optional |= {} if weights is None else {"weight": weights.expression()}
        optional |= {f"context {name}": text_id(name, schema[name]) for name in given}
        frames[index] = frame.select(**ids, **optional)
    if columns.time is not None:
        events = pl.concat(frames, how="vertical_relaxed")
        with naming_unreadable([LogPart(*part, None) for part in zip(labels, frames, strict=True)]):
            times, scale = parse_times(events, columns.time, time_format)
        common_type = pl.col("time").cast(events.collect_schema()["time"])
        frames = [frame.with_columns(time=common_type).with_columns(time=times) for frame in frames]
    scale = TimeScale(dates=True) if are_dates else scale
    if context_names:
        in_unit = scale
        if scale is not None and not scale.dates and set(context_names) & DERIVED.keys() - set(given):
            in_unit = detect_unix_unit(pl.concat(frames), scale)
        text, raw = context_expression(context_names, given, in_unit), [f"context {name}" for name in given]
        frames = [frame.with_columns(context=text).drop(raw) for frame in frames]
    paths = [None if is_frame(log) or not log.name.lower().endswith(PARQUET) else log for log in logs]
    parts = [LogPart(*part) for part in zip(labels, frames, paths, strict=True)]
    has_lazy_frame = any(isinstance(log, pl.LazyFrame) for log in logs)
    return OpenedLog(
        pl.concat(frames), parts, columns, ignored, scale, log_names, has_lazy_frame, weights, context_names, numeric
    )


def read_rows(log: OpenedLog) -> pl.DataFrame:
    """All rows of a log, with ids without surrounding white space; a ValueError where they cannot be read."""
    try:
        return log.events.with_columns(pl.col("user", "item").str.strip_chars(WHITESPACE)).collect()
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"the log cannot be read: {short_message(error)}") from error


def check_lines(ids: pl.Series, owner: str) -> None:
    """Raise a ValueError where an id has a line break, since ids are saved as lines."""
    broken = ids.filter(ids.str.contains(r"[\r\n]"))
    if len(broken):
        raise ValueError(f"the id {broken[0]!r} of {owner} contains a line break: remove it")


def _dates_to_microseconds(
    frames: list[pl.LazyFrame], column: str, names: Sequence[str]
) -> tuple[list[pl.LazyFrame], bool]:
    """Dates of any unit and zone as microseconds since 1970, if all times are dates; and whether they are."""
    types = [frame.collect_schema()[column] for frame in frames]
    dates = [name for name, dtype in zip(names, types, strict=True) if dtype in (pl.Date, pl.Datetime)]
    numbers = [name for name, dtype in zip(names, types, strict=True) if dtype.is_numeric()]
    if dates and numbers:
        raise ValueError(f"the times of {dates[0]} are dates, those of {numbers[0]} numbers: use one of the two")
    if len(dates) < len(frames):
        return frames, False
    return [frame.with_columns(pl.col(column).dt.epoch("us")) for frame in frames], True


@contextmanager
def naming_unreadable(parts: Sequence[LogPart]) -> Iterator[None]:
    """Around the reading of files: if Polars cannot read one, the ValueError names it."""
    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        number = int(code[1]) if code else getattr(error, "errno", None)
        for part in parts if number not in DISK_FULL else ():
            try:
                part.events.select(pl.all().null_count()).collect(engine="streaming")
            except (pl.exceptions.PolarsError, OSError) as reason:
                is_missing = "(os error 2)" in str(reason) or getattr(reason, "errno", None) == errno.ENOENT
                message = "it does not exist" if is_missing else short_message(reason)
                raise ValueError(f"{part.label} cannot be read: {message}") from reason
        raise


# Files


def scan_file(path: Location, names: Sequence[str] | None, wanted: Sequence[str]) -> pl.LazyFrame:
    """A file, unread, with the names of its columns; 1, 2, 3, … if it has none."""
    kind = path.name.lower()
    if names is not None and not kind.endswith(TEXT):
        raise ValueError(f"{path} names its own columns: `names` is for text files without a header")
    try:
        if isinstance(path, Path) and kind.endswith(TEXT):
            frame = _scan_text(path, names, wanted)
        elif isinstance(path, Path) and kind.endswith(LINES):
            frame = _scan_lines(path)
        else:
            frame = pl.scan_parquet(_absolute(path), glob=False)
        frame.collect_schema()
    except (pl.exceptions.PolarsError, EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:  # its message is clear
            raise
        raise ValueError(f"{path} cannot be read: {short_message(error)}") from error
    return frame


def _absolute(path: Location) -> str:
    """A name that is valid in other processes, whatever their working directory."""
    return str(path.absolute() if isinstance(path, Path) else path)


def _scan_text(path: Path, names: Sequence[str] | None, wanted: Sequence[str]) -> pl.LazyFrame:
    if names is None and has_user_lines(path):
        return _scan_user_lines(path)
    row, separator = first_row(path)
    file = _absolute(path)
    # No types are inferred: 007 and 1.0 are ids as written.
    if names is None and is_header(row, wanted):
        return pl.scan_csv(file, separator=separator, infer_schema=False, glob=False)
    names = positions(len(row)) if names is None else names
    if len(names) != len(row):
        raise ValueError(f"{path} has {len(row)} columns, not the {len(names)} of the format: {', '.join(names)}")
    return pl.scan_csv(file, separator=separator, infer_schema=False, glob=False, has_header=False, new_columns=names)


def has_user_lines(log: Any) -> bool:
    """Whether this is a file with one user a line: the first are numbers, with spaces or not as many tabs in each."""
    if not isinstance(log, Path) or not log.name.lower().endswith(TEXT):
        return False
    first_row(log)  # an error where the file is no text
    tabs = set[int]()
    with open_text(log) as file:
        for line in islice(file, SCHEMA_LINES):
            if line.strip() and not re.fullmatch(USER_LINE, line.rstrip("\r\n")):
                return False
            if " " in line.strip():
                return True
            if len(line.split()) > 1:
                tabs.add(line.count("\t"))
    return len(tabs) > 1


def _scan_user_lines(path: Path) -> pl.LazyFrame:
    """Rows of user and item from a file with one user a line; a user without items has none."""
    lines = pl.scan_csv(
        _absolute(path), separator="\x1f", quote_char=None, has_header=False, new_columns=["line"],
        infer_schema=False, glob=False,
    )  # fmt: skip
    lines = lines.with_row_index("number", 1).filter(pl.col("line").str.strip_chars() != "")
    wrong = lines.filter(~pl.col("line").str.contains(rf"^{USER_LINE}\r?$")).head(1).collect()
    if len(wrong):
        what = "a file with one user a line has whole numbers, the user and the items, with spaces between them"
        raise ValueError(f"{path}: line {wrong['number'][0]} is {wrong['line'][0][:40]!r}: {what}")
    tokens = pl.col("line").str.extract_all("[0-9]+")
    rows = lines.select(user=tokens.list.first(), item=tokens.list.slice(1))
    twice = rows.group_by("user").len().filter(pl.col("len") > 1).sort("user").head(1).collect()
    if len(twice):
        message = f"user {twice['user'][0]} has {twice['len'][0]:,} lines"
        raise ValueError(f"{path}: {message}; if a line is an event, put commas between its columns")
    return rows.explode("item").drop_nulls()


def _scan_lines(path: Path) -> pl.LazyFrame:
    with path.open("rb") as file:
        if file.read(3) == codecs.BOM_UTF8:
            raise ValueError(f"{path} begins with a byte order mark: save it as UTF-8 without one")
    # Values become text, numbers as written: the types of the first rows need not be those of the last.
    types = {name: _text_type(dtype) for name, dtype in _schema_of_lines(path).items()}
    return pl.scan_ndjson(_absolute(path), schema=types)


def _schema_of_lines(path: Path) -> pl.Schema:
    return pl.scan_ndjson(_absolute(path), infer_schema_length=SCHEMA_LINES).collect_schema()


def _text_type(dtype: pl.DataType) -> pl.DataType:
    if isinstance(dtype, pl.List):
        return pl.List(_text_type(cast(pl.DataType, dtype.inner)))
    return dtype if dtype.is_nested() else pl.String()


# Ids


def holds_numbers(log: Any, frame: pl.LazyFrame, column: str) -> bool:
    """Whether a column of a file or a frame holds numbers, or lists of them: text of CSV files never does."""
    is_lines = isinstance(log, Path) and log.name.lower().endswith(LINES)  # whose values were made text
    dtype = (_schema_of_lines(log) if is_lines else frame.collect_schema())[column]
    inner = dtype.inner if isinstance(dtype, pl.List | pl.Array) else dtype
    return cast(pl.DataType, inner).is_numeric()


def is_integer_text(column: str) -> pl.Expr:
    """Whether ids, given as text, are integers as an int64 is written."""
    text = pl.col(column)
    return (text.cast(pl.Int64, strict=False).cast(pl.String) == text).fill_null(False)


def are_integers(ids: pl.Series) -> bool:
    """The same for all of a series."""
    return bool(ids.to_frame("id").select(is_integer_text("id").all()).item())


def text_id(column: str, dtype: pl.DataType) -> pl.Expr:
    """A column of ids as text."""
    return _as_text(pl.col(column), column, dtype)


def text_ids(column: str, dtype: pl.List | pl.Array) -> pl.Expr:
    """A column of lists of ids as lists of text."""
    inner = cast(pl.DataType, dtype.inner)
    return pl.col(column).cast(pl.List(inner)).list.eval(_as_text(pl.element(), column, inner))


def _as_text(value: pl.Expr, column: str, dtype: pl.DataType) -> pl.Expr:
    if dtype.is_nested() or dtype in (pl.Binary, pl.Object):
        raise ValueError(f"column {column!r} holds {dtype}: ids are text or numbers")
    if dtype.is_float():  # integers become floats if one value is missing
        integer = value.cast(pl.Int64, strict=False)
        text = pl.when(integer == value).then(integer.cast(pl.String)).otherwise(value.cast(pl.String))
        return pl.when(value.is_finite()).then(text)
    return value.cast(pl.String)

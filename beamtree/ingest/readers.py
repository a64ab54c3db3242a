"""Logs of any kind, unread, as rows of user, item and time: CSV with or without a header, Parquet, JSON lines, frames.

Ids are text, as people would write them. A whole number is its digits. Times are whole numbers, as `times` says.
"""

import codecs
import errno
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import polars as pl

from beamtree.errors import DISK_FULL, short_message
from beamtree.ingest.columns import Columns, find_columns, first_row, is_header, positions
from beamtree.ingest.frames import NAME as FRAME
from beamtree.ingest.frames import columns_of, is_frame, some_columns
from beamtree.ingest.times import WHITE as WHITE  # those who read other files take it from here
from beamtree.ingest.times import TimeScale, whole_times
from beamtree.ingest.urls import Address, Place, find_places

TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".txt")
LINES = (".jsonl", ".ndjson")
PARQUET = (".parquet",)
LOOK = 10_000  # JSON lines that tell which columns there are


def find_files(sources: Sequence[str | Path]) -> list[Place]:
    """The files that were named, and those of the folders and patterns that were."""
    files: list[Place] = []
    for source in sources:
        places, alone = find_places(source)
        found = places if alone else list(filter(_is_log, places))
        if not found or not all(map(_is_log, found)):
            raise ValueError(f"{source}: a log is {', '.join((*TEXT, *LINES, *PARQUET))}, or a folder of such files")
        files += found
    if not files:
        raise ValueError("no log was given")
    return list(dict.fromkeys(files))


def _is_log(path: Place) -> bool:
    kinds = PARQUET if isinstance(path, Address) else (*TEXT, *LINES, *PARQUET)
    return path.name.lower().endswith(kinds) and (isinstance(path, Address) or path.is_file())


class Source(NamedTuple):
    """One of the files or frames that a log is made of, unread."""

    label: str  # the path of a file
    events: pl.LazyFrame  # user (text), item (text), time (int64, if any)
    path: Place | None  # of a Parquet file, of which rows can be read from anywhere


class Opened(NamedTuple):
    """A log of which nothing is read yet but its columns and, where they are not whole numbers, its times."""

    events: pl.LazyFrame  # of all sources, one after the other
    parts: list[Source]
    columns: Columns
    ignored: list[str]  # the other columns
    scale: TimeScale | None  # of the times; None where there are none
    sources: list[str]  # names of the files; "a frame" for a frame
    lazy: bool  # whether a LazyFrame is among them


def find_logs(sources: Any) -> list[Any]:
    """Files and frames, from one source or several: a file, a folder of files, a frame."""
    one = is_frame(sources) or isinstance(sources, str | Path | Mapping) or not isinstance(sources, Iterable)
    logs: dict[object, Any] = {}
    for source in [sources] if one else sources:
        if is_frame(source):
            logs[id(source)] = source
        elif isinstance(source, str | Path):
            logs |= {path: path for path in find_files([source])}  # a file that is named twice is read once
        else:
            raise ValueError(f"a log is a file, a folder of files or a frame, not a {type(source).__name__}")
    if not logs:
        raise ValueError("no log was given")
    return list(logs.values())


def log_name(log: Any) -> str:
    """The name of a file without its folder; frames have none."""
    return FRAME if is_frame(log) else str(log.name)


def open_events(
    files: Sequence[Place],
    names: Sequence[str] | None,
    user: str | None,
    item: str | None,
    time: str | None,
    time_format: str | None = None,
) -> tuple[pl.LazyFrame, Columns, list[str]]:
    """All rows of the files as user (text), item (text), time (int64, if any); the columns, and those left out."""
    opened = open_logs(files, names, user, item, time, time_format)
    return opened.events, opened.columns, opened.ignored


def open_logs(
    logs: Sequence[Any],
    names: Sequence[str] | None,
    user: str | None,
    item: str | None,
    time: str | None,
    time_format: str | None = None,
) -> Opened:
    """All rows of the files and frames that `find_logs` found, one after the other.

    Args:
        logs: from `find_logs`.
        names: the columns of text files without a header.
        user: the column of users; found by usual names unless given, like the next two.
        item: the column of items.
        time: the column of times.
        time_format: how dates are written, as in strptime; found out unless given.
    """
    asked = [name for name in (user, item, time) if name is not None]
    if names is not None and any(map(is_frame, logs)):
        raise ValueError(f"{FRAME} names its own columns: `names` is for text files without a header")
    tables = [log if is_frame(log) else scan(log, names, asked) for log in logs]
    labels, all_names = [log_name(log) for log in logs], [columns_of(table) for table in tables]
    for label, other in zip(labels, all_names, strict=True):
        if other != all_names[0]:
            first = f"{labels[0]} has {', '.join(all_names[0])}"
            raise ValueError(f"the files differ in their columns: {first}; {label} has {', '.join(other)}")
    columns = find_columns(all_names[0], user, item, time)
    roles = {role: column for role, column in columns._asdict().items() if column is not None}
    ignored = [name for name in all_names[0] if name not in columns]
    frames = [some_columns(table, list(roles.values())) for table in tables]
    dates, scale = False, None
    if time_format is not None and columns.time is None:
        raise ValueError(f"time_format={time_format}: the log has no times; name their column with `time`")
    if columns.time is not None and time_format is None:
        frames, dates = _alike(frames, columns.time, labels)
    frames = [_select(frame, roles) for frame in frames]
    if columns.time is not None:
        events = pl.concat(frames, how="vertical_relaxed")
        with reading([Source(_label(log), frame, None) for log, frame in zip(logs, frames, strict=True)]):
            times, scale = whole_times(events, columns.time, time_format)
        as_all = pl.col("time").cast(events.collect_schema()["time"])
        frames = [frame.with_columns(time=as_all).with_columns(time=times) for frame in frames]
    parts = [Source(*each) for each in zip(map(_label, logs), frames, map(_parquet, logs), strict=True)]
    lazy = any(isinstance(log, pl.LazyFrame) for log in logs)
    scale = TimeScale(dates=True) if dates else scale
    return Opened(pl.concat(frames), parts, columns, ignored, scale, labels, lazy)


def _label(log: Any) -> str:
    return FRAME if is_frame(log) else str(log)


def _parquet(log: Any) -> Place | None:
    return None if is_frame(log) or not log.name.lower().endswith(PARQUET) else log


@contextmanager
def reading(parts: Sequence[Source]) -> Iterator[None]:
    """Around the reading of files: what Polars cannot read is a ValueError that names the file."""
    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        number = int(found[1]) if found else getattr(error, "errno", None)
        if number not in DISK_FULL:
            _find_damaged(parts)
        raise


def _find_damaged(parts: Sequence[Source]) -> None:
    for part in parts:
        try:
            part.events.select(pl.all().null_count()).collect(engine="streaming")
        except (pl.exceptions.PolarsError, OSError) as error:
            missing = "(os error 2)" in str(error) or getattr(error, "errno", None) == errno.ENOENT
            trouble = "it is not there" if missing else short_message(error)
            raise ValueError(f"{part.label} cannot be read: {trouble}") from error


def scan(path: Place, names: Sequence[str] | None, asked: Sequence[str]) -> pl.LazyFrame:
    """One file, unread, under its columns' names; 1, 2, 3, … where it has none."""
    kind = path.name.lower()
    if names is not None and not kind.endswith(TEXT):
        raise ValueError(f"{path} names its own columns: `names` is for text files without a header")
    try:
        if isinstance(path, Path) and kind.endswith(TEXT):
            frame = _scan_text(path, names, asked)
        elif isinstance(path, Path) and kind.endswith(LINES):
            frame = _scan_lines(path)
        else:
            frame = pl.scan_parquet(_anywhere(path), glob=False)
        frame.collect_schema()
    except (pl.exceptions.PolarsError, EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:  # plain as it is
            raise
        raise ValueError(f"{path} cannot be read: {short_message(error)}") from error
    return frame


def _anywhere(path: Place) -> str:
    """A name by which processes in other folders read a file as well."""
    return str(path.absolute() if isinstance(path, Path) else path)


def _scan_text(path: Path, names: Sequence[str] | None, asked: Sequence[str]) -> pl.LazyFrame:
    row, separator = first_row(path)
    file = _anywhere(path)
    # Nothing is inferred: 007 and 1.0 are ids as they stand.
    if names is None and is_header(row, asked):
        return pl.scan_csv(file, separator=separator, infer_schema=False, glob=False)
    names = positions(len(row)) if names is None else names
    if len(names) != len(row):
        raise ValueError(f"{path} has {len(row)} columns, not the {len(names)} of the format: {', '.join(names)}")
    return pl.scan_csv(file, separator=separator, infer_schema=False, glob=False, has_header=False, new_columns=names)


def _scan_lines(path: Path) -> pl.LazyFrame:
    with path.open("rb") as file:
        if file.read(3) == codecs.BOM_UTF8:
            raise ValueError(f"{path} begins with a byte order mark: save it as UTF-8 without one")
    # Values become text, numbers as people write them: the types of the first rows need not be those of the last.
    lines = _anywhere(path)
    schema = pl.scan_ndjson(lines, infer_schema_length=LOOK).collect_schema()
    return pl.scan_ndjson(lines, schema={name: _as_text(dtype) for name, dtype in schema.items()})


def _as_text(dtype: pl.DataType) -> pl.DataType:
    if isinstance(dtype, pl.List):
        return pl.List(_as_text(cast(pl.DataType, dtype.inner)))
    return dtype if dtype.is_nested() else pl.String()


def _select(frame: pl.LazyFrame, roles: Mapping[str, str]) -> pl.LazyFrame:
    schema = frame.collect_schema()
    return frame.select(
        (pl.col(column) if role == "time" else text_id(column, schema[column])).alias(role)
        for role, column in roles.items()
    )


def _alike(frames: list[pl.LazyFrame], column: str, labels: Sequence[str]) -> tuple[list[pl.LazyFrame], bool]:
    """Dates of any unit and zone as microseconds since 1970, where all times are dates; and whether they are."""
    types = [frame.collect_schema()[column] for frame in frames]
    dated = [label for label, dtype in zip(labels, types, strict=True) if dtype in (pl.Date, pl.Datetime)]
    numbered = [label for label, dtype in zip(labels, types, strict=True) if dtype.is_numeric()]
    if dated and numbered:
        raise ValueError(f"the times of {dated[0]} are dates, those of {numbered[0]} numbers: write them in one way")
    if len(dated) < len(frames):
        return frames, False
    return [frame.with_columns(pl.col(column).dt.epoch("us")) for frame in frames], True


def text_id(column: str, dtype: pl.DataType) -> pl.Expr:
    """An id column as text, as people would write it."""
    return _text(pl.col(column), column, dtype)


def text_ids(column: str, dtype: pl.List | pl.Array) -> pl.Expr:
    """A column of lists of ids as lists of text."""
    inner = cast(pl.DataType, dtype.inner)
    return pl.col(column).cast(pl.List(inner)).list.eval(_text(pl.element(), column, inner))


def _text(value: pl.Expr, column: str, dtype: pl.DataType) -> pl.Expr:
    if dtype.is_nested() or dtype in (pl.Binary, pl.Object):
        raise ValueError(f"column {column!r} holds {dtype}: ids are text or numbers")
    if dtype.is_float():  # whole numbers were made floats by a missing value somewhere
        whole = value.cast(pl.Int64, strict=False)
        text = pl.when(whole == value).then(whole.cast(pl.String)).otherwise(value.cast(pl.String))
        return pl.when(value.is_finite()).then(text)
    return value.cast(pl.String)

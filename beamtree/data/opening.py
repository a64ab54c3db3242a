"""Logs of any kind, unread, as rows of user, item and time: CSV with or without a header, Parquet, JSON lines.

- Ids are text, as people would write them. A whole number is its digits.
- Times are whole numbers in any unit. Where some have fractions, all become millionths; ISO dates become microseconds
  since 1970. Text is read in the one way that most rows allow.
"""

import codecs
import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import polars as pl

from beamtree.data.columns import Columns, find_columns, first_row, is_header, positions

TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".txt")
LINES = (".jsonl", ".ndjson")
PARQUET = (".parquet",)
LOOK = 10_000  # JSON lines that tell which columns there are
WHITE = "".join(filter(str.isspace, map(chr, range(0x3001))))  # what str.strip() takes away, as at retrieval


def find_files(sources: Sequence[str | Path]) -> list[Path]:
    """The files that were named, and those of the folders that were."""
    files: list[Path] = []
    for path in map(Path, sources):
        if not path.exists():
            raise ValueError(f"{path} is not there")
        found = sorted(filter(_is_log, path.iterdir())) if path.is_dir() else [path]
        if not found or not all(map(_is_log, found)):
            raise ValueError(f"{path}: a log is {', '.join((*TEXT, *LINES, *PARQUET))}, or a folder of such files")
        files += found
    if not files:
        raise ValueError("no log was given")
    return list(dict.fromkeys(files))


def _is_log(path: Path) -> bool:
    return path.is_file() and path.name.lower().endswith((*TEXT, *LINES, *PARQUET))


def open_events(
    files: Sequence[Path], names: Sequence[str] | None, user: str | None, item: str | None, time: str | None
) -> tuple[pl.LazyFrame, Columns, list[str]]:
    """All rows of the files as user (text), item (text), time (int64, if any); the columns, and those left out."""
    asked = [name for name in (user, item, time) if name is not None]
    frames = [scan(path, names, asked) for path in files]
    all_names = [frame.collect_schema().names() for frame in frames]
    for path, other in zip(files, all_names, strict=True):
        if other != all_names[0]:
            first = f"{files[0].name} has {', '.join(all_names[0])}"
            raise ValueError(f"the files differ in their columns: {first}; {path.name} has {', '.join(other)}")
    columns = find_columns(all_names[0], user, item, time)
    roles = {role: column for role, column in columns._asdict().items() if column is not None}
    if columns.time is not None:
        frames = _alike(frames, columns.time, files)
    events = pl.concat([_select(frame, roles) for frame in frames], how="vertical_relaxed")
    if columns.time is not None:
        events = events.with_columns(time=_whole_time(events, columns.time))
    return events, columns, [name for name in all_names[0] if name not in columns]


def scan(path: Path, names: Sequence[str] | None, asked: Sequence[str]) -> pl.LazyFrame:
    """One file, unread, under its columns' names; 1, 2, 3, … where it has none."""
    kind = path.name.lower()
    if names is not None and not kind.endswith(TEXT):
        raise ValueError(f"{path} names its own columns: --format is for text files without a header")
    try:
        if kind.endswith(TEXT):
            frame = _scan_text(path, names, asked)
        elif kind.endswith(LINES):
            frame = _scan_lines(path)
        else:
            frame = pl.scan_parquet(path, glob=False)
        frame.collect_schema()
    except (pl.exceptions.PolarsError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        message = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read: {message}") from error
    return frame


def _scan_text(path: Path, names: Sequence[str] | None, asked: Sequence[str]) -> pl.LazyFrame:
    row, separator = first_row(path)
    # Nothing is inferred: 007 and 1.0 are ids as they stand.
    if names is None and is_header(row, asked):
        return pl.scan_csv(path, separator=separator, infer_schema=False, glob=False)
    names = positions(len(row)) if names is None else names
    if len(names) != len(row):
        raise ValueError(f"{path} has {len(row)} columns, not the {len(names)} of the format: {', '.join(names)}")
    return pl.scan_csv(path, separator=separator, infer_schema=False, glob=False, has_header=False, new_columns=names)


def _scan_lines(path: Path) -> pl.LazyFrame:
    with path.open("rb") as file:
        if file.read(3) == codecs.BOM_UTF8:
            raise ValueError(f"{path} begins with a byte order mark: save it as UTF-8 without one")
    # Values become text, numbers as people write them: the types of the first rows need not be those of the last.
    schema = pl.scan_ndjson(path, infer_schema_length=LOOK).collect_schema()
    return pl.scan_ndjson(path, schema={name: _as_text(dtype) for name, dtype in schema.items()})


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


def _alike(frames: Sequence[pl.LazyFrame], column: str, files: Sequence[Path]) -> list[pl.LazyFrame]:
    """Dates of any unit and zone as microseconds since 1970, where no file has text in their place."""
    types = [frame.collect_schema()[column] for frame in frames]
    dated = [path.name for path, dtype in zip(files, types, strict=True) if dtype in (pl.Date, pl.Datetime)]
    numbered = [path.name for path, dtype in zip(files, types, strict=True) if dtype.is_numeric()]
    if dated and numbered:
        raise ValueError(f"the times of {dated[0]} are dates, those of {numbered[0]} numbers: write them in one way")
    if len(dated) < len(files):
        return list(frames)
    return [frame.with_columns(pl.col(column).dt.epoch("us")) for frame in frames]


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


def _whole_time(events: pl.LazyFrame, column: str) -> pl.Expr:
    """Times as int64, null where one cannot be read. Looks at all times if they are not whole numbers."""
    dtype, value = events.collect_schema()["time"], pl.col("time")
    if dtype.is_integer():
        return value.cast(pl.Int64, strict=False)
    if dtype in (pl.Date, pl.Datetime):
        return value.dt.epoch("us")
    if not (dtype.is_numeric() or dtype in (pl.String, pl.Null)):
        raise ValueError(f"column {column!r} holds {dtype}: times are numbers, dates or text")
    text = value.cast(pl.String).str.strip_chars(WHITE)
    whole = text.cast(pl.Int64, strict=False)
    times, whole_times = events.select(times=value.count(), whole=whole.count()).collect(engine="streaming").row(0)
    if 0 < times == whole_times:  # as is usual; the next look takes longer
        return whole
    number = (text if dtype == pl.String else value).cast(pl.Float64, strict=False)
    number = pl.when(number.is_finite()).then(number)
    look = events.select(
        rows=pl.len(),
        whole=whole.count(),
        number=number.count(),
        date=_iso_date(pl.when(number.is_null()).then(text)).count(),
        fraction=(number != number.floor()).any(),
        largest=number.abs().max(),
        sample=text.drop_nulls().first(),
    )
    seen = look.collect(engine="streaming").row(0, named=True)
    if seen["rows"] and not any(seen[way] for way in ("whole", "number", "date")):
        sample = f" (it begins with {seen['sample']!r})" if seen["sample"] else ""
        raise ValueError(
            f"no time in column {column!r} can be read{sample}: times are numbers or dates such as "
            "2020-12-31 23:59:59; name another column with --time"
        )
    scale = 1e6 if seen["fraction"] and seen["largest"] < 9e12 else 1.0  # int64 ends at 9.2e18
    ways = {
        "whole": whole,
        "number": (number * scale).round().cast(pl.Int64, strict=False),
        "date": _iso_date(text),
    }
    return ways[max(ways, key=lambda way: seen[way])]


def _iso_date(text: pl.Expr) -> pl.Expr:
    """2020-12-31, 2020/12/31 23:59, 2020-12-31T23:59:59.5Z, 2020-12-31 23:59:59+01:00 as microseconds since 1970."""
    text = text.str.replace("T", " ", literal=True).str.replace_all("/", "-", literal=True).str.strip_suffix("Z")
    colons = text.str.count_matches(":", literal=True)
    text = text + pl.when(colons == 0).then(pl.lit(" 00:00:00")).when(colons == 1).then(pl.lit(":00")).otherwise(
        pl.lit("")
    )
    # Formats are spelled out: one that Polars infers may differ from one piece of the log to the next.
    moment = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    rest = pl.when(moment.is_null()).then(text)
    zoned = rest.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%z", time_unit="us", strict=False)
    return pl.coalesce(moment.dt.epoch("us"), zoned.dt.epoch("us"))

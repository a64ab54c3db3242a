"""From a log of (user, item, time) to a prepared folder, by Polars and in little memory.

Ids become numbers first: the distinct ids are in memory, the events stream past them to a file. The rest is numbers,
sorted for one range of users after another. The rules:

- Ids are text, without white space around them. A whole number is its digits.
- Times are whole numbers in any unit. Where some have fractions, all become millionths; ISO dates become microseconds
  since 1970. Text is read in the one way that most rows allow. A log without times is in order already.
- A row is dropped without a user, without an item, without a readable time, or if it repeats the user, item and time
  of an earlier row; then users with fewer than `min_events` rows are. Everything dropped is counted in the report.
- Events at the same time keep the order of the log.
"""

import codecs
import gzip
import math
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from beamtree.data.arrange import AT_ONCE, Part, sort, split_users, summary, write_arrays
from beamtree.data.columns import Columns, find_columns, first_row, is_header, positions
from beamtree.data.prepared import SPLITS, write_folder, write_ids

TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".txt")
LINES = (".jsonl", ".ndjson")
PARQUET = (".parquet",)
LOOK = 10_000  # JSON lines that tell which columns there are
WHITE = "".join(filter(str.isspace, map(chr, range(0x3001))))  # what str.strip() takes away, as at retrieval

Say = Callable[[str], None]


def prepare(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    names: Sequence[str] | None = None,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    min_events: int = 10,
    val_users: int | None = None,
    test_users: int | None = None,
    seed: int = 0,
    on_stage: Say = lambda stage: None,
) -> dict[str, Any]:
    """Clean a log, number its users and items, split the users, and write a prepared folder; gives its description.

    `sources` are files or folders of files: CSV, Parquet, JSON lines. `user`, `item` and `time` name columns that have
    unusual names. Text files without a header have the columns 1, 2, 3, …, or `names`; `columns.FORMATS` has those of
    the paper's sets. `val_users` and `test_users` are 5 % of the users each, at most 1,000, unless given.
    """
    _check(min_events, val_users, test_users, seed)
    files = find_files([sources] if isinstance(sources, str | Path) else sources)

    def fill(folder: Path) -> dict[str, Any]:
        on_stage(f"looking at {len(files):,} {'file' if len(files) == 1 else 'files'}")
        events, columns, ignored = open_events(files, names, user, item, time)
        work = folder / "work"
        work.mkdir()
        numbered, user_names, item_names, report = _number(events, work / "numbered.parquet", on_stage)
        parts = _parts(numbered, len(user_names), report["rows"], on_stage)
        kept = sort(parts, len(user_names), len(item_names), min_events, work)
        report |= kept.report
        num_users, num_items = (int(np.count_nonzero(counts)) for counts in (kept.lengths, kept.popularity))
        _check_enough(num_users, num_items, min_events, report)
        on_stage(f"writing {num_users:,} users with {kept.lengths.sum():,} events")
        split = split_users(num_users, val_users, test_users, seed)
        users, items = write_arrays(folder, work, kept, split)
        write_ids(folder / "users.txt", user_names[users])
        write_ids(folder / "items.txt", item_names[items])
        shutil.rmtree(work)
        return {
            "num_users": num_users,
            "num_items": num_items,
            "num_events": int(kept.lengths.sum()),
            "users": {name: int((split == place).sum()) for place, name in enumerate(SPLITS)},
            "sources": [path.name for path in files],
            "settings": {**columns._asdict(), "min_events": min_events, "seed": seed},
            "report": {**report, "ignored_columns": ignored},
            "summary": summary(kept.lengths, kept.popularity),
        }

    with _plain_errors(Path(out)):
        return write_folder(Path(out), fill)


def _check(min_events: int, val_users: int | None, test_users: int | None, seed: int) -> None:
    if min_events < 2:
        raise ValueError(f"min_events={min_events}: a user needs 2 at least, one to be known by and one to predict")
    for name, count in (("val_users", val_users), ("test_users", test_users), ("seed", seed)):
        if count is not None and count < 0:
            raise ValueError(f"{name}={count} is negative")


def _check_enough(num_users: int, num_items: int, min_events: int, report: Mapping[str, Any]) -> None:
    if num_users < 2 or num_items < 2:
        counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in report.items() if count)
        raise ValueError(
            f"two users with at least {min_events} events (--min-events) and two items are needed, "
            f"but {num_users} and {num_items} are left of {counts or 'a log without rows'}"
        )


@contextmanager
def _plain_errors(out: Path) -> Iterator[None]:
    """Polars' errors as others know them: an OSError where the disk is full, a ValueError for a log it cannot read."""
    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # not of Polars, and plain as it is
            raise
        message = " ".join(str(error).split("\n\n")[0].split())
        if trouble := re.search(r"[^:]+\(os error \d+\)", message):
            raise OSError(f"{out} cannot be written:{trouble[0]}") from error
        raise ValueError(f"the log cannot be read: {message}") from error


# Opening


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


# Numbering


def _number(
    events: pl.LazyFrame, path: Path, on_stage: Say
) -> tuple[pl.LazyFrame, pl.Series, pl.Series, dict[str, Any]]:
    """The log as numbers, on disk and in order, with every usable row; the names behind the numbers; a first report."""
    on_stage("reading the users")
    users, user_names = _ids(events, "user")
    on_stage("reading the items")
    items, item_names = _ids(events, "item")
    on_stage(f"numbering {len(user_names):,} users and {len(item_names):,} items in the log")
    for table, column in ((users, "user"), (items, "item")):
        events = events.join(table.lazy(), on=column, how="left", maintain_order="left")
        events = events.drop(column).rename({"number": column})
    events.sink_parquet(path, compression="lz4", maintain_order=True)
    numbered = pl.scan_parquet(path)
    missing = {"missing_user": pl.col("user").is_null(), "missing_item": pl.col("item").is_null()}
    if "time" in numbered.collect_schema():
        missing["unreadable_time"] = pl.col("time").is_null()
    usable = pl.lit(True)
    counts = {"rows": pl.len()}
    for name, condition in missing.items():  # a row counts under its first fault
        counts[name] = (usable & condition).sum()
        usable = usable & ~condition
    report = numbered.select(**counts).collect().row(0, named=True)
    report["merged_users"] = len(users) - len(user_names)
    report["merged_items"] = len(items) - len(item_names)
    return numbered.filter(usable), user_names, item_names, report


def _ids(events: pl.LazyFrame, column: str) -> tuple[pl.DataFrame, pl.Series]:
    """Every id of a column as it is written, with its number; and the trimmed ids, sorted, in the order of numbers."""
    table = events.select(column).unique().collect(engine="streaming")
    table = table.with_columns(name=pl.col(column).str.strip_chars(WHITE)).filter(pl.col("name") != "")
    table = table.sort("name", column).with_columns(number=pl.col("name").rle_id())
    names = table.filter(pl.col("number").diff().fill_null(1) != 0)["name"]
    broken = names.str.contains(r"[\r\n]")
    if broken.any():
        raise ValueError(f"the id {names.filter(broken)[0]!r} of a {column} has a line break inside: remove it")
    return table.drop("name"), names


def _parts(numbered: pl.LazyFrame, num_users: int, rows: int, on_stage: Say) -> Iterator[Part]:
    """The log in parts of about AT_ONCE events, each with all the events of a range of users."""
    bounds = np.linspace(0, num_users, math.ceil(rows / AT_ONCE) + 1).astype(int).tolist()
    for part, (start, stop) in enumerate(pairwise(bounds)):
        on_stage(f"sorting, part {part + 1} of {len(bounds) - 1}")
        some = numbered.filter(pl.col("user").is_between(start, stop, closed="left")).collect(engine="streaming")
        time = some["time"].to_numpy() if "time" in some.columns else None
        yield Part(start, stop, some["user"].to_numpy(), some["item"].to_numpy(), time)

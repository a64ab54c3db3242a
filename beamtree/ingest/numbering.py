"""Numbering: ids become numbers, and the numbered events go to files by ranges of users that are sorted at once.

A log is read in tasks, which an executor may run in other processes. A file of numbered events holds rows of the log in
order, those of the first range of users first:

    int64 [R + 1]   where the rows of each range begin
    uint32 [E]      users
    uint32 [E]      items
    int64 [E]       times, if the log has them

The files of a log, sorted by name, are in its order.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from beamtree.files.atomic import write_concurrently
from beamtree.ingest.arrays import Array, SortedBlock, sort_block
from beamtree.ingest.readers import LogPart, OpenedLog, naming_unreadable
from beamtree.ingest.sources import Location
from beamtree.ingest.times import WHITESPACE

LZ4: Any = "lz4"  # for large files that are read and removed soon

Task = Sequence[LogPart]  # the rows that one call reads


# Tasks


def split_log(log: OpenedLog, rows: int | None) -> list[Task]:
    """The log in tasks of about this many rows, in its order; in a single one if that is None.

    Small files share a task, and large Parquet files are split. The length of other files is unknown: each is a task.
    """
    if rows is None:
        return [log.parts]
    tasks: list[Task] = []
    task: list[LogPart] = []
    filled = 0
    for part in log.parts:
        length = rows if part.path is None else _num_rows(part.path)
        for start in range(0, max(1, length), rows):
            events = part.events if length <= rows else part.events.slice(start, rows)
            task.append(part._replace(events=events))
            filled += min(rows, length - start)
            if 2 * filled > rows:
                tasks.append(task)
                task, filled = [], 0
    return [*tasks, task] if task else tasks


def _num_rows(path: Location) -> int:
    return int(pl.scan_parquet(str(path), glob=False).select(pl.len()).collect().item())


def events_of(task: Task) -> pl.LazyFrame:
    """All rows of a task."""
    return pl.concat([part.events for part in task])


# Ids


def write_distinct(task: Task, column: str, path: Path) -> Path:
    """Write the distinct ids of a column, and how many rows each has."""
    distinct = events_of(task).select(column).group_by(column).len("rows")
    with naming_unreadable(task):
        write_concurrently(path, lambda draft: distinct.sink_parquet(draft, compression=LZ4))
    return path


def number_ids(paths: list[Path], column: str, table: Path) -> tuple[pl.Series, Array, int]:
    """Number the ids of all tasks, and write a table of every id as written, with its number.

    Returns the ids without surrounding white space, sorted, in the order of their numbers; how many rows each has [N];
    and how many spellings were merged.
    """
    ids = pl.scan_parquet(paths, glob=False)
    if len(paths) > 1:
        ids = ids.group_by(column).agg(pl.col("rows").sum())
    spellings = ids.collect(engine="streaming")
    spellings = spellings.with_columns(name=pl.col(column).str.strip_chars(WHITESPACE)).filter(pl.col("name") != "")
    spellings = spellings.sort("name", column).with_columns(number=pl.col("name").rle_id())
    names = spellings.filter(pl.col("number").diff().fill_null(1) != 0)["name"]
    broken = names.str.contains(r"[\r\n]")
    if broken.any():
        owner = "an item" if column == "item" else "a user"
        raise ValueError(f"the id {names.filter(broken)[0]!r} of {owner} contains a line break: remove it")
    spellings.select(column, "number").write_parquet(table, compression=LZ4)
    number, rows = (spellings[name].to_numpy() for name in ("number", "rows"))
    return names, np.bincount(number, rows, len(names)).astype(np.int64), len(spellings) - len(names)


def range_bounds(rows: Array, at_once: int) -> list[int]:
    """The bounds of ranges of users with about `at_once` rows together."""
    ends = np.cumsum(rows)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.searchsorted(ends, np.arange(at_once, total, at_once), side="right")
    bounds: list[int] = np.unique([0, *cuts, len(rows)]).tolist()
    return bounds


# Events


def write_numbered(task: Task, tables: Path, bounds: Sequence[int], at_once: int, path: Path) -> dict[str, int]:
    """Write the usable rows of a task as numbers; returns the number of rows, and of those that are not usable.

    Args:
        task: what is read.
        tables: the folder of user.ids and item.ids.
        bounds: of the ranges of users.
        at_once: rows in memory at once, and in a file.
        path: the beginning of the names of the files.
    """
    events = events_of(task)
    for column in ("user", "item"):
        table = pl.scan_parquet(tables / f"{column}.ids", glob=False)
        events = events.join(table, on=column, how="left", maintain_order="left")
        events = events.drop(column).rename({"number": column})
    all_rows = path.with_name(f"{path.name}.rows")
    with naming_unreadable(task):
        write_concurrently(all_rows, lambda draft: events.sink_parquet(draft, compression=LZ4, maintain_order=True))
    numbered = pl.scan_parquet(all_rows, glob=False)
    missing = {"missing_user": pl.col("user").is_null(), "missing_item": pl.col("item").is_null()}
    if "time" in numbered.collect_schema():
        missing["unreadable_time"] = pl.col("time").is_null()
    usable, counts = pl.lit(True), {"rows": pl.len()}
    for name, condition in missing.items():  # a row counts under its first fault
        counts[name] = (usable & condition).sum()
        usable = usable & ~condition
    report: dict[str, int] = numbered.select(**counts).collect(engine="streaming").row(0, named=True)
    for index, start in enumerate(range(0, report["rows"], at_once)):
        rows = numbered.slice(start, at_once).filter(usable).collect()
        write_concurrently(path.with_name(f"{path.name}-{index:06}"), partial(_write_ranges, rows, bounds))
    all_rows.unlink()
    return report


def _write_ranges(events: pl.DataFrame, bounds: Sequence[int], path: Path) -> None:
    """Write events in the order of the ranges of their users."""
    user = events["user"].to_numpy()
    number = np.searchsorted(bounds[1:], user, side="right").astype(np.uint16 if len(bounds) < 1 << 16 else np.uint32)
    order = np.argsort(number, kind="stable")
    begins = np.concatenate([[0], np.cumsum(np.bincount(number, minlength=len(bounds) - 1))]).astype(np.int64)
    with path.open("wb") as file:
        file.write(begins.data)
        for column in ("user", "item", "time"):
            if column in events.columns:
                file.write(events[column].to_numpy()[order].data)


def _read_range(path: Path, num_ranges: int, number: int, times: bool) -> list[Array]:
    """The users, items and, if there are any, times of one range."""
    begins = np.fromfile(path, np.int64, num_ranges + 1)
    start, rows, total = begins[number], begins[number + 1] - begins[number], begins[-1]
    columns, offset = [], begins.nbytes
    for dtype in (np.uint32, np.uint32, *([np.int64] if times else [])):
        size = np.dtype(dtype).itemsize
        columns.append(np.fromfile(path, dtype, rows, offset=offset + start * size))
        offset += total * size
    return columns


def sort_range(
    folder: Path, bounds: Sequence[int], number: int, times: bool, min_events: int, path: Path
) -> SortedBlock:
    """Sort all events of one range of users, read from all files of a folder.

    Args:
        folder: of numbered events.
        bounds: of the ranges of users.
        number: of the range.
        times: whether the log has times.
        min_events: users with fewer are dropped.
        path: the beginning of the names of the files that are written.
    """
    parts = [_read_range(file, len(bounds) - 1, number, times) for file in sorted(folder.iterdir())]
    user, item, *time = (np.concatenate(column) for column in zip(*parts, strict=True))
    return sort_block(bounds[number], bounds[number + 1], user, item, time[0] if times else None, min_events, path)

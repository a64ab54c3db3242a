"""Numbering: ids become numbers, and the numbered events go to files, which are sorted one range of users at a time.

A log is read in tasks, which an executor may run in other processes. Each task writes files of numbered events
(Parquet: user, item, and time, weight and context if the log has them), sorted by user. Their names are in the order of
the log.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from beamtree.files.atomic import write_concurrently
from beamtree.ingest.arrays import TYPES, Array, CleanedLog
from beamtree.ingest.readers import LogPart, OpenedLog, check_lines, naming_unreadable
from beamtree.ingest.times import WHITESPACE

LZ4: Any = "lz4"  # for large files that are read and removed soon
IDS = ("user", "item", "context")  # columns that are numbered
ROW_GROUP = 1 << 16  # rows that are read together: a range of users reads the row groups that contain its users

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
        length = rows
        if part.path is not None:
            length = pl.scan_parquet(str(part.path), glob=False).select(pl.len()).collect().item()
        for start in range(0, max(1, length), rows):
            events = part.events if length <= rows else part.events.slice(start, rows)
            task.append(part._replace(events=events))
            filled += min(rows, length - start)
            if 2 * filled > rows:
                tasks.append(task)
                task, filled = [], 0
    return [*tasks, task] if task else tasks


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
    check_lines(names, "an item" if column == "item" else "a user")
    spellings.select(column, "number").write_parquet(table, compression=LZ4)
    number, rows = (spellings[name].to_numpy() for name in ("number", "rows"))
    return names, np.bincount(number, rows, len(names)).astype(np.int64), len(spellings) - len(names)


# Events


def write_numbered(task: Task, tables: Path, at_once: int, latest: int | None, path: Path) -> dict[str, int]:
    """Write the usable rows of a task as numbers; returns the number of rows, and of those that are not usable.

    `tables` is the folder of user.ids, item.ids and, if events have contexts, context.ids, `at_once` the number of rows
    in memory and in a file, `latest` the time after which events are in the future, where that is known, and `path` the
    beginning of the names of the files.
    """
    events = events_of(task)
    for column in [name for name in IDS if name in events.collect_schema()]:
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
        missing["future_time"] = pl.lit(False) if latest is None else pl.col("time") > latest
    if "weight" in numbered.collect_schema():
        missing["missing_weight"] = pl.col("weight").is_null()
    usable, counts = pl.lit(True), {"rows": pl.len()}
    for name, condition in missing.items():  # a row counts under its first fault
        counts[name] = (usable & condition).sum()
        usable = usable & ~condition
    report: dict[str, int] = numbered.select(**counts).collect(engine="streaming").row(0, named=True)
    for index, start in enumerate(range(0, report["rows"], at_once)):
        rows = numbered.slice(start, at_once).filter(usable).collect().sort("user", maintain_order=True)
        write = partial(rows.write_parquet, compression=LZ4, row_group_size=ROW_GROUP)
        write_concurrently(path.with_name(f"{path.name}-{index:06}"), write)
    all_rows.unlink()
    return report


def numbered_files(folder: Path) -> list[Path]:
    """The files that `write_numbered` wrote, without drafts of a process that was killed."""
    return sorted(file for file in folder.iterdir() if not file.suffix)


class SortedBlock(NamedTuple):
    """The sorted events of users start … stop - 1 in an IPC file; and how many were dropped, by reason."""

    start: int
    stop: int
    path: Path
    dropped: dict[str, int]


def sort_range(folder: Path, start: int, stop: int, min_events: int, path: Path) -> SortedBlock:
    """Write the numbered events of users start … stop - 1, in order, without users with fewer than `min_events`."""
    numbered = pl.scan_parquet(numbered_files(folder), glob=False)
    rows = numbered.filter(pl.col("user").is_between(start, stop - 1)).collect()
    events = sort_events(rows)
    user = events["user"].to_numpy() - start
    count = np.bincount(user, minlength=stop - start)
    few = count < min_events
    write_concurrently(path, events.filter(pl.Series(~few[user])).write_ipc)
    dropped = {
        "duplicates": len(rows) - len(events),
        "users_with_few_events": int((few & (count > 0)).sum()),
        "events_of_users_with_few_events": int(count[few].sum()),
    }
    return SortedBlock(start, stop, path, dropped)


def sort_events(events: pl.DataFrame) -> pl.DataFrame:
    """Events by user, then time, then log order; of rows that are equal but for their context the first is kept.

    `is_new`, where there is such a column, makes no difference either.
    """
    if "time" not in events.columns:
        return events.sort("user", maintain_order=True)
    events = events.sort("time", maintain_order=True).sort("user", maintain_order=True)  # faster than by both at once
    same = (pl.col("user") == pl.col("user").shift()) & (pl.col("time") == pl.col("time").shift())
    same = same.fill_null(False)
    tied = events.select(same | same.shift(-1, fill_value=False)).to_series()  # only ties can be duplicates
    first = np.ones(len(events), bool)
    row = pl.struct(pl.exclude("context", "is_new"))
    first[tied.to_numpy()] = events.filter(tied).select(row.is_first_distinct()).to_series().to_numpy()
    return events.filter(pl.Series(first))


def join_blocks(blocks: Iterable[SortedBlock], num_users: int, num_items: int, work: Path) -> CleanedLog:
    """Append the events of all blocks to the files of `work`; the files of the blocks are removed."""
    lengths, popularity = np.zeros(num_users, np.int64), np.zeros(num_items, np.int64)
    report = {"duplicates": 0, "users_with_few_events": 0, "events_of_users_with_few_events": 0}
    with ExitStack() as stack:
        files = {name: stack.enter_context((work / name).open("wb")) for name in TYPES}
        for start, stop, path, dropped in blocks:
            events = pl.read_ipc(path.read_bytes())  # not mapped to memory, since the file is removed
            path.unlink()
            item = events["item"].to_numpy()
            lengths[start:stop] = np.bincount(events["user"].to_numpy() - start, minlength=stop - start)
            popularity += np.bincount(item, minlength=num_items)
            for name in TYPES.keys() & set(events.columns):
                files[name].write(events[name].to_numpy().data)
            report = {reason: count + dropped[reason] for reason, count in report.items()}
    return CleanedLog(lengths, popularity, report)

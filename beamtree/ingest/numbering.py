"""Ids become numbers, and the numbered events go to files by ranges of users: what one process sorts at once.

A file of numbered events holds rows of the log in their order, those of the first range of users first:

    int64 [R + 1]   where the rows of each range begin
    uint32 [E]      users
    uint32 [E]      items
    int64 [E]       times, where the log has them

The files of a log, sorted by name, are in its order.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from beamtree.files.atomic import write_concurrently
from beamtree.ingest.arrays import Array, Part, Sorted, sort_part
from beamtree.ingest.readers import reading
from beamtree.ingest.shares import Share, events_of
from beamtree.ingest.times import WHITE

LZ4: Any = "lz4"  # large files that are soon read and removed


# Ids


def write_distinct(share: Share, column: str, path: Path) -> Path:
    """The distinct ids of a share's column, and how many rows each has."""
    distinct = events_of(share).select(column).group_by(column).len("rows")
    with reading(share):
        write_concurrently(path, lambda draft: distinct.sink_parquet(draft, compression=LZ4))
    return path


def number_ids(paths: list[Path], column: str, table: Path) -> tuple[pl.Series, Array, int]:
    """Number the ids of all shares: a table of every id as it is written, with its number, is written.

    Gives the trimmed ids, sorted, in the order of numbers; how many rows each has [N]; and how many ways to write ids
    were more than ids.
    """
    ids = pl.scan_parquet(paths, glob=False)
    if len(paths) > 1:
        ids = ids.group_by(column).agg(pl.col("rows").sum())
    found = ids.collect(engine="streaming")
    found = found.with_columns(name=pl.col(column).str.strip_chars(WHITE)).filter(pl.col("name") != "")
    found = found.sort("name", column).with_columns(number=pl.col("name").rle_id())
    names = found.filter(pl.col("number").diff().fill_null(1) != 0)["name"]
    broken = names.str.contains(r"[\r\n]")
    if broken.any():
        whose = "an item" if column == "item" else "a user"
        raise ValueError(f"the id {names.filter(broken)[0]!r} of {whose} has a line break inside: remove it")
    found.select(column, "number").write_parquet(table, compression=LZ4)
    number, rows = (found[name].to_numpy() for name in ("number", "rows"))
    return names, np.bincount(number, rows, len(names)).astype(np.int64), len(found) - len(names)


def ranges(rows: Array, at_once: int) -> list[int]:
    """Where ranges of users begin who have about `at_once` rows together, and where the last one ends."""
    ends = np.cumsum(rows)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.searchsorted(ends, np.arange(at_once, total, at_once), side="right")
    found: list[int] = np.unique([0, *cuts, len(rows)]).tolist()
    return found


# Events


def write_numbered(share: Share, tables: Path, bounds: Sequence[int], at_once: int, path: Path) -> dict[str, int]:
    """Write the usable rows of a share as numbers, `at_once` to a file; gives the counts of all rows, and of faults.

    Args:
        share: what is read.
        tables: the folder of user.ids and item.ids.
        bounds: the ranges of users.
        at_once: rows in memory at once.
        path: what the names of the files begin with.
    """
    events = events_of(share)
    for column in ("user", "item"):
        table = pl.scan_parquet(tables / f"{column}.ids", glob=False)
        events = events.join(table, on=column, how="left", maintain_order="left")
        events = events.drop(column).rename({"number": column})
    whole = path.with_name(f"{path.name}.rows")
    with reading(share):
        write_concurrently(whole, lambda draft: events.sink_parquet(draft, compression=LZ4, maintain_order=True))
    numbered = pl.scan_parquet(whole, glob=False)
    usable, counts = _faults(numbered)
    report: dict[str, int] = numbered.select(**counts).collect(engine="streaming").row(0, named=True)
    for place, start in enumerate(range(0, report["rows"], at_once)):
        some = numbered.slice(start, at_once).filter(usable).collect()
        write_concurrently(path.with_name(f"{path.name}-{place:06}"), partial(_write, some, bounds))
    whole.unlink()
    return report


def _faults(numbered: pl.LazyFrame) -> tuple[pl.Expr, dict[str, pl.Expr]]:
    """Which rows are usable; and the counts of rows, and of those that are not. A row counts under its first fault."""
    missing = {"missing_user": pl.col("user").is_null(), "missing_item": pl.col("item").is_null()}
    if "time" in numbered.collect_schema():
        missing["unreadable_time"] = pl.col("time").is_null()
    usable = pl.lit(True)
    counts = {"rows": pl.len()}
    for name, condition in missing.items():
        counts[name] = (usable & condition).sum()
        usable = usable & ~condition
    return usable, counts


def _write(events: pl.DataFrame, bounds: Sequence[int], path: Path) -> None:
    user = events["user"].to_numpy()
    place = np.searchsorted(bounds[1:], user, side="right").astype(np.uint16 if len(bounds) < 1 << 16 else np.uint32)
    order = np.argsort(place, kind="stable")
    begins = np.concatenate([[0], np.cumsum(np.bincount(place, minlength=len(bounds) - 1))]).astype(np.int64)
    with path.open("wb") as file:
        file.write(begins.data)
        for column in ("user", "item", "time"):
            if column in events.columns:
                file.write(events[column].to_numpy()[order].data)


def sort_range(folder: Path, bounds: Sequence[int], place: int, times: bool, min_events: int, path: Path) -> Sorted:
    """Sort all events of one range of users, which lie in all files of a folder.

    Args:
        folder: of numbered events.
        bounds: the ranges of users.
        place: which of them.
        times: whether the log has times.
        min_events: users with fewer are dropped.
        path: what the names of the files begin with that are written.
    """
    parts = [_read(file, len(bounds) - 1, place, times) for file in sorted(folder.iterdir())]
    user, item, *time = (np.concatenate(column) for column in zip(*parts, strict=True))
    return sort_part(Part(bounds[place], bounds[place + 1], user, item, time[0] if times else None), min_events, path)


def _read(path: Path, count: int, place: int, times: bool) -> list[Array]:
    begins = np.fromfile(path, np.int64, count + 1)
    start, rows, total = begins[place], begins[place + 1] - begins[place], begins[-1]
    found, offset = [], begins.nbytes
    for dtype in (np.uint32, np.uint32, *([np.int64] if times else [])):
        size = np.dtype(dtype).itemsize
        found.append(np.fromfile(path, dtype, rows, offset=offset + start * size))
        offset += total * size
    return found

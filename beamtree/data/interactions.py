"""From a log of (user, item, time) to a prepared folder, by Polars and in little memory.

Ids become numbers first: the distinct ids are in memory, the events stream past them to a file. The rest is numbers,
sorted for one range of users after another. The rules:

- Ids and times are as `opening` gives them, ids without white space around them. A log without times is in order.
- A row is dropped without a user, without an item, without a readable time, or if it repeats the user, item and time
  of an earlier row; then users with fewer than `min_events` rows are. Everything dropped is counted in the report.
- Events at the same time keep the order of the log.
"""

import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from beamtree.data.arrange import AT_ONCE, Part, sort, split_users, summary, write_arrays
from beamtree.data.opening import WHITE, find_files, open_events
from beamtree.data.prepared import SPLITS, write_folder, write_ids

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

"""From a log of (user, item, time) to a prepared folder, by Polars and in little memory.

Ids become numbers first: the distinct ids are in memory, the events stream past them to files. The rest is numbers,
sorted for one range of users after another. An engine does this work, in this process or in many; then all events are
in two files, and what is left is done here. The rules:

- Ids and times are as `readers` gives them, ids without white space around them. A log without times is in order.
- A row is dropped without a user, without an item, without a readable time, or if it repeats the user, item and time
  of an earlier row.
- Items with fewer than `min_item_events` rows are dropped, then users with fewer than `min_events`, until all have
  enough. By default nobody is. Everything dropped is counted in the report.
- Events at the same time keep the order of the log.
- What is left is split as `splits` says.
"""

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from beamtree.data.ids import write_ids
from beamtree.data.prepared import SPLITS, write_folder
from beamtree.errors import short_message
from beamtree.ingest.arrays import AT_ONCE, Kept, Sorted, gather, summary, write_arrays
from beamtree.ingest.engine import HERE, Engine
from beamtree.ingest.filters import drop_few
from beamtree.ingest.frames import NAME as FRAME
from beamtree.ingest.numbering import number_ids, ranges, sort_range, write_distinct, write_numbered
from beamtree.ingest.readers import Opened, Source, find_logs, open_logs
from beamtree.ingest.shares import in_shares
from beamtree.ingest.splits import HALVES, Split, divide

Say = Callable[[str], None]


def prepare(
    sources: Any,
    out: str | Path,
    *,
    names: Sequence[str] | None = None,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    time_format: str | None = None,
    min_events: int | None = None,
    min_item_events: int = 1,
    min_eval_events: int | None = None,
    split: str = "halves",
    val_users: int | None = None,
    test_users: int | None = None,
    seed: int = 0,
    engine: Engine = HERE,
    on_stage: Say = lambda stage: None,
) -> dict[str, Any]:
    """Clean a log, number its users and items, split it, and write a prepared folder; gives its description.

    Args:
        sources: a file or folder (CSV, Parquet, JSON lines), a frame (Polars, pandas, Arrow), or a list of these.
        out: the folder to write; one that was prepared before is replaced.
        names: the columns of text files without a header, as in `columns.FORMATS`; 1, 2, 3, … unless given.
        user: the column of users; found by usual names unless given, like the next two.
        item: the column of items.
        time: the column of times; without one, the rows are taken to be in order.
        time_format: how dates are written, as in strptime, such as "%d/%m/%Y %H:%M"; found out unless given.
        min_events: users with fewer are dropped; nobody unless given.
        min_item_events: items with fewer are dropped; then users and items again, until all have enough.
        min_eval_events: validation and test users of `halves` have at least so many; `min_events`, or where that is not
            given 10, or fewer where too few users have 10.
        split: halves, leave-one-out or time:DATE, as `splits` explains them.
        val_users: how many validate; unless given, 5 % of those who can, at most 1,000, and with leave-one-out all.
        test_users: how many test; the same unless given.
        seed: draws these users; same seed, same files.
        engine: who does the work; this process unless `beamtree.serve.batch` gives another. The files are the same.
        on_stage: hears what is done next.
    """
    _check(min_events, min_item_events)
    if min_eval_events is None and min_events is not None:
        min_eval_events = max(2, min_events)
    plan = Split(split, val_users, test_users, seed, min_eval_events)
    plan.check()
    least = max(min_events or 1, plan.least_events)
    logs = find_logs(sources)

    def fill(folder: Path) -> dict[str, Any]:
        on_stage(f"looking at {len(logs):,} {'log' if len(logs) == 1 else 'logs'}")
        opened = open_logs(logs, names, user, item, time, time_format)
        opened = opened._replace(scale=plan.find_unit(opened.events, opened.scale))
        plan.moment(opened.scale)  # a date that cannot be read is known before an hour of work
        return _fill(folder, opened, least, min_item_events, plan, engine, on_stage)

    with _plain_errors(Path(out)):
        return write_folder(Path(out), fill)


def _check(min_events: int | None, min_item_events: int) -> None:
    if min_events is not None and min_events < 1:
        raise ValueError(f"min_events={min_events}: a user has 1 event at least")
    if min_item_events < 1:
        raise ValueError(f"min_item_events={min_item_events}: an item has 1 event at least")


def _fill(
    folder: Path, opened: Opened, min_events: int, min_item_events: int, split: Split, engine: Engine, on_stage: Say
) -> dict[str, Any]:
    """Write all files of a prepared folder but its description, and give that."""
    work = folder / "work"
    work.mkdir()
    opened = _compute_once(opened, work / "rows.parquet", on_stage)
    user_names, item_names, bounds, report = _number(opened, work, engine, on_stage)
    parts = _sort(work, bounds, opened, min_events if min_item_events == 1 else 1, engine, on_stage)
    kept = gather(parts, len(user_names), len(item_names), work)
    if min_item_events > 1:
        on_stage("dropping items and users with few events")
        kept = drop_few(kept, min_events, min_item_events, work)
    _check_enough(kept, min_events, report)
    kept, sections = divide(split, kept, work, opened.scale)
    num_users, num_items = _check_enough(kept, min_events, report)
    on_stage(f"writing {num_users:,} users with {kept.lengths.sum():,} events")
    users, items = write_arrays(folder, work, kept, sections)
    write_ids(folder / "users.txt", user_names[users])
    write_ids(folder / "items.txt", item_names[items])
    shutil.rmtree(work)
    settings = {**opened.columns._asdict(), "min_events": min_events, "seed": split.seed}
    unusual = {
        "min_item_events": (min_item_events, 1),
        "split": (split.name, HALVES),
        "min_eval_events": (sections.min_eval_events, None),
    }
    return {
        "num_users": num_users,
        "num_items": num_items,
        "num_events": int(kept.lengths.sum()),
        "users": {name: int(np.count_nonzero(take)) for name, take in zip(SPLITS, sections.take, strict=True)},
        "sources": opened.sources,
        "settings": settings | {name: value for name, (value, usual) in unusual.items() if value != usual},
        "report": {**report, **kept.report, "ignored_columns": opened.ignored},
        "summary": summary(kept.lengths, kept.popularity),
    }


def _check_enough(kept: Kept, min_events: int, report: Mapping[str, Any]) -> tuple[int, int]:
    """How many users and items were kept; a ValueError where they are too few."""
    num_users, num_items = (int(np.count_nonzero(counts)) for counts in (kept.lengths, kept.popularity))
    if num_users < 2 or num_items < 2:
        dropped = {**report, **kept.report}
        counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in dropped.items() if count)
        enough = f" with at least {min_events} events (`min_events`)" if min_events > 1 else ""
        raise ValueError(
            f"two users{enough} and two items are needed, "
            f"but {num_users} and {num_items} are left of {counts or 'a log without rows'}"
        )
    return num_users, num_items


@contextmanager
def _plain_errors(out: Path) -> Iterator[None]:
    """Polars' errors as others know them: an OSError where the disk is full, a ValueError for a log it cannot read."""
    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # not of Polars, and plain as it is
            raise
        message, (place, _, _) = short_message(error), str(error).partition("(os error ")
        if place != str(error):
            trouble = place[-200:].rsplit(":", 1)[-1].strip()
            told = OSError(f"{out.resolve().parent} cannot be written: {trouble}")
            raise told from error
        raise ValueError(f"the log cannot be read: {message}") from error


# What an engine does


def _compute_once(opened: Opened, path: Path, on_stage: Say) -> Opened:
    """A log without LazyFrames: the rows of one go to a file, since another reading of it may give other rows."""
    if not opened.lazy:
        return opened
    on_stage("computing the frame")
    opened.events.sink_parquet(path, compression="lz4", maintain_order=True)
    return opened._replace(parts=[Source(FRAME, pl.scan_parquet(path), path)])


def _number(
    opened: Opened, work: Path, engine: Engine, on_stage: Say
) -> tuple[pl.Series, pl.Series, list[int], dict[str, Any]]:
    """The log as numbers, in the folder `numbered`, with every usable row.

    Gives the names behind the numbers of users and of items, the ranges of users that are to be sorted, and a report.
    """
    shares = in_shares(opened, engine.rows)
    names, merged, rows = {}, {}, {}
    for column in ("user", "item"):
        on_stage(f"reading the {column}s")
        paths = [work / f"{column}-{place:06}.ids" for place in range(len(shares))]
        asked = [(share, column, path) for share, path in zip(shares, paths, strict=True)]
        done = list(engine.run(write_distinct, asked))
        names[column], rows[column], merged[f"merged_{column}s"] = number_ids(done, column, work / f"{column}.ids")
    on_stage(f"numbering {len(names['user']):,} users and {len(names['item']):,} items in the log")
    bounds = ranges(rows["user"], AT_ONCE)
    (work / "numbered").mkdir()
    at_once = math.ceil(AT_ONCE / 4)
    places = (work / "numbered" / f"{place:06}" for place in range(len(shares)))
    jobs = [(share, work, bounds, at_once, path) for share, path in zip(shares, places, strict=True)]
    counts = list(engine.run(write_numbered, jobs))
    report = {name: sum(each[name] for each in counts) for name in counts[0]}
    return names["user"], names["item"], bounds, report | merged


def _sort(
    work: Path, bounds: list[int], opened: Opened, min_events: int, engine: Engine, on_stage: Say
) -> Iterator[Sorted]:
    """The log in order, in parts of about AT_ONCE events, each with all the events of a range of users."""
    times = opened.columns.time is not None
    asked = [(work / "numbered", bounds, n, times, min_events, work / f"sorted-{n:06}") for n in range(len(bounds) - 1)]
    done = iter(engine.run(sort_range, asked))
    for part in range(len(asked)):
        on_stage(f"sorting, part {part + 1} of {len(asked)}")
        yield next(done)

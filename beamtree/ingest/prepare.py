"""From a log of (user, item, time) to a prepared folder, with Polars and in little memory.

First, ids become numbers: the distinct ids are in memory, and the events stream past them to files. The numbers are
sorted for one range of users after another. An executor runs this work, in this process or in many. Then all events are
in two files, and the rest is done here. The rules:

- Ids and times are read by `readers`; white space around ids is removed. A log without times is in order.
- A row is dropped if it has no user, no item or no readable time, if it is dated in the future, or if it repeats an
  earlier row.
- Where events have weights, dislikes are kept apart: they are no events, and their users do not get these items.
- Items with fewer than `min_item_events` rows are dropped, then users with fewer than `min_events`, until all have
  enough. By default none are. Everything dropped is counted in the report.
- What the users who are left chose of dropped items, and what anybody dislikes, stays known: see `pairs`. Rows that are
  dropped for themselves (unusable, repeated, of other kinds) count as never happened.
- Events at the same time keep the order of the log.
- The rest is split by `splits`.
"""

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from beamtree.data.prepared import SPLITS, id_types, write_folder
from beamtree.errors import short_message
from beamtree.ingest import arrays
from beamtree.ingest.arrays import (
    Array,
    CleanedLog,
    columns_of,
    k_core,
    mean_size,
    popularity_in_training,
    range_bounds,
    write_data,
)
from beamtree.ingest.columns import Kinds, LogColumns, Target
from beamtree.ingest.contexts import check_contexts
from beamtree.ingest.numbering import (
    IDS,
    SortedBlock,
    events_of,
    join_blocks,
    number_ids,
    numbered_files,
    sort_range,
    split_log,
    write_distinct,
    write_numbered,
)
from beamtree.ingest.readers import LogPart, OpenedLog, are_integers, naming_unreadable, open_logs
from beamtree.ingest.sources import FRAME, find_logs
from beamtree.ingest.splits import HALVES, SplitOptions, split_log_events
from beamtree.ingest.times import WHITESPACE, latest_time

OnStage = Callable[[str], None]


class Executor(NamedTuple):
    """Calls a function of this package with many arguments, here or on a cluster.

    The functions write files that all processes can see, under names that depend only on the arguments. So a call can
    be repeated after the process that ran it was lost.
    """

    run: Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], Iterator[Any]]  # results in the order of arguments
    rows: int | None  # of the log in one task; None: all


LOCAL = Executor(starmap, None)


def prepare(
    sources: Any,
    out: str | Path,
    *,
    names: Sequence[str] | None = None,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    time_format: str | None = None,
    weight: str | None = None,
    kinds: Kinds | None = None,
    target: Target | None = None,
    dislike: float | None = None,
    context: str | Iterable[str] | None = None,
    min_events: int | None = None,
    min_item_events: int = 1,
    min_eval_events: int | None = None,
    split: str | None = None,
    val_users: int | None = None,
    test_users: int | None = None,
    seed: int = 0,
    engine: Executor = LOCAL,
    on_stage: OnStage = lambda stage: None,
) -> dict[str, Any]:
    """Clean a log, number its users and items, split it, and write a prepared folder; returns its description.

    Args:
        sources: a file or folder (CSV, Parquet, JSON lines), a frame (Polars, pandas, Arrow), or a list of these.
        out: the folder to write; one that was prepared before is replaced.
        names: the columns of text files without a header, as in `columns.FORMATS`; 1, 2, 3, … unless given.
        user: the column of users. Default: found by its name.
        item: the column of items. Default: found by its name.
        time: the column of times. Default: found by its name; without one, the rows are assumed to be in order.
        time_format: the format of dates as in strptime, such as "%d/%m/%Y %H:%M". Default: detected.
        weight: the column of what events are worth, such as ratings; of kinds, if `kinds` are given. Default: all
            events count the same.
        kinds: the weight of each kind of event: {"view": 1, "cart": 3, "buy": 10}. Other kinds are dropped.
        target: what is to be predicted: kinds such as "buy", or the lowest weight, such as 4. Default: all events.
        dislike: events of at most this weight are dislikes: they are not part of histories, never predicted, and
            their items are never recommended to their users. Default: 0.
        context: columns of what was known when an event happened, such as ["country", "device", "hour"]; `hour` and
            `day` (1 to 7, from Monday) are taken from the times, in UTC, if no column has that name. Requests can give
            theirs. Default: none.
        min_events: users with fewer are dropped; none unless given.
        min_item_events: items with fewer are dropped; then users and items again, until all have enough.
        min_eval_events: minimum of events of validation and test users of `halves`; unless given `min_events`, or 10,
            or fewer if too few users have 10.
        split: halves, leave-one-out, time, time:30d, time:DATE or pairs:0.1, see `splits`. Default: time, which holds
            out the newest tenth of the events, where the log has a clock and at least 200 users have events before and
            after that; pairs:0.1 where the log has no times and its rows are in no order; halves elsewhere.
        val_users: how many validate; unless given, 5 % of the eligible users, at most 1,000; with leave-one-out all; in
            a split by time or of pairs all who do not test, at most 2,000.
        test_users: how many test; the same unless given, but in a split by time or of pairs a quarter, at most 1,000.
        seed: draws these users; same seed, same files.
        engine: runs the work, here unless given; `beamtree.batch` has one for Ray. The files are the same.
        on_stage: called with the name of each stage.
    """
    if min_events is not None and min_events < 1:
        raise ValueError(f"min_events={min_events} must be at least 1")
    if min_item_events < 1:
        raise ValueError(f"min_item_events={min_item_events} must be at least 1")
    if min_eval_events is None and min_events is not None:
        min_eval_events = max(2, min_events)
    elif min_eval_events is not None and split is None:
        split = HALVES
    options = SplitOptions(split, val_users, test_users, seed, min_eval_events)
    options.check()
    least = max(min_events or 1, options.min_train_events)
    logs = find_logs(sources)
    columns = LogColumns(
        user=user, item=item, time=time, time_format=time_format,
        weight=weight, kinds=kinds, target=target, dislike=dislike, context=context,
    )  # fmt: skip

    def fill(folder: Path) -> dict[str, Any]:
        on_stage(f"opening {len(logs):,} {'log' if len(logs) == 1 else 'logs'}")
        log = open_logs(logs, columns, names)
        log = log._replace(scale=options.with_unit(log.events, log.scale))
        options.check_times(log.scale)  # so that a wrong date is an error now, and not after an hour of work
        return _fill(folder, log, least, min_item_events, options, engine, on_stage)

    with _translate_errors(Path(out)):
        return write_folder(Path(out), fill)


def _fill(
    folder: Path,
    log: OpenedLog,
    min_events: int,
    min_item_events: int,
    split: SplitOptions,
    executor: Executor,
    on_stage: OnStage,
) -> dict[str, Any]:
    """Write all files of a prepared folder but its description, which is returned."""
    work = folder / "work"
    work.mkdir()
    if log.has_lazy_frame:  # collected once, since reading it again may give other rows
        on_stage("computing the frame")
        path = work / "rows.parquet"
        log.events.sink_parquet(path, compression="lz4", maintain_order=True)
        log = log._replace(parts=[LogPart(FRAME, pl.scan_parquet(path), path)])
    num_dislikes = 0
    if log.weights is not None:
        on_stage("reading the dislikes")
        log, num_dislikes = _without_dislikes(log, work)
    names, bounds, report = _number(log, work, executor, on_stage)
    if log.weights is not None:
        report |= {"rows": report["rows"] + num_dislikes, "dislikes": num_dislikes}
    enough = min_events if min_item_events == 1 else 1
    ranges = list(pairwise(bounds))
    jobs = [(work / "numbered", *users, enough, work / f"sorted-{n:06}") for n, users in enumerate(ranges)]
    sorted_blocks = iter(executor.run(sort_range, jobs))

    def blocks() -> Iterator[SortedBlock]:
        for number in range(len(ranges)):
            on_stage(f"sorting, part {number + 1} of {len(ranges)}")
            yield next(sorted_blocks)

    cleaned = join_blocks(blocks(), len(names["user"]), len(names["item"]), work)
    if min_item_events > 1:
        on_stage("dropping items and users with few events")
        cleaned = k_core(cleaned, min_events, min_item_events, work)
    num_users, num_items = _check_enough(cleaned, min_events, report)
    sections, times = split_log_events(split, cleaned, work, log.scale, names["item"])
    on_stage(f"writing {num_users:,} users with {cleaned.lengths.sum():,} events")
    columns, items = columns_of(work), np.argsort(-cleaned.popularity, kind="stable")[:num_items]
    if len(sections.take) > len(SPLITS):  # items without events in training come after the others
        lengths = cleaned.lengths[cleaned.lengths > 0]
        popularity = popularity_in_training(columns["item"], lengths, sections, len(cleaned.popularity))
        items = items[np.argsort(-popularity[items], kind="stable")]
    pairs = {} if not num_dislikes else {"dislikes.npy": pl.scan_parquet(work / "dislikes", glob=False)}
    if cleaned.report.get("items_with_few_events"):
        users = np.flatnonzero(cleaned.lengths)
        pairs["seen.npy"] = _events_of_other_items(work, users, items, names["user"], names["item"])
    settings = {**log.columns._asdict(), "min_events": min_events, "seed": split.seed}
    settings |= {} if log.weights is None else log.weights.settings()
    settings |= {"context": list(log.context)} if log.context else {}
    optional = {
        "min_item_events": (min_item_events, 1),
        "split": (sections.name, HALVES),
        "min_eval_events": (sections.min_eval_events, None),
    }
    about = {
        "sources": log.names,
        "id_types": id_types({role: role in log.numeric and are_integers(names[role]) for role in IDS[:2]}),
        "settings": settings | {name: value for name, (value, default) in optional.items() if value != default},
        "report": {**report, **cleaned.report, "ignored_columns": log.ignored},
    }
    if times is not None:
        about["times"] = times.describe(sections.cut) | ({} if sections.both is None else {"both": sections.both})
    mean_weight = None if log.weights is None else mean_size(columns["weight"], cleaned.lengths)
    description = write_data(folder, columns, cleaned, sections, items, names, pairs, mean_weight, about)
    shutil.rmtree(work)
    return description


def _without_dislikes(log: OpenedLog, work: Path) -> tuple[OpenedLog, int]:
    """The log without dislikes, which are written to a file; and how many there are."""
    is_dislike = pl.col("weight").eq(0).fill_null(False)
    ids = [pl.col(name).str.strip_chars(WHITESPACE) for name in ("user", "item")]
    dislikes = pl.concat([part.events.filter(is_dislike).select(ids) for part in log.parts])
    with naming_unreadable(log.parts):
        dislikes.sink_parquet(work / "dislikes", compression="lz4")
    parts = [part._replace(events=part.events.filter(~is_dislike)) for part in log.parts]
    count: int = pl.scan_parquet(work / "dislikes", glob=False).select(pl.len()).collect().item()
    return log._replace(events=log.events.filter(~is_dislike), parts=parts), count


def _events_of_other_items(
    work: Path, users: Array, items: Array, user_names: pl.Series, item_names: pl.Series
) -> pl.LazyFrame:
    """The ids of users and items in events of some users [U] with other items than some [M], each pair once."""
    events = pl.scan_parquet(numbered_files(work / "numbered"), glob=False).select("user", "item")
    chosen, others = (
        pl.LazyFrame({name: pl.Series(numbers, dtype=pl.UInt32)}).unique()
        for name, numbers in (("user", users), ("item", np.setdiff1d(np.arange(len(item_names)), items)))
    )
    pairs = events.join(others, on="item", how="semi").join(chosen, on="user", how="semi").unique()
    found = pairs.collect(engine="streaming")
    return pl.LazyFrame({"user": user_names.gather(found["user"]), "item": item_names.gather(found["item"])})


def _check_enough(log: CleanedLog, min_events: int, report: Mapping[str, Any]) -> tuple[int, int]:
    """The number of users and items that are left; a ValueError if they are too few."""
    num_users, num_items = (int(np.count_nonzero(counts)) for counts in (log.lengths, log.popularity))
    if num_users < 2 or num_items < 2:
        dropped = {**report, **log.report}
        counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in dropped.items() if count)
        enough = f" with at least {min_events} events (`min_events`)" if min_events > 1 else ""
        raise ValueError(
            f"two users{enough} and two items are needed, "
            f"but {num_users} and {num_items} are left of {counts or 'a log without rows'}"
        )
    return num_users, num_items


@contextmanager
def _translate_errors(out: Path) -> Iterator[None]:
    """Errors of Polars as an OSError if the disk is full, and as a ValueError if the log cannot be read."""
    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # not from Polars, and clear
            raise
        message, is_system_error, _ = str(error).partition("(os error ")
        if is_system_error:
            reason = message[-200:].rsplit(":", 1)[-1].strip()
            raise OSError(f"{out.resolve().parent} cannot be written: {reason}") from error
        raise ValueError(f"the log cannot be read: {short_message(error)}") from error


def _number(
    log: OpenedLog, work: Path, executor: Executor, on_stage: OnStage
) -> tuple[dict[str, pl.Series], list[int], dict[str, Any]]:
    """Write every usable row of the log as numbers, into the folder `numbered`.

    Returns the ids of users and of items, and the contexts, in the order of their numbers, the bounds of the ranges of
    users to sort, and a report.
    """
    tasks = split_log(log, executor.rows)
    names, rows, report = {}, {}, dict[str, int]()
    for column in IDS if log.context else IDS[:2]:
        on_stage(f"reading the {column}s")
        jobs = [(task, column, work / f"{column}-{index:06}.ids") for index, task in enumerate(tasks)]
        paths = list(executor.run(write_distinct, jobs))
        names[column], rows[column], report[f"merged_{column}s"] = number_ids(paths, column, work / f"{column}.ids")
    report.pop("merged_contexts", None)  # none is
    check_contexts(len(names.get("context", ())), log.context)
    on_stage(f"numbering {len(names['user']):,} users and {len(names['item']):,} items in the log")
    folder, at_once = work / "numbered", math.ceil(arrays.EVENTS_AT_ONCE / 4)
    folder.mkdir()
    latest = latest_time(events_of(tasks[0]), log.scale) if tasks else None
    numbering_jobs = [(task, work, at_once, latest, folder / f"{index:06}") for index, task in enumerate(tasks)]
    counts = list(executor.run(write_numbered, numbering_jobs))
    report = {name: sum(count[name] for count in counts) for name in counts[0]} | report
    return names, range_bounds(rows["user"]), report

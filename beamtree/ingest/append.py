"""Appending new events to prepared data: old items keep their numbers, and old users their section.

In a split by time the cut moves on, unless it is a date, and other users validate and test. In a split of pairs other
pairs are held out.

New items are numbered after all others, the most events first. New users are drawn for validation and testing as often
as those of the first log were. `min_events` and `min_item_events` are not applied: a new item has few events in its
first days, and would be dropped every night. Everything is read into memory.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch

from beamtree.data import Ids, Prepared
from beamtree.data.csr import entries_of_rows
from beamtree.data.ids import check_integers
from beamtree.data.prepared import SPLITS, id_types, write_folder
from beamtree.data.times import MICRO, convert, unix_unit
from beamtree.ingest.arrays import FILES, Array, CleanedLog, Read, Sections, by_section, count_targets, write_data
from beamtree.ingest.clock import LogTimes, period_seconds
from beamtree.ingest.columns import USUAL_COLUMNS, LogColumns
from beamtree.ingest.contexts import check_contexts
from beamtree.ingest.numbering import sort_events
from beamtree.ingest.pairs import read_pairs
from beamtree.ingest.readers import are_integers, check_lines, open_logs, read_rows
from beamtree.ingest.sources import find_logs
from beamtree.ingest.splits import (
    HALVES,
    LEAVE_ONE_OUT,
    TEST,
    TRAIN,
    VAL,
    SplitOptions,
    cut_in_time,
    leave_one_out,
    pairs_of_users,
)
from beamtree.ingest.times import TimeScale, latest_time


class NothingNewError(ValueError):
    """A log in which nothing is new, because it has no rows, or because all were added before."""

    def __init__(self, folder: Path, rows: int, repeated: int) -> None:
        super().__init__(f"the log adds nothing to {folder}: of its {rows:,} rows {repeated:,} were added before")
        self.rows, self.repeated = rows, repeated


class AppendResult(NamedTuple):
    """What was appended to prepared data."""

    is_new: Array  # which events of the new folder were not in the old one [E]
    events: int  # new ones
    users: int  # new ones
    items: int  # new ones
    repeated: int  # rows that the old data have already
    dropped: int  # rows without a user, an item, a readable time or a weight


def append_log(
    data: Prepared,
    ids: Ids,
    log: Any,
    out: Path,
    columns: LogColumns = USUAL_COLUMNS,
    *,
    names: Sequence[str] | None = None,
) -> AppendResult:
    """Write a folder of prepared data with the events of `data` and those of a new log; a NothingNewError if not one.

    Args:
        data: the old data.
        ids: of the items, those of `data` first; more may follow.
        log: new events, in any form that `prepare` takes, with the columns and kinds of events of the first log.
        out: the folder to write.
        columns: of the new log; those that are not given are as in the first log.
        names: the columns of text files without a header.
    """
    settings = data.description["settings"]
    split = settings.get("split", HALVES)
    options = SplitOptions(split, None, None, settings["seed"])
    if (options.by_time or options.of_pairs) and data.all is None:
        raise ValueError(f"{data.folder} does not have all events of its users: prepare the first log again")
    wanted = columns.or_as_in(settings)
    if wanted.weight is not None and "mean_weight" not in data.description:
        raise ValueError(f"{data.folder} does not record the scale of its weights: prepare the first log again")
    opened = open_logs(find_logs(log), wanted, names)
    rows = read_rows(opened)
    latest = latest_time(rows.lazy(), opened.scale)
    rows_until_now = rows if latest is None else rows.filter(pl.col("time") <= latest)
    usable, disliked = _usable_events(rows_until_now, data)
    events, texts, before = _join(data, ids, usable)
    is_new = events["is_new"].to_numpy()
    pairs = read_pairs(data)
    new_dislikes = disliked.lazy().join(pairs["dislikes.npy"], on=["user", "item"], how="anti").collect()
    if not is_new.any() and not len(new_dislikes):
        repeated = len(usable) + len(disliked)
        if len(rows) and not repeated:
            raise ValueError(f"none of the {len(rows):,} rows of the log can be used: check its users, items and times")
        raise NothingNewError(data.folder, len(rows), repeated)
    pairs["dislikes.npy"] = pl.concat([pairs["dislikes.npy"], new_dislikes.lazy()])
    arrays: dict[str, Read] = {name: events[name].to_numpy().__getitem__ for name in FILES if name in events.columns}
    lengths, popularity = (
        np.bincount(events[role].to_numpy(), minlength=len(texts[role])) for role in ("user", "item")
    )
    times = None
    if "times" in data.description and "time" in arrays:
        unit = data.description["times"]["unit"]
        scale = TimeScale(dates=unit == MICRO, unit=None if unit == MICRO else unit)
        times = LogTimes.of(arrays["time"], lengths, scale)
    if options.by_time:
        assert times is not None
        sections = _sections_by_time(data, options, times, arrays.get("weight"))
    elif options.of_pairs:
        counts = data.description["users"]
        options = options._replace(val_users=counts["val"], test_users=counts["test"])
        sections = pairs_of_users(options, lengths, arrays["item"], arrays.get("weight"), fewer=True)
    else:
        sections = _sections(data, split, lengths, before, arrays.get("weight"))
    report = data.description["report"]
    about = {
        "sources": [*data.description["sources"], *opened.names],
        "id_types": id_types({"user": data.users.integer and are_integers(texts["user"]), "item": ids.integer}),
        "settings": settings,
        "report": {**report, "rows": report["rows"] + len(rows)},
    }
    if times is not None:
        about["times"] = times.describe(sections.cut)
    scaled = {name: data.description[name] for name in ("mean_weight",) if name in data.description}

    def fill(folder: Path) -> dict[str, Any]:
        log, order = CleanedLog(lengths, popularity, {}), np.arange(len(popularity))
        return write_data(folder, arrays, log, sections, order, texts, pairs, None, about) | scaled

    write_folder(out, fill)
    added = int(is_new.sum())
    return AppendResult(
        is_new=np.concatenate(list(by_section(is_new.__getitem__, lengths, sections))),
        events=added,
        users=int((before < 0).sum()),
        items=len(texts["item"]) - len(ids),
        repeated=len(usable) - added,
        dropped=len(rows) - len(usable) - len(disliked),
    )


def _usable_events(rows: pl.DataFrame, data: Prepared) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The events of a log, with times and weights on the scale of the old data; and the dislikes."""
    usable = rows.drop_nulls().filter(pl.col("user") != "", pl.col("item") != "")
    check_lines(usable["user"], "a user")
    check_lines(usable["item"], "an item")
    if "time" in usable.columns:
        usable = usable.sort("time", maintain_order=True)
        has_times = "times.npy" in data.description["files"]
        usable = usable.with_columns(time=_same_unit(data, usable["time"])) if has_times else usable.drop("time")
    if "weight" not in usable.columns:
        return usable, usable.clear().select("user", "item")
    is_dislike, scale = pl.col("weight") == 0, np.float32(1 / data.description["mean_weight"])
    liked = usable.filter(~is_dislike)
    liked = liked.with_columns(weight=pl.Series(liked["weight"].to_numpy() * scale, dtype=pl.Float32))
    return liked, usable.filter(is_dislike).select("user", "item")


def _same_unit(data: Prepared, times: pl.Series) -> pl.Series:
    """New times in the unit of the old ones; a ValueError if only one of the two are Unix times."""
    old = np.load(data.folder / "times.npy", mmap_mode="r")
    if not len(times) or not len(old):
        return times
    before, now = (unix_unit(int(np.median(each))) for each in (old, times.to_numpy()))
    if before != now and (before is None or now is None):
        raise ValueError(f"the times of the log are of another kind than those of {data.folder}: one has dates")
    converted: pl.Series = times if now is None or before is None else convert(times, now, before)
    return converted


def _join(data: Prepared, ids: Ids, usable: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, pl.Series], Array]:
    """The events of old data and of a new log, as numbers and in order, with a column `is_new`.

    Returns also the ids and contexts by number, and the section of each user, -1 for a new one.
    """
    counts = usable.group_by("item").len().filter(~pl.col("item").is_in(ids.names))
    new_items = counts.sort("len", "item", descending=[True, False])["item"]
    if ids.integer:
        check_integers(new_items)
    old, owners, section = _old_events(data)
    users = pl.concat([owners["user"], usable["user"]]).unique().sort()
    texts = {"user": users, "item": pl.concat([pl.Series(ids.names, dtype=pl.String), new_items])}
    if "context" in usable.columns:
        known = pl.Series("context", Ids(data.folder / "contexts.txt").names)
        texts["context"] = pl.concat([known, usable["context"]]).unique(maintain_order=True)
        check_contexts(len(texts["context"]), data.description["settings"]["context"])
    tables = {column: pl.DataFrame({column: each}).with_row_index("number") for column, each in texts.items()}
    for column, table in tables.items():
        usable = usable.join(table, on=column, how="left", maintain_order="left")
        usable = usable.drop(column).rename({"number": column})
    owner = owners.join(tables["user"], on="user", how="left", maintain_order="left")["number"]
    old = old.with_columns(user=owner.gather(old["user"]), is_new=pl.lit(False))
    before = np.full(len(users), -1)
    before[owner.to_numpy()] = section
    return sort_events(pl.concat([old, usable.with_columns(is_new=pl.lit(True)).select(old.columns)])), texts, before


def _old_events(data: Prepared) -> tuple[pl.DataFrame, pl.DataFrame, Array]:
    """The events by row of their user in a table of users; this table; and the section of each of its users.

    A user in several sections is read from the one with the most events.
    """
    sizes = torch.cat([part.events.counts() for part in data.stored]).numpy()
    sections = np.repeat(np.arange(len(data.stored)), [len(part) for part in data.stored])
    owners = pl.DataFrame({"user": data.users.names, "size": sizes}).with_row_index("row")
    owners = owners.sort("size", maintain_order=True).unique("user", keep="last", maintain_order=True).sort("row")
    chosen = owners["row"].to_numpy().astype(np.int64)
    offsets = torch.from_numpy(np.load(data.folder / "offsets.npy"))
    row, entry = entries_of_rows(offsets, torch.from_numpy(chosen))
    columns = {"user": row.numpy().astype(np.uint32)}
    for name, (file, _) in FILES.items():
        if file in data.description["files"]:
            columns[name] = np.load(data.folder / file, mmap_mode="r")[entry.numpy()]
    events = pl.DataFrame(columns).with_columns(pl.col("^(item|context)$").cast(pl.UInt32))
    return events, owners, sections[chosen]


def _sections(data: Prepared, split: str, lengths: Array, before: Array, weights: Read | None) -> Sections:
    """How many of each user's first events each section takes; `before` is the section of an old user, or -1 [U]."""
    settings, counts = data.description["settings"], data.description["users"]
    targets_from = partial(count_targets, weights, lengths)
    if split == LEAVE_ONE_OUT:
        val, test = (None if counts[name] >= counts["train"] else counts[name] for name in ("val", "test"))
        of_last, of_two, enough = targets_from(lengths - 1), targets_from(lengths - 2), lengths >= 3
        options = SplitOptions(split, val, test, settings["seed"])
        sections = leave_one_out(lengths, options, (of_two > of_last) & enough, (of_last > 0) & enough)
        assert sections.cuts is not None
        sections.take[TRAIN, ~enough], sections.cuts[TRAIN, ~enough] = lengths[~enough], lengths[~enough] // 2
        return sections
    eligible = (lengths >= settings.get("min_eval_events", 2)) & (targets_from(lengths // 2) > 0)
    shares = np.array([counts["val"], counts["test"]]) / max(1, int((eligible & (before >= 0)).sum()))
    drawn = np.random.default_rng([settings["seed"], lengths.sum()]).random(len(lengths))
    section = np.where(before >= 0, before, TRAIN)
    is_new = (before < 0) & eligible
    section[is_new & (drawn < shares.sum())] = TEST
    section[is_new & (drawn < shares[0])] = VAL
    section[~eligible] = TRAIN  # also old users: what is to be predicted may now be in the first half
    return Sections(np.where(section == np.arange(len(SPLITS))[:, None], lengths, 0), None, HALVES)


def _sections_by_time(data: Prepared, split: SplitOptions, times: LogTimes, weights: Read | None) -> Sections:
    """A new split at the same date, or at a later cut unless nobody has events before and after that."""
    counts, before = data.description["users"], int(data.description["times"]["cut"])
    split = split._replace(val_users=counts["val"], test_users=counts["test"])
    if not split.point or period_seconds(split.point) is not None:
        with suppress(ValueError):
            return cut_in_time(split, split.cut(times), times, weights, fewer=True)
    return cut_in_time(split, before, times, weights, fewer=True)

"""Numbered events in files, from sorted blocks of users to the arrays of a prepared folder.

The working folder has the files `item` (uint32), `time` (int64) if the log has times, `weight` (float32) if events have
weights, and `context` (uint32) if they have contexts: the events of all users, one user after the other, each user's in
order. A file that is not needed is empty. All functions read and write about EVENTS_AT_ONCE events at a time.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from beamtree.data.ids import write_ids
from beamtree.data.prepared import ALL, SECTIONS
from beamtree.ingest.pairs import write_pairs

EVENTS_AT_ONCE = 1 << 24  # events in memory at once
TYPES = {"item": np.uint32, "time": np.int64, "weight": np.float32, "context": np.uint32}  # of the files of events

FILES: dict[str, tuple[str, type[np.generic]]] = {
    "item": ("events.npy", np.int32), "time": ("times.npy", np.int64),
    "weight": ("weights.npy", np.float32), "context": ("context.npy", np.int32),
}  # fmt: skip
# of a prepared folder, for these columns

Array = npt.NDArray[Any]
Read = Callable[[slice], Array]  # a range of a column of events


class CleanedLog(NamedTuple):
    """Counts of the events in the files, and a report of what was dropped."""

    lengths: Array  # events of each user, 0 for a dropped one [U]
    popularity: Array  # events of each item [M]
    report: dict[str, int]


class Sections(NamedTuple):
    """Which events go into the sections of a prepared folder (SECTIONS, or SPLITS without the last); they overlap."""

    take: Array  # how many of each user's first events; 0 if the user is not in a section [3 or 4, U]
    cuts: Array | None  # how many of these are history, likewise; None: half of them
    name: str  # of the split
    min_eval_events: int | None = None  # of a validation or test user, if users were selected by it
    cut: int | None = None  # of a split by time: from when on events are to be predicted
    both: int | None = None  # users with events before and in the newest tenth, where these are too few for one
    held_out: Array | None = None  # of a split of pairs: which events come last, in all sections but ALL [E]


# Filtering


def range_bounds(counts: Array) -> list[int]:
    """The bounds of ranges of users with about EVENTS_AT_ONCE events together."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.searchsorted(ends, np.arange(EVENTS_AT_ONCE, total, EVENTS_AT_ONCE), side="right")
    bounds: list[int] = np.unique([0, *cuts, len(counts)]).tolist()
    return bounds


def user_ranges(lengths: Array) -> Iterator[tuple[slice, slice]]:
    """Ranges of users with about EVENTS_AT_ONCE events together, and the range of these events in the files."""
    ends = np.cumsum(lengths)
    for start, stop in pairwise(range_bounds(lengths)):
        yield slice(start, stop), slice(int(ends[start] - lengths[start]), int(ends[stop - 1]))


def read_range(path: Path, events: slice) -> Array:
    """A range of a file of events."""
    dtype = np.dtype(TYPES[path.name])
    return np.fromfile(path, dtype, events.stop - events.start, offset=events.start * dtype.itemsize)


def columns_of(work: Path) -> dict[str, Read]:
    """The columns in the files of a working folder."""
    return {name: partial(read_range, work / name) for name in TYPES if (work / name).stat().st_size}


def filter_events(work: Path, lengths: Array, users: Array, items: Array, min_events: int) -> tuple[Array, Array]:
    """Keep the events of some users [U] and items [M], then drop users with fewer than `min_events` left.

    The files are rewritten in place. Returns the new lengths and popularity.
    """
    new_lengths, popularity = np.zeros_like(lengths), np.zeros(len(items), np.int64)
    paths = [work / name for name in columns_of(work)]
    with ExitStack() as stack:
        files = {path: stack.enter_context(path.open("r+b")) for path in paths}
        for rows, events in user_ranges(lengths):
            item, count = read_range(work / "item", events), lengths[rows]
            kept = items[item] & np.repeat(users[rows], count)
            owner = np.repeat(np.arange(len(count)), count)
            left = np.bincount(owner[kept], minlength=len(count))
            enough = left >= min_events
            kept &= enough[owner]
            new_lengths[rows] = np.where(enough, left, 0)
            popularity += np.bincount(item[kept], minlength=len(items))
            for path, file in files.items():
                file.write(read_range(path, events)[kept].data)  # never past what was read
    return new_lengths, popularity


def k_core(log: CleanedLog, min_events: int, min_item_events: int, work: Path) -> CleanedLog:
    """Drop items with fewer than `min_item_events` events, then users with fewer than `min_events`, until none is left.

    Every round reads the remaining events once.
    """
    lengths, popularity, report = log
    report = {**report, "items_with_few_events": 0, "events_of_items_with_few_events": 0}
    everyone = np.ones(len(lengths), bool)
    while True:
        few_items = (popularity > 0) & (popularity < min_item_events)
        few_users = (lengths > 0) & (lengths < min_events)
        if not few_items.any() and not few_users.any():
            return CleanedLog(lengths, popularity, report)
        before, events_of_items = lengths, int(popularity[few_items].sum())
        lengths, popularity = filter_events(work, lengths, everyone, ~few_items, min_events)
        report["items_with_few_events"] += int(few_items.sum())
        report["events_of_items_with_few_events"] += events_of_items
        report["users_with_few_events"] += int(((before > 0) & (lengths == 0)).sum())
        report["events_of_users_with_few_events"] += int(before.sum() - lengths.sum()) - events_of_items


# The files of a prepared folder


def write_data(
    folder: Path,
    columns: Mapping[str, Read],
    log: CleanedLog,
    sections: Sections,
    items: Array,
    names: Mapping[str, pl.Series],
    pairs: Mapping[str, pl.LazyFrame],
    mean_weight: float | None,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Write all files of a prepared folder but its description, which is returned.

    Args:
        folder: to write to.
        columns: of the events, one user after the other.
        log: how many events users and items have.
        sections: of the users who have events.
        items: in the order of their new numbers [M].
        names: the ids of users and items, and the contexts if events have them, by number.
        pairs: the ids of users and items for each file of pairs.
        mean_weight: by which weights are divided; None if events have none.
        about: the log and its settings, for the description.
    """
    users = np.flatnonzero(log.lengths)
    lengths, taken = log.lengths[users], sections.take > 0
    counts, rows = sections.take[taken], np.nonzero(taken)[1]  # section by section
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
    if sections.cuts is not None:
        np.save(folder / "cuts.npy", sections.cuts[taken].astype(np.int64))
    number = np.zeros(len(log.popularity), np.int32)
    number[items] = np.arange(len(items))
    scale = np.float32(1 / (mean_weight or 1))
    final: dict[str, Callable[[Array], Array]] = {"item": number.__getitem__, "weight": lambda weights: weights * scale}
    for name, read in columns.items():
        file, dtype = FILES[name]
        parts = by_section(read, lengths, sections)
        converted = (final[name](part) if name in final else part.astype(dtype, copy=False) for part in parts)
        _save(folder / file, np.dtype(dtype), int(counts.sum()), converted)
    of_rows, of_items = names["user"][users[rows]], names["item"][items]
    write_ids(folder / "users.txt", of_rows)
    write_ids(folder / "items.txt", of_items)
    if "context" in names:
        write_ids(folder / "contexts.txt", names["context"])
    if pairs:
        write_pairs(folder, pairs, of_rows, of_items)
    return {
        "num_users": len(users),
        "num_items": len(items),
        "num_events": int(lengths.sum()),
        "users": {name: int(count) for name, count in zip(SECTIONS, taken.sum(1), strict=False)},
        **about,
        "summary": summarize(log.lengths, log.popularity),
        **({} if mean_weight is None else {"mean_weight": mean_weight}),
    }


def mean_size(weights: Read, lengths: Array) -> float:
    """The mean size of all weights."""
    total = sum(float(np.abs(weights(events), dtype=np.float64).sum()) for _, events in user_ranges(lengths))
    return total / max(1, int(lengths.sum()))


def count_targets(weights: Read | None, lengths: Array, start: Array) -> Array:
    """How many events of each user, from the event number `start` on, may be predicted [U]; without weights all."""
    if weights is None:
        return lengths - start
    counts = np.zeros_like(lengths)
    for users, events in user_ranges(lengths):
        count = lengths[users]
        owner = np.repeat(np.arange(len(count)), count)
        position = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        is_target = (weights(events) > 0) & (position >= start[users][owner])
        counts[users] = np.bincount(owner[is_target], minlength=len(count))
    return counts


def popularity_in_training(items: Read, lengths: Array, sections: Sections, num_items: int) -> Array:
    """How many events of training each item has [M]."""
    train = sections._replace(take=sections.take[:1])
    parts = (np.bincount(part, minlength=num_items) for part in by_section(items, lengths, train))
    return sum(parts, np.zeros(num_items, np.int64))


def by_section(read: Read, lengths: Array, sections: Sections) -> Iterator[Array]:
    """The entries of a column, in ranges: those that the first section takes of each user, then the next."""
    for name, take in zip(SECTIONS, sections.take, strict=False):
        for rows, events in user_ranges(lengths):
            taken, count = take[rows], lengths[rows]
            if taken.any():
                values = read(events)
                if sections.held_out is not None and name != ALL:
                    owner = np.repeat(np.arange(len(count)), count)
                    values = values[np.lexsort((sections.held_out[events], owner))]  # which keeps the order otherwise
                runs = np.stack([taken, count - taken], axis=1).ravel()  # for each user: events taken, then the rest
                yield values[np.repeat(np.arange(len(runs)) % 2 == 0, runs)]


def _save(path: Path, dtype: np.dtype[Any], count: int, parts: Iterator[Array]) -> None:
    """An .npy file by plain writes: on a full disk they raise an error, where a mapped file crashes the process."""
    with path.open("wb") as file:
        header = {"descr": dtype.str, "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            file.write(part.data)


def summarize(lengths: Array, popularity: Array) -> dict[str, Any]:
    """The distribution of events per user, and the share of events of the most popular items."""
    lengths = lengths[lengths > 0]
    bounds = _round_numbers(int(lengths.max()) + 1)
    users, _ = np.histogram(lengths, bounds)
    bars = zip(bounds[:-1], bounds[1:], users.tolist(), strict=True)
    cumulative = np.cumsum(np.sort(popularity[popularity > 0])[::-1])
    tops = [number / 10_000 for number in _round_numbers(10_000)]
    shares = [float(cumulative[math.ceil(top * len(cumulative)) - 1] / cumulative[-1]) for top in tops]
    return {
        "events_per_user": {
            "min": int(lengths.min()),
            "median": float(np.median(lengths)),
            "mean": float(lengths.mean()),
            "p90": float(np.percentile(lengths, 90)),
            "p99": float(np.percentile(lengths, 99)),
            "max": int(lengths.max()),
            "histogram": [{"from": low, "to": high - 1, "users": count} for low, high, count in bars if count],
        },
        "popularity": [{"top": top, "share": share} for top, share in zip(tops, shares, strict=True)],
    }


def _round_numbers(stop: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, … up to the first that is at least `stop`."""
    numbers = [1]
    while numbers[-1] < stop:
        numbers.append(numbers[-1] * 5 // 2 if str(numbers[-1])[0] == "2" else numbers[-1] * 2)
    return numbers

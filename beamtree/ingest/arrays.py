"""Numbered events in files, from sorted blocks of users to the arrays of a prepared folder.

The working folder has the files `item` (uint32), `time` (int64) if the log has times, `weight` (float32) if events have
weights, and `context` (uint32) if they have contexts: the events of all users, one user after the other, each user's in
order. A file that is not needed is empty. All functions read and write about EVENTS_AT_ONCE events at a time.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

EVENTS_AT_ONCE = 1 << 24  # events in memory at once
TYPES = {"item": np.uint32, "time": np.int64, "weight": np.float32, "context": np.uint32}  # of the files of events

Array = npt.NDArray[Any]


class CleanedLog(NamedTuple):
    """Counts of the events in the files, and a report of what was dropped."""

    lengths: Array  # events of each user, 0 for a dropped one [U]
    popularity: Array  # events of each item [M]
    report: dict[str, int]


class Sections(NamedTuple):
    """Which events go into the sections of a prepared folder (SPLITS); they may overlap."""

    take: Array  # how many of each user's first events; 0 if the user is not in a section [3, U]
    cuts: Array | None  # how many of these are history [3, U]; None: half of them
    min_eval_events: int | None = None  # of a validation or test user, if users were selected by it


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


def filter_events(work: Path, lengths: Array, users: Array, items: Array, min_events: int) -> tuple[Array, Array]:
    """Keep the events of some users [U] and items [M], then drop users with fewer than `min_events` left.

    The files are rewritten in place. Returns the new lengths and popularity.
    """
    new_lengths, popularity = np.zeros_like(lengths), np.zeros(len(items), np.int64)
    paths = [work / name for name in TYPES if (work / name).stat().st_size]
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


# The arrays of a prepared folder


def write_arrays(
    folder: Path, work: Path, log: CleanedLog, sections: Sections, mean_weight: float | None = None
) -> tuple[Array, Array]:
    """Write the arrays of a prepared folder; weights are divided by their mean.

    Returns the users of its rows, section by section, and the items in their new order, the most popular first.
    """
    users = np.flatnonzero(log.lengths)
    lengths = log.lengths[users]
    rows = [np.flatnonzero(take) for take in sections.take]
    counts = np.concatenate([take[row] for take, row in zip(sections.take, rows, strict=True)])
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
    if sections.cuts is not None:
        cuts = [cut[row] for cut, row in zip(sections.cuts, rows, strict=True)]
        np.save(folder / "cuts.npy", np.concatenate(cuts).astype(np.int64))
    items = np.argsort(-log.popularity, kind="stable")[: np.count_nonzero(log.popularity)]
    number = np.zeros(len(log.popularity), np.int32)
    number[items] = np.arange(len(items))
    events = (number[item] for item in _by_section(work / "item", lengths, sections.take))
    _save(folder / "events.npy", np.dtype(np.int32), int(counts.sum()), events)
    if (work / "time").stat().st_size:
        times = _by_section(work / "time", lengths, sections.take)
        _save(folder / "times.npy", np.dtype(np.int64), int(counts.sum()), times)
    if mean_weight is not None:
        scale = np.float32(1 / mean_weight)
        weights = (weight * scale for weight in _by_section(work / "weight", lengths, sections.take))
        _save(folder / "weights.npy", np.dtype(np.float32), int(counts.sum()), weights)
    if (work / "context").stat().st_size:
        contexts = (context.astype(np.int32) for context in _by_section(work / "context", lengths, sections.take))
        _save(folder / "context.npy", np.dtype(np.int32), int(counts.sum()), contexts)
    return users[np.concatenate(rows)], items


def mean_size(path: Path, lengths: Array) -> float:
    """The mean size of all weights."""
    total = sum(float(np.abs(read_range(path, events), dtype=np.float64).sum()) for _, events in user_ranges(lengths))
    return total / max(1, int(lengths.sum()))


def count_targets(work: Path, lengths: Array, start: Array) -> Array:
    """How many events of each user, from the event number `start` on, may be predicted [U]."""
    counts = np.zeros_like(lengths)
    for users, events in user_ranges(lengths):
        weight, count = read_range(work / "weight", events), lengths[users]
        owner = np.repeat(np.arange(len(count)), count)
        position = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        counts[users] = np.bincount(owner[(weight > 0) & (position >= start[users][owner])], minlength=len(count))
    return counts


def _by_section(path: Path, lengths: Array, takes: Array) -> Iterator[Array]:
    """The entries of a file, in ranges: those that the first section takes of each user, then the next."""
    for take in takes:
        for rows, events in user_ranges(lengths):
            taken, count = take[rows], lengths[rows]
            if taken.any():
                runs = np.stack([taken, count - taken], axis=1).ravel()  # for each user: events taken, then the rest
                yield read_range(path, events)[np.repeat(np.arange(len(runs)) % 2 == 0, runs)]


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

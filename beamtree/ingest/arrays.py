"""Numbered events into the arrays of a prepared folder: sorted, those of few events dropped, and a summary."""

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from beamtree.files.atomic import write_concurrently

AT_ONCE = 1 << 24  # events in memory at once
TYPES = {"item": np.uint32, "time": np.int64}  # of the two files of events, which lie in the order of users and times

Array = npt.NDArray[Any]


class Part(NamedTuple):
    """All events of the users start … stop - 1, in the order of the log."""

    start: int
    stop: int
    user: Array  # uint32 [E]
    item: Array  # uint32 [E]
    time: Array | None  # int64 [E]


class Kept(NamedTuple):
    """What was kept of a log, and the report of what was not. The events are in the files `item` and `time`."""

    lengths: Array  # events of each user, 0 for one that was dropped [U]
    popularity: Array  # events of each item [M]
    report: dict[str, int]


class Sections(NamedTuple):
    """Which events go into the sections of a prepared folder (SPLITS); they may overlap."""

    take: Array  # how many of each user's first events; 0 where the user is not in a section [3, U]
    cuts: Array | None  # and how many of these are history [3, U]; None: half of them
    min_eval_events: int | None = None  # events of a validation or test user, where that decided who can be drawn


class Sorted(NamedTuple):
    """A part in order, in files whose names begin with `path`; and counts of what was dropped."""

    start: int
    stop: int
    path: Path
    repeated: int
    few_users: int
    few_events: int


def sort_part(part: Part, min_events: int, path: Path) -> Sorted:
    """Write the events of a part, each user's in order, without users of few events, and how many each user has."""
    user, item, time = in_order(part.user, part.item, part.time)
    count = np.bincount(user - part.start, minlength=part.stop - part.start)
    enough = count >= min_events
    kept = enough[user - part.start]
    found = {"item": item[kept], "time": None if time is None else time[kept], "length": np.where(enough, count, 0)}
    for name, column in found.items():
        if column is not None:
            write_concurrently(path.with_name(f"{path.name}.{name}"), partial(_put, column))
    few_users, few_events = int(((count > 0) & ~enough).sum()), int(count[~enough].sum())
    return Sorted(part.start, part.stop, path, len(part.user) - len(user), few_users, few_events)


def _put(column: Array, path: Path) -> None:
    with path.open("wb") as file:
        file.write(column.data)


def gather(parts: Iterable[Sorted], num_users: int, num_items: int, work: Path) -> Kept:
    """Append the events of all parts to the files `item` and `time` in `work`; the files of the parts are removed."""
    lengths, popularity = np.zeros(num_users, np.int64), np.zeros(num_items, np.int64)
    repeated = few_users = few_events = 0
    with (work / "item").open("wb") as item_file, (work / "time").open("wb") as time_file:
        for part in parts:
            repeated, few_users = repeated + part.repeated, few_users + part.few_users
            few_events += part.few_events
            lengths[part.start : part.stop] = _take(part.path, "length")
            item = _take(part.path, "item")
            popularity += np.bincount(item, minlength=num_items)
            item_file.write(item.data)
            if part.path.with_name(f"{part.path.name}.time").exists():
                time_file.write(_take(part.path, "time").data)
    report = {"duplicates": repeated, "users_with_few_events": few_users, "events_of_users_with_few_events": few_events}
    return Kept(lengths, popularity, report)


def _take(path: Path, name: str) -> Array:
    """Read a file of a sorted part, and remove it."""
    file = path.with_name(f"{path.name}.{name}")
    found = np.fromfile(file, TYPES.get(name, np.int64))
    file.unlink()
    return found


def in_order(user: Array, item: Array, time: Array | None) -> tuple[Array, Array, Array | None]:
    """Events by user, then time, then as they came; repeats dropped."""
    if time is None:
        order = np.argsort(user, kind="stable")
        return user[order], item[order], None
    order = np.lexsort((time, user))
    user, item, time = user[order], item[order], time[order]
    first = ~_repeats(user, item, time)
    return user[first], item[first], time[first]


def _repeats(user: Array, item: Array, time: Array) -> Array:
    """Which events repeat the item of an earlier one at the same user and time; users and times are in order."""
    tied = (user[1:] == user[:-1]) & (time[1:] == time[:-1])
    group = np.concatenate([[0], np.cumsum(~tied)])
    rows = np.flatnonzero(np.append(tied, False) | np.insert(tied, 0, False))  # few: only a tie can be a repeat
    rows = rows[np.lexsort((item[rows], group[rows]))]
    same = (group[rows[1:]] == group[rows[:-1]]) & (item[rows[1:]] == item[rows[:-1]])
    repeats = np.zeros(len(user), bool)
    repeats[rows[1:][same]] = True
    return repeats


def pieces(lengths: Array) -> Iterator[tuple[slice, slice]]:
    """Ranges of users who have about AT_ONCE events together, and where these events are in the files."""
    ends = np.cumsum(lengths)
    bounds = np.searchsorted(ends, np.arange(AT_ONCE, ends[-1], AT_ONCE), side="right")
    for start, stop in pairwise(np.unique([0, *bounds, len(lengths)]).tolist()):
        yield slice(start, stop), slice(int(ends[start] - lengths[start]), int(ends[stop - 1]))


def read_piece(path: Path, events: slice) -> Array:
    """Some entries of the file `item` or `time`."""
    dtype = np.dtype(TYPES[path.name])
    return np.fromfile(path, dtype, events.stop - events.start, offset=events.start * dtype.itemsize)


def keep_events(work: Path, lengths: Array, users: Array, items: Array, min_events: int) -> tuple[Array, Array]:
    """Drop all events but those of some users [U] and items [M], then users who have fewer than `min_events` left.

    What is kept moves to the front of the files, in place. Gives the lengths and the popularity that are left.
    """
    left, popularity = np.zeros_like(lengths), np.zeros(len(items), np.int64)
    paths = [work / name for name in TYPES if (work / name).stat().st_size]
    with ExitStack() as stack:
        files = {path: stack.enter_context(path.open("r+b")) for path in paths}
        for some, span in pieces(lengths):
            item, count = read_piece(work / "item", span), lengths[some]
            kept = items[item] & np.repeat(users[some], count)
            owner = np.repeat(np.arange(len(count)), count)
            found = np.bincount(owner[kept], minlength=len(count))
            enough = found >= min_events
            kept &= enough[owner]
            left[some] = np.where(enough, found, 0)
            popularity += np.bincount(item[kept], minlength=len(items))
            for path, file in files.items():
                file.write(read_piece(path, span)[kept].data)  # which ends no later in the file than what was read
    return left, popularity


def write_arrays(folder: Path, work: Path, kept: Kept, sections: Sections) -> tuple[Array, Array]:
    """The arrays of a prepared folder from the files of what was kept.

    Gives the users of its rows, section by section, and the items in their new order, the most popular first.
    """
    users = np.flatnonzero(kept.lengths)
    lengths = kept.lengths[users]
    rows = [np.flatnonzero(take) for take in sections.take]
    counts = np.concatenate([take[row] for take, row in zip(sections.take, rows, strict=True)])
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
    if sections.cuts is not None:
        cuts = [cut[row] for cut, row in zip(sections.cuts, rows, strict=True)]
        np.save(folder / "cuts.npy", np.concatenate(cuts).astype(np.int64))
    items = np.argsort(-kept.popularity, kind="stable")[: np.count_nonzero(kept.popularity)]
    number = np.zeros(len(kept.popularity), np.int32)
    number[items] = np.arange(len(items))
    events = (number[piece] for piece in _by_section(work / "item", lengths, sections.take))
    _save(folder / "events.npy", np.dtype(np.int32), int(counts.sum()), events)
    if (work / "time").stat().st_size:
        times = _by_section(work / "time", lengths, sections.take)
        _save(folder / "times.npy", np.dtype(np.int64), int(counts.sum()), times)
    return users[np.concatenate(rows)], items


def _by_section(path: Path, lengths: Array, takes: Array) -> Iterator[Array]:
    """The entries of a file, piece by piece: those that the first section takes of each user, then the next."""
    for take in takes:
        for some, span in pieces(lengths):
            taken, count = take[some], lengths[some]
            if taken.any():
                ways = np.stack([taken, count - taken], axis=1).ravel()  # of each user: events taken, then those not
                yield read_piece(path, span)[np.repeat(np.arange(len(ways)) % 2 == 0, ways)]


def _save(path: Path, dtype: np.dtype[Any], count: int, pieces: Iterator[Array]) -> None:
    """An .npy file, by plain writes: on a full disk they fail with an error, where a mapped file ends the process."""
    with path.open("wb") as file:
        header = {"descr": dtype.str, "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces:
            file.write(piece.data)


def summary(lengths: Array, popularity: Array) -> dict[str, Any]:
    """How many events users have, and how few items hold how many of them."""
    lengths = lengths[lengths > 0]
    bounds = _round_numbers(int(lengths.max()) + 1)
    users, _ = np.histogram(lengths, bounds)
    bars = zip(bounds[:-1], bounds[1:], users.tolist(), strict=True)
    held = np.cumsum(np.sort(popularity[popularity > 0])[::-1])
    tops = [number / 10_000 for number in _round_numbers(10_000)]
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
        "popularity": [{"top": top, "share": float(held[math.ceil(top * len(held)) - 1] / held[-1])} for top in tops],
    }


def _round_numbers(stop: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, … up to the first that is at least `stop`."""
    numbers = [1]
    while numbers[-1] < stop:
        numbers.append(numbers[-1] * 5 // 2 if str(numbers[-1])[0] == "2" else numbers[-1] * 2)
    return numbers

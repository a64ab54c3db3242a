"""Numbered events into the arrays of a prepared folder: sorted, few events dropped, users split, and a summary."""

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from beamtree.data.prepared import SPLITS

AT_ONCE = 1 << 24  # events in memory at once

Array = npt.NDArray[Any]


class Part(NamedTuple):
    """All events of the users start … stop - 1, in the order of the log."""

    start: int
    stop: int
    user: Array  # uint32 [E]
    item: Array  # uint32 [E]
    time: Array | None  # int64 [E]


class Kept(NamedTuple):
    """What `sort` kept, and the report of what it did not."""

    lengths: Array  # events of each user, 0 for one that was dropped [U]
    popularity: Array  # events of each item [M]
    report: dict[str, int]


def sort(parts: Iterable[Part], num_users: int, num_items: int, min_events: int, work: Path) -> Kept:
    """Append the events of all users, each user's in order, to the files `item` and `time` in `work`."""
    lengths, popularity = np.zeros(num_users, np.int64), np.zeros(num_items, np.int64)
    repeated = few_users = few_events = 0
    with (work / "item").open("wb") as item_file, (work / "time").open("wb") as time_file:
        for part in parts:
            user, item, time = in_order(part.user, part.item, part.time)
            count = np.bincount(user - part.start, minlength=part.stop - part.start)
            enough = count >= min_events
            repeated += len(part.user) - len(user)
            few_users += int(((count > 0) & ~enough).sum())
            few_events += int(count[~enough].sum())
            lengths[part.start : part.stop] = np.where(enough, count, 0)
            kept = enough[user - part.start]
            popularity += np.bincount(item[kept], minlength=num_items)
            item_file.write(item[kept].data)
            if time is not None:
                time_file.write(time[kept].data)
    report = {"duplicates": repeated, "users_with_few_events": few_users, "events_of_users_with_few_events": few_events}
    return Kept(lengths, popularity, report)


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


def split_users(num_users: int, val_users: int | None, test_users: int | None, seed: int) -> Array:
    """The split of each user [U], as a place in SPLITS."""
    usual = min(1000, max(1, num_users // 20)) if num_users > 2 else 0
    val, test = (usual if count is None else count for count in (val_users, test_users))
    if val + test >= num_users:
        raise ValueError(
            f"{val:,} validation and {test:,} test users leave none of {num_users:,} users for training: "
            "lower --val-users or --test-users"
        )
    order = np.random.default_rng(seed).permutation(num_users)
    split = np.zeros(num_users, np.int8)
    split[order[:test]] = SPLITS.index("test")
    split[order[test : test + val]] = SPLITS.index("val")
    return split


def write_arrays(folder: Path, work: Path, kept: Kept, split: Array) -> tuple[Array, Array]:
    """The arrays of a prepared folder from the files that `sort` wrote.

    Gives the users in their new order, by split, and the items in theirs, the most popular first.
    """
    users = np.flatnonzero(kept.lengths)
    lengths = kept.lengths[users]
    rows = np.argsort(split, kind="stable")
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(lengths[rows])]).astype(np.int64))
    items = np.argsort(-kept.popularity, kind="stable")[: np.count_nonzero(kept.popularity)]
    number = np.zeros(len(kept.popularity), np.int32)
    number[items] = np.arange(len(items))
    events = (number[piece] for piece in _by_split(work / "item", np.dtype(np.uint32), lengths, split))
    _save(folder / "events.npy", np.dtype(np.int32), int(lengths.sum()), events)
    if (work / "time").stat().st_size:
        times = _by_split(work / "time", np.dtype(np.int64), lengths, split)
        _save(folder / "times.npy", np.dtype(np.int64), int(lengths.sum()), times)
    return users[rows], items


def _by_split(path: Path, dtype: np.dtype[Any], lengths: Array, split: Array) -> Iterator[Array]:
    """The entries of a file that holds all users' events, piece by piece: those of the first split, then the next."""
    ends = np.cumsum(lengths)
    cuts = np.searchsorted(ends, np.arange(0, ends[-1], AT_ONCE), side="right")
    for place in range(len(SPLITS)):
        for start, stop in pairwise([*np.unique(cuts), len(lengths)]):
            first = ends[start] - lengths[start]
            piece = np.fromfile(path, dtype, ends[stop - 1] - first, offset=first * dtype.itemsize)
            yield piece[np.repeat(split[start:stop] == place, lengths[start:stop])]


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

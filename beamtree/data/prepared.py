"""A prepared data set: a folder of memory-mapped arrays, two lists of ids, and a description.

    description.json   format, counts, settings, the type of the ids, a report of what was dropped, and the files with
                       their checksums
    offsets.npy        int64 [U + 1]: user u's events are offsets[u] … offsets[u + 1]
    events.npy         int32 [E]: item numbers, each user's oldest first
    times.npy          int64 [E], where the log has times
    weights.npy        float32 [E], where events have weights: divided by the `mean_weight` of the description, so 1 on
                       average; below 0 if an event is not to be predicted
    context.npy        int32 [E], where the log was prepared with contexts: the number of the context of each event
    contexts.txt       the distinct contexts, as JSON, one per line; the line is the number
    dislikes.npy       int64 [n, 2], where there are any: the row of a user (the last of several) and an item, sorted;
                       users without events come after the others
    seen.npy           int64 [n, 2], where there are any: the same for items that a user chose, but that were dropped
    dropped_items.txt  the ids of items in these two files that have no events in training, by id; their numbers follow
                       those of items.txt
    dropped_users.txt  the ids of users with dislikes who have no events, by id; their rows follow those of users.txt
    items.txt          one id per line; the line is the item's number: the most events first, then by id; in a split by
                       time the most events in training first; items that were appended come after the others
    users.txt          one id per line, in the order of offsets: training users, then validation, then test, and in a
                       split by time then all users; each by id. One user can be in several of these sections, with a
                       copy of the events that belong there
    cuts.npy           int64 [U]: how many of a user's events are history, if that is not half of them
    summary.png        a picture of the description, if the command wrote one

It is written under another name and moved into place in one step, so a folder with a description is complete. Files are
checked when they are opened, as `files.checksums` describes.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import compress
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beamtree.data.ages import ItemStarts
from beamtree.data.contexts import EventContexts
from beamtree.data.csr import offsets_of
from beamtree.data.events import Events
from beamtree.data.factors import choose_factors, factors
from beamtree.data.ids import Ids, sorted_ids
from beamtree.data.inputs import NO_TIME
from beamtree.data.times import common_unit
from beamtree.data.views import BeforeAfter
from beamtree.files.atomic import check_replaceable
from beamtree.files.checksums import is_read_fully, read_checked_json
from beamtree.files.sealed import check_files, file_checksums, write_sealed_folder
from beamtree.files.staging import remove_leftovers

DESCRIPTION = "description.json"
FORMATS = 2, 1  # that are read, the first is written; 1 has no checksums
REMEDY = "prepare the data again"
ARRAYS = {"offsets.npy", "events.npy", "times.npy", "cuts.npy", "weights.npy", "context.npy"}
PAIRS = ("dislikes.npy", "seen.npy")  # of a user and an item
DROPPED_ITEMS, DROPPED_USERS = "dropped_items.txt", "dropped_users.txt"  # ids that are only in these
FILES = {DESCRIPTION, *ARRAYS, *PAIRS, "items.txt", "users.txt", "contexts.txt", "summary.png"}
FILES |= {DROPPED_ITEMS, DROPPED_USERS}
NEEDED = {"offsets.npy", "events.npy", "items.txt", "users.txt"}
SPLITS = ("train", "val", "test")
CLOCK_SAMPLE = 10_000  # times by which it is seen whether they are a clock
ALL = "all"  # the section of every user with all events, which splits by time have
SECTIONS = (*SPLITS, ALL)
TEXT, INTEGER = "text", "integer"  # types of ids: `id_types` of the description names that of users and of items


@dataclass(frozen=True)
class Prepared:
    """A prepared data set, as `load_data` opens it: arrays are read when they are used."""

    folder: Path
    description: Mapping[str, Any]
    train: BeforeAfter
    val: BeforeAfter
    test: BeforeAfter
    items: Ids
    users: Ids
    dropped_items: Ids  # that users chose or dislike, and that have no events in training
    dropped_users: Ids  # with dislikes, and without events
    pairs: Mapping[str, Tensor]  # those of PAIRS that there are
    all: BeforeAfter | None = None  # every user with all events, where the split keeps them apart
    earlier: "Prepared | None" = None  # what was chosen for fewer events of this log is chosen for these too
    choices: dict[str, Any] = field(default_factory=dict)  # made by validation users, by their names

    def __repr__(self) -> str:
        users = ", ".join(f"{self.description['users'][split]:,} {split}" for split in SPLITS)
        counts = f"{self.num_items:,} items, {self.description['num_events']:,} events"
        return f"Prepared({self.folder.name}: users {users}; {counts})"

    @property
    def num_items(self) -> int:
        return int(self.description["num_items"])

    @cached_property
    def distinct_users(self) -> Ids:
        """The users of all sections, each once, sorted."""
        return sorted_ids(self.users.names, integer=self.users.integer)

    @property
    def sections(self) -> tuple[BeforeAfter, BeforeAfter, BeforeAfter]:
        """The training, validation and test users."""
        return self.train, self.val, self.test

    @property
    def stored(self) -> tuple[BeforeAfter, ...]:
        """All sections, in the order of the rows of users; the last that has a user has the most events of theirs."""
        return self.sections if self.all is None else (*self.sections, self.all)

    @property
    def whole(self) -> tuple[BeforeAfter, ...]:
        """The sections that have every event between them."""
        return self.sections if self.all is None else (self.all,)

    def of_all_events(self) -> "Prepared":
        """The same log, with all events for training: nothing can be chosen on its validation users."""
        return replace(self, train=BeforeAfter(self.joined(self.whole)), earlier=self, choices={})

    @cached_property
    def end(self) -> int:
        """The time of the newest event, in seconds since 1970; NO_TIME where the times are no clock."""
        times, clock = self.train.events.times, self.train.events.clock
        return NO_TIME if times is None or clock is None or not len(times) else int(times.max()) // clock

    @cached_property
    def starts(self) -> ItemStarts | None:
        """When each item began; None where the times are no clock."""
        events = self.train.events
        if events.times is None or events.clock is None:
            return None
        return ItemStarts(cache(lambda: events.starts(self.num_items).numpy()))

    def holds_out(self, users: object) -> bool:
        """Whether these are validation or test users of this split, or some of them."""
        name = users.events.name if isinstance(users, BeforeAfter) else ""
        return name.startswith((self.val.events.name, self.test.events.name))

    def joined(self, sections: Sequence[BeforeAfter]) -> Events:
        """The events of the users of some sections, each user once.

        A user of several sections is taken from the last of them, which has the most events of theirs.
        """
        parts, lengths, weights, times, contexts = [], [], [], [], []
        for view, chosen in zip(sections, self._once(sections), strict=True):
            counts = view.events.counts()
            events = chosen.repeat_interleave(counts)
            parts.append(view.events.item_numbers()[events])
            lengths.append(counts[chosen])
            if (own := view.events.own_weights()) is not None:
                weights.append(own[events])
            if view.events.times is not None:
                times.append(view.events.times[view.events.span()][events.cpu()])
            if view.events.contexts is not None:
                contexts.append(view.events.contexts.number[view.events.span()][events])
        offsets = offsets_of(torch.cat(lengths))
        name = ", ".join(view.events.name for view in sections)
        all_weights, all_times = (torch.cat(each) if len(each) == len(parts) else None for each in (weights, times))
        clock = self.train.events.clock
        result = Events(offsets, torch.cat(parts), name, self.items, all_weights, all_times, clock=clock)
        if self.train.events.contexts is not None:
            result = replace(result, contexts=self.train.events.contexts._replace(number=torch.cat(contexts)))
        return result

    def joined_users(self, sections: Sequence[BeforeAfter]) -> list[str]:
        """The ids of these users, in the same order."""
        masks = zip(sections, self._once(sections), strict=True)
        return [name for view, chosen in masks for name in compress(view.user_names() or (), chosen.tolist())]

    def _once(self, sections: Sequence[BeforeAfter]) -> list[Tensor]:
        """Which users of each section are in none of those after it [U] each."""
        if len(sections) == 1 or len(self.users) == self.description.get("num_users"):  # each is in one section
            return [torch.ones(len(view), dtype=torch.bool) for view in sections]
        masks, later = list[Tensor](), set[str]()
        for view in reversed(sections):
            names = view.user_names() or ()
            masks.append(torch.tensor([name not in later for name in names], dtype=torch.bool))
            later |= set(names)
        return masks[::-1]

    def dislikes(self, users: Sequence[int], ids: Ids | None = None) -> list[list[int]]:
        """The items that each of some users dislikes; a user is a row of `users`, the last of several.

        Items without events in training are among them if `ids` has them. Its first ids are the items of this data.
        """
        return self._items_of("dislikes.npy", users, ids)

    def seen(self, users: Sequence[int], ids: Ids | None = None) -> list[list[int]]:
        """The items that each of some users chose, but that were dropped from training; `users` and `ids` likewise."""
        return self._items_of("seen.npy", users, ids)

    def dislikes_without_events(self, users: Sequence[str], ids: Ids) -> dict[str, list[int]]:
        """The items that those of some users dislike who have no events, by user."""
        found = zip(users, self.dropped_users.find(users), strict=True)
        rows = {user: len(self.users) + row for user, row in found if row is not None}
        return dict(zip(rows, self.dislikes(list(rows.values()), ids), strict=True))

    def _items_of(self, file: str, users: Sequence[int], ids: Ids | None) -> list[list[int]]:
        if file not in self.pairs:
            return [[] for _ in users]
        pairs, known = self.pairs[file], len(self.items)
        rows = torch.tensor(users, dtype=torch.int64)
        bounds = torch.searchsorted(pairs[:, 0].contiguous(), torch.stack([rows, rows + 1])).T.tolist()
        result = []
        for first, last in bounds:
            items = pairs[first:last, 1].tolist()
            dropped = [self.dropped_items.name(item - known) for item in items if item >= known]
            if dropped:
                items = [item for item in items if item < known] + ([] if ids is None else ids.find_known(dropped))
            result.append(items)
        return result

    @cached_property
    def _factors(self) -> tuple[int | None, Tensor]:
        if self.earlier is None:
            return choose_factors(self.train.events, self.val, self.num_items)
        run_length = self.earlier.run_length
        return run_length, factors(self.train.events, self.num_items, run_length=run_length)

    @property
    def factors(self) -> Tensor:
        """Vectors of the items, from what the training users chose together [M, ≤ 64]."""
        return self._factors[1]

    @property
    def run_length(self) -> int | None:
        """How long the runs of events are that the factors count beside whole users; None where they do not."""
        return self._factors[0]


def load_data(folder: str | Path) -> Prepared:
    """Open a folder that `beamtree prepare` wrote."""
    folder = Path(folder)
    remove_leftovers(folder)
    description = read_description(folder)
    check_files(folder, description["files"], REMEDY)
    offsets, events, cuts = open_arrays(folder, description)
    if is_read_fully(events.nbytes) and is_read_fully(offsets.nbytes):
        check_arrays(folder, description, offsets, events, cuts)
    weights = _map(folder / "weights.npy", torch.float32) if "weights.npy" in description["files"] else None
    times = _map(folder / "times.npy", torch.int64) if "times.npy" in description["files"] else None
    number = _map(folder / "context.npy", torch.int32) if "context.npy" in description["files"] else None
    for what, array in (("weights", weights), ("times", times), ("contexts", number)):
        if array is not None and len(array) != len(events):
            raise ValueError(f"{folder} is damaged: it has {len(array):,} {what} of {len(events):,} events; {REMEDY}")
    clock = description.get("times", {}).get("unit")
    if times is not None and "times" not in description:  # prepared before 0.3.0
        clock = common_unit(times[:: max(1, len(times) // CLOCK_SAMPLE)])
    contexts = None
    if number is not None:
        contexts = EventContexts(number, list(map(json.loads, Ids(folder / "contexts.txt").names)))
    types = description.get("id_types", {})  # none in older folders, whose ids are text
    items = Ids(folder / "items.txt", unique=True, integer=types.get("item") == INTEGER)
    users = Ids(folder / "users.txt", integer=types.get("user") == INTEGER)
    names = sections_of(description)
    ends = np.cumsum([0, *(description["users"][name] for name in names)])

    def section(index: int) -> BeforeAfter:
        first, last = ends[index], ends[index + 1]
        name = f"{description['fingerprint']} {names[index]}"
        part = Events(offsets[first : last + 1], events, name, items, weights, times, contexts, clock)
        own_cuts = None if cuts is None else cuts[first:last]
        return BeforeAfter(part, own_cuts, user_ids=users, user_rows=range(first, last))

    train, val, test, *whole = map(section, range(len(names)))
    dropped_items, dropped_users = (
        Ids(folder / file if file in description["files"] else (), unique=True)
        for file in (DROPPED_ITEMS, DROPPED_USERS)
    )
    pairs = {file: _map(folder / file, torch.int64, dim=2) for file in PAIRS if file in description["files"]}
    data = Prepared(
        folder,
        description,
        train,
        val,
        test,
        items,
        users,
        dropped_items,
        dropped_users,
        pairs,
        whole[0] if whole else None,
    )
    if all(is_read_fully(each.nbytes) for each in pairs.values()):
        check_pairs(data)
    return data


def sections_of(description: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the sections of a prepared folder, in the order of the rows of users."""
    return SECTIONS if ALL in description["users"] else SPLITS


def read_description(folder: Path) -> dict[str, Any]:
    """The description of a prepared folder; a ValueError if there is none."""
    path = folder / DESCRIPTION
    if not path.exists():
        raise ValueError(f"{folder} holds no prepared data: make it with `beamtree prepare LOG --out {folder}`")
    description = read_checked_json(path, FORMATS, REMEDY)
    users, files = description.get("users"), description.get("files")
    counts = [description.get("num_items"), description.get("num_events", 0)]
    counts += [users.get(split) for split in sections_of(description)] if isinstance(users, dict) else [None]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError(f"{path} is damaged: a count of users, items or events is missing; {REMEDY}")
    if not isinstance(files, dict) or not NEEDED <= set(files) <= FILES or "fingerprint" not in description:
        raise ValueError(f"{path} is damaged: it does not name the files of prepared data; {REMEDY}")
    return description


def open_arrays(folder: Path, description: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Offsets, events and cuts, mapped to memory; a ValueError if they do not have the lengths of the description."""
    offsets, events = _map(folder / "offsets.npy", torch.int64), _map(folder / "events.npy", torch.int32)
    cuts = _map(folder / "cuts.npy", torch.int64) if "cuts.npy" in description["files"] else None
    users = sum(description["users"][name] for name in sections_of(description))
    fits = len(offsets) == users + 1 and (cuts is None or len(cuts) == users)
    if not fits or int(offsets[0]) != 0 or int(offsets[-1]) != len(events):
        raise ValueError(f"{folder} is damaged: its arrays are not of {users:,} users; {REMEDY}")
    return offsets, events, cuts


def check_arrays(
    folder: Path, description: Mapping[str, Any], offsets: Tensor, events: Tensor, cuts: Tensor | None
) -> None:
    """Raise a ValueError if a number in the arrays is out of range."""
    counts = offsets.diff()
    if len(counts) and int(counts.min()) < 0:
        raise ValueError(f"{folder} is damaged: offsets are not ascending; {REMEDY}")
    if len(events) and not 0 <= int(events.min()) <= int(events.max()) < description["num_items"]:
        raise ValueError(f"{folder} is damaged: an event has an unknown item; {REMEDY}")
    if cuts is not None and len(cuts) and (int(cuts.min()) < 0 or bool((cuts > counts).any())):
        raise ValueError(f"{folder} is damaged: a history is longer than its user's events; {REMEDY}")


def check_pairs(data: Prepared) -> None:
    """Raise a ValueError if a pair of a user and an item is out of range, or not in order."""
    users = sum(map(len, data.stored)) + len(data.dropped_users)
    for file, pairs in data.pairs.items():
        fits = pairs.shape[1] == 2
        if fits and len(pairs):
            row, item = pairs.unbind(1)
            fits = int(row[0]) >= 0 and int(row[-1]) < users and bool((row.diff() >= 0).all())
            fits &= int(item.min()) >= 0 and int(item.max()) < data.num_items + len(data.dropped_items)
        if not fits:
            raise ValueError(f"{data.folder / file} is damaged: it has unknown users or items; {REMEDY}")


def id_types(integer: Mapping[str, bool]) -> dict[str, str]:
    """The types of the ids of users and items, as a description has them."""
    return {role: INTEGER if is_integer else TEXT for role, is_integer in integer.items()}


def check_target(out: Path) -> None:
    """Raise a ValueError unless a folder can be written: it is new, empty, or only has prepared data."""
    check_replaceable(out)
    names = {path.name for path in out.iterdir()} if out.exists() else set()
    others = sorted(names - FILES)
    if others and DESCRIPTION in names:
        raise ValueError(f"{out} holds prepared data and also {others[0]}: move that away, or choose another folder")
    if names and (others or DESCRIPTION not in names):
        raise ValueError(f"{out} exists and holds something else: choose another folder")


def write_folder(out: Path, fill: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Write a prepared folder: `fill` writes its files and returns the description; then it is moved into place."""

    def describe(folder: Path) -> dict[str, Any]:
        description = {"format": FORMATS[0], **fill(folder), "files": file_checksums(folder)}
        digest = hashlib.sha256()
        for path in (folder / name for name in ("offsets.npy", "events.npy", "cuts.npy", "weights.npy", "context.npy")):
            if path.exists():
                with path.open("rb") as file:
                    while block := file.read(1 << 22):
                        digest.update(block)
        return {**description, "fingerprint": digest.hexdigest()[:16]}

    return write_sealed_folder(out, DESCRIPTION, describe, check_target)


def _map(path: Path, dtype: torch.dtype, dim: int = 1) -> Tensor:
    try:
        array = torch.from_numpy(np.load(path, mmap_mode="c"))
    except (ValueError, OSError, TypeError, EOFError, SyntaxError, TokenError) as error:  # numpy parses a header
        raise ValueError(f"{path} is damaged: {REMEDY}") from error
    if array.dtype != dtype or array.dim() != dim:
        raise ValueError(f"{path} is damaged: it is not {'a list' if dim == 1 else 'pairs'} of {dtype}; {REMEDY}")
    return array

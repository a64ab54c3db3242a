"""A prepared data set: a folder of memory-mapped arrays, two lists of ids, and a description.

    description.json   format, counts, settings, the report of what was cleaned, and the files with their sizes
    offsets.npy        int64 [U + 1]: user u's events are offsets[u] … offsets[u + 1]
    events.npy         int32 [E]: item numbers, each user's oldest first
    times.npy          int64 [E], where the log has times
    items.txt          one id per line; the line is the item's number: the most events first, then by id
    users.txt          one id per line, in the order of offsets: training users, then validation, then test; each by id.
                       One user can be in several of these sections, with a copy of the events that belong there
    cuts.npy           int64 [U]: how many of a user's events are history, where that is not half of them
    summary.png        a picture of the description, where the command wrote one

It is written under another name and moved into place in one step, so a folder with a description is whole.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beamtree.data.events import Events
from beamtree.data.factors import choose_factors
from beamtree.data.ids import Ids
from beamtree.data.views import BeforeAfter
from beamtree.files import check_replaceable, flush, read_json, remove, replace_folder

DESCRIPTION = "description.json"
FORMAT = 1
FILES = {DESCRIPTION, "offsets.npy", "events.npy", "times.npy", "items.txt", "users.txt", "cuts.npy", "summary.png"}
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Prepared:
    """A prepared data set, as `load_data` opens it: nothing is read before it is used."""

    folder: Path
    description: Mapping[str, Any]
    train: BeforeAfter
    val: BeforeAfter
    test: BeforeAfter
    items: Ids
    users: Ids

    def __repr__(self) -> str:
        users = ", ".join(f"{self.description['users'][split]:,} {split}" for split in SPLITS)
        counts = f"{self.num_items:,} items, {self.description['num_events']:,} events"
        return f"Prepared({self.folder.name}: users {users}; {counts})"

    @property
    def num_items(self) -> int:
        return int(self.description["num_items"])

    def with_validation(self) -> Events:
        """The events of the training users and of the validation users, each user once: what may be learned from when
        nothing is left to choose.
        """
        first = len(self.train)
        names = np.array(self.users.names[: first + len(self.val)], dtype=object)
        again = np.isin(names[:first], names[first:])  # in both, with more events among the validation users
        parts, lengths = [], []
        for view, kept in ((self.train, ~again), (self.val, np.ones(len(self.val), bool))):
            counts, keep = view.events.counts(), torch.from_numpy(kept)
            parts.append(view.events.item_numbers()[keep.repeat_interleave(counts)])
            lengths.append(counts[keep])
        offsets = torch.nn.functional.pad(torch.cat(lengths).cumsum(0), (1, 0))
        return Events(offsets, torch.cat(parts), f"{self.train.events.name}, val", self.items)

    @cached_property
    def _factors(self) -> tuple[int | None, Tensor]:
        return choose_factors(self.train.events, self.val, self.num_items)

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
    description = read_description(folder)
    for file, size in description["files"].items():
        path = folder / file
        if not path.exists():
            raise ValueError(f"{path} is missing: prepare the data again")
        if path.stat().st_size != size:
            raise ValueError(f"{path} is damaged, {path.stat().st_size:,} of {size:,} bytes: prepare the data again")
    offsets, events = _map(folder / "offsets.npy"), _map(folder / "events.npy")
    cuts = _map(folder / "cuts.npy") if "cuts.npy" in description["files"] else None
    items = Ids(folder / "items.txt")
    ends = np.cumsum([0, *(description["users"][split] for split in SPLITS)])

    def users_of(place: int) -> BeforeAfter:
        first, last = ends[place], ends[place + 1]
        name = f"{description['fingerprint']} {SPLITS[place]}"
        part = Events(offsets[first : last + 1], events, name, items)
        return BeforeAfter(part, None if cuts is None else cuts[first:last])

    train, val, test = map(users_of, range(len(SPLITS)))
    return Prepared(folder, description, train, val, test, items, Ids(folder / "users.txt"))


def read_description(folder: Path) -> dict[str, Any]:
    """The description of a prepared folder; a ValueError in one line where there is none."""
    path = folder / DESCRIPTION
    if not path.exists():
        raise ValueError(f"{folder} holds no prepared data: make it with `beamtree prepare LOG --out {folder}`")
    description: dict[str, Any] = read_json(path, "prepare the data again")
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ValueError(f"{path} is not one of format {FORMAT}, which this version of beamtree reads")
    if not {"files", "users", "fingerprint", "num_items"} <= description.keys():
        raise ValueError(f"{path} is damaged: prepare the data again")
    return description


def check_place(out: Path) -> None:
    """Raise a ValueError where a prepared folder cannot go; one that was prepared before, and holds no more, can."""
    check_replaceable(out)
    there = {path.name for path in out.iterdir()} if out.exists() else set()
    others = sorted(there - FILES)
    if others and DESCRIPTION in there:
        raise ValueError(f"{out} holds prepared data and also {others[0]}: move that away, or choose another folder")
    if there and (others or DESCRIPTION not in there):
        raise ValueError(f"{out} exists and holds something else: choose another folder")


def write_folder(out: Path, fill: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Have `fill` write the files into a new folder and give its description; then move the whole into place."""
    check_place(out)
    out = out.resolve()  # a link stays a link
    draft = out.with_name(f"{out.name}.new-{os.getpid()}")
    remove(draft)  # left by a process that was killed and had our number, as in containers
    draft.mkdir(parents=True)
    try:
        description = {"format": FORMAT, **fill(draft)}
        description["files"] = {path.name: path.stat().st_size for path in sorted(draft.iterdir())}
        description["fingerprint"] = _digest(draft)
        (draft / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
        for path in (*draft.iterdir(), draft):  # the disk holds every file before the folder gets its name
            flush(path)
        check_place(out)  # fill may have taken hours
        replace_folder(out, draft)
    finally:
        try:
            remove(draft)
        except KeyboardInterrupt:  # Polars makes two of one, and the second comes here
            remove(draft)
            raise
    return description


def _map(path: Path) -> Tensor:
    try:
        return torch.from_numpy(np.load(path, mmap_mode="c"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: prepare the data again") from error


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    names = ["offsets.npy", "events.npy", "cuts.npy"]
    for path in (folder / name for name in names if (folder / name).exists()):
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()[:16]

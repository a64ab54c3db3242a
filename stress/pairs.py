"""Two processes at once with one output, and a disk without room."""

import random
import time
from collections.abc import Iterator

from beamtree.files.drafts import remove
from stress.child import LONG, run, start
from stress.kills import COMMANDS, again
from stress.world import World, digest


def trials(world: World, draw: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Two of the same command, the second a moment later."""
    while True:
        name = draw.choice(("prepare", "train", "retrieve", "compare"))
        yield f"two {name}", _pair(world, name, draw.random() * 0.4)


def _pair(world: World, name: str, later: float) -> list[str]:
    words, out = COMMANDS[name]
    place = world.copy()
    remove(place / out)
    first = start(words, place, world.folder / "notes-first")
    time.sleep(later)
    second = start(words, place, world.folder / "notes-second")
    ends = [each.wait(LONG) for each in (first, second)]
    faults = [each.fault for each in ends if each.fault is not None]
    codes = sorted(each.code if each.code is not None else -1 for each in ends)
    if codes[0] != 0:
        faults.append(f"neither came through: {ends[0].said[-200:]}")
    told = [each.said for each in ends if each.code == 2]
    if told and not any(word in told[0] for word in ("another process", "holds a run", "holds something else")):
        faults.append(f"the second was told {told[0].strip()[-200:]}")
    if name != "compare" and digest(place / out) != digest(world.whole / out):
        faults.append("another output")
    return faults + world.close(place)


def full_disks(world: World, draw: random.Random) -> Iterator[tuple[str, list[str]]]:
    """A disk that takes no file larger than so many bytes."""
    while True:
        name = draw.choice(list(COMMANDS))
        yield f"full disk, {name}", _full(world, name, draw.choice((8192, 20_000, 100_000)))


def _full(world: World, name: str, size: int) -> list[str]:
    words, out = COMMANDS[name]
    place = world.copy()
    if name == "train":
        remove(place / out)
    before = digest(place / out)
    notes = world.folder / "notes-full"
    ended = run(words, place, notes, file_limit=size)
    faults = [f"{ended.fault}: {ended.said[-300:]}"] if ended.fault is not None else []
    right = digest(world.whole / out)
    if name in ("prepare", "retrieve") and digest(place / out) not in (before, right):
        faults.append("half an output")
    if ended.code == 0 and name in ("prepare", "train", "retrieve") and digest(place / out) != right:
        faults.append("called done and is not")
    faults += again(name, place, notes)
    return faults + world.close(place)

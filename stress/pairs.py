"""Two processes at once with one output, and a disk without room."""

import random
import shutil
import time
from collections.abc import Iterator

from stress.child import LONG, run, start
from stress.kills import COMMANDS, _remove
from stress.world import World, digest, left_behind


def trials(world: World, draw: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Two of the same command, the second a moment later."""
    while True:
        name = draw.choice(("prepare", "train", "retrieve", "compare"))
        yield f"two {name}", _pair(world, name, draw.random() * 0.4)


def _pair(world: World, name: str, later: float) -> list[str]:
    words, out = COMMANDS[name]
    place = world.copy()
    _remove(place / out)
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
    if left := left_behind(place):
        faults.append(f"left behind: {left[0]}")
    shutil.rmtree(place, ignore_errors=True)
    return faults


def full_disks(world: World, draw: random.Random) -> Iterator[tuple[str, list[str]]]:
    """A disk that takes no file larger than so many bytes."""
    while True:
        name = draw.choice(list(COMMANDS))
        yield f"full disk, {name}", _full(world, name, draw.choice((0, 100, 1000, 5000, 20_000, 100_000)))


def _full(world: World, name: str, size: int) -> list[str]:
    words, out = COMMANDS[name]
    place = world.copy()
    if name == "train":
        _remove(place / out)
    before = digest(place / out)
    notes = world.folder / "notes-full"
    ended = run(words, place, notes, file_limit=max(size, 8192) if size else 8192)
    faults = [f"{ended.fault}: {ended.said[-300:]}"] if ended.fault is not None else []
    right = digest(world.whole / out)
    if name in ("prepare", "retrieve") and digest(place / out) not in (before, right):
        faults.append("half an output")
    if ended.code == 0 and name in ("prepare", "train", "retrieve") and digest(place / out) != right:
        faults.append("called done and is not")
    words = words if name != "train" else (*words, "--resume")
    again = run(words, place, notes)
    if again.code != 0:
        faults.append(f"the next command fails: {again.said[-200:]}")
    if left := left_behind(place):
        faults.append(f"left behind: {left[0]}")
    shutil.rmtree(place, ignore_errors=True)
    return faults

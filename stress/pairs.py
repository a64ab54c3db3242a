"""Two processes at once with one output."""

import random
import time
from collections.abc import Iterator

from beamtree.files.staging import remove
from stress.child import LONG, start
from stress.kills import COMMANDS
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
    if told and not any(
        word in told[0] for word in ("another process", "is already a run", "holds other files", "holds something else")
    ):
        faults.append(f"the second was told {told[0].strip()[-200:]}")
    if name != "compare" and digest(place / out) != digest(world.whole / out):
        faults.append("another output")
    return faults + world.close(place)

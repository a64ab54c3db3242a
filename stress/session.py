"""Trials of every kind in turn, in one process."""

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from stress import damage, disks, kills, pairs
from stress.world import World

KINDS = {"kills": kills.trials, "damage": damage.trials, "pairs": pairs.trials, "disk": disks.trials}
SHARES = {"kills": 5, "damage": 12, "pairs": 1, "disk": 1}  # how often each has its turn


def session(seed: int, end: float, kinds: list[str], each: int | None) -> tuple[Counter[str], Counter[str]]:
    """Trials one after the other until the time is up, or so many of `each` kind: tries and failures."""
    folder = Path(tempfile.mkdtemp(prefix="stress-"))
    tries, failures = Counter[str](), Counter[str]()
    try:
        world, draw = World(folder), random.Random(seed)
        running = {name: KINDS[name](world, draw) for name in kinds}
        for name in _turns(kinds, end, each, random.Random(seed)):
            what, faults = next(running[name])
            tries[what] += 1
            if faults:
                failures[what] += 1
                print(f"FAILED  {what}: {faults[0][:600]}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return tries, failures


def _turns(kinds: list[str], end: float, each: int | None, draw: random.Random) -> Iterator[str]:
    """Whose turn it is."""
    if each is not None:
        yield from (name for name in kinds for _ in range(each))
        return
    turns = [name for name in kinds for _ in range(SHARES[name])]
    while time.time() < end:
        yield draw.choice(turns)

"""One process of the stress test: trials of all kinds in turn."""

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from stress import concurrent_commands, damage, expressions, full_disk, full_journal, kills, payloads, threads
from stress.sandbox import Sandbox

KINDS = {
    "kills": kills.trials,
    "damage": damage.trials,
    "concurrent": concurrent_commands.trials,
    "disk": full_disk.trials,
    "expressions": expressions.trials,
    "payloads": payloads.trials,
    "journal": full_journal.trials,
    "threads": threads.trials,
}
SHARES = {  # how often each is chosen; an expression takes milliseconds, most others seconds
    "kills": 5,
    "damage": 12,
    "concurrent": 1,
    "disk": 1,
    "expressions": 100,
    "payloads": 3,
    "journal": 1,
    "threads": 1,
}


def run_trials(seed: int, end: float, kinds: list[str], each: int | None) -> tuple[Counter[str], Counter[str]]:
    """Run trials until the time `end`, or `each` trials of every kind. Returns the numbers of tries and failures."""
    folder = Path(tempfile.mkdtemp(prefix="stress-"))
    tries, failures = Counter[str](), Counter[str]()
    try:
        sandbox, rng = Sandbox(folder), random.Random(seed)
        running = {name: KINDS[name](sandbox, rng) for name in kinds}
        for name in _order(kinds, end, each, random.Random(seed)):
            description, faults = next(running[name])
            tries[description] += 1
            if faults:
                failures[description] += 1
                print(f"FAILED  {description}: {faults[0][:600]}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return tries, failures


def _order(kinds: list[str], end: float, each: int | None, rng: random.Random) -> Iterator[str]:
    """The kinds of the trials, in order."""
    if each is not None:
        yield from (name for name in kinds for _ in range(each))
        return
    turns = [name for name in kinds for _ in range(SHARES[name])]
    while time.time() < end:
        yield rng.choice(turns)

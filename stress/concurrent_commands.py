"""Two processes that write the same output at the same time."""

import random
import time
from collections.abc import Iterator

from beamtree.files.staging import remove
from stress.forked_command import MAX_SECONDS, start
from stress.kills import COMMANDS
from stress.sandbox import Sandbox, digest


def trials(sandbox: Sandbox, rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Endless trials of the same command twice, the second a moment later: (description, faults)."""
    while True:
        name = rng.choice(("prepare", "train", "retrieve", "compare"))
        yield f"two {name}", _run_twice(sandbox, name, rng.random() * 0.4)


def _run_twice(sandbox: Sandbox, name: str, delay: float) -> list[str]:
    words, out = COMMANDS[name]
    folder = sandbox.copy()
    remove(folder / out)
    first = start(words, folder, sandbox.folder / "logs-first")
    time.sleep(delay)
    second = start(words, folder, sandbox.folder / "logs-second")
    outcomes = [each.wait(MAX_SECONDS) for each in (first, second)]
    faults = [each.fault for each in outcomes if each.fault is not None]
    codes = sorted(each.code if each.code is not None else -1 for each in outcomes)
    if codes[0] != 0:
        faults.append(f"neither succeeded: {outcomes[0].stderr[-200:]}")
    messages = [each.stderr for each in outcomes if each.code == 2]
    if messages and not any(
        text in messages[0]
        for text in ("another process", "is already a run", "holds other files", "holds something else")
    ):
        faults.append(f"an unclear error: {messages[0].strip()[-200:]}")
    if name != "compare" and digest(folder / out) != digest(sandbox.reference / out):
        faults.append("different output")
    return faults + sandbox.close(folder)

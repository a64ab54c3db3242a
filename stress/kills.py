"""Kill commands at file operations and at random moments, then run the same command again."""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from beamtree.files.staging import OLD, remove
from stress.forked_command import MAX_SECONDS, run, start
from stress.sandbox import COMPARE, EVALUATE, PREPARE, RETRIEVE, SIMULATE, TRAIN, Sandbox, digest

COMMANDS = {
    "prepare": (PREPARE, "p"),
    "train": (TRAIN, "run"),
    "retrieve": (RETRIEVE, "results.csv"),
    "compare": (COMPARE, "table"),
    "evaluate": (EVALUATE, "scores.json"),
    "simulate": (SIMULATE, "market.parquet"),
}


def trials(sandbox: Sandbox, rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Endless trials: (description, faults)."""
    log_folder = sandbox.folder / "logs-kills"
    costs = {name: _run_once(sandbox, name, log_folder) for name in COMMANDS}
    while True:
        name = rng.choice(list(COMMANDS))
        has_output = rng.random() < 0.5
        by_call = rng.random() < 0.6
        calls, seconds = costs[name]
        moment = rng.randrange(1, calls + 1) if by_call else rng.random() * seconds
        yield f"kill {name}", _trial(sandbox, name, has_output, moment, log_folder)


def _run_once(sandbox: Sandbox, name: str, log_folder: Path) -> tuple[int, float]:
    folder = sandbox.copy()
    remove(folder / COMMANDS[name][1])
    outcome = run(COMMANDS[name][0], folder, log_folder)
    shutil.rmtree(folder)
    return max(1, outcome.calls), outcome.seconds


def _trial(sandbox: Sandbox, name: str, has_output: bool, moment: float, log_folder: Path) -> list[str]:
    words, out = COMMANDS[name]
    folder = sandbox.copy()
    if not has_output or name == "train":
        remove(folder / out)
    before, right = digest(folder / out), digest(sandbox.reference / out)
    if isinstance(moment, int):
        outcome = run(words, folder, log_folder, kill_at=moment)
    else:
        started = start(words, folder, log_folder)
        time.sleep(moment)
        os.kill(started.process, signal.SIGKILL)
        outcome = started.wait(MAX_SECONDS)
    faults = [] if outcome.fault is None else [outcome.fault]
    now = digest(folder / out)
    moved = (folder / f"{out}{OLD}").exists()
    if name in ("prepare", "retrieve") and now not in (before, right) and not moved:
        faults.append("incomplete output")
    faults += run_again(name, folder, log_folder)
    if name not in ("compare", "evaluate", "simulate") and digest(folder / out) != right:
        faults.append("different output after a kill")
    return faults + sandbox.close(folder)


def run_again(name: str, folder: Path, log_folder: Path) -> list[str]:
    """Run the same command again, which must clean up and succeed. Returns the faults."""
    words = (*COMMANDS[name][0], "--resume") if name == "train" else COMMANDS[name][0]
    outcome = run(words, folder, log_folder)
    if outcome.fault is not None:
        return [f"the next command {outcome.fault}: {outcome.stderr[-300:]}"]
    return [] if outcome.code == 0 else [f"the next command fails: {outcome.stderr.strip().splitlines()[-1]}"]

"""Kill commands at file operations and at random moments, then run the same command again."""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from beamtree.files.staging import OLD, remove
from stress.forked_command import MAX_SECONDS, Outcome, run, start
from stress.sandbox import (
    COMPARE,
    EVALUATE,
    PREPARE,
    RENEW,
    RETRIEVE,
    ROLL_BACK,
    SIMULATE,
    TRAIN,
    Sandbox,
    digest,
    run_digest,
)

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
    renewals = Renewals(sandbox)
    while True:
        name = rng.choice([*COMMANDS, "renew", "renew", "roll-back"])
        if name not in COMMANDS:
            calls, seconds = renewals.costs[name]
            moment = rng.randrange(1, calls + 1) if rng.random() < 0.6 else rng.random() * seconds
            yield f"kill {name}", renewals.trial(name, moment)
            continue
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
    outcome = _run_killed(words, folder, log_folder, moment)
    faults = [] if outcome.fault is None else [outcome.fault]
    now = digest(folder / out)
    moved = (folder / f"{out}{OLD}").exists()
    if name in ("prepare", "retrieve") and now not in (before, right) and not moved:
        faults.append("incomplete output")
    faults += run_again(name, folder, log_folder)
    if name not in ("compare", "evaluate", "simulate") and digest(folder / out) != right:
        faults.append("different output after a kill")
    return faults + sandbox.close(folder)


def _run_killed(words: Sequence[str], folder: Path, log_folder: Path, moment: float) -> Outcome:
    """Kill a command at a file operation, given as an int, or after some seconds."""
    if isinstance(moment, int):
        return run(words, folder, log_folder, kill_at=moment)
    started = start(words, folder, log_folder)
    time.sleep(moment)
    os.kill(started.process, signal.SIGKILL)
    return started.wait(MAX_SECONDS)


class Renewals:
    """Kills of renewals and roll-backs: afterwards it must be clear which run came before which."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.log_folder = sandbox, sandbox.folder / "logs-renewals"
        self.old, self.older = (run_digest(sandbox.reference / name) for name in ("closed", "closed.previous"))
        self.costs = {}
        for name, words in (("renew", RENEW), ("roll-back", ROLL_BACK)):
            folder = sandbox.copy()
            outcome = run(words, folder, self.log_folder)
            if outcome.code != 0:
                raise RuntimeError(f"{' '.join(words)} fails without any damage: {outcome.stderr}")
            self.costs[name] = max(1, outcome.calls), outcome.seconds
            if name == "renew":
                self.new = run_digest(folder / "closed")
            shutil.rmtree(folder)

    def trial(self, name: str, moment: float) -> list[str]:
        """Kill a command at a moment, then roll back. Returns the faults."""
        folder = self.sandbox.copy()
        outcome = _run_killed(RENEW if name == "renew" else ROLL_BACK, folder, self.log_folder, moment)
        faults = [] if outcome.fault is None else [outcome.fault]
        now = run_digest(folder / "closed")
        former = {self.old: self.older, self.new if name == "renew" else self.older: self.old}.get(now)
        if former is None:
            faults.append("the run is neither the old nor the new one")
        places = [run_digest(folder / f"closed{suffix}") for suffix in (".previous", ".kept")]
        if former not in places:
            faults.append("the former run is lost")
        if places[0] == now:
            faults.append("the previous run is the run itself")
        again = run(ROLL_BACK, folder, self.log_folder)
        if again.code != 0:
            faults.append(f"roll-back fails: {again.stderr[-300:]}")
        elif (run_digest(folder / "closed"), run_digest(folder / "closed.previous")) != (former, now):
            faults.append("roll-back does not restore the former run")
        return faults + self.sandbox.close(folder)


def run_again(name: str, folder: Path, log_folder: Path) -> list[str]:
    """Run the same command again, which must clean up and succeed. Returns the faults."""
    words = (*COMMANDS[name][0], "--resume") if name == "train" else COMMANDS[name][0]
    outcome = run(words, folder, log_folder)
    if outcome.fault is not None:
        return [f"the next command {outcome.fault}: {outcome.stderr[-300:]}"]
    return [] if outcome.code == 0 else [f"the next command fails: {outcome.stderr.strip().splitlines()[-1]}"]

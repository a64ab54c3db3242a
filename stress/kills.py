"""Kills: at every call to the file system that Python makes, and at random moments; then the same command again."""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from beamtree.files.staging import OLD, remove
from stress.child import LONG, run, start
from stress.world import COMPARE, EVALUATE, PREPARE, RETRIEVE, SIMULATE, TRAIN, World, digest

COMMANDS = {
    "prepare": (PREPARE, "p"),
    "train": (TRAIN, "run"),
    "retrieve": (RETRIEVE, "found.csv"),
    "compare": (COMPARE, "table"),
    "evaluate": (EVALUATE, "scores.json"),
    "simulate": (SIMULATE, "made.parquet"),
}


def trials(world: World, draw: random.Random) -> Iterator[tuple[str, list[str]]]:
    """(what was tried, what went wrong): without end."""
    notes = world.folder / "notes-kills"
    ends = {name: _once(world, name, notes) for name in COMMANDS}
    while True:
        name = draw.choice(list(COMMANDS))
        there = draw.random() < 0.5  # whether an older output is in place
        by_call = draw.random() < 0.6
        calls, seconds = ends[name]
        moment = draw.randrange(1, calls + 1) if by_call else draw.random() * seconds
        yield f"kill {name}", _trial(world, name, there, moment, notes)


def _once(world: World, name: str, notes: Path) -> tuple[int, float]:
    place = world.copy()
    remove(place / COMMANDS[name][1])
    ended = run(COMMANDS[name][0], place, notes)
    shutil.rmtree(place)
    return max(1, ended.calls), ended.seconds


def _trial(world: World, name: str, there: bool, moment: float, notes: Path) -> list[str]:
    words, out = COMMANDS[name]
    place = world.copy()
    if not there or name == "train":
        remove(place / out)
    before, right = digest(place / out), digest(world.whole / out)
    if isinstance(moment, int):
        ended = run(words, place, notes, kill_at=moment)
    else:
        started = start(words, place, notes)
        time.sleep(moment)
        os.kill(started.process, signal.SIGKILL)
        ended = started.wait(LONG)
    faults = [] if ended.fault is None else [ended.fault]
    now = digest(place / out)
    moved = (place / f"{out}{OLD}").exists()
    if name in ("prepare", "retrieve") and now not in (before, right) and not moved:
        faults.append("half an output")
    faults += again(name, place, notes)
    if name not in ("compare", "evaluate", "simulate") and digest(place / out) != right:
        faults.append("another output after a kill")
    return faults + world.close(place)


def again(name: str, place: Path, notes: Path) -> list[str]:
    """What is wrong with the same command once more, which clears up and ends well."""
    words = (*COMMANDS[name][0], "--resume") if name == "train" else COMMANDS[name][0]
    ended = run(words, place, notes)
    if ended.fault is not None:
        return [f"the next command {ended.fault}: {ended.said[-300:]}"]
    return [] if ended.code == 0 else [f"the next command fails: {ended.said.strip().splitlines()[-1]}"]

"""A disk without room: a small one of memory where mounting is allowed, and files that may not grow."""

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from beamtree.files.staging import remove
from stress.child import run
from stress.kills import COMMANDS, again
from stress.world import World, digest, left_behind

PAGE = 4096
LARGEST = (8192, 20_000, 100_000)  # bytes that a file may have
SPARE = (0, 1, 3, 8, 20, 60)  # pages that are left on a disk


def trials(world: World, draw: random.Random) -> Iterator[tuple[str, list[str]]]:
    """A command on a disk that fills up; then there is room, and the same command again."""
    mounts = can_mount(world.folder / "disk")
    while True:
        name = draw.choice(list(COMMANDS))
        if mounts and draw.random() < 0.5:
            yield f"full tmpfs, {name}", _on_disk(world, name, draw.choice(SPARE))
        else:
            yield f"full disk, {name}", _with_limit(world, name, draw.choice(LARGEST))


def can_mount(place: Path) -> bool:
    """Whether this user may mount a disk of memory."""
    if not mount(place, 16):
        return False
    unmount(place)
    return True


def mount(place: Path, pages: int, *, again: bool = False) -> bool:
    """A disk of so many pages of memory at a place, or one that is there made larger; False where that is refused."""
    place.mkdir(exist_ok=True)
    options = f"{'remount,' if again else ''}size={pages * PAGE}"
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    with suppress(FileNotFoundError):
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    return False


def unmount(place: Path) -> None:
    """Take the disk away, with all that is on it."""
    subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=True)


def _on_disk(world: World, name: str, spare: int) -> list[str]:
    """On a disk that is full but for some pages."""
    place = world.folder / "disk"
    mount(place, 1 << 16)
    try:
        shutil.copytree(world.whole, place, symlinks=True, dirs_exist_ok=True)
        if name == "train":
            remove(place / COMMANDS[name][1])
        known = os.statvfs(place)
        mount(place, known.f_blocks - known.f_bfree + spare, again=True)
        return _tried(world, name, place, None, lambda: mount(place, 1 << 16, again=True))
    finally:
        unmount(place)


def _with_limit(world: World, name: str, size: int) -> list[str]:
    """Where no file may be larger than so many bytes."""
    place = world.copy()
    if name == "train":
        remove(place / COMMANDS[name][1])
    return _tried(world, name, place, size, lambda: None) + world.close(place)


def _tried(world: World, name: str, place: Path, size: int | None, make_room: Callable[[], object]) -> list[str]:
    words, out = COMMANDS[name]
    before, right, notes = digest(place / out), digest(world.whole / out), world.folder / "notes-full"
    ended = run(words, place, notes, file_limit=size)
    faults = [f"{ended.fault}: {ended.said[-300:]}"] if ended.fault is not None else []
    if name in ("prepare", "retrieve") and digest(place / out) not in (before, right):
        faults.append("half an output")
    if ended.code == 0 and name in ("prepare", "train", "retrieve") and digest(place / out) != right:
        faults.append("called done and is not")
    make_room()
    return faults + again(name, place, notes) + [f"left behind: {each}" for each in left_behind(place)[:1]]

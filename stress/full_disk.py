"""Commands on a full disk: a small tmpfs where mounting is allowed, or a limit on the size of files."""

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from beamtree.files.staging import remove
from stress.forked_command import run
from stress.kills import COMMANDS, run_again
from stress.sandbox import RENEW, Sandbox, digest, run_digest, temporary_files

PAGE = 4096
FILE_LIMITS = (8192, 20_000, 100_000)  # bytes
FREE_PAGES = (0, 1, 3, 8, 20, 60)


def trials(sandbox: Sandbox, rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Endless trials of a command on a full disk, repeated when there is space: (description, faults)."""
    mounts = can_mount(sandbox.folder / "disk")
    while True:
        name = rng.choice([*COMMANDS, "renew"])
        if name == "renew":
            yield "full disk, renew", _renew(sandbox, rng.choice(FILE_LIMITS))
        elif mounts and rng.random() < 0.5:
            yield f"full tmpfs, {name}", _on_disk(sandbox, name, rng.choice(FREE_PAGES))
        else:
            yield f"full disk, {name}", _with_limit(sandbox, name, rng.choice(FILE_LIMITS))


def can_mount(folder: Path) -> bool:
    """Whether this user may mount a tmpfs."""
    if not mount(folder, 16):
        return False
    unmount(folder)
    return True


def mount(folder: Path, pages: int, *, resize: bool = False) -> bool:
    """Mount a tmpfs of some pages at a folder, or resize it; False where that is not allowed."""
    folder.mkdir(exist_ok=True)
    options = f"{'remount,' if resize else ''}size={pages * PAGE}"
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    with suppress(FileNotFoundError):
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    return False


def unmount(folder: Path) -> None:
    """Unmount the tmpfs, with all its files."""
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=True)


def _on_disk(sandbox: Sandbox, name: str, free_pages: int) -> list[str]:
    """On a tmpfs with a few free pages."""
    folder = sandbox.folder / "disk"
    mount(folder, 1 << 16)
    try:
        shutil.copytree(sandbox.reference, folder, symlinks=True, dirs_exist_ok=True)
        if name == "train":
            remove(folder / COMMANDS[name][1])
        usage = os.statvfs(folder)
        mount(folder, usage.f_blocks - usage.f_bfree + free_pages, resize=True)
        return _run_and_repeat(sandbox, name, folder, None, lambda: mount(folder, 1 << 16, resize=True))
    finally:
        unmount(folder)


def _with_limit(sandbox: Sandbox, name: str, size: int) -> list[str]:
    """With a limit on the size of files."""
    folder = sandbox.copy()
    if name == "train":
        remove(folder / COMMANDS[name][1])
    return _run_and_repeat(sandbox, name, folder, size, lambda: None) + sandbox.close(folder)


def _renew(sandbox: Sandbox, size: int) -> list[str]:
    """A renewal with a limit on the size of files: the run stays, and one line names its folder."""
    folder, log_folder = sandbox.copy(), sandbox.folder / "logs-full"
    before = run_digest(folder / "closed")
    outcome = run(RENEW, folder, log_folder, file_limit=size)
    faults = [f"{outcome.fault}: {outcome.stderr[-300:]}"] if outcome.fault is not None else []
    if outcome.code != 0 and run_digest(folder / "closed") != before:
        faults.append("failed, and changed the run")
    if outcome.code != 0 and "closed" not in (outcome.stderr.strip().splitlines() or [""])[-1]:
        faults.append(f"does not name the folder: {outcome.stderr[-300:]}")
    if outcome.code != 0 and run(RENEW, folder, log_folder).code != 0:
        faults.append("the next renewal fails")
    return faults + sandbox.close(folder)


def _run_and_repeat(
    sandbox: Sandbox, name: str, folder: Path, size: int | None, free_disk: Callable[[], object]
) -> list[str]:
    words, out = COMMANDS[name]
    before, right, log_folder = digest(folder / out), digest(sandbox.reference / out), sandbox.folder / "logs-full"
    outcome = run(words, folder, log_folder, file_limit=size)
    faults = [f"{outcome.fault}: {outcome.stderr[-300:]}"] if outcome.fault is not None else []
    if name in ("prepare", "retrieve") and digest(folder / out) not in (before, right):
        faults.append("incomplete output")
    if outcome.code == 0 and name in ("prepare", "train", "retrieve") and digest(folder / out) != right:
        faults.append("success without the output")
    free_disk()
    return (
        faults + run_again(name, folder, log_folder) + [f"left behind: {each}" for each in temporary_files(folder)[:1]]
    )

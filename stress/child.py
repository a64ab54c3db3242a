"""A command of beamtree in a forked process: what it said, how it ended, and how to have it killed on the way."""

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

TOUCHES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.truncate", "os.link", "os.symlink"}
HANG = 10.0  # seconds of computing that a command which answers an error may take
LONG = 60.0  # seconds by the clock after which any command hangs, on a machine that does other things too


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int | None  # None: killed by us, or by the clock
    hung: bool
    said: str  # on stderr
    calls: int  # to the file system, as far as Python sees them
    seconds: float  # by the clock
    worked: float = 0.0  # seconds of computing

    @property
    def fault(self) -> str | None:
        """What is wrong with the way it ended, whatever it was asked: None where nothing is."""
        if self.hung:
            return "hangs"
        if "Traceback" in self.said:
            return "traceback"
        if self.code not in (None, 0, 1, 2):
            return f"exit code {self.code}"
        lines = self.said.strip().splitlines()
        if self.code in (1, 2) and not (lines and lines[-1].startswith("beamtree: ")) and "DAMAGED" not in self.said:
            return "fails without a word"
        return None


@dataclass
class Started:
    """A command that runs."""

    process: int
    folder: Path
    began: float

    def wait(self, limit: float) -> Ended:
        """Its end; killed if it takes longer than `limit` seconds."""
        hung, status = False, 0
        while True:
            done, status, used = os.wait4(self.process, os.WNOHANG)
            if done:
                break
            if time.monotonic() - self.began > limit:
                hung = True
                os.kill(self.process, signal.SIGKILL)
                _, status, used = os.wait4(self.process, 0)
                break
            time.sleep(0.005)
        said = (self.folder / "stderr").read_text(errors="replace")
        counted = self.folder / "calls"
        calls = int(counted.read_text() or 0) if counted.exists() else 0
        code = None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return Ended(code, hung, said, calls, time.monotonic() - self.began, used.ru_utime + used.ru_stime)


def start(
    words: Sequence[str], where: Path, notes: Path, *, kill_at: int | None = None, file_limit: int | None = None
) -> Started:
    """Run a command in a folder; `kill_at` its so-manieth call to the file system it dies, before the call is made."""
    notes.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    process = os.fork()
    if process:
        return Started(process, notes, time.monotonic())
    code = 70
    try:
        code = _run(words, where, notes, kill_at, file_limit)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(words: Sequence[str], where: Path, notes: Path, limit: float = LONG, **how: int | None) -> Ended:
    """Run a command to its end."""
    return start(words, where, notes, **how).wait(limit)


def _run(words: Sequence[str], where: Path, notes: Path, kill_at: int | None, file_limit: int | None) -> int:
    for number, name in ((1, "stdout"), (2, "stderr")):
        handle = os.open(notes / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(handle, number)
    os.chdir(where)
    if file_limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    import torch

    from beamtree.cli import main

    torch.set_num_threads(1)
    sys.argv = ["beamtree", *words]
    done = _count(kill_at, str(where))
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else (0 if end.code is None else 1)
    (notes / "calls").write_text(str(done()))
    if kill_at is None and file_limit is None:
        (notes / "modules").write_text("\n".join(sys.modules))
    return code


def import_as(notes: Path) -> None:
    """Import what the last command imported, so that the next ones need not."""
    for name in (notes / "modules").read_text().splitlines():
        with suppress(Exception):
            import_module(name)


def _count(kill_at: int | None, where: str) -> Callable[[], int]:
    """Count the calls that touch files of a folder, and die at one of them."""
    count, on = 0, True

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        if not on or event not in TOUCHES:
            return
        name = os.fsdecode(args[0]) if isinstance(args[0], str | bytes) else ""
        if event == "open" and (not name.startswith(where) and name.startswith("/")):
            return
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)

    def done() -> int:
        nonlocal on
        on = False
        return count

    return done

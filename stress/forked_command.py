"""Run a command of beamtree in a forked process, which can be killed at any file operation."""

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

FILE_EVENTS = {"open"} | {
    f"os.{call}" for call in ("rename", "mkdir", "remove", "rmdir", "chmod", "truncate", "link", "symlink")
}
MAX_CPU_SECONDS = 10.0  # CPU seconds that a command may take to fail
MAX_SECONDS = 300.0  # seconds after which a command counts as hung, also where many others compute


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command."""

    code: int | None  # None: killed
    hung: bool
    stderr: str
    calls: int  # file operations, as far as Python sees them
    seconds: float
    cpu_seconds: float = 0.0

    @property
    def fault(self) -> str | None:
        """What is wrong with this outcome for any command; None where nothing is."""
        if self.hung:
            return "hangs"
        if "Traceback" in self.stderr:
            return "traceback"
        if self.code not in (None, 0, 1, 2):
            return f"exit code {self.code}"
        lines = self.stderr.strip().splitlines()
        if self.code in (1, 2) and not (lines and lines[-1].startswith("beamtree: ")) and "DAMAGED" not in self.stderr:
            return "fails without a message"
        return None


@dataclass
class RunningCommand:
    """A running command."""

    process: int
    log_folder: Path
    start: float

    def wait(self, limit: float) -> Outcome:
        """The outcome; killed after `limit` seconds."""
        hung, status = False, 0
        while True:
            done, status, used = os.wait4(self.process, os.WNOHANG)
            if done:
                break
            if time.monotonic() - self.start > limit:
                hung = True
                os.kill(self.process, signal.SIGKILL)
                _, status, used = os.wait4(self.process, 0)
                break
            time.sleep(0.005)
        stderr = (self.log_folder / "stderr").read_text(errors="replace")
        count = self.log_folder / "calls"
        calls = int(count.read_text() or 0) if count.exists() else 0
        code = None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return Outcome(code, hung, stderr, calls, time.monotonic() - self.start, used.ru_utime + used.ru_stime)


def start(
    words: Sequence[str], folder: Path, log_folder: Path, *, kill_at: int | None = None, file_limit: int | None = None
) -> RunningCommand:
    """Start a command in a folder. It is killed just before its file operation number `kill_at`."""
    log_folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    process = os.fork()
    if process:
        return RunningCommand(process, log_folder, time.monotonic())
    code = 70
    try:
        code = _run(words, folder, log_folder, kill_at, file_limit)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(words: Sequence[str], folder: Path, log_folder: Path, limit: float = MAX_SECONDS, **how: int | None) -> Outcome:
    """Run a command to its end."""
    return start(words, folder, log_folder, **how).wait(limit)


def _run(words: Sequence[str], folder: Path, log_folder: Path, kill_at: int | None, file_limit: int | None) -> int:
    for number, name in ((1, "stdout"), (2, "stderr")):
        handle = os.open(log_folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(handle, number)
    os.chdir(folder)
    if file_limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    import torch

    from beamtree.cli import main

    torch.set_num_threads(1)
    sys.argv = ["beamtree", *words]
    stop_counting = _count_calls(kill_at, str(folder))
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else (0 if end.code is None else 1)
    (log_folder / "calls").write_text(str(stop_counting()))
    if kill_at is None and file_limit is None:
        (log_folder / "modules").write_text("\n".join(sys.modules))
    return code


def import_modules(log_folder: Path) -> None:
    """Import the modules of the last command, so that later ones start faster."""
    for name in (log_folder / "modules").read_text().splitlines():
        with suppress(Exception):
            import_module(name)


def _count_calls(kill_at: int | None, folder: str) -> Callable[[], int]:
    """Count the file operations in a folder, and kill this process at one of them."""
    count, on = 0, True

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        if not on or event not in FILE_EVENTS:
            return
        name = os.fsdecode(args[0]) if isinstance(args[0], str | bytes) else ""
        if event == "open" and (not name.startswith(folder) and name.startswith("/")):
            return
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)

    def stop() -> int:
        nonlocal on
        on = False
        return count

    return stop

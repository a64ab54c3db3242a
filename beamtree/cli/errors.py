"""How the command ends: errors that a user can cause are one line on standard error and exit code 2.

Exit codes: 0 success, 1 training diverged or `check` found damage, 2 an error with a message, 3 `renew` did not
save a worse model, 130 stopped with Ctrl-C.

`run_guarded` covers what cannot be caught inside a process: Linux kills a process that takes too much memory, and
Polars aborts when it gets none. The command runs in a child process, and the parent prints the line.
"""

import ctypes
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import typer

from beamtree.cli.console import printable
from beamtree.distributed.group import PeerLostError, should_report
from beamtree.files.staging import remove_leftovers, remove_leftovers_in
from beamtree.train.loop import DivergedError

MAX_LENGTH = 1000  # characters of an error message
# Commands that may need much memory
GUARDED = {"prepare", "simulate", "train", "renew", "items", "compare", "retrieve"}
CRASHES = {"SIGKILL", "SIGABRT", "SIGSEGV", "SIGBUS"}  # by name: not every system has all of them
PR_SET_PDEATHSIG = 1  # of prctl: a signal when the parent dies


def run(app: typer.Typer) -> NoReturn:
    """Run the command and exit with its code."""
    threading.excepthook = report_thread_error
    warnings.formatwarning = format_warning
    try:
        code = app(standalone_mode=False)
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        print_error(app, message)
        code = 1 if isinstance(error, DivergedError) else 2
        if isinstance(error, PeerLostError):  # waiting for the lost rank would never end
            sys.stdout.flush()
            os._exit(code)
    if code == 130:
        print("stopped", file=sys.stderr)
    sys.exit(code)


def explain(error: Exception) -> str | None:
    """The message for an error that a user can cause; None for a bug, which gets a traceback."""
    text = str(error)
    if isinstance(error, typer.TyperException):
        return error.format_message()
    if isinstance(error, BrokenExecutor):
        return "a worker process died, perhaps out of memory"
    # torch raises RuntimeError where memory is short, and Python where a symbolic link points to itself.
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and re.search(r"allocate memory|out of memory", text[:1000])
    ):
        size = re.search(r"(\d+) bytes|([\d.]+ [KMGT]iB)", text[:1000])
        needed = "" if size is None else f" for {size[2] or f'{int(size[1]) / 2**20:,.0f} MiB'} more"
        return f"out of memory{needed}: use a smaller --batch-size or --beam-size, or a log with fewer events"
    if isinstance(error, RuntimeError) and text.startswith("Symlink loop"):
        return text
    return text if isinstance(error, DivergedError | PeerLostError | ValueError | OSError) else None


def print_error(app: typer.Typer, message: str) -> None:
    """Print a message on one line; only one of several ranks does."""
    if not message or not should_report():  # empty where help was printed instead
        return
    line = printable(" ".join(message[: 10 * MAX_LENGTH].split()))
    line = line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH - 200]} … {line[-190:]}"
    print("beamtree: " + as_flags(app, line), file=sys.stderr)


def as_flags(app: typer.Typer, message: str) -> str:
    """A message of the library with flags for arguments: `val_users` and min_events=1 become options."""
    message = re.sub(r"`([a-z_]+)`", lambda word: _flags(app).get(word[1], word[0]), message)
    # Not inside a path or a call: event_date=2020 may be a folder, and beam(beam_size=3) is one value.
    pattern = r"(?<![\w/.(=-])([a-z_]+)=(?=\S)"
    return re.sub(pattern, lambda word: f"{_flags(app)[word[1]]} " if word[1] in _flags(app) else word[0], message)


@cache
def _flags(app: typer.Typer) -> dict[str, str]:
    """The flag of every argument of any command."""
    flags = {"names": "--format"}
    groups: list[Any] = [typer.main.get_command(app)]
    for group in groups:
        for command in getattr(group, "commands", {}).values():
            groups.append(command)
            flags |= {option.name: option.opts[0] for option in command.params if option.opts[0].startswith("-")}
    return flags


def report_thread_error(error: threading.ExceptHookArgs) -> None:
    """A note for an OSError in a thread of a library, such as TensorBoard's on a full disk."""
    if isinstance(error.exc_value, OSError):
        name = error.thread.name if error.thread is not None else "a thread"
        print(f"note: {name} could not write: {error.exc_value.strerror or error.exc_value}", file=sys.stderr)
    else:
        threading.__excepthook__(error)


def format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning of our own on one line; those of libraries say where they come from."""
    where = "" if "beamtree" in Path(filename).parts else f"{filename}:{lineno}: {category.__name__}: "
    return f"note: {where}{printable(str(message))}\n"


def run_guarded(command: Callable[[], None], arguments: list[str]) -> None:
    """Run a command in a child process; if that crashes, clean up, print a line and exit with 2."""
    if not sys.platform.startswith("linux") or not GUARDED & set(arguments[:1]):
        command()
        return
    sys.stdout.flush()
    parent = os.getpid()
    child = os.fork()
    if not child:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before that call
            os._exit(1)
        command()
        return
    status, memory = _wait(child)
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = signal.Signals(os.WTERMSIG(status))
    if number.name not in CRASHES:  # stopped by somebody: end in the same way
        signal.signal(number, signal.SIG_DFL)
        os.kill(parent, number)
    for argument in arguments:
        path = Path(argument.partition("=")[2] if argument.startswith("--") else argument)
        if path.name:
            remove_leftovers(path)
        if path.is_dir() and path.name:
            remove_leftovers_in(path)
    print(f"beamtree: {_crash_message(number, memory)}", file=sys.stderr, flush=True)
    os._exit(2)


def _wait(child: int) -> tuple[int, int]:
    """The status of a child and its peak memory in KiB; signals are forwarded to it."""

    def forward(number: int, _: FrameType | None) -> None:
        if number != signal.SIGINT or not sys.stdin.isatty():  # a terminal interrupts both processes itself
            os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    _, status, usage = os.wait4(child, 0)
    return status, usage.ru_maxrss


def _crash_message(number: signal.Signals, memory: int) -> str:
    import resource  # not on every system

    if number.name not in ("SIGKILL", "SIGABRT"):
        return f"ended by {number.name} inside a library; no output is incomplete, and you can run the command again"
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    allowed = "" if limit == resource.RLIM_INFINITY else f"; ulimit -v allows {limit / 2**30:.1f} GiB"
    return (
        f"ended by {number.name}, most likely out of memory ({memory / 2**20:.1f} GiB in use{allowed}): allow more "
        "memory, or use a log with fewer columns, Parquet files, or a smaller --batch-size; no output is incomplete"
    )

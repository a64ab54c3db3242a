"""A command in a process of its own, watched by another: where the system or a library ends it, there is still a line.

Polars ends a process that gets no memory, and so does Linux one that takes too much. Neither can be caught inside.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from beamtree.files.staging import remove_leftovers, remove_leftovers_in

COMMANDS = {"prepare", "simulate", "train", "compare", "retrieve"}  # those that may need much memory
WITH_PARENT = 1  # of prctl: a signal when the parent dies
SUDDEN = {"SIGKILL", "SIGABRT", "SIGSEGV", "SIGBUS"}  # by name: not every system has all of them


def watched(command: Callable[[], None], words: list[str]) -> None:
    """Run a command; where it dies all of a sudden, say so, clear up after it and exit with 2."""
    if not sys.platform.startswith("linux") or not COMMANDS & set(words[:1]):
        command()
        return
    sys.stdout.flush()
    watcher = os.getpid()
    worker = os.fork()
    if not worker:
        ctypes.CDLL(None).prctl(WITH_PARENT, signal.SIGKILL)
        if os.getppid() != watcher:  # which died before it could be asked for
            os._exit(1)
        command()
        return
    status, most = _wait(worker)
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    ended = signal.Signals(os.WTERMSIG(status))
    if ended.name not in SUDDEN:  # stopped by somebody: this process ends as that one did
        signal.signal(ended, signal.SIG_DFL)
        os.kill(watcher, ended)
    clear_up(words)
    print(f"beamtree: {last_words(ended, most)}", file=sys.stderr, flush=True)
    os._exit(2)


def _wait(worker: int) -> tuple[int, int]:
    """How a process ended, and the most memory it had, in KiB; signals are passed on to it."""

    def pass_on(number: int, _: FrameType | None) -> None:
        if number != signal.SIGINT or not sys.stdin.isatty():  # a terminal interrupts both of them itself
            os.kill(worker, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    _, status, used = os.wait4(worker, 0)
    return status, used.ru_maxrss


def clear_up(words: list[str]) -> None:
    """Remove the drafts of whatever a command names."""
    for word in words:
        path = Path(word.partition("=")[2] if word.startswith("--") else word)
        if path.name:
            remove_leftovers(path)
        if path.is_dir() and path.name:
            remove_leftovers_in(path)


def last_words(ended: signal.Signals, most: int) -> str:
    """What to say of a command that the system or a library ended."""
    import resource  # not on every system

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    allowed = "" if limit == resource.RLIM_INFINITY else f"; ulimit -v allows {limit / 2**30:.1f} GiB of addresses"
    if ended.name in ("SIGKILL", "SIGABRT"):
        return (
            f"ended by {ended.name}, most likely for want of memory ({most / 2**20:.1f} GiB were in use{allowed}): "
            "allow more, or ask for less with a log of fewer columns, as Parquet, or a smaller --batch-size; "
            "nothing was half written"
        )
    return f"ended by {ended.name} inside a library; nothing was half written, and the same command may be tried again"

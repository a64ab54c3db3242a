"""Outputs that are whole or not there, and that one process alone writes.

What will be NAME is made in NAME.new-beamtree, a folder beside it, and takes its place in one move. Who writes holds
a lock of the system on that folder. The lock dies with its process: a draft that nobody holds was left by one that was
killed, and whoever names NAME next removes it.

Where a system cannot exchange two folders in one move, the old one is NAME.old-beamtree for a moment; a process killed
in that moment leaves no NAME, and whoever names it next puts the old one back.
"""

import ctypes
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl

    CAN_LOCK = True
except ImportError:  # Windows cannot lock a folder: there, two processes that write one output are not noticed
    CAN_LOCK = False

NEW, OLD = ".new-beamtree", ".old-beamtree"
HERE, EXCHANGE = -100, 2  # of renameat2: paths from the working directory, and both names change places
TRIES = 20  # to get hold of a folder that others move at the same time

_own: set[tuple[int, int]] = set()  # folders that this process holds


class Lock(NamedTuple):
    """A folder that this process holds."""

    mark: tuple[int, int]  # device and inode
    handle: int | None  # None where the system cannot lock a folder


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder, made if need be, against other processes that would write to it; a ValueError if one does."""
    try:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file: choose a folder")
        folder.mkdir(parents=True, exist_ok=True)
        lock = _hold(folder, folder)
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error.strerror}") from error
    try:
        tidy_inside(folder)
        yield
    finally:
        _let_go(lock)
        _remove_empty(folder)


@contextmanager
def drafting(out: Path) -> Iterator[Path]:
    """An empty folder beside `out` to write in, held by this process and gone at the end, whatever happens."""
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(out)
    lock = None
    for _ in range(TRIES):
        try:
            _make(draft)
            lock = _hold(draft, out)
            break
        except FileNotFoundError:  # moved into place by another process just now
            continue
    if lock is None:
        raise ValueError(_in_use(out))
    try:
        _empty(draft)
        _put_back(out)
        yield draft
    finally:
        try:
            remove(draft)
        except KeyboardInterrupt:  # some libraries make two of one, and the second comes here
            remove(draft)
            raise
        finally:
            _let_go(lock)


def put(whole: Path, out: Path) -> None:
    """Let a file or folder take the place of `out` in one move; after an error, what was there is there still."""
    if not (whole.is_dir() and out.is_dir()):
        os.replace(whole, out)
        return
    if _exchange(whole, out):
        remove(whole)
        return
    old = out.with_name(out.name + OLD)
    remove(old)
    os.rename(out, old)
    try:
        os.rename(whole, out)
    except BaseException:
        os.rename(old, out)
        raise
    remove(old)


def tidy(out: Path) -> None:
    """Remove what a killed process left beside `out`, and put back what it had taken away."""
    draft = _draft(out)
    try:
        if not os.path.lexists(draft) and not os.path.lexists(out.with_name(out.name + OLD)):
            return
        if os.path.lexists(draft) and not draft.is_symlink() and draft.is_dir():
            lock = _hold(draft, out)
            if lock is None:  # this process itself writes it
                return
            try:
                _put_back(out)
                remove(draft)
            finally:
                _let_go(lock)
        else:
            _put_back(out)
    except (ValueError, OSError):  # somebody writes it now, or it is not ours to change
        return


def tidy_inside(folder: Path) -> None:
    """The same for all outputs in a folder and below."""
    for place, folders, files in os.walk(folder):
        left = {name for name in (*folders, *files) if name.endswith((NEW, OLD))}
        folders[:] = [name for name in folders if name not in left]
        for name in left:
            tidy(Path(place) / name.removesuffix(NEW).removesuffix(OLD))


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder and all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _draft(out: Path) -> Path:
    return out.with_name(out.name + NEW)


def _make(draft: Path) -> None:
    """Make the folder, if it is not there; a link or file at its name is removed and not followed."""
    if draft.is_symlink() or (draft.exists() and not draft.is_dir()):
        draft.unlink()
    draft.mkdir(exist_ok=True)


def _hold(folder: Path, out: Path) -> Lock | None:
    """A lock on a folder; None where this process holds it already. A FileNotFoundError where it was moved away."""
    if not CAN_LOCK:
        mark = _mark(os.stat(folder))
        if mark in _own:
            return None
        _own.add(mark)
        return Lock(mark, None)
    handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        mark = _mark(os.fstat(handle))
        if mark in _own:
            os.close(handle)
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(_in_use(out)) from None
        except OSError:  # a file system without locks
            pass
        if _mark(os.stat(folder)) != mark:
            raise FileNotFoundError(folder)
    except BaseException:
        os.close(handle)
        raise
    _own.add(mark)
    return Lock(mark, handle)


def _mark(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _let_go(lock: Lock | None) -> None:
    if lock is None:
        return
    _own.discard(lock.mark)
    if lock.handle is not None:
        os.close(lock.handle)


def _in_use(out: Path) -> str:
    return f"{out} is being written by another process: wait for it, or choose another name"


def _put_back(out: Path) -> None:
    """With the draft in hand: an old output that was moved away comes back, or goes if a new one took its place."""
    old = out.with_name(out.name + OLD)
    if not os.path.lexists(old):
        return
    if os.path.lexists(out):
        remove(old)
    else:
        os.rename(old, out)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        remove(path)


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:  # there is something in it, as there should be
        return


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one move; whether the system can."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return bool(rename(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) == 0)


def as_others_are(path: Path) -> None:
    """Give a file the rights that files of this user have, whatever a library gave it: those of its folder."""
    path.chmod(stat.S_IMODE(path.parent.stat().st_mode) & 0o666)

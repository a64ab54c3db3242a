"""Outputs that appear completely or not at all, and that only one process writes at a time.

An output NAME is written in NAME.new-beamtree, a folder beside it, and then moved into place. The writer holds a system
lock on that folder. The lock ends with its process, so an unlocked staging folder was left by a killed process, and the
next process that writes NAME removes it.

Where the system cannot swap two folders atomically, the old output is NAME.old-beamtree for a moment. If a process is
killed in that moment there is no NAME, and the next process that writes it restores the old one.
"""

import ctypes
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl

    CAN_LOCK = True
except ImportError:  # Windows cannot lock a folder: two processes that write one output go unnoticed there
    CAN_LOCK = False

NEW, OLD = ".new-beamtree", ".old-beamtree"
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of renameat2
ATTEMPTS = 20  # to lock a folder that other processes move at the same time

_locked: set[tuple[int, int]] = set()  # folders locked by this process


class InUseError(ValueError):
    """Another process is writing an output."""

    def __init__(self, out: Path) -> None:
        super().__init__(f"{out} is being written by another process: wait for it, or choose another name")


class Lock(NamedTuple):
    """A folder locked by this process."""

    inode: tuple[int, int]  # device and inode
    handle: int | None  # None where the system cannot lock a folder


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Create a folder if needed and lock it for writing; a ValueError if another process writes to it."""
    try:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file: choose a folder")
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder, folder)
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error.strerror}") from error
    try:
        remove_leftovers_in(folder)
        yield
    finally:
        _unlock(lock)
        with suppress(OSError):  # not empty, as expected
            folder.rmdir()


@contextmanager
def staging_folder(out: Path) -> Iterator[Path]:
    """An empty folder beside `out` to write in, locked by this process and always removed at the end."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = out.with_name(out.name + NEW)
    lock = None
    for _ in range(ATTEMPTS):
        try:
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):  # never follow a link
                folder.unlink()
            folder.mkdir(exist_ok=True)
            lock = _lock(folder, out)
            break
        except FileNotFoundError:  # another process just moved it into place
            continue
    if lock is None:
        raise InUseError(out)
    try:
        for path in folder.iterdir():
            remove(path)
        _restore_old(out)
        yield folder
    finally:
        try:
            remove(folder)
        except KeyboardInterrupt:  # some libraries turn one interrupt into two, and the second arrives here
            remove(folder)
            raise
        finally:
            _unlock(lock)


def temporary_folder(prefix: str) -> tuple[Path, Callable[[], None]]:
    """A new folder for temporary files, and a function that removes it.

    It is locked until then. Unlocked folders with the same prefix were left by killed processes, and are removed.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*") if CAN_LOCK else ():
        with suppress(OSError):  # another process uses it, or it belongs to another user
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _inode(os.fstat(handle)) not in _locked and os.fstat(handle).st_uid == os.getuid():
                    remove(path)
            finally:
                os.close(handle)
    for _ in range(ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            lock = _lock(folder, folder)
        except (FileNotFoundError, ValueError):  # another process has just removed it as left behind
            continue
        return folder, partial(_remove_locked, folder, lock)
    raise InUseError(folder)


def _remove_locked(folder: Path, lock: Lock | None) -> None:
    _unlock(lock)
    remove(folder)


def move_into_place(source: Path, out: Path) -> None:
    """Replace `out` by a file or folder atomically; after an error the old `out` is still there."""
    if not (source.is_dir() and out.is_dir()):
        os.replace(source, out)
        return
    swap(out, source)
    remove(source)


def swap(one: Path, other: Path) -> None:
    """Let two folders change places, atomically where the system can; after an error `one` is still there."""
    if exchange(one, other):
        return
    old = one.with_name(one.name + OLD)
    remove(old)
    os.rename(one, old)
    try:
        os.rename(other, one)
    except BaseException:
        os.rename(old, one)
        raise
    os.rename(old, other)


def copy_linked(source: Path, target: Path) -> None:
    """Copy a folder by links, where the system has them: for one in which no file is changed in place."""

    def link(one: str, other: str) -> None:
        try:
            os.link(one, other)
        except OSError:
            shutil.copy2(one, other)

    shutil.copytree(source, target, copy_function=link)


def remove_leftovers(out: Path) -> None:
    """Remove what a killed process left beside `out`, and restore the old output if it was moved away."""
    folder = out.with_name(out.name + NEW)
    try:
        if not os.path.lexists(folder) and not os.path.lexists(out.with_name(out.name + OLD)):
            return
        if os.path.lexists(folder) and not folder.is_symlink() and folder.is_dir():
            lock = _lock(folder, out)
            if lock is None:  # this process is writing it
                return
            try:
                _restore_old(out)
                remove(folder)
            finally:
                _unlock(lock)
        else:
            _restore_old(out)
    except (ValueError, OSError):  # another process is writing it, or we may not change it
        return


def remove_leftovers_in(folder: Path) -> None:
    """The same for all outputs in a folder and its subfolders."""
    for parent, folders, files in os.walk(folder):
        leftovers = {name for name in (*folders, *files) if name.endswith((NEW, OLD))}
        folders[:] = [name for name in folders if name not in leftovers]
        for name in leftovers:
            remove_leftovers(Path(parent) / name.removesuffix(NEW).removesuffix(OLD))


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def reset_permissions(path: Path) -> None:
    """Give a file the permissions of its folder: some libraries ignore the umask."""
    path.chmod(stat.S_IMODE(path.parent.stat().st_mode) & 0o666)


def _lock(folder: Path, out: Path) -> Lock | None:
    """Lock a folder; None where this process has locked it already. A FileNotFoundError where it was moved away."""
    if not CAN_LOCK:
        inode = _inode(os.stat(folder))
        if inode in _locked:
            return None
        _locked.add(inode)
        return Lock(inode, None)
    handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        inode = _inode(os.fstat(handle))
        if inode in _locked:
            os.close(handle)
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(out) from None
        except OSError:  # a file system without locks
            pass
        if _inode(os.stat(folder)) != inode:
            raise FileNotFoundError(folder)
    except BaseException:
        os.close(handle)
        raise
    _locked.add(inode)
    return Lock(inode, handle)


def _unlock(lock: Lock | None) -> None:
    if lock is None:
        return
    _locked.discard(lock.inode)
    if lock.handle is not None:
        os.close(lock.handle)


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _restore_old(out: Path) -> None:
    """With the staging folder locked: restore an old output that was moved away, or remove it if there is a new one."""
    old = out.with_name(out.name + OLD)
    if not os.path.lexists(old):
        return
    if os.path.lexists(out):
        remove(old)
    else:
        os.rename(old, out)


def exchange(one: Path, other: Path) -> bool:
    """Swap two folders atomically; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return bool(rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)

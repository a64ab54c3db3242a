"""Atomic writes of single files, JSON, and checks that an output can be written."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from beamtree.errors import explain_full_disk
from beamtree.files.staging import copy_linked, folder_lock, move_into_place, staging_folder, swap


def read_json(path: Path, remedy: str) -> Any:
    """The content of a JSON file; a ValueError with the remedy where it is damaged."""
    if path.exists() and not path.is_file():  # reading a pipe would block, reading a device would never end
        raise ValueError(f"{path} is not a regular file: {remedy}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # bad JSON, bad UTF-8, or a number with too many digits
        raise ValueError(f"{path} is damaged: {remedy}") from error


def write_json(path: Path, content: object) -> None:
    """Write JSON atomically. Numbers must be finite."""
    text = as_json(path, content)
    if _is_device(path):
        path.write_text(text, encoding="utf-8")
        return
    write_atomically(path, lambda draft: draft.write_text(text, encoding="utf-8"))


def as_json(path: Path, content: object) -> str:
    """The text of a JSON file; a ValueError where a number is not finite."""
    try:
        return json.dumps(content, indent=1, allow_nan=False) + "\n"
    except ValueError as error:
        raise ValueError(f"{path} is not written: a number in it is not finite") from error


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary path and move the result into place; after an error the old file is unchanged."""
    with explain_full_disk(path.parent), staging_folder(path) as draft:
        write(draft / path.name)
        move_into_place(draft / path.name, path)


def write_concurrently(path: Path, write: Callable[[Path], object]) -> None:
    """The same without a lock: several processes may write the same content at once, and the last rename wins."""
    draft = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        write(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def edit_folder(folder: Path, change: Callable[[Path], bool]) -> None:
    """Let a function change a copy of a folder, which takes the place of the folder in one step if it returns true.

    Nobody else can write to the folder meanwhile, and after an error or a kill it is as it was. The function may
    replace files of the copy, but not write into them: they are links where the system has them.
    """
    folder = folder.resolve()
    check_replaceable(folder)
    with explain_full_disk(folder), folder_lock(folder), staging_folder(folder) as draft:
        copy_linked(folder, draft / folder.name)
        if change(draft / folder.name):
            swap(folder, draft / folder.name)


def fsync(path: Path) -> None:
    """Flush a file or folder to disk, before anything refers to it."""
    on_windows = not hasattr(os, "O_DIRECTORY")  # cannot open folders, and flushes only files open for writing
    if on_windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if on_windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_writable(path: Path) -> None:
    """Raise a ValueError where a file cannot be written: call it before the work, not after."""
    reason = None
    try:
        if path.is_dir():
            reason = "it is a folder"
        elif _is_device(path):
            reason = None if os.access(path, os.W_OK) else "Permission denied"
        else:
            with staging_folder(path):  # permissions do not show a read-only disk
                pass
    except (FileExistsError, NotADirectoryError):
        reason = f"{path.parent} is not a folder"
    except OSError as error:
        reason = error.strerror
    if reason is not None:
        raise ValueError(f"{path} cannot be written: {reason}")


def check_replaceable(folder: Path) -> None:
    """Raise a ValueError where a folder cannot be replaced by renaming another one to it."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: choose another name")
    if folder.is_dir() and folder.samefile("."):
        raise ValueError(f"{folder} is the current folder, which cannot be replaced: choose another one")
    if os.path.ismount(folder):
        raise ValueError(f"{folder} is a mount point, which cannot be replaced: choose a folder inside")


def is_replaceable(folder: Path) -> bool:
    """Whether a folder can be replaced by renaming another one to it."""
    try:
        check_replaceable(folder)
    except ValueError:
        return False
    return os.access(folder.resolve().parent, os.W_OK)


def _is_device(path: Path) -> bool:
    """Whether a path is /dev/stdout, a pipe or the like, which must not be replaced by a file."""
    return path.exists() and not path.is_file()

"""Small files that are whole or not there, and errors in one line."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def read_json(path: Path, remedy: str) -> Any:
    """What a JSON file holds; a ValueError that says what to do where it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {remedy}") from error


def write_json(path: Path, content: object) -> None:
    """Write JSON in one move; after an error, what was there before is there still."""
    text = json.dumps(content, indent=1) + "\n"
    if _is_device(path):
        path.write_text(text, encoding="utf-8")
        return
    write_whole(path, lambda draft: draft.write_text(text, encoding="utf-8"))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let a file be written under another name and take its place in one move, or leave what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(path)
    try:
        write(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Find out that a file cannot be written before an hour of work, not after."""
    trouble = None
    try:
        if path.is_dir():
            trouble = "it is a folder"
        elif _is_device(path):
            trouble = None if os.access(path, os.W_OK) else "Permission denied"
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            _draft(path).touch()  # a read-only disk does not show in the permissions
            _draft(path).unlink()
    except (FileExistsError, NotADirectoryError):
        trouble = f"{path.parent} is no folder"
    except OSError as error:
        trouble = error.strerror
    if trouble is not None:
        raise ValueError(f"{path} cannot be written: {trouble}")


def check_replaceable(folder: Path) -> None:
    """Raise a ValueError where another folder could not take the place of this one in one move."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: choose another name")
    if folder.is_dir() and folder.samefile("."):
        raise ValueError(f"{folder} is the folder you are in, which cannot be replaced from inside: choose another one")
    if os.path.ismount(folder):
        raise ValueError(f"{folder} is where a disk is mounted, which cannot be replaced: choose a folder inside")


def _draft(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _is_device(path: Path) -> bool:
    """Whether it is /dev/stdout, a pipe or the like: no other file must take its place."""
    return path.exists() and not path.is_file()


def remove(path: Path) -> None:
    """Remove a file, or a folder and all that is in it, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def replace_folder(out: Path, draft: Path) -> None:
    """Let a folder take the place of another in one move; after an error, what was there before is there still."""
    if not out.exists():
        os.rename(draft, out)
        return
    old = out.with_name(f"{out.name}.old-{os.getpid()}")
    remove(old)
    os.rename(out, old)
    try:
        os.rename(draft, out)
    except BaseException:
        os.rename(old, out)
        raise
    shutil.rmtree(old)


def flush(path: Path) -> None:
    """Have the disk hold what was written before anything points to it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

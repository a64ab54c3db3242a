"""Small files that are whole or not there, and errors in one line."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from beamtree.files.drafts import drafting, put

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def one_line(error: BaseException | str, most: int = 300) -> str:
    """What an error says, in one line and not too long: some quote a whole field of a file."""
    text = str(error)[: 20 * most].split("\n\n")[0]
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 2]} …"


def read_json(path: Path, remedy: str) -> Any:
    """What a JSON file holds; a ValueError that says what to do where it is damaged."""
    if path.exists() and not path.is_file():  # a pipe would be waited for, a device read without end
        raise ValueError(f"{path} is no plain file: {remedy}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # of JSON, of UTF-8, of a number with too many digits
        raise ValueError(f"{path} is damaged: {remedy}") from error


def write_json(path: Path, content: object) -> None:
    """Write JSON in one move; after an error, what was there before is there still. Numbers must be finite."""
    try:
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    except ValueError as error:
        raise ValueError(f"{path} is not written: a number in it is not finite") from error
    if _is_device(path):
        path.write_text(text, encoding="utf-8")
        return
    write_whole(path, lambda draft: draft.write_text(text, encoding="utf-8"))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let a file be written under another name and take its place in one move, or leave what was there."""
    with naming(path.parent), drafting(path) as draft:
        write(draft / path.name)
        put(draft / path.name, path)


def write_once(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a name that nobody else takes, then give it its own: whoever did it before did the same."""
    draft = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        write(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def naming(folder: Path) -> Iterator[None]:
    """A full disk, and other troubles of writing, with the folder in which they came."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or str(folder) in str(error):
            raise
        told = OSError(f"{folder} cannot be written: {os.strerror(error.errno or 0)}")
        told.errno = error.errno
        raise told from error


def check_writable(path: Path) -> None:
    """Find out that a file cannot be written before an hour of work, not after."""
    trouble = None
    try:
        if path.is_dir():
            trouble = "it is a folder"
        elif _is_device(path):
            trouble = None if os.access(path, os.W_OK) else "Permission denied"
        else:
            with drafting(path):  # a read-only disk does not show in the permissions
                pass
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


def _is_device(path: Path) -> bool:
    """Whether it is /dev/stdout, a pipe or the like: no other file must take its place."""
    return path.exists() and not path.is_file()


def flush(path: Path) -> None:
    """Have the disk hold what was written before anything points to it."""
    on_windows = not hasattr(os, "O_DIRECTORY")  # where folders cannot be opened, and only what is written is flushed
    if on_windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if on_windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

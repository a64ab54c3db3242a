"""Error messages: short, on one line, and with the cause that a user can do something about.

The library raises ValueError and OSError for mistakes a user can fix. The command prints them as one line and exits
with code 2: see `beamtree.cli.errors`.
"""

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
CUT_SHORT = re.compile(r"\d+ requested and \d+ written")  # how numpy reports a full disk


def short_message(error: BaseException | str, limit: int = 300) -> str:
    """The message of an error on one line of at most `limit` characters: some libraries quote a whole file."""
    text = str(error)[: 20 * limit].split("\n\n")[0]
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 2]} …"


@contextmanager
def requires(extra: str, feature: str) -> Iterator[None]:
    """Around an import: a ValueError that names the missing library and how to install it.

    `extra` is the extra of beamtree that brings the library, empty where none does.
    """
    try:
        yield
    except ImportError as error:
        missing = error.name.split(".")[0] if error.name else str(error)
        install = f"'beamtree[{extra}]'" if extra else missing
        raise ValueError(f"{feature} needs {missing}, which is not installed: pip install {install}") from error


class FullDiskError(OSError):
    """A full disk, with the folder that cannot be written."""


@contextmanager
def explain_full_disk(folder: Path) -> Iterator[None]:
    """Add the folder to errors about a full disk, which otherwise do not name a file.

    Of several, the outermost is named: the others may be temporary ones in it.
    """
    try:
        yield
    except OSError as error:
        number = errno.ENOSPC if CUT_SHORT.fullmatch(str(error)) else error.errno
        is_named = str(folder) in str(error) and not isinstance(error, FullDiskError)
        if number not in DISK_FULL or is_named:
            raise
        explained = FullDiskError(f"{folder} cannot be written: {os.strerror(number or 0)}")
        explained.errno = number
        raise explained from error


def lookup(table: Mapping[str, T], kind: str, name: str) -> T:
    """The value of a name; a ValueError that lists the names where it is unknown."""
    if name not in table:
        raise ValueError(f"{kind} {name!r} is unknown: choose from {', '.join(table)}")
    return table[name]

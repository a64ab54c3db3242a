"""Error messages, short and on one line, and checks of arguments that several modules share.

The library raises ValueError and OSError for mistakes a user can fix. The command prints them as one line and exits
with code 2: see `beamtree.cli.errors`.
"""

import errno
import operator
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
CUT_SHORT = re.compile(r"\d+ requested and \d+ written")  # how numpy reports a full disk
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
MAX_LENGTH = 100  # characters of a number


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


# Numbers that are given as text, and arguments


def is_number(text: str) -> bool:
    """Whether a text is a number in the digits 0 to 9; Python also reads 1_000, nan, and digits of other scripts."""
    return len(text) <= MAX_LENGTH and NUMBER.fullmatch(text.strip()) is not None


def parse_number(text: str) -> int | float:
    """The number that a text is; a ValueError where it is none."""
    if not is_number(text):
        raise ValueError(f"{text[:40]!r} is not a number")
    return int(text) if text.strip().lstrip("+-").isdigit() else float(text)


def parse_int(text: str) -> int:
    """The whole number that a text is; a ValueError where it is none."""
    number = parse_number(text)
    if isinstance(number, float):
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return number


def as_float(value: object) -> float:
    """A number, also as text, as a float; a TypeError or a ValueError where it is none."""
    try:
        return float(parse_number(value) if isinstance(value, str) else value)  # type: ignore[arg-type]
    except OverflowError:  # an int beyond all floats
        raise ValueError("a number is too large") from None


def positive_int(name: str, value: object) -> int:
    """An integer of Python or numpy as an int; a ValueError where it is not one or below 1."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number > 0:
        return number
    raise ValueError(f"{name}={value!r}: give a whole number of at least 1")


def check_device(device: str) -> None:
    """Raise a ValueError where torch cannot compute on a device."""
    import torch  # takes a second, which messages need not wait for

    offered = "cpu or cuda" if torch.cuda.is_available() else "cpu"
    try:
        total = float(torch.ones(1, device=device).sum())  # a device such as meta holds no numbers
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # the second from a torch without CUDA
        raise ValueError(f"device {device!r} is not here: this machine offers {offered}") from error
    if total != 1:
        raise ValueError(f"device {device!r} does not compute: this machine offers {offered}")

"""Checks of arguments that several modules share, and numbers that are given as text."""

import operator
import re

import torch

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
MAX_LENGTH = 100  # characters of a number


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
    offered = "cpu or cuda" if torch.cuda.is_available() else "cpu"
    try:
        total = float(torch.ones(1, device=device).sum())  # a device such as meta holds no numbers
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # the second from a torch without CUDA
        raise ValueError(f"device {device!r} is not here: this machine offers {offered}") from error
    if total != 1:
        raise ValueError(f"device {device!r} does not compute: this machine offers {offered}")

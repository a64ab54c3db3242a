"""Checks of arguments that several modules share."""

import operator

import torch


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

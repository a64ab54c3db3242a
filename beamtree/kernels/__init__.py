"""Faster twins of functions elsewhere: the same arguments, the same numbers, chosen by device and never by a user."""

import importlib.util
from functools import cache

from torch import Tensor


def fits(tensor: Tensor) -> bool:
    """Whether the twins in this room can work on a tensor: it lies on a GPU, and Triton is installed."""
    return tensor.is_cuda and _installed()


@cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None

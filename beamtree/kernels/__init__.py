"""Faster twins of functions elsewhere: the same arguments, the same numbers, chosen by device and never by a user."""

import importlib.util
from functools import cache

import torch
from torch import Tensor

OTHER_FLOATS = (torch.float64, torch.float16, torch.bfloat16)


def fits(tensor: Tensor) -> bool:
    """Whether the twins in this room can work on a tensor: on a GPU, numbers in float32, and Triton is installed."""
    return tensor.is_cuda and tensor.dtype not in OTHER_FLOATS and _installed()


@cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None

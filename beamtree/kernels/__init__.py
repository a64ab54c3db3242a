"""Faster versions of functions elsewhere: the same arguments and results, chosen by the device."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

MAX_SELECTED = 4096  # numbers of which `select.select` can find the best
OTHER_FLOATS = (torch.float64, torch.float16, torch.bfloat16)
_PLAIN: ContextVar[bool] = ContextVar("plain", default=False)


def fits(tensor: Tensor) -> bool:
    """Whether the kernels support a tensor: on a GPU, in float32, with Triton installed."""
    return tensor.is_cuda and tensor.dtype not in OTHER_FLOATS and not is_plain() and _installed()


@contextmanager
def plain_operations() -> Iterator[None]:
    """Inside the block scores are computed by operations of torch alone, which `torch.export` can trace."""
    before = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(before)


def is_plain() -> bool:
    """Whether that is so: without kernels, compiled functions and NumPy."""
    return _PLAIN.get()


def is_one(size: int) -> bool:
    """Whether a number of rows is 1: not while a program is exported, for which the number of users is a symbol."""
    return type(size) is int and size == 1


def programs(device: torch.device, each: int) -> int:
    """The number of programs that fill a device, `each` per multiprocessor; two for Triton's interpreter."""
    if device.type != "cuda":
        return 2
    return each * torch.cuda.get_device_properties(device).multi_processor_count


def rows_apart(nodes: Tensor) -> tuple[Tensor, int]:
    """Nodes [B or 1, W] with contiguous rows, and the stride between rows: 0 where all users share one."""
    nodes = nodes if nodes.stride(1) == 1 else nodes.contiguous()
    return nodes, nodes.stride(0) if len(nodes) > 1 else 0


@cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None

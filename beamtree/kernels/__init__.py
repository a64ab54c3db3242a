"""Faster twins of functions elsewhere: the same arguments, the same numbers, chosen by device and never by a user."""

import importlib.util
from functools import cache

import torch
from torch import Tensor

OTHER_FLOATS = (torch.float64, torch.float16, torch.bfloat16)


def fits(tensor: Tensor) -> bool:
    """Whether the twins in this room can work on a tensor: on a GPU, numbers in float32, and Triton is installed."""
    return tensor.is_cuda and tensor.dtype not in OTHER_FLOATS and _installed()


def programs(device: torch.device, each: int) -> int:
    """How many programs fill a device, `each` to a multiprocessor; the interpreter gets two that share the work."""
    if device.type != "cuda":
        return 2
    return each * torch.cuda.get_device_properties(device).multi_processor_count


def rows_apart(nodes: Tensor) -> tuple[Tensor, int]:
    """Nodes [B or 1, W] whose rows are runs in memory, and how far apart they are: 0 where all users share one."""
    nodes = nodes if nodes.stride(1) == 1 else nodes.contiguous()
    return nodes, nodes.stride(0) if len(nodes) > 1 else 0


@cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None

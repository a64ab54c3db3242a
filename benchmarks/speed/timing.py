"""Timing of benchmarks."""

import time
from collections.abc import Callable

import torch


def times(run: Callable[[], object], device: torch.device | str, repeats: int, *, warm_up: int = 0) -> list[float]:
    """The milliseconds of each run, after some warm-up runs."""
    on_gpu = torch.device(device).type == "cuda"
    result = []
    for _ in range(warm_up + repeats):
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        result.append((time.perf_counter() - start) * 1e3)
    return result[warm_up:]

"""How benchmarks measure."""

import time
from collections.abc import Callable

import torch


def times(run: Callable[[], object], device: torch.device | str, repeats: int, *, warm_up: int = 0) -> list[float]:
    """Milliseconds of each of some runs, after a few that do not count."""
    on_gpu = torch.device(device).type == "cuda"
    found = []
    for _ in range(warm_up + repeats):
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        found.append((time.perf_counter() - start) * 1e3)
    return found[warm_up:]

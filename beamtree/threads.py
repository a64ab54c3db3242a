"""CPU threads: how many there should be, and independent pieces of small work with one thread each.

Many small products and solves one after the other do not divide well: the threads of each wait for one another, and
beside another busy process they wait for a core. Independent pieces do not wait for one another.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

CGROUP = Path("/sys/fs/cgroup")


def available_cpus(cgroup: Path = CGROUP) -> int:
    """The CPUs that this process may use: those it is bound to, and no more than the quota of its container."""
    bound = getattr(os, "sched_getaffinity", None)
    count = len(bound(0)) if bound is not None else os.cpu_count() or 1
    return max(1, math.ceil(min(count, _quota(cgroup))))


def _quota(cgroup: Path) -> float:
    """CPUs that control groups allow, of version 2 or 1; any number where they say nothing."""
    for name, period in (("cpu.max", None), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            words = (cgroup / name).read_text().split()
            words += (cgroup / period).read_text().split() if period is not None else []
            quota, per = (int(word) for word in words)
        except (OSError, ValueError):  # "max", or another system
            continue
        if quota > 0 and per > 0:
            return quota / per
    return math.inf


def use_threads(count: int | None = None) -> None:
    """Let torch compute with so many threads: unless given, with the CPUs there are, or what OMP_NUM_THREADS says."""
    if count is not None:
        torch.set_num_threads(count)
    elif not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(min(torch.get_num_threads(), available_cpus()))


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for what is done here, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_threads(function: Callable[[T], R], pieces: Iterable[T]) -> list[R]:
    """What a function gives for each of some independent pieces, in their order: with one thread each, several at once.

    As many pieces are in work as torch has threads.
    """
    workers = torch.get_num_threads()
    with one_thread():
        if workers == 1:
            return [function(piece) for piece in pieces]
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(function, pieces))

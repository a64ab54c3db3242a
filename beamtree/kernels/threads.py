"""CPU threads: how many to use, running independent tasks with one thread each, and a lock for changes.

Many small products and solves do not parallelize well: the threads of each one wait for one another, and for a core if
another process is busy. Independent tasks do not wait.
"""

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

CGROUP = Path("/sys/fs/cgroup")


class ChangeLock:
    """A lock for the changes of an object; the thread that has it may take it again.

    A copy of the object, by deepcopy or pickle, gets a lock of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type["ChangeLock"], tuple[()]]:
        return ChangeLock, ()


def available_cpus(cgroup: Path = CGROUP) -> int:
    """The number of CPUs this process may use, by its affinity and the quota of its container."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, math.ceil(min(count, _quota(cgroup))))


def _quota(cgroup: Path) -> float:
    """The CPU quota of control groups, version 2 or 1; infinite where there is none."""
    for name, period in (("cpu.max", None), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            values = (cgroup / name).read_text().split()
            values += (cgroup / period).read_text().split() if period is not None else []
            quota, length = (int(value) for value in values)
        except (OSError, ValueError):  # "max", or another system
            continue
        if quota > 0 and length > 0:
            return quota / length
    return math.inf


def use_threads(count: int | None = None) -> None:
    """Set the number of threads of torch. Default: OMP_NUM_THREADS, or the available CPUs."""
    if count is not None:
        torch.set_num_threads(count)
    elif not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(min(torch.get_num_threads(), available_cpus()))


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread inside the block."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def parallel_map(function: Callable[[T], R], tasks: Iterable[T]) -> list[R]:
    """The results of a function for independent tasks, in order: one thread per task, as many at once as torch has."""
    workers = torch.get_num_threads()
    with one_thread():
        if workers == 1:
            return [function(task) for task in tasks]
        return list(_pool(workers).map(function, tasks))


def spans(count: int) -> list[tuple[int, int]]:
    """Parts first … last of a range, several for each thread."""
    parts = min(count, 4 * torch.get_num_threads())
    edges = [count * part // max(parts, 1) for part in range(parts + 1)]
    return list(pairwise(edges))


def in_spans(function: Callable[[tuple[int, int]], object], count: int) -> None:
    """Call a function for such parts, or here for all of the range where it is one row or there is one thread."""
    if count == 1 or torch.get_num_threads() == 1:
        function((0, count))
    else:
        parallel_map(function, spans(count))


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    """Threads that stay: to start them takes as long as a search."""
    return ThreadPoolExecutor(workers, "beamtree", initializer=torch.set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # which has none of them

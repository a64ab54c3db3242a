"""Whether a search is a scan or a beam: what `search="auto"` means.

A beam pays where scoring every item is dearer. That depends on the items, the parts of the score, the device and the
number of users that are searched for together. So both are timed once, in a fraction of a second, and the faster one is
taken from then on. Where they take the same time it is the scan, which loses nothing.
"""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.kernels.cuda_graphs import WARMUP_RUNS
from beamtree.mask import NodeMask
from beamtree.model import TreeModel
from beamtree.search.scan import covered_parts

log = logging.getLogger("beamtree")
AUTO, BEAM, SCAN = "auto", "beam", "scan"
SEARCHES = (AUTO, BEAM, SCAN)
# Numbers of users for which both are timed; others count as the next lower one. A CPU searches for one after another.
BATCHES = {"cpu": (1,), "cuda": (1, 8, 64)}
TURNS, SECONDS = 20, 0.1  # after the first runs: how often both are timed, at least once, and for how long
CLEAR = 3.0  # times the other's time, beyond which one turn is enough


class SearchTimes(NamedTuple):
    """How long both searches take for some users together."""

    device: str
    users: int
    items: int
    beam_size: int
    beam_ms: float
    scan_ms: float

    @property
    def chosen(self) -> str:
        """The faster one."""
        return SCAN if self.scan_ms <= self.beam_ms else BEAM

    def __str__(self) -> str:
        users = "1 user" if self.users == 1 else f"{self.users} users"
        return (
            f"{self.chosen}: for {users} on {self.device} a scan of {self.items:,} items takes {self.scan_ms:.2f} ms, "
            f"a beam of {self.beam_size} {self.beam_ms:.2f} ms"
        )


def resolve_search(search: str, beam_size: object = None) -> str:
    """The search of this name: a beam where a beam size is given and nothing else was asked for."""
    if search not in SEARCHES:
        raise ValueError(f"search={search!r} is unknown: choose from {', '.join(SEARCHES)}")
    if search == SCAN and beam_size is not None:
        raise ValueError("search='scan' scores every item and has no beam: leave out beam_size")
    return BEAM if beam_size is not None else search


def choose(
    model: TreeModel, x: Tensor, mask: NodeMask, sizes: tuple[int, ...], run: Callable[[Tensor, str], object]
) -> str:
    """The faster search for users x, where both find what a mask allows: `run` makes one for some of the users.

    A beam that keeps every leaf loses nothing, and scores no more than these. A scan of fewer leaves than a beam scores
    nodes needs no timing. Nor do scores that are not a product and a few additions: scanning them is dear.
    """
    leaves = mask.num_leaves
    if leaves <= min(sizes) or not x.shape[0]:
        return BEAM
    times = known_times(model, x.shape[0])
    is_few = (times is None or mask is not model.tree.mask) and leaves <= nodes_scored(model, sizes)
    if times is None or is_few:
        if covered_parts(model) is None:
            return BEAM
        if is_few:
            return SCAN
        times = model.search_times[_key(model, x.shape[0])] = measure(model, x, sizes, run)
        log.info("search: %s", times)
    return times.chosen


def known_times(model: TreeModel, users: int) -> SearchTimes | None:
    """The times that were measured for about as many users, if they were."""
    times: SearchTimes | None = model.search_times.get(_key(model, users))
    return times


def _key(model: TreeModel, users: int) -> tuple[object, ...]:
    """What times depend on: as long as it is the same, a model keeps them when items or events come."""
    kinds = frozenset(map(type, model.scorer.scorers().values()))
    return model.tree.device.type, _batch(model, users), model.tree.height, kinds


def _batch(model: TreeModel, users: int) -> int:
    return max(count for count in batches(model) if count <= max(users, 1))


def batches(model: TreeModel) -> tuple[int, ...]:
    """The numbers of users for which searches with a model are timed."""
    return BATCHES.get(model.tree.device.type, (1,))


def nodes_scored(model: TreeModel, sizes: tuple[int, ...]) -> int:
    """How many nodes a beam of these widths scores at most."""
    tree, scored, above = model.tree, 0, len(model.tree.level(model.first_level - 1))
    for level, width in zip(range(model.first_level, tree.height + 1), sizes, strict=True):
        candidates = min(above * tree.arity, len(tree.level(level)))
        if candidates > width or level == tree.height:  # others are kept without a score
            scored += candidates
        above = min(candidates, width)
    return scored


def measure(model: TreeModel, x: Tensor, sizes: tuple[int, ...], run: Callable[[Tensor, str], object]) -> SearchTimes:
    """Time both searches, turn by turn, with some of the users x."""
    users, device = x[: _batch(model, x.shape[0])], x.device

    def milliseconds(search: str) -> float:
        if x.is_cuda:
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        run(users, search)
        if x.is_cuda:
            torch.cuda.synchronize(device)
        return 1e3 * (time.perf_counter() - start)

    for _ in range(WARMUP_RUNS + 1 if x.is_cuda else 1):
        milliseconds(BEAM), milliseconds(SCAN)
    end, beam_ms, scan_ms = time.perf_counter() + SECONDS, float("inf"), float("inf")
    for _ in range(TURNS):  # the shortest times: what else the machine does only adds
        beam_ms, scan_ms = min(beam_ms, milliseconds(BEAM)), min(scan_ms, milliseconds(SCAN))
        if time.perf_counter() > end or not 1 / CLEAR < scan_ms / beam_ms < CLEAR:
            break
    return SearchTimes(device.type, len(users), model.tree.num_visible, max(sizes), beam_ms, scan_ms)

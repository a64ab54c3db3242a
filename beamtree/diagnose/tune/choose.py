"""One width per level: the narrowest beam that still finds what a wide one finds, or the best one within a time.

The search is small and looks at validation users, half of them to choose by and half to check.

1. One walk with the widest beam says of every relevant item it finds how the item's ancestor ranks on each level: so
   wide that level must be to keep it.
2. From the widest beam on, one level after another is narrowed, each time the one that saves most nodes for what it
   loses by these ranks. That gives a path of beams, from wide and slow to narrow and fast.
3. Along the path the last beam that keeps the recall, or the first that keeps the time, is looked for by halving, with
   real searches by the users to choose by. If it does not hold for the users to check, its neighbour is tried.

The ranks are those of the widest beam. With narrower levels above, an ancestor has fewer rivals, so the ranks rather
ask too much; what counts is what real searches find. The last level keeps its width: it costs nothing, and a beam that
was tuned for few items can still give many.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.beam import retrieve, walk, widths
from beamtree.data import Data
from beamtree.data.instances import Instances
from beamtree.diagnose.tune.narrow import BATCH, as_held, narrowed, needed_widths
from beamtree.evaluate import evaluate
from beamtree.model import TreeModel
from beamtree.tree import PAD, distinct

USERS = 1000  # are looked at unless told otherwise
QUERIES, WARM_UP = 40, 20  # that are timed, and before them


@dataclass(frozen=True)
class Trial:
    """What one beam gave: recall of the users to check with its 95 % interval, and what a query cost."""

    beam_size: tuple[int, ...]
    recall: float
    low: float
    high: float
    nodes: float  # scored per query
    milliseconds: float  # the median of one query at a time

    @property
    def is_uniform(self) -> bool:
        """Whether all levels have one width."""
        return all(width == self.beam_size[-1] for width in self.beam_size)


@dataclass(frozen=True)
class Tuned:
    """The beam that was chosen, and what it was compared with."""

    chosen: Trial
    m: int
    target: str  # what was asked for, in words
    share: float  # of the widest beam's recall
    users: int  # that it was checked on
    tried: tuple[Trial, ...]  # the widest first, then narrower uniform ones, then the chosen one

    def as_dict(self) -> dict[str, Any]:
        """What `tune.json` holds, but for the model."""
        found = {**asdict(self.chosen), "m": self.m, "target": self.target, "share": self.share, "users": self.users}
        return {**found, "tried": [asdict(each) for each in self.tried]}


class Asked(NamedTuple):
    """What a beam must hold: a share of the widest beam's recall, or a time; the other is None."""

    recall: float | None
    milliseconds: float | None

    def __str__(self) -> str:
        if self.recall is not None:
            return f"{self.recall:g} of the widest beam's recall"
        return f"{self.milliseconds:g} milliseconds"


OnBeam = Callable[[tuple[int, ...]], None]


def tune(
    model: TreeModel,
    data: Data,
    *,
    recall: float | None = None,
    milliseconds: float | None = None,
    m: int = 10,
    widest: int = 400,
    users: int = USERS,
    seed: int = 0,
    on_beam: OnBeam | None = None,
) -> Tuned:
    """One width per level that keeps a share of the widest beam's recall, or answers within a time.

    Args:
        model: what is searched.
        data: users and what they chose, such as `data.val`.
        recall: the share of the widest beam's recall that must be kept, such as 0.99; or
        milliseconds: what a query may take, one at a time, on this machine: the best beam within it.
        m: how many items are retrieved.
        widest: k of the beam that all are measured by.
        users: how many to look at.
        seed: which users, and which of them choose or check.
        on_beam: hears of every beam before it is measured.
    """
    asked = _asked(recall, milliseconds)
    widest = max(widest, m)
    top = as_held(model, widths(model, widest, m))
    bench = _Bench(model, *_two_halves(data, users, seed), m, on_beam)
    uniform = [(width,) * len(top) for width in _halves(widest, m)]
    path = [top, *narrowed(model, top, m, *needed_widths(model, bench.choosing, top, m))]
    place = bench.look_for(path, asked)
    least = 0.0 if asked.recall is None else asked.recall * bench.checked(uniform[0]).recall
    while place and bench.checked(path[place]).recall < least:
        place -= 1
    trials = bench.trials([*uniform, path[place]])
    while asked.milliseconds is not None and trials[-1].milliseconds > asked.milliseconds:
        place += 1
        if place == len(path):
            fastest = f"the narrowest beam takes {trials[-1].milliseconds:.2f} milliseconds"
            raise ValueError(f"{fastest}: allow more, or ask for a smaller m")
        trials = bench.trials([*uniform, path[place]])
    share = trials[-1].recall / trials[0].recall if trials[0].recall else 1.0
    return Tuned(trials[-1], m, str(asked), share, len(bench.checking), tuple(trials))


def _asked(recall: float | None, milliseconds: float | None) -> Asked:
    if (recall is None) == (milliseconds is None):
        raise ValueError("give recall or milliseconds: one of the two")
    if recall is not None and not 0 < recall <= 1:
        raise ValueError(f"recall={recall:g}: give a share of the widest beam's, above 0 and up to 1")
    if milliseconds is not None and not 0 < milliseconds < float("inf"):
        raise ValueError(f"milliseconds={milliseconds:g}: give what a query may take, above 0")
    return Asked(recall, milliseconds)


def _two_halves(data: Data, users: int, seed: int) -> tuple[Instances, Instances]:
    """Users to choose by and users to check, drawn by the seed."""
    if len(data) < 2 or users < 2:
        raise ValueError("two users are needed, one to choose by and one to check: prepare with more validation users")
    rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:users]
    halves = (rows[::2].sort().values, rows[1::2].sort().values)
    choosing, checking = (Instances(x.cpu(), distinct(y.cpu())) for x, y in map(data.batch, halves))
    return choosing, checking


def _halves(widest: int, m: int) -> list[int]:
    """The widest beam, and half of it as long as it gives m items."""
    found = [widest]
    while found[-1] // 2 >= m:
        found.append(found[-1] // 2)
    return found


class _Bench:
    """Measures beams on the users to choose by and on those to check."""

    def __init__(
        self, model: TreeModel, choosing: Instances, checking: Instances, m: int, on_beam: OnBeam | None
    ) -> None:
        self.model, self.choosing, self.checking, self.m = model, choosing, checking, m
        self._on_beam, self._checked = on_beam, dict[tuple[int, ...], Trial]()

    def checked(self, sizes: tuple[int, ...]) -> Trial:
        """What the users to check find with a beam; without its time, which is measured in turn with others'."""
        if sizes not in self._checked:
            self._tell(sizes)
            (found,) = evaluate(self.model, self.checking, beam_size=sizes, m=self.m, metrics="recall").scores
            nodes = _nodes_scored(self.model, self.checking.x[:BATCH], sizes, self.m)
            self._checked[sizes] = Trial(sizes, found.value, found.low, found.high, nodes, 0.0)
        return self._checked[sizes]

    def trials(self, beams: list[tuple[int, ...]]) -> list[Trial]:
        """What the users to check find with each of some beams, and the times of all in turn."""
        found = [self.checked(sizes) for sizes in beams]
        took = milliseconds_of(self.model, self.checking.x, beams, self.m)
        return [replace(trial, milliseconds=each) for trial, each in zip(found, took, strict=True)]

    def look_for(self, path: list[tuple[int, ...]], asked: Asked) -> int:
        """The place of the last beam that keeps the recall, or of the first that keeps the time, by halving."""
        low, high = 0, len(path) - 1  # the one that is looked for lies between
        least = 0.0 if asked.recall is None else asked.recall * self._recall(path[0])
        while low < high:
            middle = (low + high + (asked.recall is not None)) // 2
            if asked.recall is not None:
                low, high = (middle, high) if self._recall(path[middle]) >= least else (low, middle - 1)
            else:
                (took,) = milliseconds_of(self.model, self.choosing.x, [path[middle]], self.m)
                low, high = (low, middle) if took <= (asked.milliseconds or 0) else (middle + 1, high)
        return low

    def _recall(self, sizes: tuple[int, ...]) -> float:
        self._tell(sizes)
        return evaluate(self.model, self.choosing, beam_size=sizes, m=self.m, metrics="recall")["recall", self.m]

    def _tell(self, sizes: tuple[int, ...]) -> None:
        if self._on_beam is not None:
            self._on_beam(sizes)


def milliseconds_of(model: TreeModel, x: Tensor, beams: Sequence[Sequence[int]], m: int) -> list[float]:
    """The median time of a query of one user for each of some beams, turn by turn, after some that do not count."""
    x, taken = x.to(model.tree.device), list[list[float]]()
    for turn in range(WARM_UP + QUERIES):
        user = x[turn % len(x)].unsqueeze(0)
        taken.append([])
        for sizes in beams:
            _wait(user)
            start = time.perf_counter()
            retrieve(model, user, beam_size=sizes, m=m)
            _wait(user)
            taken[-1].append((time.perf_counter() - start) * 1e3)
    return [statistics.median(each) for each in zip(*taken[WARM_UP:], strict=True)]


def _wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def _nodes_scored(model: TreeModel, x: Tensor, sizes: Sequence[int], m: int) -> float:
    """Nodes that a search scores, the mean over users."""
    with torch.no_grad():
        steps = walk(model.query(x.to(model.tree.device)), widths(model, sizes, m), choices=not model.chained)
        return sum(float((step.candidates != PAD).sum(1).double().mean()) for step in steps)

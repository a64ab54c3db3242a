"""One beam width per level: the narrowest beam that keeps a wide beam's recall, or the best one within a time limit.

Half of the users choose the beam, the other half check it.

1. One walk with the widest beam ranks the ancestors of every relevant item it finds. The rank of an ancestor is the
   width its level needs to keep the item.
2. Starting from the widest beam, one level after another is narrowed, always the one that saves most nodes for the
   recall it loses by these ranks. This gives a path of beams, from wide and slow to narrow and fast.
3. A binary search along the path, with real searches, finds the last beam that keeps the recall or the first that keeps
   the time. If it fails for the users that check, its neighbour is tried.

The ranks are those of the widest beam. With narrower levels above, an ancestor has fewer rivals, so the ranks are
pessimistic; real searches decide. The last level keeps its width: it costs nothing, and a beam tuned for a small m can
still return more items.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from beamtree.beam import DEFAULT_BEAM_SIZE, retrieve, walk, widths
from beamtree.data import Data
from beamtree.data.instances import Instances
from beamtree.evaluate import evaluate
from beamtree.evaluate.metrics import hits
from beamtree.model import TreeModel
from beamtree.scorers import with_inputs
from beamtree.tree import PAD, distinct

USERS = 1000  # by default
QUERIES, WARM_UP = 40, 20  # timed queries, and those before them that do not count
BATCH = 32
RUNGS = 12  # steps of width from m up to the widest beam
EPSILON = 1e-9  # of the recall: if nothing is lost, the largest saving comes first

OnBeam = Callable[[tuple[int, ...]], None]


@dataclass(frozen=True)
class BeamTrial:
    """One measured beam: recall of the checking users with its 95 % interval, and the cost of a query."""

    beam_size: tuple[int, ...]
    recall: float
    low: float
    high: float
    nodes: float  # scored per query
    milliseconds: float  # the median of one query at a time

    @property
    def is_uniform(self) -> bool:
        """Whether all levels have the same width."""
        return all(width == self.beam_size[-1] for width in self.beam_size)


@dataclass(frozen=True)
class TuneResult:
    """The chosen beam, and the beams it was compared with."""

    chosen: BeamTrial
    m: int
    target: str  # what was required, as text
    share: float  # of the widest beam's recall
    users: int  # that checked it
    tried: tuple[BeamTrial, ...]  # the widest first, then narrower uniform ones, then the chosen one

    def as_dict(self) -> dict[str, Any]:
        """The content of `tune.json`, without the model."""
        result = {**asdict(self.chosen), "m": self.m, "target": self.target, "share": self.share, "users": self.users}
        return {**result, "tried": [asdict(trial) for trial in self.tried]}


def tune(
    model: TreeModel,
    data: Data,
    *,
    recall: float | None = None,
    milliseconds: float | None = None,
    m: int = 10,
    widest: int = DEFAULT_BEAM_SIZE,
    users: int = USERS,
    seed: int = 0,
    on_beam: OnBeam | None = None,
) -> TuneResult:
    """Choose one width per level that keeps a share of the widest beam's recall, or answers within a time.

    Args:
        model: the model that is searched.
        data: users and what they chose, such as `data.val`.
        recall: the share of the widest beam's recall to keep, such as 0.99; or
        milliseconds: the time limit of one query at a time on this machine; the best beam within it is chosen.
        m: how many items are retrieved.
        widest: k of the beam that all are compared with.
        users: how many users to measure on.
        seed: of the choice of users, and of which half chooses.
        on_beam: called with every beam before it is measured.
    """
    if (recall is None) == (milliseconds is None):
        raise ValueError("give recall or milliseconds: one of the two")
    if recall is not None and not 0 < recall <= 1:
        raise ValueError(f"recall={recall:g}: must be a share of the widest beam's, above 0 and up to 1")
    if milliseconds is not None and not 0 < milliseconds < float("inf"):
        raise ValueError(f"milliseconds={milliseconds:g}: must be above 0")
    widest = max(widest, m)
    top = reachable_widths(model, widths(model, widest, m))
    bench = _Bench(model, *_two_halves(with_inputs(model.scorer, data), users, seed), m, on_beam)
    halvings = [widest >> n for n in range(widest.bit_length())]
    uniform = [(width,) * len(top) for width in halvings if width >= m]
    path = [top, *narrowing_path(model, top, m, *needed_widths(model, bench.choosing, top, m))]
    if recall is not None:
        index = bench.last_with_recall(path, recall)
        least = recall * bench.check(uniform[0]).recall
        while index and bench.check(path[index]).recall < least:
            index -= 1
        trials = bench.trials([*uniform, path[index]])
        target = f"{recall:g} of the widest beam's recall"
    else:
        assert milliseconds is not None
        index = bench.first_within(path, milliseconds)
        trials = bench.trials([*uniform, path[index]])
        while trials[-1].milliseconds > milliseconds:
            index += 1
            if index == len(path):
                fastest = f"the narrowest beam takes {trials[-1].milliseconds:.2f} milliseconds"
                raise ValueError(f"{fastest}: allow more, or ask for a smaller m")
            trials = bench.trials([*uniform, path[index]])
        target = f"{milliseconds:g} milliseconds"
    share = trials[-1].recall / trials[0].recall if trials[0].recall else 1.0
    return TuneResult(trials[-1], m, target, share, len(bench.checking), tuple(trials))


def _two_halves(data: Data, users: int, seed: int) -> tuple[Instances, Instances]:
    """The users that choose and those that check, drawn by the seed."""
    if len(data) < 2 or users < 2:
        raise ValueError("two users are needed, one to choose by and one to check: prepare with more validation users")
    rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:users]
    halves = (rows[::2].sort().values, rows[1::2].sort().values)
    choosing, checking = (Instances(x.cpu(), distinct(y.cpu())) for x, y in map(data.batch, halves))
    return choosing, checking


class _Bench:
    """Measures beams on the users that choose and on those that check."""

    def __init__(
        self, model: TreeModel, choosing: Instances, checking: Instances, m: int, on_beam: OnBeam | None
    ) -> None:
        self.model, self.choosing, self.checking, self.m = model, choosing, checking, m
        self._on_beam = on_beam or (lambda sizes: None)
        self._checked: dict[tuple[int, ...], BeamTrial] = {}

    def check(self, sizes: tuple[int, ...]) -> BeamTrial:
        """Recall and nodes of the checking users; times are measured by `trials`, several beams in turn."""
        if sizes not in self._checked:
            self._on_beam(sizes)
            (score,) = evaluate(self.model, self.checking, beam_size=sizes, m=self.m, metrics="recall").scores
            nodes = self._nodes_scored(sizes)
            self._checked[sizes] = BeamTrial(sizes, score.value, score.low, score.high, nodes, 0.0)
        return self._checked[sizes]

    def trials(self, beams: list[tuple[int, ...]]) -> list[BeamTrial]:
        """Recall, nodes and times of some beams."""
        trials = [self.check(sizes) for sizes in beams]
        times = query_milliseconds(self.model, self.checking.x, beams, self.m)
        return [replace(trial, milliseconds=ms) for trial, ms in zip(trials, times, strict=True)]

    def last_with_recall(self, path: list[tuple[int, ...]], share: float) -> int:
        """The index of the last beam that keeps a share of the first one's recall, by binary search."""
        low, high = 0, len(path) - 1
        least = share * self._recall(path[0])
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._recall(path[middle]) >= least else (low, middle - 1)
        return low

    def first_within(self, path: list[tuple[int, ...]], milliseconds: float) -> int:
        """The index of the first beam that answers within a time, by binary search."""
        low, high = 0, len(path) - 1
        while low < high:
            middle = (low + high) // 2
            (ms,) = query_milliseconds(self.model, self.choosing.x, [path[middle]], self.m)
            low, high = (low, middle) if ms <= milliseconds else (middle + 1, high)
        return low

    @torch.no_grad()
    def _nodes_scored(self, sizes: tuple[int, ...]) -> float:
        """The number of nodes that a search scores, mean over users."""
        query = self.model.query(self.checking.x[:BATCH].to(self.model.tree.device))
        steps = walk(query, widths(self.model, sizes, self.m), skip_full_levels=True)
        return sum(float((step.candidates != PAD).sum(1).double().mean()) for step in steps)

    def _recall(self, sizes: tuple[int, ...]) -> float:
        self._on_beam(sizes)
        return evaluate(self.model, self.choosing, beam_size=sizes, m=self.m, metrics="recall")["recall", self.m]


def query_milliseconds(model: TreeModel, x: Tensor, beams: Sequence[Sequence[int]], m: int) -> list[float]:
    """The median time of a single-user query with each beam; the beams take turns, after a warm-up."""
    x, times = x.to(model.tree.device), list[list[float]]()
    for turn in range(WARM_UP + QUERIES):
        user = x[turn % len(x)].unsqueeze(0)
        times.append([])
        for sizes in beams:
            if user.is_cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            retrieve(model, user, beam_size=sizes, m=m)
            if user.is_cuda:
                torch.cuda.synchronize()
            times[-1].append((time.perf_counter() - start) * 1e3)
    return [statistics.median(column) for column in zip(*times[WARM_UP:], strict=True)]


# The path of beams, from wide to narrow


@torch.no_grad()
def needed_widths(model: TreeModel, users: Instances, sizes: Sequence[int], m: int) -> tuple[Tensor, Tensor]:
    """For every relevant item that a beam of these widths finds: the width that keeps it on each level [N, levels].

    That is the rank of its ancestor, on ties the worst. Also the share of each item in the mean recall [N].
    """
    needed, weights = [], []
    for rows in torch.arange(len(users)).split(BATCH):
        x, y = (part.to(model.tree.device) for part in users.batch(rows))
        hit = hits(y, retrieve(model, x, beam_size=sizes, m=m)[0])  # [B, P]
        user, _ = hit.nonzero(as_tuple=True)
        leaves = model.tree.leaf_of_item(y[hit])
        ranks = []
        for step in walk(model.query(x), sizes):
            ancestor = model.tree.ancestor(leaves, step.level).unsqueeze(1)
            scores = step.scores[user]  # [N, k]
            is_other = step.beam.expand(len(x), -1)[user] != ancestor
            ranks.append((scores >= scores.masked_fill(is_other, -torch.inf).amax(1, keepdim=True)).sum(1))
        needed.append(torch.stack(ranks, dim=1).cpu())
        weights.append((1 / (y != PAD).sum(1) / len(users))[user].double().cpu())
    return torch.cat(needed), torch.cat(weights)


def narrowing_path(
    model: TreeModel, sizes: Sequence[int], m: int, needed: Tensor, weights: Tensor
) -> Iterator[tuple[int, ...]]:
    """Ever narrower beams: each narrows one level of the one before, with the best ratio of nodes saved to loss."""
    rungs = sorted({round(m * (sizes[-1] / m) ** (step / RUNGS)) for step in range(RUNGS + 1)}, reverse=True)
    beam, alive = tuple(sizes), torch.ones(len(needed), dtype=torch.bool)
    while True:
        options = []
        for index in range(len(beam) - 1):
            for width in (rung for rung in rungs if rung < beam[index]):
                narrower = (*beam[:index], width, *beam[index + 1 :])
                saved = max_nodes_scored(model, beam) - max_nodes_scored(model, narrower)
                if saved > 0:  # narrowing a level that was kept whole means that it has to be scored
                    lost = float(weights[alive & (needed[:, index] > width)].sum())
                    options.append((saved / (lost + EPSILON), index, narrower))
                    break
        if not options:
            return
        _, index, beam = max(options)
        alive &= needed[:, index] <= beam[index]
        yield reachable_widths(model, beam)


def reachable_widths(model: TreeModel, sizes: Sequence[int]) -> tuple[int, ...]:
    """The same beam with every level but the last at most as wide as its number of candidates."""
    result, above = [], len(model.tree.level(model.first_level - 1))
    for width in sizes[:-1]:
        above = min(width, above * model.tree.arity)
        result.append(above)
    return (*result, sizes[-1])


def max_nodes_scored(model: TreeModel, sizes: Sequence[int]) -> int:
    """An upper bound on the nodes that a search scores: levels that it keeps whole are not scored."""
    tree, total = model.tree, 0
    beam = tree.mask.count(model.first_level - 1)
    for level, width in zip(range(model.first_level, tree.height + 1), sizes, strict=True):
        candidates = beam * tree.arity
        beam = min(width, candidates)
        if model.chained or beam < candidates or level == tree.height:
            total += min(candidates, tree.mask.count(level))
    return total

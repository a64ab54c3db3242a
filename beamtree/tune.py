"""One width per level: the narrowest beam that still finds what a wide one finds, or the best one within a time.

The search is small and looks at validation users, half of them to choose by and half to check.

1. One walk with the widest beam says of every relevant item it finds how the item's ancestor ranks on each level: so
   wide that level must be to keep it.
2. From the widest beam on, one level after another is narrowed, each time the one that saves most nodes for what it
   loses by these ranks. That gives a path of beams, from wide and slow to narrow and fast.
3. Along the path the last beam that holds is looked for by halving, with real searches: by the recall of the users to
   choose by, or by the median time of one query at a time. If the users to check say it does not hold, the wider
   neighbour is tried.

The ranks are those of the widest beam. With narrower levels above, an ancestor has fewer rivals, so the ranks rather
ask too much; what counts is what real searches find. The last level keeps its width: it costs nothing, and a beam that
was tuned for few items can still give many.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.beam import retrieve, walk, widths
from beamtree.data import Data
from beamtree.data.instances import Instances
from beamtree.evaluate import evaluate
from beamtree.metrics import hits
from beamtree.model import TreeModel
from beamtree.tree import PAD, Tree, distinct

USERS = 1000  # are looked at unless told otherwise
RUNGS = 12  # widths from m up to the widest beam
QUERIES, WARM_UP = 40, 20  # that are timed, and before them
BATCH = 32
LEAST = 1e-9  # of the recall: where nothing is lost, what saves most comes first


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


OnTrial = Callable[[Trial], None]


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
    on_trial: OnTrial | None = None,
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
        on_trial: hears of every beam as it has been measured.
    """
    asked = _asked(recall, milliseconds)
    widest = max(widest, m)
    top = as_held(model, widths(model, widest, m))
    choosing, checking = _two_halves(data, users, seed)
    bench = _Bench(model, choosing, checking, m, on_trial)
    uniform = [bench.trial((width,) * len(top)) for width in _halves(widest, m)]
    path = [top, *narrowed(model, top, m, *needed_widths(model, choosing, top, m))]
    place = bench.look_for(path, asked)
    chosen = bench.trial(path[place])
    while not _holds(chosen, asked, uniform[0].recall):
        place += 1 if asked.recall is None else -1
        if not 0 <= place < len(path):
            fastest = f"the narrowest beam takes {chosen.milliseconds:.2f} milliseconds"
            raise ValueError(f"{fastest}: allow more, or ask for a smaller m")
        chosen = bench.trial(path[place])
    share = chosen.recall / uniform[0].recall if uniform[0].recall else 1.0
    return Tuned(chosen, m, str(asked), share, len(checking), (*uniform, chosen))


def _asked(recall: float | None, milliseconds: float | None) -> Asked:
    if (recall is None) == (milliseconds is None):
        raise ValueError("give recall or milliseconds: one of the two")
    if recall is not None and not 0 < recall <= 1:
        raise ValueError(f"recall={recall:g}: give a share of the widest beam's, above 0 and up to 1")
    if milliseconds is not None and not 0 < milliseconds < float("inf"):
        raise ValueError(f"milliseconds={milliseconds:g}: give what a query may take, above 0")
    return Asked(recall, milliseconds)


def _holds(trial: Trial, asked: Asked, widest: float) -> bool:
    if asked.recall is not None:
        return trial.recall >= asked.recall * widest
    return asked.milliseconds is not None and trial.milliseconds <= asked.milliseconds


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
        self, model: TreeModel, choosing: Instances, checking: Instances, m: int, on_trial: OnTrial | None
    ) -> None:
        self.model, self.choosing, self.checking, self.m, self.on_trial = model, choosing, checking, m, on_trial

    def trial(self, sizes: tuple[int, ...]) -> Trial:
        (found,) = evaluate(self.model, self.checking, beam_size=sizes, m=self.m, metrics="recall").scores
        took = milliseconds(self.model, self.checking.x, sizes, self.m)
        nodes = _nodes_scored(self.model, self.checking.x[:BATCH], sizes, self.m)
        trial = Trial(sizes, found.value, found.low, found.high, nodes, took)
        if self.on_trial is not None:
            self.on_trial(trial)
        return trial

    def look_for(self, path: list[tuple[int, ...]], asked: Asked) -> int:
        """The place of the last beam that keeps the recall, or of the first that keeps the time, by halving."""
        low, high = 0, len(path) - 1  # the one that is looked for lies between
        least = 0.0 if asked.recall is None else asked.recall * self._recall(path[0])
        while low < high:
            middle = (low + high + (asked.recall is not None)) // 2
            if asked.recall is not None:
                low, high = (middle, high) if self._recall(path[middle]) >= least else (low, middle - 1)
            else:
                took = milliseconds(self.model, self.choosing.x, path[middle], self.m)
                low, high = (low, middle) if took <= (asked.milliseconds or 0) else (middle + 1, high)
        return low

    def _recall(self, sizes: tuple[int, ...]) -> float:
        return evaluate(self.model, self.choosing, beam_size=sizes, m=self.m, metrics="recall")["recall", self.m]


def milliseconds(model: TreeModel, x: Tensor, beam_size: Sequence[int], m: int) -> float:
    """The median over queries of one user each, after some that do not count."""
    x, taken = x.to(model.tree.device), []
    for turn in range(WARM_UP + QUERIES):
        user = x[turn % len(x)].unsqueeze(0)
        _wait(user)
        start = time.perf_counter()
        retrieve(model, user, beam_size=beam_size, m=m)
        _wait(user)
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken[WARM_UP:])


def _wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def _nodes_scored(model: TreeModel, x: Tensor, sizes: Sequence[int], m: int) -> float:
    """Nodes that a search scores, the mean over users."""
    with torch.no_grad():
        steps = walk(model.query(x.to(model.tree.device)), widths(model, sizes, m), choices=not model.chained)
        return sum(float((step.candidates != PAD).sum(1).double().mean()) for step in steps)


@torch.no_grad()
def needed_widths(model: TreeModel, users: Instances, sizes: Sequence[int], m: int) -> tuple[Tensor, Tensor]:
    """Of every relevant item that a beam of these widths finds, how wide each level must be to keep it [N, levels].

    That is the rank of its ancestor; of equals, the worst. And what finding it adds to the mean recall [N].
    """
    needed, weights = [], []
    for rows in torch.arange(len(users)).split(BATCH):
        x, y = (part.to(model.tree.device) for part in users.batch(rows))
        found = hits(y, retrieve(model, x, beam_size=sizes, m=m)[0])  # [B, P]
        user, _ = found.nonzero(as_tuple=True)
        leaves = model.tree.leaf_of_item(y[found])
        ranks = []
        for step in walk(model.query(x), sizes):
            ancestor = model.tree.ancestor(leaves, step.level).unsqueeze(1)
            rank = step.rank[user]  # [N, k]
            own = rank.masked_fill(step.beam.expand(len(x), -1)[user] != ancestor, -torch.inf).amax(1, keepdim=True)
            ranks.append((rank >= own).sum(1))
        needed.append(torch.stack(ranks, dim=1).cpu())
        weights.append((1 / (y != PAD).sum(1) / len(users))[user].double().cpu())
    return torch.cat(needed), torch.cat(weights)


def narrowed(
    model: TreeModel, sizes: Sequence[int], m: int, needed: Tensor, weights: Tensor
) -> Iterator[tuple[int, ...]]:
    """Narrower and narrower beams: each narrows one level of the last, where that saves most for what it loses."""
    rungs = sorted({round(m * (sizes[-1] / m) ** (step / RUNGS)) for step in range(RUNGS + 1)}, reverse=True)
    beam, kept = tuple(sizes), torch.ones(len(needed), dtype=torch.bool)
    while True:
        options = []
        for place in range(len(beam) - 1):
            for width in (rung for rung in rungs if rung < beam[place]):
                fewer = (*beam[:place], width, *beam[place + 1 :])
                saved = nodes_of(model, beam) - nodes_of(model, fewer)
                if saved > 0:  # one that narrows a level that was kept whole has to score it
                    lost = float(weights[kept & (needed[:, place] > width)].sum())
                    options.append((saved / (lost + LEAST), place, fewer))
                    break
        if not options:
            return
        _, place, beam = max(options)
        kept &= needed[:, place] <= beam[place]
        yield as_held(model, beam)


def as_held(model: TreeModel, sizes: Sequence[int]) -> tuple[int, ...]:
    """The same beam with no level but the last wider than what can come down to it."""
    found, above = [], len(model.tree.level(model.first_level - 1))
    for width in sizes[:-1]:
        above = min(width, above * model.tree.arity)
        found.append(above)
    return (*found, sizes[-1])


def nodes_of(model: TreeModel, sizes: Sequence[int]) -> int:
    """How many nodes a search with these widths scores at most: levels that it keeps whole are passed over."""
    tree, total = model.tree, 0
    held = _open_nodes(tree, model.first_level - 1)
    for level, width in zip(range(model.first_level, tree.height + 1), sizes, strict=True):
        candidates = held * tree.arity
        held = min(width, candidates)
        if model.chained or held < candidates or level == tree.height:
            total += min(candidates, _open_nodes(tree, level))
    return total


def _open_nodes(tree: Tree, level: int) -> int:
    """How many nodes of a level may be entered."""
    listed = tree.mask.listed(level)
    return len(tree.level(level)) if listed is None else len(listed)

"""Evaluation: P@m, R@m, F@m over users (Sec. 3.2.2), with intervals."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from beamtree.beam import DEFAULT_BEAM_SIZE, BeamSize, retrieve
from beamtree.checks import positive_int
from beamtree.data import Data
from beamtree.data.frames import make_frame
from beamtree.errors import lookup
from beamtree.metrics import METRICS, Metric, bootstrap, hits, num_relevant
from beamtree.model import TreeModel
from beamtree.tree import PAD

Find = Callable[[Tensor, Tensor], Tensor]  # (users x, items to exclude [B, E]) -> the best items, best first
OnUsers = Callable[[int], None]  # users done since the last call


@dataclass(frozen=True)
class Score:
    """One metric at one m: its mean over users and the 95 % interval of that mean."""

    metric: str
    m: int
    value: float
    low: float
    high: float

    def record(self) -> dict[str, str | int | float]:
        return vars(self).copy()


class Evaluation(Mapping[tuple[str, int], float]):
    """The scores of a model: `evaluation["recall", 200]` is a mean; it prints as a table."""

    def __init__(
        self, scores: list[Score], values: Tensor, users_asked: int | None = None, exclude_seen: bool = False
    ) -> None:
        self.scores = scores
        self.per_user = values  # [U, cuts, metrics]
        self.users = len(values)
        self.users_asked = self.users if users_asked is None else users_asked  # with those left out
        self.exclude_seen = exclude_seen
        self.of = "users"  # what the means are taken over
        self.frame_kind: str | None = None  # of `to_frame`: polars, or pandas where the log was a frame of pandas
        self._means = {(score.metric, score.m): score.value for score in scores}

    def __getitem__(self, key: tuple[str, int]) -> float:
        return self._means[key]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._means)

    def __len__(self) -> int:
        return len(self._means)

    def __str__(self) -> str:
        cuts = list(dict.fromkeys(score.m for score in self.scores))
        lines = ["".join([f"{'%':<10}", *(f"{f'@{m}':>25}" for m in cuts)])]
        for metric in dict.fromkeys(score.metric for score in self.scores):
            shown = [score for score in self.scores if score.metric == metric]
            cells = [f"{f'{s.value:.2%}'[:-1]} [{s.low * 100:.2f}, {s.high * 100:.2f}]" for s in shown]
            lines.append("".join([f"{metric:<10}", *(f"{cell:>25}" for cell in cells)]))
        lines.append(f"{self.users:,} {self.of}; in brackets the 95 % interval of the mean over {self.of}")
        if self.exclude_seen:
            left_out = self.users_asked - self.users
            who = f"; so were {left_out:,} of {self.users_asked:,} users, who chose nothing new" if left_out else ""
            lines.append(f"seen items left out{who}")
        return "\n".join(lines)

    __repr__ = __str__

    def to_frame(self) -> Any:
        """One row per metric and m: metric, m, value, low, high."""
        names = ("metric", "m", "value", "low", "high")
        columns = {name: [getattr(score, name) for score in self.scores] for name in names}
        return make_frame(columns, kind=self.frame_kind)


def evaluate(
    model: TreeModel,
    data: Data,
    *,
    beam_size: BeamSize = DEFAULT_BEAM_SIZE,
    m: Sequence[int] | int = (10, 50, 100, 200),
    metrics: Sequence[str | Metric] | str | Metric = ("precision", "recall", "f1"),
    exclude_seen: bool = False,
    batch_size: int = 64,
    on_users: OnUsers | None = None,
) -> Evaluation:
    """The mean over users of each metric at each m, from one search.

    Args:
        model: the model.
        data: users and their targets, such as `data.test`.
        beam_size: k, or one width for each searched level.
        m: the number of retrieved items, or several cuts of one list.
        metrics: one or several: names of `metrics.METRICS`, or your own functions (hits [B, m], |I_x| [B], m) -> [B].
        exclude_seen: whether items that a user has seen are neither retrieved nor expected.
        batch_size: users that are searched together.
        on_users: called with the number of users done since the last call.
    """
    model.tree.check_items(data.item_numbers())
    cuts = all_cuts(m)
    find = search_function(model, beam_size, max(cuts, default=1))  # `measure` refuses an empty m
    return measure(
        find, data, m=cuts, metrics=metrics, exclude_seen=exclude_seen, batch_size=batch_size, on_users=on_users
    )


def search_function(model: TreeModel, beam_size: BeamSize, m: int) -> Find:
    """A function that finds the m best items of a model, for users on any device."""
    device = model.tree.device

    def find(x: Tensor, exclude: Tensor) -> Tensor:
        return retrieve(model, x.to(device), beam_size=beam_size, m=m, exclude=exclude.to(device))[0]

    return find


def measure(
    find: Find,
    data: Data,
    *,
    m: Sequence[int] | int = (10, 50, 100, 200),
    metrics: Sequence[str | Metric] | str | Metric = ("precision", "recall", "f1"),
    exclude_seen: bool = False,
    batch_size: int = 64,
    on_users: OnUsers | None = None,
) -> Evaluation:
    """The same for any function that finds items.

    Args:
        find: (users x, items to exclude [B, E]) -> the best items, best first.
        data: users and their targets.
        m: the number of items, or several.
        metrics: names, or your own functions.
        exclude_seen: whether seen items are excluded from results and targets, with users who have no other targets.
        batch_size: users in one call of `find`.
        on_users: called with the number of users done since the last call.
    """
    named, cuts = named_metrics(metrics), all_cuts(m)
    if not named or not cuts:
        raise ValueError(f"nothing to measure: give an m and a metric of {', '.join(METRICS)}")
    if not len(data):
        raise ValueError("there are no users to measure")
    parts = []
    for start in range(0, len(data), batch_size):
        rows = torch.arange(start, min(start + batch_size, len(data)))
        x, y = (part.cpu() for part in data.batch(rows))
        exclude = torch.empty(len(x), 0, dtype=torch.int64)
        if exclude_seen:
            exclude = data.seen(rows).cpu()
            y = y.masked_fill(hits(y, exclude), PAD)
            left = (y != PAD).any(1)
            x, y, exclude = x[left], y[left], exclude[left]
        if len(x):
            hit, relevant = hits(find(x, exclude).cpu(), y), num_relevant(y)
            values = [[metric(hit, relevant, size).float() for metric in named.values()] for size in cuts]
            parts.append(torch.stack([torch.stack(row, dim=1) for row in values], dim=1))  # [B, cuts, metrics]
        if on_users is not None:
            on_users(len(rows))
    if not parts:
        raise ValueError("no user has a target that was not seen before: nothing to measure")
    return summarise(torch.cat(parts), cuts, tuple(named), len(data), exclude_seen)


def all_cuts(m: Iterable[int] | int) -> tuple[int, ...]:
    """One or several m as a tuple; a ValueError where one is not a whole number above 0."""
    return tuple(positive_int("m", each) for each in (m if isinstance(m, Iterable) else (m,)))


def leaving_out(retrieve: Callable[[Tensor, int], tuple[Tensor, Tensor]], m: int) -> Find:
    """A search without an `exclude` argument as a `Find`: it retrieves more items, and excluded ones are removed."""

    def find(x: Tensor, exclude: Tensor) -> Tensor:
        items, scores = retrieve(x, m + exclude.shape[1])
        if not exclude.shape[1]:
            return items
        scores = scores.masked_fill(hits(items, exclude.to(items.device)), -torch.inf)
        best = scores.topk(m)
        return items.gather(1, best.indices).masked_fill(best.values == -torch.inf, PAD)

    return find


def named_metrics(metrics: Sequence[str | Metric] | str | Metric) -> dict[str, Metric]:
    """One or several metrics by name; a ValueError where one is unknown."""
    if isinstance(metrics, str) or callable(metrics):
        metrics = (metrics,)
    named: dict[str, Metric] = {}
    for metric in metrics:
        name = metric if isinstance(metric, str) else getattr(metric, "__name__", repr(metric))
        function = lookup(METRICS, "metric", metric) if isinstance(metric, str) else metric
        if named.setdefault(name, function) is not function:
            raise ValueError(f"two metrics are called {name!r}: give each function a name of its own")
    return named


def summarise(
    values: Tensor,
    m: Sequence[int],
    metrics: Sequence[str],
    users_asked: int | None = None,
    exclude_seen: bool = False,
) -> Evaluation:
    """Means and intervals over users of values [U, cuts, metrics]."""
    means = values.double().mean(0)
    low, high = (bound.view_as(means) for bound in bootstrap(values.flatten(1)))
    scores = [
        Score(name, size, float(means[i, j]), float(low[i, j]), float(high[i, j]))
        for j, name in enumerate(metrics)
        for i, size in enumerate(m)
    ]
    return Evaluation(scores, values, users_asked, exclude_seen)

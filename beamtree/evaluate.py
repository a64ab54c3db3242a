"""How well items are found: P@m, R@m, F@m over users (Sec. 3.2.2), with intervals."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from beamtree.beam import retrieve
from beamtree.data import Data, Log
from beamtree.metrics import NAMES, all_metrics, bootstrap, hits, num_relevant
from beamtree.model import TreeModel
from beamtree.tree import PAD

Find = Callable[[Tensor, Tensor], Tensor]  # (histories x, items to leave out) -> the best items, best first
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
    """The scores of a model: `evaluation["recall", 200]` is a mean, printing it gives a table."""

    def __init__(self, scores: list[Score], values: Tensor) -> None:
        self.scores = scores
        self.per_user = values  # of every user [U, cuts, metrics]
        self.users = len(values)
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
        return "\n".join(lines)


def evaluate(
    model: TreeModel,
    data: Data,
    *,
    beam_size: int = 400,
    m: tuple[int, ...] = (10, 50, 100, 200),
    metrics: tuple[str, ...] = ("precision", "recall", "f1"),
    exclude_seen: bool = False,
    batch_size: int = 64,
    on_users: OnUsers | None = None,
) -> Evaluation:
    """The mean over users of each metric at each m: one search serves them all."""
    model.tree.check_items(data.item_numbers())
    device = model.tree.device

    def find(x: Tensor, exclude: Tensor) -> Tensor:
        items, _ = retrieve(model, x.to(device), beam_size=beam_size, m=max(m), exclude=exclude.to(device))
        return items

    return measure(
        find, data, m=m, metrics=metrics, exclude_seen=exclude_seen, batch_size=batch_size, on_users=on_users
    )


def measure(
    find: Find,
    data: Data,
    *,
    m: tuple[int, ...] = (10, 50, 100, 200),
    metrics: tuple[str, ...] = ("precision", "recall", "f1"),
    exclude_seen: bool = False,
    batch_size: int = 64,
    on_users: OnUsers | None = None,
) -> Evaluation:
    """The same for anything that finds items.

    With `exclude_seen`, what a user has seen is neither retrieved nor expected: it is left out of y, and users of
    whom nothing is left are left out.
    """
    unknown = [name for name in metrics if name not in NAMES]
    if unknown:
        raise ValueError(f"metric {unknown[0]!r} is unknown: choose from {', '.join(NAMES)}")
    if not metrics or not m:
        raise ValueError(f"nothing to measure: give an m and a metric of {', '.join(NAMES)}")
    parts = []
    for start in range(0, len(data), batch_size):
        rows = torch.arange(start, min(start + batch_size, len(data)))
        x, y = (part.cpu() for part in data.batch(rows))
        exclude = torch.empty(len(x), 0, dtype=torch.int64)
        if exclude_seen:
            exclude = seen(data, rows)
            y = y.masked_fill(hits(y, exclude), PAD)
            left = (y != PAD).any(1)
            x, y, exclude = x[left], y[left], exclude[left]
        if len(x):
            hit, relevant = hits(find(x, exclude).cpu(), y), num_relevant(y)
            parts.append(torch.stack([all_metrics(hit, relevant, size) for size in m], dim=1))  # [B, cuts, 5]
        if on_users is not None:
            on_users(len(rows))
    if not parts:
        raise ValueError("no user has a target that was not seen before: nothing to measure")
    columns = [NAMES.index(name) for name in metrics]
    return summarise(torch.cat(parts)[:, :, columns], m, metrics)


def summarise(values: Tensor, m: tuple[int, ...], metrics: tuple[str, ...]) -> Evaluation:
    """Means and intervals of every user's values [U, cuts, metrics]."""
    means = values.double().mean(0)
    low, high = (bound.view_as(means) for bound in bootstrap(values.flatten(1)))
    scores = [
        Score(name, size, float(means[i, j]), float(low[i, j]), float(high[i, j]))
        for j, name in enumerate(metrics)
        for i, size in enumerate(m)
    ]
    return Evaluation(scores, values)


def seen(data: Data, rows: Tensor) -> Tensor:
    """What users have seen before their targets [B, S], PAD where less."""
    if not isinstance(data, Log):
        raise ValueError("what was seen is known of a log of events alone")
    return data.past(rows)

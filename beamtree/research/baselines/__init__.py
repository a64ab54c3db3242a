"""Baselines without a tree. The libraries that one needs beside torch are imported only for it."""

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.data import BeforeAfter, Events
from beamtree.data.times import DAY
from beamtree.errors import requires
from beamtree.evaluate.metrics import hits, num_relevant, recall
from beamtree.tree import PAD

WINDOWS = (7, 30, 90, 365)  # days that popularity may be counted in, beside the whole log


class Baseline(Protocol):
    """Ranks items for histories."""

    @property
    def num_bytes(self) -> int:
        """The size of the model."""
        ...

    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m best items of each history x [B, T] and their scores, best first [B, m]; padded with PAD and -inf."""
        ...


def pad_results(items: Tensor, scores: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Items and scores [..., ≤ m], padded to m with PAD and -inf."""
    padding = (0, m - items.shape[-1])
    return pad(items, padding, value=PAD), pad(scores, padding, value=-torch.inf)


class Popularity:
    """The same items for everybody: those with the most events, on ties the lower number first."""

    def __init__(self, counts: Tensor, label: str = "") -> None:
        """`label` says in which days they were counted, where the log has a clock."""
        self.label = label
        self._scores, self._items = counts.float().sort(descending=True, stable=True)  # [M]

    @property
    def num_bytes(self) -> int:
        return int(self._scores.nbytes + self._items.nbytes)

    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m most popular items and their events, for each history [B, m]; padded with PAD and -inf."""
        items, scores = pad_results(self._items[:m], self._scores[:m], m)
        return items.to(x.device).expand(len(x), m), scores.to(x.device).expand(len(x), m)


def popularity(events: Events, num_items: int, val: BeforeAfter | None = None) -> Popularity:
    """Count the events of the training users.

    Where the log has a clock, they are those in the newest days: the window of the highest recall on validation users.
    """
    from beamtree.research.baselines import tuned

    whole, span = events.popularity(num_items), events.span_of_time()
    if not span or events.times is None:
        return Popularity(whole)
    items, times = events.item_numbers().cpu(), events.times[events.span()]
    age = (times.max() - times) // (events.clock or 1)
    rows = {0.0: Popularity(whole, "all days")}
    if val is None or not len(val):
        return rows[0.0]
    for days in WINDOWS:
        if days * DAY < span:
            counts = torch.bincount(items[age < days * DAY], minlength=num_items)
            rows[days] = Popularity(counts, f"{days} days")
    x, y = val.batch(torch.arange(min(tuned.USERS, len(val))))
    trials = list[tuned.Trial]()
    for window, row in rows.items():
        hit, relevant = hits(row.retrieve(x, max(tuned.CUTS))[0], y), num_relevant(y)
        trials.append(({"days": window}, torch.stack([recall(hit, relevant, m).mean() for m in tuned.CUTS])))
    return rows[tuned.best_settings(trials)["days"]]


# Name -> module and function; the function takes events and the number of items.
FIXED = {
    "item-cf": (".neighbours", "item_cf"),
    "item-cf-nearest": (".neighbours", "item_cf_nearest"),
    "als": (".als", "als"),
}
# The same for baselines that also take validation users, to choose their settings.
TUNED = {
    "popularity": (__name__, "popularity"),
    "ease": (".ease", "ease"),
    "ials": (".als", "ials"),
    "user-knn": (".neighbours", "user_knn"),
    "rules": (".neighbours", "rules"),
}
BASELINES = {**FIXED, **TUNED}


def build(name: str, events: Events, num_items: int, val: BeforeAfter | None = None) -> Baseline:
    """Fit a baseline to the events of training users; a tuned one chooses its settings by validation users."""
    module, function = BASELINES[name]
    with requires("compare", f"row {name}"):
        make: Callable[..., Baseline] = getattr(import_module(module, __name__), function)
        return make(events, num_items, val) if name in TUNED else make(events, num_items)


__all__ = ["BASELINES", "FIXED", "TUNED", "Baseline", "Popularity", "build", "pad_results", "popularity"]

"""Trends: what is chosen now. Events count less the older they are; those that come later count at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.data.inputs import NO_TIME
from beamtree.data.times import DAY
from beamtree.scorers.base import LaterEvents, NewItems
from beamtree.scorers.dot_product import DotProductScorer
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import PAD, Tree

TREND = "trend"  # the name of the part
POWER = 0.5  # of counts
NEVER = 0  # a time of which nothing is left
LATE = 0.25  # half-lives that events may be newer than the time that counts are of
Key = tuple[str, int, int]  # a user, an item and a day since 1970 (UTC)


@dataclass
class Later:
    """What a trend keeps of its fit and of the events since, to count them again."""

    counts: Tensor  # of the fit, at `origin` [M, columns]
    origin: int
    newest: int
    times: dict[Key, int]  # of the newest event of a user with an item on a day
    days: dict[int, int]  # of the newest event on each day, also of items that the tree does not have

    def pauses(self, times: Tensor, end: int) -> Tensor:
        """The seconds of the days without events between each of some times [n] and a later one, after the log [n]."""
        known = torch.tensor(sorted(self.days))
        first, last = (times // DAY).clamp(min=self.newest // DAY), torch.tensor(end // DAY)
        passed = torch.searchsorted(known, last, right=True) - torch.searchsorted(known, first, right=True)
        return (last - first - passed) * DAY


class TrendScorer(DotProductScorer):
    """Σ_k w_k · c_ki^p, where c_ki = Σ_e 2^(-(t - t_e) / h_k) over the events e of item i, and t is that of the newest.

    It is a product of a number of the time and one of the node for each half-life h_k: c is kept as it was at a time
    T₀, v_n is the largest c^p of the items below n, and u = w · 2^(-p (t - T₀) / h). So a later event only raises the
    count of its item and the maxima above it, while all others fade. The time is that of what is known and not that of
    a request: for a log that ended long ago, what was chosen last is the best guess of what is chosen now. So days
    (UTC) on which nothing was recorded do not pass: T₀ moves on by them.

    Args:
        num_nodes: rows, one per node of the tree.
        num_items: M.
        half_lives: h of each column, in seconds.
        weights: w of each column.
        origin: T₀, in seconds since 1970.
        newest: t; T₀ unless given.
        seed: not used; rows come from `from_counts` or from a file.
    """

    same_for_all = True
    counts: Tensor  # c at T₀ [M, columns]
    user: Tensor  # u, which all users share [columns]

    def __init__(
        self,
        num_nodes: int,
        num_items: int,
        half_lives: Sequence[float],
        weights: Sequence[float],
        origin: int,
        newest: int | None = None,
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        self.half_lives, self.weights, self.origin = list(half_lives), list(weights), origin
        self.newest = origin if newest is None else newest
        self.table = NodeTable(num_nodes, len(self.half_lives), seed=None, dtype=torch.float16)
        self.table.weight.requires_grad_(False)
        self.later: Later | None = None
        self.register_buffer("counts", torch.zeros(num_items, len(self.half_lives)))
        self.register_buffer("user", self._present(), persistent=False)

    @property
    def newest_event(self) -> int:  # type: ignore[override]
        return self.newest

    def _present(self) -> Tensor:
        return torch.tensor(self.weights) * self.fading(self.newest) ** POWER

    def fading(self, time: int) -> Tensor:
        """What is left of an event of T₀ at another time [columns]."""
        return torch.exp2((self.origin - time) / torch.tensor(self.half_lives)).float()

    @classmethod
    def from_counts(
        cls,
        tree: Tree,
        counts: Tensor,
        half_lives: Sequence[float],
        weights: Sequence[float],
        origin: int,
        newest: int | None = None,
    ) -> "TrendScorer":
        """The scorer of a tree and the counts of its items at T₀ [M, columns]."""
        scorer = cls(1, 0, half_lives, weights, origin, newest, seed=None)
        scorer.counts = counts.float()
        scorer.table = NodeTable.of_maxima(tree, scorer.values(counts))
        return scorer.to(counts.device)

    def values(self, counts: Tensor) -> Tensor:
        """What counts are worth."""
        return counts**POWER

    def on_tree(self, old: Tree, new: Tree) -> "TrendScorer":
        scorer = self.from_counts(new, self.counts, self.half_lives, self.weights, self.origin, self.newest)
        scorer.later = self.later
        return scorer

    def with_extra_level(self, old: Tree, new: Tree) -> "TrendScorer":
        return self.on_tree(old, new)

    def encode(self, tree: Tree, vectors: Vectors, x: Tensor) -> Tensor:
        return self.user.expand(x.shape[0], -1)

    # Events and items that come later

    @torch.no_grad()
    def with_events(self, tree: Tree, events: LaterEvents, *, in_place: bool = False) -> "TrendScorer":
        """The scorer with the counts of a fit to the log and all events since.

        Of the events of a user with an item on one day only the newest counts. Of the log itself only the end is known
        here: what happened before it is as old as the calendar says.
        """
        scorer = self if in_place else self.copy()
        assert scorer.later is not None
        later, replaced = scorer.later, dict[Key, int]()  # by key: the time that counted before
        first, last, known = later.newest // DAY, scorer.newest // DAY, set(later.days)
        for user, item, time in zip(events.users, events.items.tolist(), events.times.tolist(), strict=True):
            key = user, item, time // DAY
            before = later.times.get(key, NEVER)
            if before < time:
                later.times[key] = time
                replaced.setdefault(key, before)
        for time in [*events.times.tolist(), *events.waiting.tolist()]:
            later.days[time // DAY] = max(time, later.days.get(time // DAY, time))
        if events.since != NO_TIME or any(first < day < last for day in later.days.keys() - known):
            later.times = {key: time for key, time in later.times.items() if time >= events.since}
            later.days = {day: time for day, time in later.days.items() if time >= events.since}
            counts = pad(later.counts, (0, 0, 0, tree.num_items - len(later.counts))).to(self.counts.device)
            scorer = self.from_counts(tree, counts, self.half_lives, self.weights, later.origin, later.newest)
            replaced = dict.fromkeys(later.times, NEVER)
        if replaced:
            times, earlier = torch.tensor([(later.times[key], before) for key, before in replaced.items()]).T
            end = max(scorer.newest, int(times.max()))
            pauses, pause = later.pauses(times, end), int(later.pauses(torch.tensor([scorer.newest]), end))
            earlier = torch.where(earlier == NEVER, NEVER, earlier + pauses)
            items = torch.tensor([item for _, item, _ in replaced])
            scorer = scorer.after_events(tree, items, times + pauses, earlier, pause)
        scorer.later = later
        return scorer

    @torch.no_grad()
    def after_events(
        self, tree: Tree, items: Tensor, times: Tensor, replaced: Tensor | None = None, pause: int = 0
    ) -> "TrendScorer":
        """The scorer after events.

        Where they are hardly newer than T₀ it is this one, changed in place while searches run: maxima only rise, and
        a search that meets half of a change loses nothing but the change.

        Args:
            tree: of the items.
            items: of the events [n].
            times: of the events [n], in seconds since 1970; where days before the newest did not pass, later by these.
            replaced: the times of earlier events that these count instead of [n]; NEVER where there are none.
            pause: seconds between the newest event so far and the newest of these that did not pass.
        """
        if not len(items):
            return self
        items, times, newest = items.cpu(), times.cpu(), max(self.newest, int(times.max()))
        if newest - pause > self.origin + LATE * min(self.half_lives):
            counts = self.counts * self.fading(newest - pause).to(self.counts)
            scorer = self.from_counts(tree, counts, self.half_lives, self.weights, newest)
        else:
            scorer, self.newest, self.origin = self, newest, self.origin + pause
        half_lives = torch.tensor(self.half_lives)
        share = torch.exp2((times - scorer.origin).unsqueeze(1) / half_lives)
        if replaced is not None:
            share -= torch.exp2((replaced.cpu() - scorer.origin).unsqueeze(1) / half_lives)
        scorer.counts.index_add_(0, items.to(self.counts.device), share.to(self.counts))
        scorer.put_items(tree, items.unique())
        scorer.user.copy_(scorer._present())
        return scorer

    @torch.no_grad()
    def put_items(self, tree: Tree, items: Tensor) -> None:
        """Give the leaves of items [n] the values of their counts, in place, and set the maxima above them."""
        leaves = tree.leaf_of_item(items.to(tree.device))
        items, leaves = items.to(tree.device)[leaves != PAD], leaves[leaves != PAD]
        values = self.values(self.counts[items.to(self.counts.device)]).half().to(self.table.weight.device)
        rows = self.table.weight.detach()
        _write(rows, leaves, values)
        nodes, child = leaves, torch.arange(1, tree.arity + 1, device=leaves.device)
        for _ in range(tree.height):
            nodes = tree.parent(nodes).unique()
            below = nodes.unsqueeze(1) * tree.arity + child  # also hidden ones
            _write(rows, nodes, rows[below].amax(1))

    def with_items(self, old: Tree, new: Tree, items: NewItems) -> "TrendScorer":
        """The same with counts of 0 for new items, sharing the table."""
        more = max(0, new.num_items - len(self.counts))
        scorer = type(self)(1, 0, self.half_lives, self.weights, self.origin, self.newest, seed=None)
        scorer.counts = torch.cat([self.counts, self.counts.new_zeros(more, self.counts.shape[1])])
        scorer.table, scorer.user, scorer.later = self.table, self.user, self.later
        scorer.put_items(new, items.numbers)
        return scorer

    def copy(self) -> "TrendScorer":
        """The same with a table, counts and events of its own."""
        later = self.later or Later(self.counts, self.origin, self.newest, {}, {})
        scorer = type(self)(1, 0, self.half_lives, self.weights, self.origin, self.newest, seed=None)
        scorer.counts = self.counts.clone()
        scorer.table = NodeTable.from_rows(self.table.weight.detach().clone()).requires_grad_(False)
        scorer.later = replace(later, times=dict(later.times), days=dict(later.days))
        return scorer.to(self.counts.device)

    def settings(self) -> dict[str, Any]:
        return {
            "num_nodes": self.table.num_nodes,
            "num_items": len(self.counts),
            "half_lives": self.half_lives,
            "weights": self.weights,
            "origin": self.origin,
            "newest": self.newest,
        }

    def check(self, x: Tensor) -> None:
        self.columns.check(x)


def _write(rows: Tensor, nodes: Tensor, values: Tensor) -> None:
    """Write rows in place; on a CPU without a new version of the tensor, for which arrays would be made again."""
    if rows.is_cuda:
        rows[nodes] = values
    else:
        rows.numpy()[nodes.numpy()] = values.numpy()

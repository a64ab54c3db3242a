"""Trends of a live model: events that arrive count at once, without a refit."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from beamtree.data.inputs import NO_TIME
from beamtree.data.times import DAY, MICRO, Time
from beamtree.live.events import Event, in_seconds, is_before, now
from beamtree.model import TreeModel
from beamtree.scorers import TrendScorer, as_sum
from beamtree.scorers.trend import NEVER

Key = tuple[str, str, int]  # a user, an item and a day since 1970 (UTC)


class LiveTrends:
    """Adds events to the counts of a model's trend part, which is a copy after the first of them.

    The counts are those of a fit to the log and these events. Days on which nothing was recorded do not pass, and of
    the events of a user with an item on one day only the newest counts. Of the log itself only the end is known here:
    what happened before it is as old as the calendar says.
    """

    def __init__(self, model: TreeModel) -> None:
        self._fitted = _trend(model)[1]  # without the events below
        self._own: TrendScorer | None = None  # the copy; searches run while it changes
        self._newest: dict[Key, Event] = {}  # the events that count
        self._days: set[int] = set()  # of these
        self._waiting: dict[str, set[Key]] = defaultdict(set)  # those of items that the model does not have

    def add(self, model: TreeModel, events: Mapping[str, Iterable[Event]]) -> TreeModel:
        """The model after events of users. Those without a time count when they were received, future ones never."""
        trend = _trend(model)[1]
        if trend is None:
            return model
        assert self._fitted is not None
        replaced: dict[Key, Event | None] = {}
        latest = max(now() // MICRO, trend.newest) + DAY
        for user, row in events.items():
            for event in row:
                second = in_seconds(event)
                key = user, event.item, second // DAY
                before = self._newest.get(key)
                if NO_TIME < second <= latest and (before is None or in_seconds(before) < second):
                    self._newest[key] = event
                    replaced.setdefault(key, before)
        new_days = {day for *_, day in replaced} - self._days
        self._days |= new_days
        if any(self._fitted.newest // DAY < day < trend.newest // DAY for day in new_days):
            return self._count_again(model)  # these days pass after all
        return self._with_counts(model, trend, replaced)

    def add_items(self, model: TreeModel, items: Sequence[str]) -> TreeModel:
        """The model after the events that new items had before it had them."""
        keys = [key for item in items for key in self._waiting.pop(item, ())]
        trend = _trend(model)[1]
        return model if trend is None else self._with_counts(model, trend, dict.fromkeys(keys))

    def retire(self, model: TreeModel, before: Time) -> TreeModel:
        """The model without the events before a time."""
        kept = {key: event for key, event in self._newest.items() if not is_before(event, before)}
        if len(kept) == len(self._newest):
            return model
        self._newest, self._days = kept, {day for *_, day in kept}
        return self._count_again(model)

    def refitted(self, model: TreeModel) -> None:
        """Go on with a model that was fitted to all events so far of items that it has."""
        waiting = {key for keys in self._waiting.values() for key in keys}
        self._fitted, self._newest = _trend(model)[1], {key: self._newest[key] for key in waiting}
        self._days = {day for *_, day in waiting}

    def _count_again(self, model: TreeModel) -> TreeModel:
        """The model with the counts of the fit and of all events."""
        trend = _trend(model)[1]
        assert trend is not None
        assert self._fitted is not None
        self._waiting.clear()
        fitted = self._fitted.grown(len(trend.counts)).on_tree(model.tree, model.tree)
        self._own = fitted
        return self._with_counts(model, fitted, dict.fromkeys(self._newest))

    def _with_counts(self, model: TreeModel, trend: TrendScorer, replaced: Mapping[Key, Event | None]) -> TreeModel:
        """The model with a trend part that also counts some events instead of others on the same days."""
        assert model.ids is not None
        found = []
        numbers = model.ids.find([item for _, item, _ in replaced])
        for (key, before), number in zip(replaced.items(), numbers, strict=True):
            if number is None or number >= len(trend.counts):
                self._waiting[key[1]].add(key)
            else:
                found.append((number, in_seconds(self._newest[key]), NEVER if before is None else in_seconds(before)))
        if found:
            trend = trend if trend is self._own else trend.copy()
            items, times, earlier = torch.tensor(found).T
            end = max(trend.newest, int(times.max()))
            pauses = self._pauses(times, end)
            pause = int(self._pauses(torch.tensor([trend.newest]), end))
            earlier = torch.where(earlier == NEVER, NEVER, earlier + pauses)
            trend = self._own = trend.after_events(model.tree, items, times + pauses, earlier, pause)
        name, present = _trend(model)
        if trend is present:
            return model
        parts = as_sum(model.scorer)
        return model.with_scorer(trend if parts is None else parts.with_parts({name: trend})).eval()

    def _pauses(self, times: Tensor, end: int) -> Tensor:
        """The seconds of the days without events between each of some times [n] and a later one, after the log [n]."""
        assert self._fitted is not None
        known = torch.tensor(sorted(self._days))
        first, last = (times // DAY).clamp(min=self._fitted.newest // DAY), torch.tensor(end // DAY)
        passed = torch.searchsorted(known, last, right=True) - torch.searchsorted(known, first, right=True)
        return (last - first - passed) * DAY


def _trend(model: TreeModel) -> tuple[str, TrendScorer | None]:
    """The trend part of a model and its name."""
    parts = ((name, part) for name, part in model.scorer.scorers().items() if isinstance(part, TrendScorer))
    return next(parts, ("", None))

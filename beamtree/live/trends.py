"""Trends of a live model: events that arrive count at once, without a refit."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch

from beamtree.data.inputs import NO_TIME
from beamtree.data.times import DAY, MICRO
from beamtree.live.events import Event, in_seconds, now
from beamtree.model import TreeModel
from beamtree.scorers import TrendScorer, as_sum


class LiveTrends:
    """Adds events to the counts of a model's trend part, which is a copy after the first of them."""

    def __init__(self) -> None:
        self._own: TrendScorer | None = None  # the copy; searches run while it changes
        self._waiting: dict[str, list[Event]] = defaultdict(list)  # events of items that the model does not have

    def add(self, model: TreeModel, events: Iterable[Event]) -> TreeModel:
        """The model after some events. Those without a time count when they were received, future ones never."""
        parts = as_sum(model.scorer)
        name, trend = next(
            ((name, each) for name, each in model.scorer.scorers().items() if isinstance(each, TrendScorer)), ("", None)
        )
        if trend is None:
            return model
        assert model.ids is not None
        latest = max(now() // MICRO, trend.newest) + DAY
        timed = [(event, second) for event in events if NO_TIME < (second := in_seconds(event)) <= latest]
        numbers = model.ids.find([event.item for event, _ in timed])
        found = []
        for (event, second), number in zip(timed, numbers, strict=True):
            if number is not None and number < len(trend.counts):
                found.append((number, second))
            else:
                self._waiting[event.item].append(event)
        if not found:
            return model
        if trend is not self._own:
            trend = trend.copy()
        items, times = torch.tensor(found).T
        changed = self._own = trend.with_events(model.tree, items, times)
        if changed is model.scorer.scorers()[name]:
            return model
        return model.with_scorer(changed if parts is None else parts.with_parts({name: changed})).eval()

    def add_items(self, model: TreeModel, items: Sequence[str]) -> TreeModel:
        """The model after the events that new items had before it had them."""
        return self.add(model, [event for item in items for event in self._waiting.pop(item, ())])

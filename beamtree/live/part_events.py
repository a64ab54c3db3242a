"""Events that arrive change the parts of a live model that count them at once, without a refit."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch

from beamtree.data.inputs import NO_TIME
from beamtree.data.times import DAY, MICRO
from beamtree.live.events import Event, in_seconds, now
from beamtree.model import TreeModel
from beamtree.scorers import Scorer


class PartEvents:
    """Tells the parts of a model of events; one that they change is a copy after the first of them."""

    def __init__(self) -> None:
        self._own: dict[str, Scorer] = {}  # the copies; searches run while they change
        self._waiting: dict[str, list[Event]] = defaultdict(list)  # events of items that the model does not have

    def add(self, model: TreeModel, events: Iterable[Event]) -> TreeModel:
        """The model after some events. Those without a time count when they were received, future ones never."""
        parts = model.scorer.scorers()
        newest = [part.newest_event for part in parts.values() if part.newest_event is not None]
        if not newest:
            return model
        assert model.ids is not None
        latest = max(now() // MICRO, *newest) + DAY
        timed = [(event, second) for event in events if NO_TIME < (second := in_seconds(event)) <= latest]
        numbers = model.ids.find([event.item for event, _ in timed])
        found = []
        for (event, second), number in zip(timed, numbers, strict=True):
            if number is not None and number < model.tree.num_items:
                found.append((number, second))
            else:
                self._waiting[event.item].append(event)
        if not found:
            return model
        items, times = torch.tensor(found).T
        after = {
            name: part.with_events(model.tree, items, times, in_place=part is self._own.get(name))
            for name, part in parts.items()
        }
        changed = {name: part for name, part in after.items() if part is not parts[name]}
        self._own |= changed
        return model.with_scorer(model.scorer.with_parts(changed)).eval() if changed else model

    def add_items(self, model: TreeModel, items: Sequence[str]) -> TreeModel:
        """The model after the events that new items had before it had them."""
        return self.add(model, [event for item in items for event in self._waiting.pop(item, ())])

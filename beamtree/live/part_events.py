"""Events that arrive change the parts of a live model that count them at once, without a refit."""

from collections.abc import Iterable, Mapping, Sequence

import torch

from beamtree.data.inputs import NO_TIME
from beamtree.data.times import DAY, MICRO, Time
from beamtree.live.events import Event, in_seconds, now
from beamtree.model import TreeModel
from beamtree.scorers import LaterEvents, Scorer

TimedEvent = tuple[str, str, int]  # a user, an item, and a time in seconds since 1970


class PartEvents:
    """Tells the parts of a model of events; one that they change is a copy after the first of them."""

    def __init__(self) -> None:
        self._own: dict[str, Scorer] = {}  # the copies; searches run while they change
        self._waiting: dict[str, list[TimedEvent]] = {}  # events of items that the model does not have, by item

    def add(self, model: TreeModel, events: Mapping[str, Iterable[Event]]) -> TreeModel:
        """The model after events of users. Those without a time count when they were received, future ones never."""
        newest = [part.newest_event for part in model.scorer.scorers().values() if part.newest_event is not None]
        if not newest:
            return model
        latest = max(now() // MICRO, *newest) + DAY
        rows = ((user, event.item, in_seconds(event)) for user, row in events.items() for event in row)
        return self._tell(model, [row for row in rows if NO_TIME < row[2] <= latest])

    def add_items(self, model: TreeModel, items: Sequence[str]) -> TreeModel:
        """The model after the events that new items had before it had them."""
        return self._tell(model, [row for item in items for row in self._waiting.pop(item, ())])

    def retire(self, model: TreeModel, before: Time) -> TreeModel:
        """The model without the events before a time."""
        since = int(before // MICRO)
        self._waiting = {item: [row for row in rows if row[2] >= since] for item, rows in self._waiting.items()}
        return self._tell(model, [], since)

    def refitted(self, model: TreeModel) -> TreeModel:
        """A model that was fitted to all events so far of items that it has; it is told that others wait."""
        rows, self._waiting = [row for rows in self._waiting.values() for row in rows], {}
        return self._tell(model, rows)

    def _tell(self, model: TreeModel, rows: Sequence[TimedEvent], since: int = NO_TIME) -> TreeModel:
        """The model after events; with `since`, without earlier ones."""
        parts = {name: part for name, part in model.scorer.scorers().items() if part.newest_event is not None}
        if not parts or (not rows and since == NO_TIME):
            return model
        assert model.ids is not None
        found, waiting = list[tuple[str, int, int]](), list[int]()
        for (user, item, time), number in zip(rows, model.ids.find([row[1] for row in rows]), strict=True):
            if number is not None and number < model.tree.num_items:
                found.append((user, number, time))
            else:
                self._waiting.setdefault(item, []).append((user, item, time))
                waiting.append(time)
        users, items, times = zip(*found, strict=True) if found else ((), (), ())
        numbers, seconds, later = (torch.tensor(column, dtype=torch.int64) for column in (items, times, waiting))
        events = LaterEvents(users, numbers, seconds, later, since)
        after = {
            name: part.with_events(model.tree, events, in_place=part is self._own.get(name))
            for name, part in parts.items()
        }
        changed = {name: part for name, part in after.items() if part is not parts[name]}
        self._own |= changed
        return model.with_scorer(model.scorer.with_parts(changed)).eval() if changed else model

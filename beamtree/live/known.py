"""Which events the log of a run holds already, of those that were recorded while another run was served."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from beamtree.data import Prepared
from beamtree.live.times import Time, as_time, as_times, is_date


class Event(NamedTuple):
    """What a user chose."""

    item: str
    time: Time | None = None  # as it was sent, by `as_time`
    received: int | None = None  # in microseconds since 1970


class Log:
    """The log that a run was trained on."""

    def __init__(self, data: Prepared) -> None:
        self._data = data
        has_times = "times.npy" in data.description["files"]
        self._times = np.load(data.folder / "times.npy", mmap_mode="r") if has_times else None

    @cached_property
    def end(self) -> int | None:
        """The time of the last event; None where times are not of the calendar."""
        last = None if self._times is None or not len(self._times) else int(as_time(int(self._times.max())))
        return last if last is not None and is_date(last) else None

    def of_user(self, user: str) -> list[Event]:
        """The events of a user, oldest first."""
        (row,) = self._data.users.find([user])
        if row is None:
            return []
        for part in (self._data.train, self._data.val, self._data.test):
            if row < len(part):
                start, stop = part.events.offsets[row : row + 2].tolist()
                items = [self._data.items[number] for number in part.events.items[start:stop].tolist()]
                times = [None] * len(items) if self._times is None else as_times(self._times[start:stop])
                return [Event(*each) for each in zip(items, times, strict=True)]
            row -= len(part)
        return []

    def holds(self, user: str, events: Sequence[Event]) -> list[bool]:
        """Which of a user's events are in this log at the time that they came with."""
        times = {(each.item, each.time) for each in self.of_user(user) if each.time is not None}
        return [(event.item, event.time) in times for event in events]

    def knows(self, user: str, events: Sequence[Event]) -> list[bool]:
        """Which of a user's events, oldest first, are in this log, as far as can be told.

        One with a time is where the log has it at that time. One without is where the log has the user and ends after
        the event was received; or where it is one of the first of these events, and they are the last in the log.
        """
        logged, known = self.of_user(user), self.holds(user, events)
        if not logged:
            return known
        last, untimed = logged[-1].time, []
        for place, event in enumerate(events):
            if event.time is not None and last is not None and is_date(event.time) == is_date(last):
                continue  # they can be compared
            if event.received is not None and self.end is not None and event.received <= self.end:
                known[place] = True
            else:
                untimed.append(place)
        chosen, items = [events[place].item for place in untimed], [each.item for each in logged]
        most = min(len(chosen), len(items))
        count = next((count for count in range(most, 0, -1) if chosen[:count] == items[-count:]), 0)
        for place in untimed[:count]:
            known[place] = True
        return known

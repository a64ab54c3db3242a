"""User events that arrive after training, and which of them are recorded or already in the training log."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from beamtree.data import Prepared
from beamtree.data.inputs import NO_TIME
from beamtree.data.times import MICRO, Time, as_time, convert, unix_unit
from beamtree.query import logged_events


class Event(NamedTuple):
    """An item that a user chose."""

    item: str
    time: Time | None = None  # as sent, converted by `as_time`
    received: int | None = None  # in microseconds since 1970


# Times


def is_date(value: Time) -> bool:
    """Whether a time returned by `as_time` is a calendar date."""
    return unix_unit(value) == MICRO


def is_before(event: Event, before: Time | None) -> bool:
    """Whether an event is older than a time: by its own time, or else by the time it was received."""
    when = event.received if event.time is None else event.time
    return before is not None and (when is None or when < before)


def in_seconds(event: Event, logged: int = NO_TIME, unit: int = 1) -> int:
    """When an event happened, or else was received, since 1970 in `unit` per second; NO_TIME where neither is known.

    One without a time of its own is no older than those that are `logged`, also where a log is ahead of this clock.
    """
    if event.time is not None and is_date(event.time):
        return int(convert(int(event.time), MICRO, unit))
    return NO_TIME if event.received is None else max(logged, int(convert(event.received, MICRO, unit)))


def now() -> int:
    """The current time in microseconds since 1970."""
    return time.time_ns() // 1000


# Events as journal entries


def events_entry(user: str, events: Sequence[Event], model: str = "") -> dict[str, Any]:
    """A journal entry with events of a user; `model` is the digest of the model served at that time."""
    columns: dict[str, list[Any]] = {name: [getattr(event, name) for event in events] for name in ("time", "received")}
    columns = {name: values for name, values in columns.items() if any(value is not None for value in values)}
    digest = {"model": model} if model else {}
    return {"kind": "events", "user": user, "items": [event.item for event in events], **columns, **digest}


def entry_events(entry: Mapping[str, Any]) -> list[Event]:
    """The events of a journal entry."""
    nothing = [None] * len(entry["items"])
    columns = (entry["items"], entry.get("time", nothing), entry.get("received", nothing))
    return [Event(*row) for row in zip(*columns, strict=True)]


def entry_requests(entry: Mapping[str, Any], before: Time | None = None) -> dict[str, int]:
    """Request ids of a journal entry and when they were received, without those older than `before`."""
    requests = entry.get("ids", {})
    if "id" in entry:
        requests = {entry["id"]: next((event.received or 0 for event in entry_events(entry)), 0)}
    return {name: received for name, received in requests.items() if before is None or received >= before}


# Stores of events


class TrainingLog:
    """The log that a run was trained on."""

    def __init__(self, data: Prepared) -> None:
        self._data = data
        has_times = "times.npy" in data.description["files"]
        self._times = np.load(data.folder / "times.npy", mmap_mode="r") if has_times else None

    def of_user(self, user: str) -> list[Event]:
        """The events of a user, oldest first."""
        logged = logged_events(self._data, user)
        if logged is None:
            return []
        events, start, stop = logged
        items = [self._data.items[number] for number in events.items[start:stop].tolist()]
        if self._times is None:
            return [Event(item) for item in items]
        times = self._times[start:stop].tolist()
        return [Event(item, int(as_time(at))) for item, at in zip(items, times, strict=True)]

    def contains_at_time(self, user: str, events: Sequence[Event]) -> list[bool]:
        """Which of a user's events are in this log with the same time."""
        logged = {(event.item, event.time) for event in self.of_user(user) if event.time is not None}
        return [(event.item, event.time) in logged for event in events]

    def contains(self, user: str, events: Sequence[Event]) -> list[bool]:
        """Which of a user's events, oldest first, are in this log, as far as can be determined.

        An event with a time is, if the log has it at that time. One without a time is, if the log has an event of the
        user from after it was received; or if it belongs to a prefix of these events that equals the end of the user's
        logged history. Dates in the future are mistakes, and say nothing about what the log has.
        """
        logged, contained = self.of_user(user), self.contains_at_time(user, events)
        if not logged:
            return contained
        last, untimed, present = logged[-1].time, [], now()
        dates = [event.time for event in logged if event.time is not None and is_date(event.time)]
        end = max((at for at in dates if at <= present), default=None)
        for index, event in enumerate(events):
            if event.time is not None and last is not None and is_date(event.time) == is_date(last):
                continue  # the times are comparable
            if event.received is not None and end is not None and event.received <= end:
                contained[index] = True
            else:
                untimed.append(index)
        chosen, items = [events[index].item for index in untimed], [event.item for event in logged]
        longest = min(len(chosen), len(items))
        overlap = next((count for count in range(longest, 0, -1) if chosen[:count] == items[-count:]), 0)
        for index in untimed[:overlap]:
            contained[index] = True
        return contained


class UserEvents:
    """Events recorded since the training log ended; an event with a time and a request with an id count once."""

    def __init__(self, log: TrainingLog | None, saved: Mapping[str, Sequence[Event]]) -> None:
        self.by_user: dict[str, list[Event]] = {user: list(events) for user, events in saved.items()}  # oldest first
        self._saved = saved
        self._replayed: dict[str, list[tuple[Event, bool]]] = {}  # what `replay` was given, where it keeps it
        self._log = log
        self._timed: set[tuple[str, str, Time]] = set()  # (user, item, time) of recorded events
        self._requests: dict[str, int] = {}  # request ids, and when they were received
        self._before: Time | None = None  # older events are retired
        self._note_times(self.by_user)

    def has_request(self, request: str) -> bool:
        """Whether a request was recorded."""
        return request in self._requests

    def new_events(self, user: str, events: Sequence[Event]) -> list[Event]:
        """The events to record: without those with a time that are recorded, in the training log, or retired."""
        timed = list(dict.fromkeys(event for event in events if event.time is not None))
        logged = [False] * len(timed) if self._log is None or not timed else self._log.contains_at_time(user, timed)
        skipped = {event for event, is_logged in zip(timed, logged, strict=True) if is_logged}
        skipped |= {event for event in timed if (user, event.item, event.time) in self._timed}
        skipped |= {event for event in timed if is_before(event, self._before)}
        result = []
        for event in events:
            if event not in skipped:
                result.append(event)
            if event.time is not None:
                skipped.add(event)  # repeats within one request
        return result

    def add(self, events: Mapping[str, Sequence[Event]], requests: Mapping[str, int]) -> None:
        """Record events by user, and the requests they came with."""
        self._requests |= requests
        self._note_times(events)
        for user, row in events.items():
            self.by_user.setdefault(user, []).extend(row)

    def count_before(self, before: Time) -> int:
        """How many events are older than a time."""
        return sum(is_before(event, before) for events in self.by_user.values() for event in events)

    def is_retired(self, before: Time) -> bool:
        """Whether everything before a time is retired already."""
        return self._before is not None and before <= self._before

    def retire(self, before: Time) -> None:
        """Drop all events before a time, also those that arrive later."""
        self._before = before if self._before is None else max(self._before, before)
        for user, events in self.by_user.items():
            self.by_user[user] = [event for event in events if not is_before(event, before)]
        self._timed = {key for key in self._timed if key[2] >= before}
        self._requests = {name: at for name, at in self._requests.items() if at >= before}

    def replay(
        self, entries: Sequence[Mapping[str, Any]], digest: str, more_follow: bool = False
    ) -> dict[str, list[Event]]:
        """Apply journal entries, and return the events by user that were not recorded before, nor retired since.

        Events recorded on other models are left out where the training log contains them.

        Which these are depends on all events of a user: where `more_follow`, those of such users are kept, so that
        entries that are applied one after another lead to the same as all at once.
        """
        rows: dict[str, list[tuple[Event, bool]]] = {}  # by user; whether an event was recorded on this model
        added: dict[str, list[Event]] = {}
        before = [entry["before"] for entry in entries if entry["kind"] == "retire"]
        for entry in entries:
            if entry["kind"] == "events":
                is_current = bool(digest) and entry.get("model") == digest
                rows.setdefault(entry["user"], []).extend((event, is_current) for event in entry_events(entry))
            if entry["kind"] in ("events", "requests"):
                self._requests |= entry_requests(entry)
        for user, row in rows.items():
            self._note_times({user: [event for event, _ in row]})
            saved, present = set(self._saved.get(user, ())), self.by_user.get(user, [])
            if user in self._replayed or not all(is_current for _, is_current in row):
                earlier = [(event, True) for event in present if event not in saved]
                row = [*self._replayed.get(user, earlier), *row]
                present = [event for event in present if event in saved]
                if more_follow:
                    self._replayed[user] = row
            others = [event for event, is_current in row if not is_current]
            logged = iter([False] * len(others) if self._log is None else self._log.contains(user, others))
            recorded = [event for event, is_current in row if is_current or not next(logged)]
            recorded = [event for event in recorded if event.time is None or event not in saved]
            known = Counter(self.by_user.get(user, ()))
            self.by_user[user] = [*present, *(event for event in recorded if not is_before(event, self._before))]
            added[user] = list((Counter(self.by_user[user]) - known).elements())
        if before:
            self.retire(max(before))
        return {user: [event for event in row if not is_before(event, self._before)] for user, row in added.items()}

    def _note_times(self, events: Mapping[str, Sequence[Event]]) -> None:
        timed = ((user, event.item, event.time) for user, row in events.items() for event in row)
        self._timed |= {(user, item, at) for user, item, at in timed if at is not None}

"""The users that a model knows, and what each of them did: in the training log, and since."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from beamtree.data import Ids, Prepared
from beamtree.data.ids import as_id, is_integer, sorted_ids
from beamtree.data.inputs import NO_TIME
from beamtree.live.events import Event, in_seconds
from beamtree.query import UNKNOWN_USER, History, encode_history, histories_of_users
from beamtree.query.request import Names


@dataclass(frozen=True)
class Users:
    """The users of a training log and of later events. What they did is kept by the ids of the items."""

    data: Prepared | None  # the training log, if available
    events: Mapping[str, Sequence[Event]]  # recorded since the log ended, by user, oldest first
    dislikes: Mapping[str, Sequence[str]]  # since then, likewise

    def ids(self) -> Ids:
        """All users, each once, sorted; text if one of later events is no integer."""
        logged, later = self._logged(), self._later()
        integer = logged.integer and all(map(is_integer, later))
        return sorted_ids([*logged.names, *later], integer=integer) if later else logged

    @property
    def end(self) -> int:
        """The time of the newest event of anybody, in seconds since 1970; NO_TIME where the times are no clock."""
        if self.data is not None and self.data.end == NO_TIME:
            return NO_TIME
        later = (in_seconds(event) for row in list(self.events.values()) for event in row)
        return max(later, default=NO_TIME) if self.data is None else max(self.data.end, *later, NO_TIME)

    def __len__(self) -> int:
        """How many users there are."""
        return len(self._logged()) + len(self._later())

    def _logged(self) -> Ids:
        return Ids(()) if self.data is None else self.data.distinct_users

    def _later(self) -> list[str]:
        """The users of later events who are not in the log."""
        users = [user for user in list(self.events) if self.events.get(user)]  # others may be recorded meanwhile
        rows = [None] * len(users) if self.data is None else self.data.users.find(users)
        return [user for user, row in zip(users, rows, strict=True) if row is None]

    def histories(self, users: Names, ids: Ids) -> list[History]:
        """What each of some users did with the items of a model, whose ids are given.

        A user without events is unknown, and has the dislikes that were read of them.
        """
        names = [as_id(user) for user in users]
        found: dict[str, History] = {}
        if self.data is not None:
            rows = self.data.users.find(names)
            logged = [name for name, row in zip(names, rows, strict=True) if row is not None]
            others = [name for name, row in zip(names, rows, strict=True) if row is None]
            if logged:
                found = dict(zip(logged, histories_of_users(self.data, logged, ids), strict=True))
            dislikes = self.data.dislikes_without_events(others, ids)
            found |= {name: UNKNOWN_USER._replace(dislikes=row) for name, row in dislikes.items()}
        return [self._with_later(name, found.get(name, UNKNOWN_USER), ids) for name in names]

    def items(self, users: Names, ids: Ids) -> list[list[int]]:
        """The items of these histories alone; none for an unknown user."""
        return [history.items for history in self.histories(users, ids)]

    def _with_later(self, user: str, history: History, ids: Ids) -> History:
        """The history of a user with later events and dislikes."""
        if recorded := self.events.get(user):
            logged = max(history.times, default=NO_TIME)
            times = [in_seconds(event, logged) for event in recorded]
            later = encode_history(ids, [event.item for event in recorded], times)
            items, ordered = _in_order(history, later)
            history = history._replace(items=items, times=ordered, unknown=later.unknown, is_known=True)
        if user not in self.dislikes:
            return history
        dislikes = ids.find_known(self.dislikes[user])
        return history._replace(dislikes=[*history.dislikes, *dislikes])


def _in_order(logged: History, later: History) -> tuple[list[int], Sequence[int]]:
    """The items and times of the events of a log and of those recorded since, by time.

    Events with the same time stay in order, and so does one without a time, after the one before it.
    """
    items = [*logged.items, *later.items]
    times = [*(logged.times or [NO_TIME] * len(logged.items)), *later.times]
    keys = list[int]()
    for time in times:
        keys.append(keys[-1] if keys and time == NO_TIME else time)
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return [items[index] for index in order], [times[index] for index in order]

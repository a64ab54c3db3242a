"""A request for recommendations: what Python, HTTP and files ask, in the same words."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from beamtree.beam import BeamSize
from beamtree.data import Ids
from beamtree.data.ages import AGE
from beamtree.data.contexts import Context
from beamtree.data.ids import as_given, as_id
from beamtree.query.history import id_list, parse_histories
from beamtree.query.rules import Rules
from beamtree.query.times import Now, RequestTime, check_time, read_time
from beamtree.search.choice import AUTO

Names = Sequence[Any] | np.ndarray  # what tells histories apart: numbers, users or items


class Filter(NamedTuple):
    """Which items may be recommended: those that meet all of these conditions."""

    allowed: tuple[str, ...] | None = None  # ids; all items if None
    exclude: tuple[str, ...] = ()  # ids
    category: str | None = None  # or below it
    where: str | None = None  # an expression over attributes, see `Catalogue.where`
    time: int | None = None  # at which the age of items is measured, where this or rules read it, in seconds


class RecommendRequest(NamedTuple):
    """A request for the m best items for each history, or for each user."""

    histories: Sequence[Sequence[object]] = ()  # ids, oldest first
    users: Names | None = None  # instead of histories
    m: int = 10
    beam_size: BeamSize | None = None  # k, or one width per level; `default_beam_size` of m if None
    exclude_seen: bool = False  # whether to leave out the items of the history, as dislikes of a user always are
    filter: Filter | None = None
    rules: Rules | None = None
    context: Context | Sequence[Context] | None = None  # of all histories, or one for each
    times: Sequence[Sequence[int]] | None = None  # of the events of `histories`, where they are known, in seconds
    time: RequestTime | None = None  # of the request, in seconds since 1970, or one for each history
    search: str = AUTO  # or beam or scan: see `search.choice`

    @property
    def rows(self) -> int:
        """The number of histories or users."""
        return len(self.histories if self.users is None else self.users)

    @property
    def needs_attributes(self) -> bool:
        """Whether an answer depends on attributes of the items."""
        by_filter = self.filter is not None and self.filter.where is not None
        return by_filter or (self.rules is not None and self.rules.needs_attributes)

    @property
    def reads_age(self) -> bool:
        """Whether an answer depends on the age of items."""
        by_filter = self.filter is not None and self.filter.where is not None and AGE in self.filter.where
        return by_filter or (self.rules is not None and self.rules.reads_age)

    def measured_at(self, now: Now) -> "RecommendRequest":
        """The request with the time at which the age of items is measured: its own, or else that of `now`."""
        if not self.reads_age or (self.filter is not None and self.filter.time is not None):
            return self
        times = {now()} if self.time is None else {self.time} if isinstance(self.time, int) else set(self.time)
        if len(times) > 1:
            raise ValueError(f"{AGE} is measured at one time: give one `time` for all histories")
        return self._replace(filter=(self.filter or Filter())._replace(time=times.pop() if times else now()))

    def batches(self, size: int) -> Iterator["RecommendRequest"]:
        """The same request for `size` of its histories or users at a time; at least one."""
        if self.rows <= size:
            yield self
            return
        for start in range(0, self.rows, size):
            some = slice(start, start + size)
            yield self._replace(
                histories=self.histories[some],
                users=None if self.users is None else self.users[some],
                context=self.context if isinstance(self.context, Mapping | None) else self.context[some],
                times=None if self.times is None else self.times[some],
                time=self.time if isinstance(self.time, int | None) else self.time[some],
            )


def read_request(
    histories: Any,
    users: Any,
    context: Context | Sequence[Context] | None = None,
    *,
    ids: Ids,
    time: Any = None,
    integer_users: bool = False,
) -> tuple[str, Names, RecommendRequest]:
    """The request for what a caller passed, and the name and the values of the column that tells its histories apart.

    Args:
        histories: one history, a list of several, a dict from user to history or a frame, as in `parse_histories`.
        users: ids of users, instead of histories.
        context: of all histories, or one for each.
        ids: of the items of the model.
        time: of the request, in any form of `as_time`, or one for each history.
        integer_users: whether the ids of users are integers in the log.
    """
    if (histories is None) == (users is None):
        raise ValueError("give histories or users: one of the two")
    context = context if isinstance(context, Mapping | None) else list(context)
    request = RecommendRequest(context=context, time=read_time(time))
    if users is not None:
        names: Names = as_given(id_list(users), integer=integer_users)
        key, request = "user", request._replace(users=names)
    else:
        key, names, rows, times = parse_histories(histories, ids)
        request = request._replace(histories=rows, times=times)
    check_time(request.time, request.rows)
    return key, names, request


def make_filter(
    allowed: Iterable[object] | None = None,
    exclude: Iterable[object] | None = None,
    category: str | None = None,
    where: str | None = None,
) -> Filter | None:
    """The filter for ids of any type; None where it would allow all items."""
    if allowed is None and exclude is None and category is None and where is None:
        return None
    if where is not None and not isinstance(where, str):
        raise ValueError(f"where is a {type(where).__name__}: give text such as \"category == 'lamps' and price < 50\"")

    def names(values: Iterable[object]) -> tuple[str, ...]:
        return tuple(value if type(value) is str else as_id(value) for value in id_list(values))

    return Filter(
        None if allowed is None else names(allowed), () if exclude is None else names(exclude), category, where
    )


def similar_request(ids: Ids, items: Sequence[object], m: int) -> tuple[RecommendRequest, list[str]]:
    """The request for items similar to each of some items: the recommendations after a single event of that item.

    Unknown items are left out and returned; a ValueError if all are unknown.
    """
    found = list(zip(items, ids.find(items), strict=True))
    known = [[item] for item, number in found if number is not None]
    unknown = [as_id(item) for item, number in found if number is None]
    if unknown and not known:
        raise ValueError(f"there is no item {unknown[0][:80]!r}")
    return RecommendRequest(known, m=m, exclude_seen=True), unknown

"""A batch job: one request for every user of a file, and a summary of the results."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from beamtree.data import Prepared
from beamtree.data.inputs import NO_TIME
from beamtree.ingest.columns import LogColumns
from beamtree.live.saved import read_run_catalogue, users_of_run
from beamtree.model import TreeModel
from beamtree.query import Recommendation, RecommendRequest, Searcher
from beamtree.query.search import UserHistories, no_users
from beamtree.query.times import Now
from beamtree.search.choice import AUTO
from beamtree.storage.runs import ids_of, open_data

MAX_EXAMPLES = 5  # unknown ids that a note shows


class BatchJob(NamedTuple):
    """What to compute, and with which run; it can be sent to another process."""

    run: Path
    request: RecommendRequest = RecommendRequest()  # without histories
    columns: LogColumns = LogColumns()  # as in `files.open_histories`
    names: Sequence[str] | None = None  # likewise

    def settings(self) -> dict[str, Any]:
        """All but the run, as short JSON, to compare with another job."""
        request = self.request
        beam_size, filter = request.beam_size, request.filter
        return {
            "m": request.m,
            "beam_size": beam_size if beam_size is None or isinstance(beam_size, int) else list(beam_size),
            **({} if request.search == AUTO else {"search": request.search}),
            "exclude_seen": request.exclude_seen,
            "allowed": _digest(None if filter is None else filter.allowed),
            "exclude": _digest(None if filter is None else filter.exclude or None),
            **({} if filter is None or filter.where is None else {"where": filter.where}),
            **({} if request.rules is None else {"rules": request.rules.as_dict()}),
            **({} if request.context is None else {"context": request.context}),
            **({} if request.time is None else {"time": request.time}),
            **{name: getattr(self.columns, name) for name in ("user", "item", "time", "time_format")},
            "names": None if self.names is None else list(self.names),
        }


def make_searcher(
    run: Path,
    model: TreeModel,
    request: RecommendRequest,
    user_histories: UserHistories = no_users,
    data: Path | None = None,
) -> Searcher:
    """A searcher of the model of a run, with attributes of the items if a request needs them.

    `data` is its log, where that was moved.
    """
    ids = ids_of(run, model)
    log = log_of_run(run, model, data) if request.reads_age else None
    catalogue = read_run_catalogue(run, ids, log) if request.needs_attributes else None
    return Searcher(model, ids, catalogue=catalogue, user_histories=user_histories, end=end_of_run(run, model, data))


def end_of_run(run: Path, model: TreeModel, data: Path | None = None) -> Now:
    """A function for the time of the newest event of a run's log and of the changes saved since; of no log NO_TIME."""

    @cache
    def end() -> int:
        log = log_of_run(run, model, data)
        return NO_TIME if log is None else users_of_run(run, log).end

    return end


def log_of_run(run: Path, model: TreeModel, data: Path | None = None) -> Prepared | None:
    """The log of a run; None where it is missing, unless a folder is given."""
    try:
        return open_data(run, model, data)
    except (ValueError, OSError):
        if data is not None:
            raise
        return None


def _digest(ids: Sequence[str] | None) -> str | None:
    return None if ids is None else hashlib.sha256("\n".join(sorted(set(ids))).encode()).hexdigest()[:16]


@dataclass
class BatchSummary:
    """Counts over many results, and notes about them."""

    users: int = 0
    unknown_events: int = 0  # of items that the model does not know
    unknown_items: list[str] = field(default_factory=list)  # the first few of these items
    popular: int = 0  # users without a known item, who got popular items
    unknown_users: list[str] = field(default_factory=list)  # those of them who are not in the log
    empty: int = 0  # users without a result
    rows: int = 0  # of the input that were used
    skipped_rows: int = 0

    def add(self, results: Iterable[Recommendation]) -> None:
        """Count results."""
        for result in results:
            self.users += 1
            self.unknown_events += len(result.unknown)
            self.popular += result.is_popular
            self.empty += not result.items
            if len(self.unknown_items) < MAX_EXAMPLES:
                self.unknown_items = list(dict.fromkeys([*self.unknown_items, *result.unknown]))[:MAX_EXAMPLES]

    def merge(self, other: "BatchSummary") -> None:
        """Add the counts of another summary."""
        for entry in fields(self):
            setattr(self, entry.name, getattr(self, entry.name) + getattr(other, entry.name))
        self.unknown_items = list(dict.fromkeys(self.unknown_items))[:MAX_EXAMPLES]

    def notes(self) -> Iterator[str]:
        """One line for each unexpected thing."""
        if self.skipped_rows:
            reason = "without a user, an item or a readable time, or dated in the future"
            yield f"{_count(self.skipped_rows, 'row')} skipped: {reason}"
        if self.unknown_events:
            examples = ", ".join(self.unknown_items) + (", …" if len(self.unknown_items) == MAX_EXAMPLES else "")
            yield f"{_count(self.unknown_events, 'event')} ignored: of items that the model does not know ({examples})"
        if self.unknown_users:
            examples = ", ".join(self.unknown_users[:MAX_EXAMPLES]) + (
                ", …" if len(self.unknown_users) > MAX_EXAMPLES else ""
            )
            yield f"{_count(len(self.unknown_users), 'unknown user')}: popular items are recommended ({examples})"
        if (others := self.popular - len(self.unknown_users)) > 0:
            yield f"{_count(others, 'user')} without a known item: popular items are recommended"
        if self.empty:
            yield f"{_count(self.empty, 'user')} without a result: no item is left to recommend"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

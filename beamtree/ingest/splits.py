"""Which users train, validate and test, and what is predicted: three protocols.

- halves: every user is drawn for either training, validation or testing. The first half of a user's events is history,
  the second half is predicted. Validation and test users need a minimum of events.
- leave-one-out: every user trains on all events but the last two. Validation predicts the second to last, testing the
  last.
- time:DATE: every user trains on the events before the date. Users who also have later events are drawn for validation
  and testing, which predict all of the later events. Where times are numbers but not Unix times, DATE is a number.

Where only some events are to be predicted, validation and test users are those who have one among what is predicted.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from beamtree.data.prepared import SPLITS
from beamtree.data.times import parse_date
from beamtree.ingest.arrays import (
    Array,
    CleanedLog,
    Sections,
    columns_of,
    count_targets,
    filter_events,
    read_range,
    user_ranges,
)
from beamtree.ingest.times import TimeScale, detect_unix_unit

HALVES, LEAVE_ONE_OUT, BY_TIME = "halves", "leave-one-out", "time:"
TRAIN, VAL, TEST = map(SPLITS.index, ("train", "val", "test"))
MAX_EVAL_USERS, EVAL_FRACTION = 1000, 20  # one user in 20, at most 1,000, validate, and as many test
EVAL_EVENTS = 10  # minimum of a validation or test user, if enough users have them
ENOUGH = 4  # times as many users as validate and test


class SplitOptions(NamedTuple):
    """A protocol, how many users validate and test, and the seed that draws them."""

    name: str
    val_users: int | None
    test_users: int | None
    seed: int
    min_eval_events: int | None = None  # of a validation or test user of `halves`; `eval_events` unless given

    @property
    def date(self) -> str | None:
        """The date of a split by time, as given."""
        return self.name.removeprefix(BY_TIME) if self.name.startswith(BY_TIME) else None

    @property
    def min_train_events(self) -> int:
        """With fewer events, a user would have none to train on."""
        return 3 if self.name == LEAVE_ONE_OUT else 1

    def check(self) -> None:
        """Raise a ValueError if the protocol is unknown or a number is out of range."""
        if self.name not in (HALVES, LEAVE_ONE_OUT) and not self.date:
            raise ValueError(f"split={self.name}: choose {HALVES}, {LEAVE_ONE_OUT} or {BY_TIME}DATE")
        for name, count in (("val_users", self.val_users), ("test_users", self.test_users), ("seed", self.seed)):
            if count is not None and count < 0:
                raise ValueError(f"{name}={count} is negative")
        if self.min_eval_events is not None and self.min_eval_events < 2:
            least = "at least 2 events, one for the history and one to predict"
            raise ValueError(f"min_eval_events={self.min_eval_events}: a validation or test user needs {least}")

    def with_unit(self, events: pl.LazyFrame, scale: TimeScale | None) -> TimeScale | None:
        """The scale of the log's times; their unit is detected if they are numbers and the split has a date."""
        if scale is None or scale.dates or self.date is None or parse_date(self.date) is None:
            return scale
        return detect_unix_unit(events, scale)

    def cutoff(self, scale: TimeScale | None) -> int | None:
        """The date on the scale of the log's times; None for protocols without a date."""
        if self.date is None:
            return None
        if scale is None:
            raise ValueError(f"split={self.name}: the log has no times; name their column with `time`")
        cutoff = scale.parse(self.date)
        if cutoff is None:
            kind = "dates: give one such as 2020-12-31" if scale.dates else "numbers: give one, in the same unit"
            raise ValueError(f"split={self.name}: {self.date!r} cannot be read; the times of the log are {kind}")
        return cutoff


def split_log_events(
    split: SplitOptions, log: CleanedLog, work: Path, scale: TimeScale | None
) -> tuple[CleanedLog, Sections]:
    """The sections of a log; and the log, without users who have no events before the date of a split by time."""
    cutoff, left = split.cutoff(scale), np.flatnonzero(log.lengths)

    targets_from = partial(count_targets, columns_of(work).get("weight"))
    if cutoff is None or scale is None:
        lengths = log.lengths[left]
        if split.name != LEAVE_ONE_OUT:
            return log, halves(lengths, split, targets_from(lengths, lengths // 2) > 0)
        of_last, of_two = targets_from(lengths, lengths - 1), targets_from(lengths, lengths - 2)
        return log, leave_one_out(lengths, split, of_two > of_last, of_last > 0)
    before, extremes = np.zeros_like(log.lengths), []  # events of each user before the cutoff [U]
    for users, events in user_ranges(log.lengths):
        time, count = read_range(work / "time", events), log.lengths[users]
        owner = np.repeat(np.arange(len(count)), count)
        before[users] = np.bincount(owner[time < cutoff], minlength=len(count))
        extremes += [int(time.min()), int(time.max())] if len(time) else []
    first, last = min(extremes), max(extremes)
    if cutoff <= first or cutoff > last:
        where = "before" if cutoff <= first else "after"
        times = f"{scale.format(first)} to {scale.format(last)}"
        raise ValueError(f"split={split.name} is {where} all events, which are from {times}: choose another date")
    late = (log.lengths > 0) & (before == 0)  # they have nothing to train on
    report = {
        **log.report,
        "users_without_training_events": int(late.sum()),
        "events_of_users_without_training_events": int(log.lengths[late].sum()),
    }
    lengths, popularity = log.lengths, log.popularity
    if late.any():
        lengths, popularity = filter_events(work, lengths, ~late, np.ones(len(popularity), bool), 1)
    left = np.flatnonzero(lengths)
    lengths_left, before_left = lengths[left], before[left]
    sections = by_time(lengths_left, before_left, split, targets_from(lengths_left, before_left) > 0)
    return CleanedLog(lengths, popularity, report), sections


def halves(lengths: Array, split: SplitOptions, has_target: Array) -> Sections:
    """Each user in one section, with all events; only users with a target validate or test."""
    num_users = len(lengths)
    default = _default_users(int(np.count_nonzero(has_target))) if num_users > 2 else 0
    val, test = (default if count is None else count for count in (split.val_users, split.test_users))
    if val + test >= num_users:
        raise ValueError(
            f"{val:,} validation and {test:,} test users leave none of {num_users:,} users for training: "
            "lower `val_users` or `test_users`"
        )
    least = split.min_eval_events or eval_events(lengths[has_target], val + test)
    eligible = np.flatnonzero((lengths >= least) & has_target)
    if val + test > len(eligible):
        raise ValueError(
            f"{val:,} validation and {test:,} test users are more than the {len(eligible):,} who have at least {least} "
            f"events (`min_eval_events`){_with_target(has_target)}: lower `val_users` or `test_users`"
        )
    order = eligible[np.random.default_rng(split.seed).permutation(len(eligible))]
    section = np.full(num_users, TRAIN)
    section[order[:test]] = TEST
    section[order[test : test + val]] = VAL
    take = np.where(section == np.arange(len(SPLITS))[:, None], lengths, 0)
    return Sections(take, None, least)


def eval_events(lengths: Array, num_users: int) -> int:
    """The minimum of events of a validation or test user: 10, or fewer if too few users have 10.

    Too few: the evaluation users would be more than a quarter of them, and training would miss the users with the most
    events.
    """
    return next((n for n in range(EVAL_EVENTS, 2, -1) if np.count_nonzero(lengths >= n) >= ENOUGH * num_users), 2)


def leave_one_out(lengths: Array, split: SplitOptions, before_last: Array, last: Array) -> Sections:
    """All users in all sections, unless fewer are to validate or test, or their event there is not to be predicted.

    `before_last` and `last` say whose last event but one, and whose last, is to be predicted [U] each.
    """
    for name, count, eligible in (("val_users", split.val_users, before_last), ("test_users", split.test_users, last)):
        if count is not None and count > np.count_nonzero(eligible):
            role, most = "validation" if name == "val_users" else "test", np.count_nonzero(eligible)
            whose = f"of the log{_with_target(eligible)}"
            raise ValueError(f"{count:,} {role} users are more than the {most:,} {whose}: lower `{name}`")
    order = np.random.default_rng(split.seed).permutation(len(lengths))
    take = np.zeros((len(SPLITS), len(lengths)), np.int64)
    take[TRAIN] = lengths - 2
    for section, count, held_out, eligible in (
        (VAL, split.val_users, 1, before_last),
        (TEST, split.test_users, 0, last),
    ):
        drawn = order[eligible[order]][:count]
        take[section, drawn] = lengths[drawn] - held_out
    cuts = take - 1
    cuts[TRAIN] = take[TRAIN] // 2
    return Sections(take, cuts)


def by_time(lengths: Array, before: Array, split: SplitOptions, has_target: Array) -> Sections:
    """All users train on the events before the date; some who also have later ones validate, and others test."""
    both = np.flatnonzero((before < lengths) & has_target)
    if not len(both):
        raise ValueError(
            f"split={split.name}: no user has events both before and after it{_with_target(has_target)}: "
            "choose another date"
        )
    default = _default_users(len(both))
    test = min(default, len(both)) if split.test_users is None else split.test_users
    val = min(default, len(both) - test) if split.val_users is None else split.val_users
    if val + test > len(both):
        raise ValueError(
            f"{val:,} validation and {test:,} test users are more than the {len(both):,} who have events both "
            f"before and after {split.date}: lower `val_users` or `test_users`"
        )
    order = both[np.random.default_rng(split.seed).permutation(len(both))]
    take = np.zeros((len(SPLITS), len(lengths)), np.int64)
    take[TRAIN] = before
    for section, drawn in ((TEST, order[:test]), (VAL, order[test : test + val])):
        take[section, drawn] = lengths[drawn]
    cuts = np.stack([before // 2 if section == TRAIN else before for section in range(len(SPLITS))])
    return Sections(take, cuts)


def _with_target(has_target: Array) -> str:
    """What a message adds where only some events are to be predicted."""
    return "" if has_target.all() else " and one to predict (`target`)"


def _default_users(num_users: int) -> int:
    return min(MAX_EVAL_USERS, max(1, num_users // EVAL_FRACTION))

"""Who trains, who validates and who tests, and what is to be predicted: three usual protocols.

- halves: users are drawn apart for training, validation and testing. The first half of a user's events is history, the
  second half is to be predicted. All users may train; those who validate and test need some events to be judged by.
- leave-one-out: every user trains on all events but the last two. Validation predicts the last but one, testing the
  last.
- time:DATE: every user trains on what came before the date. Users who also have later events are drawn for validation
  and testing, which predict all of the later ones. The date is a number where times are numbers but no Unix times.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from beamtree.data.prepared import SPLITS
from beamtree.ingest.arrays import Array, Kept, Sections, keep_events, pieces, read_piece
from beamtree.ingest.times import TimeScale, read_date, with_unit

HALVES, LEAVE_ONE_OUT, BY_TIME = "halves", "leave-one-out", "time:"
TRAIN, VAL, TEST = map(SPLITS.index, ("train", "val", "test"))
MOST, SHARE = 1000, 20  # users that validate or test unless others are asked for: one in 20, at most 1,000
EVAL_EVENTS = 10  # events of a validation or test user, where enough users have so many
ENOUGH = 4  # times as many users as validate and test


class Split(NamedTuple):
    """What was asked for: a protocol, how many users validate and test, and what draws them."""

    name: str
    val_users: int | None
    test_users: int | None
    seed: int
    min_eval_events: int | None = None  # that a validation or test user of `halves` has; `eval_events` unless given

    @property
    def date(self) -> str | None:
        """Where a split by time divides the log, as it was written."""
        return self.name.removeprefix(BY_TIME) if self.name.startswith(BY_TIME) else None

    @property
    def least_events(self) -> int:
        """With fewer events, a user would have none to train on."""
        return 3 if self.name == LEAVE_ONE_OUT else 1

    def check(self) -> None:
        """Raise a ValueError where the protocol is unknown, or a number makes no sense."""
        if self.name not in (HALVES, LEAVE_ONE_OUT) and not self.date:
            raise ValueError(f"split={self.name}: choose {HALVES}, {LEAVE_ONE_OUT} or {BY_TIME}DATE")
        for name, count in (("val_users", self.val_users), ("test_users", self.test_users), ("seed", self.seed)):
            if count is not None and count < 0:
                raise ValueError(f"{name}={count} is negative")
        if self.min_eval_events is not None and self.min_eval_events < 2:
            least = "2 at least, one to be known by and one to predict"
            raise ValueError(f"min_eval_events={self.min_eval_events}: a validation or test user needs {least}")

    def find_unit(self, events: pl.LazyFrame, scale: TimeScale | None) -> TimeScale | None:
        """The scale of the log's times, which are looked at where they are numbers and the split names a date."""
        if scale is None or scale.dates or self.date is None or read_date(self.date) is None:
            return scale
        return with_unit(events, scale)

    def moment(self, scale: TimeScale | None) -> int | None:
        """The date on the scale of the log's times; None for protocols that need none."""
        if self.date is None:
            return None
        if scale is None:
            raise ValueError(f"split={self.name}: the log has no times; name their column with `time`")
        moment = scale.read(self.date)
        if moment is None:
            how = "dates: give one such as 2020-12-31" if scale.dates else "numbers: give one, in the same unit"
            raise ValueError(f"split={self.name}: {self.date!r} cannot be read; the times of the log are {how}")
        return moment


def divide(split: Split, kept: Kept, work: Path, scale: TimeScale | None) -> tuple[Kept, Sections]:
    """The sections of a log; and what is kept of it, which is less where users have no events before a date."""
    moment = split.moment(scale)
    if moment is None or scale is None:
        lengths = kept.lengths[kept.lengths > 0]
        return kept, (leave_one_out if split.name == LEAVE_ONE_OUT else halves)(lengths, split)
    before, first, last = _events_before(work, kept.lengths, moment)
    if moment <= first or moment > last:
        where = "before" if moment <= first else "after"
        times = f"{scale.show(first)} to {scale.show(last)}"
        raise ValueError(f"split={split.name} divides nothing: it is {where} all events, which are from {times}")
    kept = _drop_late_users(kept, before, work)
    users = np.flatnonzero(kept.lengths)
    return kept, by_time(kept.lengths[users], before[users], split)


def halves(lengths: Array, split: Split) -> Sections:
    """Each user in one section, with all events."""
    num_users = len(lengths)
    usual = _usual(num_users) if num_users > 2 else 0
    val, test = (usual if count is None else count for count in (split.val_users, split.test_users))
    if val + test >= num_users:
        raise ValueError(
            f"{val:,} validation and {test:,} test users leave none of {num_users:,} users for training: "
            "lower `val_users` or `test_users`"
        )
    least = split.min_eval_events or eval_events(lengths, val + test)
    able = np.flatnonzero(lengths >= least)
    if val + test > len(able):
        raise ValueError(
            f"{val:,} validation and {test:,} test users are more than the {len(able):,} who have at least {least} "
            "events (`min_eval_events`): lower `val_users` or `test_users`"
        )
    order = able[np.random.default_rng(split.seed).permutation(len(able))]
    section = np.full(num_users, TRAIN)
    section[order[:test]] = TEST
    section[order[test : test + val]] = VAL
    take = np.where(section == np.arange(len(SPLITS))[:, None], lengths, 0)
    return Sections(take, None, least)


def eval_events(lengths: Array, wanted: int) -> int:
    """How many events a validation or test user has at least: 10, or fewer where too few users have so many.

    Too few: the `wanted` users would be more than a quarter of them, and the users with the most events would be
    missing in training.
    """
    return next((n for n in range(EVAL_EVENTS, 2, -1) if np.count_nonzero(lengths >= n) >= ENOUGH * wanted), 2)


def leave_one_out(lengths: Array, split: Split) -> Sections:
    """All users in all sections, unless fewer are to validate or test."""
    for name, count in (("val_users", split.val_users), ("test_users", split.test_users)):
        if count is not None and count > len(lengths):
            role = "validation" if name == "val_users" else "test"
            raise ValueError(f"{count:,} {role} users are more than the {len(lengths):,} of the log: lower `{name}`")
    order = np.random.default_rng(split.seed).permutation(len(lengths))
    take = np.zeros((len(SPLITS), len(lengths)), np.int64)
    take[TRAIN] = lengths - 2
    for place, count, held_back in ((VAL, split.val_users, 1), (TEST, split.test_users, 0)):
        drawn = order[:count]
        take[place, drawn] = lengths[drawn] - held_back
    cuts = take - 1
    cuts[TRAIN] = take[TRAIN] // 2
    return Sections(take, cuts)


def by_time(lengths: Array, before: Array, split: Split) -> Sections:
    """All users train on the events before the date; some who also have later ones validate, and others test."""
    both = np.flatnonzero(before < lengths)
    if not len(both):
        raise ValueError(f"split={split.name}: no user has events both before and after it: choose another date")
    test = min(_usual(len(both)), len(both)) if split.test_users is None else split.test_users
    val = min(_usual(len(both)), len(both) - test) if split.val_users is None else split.val_users
    if val + test > len(both):
        raise ValueError(
            f"{val:,} validation and {test:,} test users are more than the {len(both):,} who have events both "
            f"before and after {split.date}: lower `val_users` or `test_users`"
        )
    order = both[np.random.default_rng(split.seed).permutation(len(both))]
    take = np.zeros((len(SPLITS), len(lengths)), np.int64)
    take[TRAIN] = before
    for place, drawn in ((TEST, order[:test]), (VAL, order[test : test + val])):
        take[place, drawn] = lengths[drawn]
    cuts = np.stack([before // 2 if place == TRAIN else before for place in range(len(SPLITS))])
    return Sections(take, cuts)


def _usual(num_users: int) -> int:
    return min(MOST, max(1, num_users // SHARE))


def _events_before(work: Path, lengths: Array, moment: int) -> tuple[Array, int, int]:
    """How many events each user has before a moment [U]; and the first and the last time of all."""
    before = np.zeros_like(lengths)
    ends = []
    for some, span in pieces(lengths):
        time, count = read_piece(work / "time", span), lengths[some]
        owner = np.repeat(np.arange(len(count)), count)
        before[some] = np.bincount(owner[time < moment], minlength=len(count))
        ends += [int(time.min()), int(time.max())] if len(time) else []
    return before, min(ends), max(ends)


def _drop_late_users(kept: Kept, before: Array, work: Path) -> Kept:
    """Without the users who have nothing to train on."""
    late = (kept.lengths > 0) & (before == 0)
    report = {
        **kept.report,
        "users_without_training_events": int(late.sum()),
        "events_of_users_without_training_events": int(kept.lengths[late].sum()),
    }
    if not late.any():
        return Kept(kept.lengths, kept.popularity, report)
    everything = np.ones(len(kept.popularity), bool)
    lengths, popularity = keep_events(work, kept.lengths, ~late, everything, 1)
    return Kept(lengths, popularity, report)

"""Which users train, validate and test, and what is predicted: three protocols.

- halves: every user is drawn for either training, validation or testing. The first half of a user's events is history,
  the second half is predicted. Validation and test users need a minimum of events.
- leave-one-out: every user trains on all events but the last two. Validation predicts the second to last, testing the
  last.
- time: every user trains on the events before a cut. Users who also have later events are drawn for validation and
  testing, which predict all of the later events. The cut is before the newest tenth of the events, or is named:
  `time:30d` is 30 days before the last event, also in hours (h) or weeks (w), and `time:DATE` is a date, or a number
  where times are not Unix times. A section of its own has all events of every user, for the model that will serve.

Unless one is named, it is `time` where a log has a clock and enough users have events before and after the cut, and
`halves` elsewhere.

Where only some events are to be predicted, validation and test users are those who have one among what is predicted.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from beamtree.data.prepared import ALL, SECTIONS, SPLITS
from beamtree.data.times import parse_date
from beamtree.ingest.arrays import Array, CleanedLog, Read, Sections, columns_of, count_targets
from beamtree.ingest.clock import LogTimes, period_seconds
from beamtree.ingest.times import TimeScale, detect_unix_unit

HALVES, LEAVE_ONE_OUT, TIME = "halves", "leave-one-out", "time"
TRAIN, VAL, TEST = map(SPLITS.index, ("train", "val", "test"))
WHOLE = SECTIONS.index(ALL)
MAX_EVAL_USERS, EVAL_FRACTION = 1000, 20  # one user in 20, at most 1,000, validate, and as many test
MAX_VAL_USERS, TEST_FRACTION = 2000, 4  # of a split by time: one user in 4 tests, at most 1,000, and others validate
MIN_CUT_USERS = 200  # with events before and after the cut, from which a split by time is the default
EVAL_EVENTS = 10  # minimum of a validation or test user, if enough users have them
ENOUGH = 4  # times as many users as validate and test


class SplitOptions(NamedTuple):
    """A protocol, how many users validate and test, and the seed that draws them."""

    name: str | None  # None: chosen by the log
    val_users: int | None
    test_users: int | None
    seed: int
    min_eval_events: int | None = None  # of a validation or test user of `halves`; `eval_events` unless given

    @property
    def by_time(self) -> bool:
        """Whether this is a split by time."""
        return self.name is not None and self.name.partition(":")[0] == TIME

    @property
    def point(self) -> str:
        """The date or period of a split by time, as given; empty where it has none."""
        return "" if self.name is None else self.name.partition(":")[2]

    @property
    def min_train_events(self) -> int:
        """With fewer events, a user would have none to train on."""
        return 3 if self.name == LEAVE_ONE_OUT else 1

    def check(self) -> None:
        """Raise a ValueError if the protocol is unknown or a number is out of range."""
        named = self.name in (None, HALVES, LEAVE_ONE_OUT, TIME)
        if not named and not (self.by_time and self.point):
            raise ValueError(f"split={self.name}: choose {HALVES}, {LEAVE_ONE_OUT}, {TIME}, {TIME}:30d or {TIME}:DATE")
        for name, count in (("val_users", self.val_users), ("test_users", self.test_users), ("seed", self.seed)):
            if count is not None and count < 0:
                raise ValueError(f"{name}={count} is negative")
        if self.min_eval_events is not None and self.min_eval_events < 2:
            least = "at least 2 events, one for the history and one to predict"
            raise ValueError(f"min_eval_events={self.min_eval_events}: a validation or test user needs {least}")

    def with_unit(self, events: pl.LazyFrame, scale: TimeScale | None) -> TimeScale | None:
        """The scale of the log's times; their unit is detected if they are numbers and the split needs it."""
        needed = self.by_time and (parse_date(self.point) is not None or period_seconds(self.point) is not None)
        return detect_unix_unit(events, scale) if needed and scale is not None and not scale.dates else scale

    def check_times(self, scale: TimeScale | None) -> None:
        """Raise a ValueError if a log with such times cannot be split so."""
        if not self.by_time:
            return
        if scale is None:
            raise ValueError(f"split={self.name}: the log has no times; name their column with `time`")
        if period_seconds(self.point) is not None:
            if not scale.dates and scale.unit is None:
                order = "the times of the log are only an order"
                raise ValueError(f"split={self.name}: {order}: choose {TIME}, {TIME}:NUMBER or {HALVES}")
        elif self.point and scale.parse(self.point) is None:
            kind = "numbers: give one in the same unit, or for Unix times a date or a period such as 30d"
            kind = "dates: give one such as 2020-12-31, or a period such as 30d" if scale.dates else kind
            raise ValueError(f"split={self.name}: {self.point!r} cannot be read; the times of the log are {kind}")

    def cut(self, times: LogTimes) -> int:
        """The time from which on events are to be predicted, on the scale of the log."""
        period = period_seconds(self.point)
        if period is not None and times.unit is not None:
            cut = times.last - period * times.unit + 1  # so many days, where times are whole days
        else:
            date = times.scale.parse(self.point) if self.point else None
            cut = times.newest() if date is None else date
        if cut <= times.first or cut > times.last:
            where = "before" if cut <= times.first else "after"
            bounds = f"{times.format(times.first)} to {times.format(times.last)}"
            raise ValueError(f"split={self.name} is {where} all events, which are from {bounds}: choose another date")
        return cut

    def resolved(self, times: LogTimes | None, weights: Read | None) -> tuple["SplitOptions", int | None]:
        """The options with a protocol that suits a log, where none was named.

        And how many users have events before and after a cut, where these are too few for a split by time.
        """
        if self.name is not None:
            return self, None
        by_time = self._replace(name=TIME)
        wanted = (self.val_users, self.test_users)
        if times is None or not times.is_clock or times.newest() == times.first or wanted == (0, 0):
            return self._replace(name=HALVES), None
        before = times.before(by_time.cut(times))
        both = int(np.count_nonzero((before > 0) & (count_targets(weights, times.lengths, before) > 0)))
        enough = both >= max(MIN_CUT_USERS, sum(count or 0 for count in wanted))
        return (by_time, None) if enough else (self._replace(name=HALVES), both)


def split_log_events(
    split: SplitOptions, log: CleanedLog, work: Path, scale: TimeScale | None
) -> tuple[Sections, LogTimes | None]:
    """The sections of a log, of the users who have events, and its times if it has any."""
    columns, lengths = columns_of(work), log.lengths[np.flatnonzero(log.lengths)]
    has_times = scale is not None and "time" in columns
    times = LogTimes.of(columns["time"], lengths, scale) if has_times and scale is not None else None
    split, both = split.resolved(times, columns.get("weight"))
    targets_from = partial(count_targets, columns.get("weight"), lengths)
    if split.by_time:
        split.check_times(None if times is None else times.scale)
        assert times is not None
        return cut_in_time(split, split.cut(times), times, columns.get("weight")), times
    if split.name == HALVES:
        return halves(lengths, split, targets_from(lengths // 2) > 0)._replace(both=both), times
    of_last, of_two = targets_from(lengths - 1), targets_from(lengths - 2)
    return leave_one_out(lengths, split, of_two > of_last, of_last > 0), times


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
    return Sections(take, None, HALVES, least)


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
    return Sections(take, cuts, LEAVE_ONE_OUT)


def cut_in_time(
    split: SplitOptions, cut: int, times: LogTimes, weights: Read | None, *, fewer: bool = False
) -> Sections:
    """All users train on the events before the cut; some who also have later ones validate, and others test.

    With `fewer`, fewer users than asked for do so where there are not as many.
    """
    lengths, before = times.lengths, times.before(cut)
    if np.count_nonzero(before) < 2:
        raise ValueError(f"split={split.name}: two users with events before it are needed: choose another date")
    has_target = count_targets(weights, lengths, before) > 0
    both = np.flatnonzero((before > 0) & (before < lengths) & has_target)
    if not len(both):
        among = _with_target(has_target | (before == lengths))
        raise ValueError(f"split={split.name}: no user has events both before and after it{among}: choose another date")
    val, test = split.val_users, split.test_users
    if test is None:
        test = min(MAX_EVAL_USERS, max(1, len(both) // TEST_FRACTION), max(0, len(both) - (val or 0)))
    if val is None:
        val = min(MAX_VAL_USERS, max(0, len(both) - test))
    if fewer and val + test > len(both):
        test = test * len(both) // (val + test)
        val = len(both) - test
    if val + test > len(both):
        raise ValueError(
            f"{val:,} validation and {test:,} test users are more than the {len(both):,} who have events both "
            f"before and after {times.format(cut)}: lower `val_users` or `test_users`"
        )
    order = both[np.random.default_rng(split.seed).permutation(len(both))]
    take = np.zeros((len(SECTIONS), len(lengths)), np.int64)
    take[TRAIN], take[WHOLE] = before, lengths
    for section, drawn in ((TEST, order[:test]), (VAL, order[test : test + val])):
        take[section, drawn] = lengths[drawn]
    cuts = np.stack([before // 2, before, before, lengths // 2])
    return Sections(take, cuts, split.name or TIME, cut=cut)


def _with_target(has_target: Array) -> str:
    """What a message adds where only some events are to be predicted."""
    return "" if has_target.all() else " and one to predict (`target`)"


def _default_users(num_users: int) -> int:
    return min(MAX_EVAL_USERS, max(1, num_users // EVAL_FRACTION))

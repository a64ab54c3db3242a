"""Which users train, validate and test, and what is predicted: four protocols.

- halves: every user is drawn for either training, validation or testing. The first half of a user's events is history,
  the second half is predicted. Validation and test users need a minimum of events.
- leave-one-out: every user trains on all events but the last two. Validation predicts the second to last, testing the
  last.
- time: every user trains on the events before a cut. Users who also have later events are drawn for validation and
  testing, which predict all of the later events. The cut is before the newest tenth of the events, or is named:
  `time:30d` is 30 days before the last event, also in hours (h) or weeks (w), and `time:DATE` is a date, or a number
  where times are not Unix times. A section of its own has all events of every user, for the model that will serve.
- pairs: a random tenth of the pairs of every user and an item is to be found from the others, at least one where a user
  has several. `pairs:0.2` holds out a fifth. Users are drawn for validation and testing, and a section of its own has
  all events, both as with `time`.

Unless one is named, it is `time` where a log has a clock and enough users have events before and after the cut, `pairs`
where it has no times, enough users have several items and their order says nothing, and `halves` elsewhere.

Where only some events are to be predicted, validation and test users are those who have one among what is predicted.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch

from beamtree.data.events import MAX_EVENTS, Events
from beamtree.data.prepared import ALL, SECTIONS, SPLITS
from beamtree.data.times import parse_date
from beamtree.data.views import ORDERED
from beamtree.ingest.arrays import Array, CleanedLog, Read, Sections, columns_of, count_targets, user_ranges
from beamtree.ingest.clock import LogTimes, period_seconds
from beamtree.ingest.readers import are_integers
from beamtree.ingest.times import TimeScale, detect_unix_unit

HALVES, LEAVE_ONE_OUT, TIME, PAIRS = "halves", "leave-one-out", "time", "pairs"
PAIRS_SHARE = 0.1  # that are held out, where a split of pairs names no share
TRAIN, VAL, TEST = map(SPLITS.index, ("train", "val", "test"))
ALL_EVENTS = SECTIONS.index(ALL)
MAX_EVAL_USERS, EVAL_FRACTION = 1000, 20  # one user in 20, at most 1,000, validate, and as many test
MAX_VAL_USERS, TEST_FRACTION = 6000, 4  # of a split by time or pairs: one in 4, at most 1,000, test
MIN_CUT_USERS = 200  # with something to predict, from which a split by time or of pairs is the default
MIN_REPEATS = 1000  # of pairs of items, from which a log says whether it is in order
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
    def of_pairs(self) -> bool:
        """Whether this is a split of pairs."""
        return self.name is not None and self.name.partition(":")[0] == PAIRS

    @property
    def share(self) -> float:
        """The share of a user's pairs that a split of pairs holds out."""
        return share_of_pairs(self.name or PAIRS)

    @property
    def point(self) -> str:
        """The date, period or share of pairs of a split, as given; empty where it has none."""
        return "" if self.name is None else self.name.partition(":")[2]

    @property
    def min_train_events(self) -> int:
        """With fewer events, a user would have none to train on."""
        return 3 if self.name == LEAVE_ONE_OUT else 1

    def check(self) -> None:
        """Raise a ValueError if the protocol is unknown or a number is out of range."""
        named = self.name in (None, HALVES, LEAVE_ONE_OUT, TIME, PAIRS)
        if not named and not ((self.by_time or self.of_pairs) and self.point):
            ways = f"{HALVES}, {LEAVE_ONE_OUT}, {TIME}, {TIME}:30d, {TIME}:DATE or {PAIRS}:{PAIRS_SHARE}"
            raise ValueError(f"split={self.name}: choose {ways}")
        if self.of_pairs and not 0 < self.share <= 0.5:
            raise ValueError(f"split={self.name}: the share of the pairs to hold out is above 0 and at most 0.5")
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

    def resolved(
        self, times: LogTimes | None, lengths: Array, weights: Read | None, is_unordered: Callable[[], bool]
    ) -> tuple["SplitOptions", int | None]:
        """The options with a protocol that suits a log, where none was named.

        And how many users have events before and after a cut, where these are too few for a split by time.
        """
        if self.name is not None:
            return self, None
        by_time = self._replace(name=TIME)
        wanted = (self.val_users, self.test_users)
        least = max(MIN_CUT_USERS, sum(count or 0 for count in wanted))
        if times is None and wanted != (0, 0) and np.count_nonzero(lengths > 1) >= least and is_unordered():
            return self._replace(name=PAIRS), None
        if times is None or not times.is_clock or times.newest() == times.first or wanted == (0, 0):
            return self._replace(name=HALVES), None
        before = times.before(by_time.cut(times))
        both = int(np.count_nonzero((before > 0) & (count_targets(weights, times.lengths, before) > 0)))
        return (by_time, None) if both >= least else (self._replace(name=HALVES), both)


def split_log_events(
    split: SplitOptions, log: CleanedLog, work: Path, scale: TimeScale | None, items: pl.Series
) -> tuple[Sections, LogTimes | None]:
    """The sections of a log, of the users who have events, and its times if it has any.

    `items` are the ids of all items, by number.
    """
    columns, lengths = columns_of(work), log.lengths[np.flatnonzero(log.lengths)]
    has_times = scale is not None and "time" in columns
    times = LogTimes.of(columns["time"], lengths, scale) if has_times and scale is not None else None
    unordered = partial(is_unordered, columns["item"], lengths, items)
    split, both = split.resolved(times, lengths, columns.get("weight"), unordered)
    if split.of_pairs:
        return pairs_of_users(split, lengths, columns["item"], columns.get("weight")), times
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
    enough = max(1, int(np.count_nonzero(has_target)) // EVAL_FRACTION)
    default = min(MAX_EVAL_USERS, enough) if num_users > 2 else 0
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
    take = _drawn(split, lengths, before, both, f"have events both before and after {times.format(cut)}", fewer)
    return Sections(take, _cuts(lengths, before), split.name or TIME, cut=cut)


def _drawn(split: SplitOptions, lengths: Array, before: Array, both: Array, who: str, fewer: bool) -> Array:
    """The events that each section takes, where all users train on those `before` the others [U].

    Users are drawn from `both` for validation and testing; `who` says of them what they have.
    """
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
            f"{val:,} validation and {test:,} test users are more than the {len(both):,} who {who}: "
            "lower `val_users` or `test_users`"
        )
    order = both[np.random.default_rng(split.seed).permutation(len(both))]
    take = np.zeros((len(SECTIONS), len(lengths)), np.int64)
    take[TRAIN], take[ALL_EVENTS] = before, lengths
    for section, drawn in ((TEST, order[:test]), (VAL, order[test : test + val])):
        take[section, drawn] = lengths[drawn]
    return take


def _cuts(lengths: Array, before: Array) -> Array:
    """How many events are history in each section of such a split."""
    return np.stack([before // 2, before, before, lengths // 2])


def pairs_of_users(
    split: SplitOptions, lengths: Array, items: Read, weights: Read | None, *, fewer: bool = False
) -> Sections:
    """All users train on most of their pairs; for some the others validate, and for some they test.

    With `fewer`, fewer users than asked for do so where there are not as many.
    """
    held_out = np.zeros(int(lengths.sum()), bool)
    before, generator = lengths.copy(), np.random.default_rng(split.seed)
    for users, events in user_ranges(lengths):
        can_be = np.ones(events.stop - events.start, bool) if weights is None else weights(events) > 0
        held_out[events] = draw_pairs(lengths[users], items(events), can_be, split.share, generator)
        owner = np.repeat(np.arange(users.stop - users.start), lengths[users])
        before[users] -= np.bincount(owner[held_out[events]], minlength=users.stop - users.start)
    several = np.flatnonzero(before < lengths)
    if not len(several):
        among = "" if weights is None else " and one to predict (`target`)"
        raise ValueError(f"split={split.name}: no user has several items{among}")
    take = _drawn(split, lengths, before, several, "have several items", fewer)
    return Sections(take, _cuts(lengths, before), f"{PAIRS}:{split.share:g}", held_out=held_out)


def draw_pairs(lengths: Array, items: Array, can_be: Array, share: float, generator: np.random.Generator) -> Array:
    """Which events are held out: all of a random share of each user's distinct items, at least one of several [E].

    Only items of events that `can_be` held out are drawn [E].
    """
    owner = np.repeat(np.arange(len(lengths)), lengths)
    pairs, number = np.unique(owner * (int(items.max(initial=0)) + 1) + items, return_inverse=True)
    first = np.unique(number, return_index=True)[1]
    user, wanted = owner[first], np.bincount(number, can_be, len(pairs)) > 0
    counts = np.bincount(user, minlength=len(lengths))
    most = np.where(counts > 1, np.maximum(1, np.rint(share * counts)), 0)
    order = np.lexsort((generator.random(len(pairs)), ~wanted, user))
    drawn = np.zeros(len(pairs), bool)
    drawn[order] = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts) < most[user]
    held_out: Array = (drawn & wanted)[number]
    return held_out


def is_unordered(items: Read, lengths: Array, ids: pl.Series) -> bool:
    """Whether the order of a log without times says nothing, as far as its first events tell.

    It does not where neighbours are no more often a pair than items further apart, and where the items of every user
    are sorted. Where too few pairs occur again to tell, the rows are taken to be in order.
    """
    ends = np.cumsum(lengths)
    ends = ends[: max(1, np.searchsorted(ends, MAX_EVENTS, side="right"))]
    offsets, numbers = np.concatenate([[0], ends]).astype(np.int64), items(slice(0, int(ends[-1])))
    events = Events(torch.from_numpy(offsets), torch.from_numpy(numbers.astype(np.int64)), "rows")
    if events.repeats[1][0] < MIN_REPEATS:
        return False
    if events.order_strength <= ORDERED:
        return True
    rank = (ids.cast(pl.Int64) if are_integers(ids) else ids).rank("ordinal").to_numpy()[numbers].astype(np.int64)
    descends = np.diff(rank) < 0
    descends[offsets[1:-1] - 1] = False  # from one user to the next
    return not descends.any()


def share_of_pairs(split: str) -> float:
    """The share that a split of pairs holds out; 0 where it cannot be read."""
    text = split.partition(":")[2]
    try:
        return float(text) if text else PAIRS_SHARE
    except ValueError:
        return 0.0


def _with_target(has_target: Array) -> str:
    """What a message adds where only some events are to be predicted."""
    return "" if has_target.all() else " and one to predict (`target`)"

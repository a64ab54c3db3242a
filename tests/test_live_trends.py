"""Trends of a live model: after any events in any order they are those of a fit to all events."""

import random
from contextlib import closing

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import beamtree as bt
from beamtree.data import Events
from beamtree.data.ids import Ids
from beamtree.data.times import DAY, MICRO
from beamtree.live import Journal, LiveModel
from beamtree.live.events import Event, events_entry
from beamtree.live.journal import compact
from beamtree.parts.trend import decayed_counts
from beamtree.scorers import SumScorer, TrendScorer

HOUR, WEEK, ITEMS = 3600, 7 * DAY, 12
HALF_LIVES = [WEEK, DAY]
END = 1_700_000_000
NAMES = [f"i{item}" for item in range(ITEMS)]


def make_log(days=40, a_day=50):
    """Rows (user, item, second, weight), of which the last is the newest; the first items are chosen more often."""
    draw = random.Random(0)
    seconds = sorted(END - draw.randrange(days * DAY) for _ in range(days * a_day))
    return [(f"u{draw.randrange(100)}", int(ITEMS * draw.random() ** 2), at, 1.0) for at in [*seconds, END]]


LOG = make_log()


def fitted():
    """A model of nothing but the trend part of `LOG`."""
    tree = bt.random_tree(ITEMS, arity=2, seed=1)
    users = sorted({row[0] for row in LOG})
    rows = [row for user in users for row in LOG if row[0] == user]
    offsets = torch.tensor([0, *(sum(row[0] <= user for row in LOG) for user in users)])
    items, times = torch.tensor([row[1] for row in rows]).int(), torch.tensor([row[2] for row in rows])
    counts = decayed_counts(Events(offsets, items, "log", times=times, clock=1), ITEMS, HALF_LIVES)
    trend = TrendScorer.from_counts(tree, counts, HALF_LIVES, [1.0, 1.0], END)
    return bt.TreeModel(tree, SumScorer({"trend": trend}, tree.height), ids=Ids(NAMES))


MODEL = fitted()


def record(live, rows):
    """Record rows in one request."""
    live.record_events([(user, [f"i{item}"], second * MICRO) for user, item, second, *_ in rows])


def counts_of(live):
    """The counts of the items at the time of the newest event."""
    trend = live.model.scorer.part("trend")
    return trend.counts.double() * trend.fading(trend.newest)


def check(live, rows):
    """The live model counts the log and some rows as they are defined, and its table is that of its counts."""
    by_item = [oracle.trend_counts([*LOG, *rows], half_life) for half_life in HALF_LIVES]
    expected = [[column.get(item, 0.0) for column in by_item] for item in range(ITEMS)]
    torch.testing.assert_close(counts_of(live), torch.tensor(expected).double(), rtol=1e-4, atol=1e-4)
    trend, tree = live.model.scorer.part("trend"), live.model.tree
    values = trend.table.weight[tree.leaf_of_item(torch.arange(len(trend.counts)))]
    torch.testing.assert_close(values.float() ** 2, trend.counts, rtol=5e-3, atol=1e-3)


def best(live, m=5):
    return bt.retrieve(live.model, torch.full((1, 69), bt.PAD), beam_size=ITEMS, m=m)[0][0].tolist()


later_rows = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, ITEMS - 1),
        st.one_of(st.integers(END + 1, END + 3 * DAY), st.integers(END + 1, END + 60 * DAY)),
        st.just(1.0),
    ),
    max_size=25,
)


@given(later_rows, st.integers(0, 2**20))
def test_in_any_order_and_in_any_batches_they_are_those_of_a_fit_to_all_events(rows, seed):
    draw, live = random.Random(seed), LiveModel(MODEL)
    draw.shuffle(rows)
    start = 0
    while start < len(rows):
        stop = start + draw.randint(1, 8)
        record(live, rows[start:stop])
        start = stop
    check(live, rows)


@given(later_rows, st.integers(END, END + 60 * DAY))
def test_what_is_retired_does_not_count(tmp_path_factory, rows, before):
    kept = [row for row in rows if row[2] >= before]
    with closing(Journal(tmp_path_factory.mktemp("journal"))) as journal:
        live, replica = LiveModel(MODEL, journal=journal), LiveModel(MODEL)
        record(live, rows)
        replica.apply(journal.entries[:])
        live.retire_events(before * MICRO)
        replica.apply(journal.entries[-1:])
        check(live, kept)
        check(replica, kept)
        for entries in (list(journal.entries), compact(journal.entries)):
            journal.entries = entries
            check(LiveModel(MODEL, journal=journal), kept)


@pytest.mark.parametrize("days", [1, 7, 14, 30, 400])
def test_the_first_event_after_a_gap_does_not_wipe_the_trend(days):
    live = LiveModel(MODEL)
    before = best(live)
    record(live, [("a", 11, END + days * DAY)])
    assert len(set(best(live)) & set(before)) >= 4
    check(live, [("a", 11, END + days * DAY, 1.0)])


def test_events_that_come_late_fill_a_gap():
    live, rows = LiveModel(MODEL), [("a", item % ITEMS, END + item * DAY, 1.0) for item in range(1, 31)]
    record(live, rows[-1:])
    faded = counts_of(live)
    record(live, rows[:-1])
    check(live, rows)
    assert (counts_of(live)[0] < faded[0] / 4).all()


def test_repeats_of_a_user_on_one_day_count_once():
    live, before = LiveModel(MODEL), best(LiveModel(MODEL))
    live.record_events([("a", ["i11"] * 100, None), ("a", ["i11"] * 100, (END + HOUR) * MICRO)])
    record(live, [("a", 11, END + HOUR + second) for second in range(1, 100)])
    assert counts_of(live)[11].max() < counts_of(LiveModel(MODEL))[11].max() + 3
    assert set(best(live, 3)) == set(before[:3])


def test_an_item_that_is_added_later_has_the_counts_of_its_events():
    live, rows = LiveModel(MODEL), [("a", 12, END + HOUR, 1.0), ("b", 12, END + 3 * DAY, 1.0)]
    record(live, [*rows, (*rows[1][:2], END + 3 * DAY + 60), ("c", 13, END + 2 * DAY)])
    record(live, [("b", 0, END + 20 * DAY)])
    live.update_items({"i12": {"like": ["i3"]}})
    assert live.ids.find(["i12"]) == [12]
    first, second = counts_of(live)[12].tolist()
    ages = [3 * DAY - HOUR, DAY - 60]  # the days of END + 2, 3 and 20 days pass
    expected = [sum(2 ** (-age / half_life) for age in ages) for half_life in HALF_LIVES]
    assert [first, second] == pytest.approx(expected, rel=1e-3)


def test_a_refit_starts_again():
    live = LiveModel(MODEL)
    record(live, [("a", 3, END + DAY), ("a", 12, END + DAY)])
    live.replace_model(MODEL)
    check(live, [])
    live.update_items({"i12": {"like": ["i3"]}})  # its event is in no fit
    assert counts_of(live)[12].min() > 0.4
    live.retire_events((END + 5 * DAY) * MICRO)
    assert counts_of(live)[12].max() == 0


def test_a_date_in_the_future_neither_counts_nor_passes():
    live = LiveModel(MODEL)
    live.apply([events_entry("a", [Event("i3", 4_000_000_000 * MICRO, END * MICRO)])])
    check(live, [])

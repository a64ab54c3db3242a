"""Instances from events: cut at a fixed place, cropped at random, and in sliding windows."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beamtree import PAD
from beamtree.data import BeforeAfter, Events, Instances, RandomCrops, SlidingWindows, random_crops
from beamtree.data.views import FIRST_TARGET, MAX_HISTORY


def events_of(users):
    offsets = torch.tensor([0, *torch.tensor([len(items) for items in users]).cumsum(0).tolist()])
    return Events(offsets, torch.tensor([item for items in users for item in items], dtype=torch.int32), "a")


def real(row):
    return [item for item in row.tolist() if item != PAD]


histories = st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=30), min_size=1, max_size=6)


@given(histories, st.integers(1, 12))
def test_history_is_the_newest_of_the_first_half_and_targets_are_the_second(users, history):
    x, y = BeforeAfter(events_of(users), history=history).batch(torch.arange(len(users)))
    assert x.shape == (len(users), history)
    for events, xs, ys in zip(users, x, y, strict=True):
        half = len(events) // 2
        assert real(xs) == events[:half][::-1][:history]
        assert xs.tolist()[: len(real(xs))] == real(xs)
        assert real(ys) == events[half:]


@given(histories, st.data())
def test_cuts_that_are_given_stand_between_history_and_targets(users, data):
    cuts = [data.draw(st.integers(0, len(items) - 1)) for items in users]
    view = BeforeAfter(events_of(users), torch.tensor(cuts), history=4)
    rows = data.draw(st.lists(st.integers(0, len(users) - 1), min_size=1))
    x, y = view.batch(torch.tensor(rows))
    seen = view.seen(torch.tensor(rows))
    for row, xs, ys, before in zip(rows, x, y, seen, strict=True):
        assert real(xs) == users[row][: cuts[row]][::-1][:4]
        assert real(ys) == users[row][cuts[row] :]
        assert real(before) == users[row][: cuts[row]]


@given(histories)
def test_what_was_seen_is_all_that_came_before_the_targets(users):
    events, every = events_of(users), torch.arange(len(users))
    halves = [items[: len(items) // 2] for items in users]
    assert [real(row) for row in BeforeAfter(events, history=3).seen(every)] == halves
    assert [real(row) for row in RandomCrops(events, history=3).seen(every)] == halves
    windows = SlidingWindows(events, history=3)
    if len(windows):
        expected = [items[:i] for items in users for i in range(FIRST_TARGET, len(items))]
        assert [real(row) for row in windows.seen(torch.arange(len(windows)))] == expected


def test_what_was_seen_is_not_known_of_instances_in_memory():
    with pytest.raises(ValueError, match="do not have the items seen before"):
        Instances(torch.zeros(1, 2), torch.tensor([[3]])).seen(torch.tensor([0]))


@given(histories)
def test_events_of_some_users_read_like_the_whole(users):
    events = events_of(users)
    last = BeforeAfter(Events(events.offsets[len(users) - 1 :], events.items, "last"))
    x, y = BeforeAfter(events).batch(torch.tensor([len(users) - 1]))
    ours = last.batch(torch.tensor([0]))
    assert torch.equal(ours[0], x)
    assert torch.equal(ours[1], y)
    assert last.item_numbers().tolist() == users[-1]
    assert last.seen(torch.tensor([0])).tolist() == [users[-1][: len(users[-1]) // 2]]


def test_random_splits_reach_every_place_and_leave_something_on_both_sides():
    data = random_crops(events_of([list(range(5))]), item_dropout=0.0, max_history=None)
    generator = torch.Generator().manual_seed(0)
    splits = set()
    for _ in range(100):
        x, y = data.batch(torch.tensor([0]), generator)
        assert real(x[0])[::-1] + real(y[0]) == list(range(5))
        splits.add(len(real(x[0])))
    assert splits == {1, 2, 3, 4}
    x, y = data.batch(torch.tensor([0]))  # without randomness, the half
    assert (real(x[0]), real(y[0])) == ([1, 0], [2, 3, 4])


def test_some_of_a_history_is_forgotten_and_targets_are_limited():
    events = events_of([list(range(100))] * 50)
    data = random_crops(events, item_dropout=0.3, targets=7)
    x, y = data.batch(torch.arange(50), torch.Generator().manual_seed(1))
    whole, _ = random_crops(events, item_dropout=0.0).batch(torch.arange(50), torch.Generator().manual_seed(1))
    assert ((x == whole) | (x == PAD)).all()
    kept = float((x != PAD).sum() / (whole != PAD).sum())
    assert kept == pytest.approx(0.7, abs=0.05)
    assert y.shape[1] == 7
    same = [data.batch(torch.arange(50), torch.Generator().manual_seed(2)) for _ in range(2)]
    assert torch.equal(same[0][0], same[1][0])


def test_an_instance_reaches_as_far_ahead_as_back_and_short_ways_are_as_frequent_as_long_ones():
    events = events_of([list(range(1000))] * 2000)
    data = RandomCrops(events, history=1000, item_dropout=0.0, targets=1000, max_history=100, min_history=5)
    x, y = data.batch(torch.arange(2000), torch.Generator().manual_seed(0))
    back = []
    for a, b in zip(x, y, strict=True):
        before, after = real(a)[::-1], real(b)
        assert before + after == list(range(before[0], after[-1] + 1))  # one piece, around the split point
        assert min(5, after[0]) <= len(before) <= 100
        assert len(after) == min(max(len(before), 5), 1000 - after[0])
        back.append(len(before))
    near = sum(count < 10 for count in back) / len(back)
    middle = sum(20 <= count < 40 for count in back) / len(back)
    assert near == pytest.approx(middle, abs=0.05)  # 5 … 9 as often as 20 … 39
    assert max(back) > 90


def test_order_is_strong_where_items_follow_each_other_again_and_again():
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(1, 4, (300, 40), generator=generator)
    first = torch.randint(0, 3000, (300, 1), generator=generator)
    fast, slow = ((first + steps.cumsum(1)) % items for items in (3000, 500))  # near items follow; of few, all do
    mixed = torch.stack([walk[torch.randperm(40, generator=generator)] for walk in fast])
    logs = [events_of(items.tolist()) for items in (fast, slow, mixed)]
    strength = [events.order_strength for events in logs]
    assert strength[0] > 2 > strength[1] > 1.1 > strength[2]
    assert events_of(fast[:, :8].tolist()).order_strength == 1  # too short to tell
    drawn = [BeforeAfter(events).random_crops() for events in logs]
    assert [data.max_history for data in drawn] == [MAX_HISTORY, MAX_HISTORY, None]
    assert [data.min_history for data in drawn[:2]] == [1, 5]


def test_the_shortest_way_back_is_taken_often_and_still_looks_ahead():
    data = RandomCrops(events_of([list(range(1000))] * 500), item_dropout=0.0, max_history=100, min_history=1)
    x, y = data.batch(torch.arange(500), torch.Generator().manual_seed(0))
    short = (x != PAD).sum(1) == 1
    assert 0.1 < float(short.float().mean()) < 0.2  # log 2 / log 100
    assert ((y[short] != PAD).sum(1) == 5).float().mean() > 0.95  # all but those near the end


@given(histories)
def test_windows_are_every_event_from_the_eighth_with_what_came_before(users):
    windows = SlidingWindows(events_of(users), history=4)
    expected = [
        (events[max(0, i - 4) : i][::-1], events[i]) for events in users for i in range(FIRST_TARGET, len(events))
    ]
    assert len(windows) == len(expected)
    if expected:
        x, y = windows.batch(torch.arange(len(windows)))
        assert [(real(a), *real(b)) for a, b in zip(x, y, strict=True)] == expected


def test_a_single_event_is_a_target_without_history():
    x, y = BeforeAfter(events_of([[7]])).batch(torch.tensor([0]), torch.Generator().manual_seed(0))
    assert (real(x[0]), real(y[0])) == ([], [7])


def test_users_of_one_event_have_no_crop():
    view = random_crops(events_of([[7], [1, 2], [8], [3, 4]]), item_dropout=0.0)
    assert len(view) == 2
    x, y = view.batch(torch.arange(2), torch.Generator().manual_seed(0))
    assert [(real(xs), real(ys)) for xs, ys in zip(x, y, strict=True)] == [([1], [2]), ([3], [4])]
    assert [real(row) for row in view.seen(torch.arange(2))] == [[1], [3]]


def test_what_changes_instances_changes_their_name():
    events = events_of([[1, 2, 3]])
    views = [
        BeforeAfter(events),
        BeforeAfter(events, history=7),
        BeforeAfter(events, torch.tensor([1])),
        BeforeAfter(events, torch.tensor([2])),
        BeforeAfter(events).random_crops(),
        random_crops(events, item_dropout=0.5),
        RandomCrops(events, max_history=7),
        RandomCrops(events, max_history=7, min_history=2),
        BeforeAfter(events).sliding_windows(),
        BeforeAfter(replace(events, name="b")),
    ]
    assert len({view.fingerprint() for view in views}) == len(views)


def test_popularity_counts_events():
    assert events_of([[1, 2, 2], [2, 0]]).popularity(4).tolist() == [1, 1, 3, 0]


def test_a_few_users_are_spread_over_all_and_read_as_they_were():
    events = Events(torch.tensor([0, 2, 5, 9, 11, 16]), torch.arange(16).int(), "five users")
    whole = BeforeAfter(events, cuts=torch.tensor([1, 1, 3, 1, 2]))
    few = whole.sample(3)
    assert len(few) == 3
    for row, of_all in enumerate((0, 2, 4)):
        for found, expected in zip(few.batch(torch.tensor([row])), whole.batch(torch.tensor([of_all])), strict=True):
            assert torch.equal(found, expected)
    assert whole.sample(5) is whole
    assert few.fingerprint() != whole.fingerprint()

"""Instances from events: the half split, random split points, how far they look, forgetting, sliding windows."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beamtree import PAD, Log
from beamtree.data.log import FIRST_TARGET, REACH


def a_log(users, **options):
    offsets = torch.tensor([0, *torch.tensor([len(events) for events in users]).cumsum(0).tolist()])
    return Log(
        offsets, torch.tensor([event for events in users for event in events], dtype=torch.int32), "a", **options
    )


def real(row):
    return [item for item in row.tolist() if item != PAD]


histories = st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=30), min_size=1, max_size=6)


@given(histories, st.integers(1, 12))
def test_history_is_the_newest_of_the_first_half_and_targets_are_the_second(users, history):
    x, y = a_log(users, history=history).batch(torch.arange(len(users)))
    assert x.shape == (len(users), history)
    for events, xs, ys in zip(users, x, y, strict=True):
        half = len(events) // 2
        assert real(xs) == events[:half][::-1][:history]
        assert xs.tolist()[: len(real(xs))] == real(xs)
        assert real(ys) == events[half:]


@given(histories)
def test_a_log_of_some_users_reads_like_the_whole(users):
    log = a_log(users)
    last = Log(log.offsets[len(users) - 1 :], log.events, "last")
    x, y = log.batch(torch.tensor([len(users) - 1]))
    ours = last.batch(torch.tensor([0]))
    assert torch.equal(ours[0], x)
    assert torch.equal(ours[1], y)
    assert last.item_numbers().tolist() == users[-1]
    assert last.past(torch.tensor([0])).tolist() == [users[-1][: len(users[-1]) // 2]]


def test_random_splits_reach_every_place_and_leave_something_on_both_sides():
    log = a_log([list(range(5))]).drawn(forget=0.0, reach=None)
    generator = torch.Generator().manual_seed(0)
    splits = set()
    for _ in range(100):
        x, y = log.batch(torch.tensor([0]), generator)
        assert real(x[0])[::-1] + real(y[0]) == list(range(5))
        splits.add(len(real(x[0])))
    assert splits == {1, 2, 3, 4}
    x, y = log.batch(torch.tensor([0]))  # without randomness, the half
    assert (real(x[0]), real(y[0])) == ([1, 0], [2, 3, 4])


def test_some_of_a_history_is_forgotten_and_targets_are_limited():
    log = a_log([list(range(100))] * 50).drawn(forget=0.3, targets=7)
    x, y = log.batch(torch.arange(50), torch.Generator().manual_seed(1))
    whole, _ = (
        a_log([list(range(100))] * 50).drawn(forget=0.0).batch(torch.arange(50), torch.Generator().manual_seed(1))
    )
    assert ((x == whole) | (x == PAD)).all()
    kept = float((x != PAD).sum() / (whole != PAD).sum())
    assert kept == pytest.approx(0.7, abs=0.05)
    assert y.shape[1] == 7
    same = [log.batch(torch.arange(50), torch.Generator().manual_seed(2)) for _ in range(2)]
    assert torch.equal(same[0][0], same[1][0])


def test_an_instance_reaches_as_far_ahead_as_back_and_short_ways_are_as_frequent_as_long_ones():
    log = a_log([list(range(1000))] * 2000, history=1000).drawn(forget=0.0, targets=1000)
    log = replace(log, reach=100, least=5)
    x, y = log.batch(torch.arange(2000), torch.Generator().manual_seed(0))
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


def test_the_past_fades_where_items_follow_each_other_again_and_again():
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(1, 4, (300, 40), generator=generator)
    first = torch.randint(0, 3000, (300, 1), generator=generator)
    fast, slow = ((first + steps.cumsum(1)) % items for items in (3000, 500))  # near items follow; of few, all do
    mixed = torch.stack([walk[torch.randperm(40, generator=generator)] for walk in fast])
    fading = [a_log(items.tolist()).fading() for items in (fast, slow, mixed)]
    assert fading[0] > 2 > fading[1] > 1.1 > fading[2]
    assert a_log(fast[:, :8].tolist()).fading() == 1  # too short to tell
    drawn = [a_log(items.tolist()).drawn() for items in (fast, slow, mixed)]
    assert [log.reach for log in drawn] == [REACH, REACH, None]
    assert [log.least for log in drawn[:2]] == [1, 5]


def test_the_shortest_way_back_is_taken_often_and_still_looks_ahead():
    log = replace(a_log([list(range(1000))] * 500).drawn(forget=0.0), reach=100, least=1)
    x, y = log.batch(torch.arange(500), torch.Generator().manual_seed(0))
    short = (x != PAD).sum(1) == 1
    assert 0.1 < float(short.float().mean()) < 0.2  # log 2 / log 100
    assert ((y[short] != PAD).sum(1) == 5).float().mean() > 0.95  # all but those near the end


@given(histories)
def test_windows_are_every_event_from_the_eighth_with_what_came_before(users):
    windows = a_log(users, history=4).windows()
    expected = [
        (events[max(0, i - 4) : i][::-1], events[i]) for events in users for i in range(FIRST_TARGET, len(events))
    ]
    assert len(windows) == len(expected)
    if expected:
        x, y = windows.batch(torch.arange(len(windows)))
        assert [(real(a), *real(b)) for a, b in zip(x, y, strict=True)] == expected


def test_a_single_event_is_a_target_without_history():
    for log in (a_log([[7]]), a_log([[7]]).drawn()):
        x, y = log.batch(torch.tensor([0]), torch.Generator().manual_seed(0))
        assert (real(x[0]), real(y[0])) == ([], [7])


def test_what_changes_instances_changes_their_name():
    log = a_log([[1, 2, 3]])
    names = {
        log.fingerprint(),
        log.drawn().fingerprint(),
        log.drawn(forget=0.5).fingerprint(),
        replace(log, random=True, reach=7).fingerprint(),
        replace(log, random=True, reach=7, least=2).fingerprint(),
        log.windows().fingerprint(),
    }
    assert len(names) == 6


def test_popularity_counts_events():
    assert a_log([[1, 2, 2], [2, 0]]).popularity(4).tolist() == [1, 1, 3, 0]

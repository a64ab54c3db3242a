"""The rows to beat, against their plain definitions."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sample_logs import random_events, random_histories

from beamtree.data import BeforeAfter, Events
from beamtree.research.baselines import FIXED, build, popularity
from beamtree.research.baselines.als import als
from beamtree.research.baselines.neighbours import ItemCF, item_cf, item_cf_nearest
from beamtree.research.baselines.two_tower import HNSWIndex, TwoTower, exact, sampled_softmax, two_tower
from beamtree.tree import PAD

M = 30
ROWS = [popularity, item_cf, item_cf_nearest, als]


def plain_cosines(events):
    """cos(i, j) = |users of both| / √(|users of i| |users of j|), as a table of rows."""
    bounds = events.offsets.tolist()
    baskets = [set(events.items[a:b].tolist()) for a, b in pairwise(bounds)]
    users = [{user for user, basket in enumerate(baskets) if item in basket} for item in range(M)]
    return [[len(a & b) / math.sqrt(len(a) * len(b)) if a and b else 0.0 for b in users] for a in users]


def plain_scores(cosines, x):
    """Every item's score for every history: the sum over the history's distinct items."""
    return [[sum(cosines[i][j] for i in set(row) - {PAD}) for j in range(M)] for row in x.tolist()]


def assert_best(items, scores, expected, m):
    """The m best of the expected scores above 0, best first; which of equals comes first is left open."""
    for found, given_scores, row in zip(items.tolist(), scores.tolist(), expected, strict=True):
        best = sorted((score for score in row if score > 0), reverse=True)[:m]
        real = [item for item in found if item != PAD]
        assert len(set(real)) == len(real) == len(best)
        assert found[len(best) :] == [PAD] * (m - len(best))
        assert given_scores[len(best) :] == [-math.inf] * (m - len(best))
        assert given_scores[: len(best)] == pytest.approx(best, rel=1e-5)
        assert [row[item] for item in real] == pytest.approx(best, rel=1e-5)


@given(st.integers(0, 10**6), st.sampled_from([1, 7, M, M + 5]))
def test_item_cf_sums_cosines_over_the_history(seed, m):
    events, x = random_events(seed), random_histories(seed)
    expected = plain_scores(plain_cosines(events), x)
    assert_best(*item_cf(events, M).retrieve(x, m), expected, m)
    assert_best(*item_cf_nearest(events, M, neighbours=10 * M).retrieve(x, m), expected, m)  # all are near


@given(st.integers(0, 10**6))
def test_nearest_keeps_the_nearest_neighbours_of_each_item(seed):
    events = random_events(seed)
    x = torch.arange(M).unsqueeze(1)  # a history of one item shows that item's neighbours
    items, scores = item_cf_nearest(events, M, neighbours=4).retrieve(x, M)
    for found, values, cosines in zip(items.tolist(), scores.tolist(), plain_cosines(events), strict=True):
        best = sorted((cosine for cosine in cosines if cosine > 0), reverse=True)[:4]
        assert found[len(best) :] == [PAD] * (M - len(best))
        assert [cosines[item] for item in found[: len(best)]] == pytest.approx(best, rel=1e-5)
        assert values[: len(best)] == pytest.approx(best, rel=1e-5)


def test_cosine_you_can_do_in_your_head():
    events = Events(torch.tensor([0, 2, 4, 5]), torch.tensor([0, 1, 0, 2, 0]), "test")  # {0, 1}, {0, 2}, {0}
    items, scores = item_cf(events, 4).retrieve(torch.tensor([[1, PAD], [0, 0]]), 3)
    assert items[0].tolist() == [1, 0, PAD]
    assert scores[0, :2].tolist() == pytest.approx([1, 1 / math.sqrt(3)])
    assert items[1, 0] == 0
    assert scores[1].tolist() == pytest.approx([1, 1 / math.sqrt(3), 1 / math.sqrt(3)])  # a repeat counts once
    weighted = replace(events, weights=torch.tensor([1.0, 2.0, 1.0, 1.0, -1.0]))  # the lengths: √3, 2 and 1
    assert item_cf(weighted, 4).retrieve(torch.tensor([[1]]), 2)[1][0].tolist() == pytest.approx([1, 1 / math.sqrt(3)])
    heavy = replace(events, weights=torch.tensor([2.0, 1.0, 1.0, 1.0, -1.0]))
    assert item_cf(heavy, 4).retrieve(torch.tensor([[1]]), 2)[1][0].tolist() == pytest.approx([1, 2 / math.sqrt(6)])


def test_equal_items_do_not_come_by_number():
    """Numbers go by popularity, in which test users have a part."""
    model = item_cf(Events(torch.tensor([0, 50]), torch.arange(50), "one user"), 50)
    found = [model.retrieve(torch.tensor([[0]]), 10)[0][0].tolist() for _ in range(2)]
    assert found[0] == found[1]
    assert sorted(found[0]) != list(range(10))


@given(st.integers(0, 10**6), st.sampled_from([1, 7, M, M + 5]))
def test_popularity_counts_events(seed, m):
    events, x = random_events(seed), random_histories(seed)
    items = events.items.tolist()
    order = sorted(range(M), key=lambda item: (-items.count(item), item))[:m]
    found, scores = popularity(events, M).retrieve(x, m)
    assert found.tolist() == [order + [PAD] * (m - len(order))] * len(x)
    assert scores[0].tolist() == [items.count(item) for item in order] + [-math.inf] * (m - len(order))


@pytest.mark.parametrize("row", ROWS)
def test_every_row_answers_in_the_same_way(row):
    events, x = random_events(3), random_histories(3)
    items, scores = row(events, M).retrieve(x, 10)
    assert items.shape == scores.shape == (len(x), 10)
    assert items.dtype == torch.int64
    assert scores.dtype == torch.float32
    assert ((items == PAD) == (scores == -torch.inf)).all()
    assert (scores[:, 1:] <= scores[:, :-1]).all()
    none, _ = row(events, M).retrieve(x[:0], 10)
    assert none.shape == (0, 10)


def test_every_row_is_built_by_its_name():
    events, x = random_events(3), random_histories(3)
    names = ("popularity", "item-cf", "item-cf-nearest", "als")
    for name, row in zip(names, ROWS, strict=True):
        for ours, theirs in zip(build(name, events, M).retrieve(x, 10), row(events, M).retrieve(x, 10), strict=True):
            assert torch.equal(ours, theirs)
    assert {*FIXED, "popularity"} == set(names)


@pytest.mark.parametrize("row", ROWS)
def test_only_the_users_of_the_events_count(row):
    whole = random_events(4)
    bounds = whole.offsets[10:21]
    part = Events(bounds, whole.items, "some users")
    alone = Events(bounds - bounds[0], whole.items[int(bounds[0]) : int(bounds[-1])], "alone")
    x = random_histories(4)
    for a, b in zip(row(part, M).retrieve(x, M), row(alone, M).retrieve(x, M), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("row", [item_cf, item_cf_nearest])
def test_a_batch_in_pieces_is_the_same_batch(row):
    events, x = random_events(5), random_histories(5, rows=11)
    model: ItemCF = row(events, M)
    whole = model.retrieve(x, 8)
    model._rows = 3
    for a, b in zip(whole, model.retrieve(x, 8), strict=True):
        assert torch.equal(a, b)


def test_an_empty_history_has_no_neighbours():
    items, _ = item_cf(random_events(6), M).retrieve(torch.full((2, 69), PAD), 5)
    assert (items == PAD).all()


def test_an_unknown_item_in_a_history_is_named():
    with pytest.raises(ValueError, match="item 30 in a history: the log has items 0…29"):
        item_cf(random_events(7), M).retrieve(torch.tensor([[3, M]]), 5)


def test_als_finds_what_users_of_the_same_taste_chose():
    generator = torch.Generator().manual_seed(0)
    chosen = torch.cat([torch.randperm(10, generator=generator)[:6] + 10 * (user % 2) for user in range(60)])
    model = als(Events(torch.arange(61) * 6, chosen.int(), "two tastes"), 20)
    items, scores = model.retrieve(torch.tensor([[1, 2, PAD], [11, 14, 15]]), 5)
    assert (items[0] < 10).all()
    assert (items[1] >= 10).all()
    assert (scores.diff() <= 0).all()


def test_exact_search_of_the_two_towers_is_the_plain_product():
    model = TwoTower(M, seed=3).index(exact)
    x = random_histories(0)
    items, scores = model.retrieve(x, 7)
    with torch.no_grad():
        users = model.user(x)[:, :-1]
        plain = users @ model.items.T + model.bias
    expected = plain.topk(7)
    torch.testing.assert_close(scores, expected.values)
    assert items.tolist() == expected.indices.tolist()
    found, _ = model.index(HNSWIndex).retrieve(x, M + 5)  # which finds no more than there are
    assert (found != PAD).sum(1).max() <= M
    again, near = model.retrieve(x, 7)
    assert (again == items).float().mean() > 0.9
    torch.testing.assert_close(near, scores, rtol=1e-3, atol=1e-3)


def test_sampled_softmax_with_all_items_drawn_is_near_the_whole_one(monkeypatch):
    monkeypatch.setattr("beamtree.research.baselines.two_tower.NEGATIVES", 200_000)
    model = TwoTower(M, seed=1)
    with torch.no_grad():
        model.items.mul_(40)
    x, target = random_histories(2), torch.tensor([[0], [5], [9], [9], [2], [1]])
    with torch.no_grad():
        sampled = sampled_softmax(model, x, target, torch.Generator().manual_seed(0))
        logits = model.user(x)[:, :-1] @ model.items.T + model.bias
        whole = torch.nn.functional.cross_entropy(logits, target.squeeze(1))
    assert float(sampled) == pytest.approx(float(whole), rel=0.02)


@pytest.mark.extended
def test_two_towers_learn_from_seed_to_the_same_weights():
    events = random_events(5, users=60)
    one, other = (two_tower(events, M, steps=40, batch_size=20, seed=1) for _ in range(2))
    assert torch.equal(one.items, other.items)
    losses, val = [], BeforeAfter(events)
    two_tower(events, M, steps=60, batch_size=20, val=val, on_step=lambda done, total, loss: losses.append(float(loss)))
    assert sum(losses[-10:]) < sum(losses[:10])


def test_users_of_few_events_teach_too():
    short = Events(torch.tensor([0, 3]), torch.tensor([1, 2, 3]), "short")
    model = two_tower(short, M, steps=30, batch_size=1).index(exact)
    assert {*model.retrieve(torch.tensor([[1]]), 2)[0][0].tolist()} <= {1, 2, 3}
    with pytest.raises(ValueError, match="no user has an event"):
        two_tower(Events(torch.tensor([0]), torch.empty(0, dtype=torch.int64), "nobody"), M)

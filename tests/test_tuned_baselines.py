"""The tuned peers of a comparison, against plain definitions on tiny logs."""

import math
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from sample_logs import by_user, random_events, random_histories

from beamtree.cli.compare import parse_rows
from beamtree.closed_form.als import implicit_als as factorise
from beamtree.data import BeforeAfter, Events
from beamtree.data.views import recency
from beamtree.research.baselines import TUNED, als, build, ease, neighbours
from beamtree.research.baselines.sasrec import GRID, SASRec, sasrec
from beamtree.research.baselines.sparse import history_weights, user_items
from beamtree.research.baselines.tuned import (
    CUTS,
    TunedBaseline,
    best_settings,
    drop_repeats,
    rank_outside_history,
    rank_with_history,
    shuffle_items,
    try_repeats,
)
from beamtree.research.compare.rows import ROWS, STRONG
from beamtree.tree import PAD

M = 30
MAKERS = {"ease": ease.ease, "ials": als.ials, "user-knn": neighbours.user_knn, "rules": neighbours.rules}
DEFAULTS = {
    "ease": ease.DEFAULTS,
    "ials": als.DEFAULTS,
    "user-knn": neighbours.KNN_DEFAULTS,
    "rules": neighbours.RULES_DEFAULTS,
}


def weighted(events):
    """The same events with random weights, some of which are not to be predicted."""
    weights = torch.randn(len(events.items), generator=torch.Generator().manual_seed(0))
    return replace(events, weights=weights + 0.1 * weights.sign())


def incidence(events):
    """The highest weight of the events of each user and item, dense."""
    matrix = np.zeros((len(events), M))
    for user, (start, stop) in enumerate(pairwise(events.offsets.tolist())):
        for event in range(start, stop):
            weight = 1 if events.weights is None else abs(float(events.weights[event]))
            matrix[user, events.items[event]] = max(weight, matrix[user, events.items[event]])
    return matrix


@pytest.mark.parametrize("weigh", [lambda events: events, weighted], ids=["plain", "weighted"])
def test_the_matrix_of_users_and_items_has_the_highest_weights(weigh):
    events = weigh(random_events(0))
    np.testing.assert_allclose(user_items(events, M).toarray(), incidence(events), rtol=1e-6)


def history_of(row, power):
    """Every item's weight: (1 + t)^-p of its newest event."""
    weight = np.zeros(M)
    for t, item in reversed([*enumerate(row)]):
        if item != PAD:
            weight[item] = (1 + t) ** -power
    return weight


def scores_of(peer, x):
    """Every item's score by its number, NaN for those that are not returned."""
    items, scores = peer.retrieve(x, M)
    found = np.full((len(x), M), np.nan)
    for row, (some, values) in enumerate(zip(items.tolist(), scores.tolist(), strict=True)):
        for item, value in zip(some, values, strict=True):
            if item != PAD:
                assert np.isnan(found[row, item]), "an item came twice"
                found[row, item] = value
    return found


def assert_scores(peer, x, expected):
    """The returned items score what they should; what is not returned is worth 0, and not of the history."""
    found = scores_of(peer, x)
    for row, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        there = ~np.isnan(got)
        np.testing.assert_allclose(got[there], wanted[there], rtol=1e-3, atol=1e-5)
        assert not np.abs(wanted[~there]).max(initial=0) > 1e-5
        assert there[[item for item in x[row].tolist() if item != PAD]].all()


def plain_ease(events, penalty):
    """B = 1 - P / diag(P), as in the paper; events count by their weights."""
    x = np.sqrt(incidence(events))
    inverse = np.linalg.inv(x.T @ x + penalty * np.eye(M))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return weights


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("users", [12, 90])  # fewer than items: solved for over users
@pytest.mark.parametrize("weigh", [lambda events: events, weighted], ids=["plain", "weighted"])
def test_ease_is_its_definition_over_items_and_over_users(seed, users, weigh, monkeypatch):
    monkeypatch.setattr(ease, "DEFAULTS", {"penalty": 3.0, "recency": 0.3, "repeats": 0.2})
    events, x = weigh(random_events(seed, users)), random_histories(seed)
    histories = np.stack([history_of(row, 0.3) for row in x.tolist()])
    expected = histories @ plain_ease(events, 3.0) + 0.2 * histories
    assert_scores(ease.ease(events, M), x, expected)


def test_ease_over_items_over_users_and_in_one_block_are_the_same():
    log = shuffle_items(weighted(random_events(1)), M)
    matrix = user_items(log.events, M).sqrt()
    history = history_weights(drop_repeats(random_histories(1)), recency(0.6, 5), M)
    ways = [
        ease.ItemWeights(ease.gram_matrix(matrix.T.tocsr()), 10.0),
        ease.UserWeights(matrix, ease.gram_matrix(matrix), 10.0),
        ease.solver(log, largest=1)(10.0),
    ]
    assert isinstance(ways[2], ease.BlockWeights)
    first, *others = [way.scores(history) for way in ways]
    for other in others:
        torch.testing.assert_close(first, other, rtol=1e-3, atol=1e-5)
    assert all(way.num_bytes > 0 for way in ways)


def test_the_order_for_blocks_puts_alike_items_side_by_side():
    group = torch.arange(2048) % 8
    vectors = torch.cat([torch.ones(2048, 1), torch.eye(8)[group] * 5], dim=1)
    vectors += 0.01 * torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0))
    order = ease.order_by_similarity(vectors)
    assert sorted(order.tolist()) == list(range(2048))
    assert float((group[order][1:] == group[order][:-1]).float().mean()) > 0.8


def plain_knn(events, row, neighbours, popular):
    """The similarities of the nearest users that have each item, over the sum of all, over users^popular."""
    history, baskets = sorted(set(row) - {PAD}), incidence(events)
    cosines = baskets[:, history].sum(1) / np.linalg.norm(baskets, axis=1) / math.sqrt(max(1, len(history)))
    nearest = sorted(range(len(baskets)), key=lambda user: -cosines[user])[:neighbours]
    total = sum(cosines[user] for user in nearest) or 1
    scores = np.zeros(M)
    for user in nearest:
        for item in np.flatnonzero(baskets[user]):
            scores[item] += baskets[user, item] * cosines[user] / total / (baskets[:, item] > 0).sum() ** popular
    return scores


@pytest.mark.parametrize("popular", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weigh", [lambda events: events, weighted], ids=["plain", "weighted"])
def test_user_knn_is_a_double_loop(seed, popular, weigh, monkeypatch):
    # All users, so that which of equally near ones is the last does not matter; the nearest one alone is below.
    monkeypatch.setattr(
        neighbours, "KNN_DEFAULTS", {"neighbours": 40.0, "popular": popular, "recency": 0.0, "repeats": 0.0}
    )
    events, x = weigh(random_events(seed)), random_histories(seed)
    expected = [plain_knn(events, row, 40, popular) for row in x.tolist()]
    assert_scores(neighbours.user_knn(events, M), x, expected)


def test_user_knn_takes_the_nearest_alone():
    events = Events(torch.tensor([0, 3, 6, 9]), torch.tensor([0, 1, 2, 0, 3, 4, 0, 1, 5]), "three users")
    model = neighbours.UserKNN(user_items(events, 6))
    nearest = model.nearest(torch.tensor([[0, 1, 2]]), 2).toarray()
    assert nearest[0].tolist() == pytest.approx([3 / 5, 0, 2 / 5])


def plain_rules(events, row, backward, decay):
    """A dictionary of pairs within ten events."""
    pairs = defaultdict(float)
    popularity = defaultdict(int)
    weights = torch.ones(len(events.items)) if events.weights is None else events.weights.abs()
    for items, worth in zip(by_user(events), weights.split(events.counts().tolist()), strict=True):
        for place, first in enumerate(items):
            popularity[first] += 1
            for gap, second in enumerate(items[place + 1 : place + 11], 1):
                pairs[first, second] += float(worth[place + gap]) / gap
                pairs[second, first] += float(worth[place]) * backward / gap
    scores = np.zeros(M)
    for t, item in enumerate(row):
        for (first, second), weight in pairs.items():
            if first == item:
                scores[second] += decay**t * weight / popularity[second] ** 0.3
    return scores


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weigh", [lambda events: events, weighted], ids=["plain", "weighted"])
def test_rules_are_a_dictionary_of_pairs(seed, weigh, monkeypatch):
    monkeypatch.setattr(neighbours, "RULES_DEFAULTS", {"backward": 0.6, "decay": 0.9, "recency": 0.0, "repeats": 0.0})
    events, x = weigh(random_events(seed)), random_histories(seed)
    expected = [plain_rules(events, row, 0.6, 0.9) for row in x.tolist()]
    assert_scores(neighbours.rules(events, M), x, expected)


def test_ials_folds_a_history_in_by_its_loss(monkeypatch):
    monkeypatch.setattr(als, "DIM", 4)
    settings = {"penalty": 0.02, "unobserved_weight": 0.1, "recency": 0.5, "repeats": 0.3}
    monkeypatch.setattr(als, "DEFAULTS", settings)
    events, x = random_events(2), random_histories(2)
    log = shuffle_items(events, M)
    factors = factorise(log.events, M, dim=4, penalty=0.02, unobserved_weight=0.1)
    vectors = np.empty((M, 4))
    scale = (0.02 / factors.penalty) ** 0.5  # vectors are normalized, and λ with them
    vectors[log.order] = scale * factors.items.double().numpy()
    expected = []
    for row in x.tolist():
        weights = history_of(row, 0.5)
        ridge = 0.02 * (weights.sum() + 0.1 * M)
        system = (vectors.T * weights) @ vectors + 0.1 * vectors.T @ vectors + ridge * np.eye(4)
        expected.append(vectors @ np.linalg.solve(system, vectors.T @ weights) + 0.3 * weights)
    assert_scores(als.ials(events, M), x, expected)


@pytest.mark.parametrize("name", MAKERS)
def test_items_that_nobody_has_come_only_from_the_history(name):
    peer = MAKERS[name](random_events(3), M)
    items, _ = peer.retrieve(torch.tensor([[0, 1, 2], [0, M - 1, 2], [PAD, PAD, PAD]]), M)
    assert not {M - 2, M - 1} & {*items[0].tolist(), *items[2].tolist()}
    assert M - 1 in items[1].tolist()
    assert M - 2 not in items[1].tolist()


@pytest.mark.parametrize("name", MAKERS)
def test_equal_items_do_not_come_by_number(name):
    """Two users, and 49 items that differ in nothing: those of a user who is half like the history."""
    items = torch.cat([torch.arange(50), torch.tensor([0])])
    events = Events(torch.tensor([0, 50, 51]), items, "equals") if name != "rules" else _each_after_0()
    found = [MAKERS[name](events, 50).retrieve(torch.tensor([[0]]), 11) for _ in range(2)]
    assert torch.equal(found[0][0], found[1][0])
    others = [item for item in found[0][0][0].tolist() if item != 0][:10]
    assert sorted(others) != list(range(1, 11))
    assert others != sorted(others)
    assert len(set(others)) == 10


def _each_after_0():
    pairs = torch.stack([torch.zeros(49, dtype=torch.int64), torch.arange(1, 50)], dim=1)
    return Events(torch.arange(50) * 2, pairs.flatten(), "each after 0")


@pytest.mark.parametrize("name", MAKERS)
def test_without_validation_users_the_settings_are_the_defaults(name):
    events, x = random_events(4), random_histories(4)
    nobody = BeforeAfter(Events(events.offsets[:1], events.items, "nobody"))
    peers = [MAKERS[name](events, M), build(name, events, M, nobody)]
    for peer in peers:
        assert peer.settings == DEFAULTS[name]
    assert torch.equal(peers[0].retrieve(x, 9)[0], peers[1].retrieve(x, 9)[0])


@pytest.mark.parametrize("name", MAKERS)
def test_every_peer_is_tuned_and_answers_in_the_same_way(name):
    events, x = random_events(3, users=60), random_histories(3)
    x[0] = PAD
    peer = build(name, events, M, BeforeAfter(random_events(5, users=20)))
    assert peer.settings.keys() == DEFAULTS[name].keys()
    assert peer.num_bytes > 0
    for m in (1, 10, M + 20):
        items, scores = peer.retrieve(x, m)
        assert items.shape == scores.shape == (len(x), m)
        assert (items.dtype, scores.dtype) == (torch.int64, torch.float32)
        assert ((items == PAD) == (scores == -torch.inf)).all()
        assert (scores[:, 1:] <= scores[:, :-1]).all()
    assert peer.retrieve(x[:0], 10)[0].shape == (0, 10)
    with pytest.raises(ValueError, match="item 30 in a history: the log has items 0…29"):
        peer.retrieve(torch.tensor([[M]]), 3)


@pytest.mark.parametrize("name", MAKERS)
def test_only_the_users_of_the_events_count(name):
    whole = random_events(4)
    bounds = whole.offsets[10:21]
    part = Events(bounds, whole.items, "some users")
    alone = Events(bounds - bounds[0], whole.items[int(bounds[0]) : int(bounds[-1])], "alone")
    x = random_histories(4)
    for a, b in zip(build(name, part, M).retrieve(x, M), build(name, alone, M).retrieve(x, M), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", MAKERS)
def test_a_batch_in_pieces_is_the_same_batch(name, monkeypatch):
    peer, x = build(name, random_events(5), M), random_histories(5, rows=11)
    whole = peer.retrieve(x, 8)
    monkeypatch.setattr("beamtree.research.baselines.tuned.MAX_SCORES", 3 * M)
    found = peer.retrieve(x, 8)
    assert torch.equal(whole[0], found[0])
    torch.testing.assert_close(whole[1], found[1])


def test_repeats_are_chosen_where_users_choose_again_and_left_out_where_they_never_do():
    generator = torch.Generator().manual_seed(0)
    again = [torch.randint(300, (10,), generator=generator).repeat(2) for _ in range(80)]
    never = [torch.randperm(300, generator=generator)[:20] for _ in range(80)]
    weights = []
    for lists in (again, never):
        train, val = (Events(torch.arange(41) * 20, torch.cat(part), "made up") for part in (lists[:40], lists[40:]))
        weights.append(build("user-knn", train, 300, BeforeAfter(val)).settings["repeats"])
    assert weights[0] > 0
    assert weights[1] == -math.inf


def test_a_trial_measures_what_the_peer_would_find():
    events, val = random_events(6), BeforeAfter(random_events(7, users=30))
    log = shuffle_items(events, M, val)
    score = neighbours.rule_score(neighbours.rule_weights(log, 0.3), 0.8)
    settings = {**neighbours.RULES_DEFAULTS, "repeats": 0.1}
    ((_, measured),) = try_repeats(log, score, neighbours.RULES_DEFAULTS, [0.1])
    peer = TunedBaseline(log, score, settings, 1)
    x, y = val.batch(torch.arange(len(val)))
    for place, m in enumerate(CUTS):
        found = [set(row) for row in peer.retrieve(x, m)[0].tolist()]
        wanted = [set(row) - {PAD} for row in y.tolist()]
        recall = sum(len(a & b) / len(b) for a, b in zip(found, wanted, strict=True)) / len(x)
        assert float(measured[place]) == pytest.approx(recall)


def test_the_best_trial_is_the_best_relative_to_each_cut():
    trials = [({"a": 1.0}, torch.tensor([0.10, 0.5])), ({"a": 2.0}, torch.tensor([0.05, 0.8]))]
    assert best_settings(trials) == {"a": 1.0}  # 1 and 5/8 against 1/2 and 1


def test_histories_are_ranked_with_the_others():
    scores = torch.tensor([[0.5, 0.0, 0.9, 0.2, -0.1]])
    x = torch.tensor([[3, PAD]])
    found = rank_outside_history(scores, x, 5)
    items, values = rank_with_history(found, x, torch.tensor([0.5, 0.0]), 6)
    assert items.tolist() == [[2, 3, 0, 4, PAD, PAD]]  # item 1 has nothing that speaks for it
    assert values[0, :4].tolist() == pytest.approx([0.9, 0.7, 0.5, -0.1])
    assert rank_with_history(found, x, torch.tensor([-math.inf, 0.0]), 3)[0].tolist() == [[2, 0, 4]]


# SASRec


def ordered_events(users=64, length=12):
    """Every item is followed by the next, around a circle."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randint(M, (users, 1), generator=generator)
    return Events(torch.arange(users + 1) * length, ((start + torch.arange(length)) % M).flatten(), "circle")


@pytest.mark.parametrize("full_softmax", [10, 1000])
def test_sasrec_learns_an_order(monkeypatch, full_softmax):
    monkeypatch.setattr("beamtree.research.baselines.sasrec.GRID", GRID[:1])
    monkeypatch.setattr("beamtree.research.baselines.sasrec.FULL_SOFTMAX", {"cpu": full_softmax})
    events, steps = ordered_events(), []
    model = sasrec(
        events, M, steps=100, batch_size=16, lr=1e-2, val=BeforeAfter(events), on_step=lambda *x: steps.append(x[:2])
    )
    assert steps == [(t, 100) for t in range(10, 10 * len(steps) + 1, 10)]
    x = torch.stack([(torch.arange(6).flip(0) + start) % M for start in range(M)])  # newest first
    items, scores = model.retrieve(x, 1)
    assert (items[:, 0] == (x[:, 0] + 1) % M).float().mean() > 0.8
    assert scores.dtype == torch.float32
    padded = torch.nn.functional.pad(x, (0, 60), value=PAD)
    torch.testing.assert_close(model.scores(x), model.scores(padded))


def test_validation_users_choose_the_size_of_sasrec(monkeypatch):
    events = ordered_events()
    users = BeforeAfter(events)
    for wanted in (64, 128):

        def quality(model, users, wanted=wanted):
            return float(model.items.shape[1] == wanted)

        monkeypatch.setattr("beamtree.research.baselines.sasrec.validation_recall", quality)
        model = sasrec(events, M, steps=4, batch_size=20, val=users)
        assert model.items.shape[1] == wanted
        state = model.state_dict()
        SASRec.like(M, state).load_state_dict(state)


def test_validation_users_choose_whether_sasrec_repeats(monkeypatch):
    events, x = random_events(10), random_histories(10)
    monkeypatch.setattr("beamtree.research.baselines.sasrec.GRID", GRID[:1])
    for wanted in (True, False):

        def quality(model, users, wanted=wanted):
            return float(bool(model.repeats) == wanted)

        monkeypatch.setattr("beamtree.research.baselines.sasrec.validation_recall", quality)
        model = sasrec(events, M, steps=4, batch_size=20, val=BeforeAfter(events))
        loaded = SASRec.like(M, model.state_dict())
        loaded.load_state_dict(model.state_dict())
        found = loaded.eval().retrieve(x, M)[0]
        again = [bool(set(row) & set(history) - {PAD}) for row, history in zip(found.tolist(), x.tolist(), strict=True)]
        assert any(again) == wanted


def test_sasrec_keeps_the_contract_of_rows():
    events, x = random_events(10), random_histories(10)
    one, other = (sasrec(events, M, steps=4, batch_size=20, seed=1) for _ in range(2))
    assert torch.equal(one.items, other.items)
    items, scores = one.retrieve(x, M + 3)
    assert ((items == PAD) == (scores == -torch.inf)).all()
    assert (scores[:, 1:] <= scores[:, :-1]).all()
    histories = [set(row) for row in x.tolist()]
    for found, history in zip(items.tolist(), histories, strict=True):
        assert {M - 2, M - 1} & set(found) == {M - 2, M - 1} & history
    with pytest.raises(ValueError, match="no user has two events"):
        sasrec(Events(torch.arange(4), torch.tensor([1, 2, 3]), "single"), M)


# The table of rows


def test_strong_rows_are_rows_and_one_word_of_the_command():
    assert set(STRONG) <= set(ROWS)
    assert {*TUNED, "sasrec"} <= set(STRONG)
    assert parse_rows("strong") == STRONG
    assert parse_rows("strong,otm,tdm") == (*STRONG, "tdm")

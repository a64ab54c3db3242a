"""What is made without a gradient, against the definitions: sums over pairs in plain Python, ridges in numpy."""

import math
from collections import defaultdict
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sample_logs import by_user, repeating_events

from beamtree import PAD, random_tree
from beamtree.closed_form import als, ridge
from beamtree.closed_form.als import implicit_als, rotate
from beamtree.closed_form.cooccurrence import cooccurrence, cooccurring_pairs, sum_entries
from beamtree.closed_form.ridge import follow_partners, ridge_partners
from beamtree.closed_form.transitions import next_partners, pairs_of_cuts, past_and_future
from beamtree.data import HISTORY, BeforeAfter, Events
from beamtree.data.csr import group_rows, strongest, strongest_in_rounds
from beamtree.kernels import sparse
from beamtree.parts.closed_form import ClosedForm
from beamtree.parts.factors import earlier_factors
from beamtree.scorers.factors import Factors, FactorScorer, fold_in, newest_of_each
from beamtree.scorers.sum import SumScorer

NUM_ITEMS = 12


def dense(pairs):
    found = torch.zeros(len(pairs), len(pairs))
    found[torch.repeat_interleave(pairs.offsets.diff()), pairs.columns] = pairs.values
    return found


def dense_partners(partners):
    found = torch.zeros(len(partners), len(partners))
    found[torch.repeat_interleave(partners.offsets.diff()), partners.columns.long()] = partners.values
    return found


def chosen_matrix(events, num_items=NUM_ITEMS):
    found = np.zeros((len(events), num_items))
    for user, items in enumerate(by_user(events)):
        found[user, items] = 1
    return found


# Pairs


@pytest.mark.parametrize("cells", [1 << 26, 0], ids=["summed whole", "sorted"])
def test_cooccurrence_counts_users_that_have_both(monkeypatch, cells):
    monkeypatch.setattr("beamtree.closed_form.cooccurrence.DENSE", cells)
    events = repeating_events()
    matrix = chosen_matrix(events)
    assert np.array_equal(dense(cooccurrence(events, NUM_ITEMS)).numpy(), matrix.T @ matrix)


@pytest.mark.parametrize("cells", [1 << 26, 0], ids=["summed whole", "sorted"])
def test_a_user_of_n_items_counts_a_power_of_n(monkeypatch, cells):
    monkeypatch.setattr("beamtree.closed_form.cooccurrence.DENSE", cells)
    events = repeating_events()
    matrix = chosen_matrix(events)
    expected = matrix.T @ (matrix.sum(1, keepdims=True) ** -0.25 * matrix)
    assert dense(cooccurrence(events, NUM_ITEMS, 0.25)).numpy() == pytest.approx(expected, rel=1e-5)
    pairs = sum_entries(cooccurring_pairs(events, NUM_ITEMS, 0.25), NUM_ITEMS, torch.device("cpu"))
    assert dense(pairs).numpy() == pytest.approx(expected, rel=1e-5)


def test_a_user_of_many_events_counts_in_runs(monkeypatch):
    monkeypatch.setattr("beamtree.closed_form.cooccurrence.LONGEST", 3)
    events = Events(torch.tensor([0, 5]), torch.tensor([0, 1, 2, 3, 4]).int(), "one user")
    found = dense(cooccurrence(events, 5))
    assert found[0, 1] == 1
    assert found[3, 4] == 1
    assert found[0, 4] == 0


def test_pairs_are_summed_also_where_they_do_not_fit_at_once(monkeypatch):
    monkeypatch.setattr("beamtree.closed_form.cooccurrence.DENSE", 0)
    monkeypatch.setattr("beamtree.closed_form.cooccurrence.PENDING", 10)
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randint(6, (2, 7), generator=generator) for _ in range(9)]
    found = sum_entries(((a, b, torch.ones(7)) for a, b in parts), 6, torch.device("cpu"))
    expected = torch.zeros(6, 6)
    for a, b in parts:
        for one, other in zip(a.tolist(), b.tolist(), strict=True):
            expected[one, other] += 1
    assert torch.equal(dense(found), expected)
    assert torch.equal(found.diagonal(), expected.diagonal())


def test_what_followed_is_counted_from_the_past_to_the_future():
    """A user of two events has one cut: the first is the past, and the second followed."""
    events = Events(torch.tensor([0, 2, 4]), torch.tensor([3, 1, 3, 2]).int(), "pairs")
    past, future = past_and_future(events, 5, torch.full((69,), 0.5), readings=4, seed=0)
    assert dense(past)[3, 3] == pytest.approx(4 * 2 * 0.25)
    assert dense(future)[1, 3] == pytest.approx(4 * 0.5)
    assert dense(future)[2, 3] == pytest.approx(4 * 0.5)
    assert float(dense(future).sum()) == pytest.approx(4.0)


def test_a_cut_counts_as_often_as_it_was_drawn(monkeypatch):
    """Sessions are short, and most of their cuts are drawn again and again."""
    monkeypatch.setattr("beamtree.closed_form.transitions.PAIRS_AT_ONCE", 25 * HISTORY**2)
    events, recency = repeating_events(users=60, longest=4), torch.linspace(1, 0.1, 69)
    found = past_and_future(events, NUM_ITEMS, recency, readings=20, seed=3)
    plain = pairs_of_cuts(events, recency, readings=20, seed=3)
    for matrix, entries in zip(found, plain, strict=True):
        expected = sum_entries(entries, NUM_ITEMS, torch.device("cpu"))
        torch.testing.assert_close(dense(matrix), dense(expected), rtol=1e-4, atol=1e-4)
    start, cut, stop = (torch.tensor(rows) for rows in ([[0, 5], [1, 5], [0, 5]], [[2, 6]] * 3, [[3, 9]] * 3))
    crops = sparse.distinct_crops(start, cut, stop)
    assert torch.stack(crops).T.tolist() == [[0, 2, 3, 2], [1, 2, 3, 1], [5, 6, 9, 3]]


def test_the_newest_of_each_item_is_marked():
    x = torch.tensor([[4, 2, 4, PAD, 2, 7]])
    assert newest_of_each(x).tolist() == [[True, True, False, False, False, True]]


def test_rules_are_pairs_of_near_events():
    events = repeating_events()
    expected = defaultdict(float)
    popularity = np.bincount(events.items.numpy(), minlength=NUM_ITEMS)
    for items in by_user(events):
        for i, first in enumerate(items):
            for gap, second in enumerate(items[i + 1 : i + 4], 1):
                expected[first, second] += 1 / gap
                expected[second, first] += 0.3 / gap
    found = dense_partners(next_partners(events, NUM_ITEMS, window=3))
    for (first, second), value in expected.items():
        assert float(found[first, second]) == pytest.approx(value / popularity[second] ** 0.3, rel=1e-5)
    assert int((found != 0).sum()) == len(expected)


# Partners


def test_each_item_keeps_its_strongest_partners():
    source, target = torch.tensor([0, 0, 0, 1]), torch.tensor([1, 2, 3, 0])
    found = strongest(source, target, torch.tensor([0.5, -2.0, 1.0, 3.0]), 4, most=2)
    assert found.offsets.tolist() == [0, 2, 3, 3, 3]
    assert found.columns.tolist() == [2, 3, 0]
    assert found.values.tolist() == [-2.0, 1.0, 3.0]


# Ridge


def ease(matrix, penalty):
    inverse = np.linalg.inv(matrix.T @ matrix + penalty * np.eye(matrix.shape[1]))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return weights


@pytest.mark.parametrize("popular", [0, 4, NUM_ITEMS])
@pytest.mark.parametrize("whole", [100, 0], ids=["one block", "blocks"])
def test_ridge_partners_are_ease(monkeypatch, whole, popular):
    """In blocks too, where every item is among those that explain it."""
    monkeypatch.setattr(ridge, "SMALL_CATALOGUE", whole)
    monkeypatch.setattr(ridge, "BLOCK", 5)
    monkeypatch.setattr("beamtree.closed_form.cooccurrence.POPULAR", popular)
    events = repeating_events()
    order = torch.randperm(NUM_ITEMS, generator=torch.Generator().manual_seed(1))
    found = ridge_partners(cooccurrence(events, NUM_ITEMS), order, 2.0, most=NUM_ITEMS, features=NUM_ITEMS)
    expected = ease(chosen_matrix(events), 2.0)
    assert np.allclose(dense_partners(found).numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("best", [0, 1, 2, 3, 4])
def test_the_search_for_the_penalty_finds_the_top_of_a_hill(best):
    tried = []

    def attempt(value):
        tried.append(value)
        return abs(value - best) == min(abs(each - best) for each in tried)

    ridge.climb((0, 1, 2, 3, 4), attempt)
    assert best in tried
    assert len(tried) <= 4


def test_a_trial_solves_for_some_items_and_as_the_whole_does(monkeypatch):
    monkeypatch.setattr(ridge, "SMALL_CATALOGUE", 0)
    monkeypatch.setattr(ridge, "BLOCK", 3)
    gram, order = cooccurrence(repeating_events(), NUM_ITEMS), torch.arange(NUM_ITEMS)
    whole = dense_partners(ridge_partners(gram, order, 2.0, NUM_ITEMS))
    trial = dense_partners(ridge_partners(gram, order[:3], 2.0, NUM_ITEMS))
    assert torch.equal(trial[:, :3], whole[:, :3])
    assert not trial[:, 3:].any()


@pytest.mark.parametrize("whole", [100, 0], ids=["one block", "blocks"])
def test_follow_partners_are_the_ridge_regression_of_the_future_on_the_past(monkeypatch, whole):
    monkeypatch.setattr(ridge, "SMALL_CATALOGUE", whole)
    monkeypatch.setattr(ridge, "BLOCK", 5)
    past, future = past_and_future(
        repeating_events(users=400), NUM_ITEMS, torch.linspace(1, 0.1, 69), readings=5, seed=0
    )
    found = follow_partners(past, future, torch.arange(NUM_ITEMS), 0.5, NUM_ITEMS, features=NUM_ITEMS)
    gram, cross = dense(past).double(), dense(future).double().T
    penalty = 0.5 * float(gram.diagonal().mean())
    expected = torch.linalg.solve(gram + penalty * torch.eye(NUM_ITEMS).double(), cross)
    torch.testing.assert_close(dense_partners(found).double(), expected, atol=1e-4, rtol=1e-3)


def test_an_item_without_partners_has_none():
    events = Events(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 0]).int(), "two of five items")
    found = ridge_partners(cooccurrence(events, 5), torch.arange(5), 1.0)
    assert found.offsets.diff().tolist() == [1, 1, 0, 0, 0]


# Factors


@pytest.mark.parametrize("length", [3, 40], ids=["shorter than a vector", "longer"])
def test_a_fold_in_minimises_its_loss(length):
    torch.manual_seed(0)
    factors = rotate(torch.randn(50, 6).double(), 0.1, 0.05)
    history = factors.items[torch.randint(50, (2, length))]
    weights = torch.rand(2, length).double()
    weights[0, -1] = 0
    user = fold_in(factors, history, weights)

    def loss(u):
        fit = (weights * (1 - torch.einsum("btd,bd->bt", history, u)) ** 2).sum(1)
        everywhere = 0.05 * (u @ factors.items.T).square().sum(1)
        return fit + everywhere + 0.1 * (weights.sum(1) + 0.05 * 50) * u.square().sum(1)

    user = user.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(user).sum(), user)
    assert float(gradient.abs().max()) < 1e-9


def test_rotating_vectors_changes_no_product():
    vectors = torch.randn(20, 4).double()
    found = rotate(vectors, 0.1, 0.5)
    torch.testing.assert_close(found.items @ found.items.T, vectors @ vectors.T)
    torch.testing.assert_close(0.5 * found.items.T @ found.items, torch.diag(found.gram_diagonal), atol=1e-9, rtol=1e-6)


ALS = {"dim": 5, "penalty": 0.05, "unobserved_weight": 0.1}


def als_loss(events, found):
    """The loss of factors, at the scale of its penalties, with the best vectors of the users."""
    matrix, everywhere, size = torch.from_numpy(chosen_matrix(events)).float(), ALS["unobserved_weight"], found.penalty
    users = fold_in(found, torch.stack([found.items] * len(matrix)), matrix)
    product = users @ found.items.T
    fit = (matrix * (1 - product) ** 2).sum() + everywhere * product.square().sum()
    of_users = (matrix.sum(1) + everywhere * NUM_ITEMS) * users.square().sum(1)
    of_items = (matrix.sum(0) + everywhere * len(matrix)) * found.items.square().sum(1)
    return float(fit + size * of_users.sum() + ALS["penalty"] ** 2 / size * of_items.sum())


def test_each_round_of_als_lowers_the_loss():
    events = repeating_events(users=40)
    losses = [als_loss(events, implicit_als(events, NUM_ITEMS, **ALS, rounds=rounds)) for rounds in (1, 2, 4, 8)]
    assert losses == sorted(losses, reverse=True)


def test_als_goes_on_from_earlier_factors_at_the_scale_that_they_had():
    """Where these are the solution for the same events, nothing changes any more."""
    events, tree = repeating_events(users=40), random_tree(NUM_ITEMS, seed=0)
    strong = ALS | {"penalty": 0.3}
    start = FactorScorer.from_factors(tree, implicit_als(events, NUM_ITEMS, **strong, rounds=100)).scaled(7.0)
    data = SimpleNamespace(
        train=BeforeAfter(events), val=BeforeAfter(events.of(torch.arange(0), "")), num_items=NUM_ITEMS
    )
    form = ClosedForm(tree, data, 0, "cpu", 1, events=events, start=SumScorer({"factors": start}, tree.height))
    found = earlier_factors(form, strong["penalty"])
    assert found["rounds"] < 4

    def change(vectors):
        after = implicit_als(events, NUM_ITEMS, **strong, rounds=found["rounds"], start=vectors)
        users = [
            fold_in(each, torch.stack([each.items] * 40), torch.from_numpy(chosen_matrix(events)).float())
            for each in (start.fold_in_settings(start.item_vectors(tree)), after)
        ]
        before, now = users[0] @ start.item_vectors(tree).T, users[1] @ after.items.T
        return float((now - before).norm() / before.norm())

    assert change(found["start"]) < 2e-3 < 0.01 < change(start.item_vectors(tree))


def test_an_item_that_nobody_chose_is_0_and_seeds_decide(monkeypatch):
    events = Events(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 0]).int(), "two of five items")
    one, same, other = (implicit_als(events, 5, dim=3, rounds=2, seed=seed).items for seed in (0, 0, 1))
    assert not one[2:].any()
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    monkeypatch.setattr(import_module("beamtree.closed_form.als"), "CELLS", 1)  # one list at a time
    torch.testing.assert_close(implicit_als(events, 5, dim=3, rounds=2).items.abs(), one.abs(), atol=1e-5, rtol=1e-4)


def test_lists_are_read_in_batches_that_fit():
    generator = torch.Generator().manual_seed(0)
    row = torch.randint(20, (100,), generator=generator).sort().values
    lists = group_rows(row, torch.arange(100), 22)
    seen = []
    for which, width in lists.batches(30):
        assert len(which) * width <= 30 or len(which) == 1
        entries, real = lists.padded(which, width)
        assert torch.equal(real.sum(1), lists.counts()[which])
        seen += entries[real].tolist()
    assert sorted(seen) == list(range(100))


def test_factors_are_normalized_with_all_that_a_fold_in_needs():
    found = implicit_als(repeating_events(), NUM_ITEMS, dim=4, penalty=0.02, unobserved_weight=0.5)
    assert isinstance(found, Factors)
    assert found.unobserved_weight == 0.5 * NUM_ITEMS
    assert float(found.items.square().sum(1).mean()) == pytest.approx(1, rel=1e-4)
    torch.testing.assert_close(torch.diag(found.gram_diagonal), 0.5 * found.items.T @ found.items, atol=1e-4, rtol=1e-4)


def test_normalizing_factors_leaves_products_as_they_are():
    factors = rotate(1e-4 * torch.randn(30, 6, generator=torch.Generator().manual_seed(0)), 0.1, 0.05)
    x, weights = torch.tensor([[3, 9, 4], [0, 1, 2]]), torch.tensor([[1.0, 0.5, 0.2], [1.0, 1.0, 0.0]])
    plain, normalized = (
        fold_in(each, each.items[x], weights) @ each.items.T for each in (factors, factors.normalized())
    )
    torch.testing.assert_close(normalized, plain, rtol=1e-3, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e-6, 1e6])
def test_vectors_that_nearly_vanished_are_rotated(scale):
    """All in one direction but for rounding: single precision cannot tell their eigenvalues apart."""
    generator = torch.Generator().manual_seed(0)
    direction, sizes = torch.randn(1, 48, generator=generator), torch.rand(500, 1, generator=generator)
    factors = rotate(scale * sizes * direction, 0.01, 0.1).normalized()
    assert all(bool(torch.isfinite(part).all()) for part in factors[:2])


def test_a_penalty_at_the_edge_of_the_grid_is_not_the_last_one_tried():
    def quality_around(best):
        return lambda pair: -abs(math.log(pair[0] / best))

    assert als.choose_strengths(quality_around(0.06))[0] == pytest.approx(0.06)
    assert als.choose_strengths(quality_around(0.005 / 8))[0] == pytest.approx(0.005 / 8)
    assert als.choose_strengths(quality_around(0.015))[0] == 0.015


def test_a_penalty_at_which_factors_vanish_is_never_chosen():
    chosen = als.choose_strengths(lambda pair: -math.inf if pair[0] > 1e-4 else pair[0])
    assert 1e-5 < chosen[0] <= 1e-4


def test_cut_partners_are_the_strongest():
    source, target = torch.tensor([0, 0, 0, 2, 2]), torch.tensor([1, 2, 3, 0, 3])
    partners = strongest(source, target, torch.tensor([0.1, -0.9, 0.5, 0.2, 0.3]), 4)
    found = partners.head(2)
    assert found.offsets.tolist() == [0, 2, 2, 4, 4]
    assert found.columns.tolist() == [2, 3, 3, 0]
    assert found.values.tolist() == pytest.approx([-0.9, 0.5, 0.3, 0.2])


def test_entries_are_cut_alike_in_one_round_and_in_several(monkeypatch):
    generator = torch.Generator().manual_seed(3)
    pairs = torch.randperm(40 * 40, generator=generator)[:900]
    weight = torch.randn(900, generator=generator)
    whole = strongest(pairs // 40, pairs % 40, weight, 40, 7)
    monkeypatch.setattr("beamtree.data.csr.SORTED_AT_ONCE", 64)
    found = strongest_in_rounds(pairs // 40, pairs % 40, weight, 40, 7)
    assert torch.equal(found.offsets, whole.offsets)
    assert torch.equal(found.columns, whole.columns)
    assert torch.equal(found.values, whole.values)

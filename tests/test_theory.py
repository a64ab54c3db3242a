"""The paper's claims as tests: Figure 1 and Propositions 1, 2 and 3."""

from itertools import product

import oracle
import pytest
import torch
from conftest import cases
from hypothesis import given
from hypothesis import strategies as st

import beamtree as bt
from beamtree import PAD, Tree, TreeModel, theory
from beamtree.beam import retrieve, walk
from beamtree.scorers import FixedScorer
from beamtree.targets import any_relevant, best_child


def holding(tree, prob, chained=False):
    """A model whose p_g is given node by node [B, num_nodes]."""
    return TreeModel(tree, FixedScorer(torch.logit(prob.double())), chained=chained)


@st.composite
def etas(draw, case):
    seed = draw(st.integers(0, 2**20))
    eta = torch.rand(2, case.tree.num_items, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (eta * 4).round() / 4 if draw(st.booleans()) else eta  # with many ties, or with none


# Definitions


@given(cases(), st.data())
def test_optimal_prob_is_equation_9(case, data):
    eta = data.draw(etas(case))
    ours = theory.optimal_prob(case.tree, eta)
    for row in range(len(eta)):
        expected = [
            oracle.p_star(case.slots, case.b, case.height, n, eta[row].tolist()) for n in range(case.tree.num_nodes)
        ]
        assert ours[row].tolist() == expected


@given(cases(rows=2), st.data())
def test_optimal_targets_are_equation_13(case, data):
    eta = data.draw(etas(case))
    ours = theory.optimal_targets(case.tree, eta, case.y)
    for row, relevant in enumerate(case.relevant):
        values = eta[row].tolist()
        expected = [
            oracle.z_star(case.slots, case.b, case.height, n, values, relevant) for n in range(case.tree.num_nodes)
        ]
        assert ours[row].tolist() == expected


@given(cases(), st.data())
def test_relevance_odds_are_the_probability_of_any_relevant_item(case, data):
    eta = data.draw(etas(case)) * 0.9
    ours = 1 - torch.exp(-theory.relevance_odds(case.tree, eta))
    for n in range(case.tree.num_nodes):
        items = oracle.items_below(case.slots, case.b, case.height, n)
        torch.testing.assert_close(ours[:, n], 1 - (1 - eta[:, items]).prod(1))


@given(cases(max_items=6), st.integers(0, 2**20))
def test_eta_is_the_marginal_of_weighted_sets(case, seed):
    weight = torch.rand(len(case.y), generator=torch.Generator().manual_seed(seed))
    ours = theory.eta(case.y, case.tree.num_items, weight / weight.sum())
    for item in range(case.tree.num_items):
        expected = sum(float(w) for w, relevant in zip(weight, case.relevant, strict=True) if item in relevant)
        assert float(ours[item]) == pytest.approx(expected / float(weight.sum()), abs=1e-6)


@given(st.integers(1, 12), st.data())
def test_regret_is_equation_10(num_items, data):
    eta = torch.rand(
        1, num_items, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))), dtype=torch.float64
    )
    m = data.draw(st.integers(1, num_items))
    items = data.draw(st.permutations(range(num_items)))
    ours = float(theory.regret(eta, torch.tensor([items]), m))
    assert ours == pytest.approx(oracle.regret(eta[0].tolist(), items, m))
    assert float(theory.regret(eta, eta.argsort(descending=True), m)) == 0


def test_bayes_optimality_tolerates_ties_and_nothing_else():
    eta = torch.tensor([[0.9, 0.5, 0.5, 0.1]])
    for items, expected in [
        ([0, 1], True),
        ([2, 0], True),
        ([0, 3], False),
        ([1, 2], False),
        ([0, 0], False),
        ([0, PAD], False),
    ]:
        assert bool(theory.bayes_optimal(eta, torch.tensor([items]))) is expected


# Figure 1: items 1 … 8 of the paper are 0 … 7 here; nodes carry the paper's numbers. The text fixes η_1 = 0.8 >
# η_3 = 0.7 and η_7 = 0.5 > η_8 = 0.4, that nodes 1 and 6 have z = 1 but z* = 0, and that the beam reaches nodes 7
# and 8; the rest is chosen to fit.
FIGURE_ETA = torch.tensor([[0.8, 0.3, 0.7, 0.2, 0.6, 0.1, 0.5, 0.4]], dtype=torch.float64)
FIGURE_Y = torch.tensor([[2, 4, 7]])  # the paper's items 3, 5 and 8


def test_figure_1_a_pseudo_targets():
    tree = Tree(range(8))
    z = [int(level.at(torch.tensor([[n]]))) for n, level in nodes_with_levels(tree, any_relevant(tree, FIGURE_Y))]
    #          0  1  2  3  4  5  6  7  8  9 10 11 12 13 14
    assert z == [1, 1, 1, 0, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1]


def test_figure_1_b_beam_search_visits_what_plt_never_trains():
    tree = Tree(range(8))
    model = holding(tree, theory.optimal_prob(tree, FIGURE_ETA))
    steps = list(walk(model.query(FixedScorer.every(1)), 2))
    assert [sorted(step.beam[0].tolist()) for step in steps] == [[1, 2], [3, 4], [7, 9]]
    assert sorted(steps[-1].candidates[0].tolist()) == [7, 8, 9, 10]
    trained = bt.plt().candidates(model.query(FixedScorer.every(1)), any_relevant(tree, FIGURE_Y), torch.Generator())
    leaves = dict(trained)[3].flatten().tolist()
    assert 7 not in leaves
    assert 8 not in leaves


def test_figure_1_c_optimal_pseudo_targets():
    tree = Tree(range(8))
    z_star = theory.optimal_targets(tree, FIGURE_ETA, FIGURE_Y)[0].int().tolist()
    #               0  1  2  3  4  5  6  7  8  9 10 11 12 13 14
    assert z_star == [0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1]
    p_star = theory.optimal_prob(tree, FIGURE_ETA)[0].tolist()
    assert p_star == [0.8, 0.8, 0.6, 0.8, 0.7, 0.6, 0.5, *FIGURE_ETA[0].tolist()]


def test_figure_1_estimated_targets_equal_the_optimal_ones_under_the_optimal_model():
    tree = Tree(range(8))
    model = holding(tree, theory.optimal_prob(tree, FIGURE_ETA))
    levels = best_child(model.query(FixedScorer.every(1)), any_relevant(tree, FIGURE_Y))
    z_hat = [int(level.at(torch.tensor([[n]]))) for n, level in nodes_with_levels(tree, levels)]
    assert z_hat[1:] == theory.optimal_targets(tree, FIGURE_ETA, FIGURE_Y)[0].int().tolist()[1:]


def nodes_with_levels(tree, levels):
    return [(n, levels[h]) for h in range(tree.height + 1) for n in tree.level(h)]


# Propositions


@given(cases(rows=2), st.data())
def test_proposition_1_optimal_scorer_has_zero_regret(case, data):
    """A model holding p* loses nothing, for any tree, k and m ≤ k, ties included."""
    eta = data.draw(etas(case))
    model = holding(case.tree, theory.optimal_prob(case.tree, eta))
    k = data.draw(st.integers(1, case.tree.num_items + 2))
    items, _ = retrieve(model, FixedScorer.every(2), beam_size=k, m=k)
    assert theory.bayes_optimal(eta, items).all()
    for m in range(1, min(k, case.tree.num_items) + 1):
        assert theory.regret(eta, items, m).tolist() == [0, 0]


def test_proposition_2_the_minimiser_of_tdm_and_plt_can_lose_items():
    """Search for a distribution where p(z) of Eq. 1, which both losses converge to, misses the best item."""
    tree = Tree(range(4))
    grid = [0.1, 0.3, 0.5, 0.7, 0.9]
    eta = torch.tensor(list(product(grid, repeat=4)), dtype=torch.float64)
    odds = theory.relevance_odds(tree, eta)
    prob = 1 - torch.exp(-odds)  # p(z_n = 1): the minimiser of TDM's loss
    direct = holding(tree, prob)
    lost = theory.regret(eta, retrieve(direct, FixedScorer.every(len(eta)), beam_size=1, m=1)[0], 1)
    assert (lost > 0.1).any()
    example = eta[lost.argmax()]
    # PLT's minimiser is the conditional probability; down the path it multiplies to the same p(z), so it fails too.
    above = prob[:, tree.parent(torch.arange(tree.num_nodes)).clamp(min=0)]
    above[:, 0] = 1
    chained = holding(tree, prob / above, chained=True)
    items, _ = retrieve(chained, FixedScorer.every(len(eta)), beam_size=1, m=1)
    assert theory.regret(eta, items, 1)[lost.argmax()] == lost.max(), example
    # p* has no such example on the whole grid.
    optimal = holding(tree, theory.optimal_prob(tree, eta))
    assert theory.regret(eta, retrieve(optimal, FixedScorer.every(len(eta)), beam_size=1, m=1)[0], 1).max() == 0


@pytest.mark.parametrize("arity", [2, 3])
@given(seed=st.integers(0, 2**20))
def test_proposition_3_a_fixed_point_of_algorithm_1_is_bayes_optimal(arity, seed):
    """p_g ← E[ẑ] under p_g, over all sets of relevant items, ends at p*, wherever it starts."""
    generator = torch.Generator().manual_seed(seed)
    num_items = 6
    tree = bt.random_tree(num_items, arity, seed=seed)
    subsets = [[i for i in range(num_items) if code >> i & 1] for code in range(1, 2**num_items)]
    y = torch.tensor([s + [PAD] * (num_items - len(s)) for s in subsets])
    weight = (
        torch.rand(len(y), generator=generator, dtype=torch.float64) ** 3
    )  # any joint distribution, items dependent
    weight /= weight.sum()
    eta = theory.eta(y, num_items, weight)
    prob = torch.rand(tree.num_nodes, generator=generator, dtype=torch.float64)
    for _ in range(tree.height):
        prob = expected_targets(tree, prob, y, weight)
    again = expected_targets(tree, prob, y, weight)
    torch.testing.assert_close(prob, again)  # a fixed point
    occupied = tree.mask.allows(torch.arange(tree.num_nodes))
    occupied[0] = False  # the root is not trained
    torch.testing.assert_close(prob[occupied], theory.optimal_prob(tree, eta)[occupied])
    model = holding(tree, prob.unsqueeze(0))
    for k in range(1, num_items + 1):
        items, _ = retrieve(model, FixedScorer.every(1), beam_size=k, m=k)
        assert theory.bayes_optimal(eta.unsqueeze(0), items, tolerance=1e-9).all()


def expected_targets(tree, prob, y, weight):
    """E[ẑ_n] of every node under p_g = prob: what each step's loss has as its minimiser."""
    model = holding(tree, prob.expand(len(y), -1))
    levels = best_child(model.query(FixedScorer.every(len(y))), any_relevant(tree, y))
    means = [prob[:1]]
    for level in range(1, tree.height + 1):
        nodes = torch.tensor([list(tree.level(level))])
        means.append((weight.unsqueeze(1) * levels[level].at(nodes)).sum(0))
    return torch.cat(means)

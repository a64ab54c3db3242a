import math
from itertools import pairwise

import oracle
import pytest
import torch
from conftest import Case, cases
from hypothesis import given
from hypothesis import strategies as st

import beamtree as bt
from beamtree import PAD, Tree
from beamtree.beam import gumbel_expand, retrieve, walk
from beamtree.scorers import FixedScorer


def rank_of(case, row, chained):
    logits = case.logits[row].tolist()
    if not chained:
        return logits.__getitem__
    return lambda n: oracle.path_prob(case.b, n, logits.__getitem__)


@given(cases(ties=False), st.integers(1, 12), st.booleans(), st.booleans())
def test_walk_is_equation_3(case, k, chained, admit_empty):
    case = Case(
        Tree(case.tree.items(), case.b, admit_empty=admit_empty), case.slots, case.logits, case.y, case.relevant
    )
    steps = list(walk(case.query(chained), k))
    assert [step.level for step in steps] == list(range(1, case.height + 1))
    for row in range(len(case.logits)):
        found = oracle.beam_search(case.slots, case.b, case.height, k, rank_of(case, row, chained), admit_empty)
        for step, (candidates, beam) in zip(steps, found, strict=True):
            ours = step.candidates.expand(len(case.logits), -1)[row].tolist()
            assert sorted(n for n in ours if n != PAD) == sorted(candidates)
            ours = step.beam.expand(len(case.logits), -1)[row].tolist()
            assert sorted(n for n in ours if n != PAD) == sorted(beam)


@given(cases(), st.integers(1, 12), st.booleans())
def test_beams_keep_the_best_scores_whichever_way_ties_go(case, k, chained):
    """With ties the beam may differ from any other right one, but each step keeps k best of its own candidates."""
    for step in walk(case.query(chained), k):
        for row in range(len(case.logits)):
            prob = rank_of(case, row, chained)
            candidates = [n for n in step.candidates.expand(len(case.logits), -1)[row].tolist() if n != PAD]
            beam = [n for n in step.beam.expand(len(case.logits), -1)[row].tolist() if n != PAD]
            assert len(beam) == len(set(beam)) == min(k, len(candidates))
            best = sorted((prob(n) for n in candidates), reverse=True)[: len(beam)]
            assert sorted((prob(n) for n in beam), reverse=True) == pytest.approx(best, rel=1e-9)


@given(cases(ties=False), st.data(), st.booleans())
def test_retrieve_returns_the_best_leaves_of_the_last_beam(case, data, chained):
    k = data.draw(st.integers(1, 12))
    m = data.draw(st.integers(1, k))
    items, scores = retrieve(case.model(chained), FixedScorer.every(len(case.logits)), beam_size=k, m=m)
    assert items.shape == scores.shape == (len(case.logits), m)
    first = case.tree.level(case.height).start
    for row in range(len(case.logits)):
        prob = rank_of(case, row, chained)
        *_, (_, beam) = oracle.beam_search(case.slots, case.b, case.height, k, prob)
        expected = [case.slots[n - first] for n in sorted(beam, key=prob, reverse=True)[:m]]
        assert items[row].tolist() == expected + [PAD] * (m - len(expected))
        logits = case.logits[row].tolist()
        for item, score in zip(expected, scores[row].tolist(), strict=False):
            leaf = int(case.tree.leaf_of_item(torch.tensor(item)))
            p = prob(leaf) if chained else 1 / (1 + math.exp(-logits[leaf]))
            assert math.exp(score) == pytest.approx(p, rel=1e-6)


def test_a_full_beam_returns_every_item():
    tree = bt.random_tree(11, arity=3)
    model = bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, 4))
    items, _ = bt.retrieve(model, torch.randn(5, 4), beam_size=11, m=11)
    assert all(sorted(row) == list(range(11)) for row in items.tolist())


def test_chained_models_return_items_that_are_never_relevant_too():
    logits = torch.full((1, 7), -torch.inf)
    logits[0, 4] = 3.0
    model = bt.TreeModel(Tree(range(4)), FixedScorer(logits), chained=True)
    items, _ = retrieve(model, FixedScorer.every(1), beam_size=4, m=4)
    assert items[0, 0] == 1
    assert sorted(items[0].tolist()) == [0, 1, 2, 3]


def test_admitted_empty_slots_are_never_retrieved():
    tree = Tree([0, PAD, 1, 2], admit_empty=True)
    logits = torch.tensor([[0.0, 1, 0, 0, 5, 0, 0]])  # the empty slot scores highest
    items, scores = retrieve(bt.TreeModel(tree, FixedScorer(logits)), FixedScorer.every(1), beam_size=4, m=4)
    assert sorted(items[0].tolist()) == [PAD, 0, 1, 2]
    assert items[0, -1] == PAD
    assert scores[0, -1] == -torch.inf


@given(cases())
def test_log_prob_agrees_with_the_beam(case):
    for chained in (False, True):
        model = case.model(chained)
        x = FixedScorer.every(len(case.logits))
        for step in walk(model.query(x), 5):
            expected = model.log_prob(x, step.level, step.beam)
            torch.testing.assert_close(model.scores_to_log_prob(step.scores), expected)


def test_stochastic_beam_draws_leaves_in_proportion_to_their_probability():
    """A beam of one draws each leaf as often as the product of its shares down the path."""
    tree = bt.random_tree(6, arity=2, seed=2)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, tree.num_nodes, generator=generator)
    model = bt.TreeModel(tree, FixedScorer(logits))
    draws = 40_000
    x = torch.zeros(draws, 1, dtype=torch.int64)
    *_, last = walk(model.query(x), 1, gumbel_expand(generator))
    shares = torch.bincount(tree.item_of_leaf(last.beam[:, 0]), minlength=6) / draws
    p = torch.sigmoid(logits[0])
    for item in range(6):
        expected, n = 1.0, int(tree.leaf_of_item(torch.tensor(item)))
        while n > 0:
            siblings = [c for c in tree.children(torch.tensor((n - 1) // 2)).tolist() if c != PAD]
            expected *= float(p[n] / sum(p[c] for c in siblings))
            n = (n - 1) // 2
        assert float(shares[item]) == pytest.approx(expected, abs=0.012)


@given(cases(), st.integers(1, 8))
def test_stochastic_beam_draws_without_replacement_and_no_empty_node(case, k):
    query = case.query()
    for step in walk(query, k, gumbel_expand(torch.Generator().manual_seed(k))):
        rows = (nodes.expand(len(case.logits), -1).tolist() for nodes in (step.beam, step.candidates))
        for row, candidates in zip(*rows, strict=True):
            nodes = [n for n in row if n != PAD]
            assert len(set(nodes)) == len(nodes) == min(k, len([n for n in candidates if n != PAD]))
            assert all(case.tree.mask.allows(torch.tensor(n)) for n in nodes)
        assert not step.scores.isnan().any()


def test_a_parents_perturbed_score_is_its_best_childs():
    tree = bt.random_tree(8)
    model = bt.TreeModel(tree, FixedScorer(torch.randn(4, tree.num_nodes, generator=torch.Generator().manual_seed(1))))
    steps = list(walk(model.query(FixedScorer.every(4)), 8, gumbel_expand(torch.Generator().manual_seed(2))))
    for above, below in pairwise(steps):
        best = below.scores.unflatten(1, (-1, 2)).amax(-1)
        torch.testing.assert_close(best, above.scores)


@given(cases(), st.integers(1, 40), st.booleans())
def test_a_search_that_passes_over_levels_it_keeps_whole_finds_the_same(case, k, chained):
    """In every tie as well."""
    model, x = case.model(chained), FixedScorer.every(3)
    *_, last = walk(model.query(x), k)
    scores, best = last.scores.topk(1)
    items, log_p = bt.retrieve(model, x, beam_size=k, m=1)
    assert torch.equal(log_p, model.scores_to_log_prob(scores))
    assert torch.equal(items, case.tree.item_of_leaf(last.beam.expand(3, -1).gather(1, best)))
    if not chained:
        steps = list(walk(model.query(x), k, skip_full_levels=True))
        assert all(step.candidates.shape[1] > k for step in steps[:-1])
        assert torch.equal(steps[-1].beam, last.beam)

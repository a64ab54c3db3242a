import math
from functools import partial

import oracle
import pytest
import torch
from conftest import cases
from hypothesis import given
from hypothesis import strategies as st

import beamtree as bt
from beamtree import PAD, TreeModel, candidates, targets
from beamtree.beam import walk
from beamtree.scorers import FixedScorer
from beamtree.targets import any_relevant

# Every sampler: the contract tests run over this dict, so a new one needs one line here.
SAMPLERS = {
    "children_of_positives": candidates.children_of_positives,
    "uniform": partial(candidates.uniform, nodes=7),
    "uniform_leaves": partial(candidates.uniform_leaves, nodes=7),
    "with_negatives": partial(candidates.with_negatives, negatives=7),
    "beam_candidates": partial(candidates.beam_candidates, beam_size=4),
    "stochastic_beam": partial(candidates.stochastic_beam, beam_size=4),
    "beam_and_leaves": partial(candidates.beam_and_leaves, beam_size=4, extra=7),
    "beam_and_uniform": partial(candidates.beam_and_uniform, beam_size=4, extra=7),
}


def drawn(case, sampler, seed=0):
    """{level: one list of real nodes per row}"""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for level, nodes in sampler(case.query(), any_relevant(case.tree, case.y), generator):
        rows = nodes.expand(len(case.y), -1).tolist()
        found[level] = [[n for n in row if n != PAD] for row in rows]
    return found


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("whole_level", [4, 0])
@given(case=cases())
def test_candidates_are_distinct_occupied_nodes_of_their_level(name, whole_level, case):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "WHOLE_LEVEL_FACTOR", whole_level)
        found = drawn(case, SAMPLERS[name])
    levels = [case.height] if name == "uniform_leaves" else list(range(1, case.height + 1))
    assert list(found) == levels
    for level, rows in found.items():
        for row in rows:
            assert len(set(row)) == len(row)
            assert all(n in case.tree.level(level) for n in row)
            assert all(oracle.items_below(case.slots, case.b, case.height, n) for n in row)


@pytest.mark.parametrize("name", SAMPLERS)
@given(case=cases())
def test_same_seed_draws_the_same_nodes(name, case):
    assert drawn(case, SAMPLERS[name], seed=3) == drawn(case, SAMPLERS[name], seed=3)


@given(cases())
def test_plt_trains_the_children_of_positives(case):
    for level, rows in drawn(case, candidates.children_of_positives).items():
        for row, relevant in zip(rows, case.relevant, strict=True):
            expected = [
                n
                for n in case.tree.level(level)
                if oracle.z(case.slots, case.b, case.height, oracle.parent(case.b, n), relevant)
                and oracle.items_below(case.slots, case.b, case.height, n)
            ]
            assert sorted(row) == expected


@given(cases())
def test_plt_trains_all_of_a_first_level_that_lies_deeper(case):
    if case.height < 2:
        return
    model = TreeModel(case.tree, FixedScorer(case.logits), first_level=2)
    query = model.query(FixedScorer.every(len(case.logits)))
    positives = any_relevant(case.tree, case.y)
    found = dict(candidates.children_of_positives(query, positives, torch.Generator()))
    assert sorted(found) == list(range(2, case.height + 1))
    assert found[2].tolist() == [case.tree.mask.nodes(2).tolist()]


@given(cases(), st.integers(1, 9))
def test_tdm_trains_all_positives_and_up_to_count_negatives(case, count):
    for level, rows in drawn(case, partial(candidates.with_negatives, negatives=count)).items():
        for row, relevant in zip(rows, case.relevant, strict=True):
            positive = {n for n in case.tree.level(level) if oracle.z(case.slots, case.b, case.height, n, relevant)}
            assert positive <= set(row)
            assert len(set(row) - positive) <= count
            occupied = {n for n in case.tree.level(level) if case.tree.mask.allows(torch.tensor(n))}
            if count >= len(occupied):
                assert set(row) == occupied
            else:
                assert len(row) >= count  # a draw that hits a positive adds nothing, but the positive is there


@given(cases(ties=False))
def test_otm_trains_what_the_beam_queries(case):
    found = drawn(case, partial(candidates.beam_candidates, beam_size=3))
    for step in walk(case.query(), 3):
        rows = step.candidates.expand(len(case.y), -1).tolist()
        assert found[step.level] == [[n for n in row if n != PAD] for row in rows]


def test_a_stochastic_beam_is_as_wide_as_a_plain_one():
    tree = bt.random_tree(64)
    model = bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, 3))
    query, generator = model.query(torch.randn(2, 3)), torch.Generator().manual_seed(0)
    plain, stochastic = (
        [nodes.shape[1] for _, nodes in sampler(query, [], generator, beam_size=5)]
        for sampler in (candidates.beam_candidates, candidates.stochastic_beam)
    )
    assert plain == stochastic


@given(cases(ties=False))
def test_union_holds_both_and_no_more(case):
    one, other = partial(candidates.beam_candidates, beam_size=3), partial(candidates.uniform, nodes=5)

    def both(query, positives, generator):
        return candidates.union(query.tree, one(query, positives, generator), other(query, positives, generator))

    together = drawn(case, both)
    assert together == drawn(case, partial(candidates.beam_and_uniform, beam_size=3, extra=5))
    # Beam search draws nothing, so the second sampler sees the same randomness alone.
    first, second = drawn(case, one), drawn(case, other)
    for level in together:
        for row in range(len(case.y)):
            assert set(together[level][row]) == set(first[level][row]) | set(second[level][row])


def test_stochastic_beam_reaches_every_node():
    """Proposition 3 asks for w_n > 0: no node's chance may be zero."""
    tree = bt.random_tree(30)
    model = bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, 3, scale=0.5))
    query = model.query(torch.randn(1, 3, generator=torch.Generator().manual_seed(0)).expand(4000, -1))
    seen = {
        n
        for _, nodes in candidates.stochastic_beam(query, [], torch.Generator().manual_seed(0), beam_size=2)
        for n in nodes.unique().tolist()
    }
    occupied = {n for n in range(1, tree.num_nodes) if tree.mask.allows(torch.tensor(n))}
    assert occupied <= seen


def real(case, level):
    return [n for n in case.tree.level(level) if oracle.items_below(case.slots, case.b, case.height, n)]


@given(cases(ties=False), st.integers(1, 9), st.integers(1, 3))
def test_dtr_draws_down_the_tree_by_the_softmax_over_siblings(case, draws, first_level):
    if first_level > case.height:
        return
    model = TreeModel(case.tree, FixedScorer(case.logits), first_level=first_level)
    query = model.query(FixedScorer.every(len(case.y)))
    found = list(candidates.softmax_paths(query, [], torch.Generator().manual_seed(1), nodes=draws))
    assert [level for level, *_ in found] == list(range(first_level, case.height + 1))
    small = [h for h in range(first_level, case.height + 1) if case.b**h <= draws]
    top = max(small, default=first_level)  # the level whose softmax the draws begin with
    for level, nodes, log_expected in found:
        if level in small:
            assert nodes.tolist() == [real(case, level)]
            assert not log_expected.any()
            continue
        assert nodes.shape == log_expected.shape == (len(case.y), draws)
        for row in range(len(case.y)):
            score = case.logits[row].tolist().__getitem__
            for n, expected in zip(nodes[row].tolist(), log_expected[row].exp().tolist(), strict=True):
                assert n in real(case, level)
                assert expected == pytest.approx(draws * chance(case, n, level, top, score), rel=1e-9)


def chance(case, n, level, top, score):
    """q of a node: the softmax over siblings, down the path from level `top`, and over that level itself."""
    q = 1.0
    while level >= top:
        if level == top:
            rivals = real(case, level)
        else:
            rivals = [c for c in oracle.children(case.b, oracle.parent(case.b, n)) if c in real(case, level)]
        q *= math.exp(score(n)) / sum(math.exp(score(c)) for c in rivals)
        n, level = oracle.parent(case.b, n), level - 1
    return q


def test_drawn_nodes_stand_for_the_sum_over_their_level():
    """The mean of the sampled sum is the sum over the level, and nodes are drawn as often as expected."""
    tree = bt.random_tree(40, seed=1)
    logits = torch.randn(tree.num_nodes, generator=torch.Generator().manual_seed(1)).expand(20_000, -1)
    query = TreeModel(tree, FixedScorer(logits)).query(FixedScorer.every(20_000))
    drawn = candidates.softmax_paths(query, [], torch.Generator().manual_seed(2), nodes=5)
    for level, nodes, log_expected in drawn:
        g = query.logits(level, nodes)
        whole = query.logits(level, tree.mask.nodes(level).unsqueeze(0))[0].exp().sum()
        assert float((g - log_expected).exp().sum(1).mean()) == pytest.approx(float(whole), rel=0.02)
        if level > 2:  # the whole levels before hold 2 and 4 nodes
            node = int(nodes[0, 0])
            expected = float(log_expected[0, 0].exp())
            assert float((nodes == node).sum(1).double().mean()) == pytest.approx(expected, rel=0.1)

"""Searches that may find some items alone: `allowed` for all users, `exclude` for each."""

import copy

import pytest
import torch
from conftest import cases
from filtered_search import ROWS, as_tensors, check_search, draw_model, filters, left_for, p_of
from hypothesis import given
from hypothesis import strategies as st

import beamtree as bt
from beamtree import PAD, TreeModel
from beamtree.beam import WARMUP_RUNS
from beamtree.scorers import FixedScorer


@given(cases(ties=False), st.data())
def test_a_filter_is_a_tree_with_the_other_leaves_empty(case, data):
    model, (allowed, excluded) = draw_model(data, case), data.draw(filters(case))
    k = data.draw(st.integers(1, 12))
    m = data.draw(st.integers(1, k))
    items, scores = bt.retrieve(model, FixedScorer.every(ROWS), beam_size=k, m=m, **as_tensors(allowed, excluded))
    assert items.shape == scores.shape == (ROWS, m)
    check_search(case, model, (items, scores), k, m, allowed, excluded)


@given(cases(), st.data())
def test_a_user_gets_m_items_wherever_m_are_left(case, data):
    model, (allowed, excluded) = draw_model(data, case), data.draw(filters(case))
    k = data.draw(st.integers(1, 12))
    m = data.draw(st.integers(1, k))
    items, scores = bt.retrieve(model, FixedScorer.every(ROWS), beam_size=k, m=m, **as_tensors(allowed, excluded))
    for row in range(ROWS):
        left, found = left_for(case, allowed, excluded, row), items[row].tolist()
        count = min(m, len(left))
        assert len(set(found[:count])) == count
        assert set(found[:count]) <= left
        assert found[count:] == [PAD] * (m - count)
        assert scores[row, :count].isfinite().all()
        assert (scores[row, count:] == -torch.inf).all()


@given(cases(), st.data())
def test_a_beam_as_wide_as_the_tree_finds_what_brute_force_does(case, data):
    model, (allowed, excluded) = draw_model(data, case), data.draw(filters(case))
    k = case.b**case.height
    m = data.draw(st.integers(1, k))
    x, words = FixedScorer.every(ROWS), as_tensors(allowed, excluded)
    items, scores = bt.retrieve(model, x, beam_size=k, m=m, **words)
    whole, best = bt.brute_force(model, x, m=m, leaves_at_once=data.draw(st.integers(1, k)), **words)
    torch.testing.assert_close(scores, best, check_dtype=False)
    leaf = case.tree.leaf_of_item(torch.arange(case.tree.num_items)).tolist()
    for row in range(ROWS):
        left, p = left_for(case, allowed, excluded, row), p_of(case, model, row)
        expected = sorted((p(leaf[item]) for item in left), reverse=True)[:m]
        for found in (items[row].tolist(), whole[row].tolist()):  # either, where two are equal
            assert len(set(found[: len(expected)])) == len(expected)
            assert set(found[: len(expected)]) <= left
            assert found[len(expected) :] == [PAD] * (m - len(expected))
            assert [p(leaf[item]) for item in found[: len(expected)]] == pytest.approx(expected, rel=1e-6)


@given(cases(), st.data())
def test_a_mask_that_is_made_once_filters_as_its_items_do(case, data):
    model, (allowed, excluded) = draw_model(data, case), data.draw(filters(case))
    words = as_tensors(allowed or set(), excluded)
    items = words.pop("allowed")
    mask = case.tree.allow(items)
    for search in (bt.retrieve, bt.brute_force):
        found = [search(model, FixedScorer.every(ROWS), m=4, allowed=each, **words) for each in (items, mask, mask)]
        assert all(torch.equal(part, first) for one in found[1:] for part, first in zip(one, found[0], strict=True))


def make_catalogue(scorer, arity=2, first_level=1, chained=False):
    """10,000 items, of which 2 % are allowed, and users for a scorer with random weights."""
    generator = torch.Generator().manual_seed(0)
    tree = bt.random_tree(10_000, arity, seed=1)
    allowed = torch.randperm(10_000, generator=generator)[:200]
    if scorer is bt.DeepScorer:
        made, x = scorer(tree.num_nodes, scale=1.0), torch.randint(0, 10_000, (30, 69), generator=generator)
    else:
        made, x = scorer(tree.num_nodes, 8), torch.randn(30, 8, generator=generator)
    return TreeModel(tree, made, first_level=first_level, chained=chained), x, allowed


@pytest.mark.parametrize("scorer", [bt.DeepScorer, bt.LinearScorer])
@pytest.mark.parametrize(("arity", "first_level"), [(2, 1), (2, 9), (3, 1), (5, 4)])
@pytest.mark.parametrize("chained", [False, True])
def test_where_one_item_in_fifty_is_allowed_every_user_still_gets_twenty(scorer, arity, first_level, chained):
    model, x, allowed = make_catalogue(scorer, arity, first_level, chained)
    generator = torch.Generator().manual_seed(2)
    hidden = torch.stack([allowed[torch.randperm(200, generator=generator)[:170]] for _ in x])  # most of these
    for k in (400, 20):
        for exclude in (None, hidden):
            items, scores = bt.retrieve(model, x, beam_size=k, m=20, allowed=allowed, exclude=exclude)
            assert torch.isin(items, allowed).all()
            assert all(len(set(row)) == 20 for row in items.tolist())
            assert scores.isfinite().all()
            assert (scores.diff() <= 0).all()
            if exclude is not None:
                assert not any(set(row) & set(out) for row, out in zip(items.tolist(), exclude.tolist(), strict=True))
            if k == 400:  # which holds all that is allowed
                expected = bt.brute_force(model, x, m=20, allowed=allowed, exclude=exclude)
                torch.testing.assert_close(scores, expected[1])
                assert float((items == expected[0]).float().mean()) > 0.99  # all but ties


def test_a_long_history_that_is_left_out_costs_no_place():
    """What a user has seen scores highest, and is more than the beam holds."""
    tree = bt.Tree(torch.arange(1000))
    logits = torch.zeros(1, tree.num_nodes)
    for level in range(1, tree.height + 1):
        liked = tree.ancestor(tree.leaf_of_item(torch.arange(500)), level)
        logits[0, liked] = 5.0
    model = TreeModel(tree, FixedScorer(logits))
    plain, _ = bt.retrieve(model, FixedScorer.every(1), beam_size=20, m=20)
    assert (plain < 500).all()
    items, _ = bt.retrieve(model, FixedScorer.every(1), beam_size=20, m=20, exclude=torch.arange(500).unsqueeze(0))
    assert len(set(items[0].tolist())) == 20
    assert (items >= 500).all()


@pytest.mark.parametrize("chained", [False, True])
def test_where_nothing_is_left_there_is_pad(chained):
    tree = bt.random_tree(50, 3)
    model, x = TreeModel(tree, bt.LinearScorer(tree.num_nodes, 4), chained=chained), torch.randn(3, 4)
    nothing, few, every = torch.empty(0, dtype=torch.int64), torch.tensor([7, 8, 9]), torch.arange(50).expand(3, -1)
    for search in (bt.retrieve, bt.brute_force):
        for words in (
            {"allowed": nothing},
            {"allowed": tree.allow(nothing)},
            {"allowed": torch.tensor([PAD])},
            {"allowed": nothing, "exclude": every},
            {"exclude": every},
            {"allowed": few, "exclude": few.expand(3, -1)},
        ):
            items, scores = search(model, x, m=5, **words)
            assert items.tolist() == [[PAD] * 5] * 3
            assert (scores == -torch.inf).all()
            assert (items.dtype, scores.dtype) == (torch.int64, torch.float32)
        exclude = torch.tensor([[7, 8, 9], [7, PAD, 7], [PAD, PAD, PAD]])  # users do not share their lists
        items, _ = search(model, x, m=5, allowed=few, exclude=exclude)
        assert [sorted(set(row) - {PAD}) for row in items.tolist()] == [[], [8, 9], [7, 8, 9]]


@pytest.mark.parametrize("search", [bt.retrieve, bt.brute_force])
def test_an_empty_list_of_what_to_leave_out_leaves_out_nothing(search):
    tree = bt.random_tree(50)
    model, x = TreeModel(tree, bt.LinearScorer(tree.num_nodes, 4)), torch.randn(3, 4)
    plain = search(model, x, m=5)
    for exclude in (torch.empty(3, 0, dtype=torch.int64), torch.full((3, 2), PAD)):
        for ours, theirs in zip(search(model, x, m=5, exclude=exclude), plain, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("chained", [False, True])
def test_a_filtered_search_on_a_gpu_finds_what_one_on_a_cpu_does_recorded_or_not(chained):
    model, x, allowed = make_catalogue(bt.DeepScorer, first_level=5, chained=chained)
    fast, generator = copy.deepcopy(model).cuda(), torch.Generator().manual_seed(3)
    masks = model.tree.allow(allowed), fast.tree.allow(allowed)
    for _ in range(WARMUP_RUNS + 3):
        exclude = torch.stack([allowed[torch.randperm(200, generator=generator)[:170]] for _ in x])
        items, scores = bt.retrieve(model, x, beam_size=50, m=20, allowed=masks[0], exclude=exclude)
        found, near = bt.retrieve(fast, x.cuda(), beam_size=50, m=20, allowed=masks[1], exclude=exclude.cuda())
        assert torch.isin(found.cpu(), allowed).all()
        assert all(len(set(row)) == 20 for row in found.tolist())
        assert not any(set(row) & set(out) for row, out in zip(found.tolist(), exclude.tolist(), strict=True))
        torch.testing.assert_close(near.cpu(), scores, rtol=5e-2, atol=5e-2)
        assert float((found.cpu().unsqueeze(2) == items.unsqueeze(1)).any(2).float().mean()) > 0.95

"""A beam with one width per level: `beam_size` as a list."""

import math

import oracle
import pytest
import torch
from conftest import cases
from filtered_search import ROWS, as_tensors, check_search, draw_model, filters, left_for, p_of
from hypothesis import given
from hypothesis import strategies as st

import beamtree as bt
from beamtree import PAD, TreeModel
from beamtree.beam import retrieve, walk, widths
from beamtree.cli.inspect import next_command
from beamtree.data import Instances
from beamtree.diagnose.inspect import CutLoss, Inspection, LevelLoss, Quality, inspect
from beamtree.scorers import FixedScorer

EVERY = FixedScorer.every(ROWS)


def draw_widths(model, most=12):
    """One width for each searched level of a model."""
    levels = model.tree.height + 1 - model.first_level
    return st.lists(st.integers(1, most), min_size=levels, max_size=levels)


@given(cases(), st.data(), st.integers(1, 12))
def test_equal_widths_are_one_number(case, data, k):
    model, (allowed, excluded) = draw_model(data, case), data.draw(filters(case))
    levels = case.height + 1 - model.first_level
    m, words = data.draw(st.integers(1, k)), as_tensors(allowed, excluded)
    one = retrieve(model, EVERY, beam_size=k, m=m, **words)
    for same in ([k] * levels, (k,) * levels):
        assert all(map(torch.equal, one, retrieve(model, EVERY, beam_size=same, m=m, **words)))


@given(cases(ties=False), st.data())
def test_a_walk_keeps_on_each_level_as_many_as_its_width(case, data):
    model = draw_model(data, case)
    sizes = data.draw(draw_widths(model))
    steps = list(walk(model.query(EVERY), sizes))
    assert [step.level for step in steps] == list(range(model.first_level, case.height + 1))
    for row in range(ROWS):
        p = p_of(case, model, row)
        expected = oracle.beam_search(case.slots, case.b, case.height, sizes, p, first_level=model.first_level)
        for step, nodes in zip(steps, expected, strict=True):
            for ours, theirs in zip((step.candidates, step.beam), nodes, strict=True):
                assert sorted(n for n in ours.expand(ROWS, -1)[row].tolist() if n != PAD) == sorted(theirs)


@given(cases(ties=False), st.data())
def test_a_search_is_the_walk_with_no_level_narrower_than_m(case, data):
    """Whether a filter is set or not: it is a tree with the other leaves empty."""
    model, (allowed, excluded) = draw_model(data, case), data.draw(filters(case))
    sizes = data.draw(draw_widths(model))
    m = data.draw(st.integers(1, sizes[-1]))
    found = retrieve(model, EVERY, beam_size=sizes, m=m, **as_tensors(allowed, excluded))
    used = [max(width, m) for width in sizes]
    assert list(widths(model, sizes, m)) == used
    check_search(case, model, found, used, m, allowed, excluded)


@given(cases(), st.data())
def test_m_items_come_back_wherever_brute_force_finds_m(case, data):
    """The promise of `widths`, also where exactly m are allowed and the upper levels are as narrow as can be."""
    model, (allowed, excluded) = draw_model(data, case), data.draw(filters(case))
    sizes = data.draw(draw_widths(model, most=40))
    most = sizes[-1] if allowed is None else min(sizes[-1], max(1, len(allowed)))
    m = data.draw(st.just(most) | st.integers(1, sizes[-1]))
    words = as_tensors(allowed, excluded)
    items, scores = retrieve(model, EVERY, beam_size=sizes, m=m, **words)
    best, _ = bt.brute_force(model, EVERY, m=m, **words)
    for row in range(ROWS):
        left, found = left_for(case, allowed, excluded, row), items[row].tolist()
        count = min(m, len(left))
        assert sum(item != PAD for item in best[row].tolist()) == count
        assert len(set(found[:count])) == count
        assert set(found[:count]) <= left
        assert found[count:] == [PAD] * (m - count)
        assert scores[row, :count].isfinite().all()


def test_narrow_levels_alone_would_lose_items_that_are_allowed():
    """So the test above can fail: a beam of one node above the leaves holds two of the four allowed items."""
    model = TreeModel(bt.Tree(range(8)), FixedScorer(torch.zeros(1, 15)))
    allowed = torch.tensor([0, 1, 6, 7])
    *_, last = walk(model.query(FixedScorer.every(1)), [1, 1, 4], mask=model.tree.allow(allowed))
    assert int((last.beam != PAD).sum()) == 2
    items, _ = retrieve(model, FixedScorer.every(1), beam_size=[1, 1, 4], m=4, allowed=allowed)
    assert sorted(items[0].tolist()) == [0, 1, 6, 7]


@pytest.mark.parametrize(
    ("sizes", "m", "message"),
    [
        ([4, 4], 1, "beam_size has 2 widths and levels 2 to 4 are searched: give 3, or one number"),
        ([], 1, "beam_size has 0 widths"),
        ([4, 0, 4], 1, "beam_size=0: give a whole number of at least 1"),
        ([9, 9, 4], 5, "m=5 with beam_size=9,9,4: from 1 up to the last width items can be retrieved"),
        ([9, 9, 4], 0, "m=0: give a whole number of at least 1"),
        (4, 5, "m=5 with beam_size=4: from 1 up to beam_size items can be retrieved"),
        (0, 1, "beam_size=0: give a whole number of at least 1"),
    ],
)
def test_widths_that_cannot_be_are_refused(sizes, m, message):
    model = TreeModel(bt.Tree(range(16)), FixedScorer(torch.zeros(1, 31)), first_level=2)
    data = Instances(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64))
    for ask in (
        lambda: retrieve(model, FixedScorer.every(1), beam_size=sizes, m=m),
        lambda: bt.evaluate(model, data, beam_size=sizes, m=m),
        lambda: inspect(model, data, beam_size=sizes, m=(m,)),
    ):
        with pytest.raises(ValueError, match=message):
            ask()


@given(cases(ties=False), st.data())
def test_evaluate_and_inspect_search_with_these_widths(case, data):
    model = draw_model(data, case)
    sizes = data.draw(draw_widths(model))
    m = data.draw(st.integers(1, sizes[-1]))
    people = Instances(EVERY, case.y)
    items, _ = retrieve(model, EVERY, beam_size=sizes, m=m)
    recall = sum(
        len(set(row) & relevant) / len(relevant) for row, relevant in zip(items.tolist(), case.relevant, strict=True)
    )
    assert bt.evaluate(model, people, beam_size=sizes, m=m)["recall", m] == pytest.approx(recall / ROWS)
    found = inspect(model, people, beam_size=sizes, m=(m,))
    assert found.cuts[0].beam.recall == pytest.approx(recall / ROWS)
    steps = walk(model.query(EVERY), widths(model, sizes, m))
    scored = [float((step.candidates != PAD).sum(1).double().mean()) for step in steps]
    assert [each.candidates for each in found.levels] == pytest.approx(scored)


@pytest.mark.parametrize(
    ("sizes", "lost", "expected"),
    [((8, 4, 20), 0.5, "16,8,40"), ((8, 5, 20), 0.0, "4,2,10"), (21, 0.0, "10"), (20, 0.5, "40")],
)
def test_the_next_beam_to_look_at_is_twice_or_half_of_this_one(sizes, lost, expected):
    level = LevelLoss(1, 2, 2.0, 1 - lost, lost, lost)
    best = Quality(0.0, 0.9, 0.0, 0.0)
    cut = CutLoss(10, Quality(0.0, 0.9 - lost, 0.0, 0.0), best, 1.0, 0.0, 1e-3)
    found = Inspection(9, sizes, (level,), (cut,))
    assert next_command(found, "run") == f"beamtree inspect run --beam-size {expected}"
    assert math.isclose(found.cuts[0].difference, lost)

"""Why an item was found or lost: against the plain beam search of the definition, and against the search itself."""

import json
import math

import oracle
import pytest
import torch
from conftest import cases
from filtered_search import as_tensors, draw_model, filters, left_for, p_of
from hypothesis import given
from hypothesis import strategies as st
from sample_scorers import NUM_ITEMS, histories, make_memory_sum

import beamtree as bt
from beamtree import PAD, TreeModel
from beamtree.beam import walk
from beamtree.diagnose.explain import explain, subtrees
from beamtree.scorers import FixedScorer

# Against the definition


@given(cases(rows=3, ties=False), st.data())
def test_levels_and_losses_are_those_of_the_plain_beam_search(case, data):
    model, k = draw_model(data, case), data.draw(st.integers(1, 9))
    allowed, excluded = data.draw(filters(case))
    words = as_tensors(allowed, excluded)
    words = {key: value[:1] if key == "exclude" else value for key, value in words.items()}
    asked = list(range(case.tree.num_items))
    found = explain(model, FixedScorer.every(1), beam_size=k, m=1, items=asked, **words)
    may = left_for(case, allowed, excluded, 0)
    if not may:
        assert found.levels == found.found == ()
        assert not any(path.may_be_found for path in found.items)
        return
    slots, p = oracle.only(case.slots, may), p_of(case, model, 0)
    expected = oracle.beam_search(slots, case.b, case.height, k, p, first_level=model.first_level)
    for level, (candidates, beam) in zip(found.levels, expected, strict=True):
        assert sorted(level.nodes.tolist()) == sorted(candidates)
        assert level.nodes.tolist()[: level.kept] == beam
        assert level.nodes.tolist() == sorted(candidates, key=p, reverse=True)
        assert not level.passed or len(candidates) <= k
    for path in found.items:
        check_path(path, case, model.first_level, expected, p, may)


def check_path(path, case, first_level, expected, p, may):
    """One item's way, by the beams of the definition."""
    assert path.may_be_found == (path.item in may)
    leaf = oracle.nodes_of(case.b, case.height).start + case.slots.index(path.item)
    assert path.score == pytest.approx(p(leaf), rel=1e-6)
    if not path.may_be_found:
        assert not path.steps
        assert path.rank is path.pruned is None
        return
    way = [leaf]
    while len(way) < len(expected):
        way.insert(0, oracle.parent(case.b, way[0]))
    assert [step.node for step in path.steps] == way
    for place, (step, (candidates, beam)) in enumerate(zip(path.steps, expected, strict=True)):
        assert step.level == first_level + place
        assert step.kept == (step.node in beam)
        assert step.before == (sum(p(n) > p(step.node) for n in candidates) if step.node in candidates else None)
        assert (step.margin >= 0) == (p(step.node) >= p(beam[-1]))
    lost = [place for place, (_, beam) in enumerate(expected) if way[place] not in beam]
    if not lost:
        assert path.rank == expected[-1][1].index(leaf) + 1
        assert path.pruned is None
        return
    assert path.rank is None
    assert path.would_rank == 1 + sum(p(n) > p(leaf) for n in expected[-1][1])
    assert path.pruned.step == path.steps[lost[0]]
    assert path.pruned.to == expected[lost[0]][1][-1]
    below = oracle.items_below(case.slots, case.b, case.height, path.pruned.to)
    assert path.pruned.to_item == max(below, key=lambda item: p(leaf_of(case, item)))
    assert path.pruned.to_items == len(below)


def leaf_of(case, item):
    return oracle.nodes_of(case.b, case.height).start + case.slots.index(item)


# Against the search


@given(cases(rows=3), st.data())
def test_the_beam_is_that_of_the_search_and_what_it_finds_is_what_is_retrieved(case, data):
    model, k = draw_model(data, case), data.draw(st.integers(1, 9))
    m = data.draw(st.integers(1, k))
    words = as_tensors(*data.draw(filters(case)))
    words = {key: value[:1] if key == "exclude" else value for key, value in words.items()}
    x = FixedScorer.every(1)
    found = explain(model, x, beam_size=k, m=m, **words)
    items, log_p = bt.retrieve(model, x, beam_size=k, m=m, **words)
    kept = [item for item in items[0].tolist() if item != PAD]
    assert [p for _, p in found.found] == pytest.approx(log_p.exp()[0, : len(kept)].tolist())
    assert len(found.found) == len(kept)
    if case.logits.unique().numel() == case.logits.numel():  # else equals may come in any order
        assert [item for item, _ in found.found] == kept
    if not words:
        for level, step in zip(found.levels, walk(model.query(x), k), strict=True):
            beam = step.beam[step.beam != PAD]
            assert level.kth == pytest.approx(float(step.scores[step.scores > -torch.inf].min()))
            assert level.kept == len(beam)


@given(cases(rows=1), st.integers(1, 9), st.booleans())
def test_an_item_of_the_last_beam_is_found_and_every_other_is_lost_once(case, k, chained):
    model = case.model(chained)
    found = explain(model, FixedScorer.every(1), beam_size=k, m=1, items=range(case.tree.num_items))
    leaves = found.levels[-1]
    last = set(case.tree.item_of_leaf(leaves.nodes[: leaves.kept]).tolist())
    assert {path.item for path in found.items if path.rank is not None} == last
    assert {path.item for path in found.items if path.pruned is None} == last
    assert sorted(path.rank for path in found.items if path.rank) == list(range(1, len(last) + 1))


def test_levels_that_are_kept_whole_cost_nothing_in_a_direct_model_and_count_in_a_chained_one():
    tree = bt.random_tree(64, seed=0)
    scorer = FixedScorer(torch.randn(1, tree.num_nodes, generator=torch.Generator().manual_seed(1)))
    direct = explain(TreeModel(tree, scorer), FixedScorer.every(1), beam_size=10, m=3)
    assert [level.passed for level in direct.levels] == [True, True, True, False, False, False]
    assert direct.scored == 16 + 20 + 20
    chained = explain(TreeModel(tree, scorer, chained=True), FixedScorer.every(1), beam_size=10, m=3)
    assert chained.scored == 2 + 4 + 8 + 16 + 20 + 20


# Which part decided


@given(st.integers(0, 2**20), st.integers(2, 12))
def test_what_the_parts_say_adds_up_to_the_scores(seed, k):
    tree = bt.random_tree(NUM_ITEMS, arity=3, seed=seed % 7)
    model = TreeModel(tree, make_memory_sum(tree)).eval()
    x = torch.randint(NUM_ITEMS, (1, 12), generator=torch.Generator().manual_seed(seed))
    found = explain(model, x, beam_size=k, m=1, items=range(NUM_ITEMS))
    prunings = [path.pruned for path in found.items if path.pruned is not None]
    assert prunings
    for pruned in prunings:
        assert [part.name for part in pruned.parts] == ["memory", "repeats", "deep"]
        parts = pruned.parts if pruned.combined is None else (pruned.combined, pruned.parts[-1])
        assert sum(part.item for part in parts) == pytest.approx(pruned.step.score, abs=1e-4)
        assert sum(part.kept for part in parts) == pytest.approx(pruned.step.kth, abs=1e-4)
        if pruned.combined is not None:
            assert pruned.combined.name == "memory, repeats"
            assert pruned.combined.item <= sum(part.item for part in pruned.parts[:2]) + 1e-4
        differences = {part.name: part.difference for part in pruned.parts}
        if pruned.decided is not None:
            assert differences[pruned.decided] == min(differences.values()) < 0


def test_parts_that_do_not_count_say_nothing():
    tree = bt.random_tree(NUM_ITEMS, arity=3, seed=1)
    scorer = make_memory_sum(tree).set_weights(repeats=0.0)
    path = lost_item(
        explain(TreeModel(tree, scorer).eval(), histories(NUM_ITEMS)[:1], beam_size=2, m=1, items=range(50))
    )
    assert [part.name for part in path.pruned.parts] == ["memory", "deep"]
    assert path.pruned.combined is None


def lost_item(found):
    return next(path for path in found.items if path.pruned is not None)


@given(cases(rows=1, max_items=30, ties=False), st.integers(1, 3))
def test_a_chained_score_is_what_the_levels_above_say_and_what_this_one_says(case, k):
    found = explain(case.model(chained=True), FixedScorer.every(1), beam_size=k, m=1, items=range(case.tree.num_items))
    for pruned in (path.pruned for path in found.items if path.pruned is not None):
        above, here = pruned.parts
        assert above.name == "levels above"
        assert above.item + here.item == pytest.approx(pruned.step.score)
        assert above.kept + here.kept == pytest.approx(pruned.step.kth)
        assert pruned.decided == min(pruned.parts, key=lambda part: part.difference).name


def test_a_number_you_can_do_in_your_head():
    """Four leaves; a beam of one goes left and takes item 0, while the best leaf is item 2, on the right."""
    logits = torch.tensor([[0.0, 2.0, 1.0, 0.0, -1.0, 3.0, -2.0]])
    model = TreeModel(bt.Tree(range(4)), FixedScorer(logits))
    found = explain(model, FixedScorer.every(1), beam_size=1, m=1, items=[2, 0])
    assert found.found == ((0, 0.5),)
    assert found.scored == 4
    lost, kept = found.items
    assert (lost.pruned.step.level, lost.pruned.step.before, lost.pruned.step.margin, lost.pruned.to) == (1, 1, -1.0, 1)
    assert (lost.pruned.to_item, lost.pruned.to_items, lost.would_rank) == (0, 2, 1)
    assert lost.score == pytest.approx(1 / (1 + math.exp(-3)))
    assert lost.pruned.decided is None
    assert (kept.rank, kept.pruned) == (1, None)


# For people and for JSON


@given(cases(rows=1), st.integers(1, 9), st.integers(1, 20))
def test_as_json_no_more_nodes_are_listed_than_asked_for_and_the_others_are_counted(case, k, most):
    x, asked = FixedScorer.every(1), [0, case.tree.num_items - 1]
    found = explain(case.model(), x, beam_size=k, m=1, items=asked, max_nodes=most)
    told = json.loads(json.dumps(found.as_dict(lambda number: f"item {number}"), allow_nan=False))
    assert [each["item"] for each in told["items"]] == [f"item {number}" for number in asked]
    for level, each in zip(found.levels, told["levels"], strict=True):
        assert len(each["nodes"]) == min(most, len(level.nodes))
        assert each["more"]["all"] + len(each["nodes"]) == each["candidates"] == len(level.nodes)
        assert each["more"]["kept"] + sum(node["kept"] for node in each["nodes"]) == each["kept"]
        assert sum(each["spread"]["kept"]) == each["kept"]
        assert sum(each["spread"]["candidates"]) == each["candidates"]
        assert each["best"] >= each["kth"] >= each["worst"]
        listed = {node["node"] for node in each["nodes"]}
        if most > 3:
            assert {step.node for path in found.items for step in path.steps if step.before is not None} & set(
                level.nodes.tolist()
            ) <= listed


@given(cases(rows=1, max_items=30), st.booleans())
def test_a_subtree_is_known_by_the_items_below_it(case, known):
    generator = torch.Generator().manual_seed(case.tree.num_items)
    events = torch.randint(4, (case.tree.num_items,), generator=generator) if known else None
    below = subtrees(case.tree, events)
    assert subtrees(case.tree, events) is below
    for node in range(case.tree.num_nodes):
        items = oracle.items_below(case.slots, case.b, case.height, node)
        assert below.items[node] == len(items)
        expected = min(items, key=lambda item: (-int(events[item]) if known else 0, item), default=PAD)
        assert below.popular[node] == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"m": 9}, "m=9 with beam_size=8"),
        ({"items": [99]}, "item 99 is not in the tree"),
        ({"max_nodes": 0}, "must be at least 1"),
        ({"x": FixedScorer.every(2)}, "x holds 2 users"),
    ],
)
def test_what_cannot_be_explained_is_said(words, message):
    tree = bt.random_tree(20, seed=0)
    model = TreeModel(tree, FixedScorer(torch.randn(2, tree.num_nodes)))
    words = {"x": FixedScorer.every(1), "beam_size": 8, "m": 4, **words}
    with pytest.raises(ValueError, match=message):
        explain(model, words.pop("x"), **words)

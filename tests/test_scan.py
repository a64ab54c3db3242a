"""A scan finds what a beam that keeps everything finds: compiled, in PyTorch, and where a scorer is not covered."""

import pytest
import torch
from conftest import cases
from filtered_search import as_tensors, check_search, draw_model, filters
from hypothesis import given, settings
from hypothesis import strategies as st
from random_parts import check_equal, random_scorers, random_tree

import beamtree as bt
from beamtree import PAD, TreeModel, beam, brute_force, retrieve
from beamtree.scorers import DeepScorer, FixedScorer, RepeatScorer, SumScorer
from beamtree.search import scan as scan_module
from beamtree.search.scan import covered_parts, group_size

PARTS = ("factors", "memory", "repeats", "sequence", "context")


def in_torch(model, x, monkeypatch, **options):
    """The scan as a GPU makes it, without its kernel."""
    with monkeypatch.context() as patch:
        patch.setattr(beam, "search_parts", lambda *arguments: None)
        return retrieve(model, x, search="scan", **options)


def make_model(generator, items=60, names=PARTS, arity=2):
    tree = random_tree(arity, items, 6, generator, items // 9)
    parts = random_scorers(tree, generator)
    scorer = SumScorer({name: parts[name] for name in names}, tree.height)
    scorer.weights[:] = torch.rand(scorer.weights.shape[1], generator=generator) + 0.3
    scorer.calibration = torch.tensor([0.7, -1.0])
    return TreeModel(tree, scorer).eval()


@settings(deadline=None)
@given(st.data(), st.integers(2, 3), st.integers(2, 60), st.integers(0, 2**31))
def test_a_scan_finds_what_brute_force_finds(data, arity, items, seed):
    generator = torch.Generator().manual_seed(seed)
    hidden = data.draw(st.integers(0, items // 3))
    tree = random_tree(arity, items, data.draw(st.integers(0, items)), generator, hidden)
    parts = random_scorers(tree, generator)
    chosen = data.draw(st.lists(st.sampled_from(PARTS), min_size=1, unique=True))
    scorer = parts[chosen[0]]
    if data.draw(st.booleans()) or len(chosen) > 1:
        scorer = SumScorer({name: parts[name] for name in chosen}, tree.height)
        scorer.set_weights(**{name: data.draw(st.sampled_from([1.0, 0.3, -2.0])) for name in chosen})
    model = TreeModel(tree, scorer, first_level=data.draw(st.integers(1, tree.height))).eval()
    assert covered_parts(model) is not None
    x = torch.randint(-1, items, (3, data.draw(st.integers(1, 69))), generator=generator)
    options = {"m": data.draw(st.integers(1, 70))}
    if data.draw(st.booleans()):
        options["exclude"] = torch.randint(-1, items, (3, data.draw(st.integers(1, 20))), generator=generator)
    if data.draw(st.booleans()):
        options["allowed"] = torch.randperm(items, generator=generator)[: data.draw(st.integers(0, items))]
    expected = brute_force(model, x, **options)
    check_equal(retrieve(model, x, search="scan", **options), expected, model, x)
    with pytest.MonkeyPatch.context() as patch:
        check_equal(in_torch(model, x, patch, **options), expected, model, x)


@given(cases(ties=False), st.data())
def test_any_scorer_is_scanned(case, data):
    """Also one whose score is a product down the path."""
    model, x = draw_model(data, case), FixedScorer.every(len(case.logits))
    allowed, excluded = data.draw(filters(case))
    m, words = data.draw(st.integers(1, 40)), as_tensors(allowed, excluded)
    every = list(beam.widths(model, len(case.slots)))  # a beam that keeps all leaves
    for found in (
        retrieve(model, x, m=m, search="scan", **words),
        brute_force(model, x, m=m, leaves_at_once=5, **words),
    ):
        assert found[0].shape == (len(x), m)
        check_search(case, model, found, every, m, allowed, excluded)


@pytest.mark.parametrize("items", [3_000, 5_000])
@pytest.mark.parametrize("m", [3, 50])
def test_the_best_are_found_by_groups(monkeypatch, items, m):
    generator = torch.Generator().manual_seed(items)
    model = make_model(generator, items)
    assert group_size(model.tree, m) > 1
    x = torch.randint(items, (9, 20), generator=generator)
    exclude = torch.cat([x, retrieve(model, x, m=30, search="scan")[0]], dim=1)
    for options in ({}, {"exclude": exclude}, {"allowed": torch.randperm(items, generator=generator)[:1000]}):
        expected = brute_force(model, x, m=m, **options)
        check_equal(in_torch(model, x, monkeypatch, m=m, **options), expected, model, x)
        check_equal(retrieve(model, x, m=m, search="scan", **options), expected, model, x)
    monkeypatch.setattr(scan_module, "MAX_SCORES", 3 * len(model.tree.items()))  # some users at a time
    check_equal(in_torch(model, x, monkeypatch, m=m), brute_force(model, x, m=m), model, x)


def test_as_many_items_as_are_allowed_come_back():
    generator = torch.Generator().manual_seed(1)
    model = make_model(generator, 3_000)
    x = torch.randint(3_000, (4, 30), generator=generator)
    few = torch.arange(20, 45)
    visible = int(model.tree.mask.allows(model.tree.leaf_of_item(few)).sum())
    items, scores = retrieve(model, x, m=40, allowed=few, search="scan")
    assert ((items != PAD).sum(1) == visible).all()
    assert torch.equal(items == PAD, scores == -torch.inf)
    items, _ = retrieve(model, x, m=40, allowed=few, exclude=few[:10].expand(4, -1), search="scan")
    assert set(items.flatten().tolist()) <= {PAD, *range(30, 45)}
    assert (retrieve(model, x, m=5, allowed=few[:0], search="scan")[0] == PAD).all()
    assert retrieve(model, x[:0], m=5, search="scan")[0].shape == (0, 5)
    assert (retrieve(model, x, m=4_000, search="scan")[0] != PAD).sum(1).tolist() == [model.tree.num_visible] * 4


def test_an_item_without_a_number_for_a_score_is_not_shown_by_a_compiled_scan():
    """Nor does it keep others from being shown. What is on disk has none: see `check_finite`."""
    model = make_model(torch.Generator().manual_seed(1), 3_000)
    x = torch.tensor([[3, 5, 9], [7, 8, 1]])
    expected, scores = retrieve(model, x, m=12, exclude=x, search="scan")
    model.scorer.part("factors").table.weight[model.tree.leaf_of_item(expected[:, 0])] = torch.nan
    items, found = retrieve(model, x, m=8, exclude=x, search="scan")
    for row in range(2):
        kept = [item for item in expected[row].tolist() if item not in expected[:, 0]]
        assert items[row].tolist() == kept[:8]
        assert set(found[row].tolist()) <= set(scores[row].tolist())


def test_nothing_is_found_where_nothing_is_allowed():
    tree = bt.Tree(range(8))
    for scorer in (DeepScorer(tree.num_nodes), RepeatScorer()):
        model, none = TreeModel(tree, scorer), torch.arange(0)
        for find in (brute_force, retrieve):
            items, scores = find(model, torch.tensor([[3], [5]]), m=2, allowed=none)
            assert (items.tolist(), scores.tolist()) == ([[PAD, PAD]] * 2, [[-torch.inf] * 2] * 2)


@pytest.mark.parametrize("item", [8, -5])
def test_an_excluded_item_that_the_tree_does_not_have_is_refused(item):
    """A number below 0 would be counted from the last item."""
    model, exclude = TreeModel(bt.Tree(range(8)), RepeatScorer()), torch.tensor([[3, item, PAD]])
    for find in (brute_force, retrieve):
        with pytest.raises(ValueError, match=f"item {item} is not in the tree, which holds items 0…7"):
            find(model, torch.tensor([[3]]), m=2, exclude=exclude)


def test_several_threads_scan_alike(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    model = make_model(generator, 700)
    x = torch.randint(-1, 700, (41, 9), generator=generator)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    many = retrieve(model, x, m=10, search="scan")
    monkeypatch.undo()
    one = [retrieve(model, row.unsqueeze(0), m=10, search="scan") for row in x]
    assert torch.equal(many[0], torch.cat([items for items, _ in one]))


def test_what_is_not_one_product_is_not_covered():
    tree = bt.Tree(range(8))
    deep = DeepScorer(tree.num_nodes)
    assert covered_parts(TreeModel(tree, deep)) is None
    assert covered_parts(TreeModel(tree, SumScorer({"deep": deep, "own": RepeatScorer()}, tree.height))) is None
    assert covered_parts(TreeModel(tree, RepeatScorer())) is not None
    assert covered_parts(TreeModel(tree, RepeatScorer(), chained=True)) is None
    assert covered_parts(TreeModel(bt.Tree(range(8), admit_empty=True), RepeatScorer())) is None


def test_a_part_from_outside_is_scanned_by_its_definition():
    class Double(RepeatScorer):
        """One that scores in another way than its class."""

        def forward(self, prepared, level, nodes):
            return 2 * super().forward(prepared, level, nodes)

        def scores(self, prepared, level, nodes):
            return 2 * super().scores(prepared, level, nodes)

    tree = bt.Tree(range(50))
    model, x = TreeModel(tree, SumScorer({"own": Double()}, tree.height)), torch.tensor([[3, 5, 9]])
    assert covered_parts(model) is None
    found = retrieve(model, x, m=5, search="scan")
    check_equal(found, brute_force(model, x, m=5), model, x)
    assert found[0][0, :3].tolist() == [3, 5, 9]


def test_a_scan_has_no_beam():
    model = TreeModel(bt.Tree(range(8)), RepeatScorer())
    with pytest.raises(ValueError, match="leave out beam_size"):
        retrieve(model, torch.tensor([[3]]), beam_size=4, m=2, search="scan")
    with pytest.raises(ValueError, match="choose from auto, beam, scan"):
        retrieve(model, torch.tensor([[3]]), m=2, search="best")

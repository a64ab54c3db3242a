"""Trees that are learned: matching, JTM's assignment, and what becomes of the rows."""

from itertools import combinations, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import beamtree as bt
from beamtree.builders import learn_tree
from beamtree.builders.matching import match, rank_in
from beamtree.data import BeforeAfter, Events, Instances
from beamtree.scorers import FixedScorer
from beamtree.train import Validation
from beamtree.train.joint import fit_jointly
from beamtree.tree import PAD, Tree


def best_total(weights, capacity):
    """The highest total over all ways to place items, by trying every one."""
    places = range(len(capacity))
    allowed = (
        ways
        for ways in product(places, repeat=len(weights))
        if all(ways.count(place) <= capacity[place] for place in places)
    )
    return max(sum(row[place] for row, place in zip(weights, ways, strict=True)) for ways in allowed)


@given(st.integers(0, 10**6), st.integers(2, 4))
def test_a_matching_respects_capacities_and_is_close_to_the_best_there_is(seed, places):
    generator = torch.Generator().manual_seed(seed)
    capacity = torch.randint(0, 3, (2, places), generator=generator)
    capacity[:, 0] += 1
    group = torch.repeat_interleave(torch.arange(2), capacity.sum(1))
    kept = torch.rand(len(group), generator=generator) < 0.9  # some places stay free
    kept[0] = True
    group = group[kept]
    weights = torch.randn(len(group), places, generator=generator) * 10
    found = match(weights, group, capacity)
    for g in range(2):
        mine = group == g
        taken = torch.bincount(found[mine], minlength=places)
        assert bool((taken <= capacity[g]).all())
        if bool(mine.any()) and int(mine.sum()) <= 6:
            total = float(weights[mine].gather(1, found[mine].unsqueeze(1)).sum())
            best = best_total(weights[mine].tolist(), capacity[g].tolist())
            assert total >= best - 0.05 * 10 * int(mine.sum())
            if places == 2:
                assert total == pytest.approx(best, rel=1e-5)


def test_more_items_than_places_are_refused():
    with pytest.raises(ValueError, match="group 0 has 1 items more than places"):
        match(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), torch.tensor([[1, 1]]))


def test_ranks_count_within_groups():
    assert rank_in(torch.tensor([1, 0, 1, 1]), torch.tensor([0.0, 5.0, 2.0, 1.0])).tolist() == [2, 0, 0, 1]


@given(st.integers(0, 10**6), st.integers(3, 9))
def test_learning_splits_every_group_as_well_as_can_be(seed, num_items):
    """Plain JTM, one level at a time: of all ways to halve a group, the one with the highest sum of log p."""
    generator = torch.Generator().manual_seed(seed)
    tree = bt.random_tree(num_items, seed=seed)
    logits = torch.randn(6, tree.num_nodes, generator=generator) * 2
    y = torch.randint(num_items, (6, 3), generator=generator)
    data = Instances(FixedScorer.every(6), y)
    learned = learn_tree(bt.TreeModel(tree, FixedScorer(logits)), data, levels_at_once=1, stay=0.0)
    assert sorted(learned.items().tolist()) == sorted(tree.items().tolist())
    assert ((learned.items() == PAD) == (tree.items() == PAD)).all()  # the same slots are taken
    log_p = torch.nn.functional.logsigmoid(logits)
    weight = torch.zeros(num_items, tree.num_nodes)
    for row, targets in enumerate(y.tolist()):
        for item in set(targets):
            weight[item] += log_p[row]
    for level in range(tree.height - 1):  # whichever leaf an item goes to, its vector goes with it
        for node in tree.level(level):
            slots = [leaf - tree.level(tree.height).start for leaf in tree.leaves(node)]
            below = [int(learned.items()[slot]) for slot in slots if learned.items()[slot] != PAD]
            left, right = 2 * node + 1, 2 * node + 2
            first = [leaf - tree.level(tree.height).start for leaf in tree.leaves(left)]
            mine = {int(learned.items()[slot]) for slot in first} - {PAD}
            totals = [
                sum(float(weight[i, left if i in part else right]) for i in below)
                for part in map(set, combinations(below, len(mine)))
            ]
            found = sum(float(weight[i, left if i in mine else right]) for i in below)
            assert found == pytest.approx(max(totals), rel=1e-4, abs=1e-3)


@pytest.mark.extended
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3))
def test_the_way_down_to_the_first_level_finds_about_the_best_there_is(seed, gap, first):
    """From the root, every node of the first level that is trained is a choice, by its own log p alone."""
    generator = torch.Generator().manual_seed(seed)
    tree = bt.random_tree(6, seed=seed)
    logits = torch.randn(5, tree.num_nodes, generator=generator) * 3
    y = torch.randint(6, (5, 2), generator=generator)
    model = bt.TreeModel(tree, FixedScorer(logits), first_level=first)
    learned = learn_tree(model, Instances(FixedScorer.every(5), y), levels_at_once=gap, stay=0.0)
    span = tree.level(first)
    weights = torch.zeros(6, len(span))
    for row, targets in enumerate(y.tolist()):
        for item in set(targets):
            weights[item] += torch.nn.functional.logsigmoid(logits[row, span.start : span.stop])
    items = torch.arange(6)
    held = torch.bincount(tree.ancestor(tree.leaf_of_item(items), first) - span.start, minlength=len(span))
    found = learned.ancestor(learned.leaf_of_item(items), first) - span.start
    total = float(weights.gather(1, found.unsqueeze(1)).sum())
    assert total >= best_total(weights.tolist(), held.tolist()) - 0.05 * 10 * 6


def test_with_little_room_items_go_down_in_smaller_steps_to_nearly_as_good_a_tree():
    generator = torch.Generator().manual_seed(0)
    tree = bt.random_tree(64, seed=0)
    logits = torch.randn(200, tree.num_nodes, generator=generator)
    data = Instances(FixedScorer.every(200), torch.randint(64, (200, 3), generator=generator))
    model = bt.TreeModel(tree, FixedScorer(logits), first_level=4)

    def total(tree):
        nodes = tree.ancestor(tree.leaf_of_item(data.y), 4)
        return float(torch.nn.functional.logsigmoid(logits.gather(1, nodes)).sum())

    at_once, stepwise = (total(learn_tree(model, data, stay=0.0, max_weights=room)) for room in (64 * 16, 64 * 4))
    assert at_once > total(tree)
    assert stepwise - total(tree) > 0.5 * (at_once - total(tree))
    assert learn_tree(model, data, max_weights=64).num_items == 64  # not even room for one level


def test_an_item_without_instances_stays_and_so_does_everything_that_gains_too_little():
    tree = bt.random_tree(40, seed=1)
    logits = torch.randn(5, tree.num_nodes, generator=torch.Generator().manual_seed(0))
    data = Instances(FixedScorer.every(5), torch.arange(5).unsqueeze(1))
    model = bt.TreeModel(tree, FixedScorer(logits))
    assert learn_tree(model, data, stay=1e6).fingerprint() == tree.fingerprint()
    assert learn_tree(model, data, stay=0.1).fingerprint() != tree.fingerprint()


@pytest.mark.parametrize("share", [False, True])
@given(seed=st.integers(0, 10**6), arity=st.integers(2, 4))
def test_on_the_same_tree_nothing_that_was_learned_changes(share, seed, arity):
    tree = bt.random_tree(30, arity, seed=seed)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, share=share, scale=1.0))
    same = model.on_tree(tree)
    x = torch.randint(30, (3, 10), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for level in range(1, tree.height + 1):
            nodes = tree.mask.nodes(level).unsqueeze(0)
            torch.testing.assert_close(same.query(x).logits(level, nodes), model.query(x).logits(level, nodes))


@pytest.mark.parametrize("share", [False, True])
def test_on_another_tree_leaves_keep_their_vectors_and_nodes_get_the_mean(share):
    old, new = bt.random_tree(20, seed=1), bt.random_tree(20, 3, seed=2)  # of another arity, too
    model = bt.TreeModel(old, bt.DeepScorer(old.num_nodes, share=share, scale=1.0))
    other = model.on_tree(new)
    torch.testing.assert_close(other.item_vectors(), model.item_vectors())
    vectors = other.scorer.table.read(new, share=share).values.detach()
    before = model.scorer.table.read(old, share=share).values.detach()
    level = 1  # of the new tree: three nodes, nearest in number to the old one's level 2
    for node in new.level(level):
        leaves = torch.tensor(list(new.leaves(node)))
        items = [item for item in new.item_of_leaf(leaves).tolist() if item != PAD]
        above = old.ancestor(old.leaf_of_item(torch.tensor(items)), 2)
        torch.testing.assert_close(vectors[node], before[above].mean(0))


def test_on_a_tree_of_another_arity_the_search_begins_with_about_as_many_nodes():
    two, four = bt.random_tree(3000), bt.random_tree(3000, 4)
    model = bt.TreeModel(two, bt.DeepScorer(two.num_nodes), first_level=8)
    assert model.on_tree(four).first_level == 4
    assert model.on_tree(four).on_tree(two).first_level == 8


def test_a_tree_over_other_items_is_refused():
    tree = bt.random_tree(20)
    with pytest.raises(ValueError, match="holds 21 items and the old one 20"):
        bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes)).on_tree(bt.random_tree(21))


@pytest.fixture
def joint():
    """A model over few items, data to train it on, and a place to write lines to."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(30, (40, 6), generator=generator)
    data = Instances(x, (x[:, :3] + 1) % 30)
    tree = bt.random_tree(30, seed=0)
    return bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes)), data, []


def test_a_new_tree_that_lowers_recall_is_rejected_with_a_line(joint):
    model, data, lines = joint

    def train(model, turn, folder):
        if turn:  # a round that spoils what was learned
            with torch.no_grad():
                model.scorer.layers[-1].weight.mul_(-1)
        else:
            bt.fit(model, data, bt.tdm(8), epochs=6, batch_size=10)

    found = fit_jointly(model, data, data, train, rounds=2, stay=0.1, on_message=lines.append)
    assert found is model
    assert found.tree.fingerprint() == bt.random_tree(30, seed=0).fingerprint()
    assert "rejected, the old is kept" in lines[-1]
    assert len(lines) == 2


def test_a_new_tree_that_does_not_is_kept(joint):
    model, data, lines = joint

    def train(model, turn, folder):
        bt.fit(model, data, bt.tdm(8), epochs=30 if turn else 1, batch_size=10)

    found = fit_jointly(model, data, data, train, rounds=1, stay=0.0, on_message=lines.append)
    assert lines[-1].endswith("kept")
    recall = Validation(data).recall
    assert recall(found) >= recall(model)
    assert found.tree.fingerprint() != model.tree.fingerprint()


def test_where_no_item_would_move_nothing_is_trained_again(joint):
    model, data, lines = joint
    turns = []
    found = fit_jointly(model, data, data, lambda _, turn, __: turns.append(turn), stay=1e6, on_message=lines.append)
    assert (found, turns, lines[-1]) == (model, [0], "round 1: no item would move")


def test_tree_learning_needs_somebody_to_judge_it(joint):
    model, data, _ = joint
    nobody = BeforeAfter(Events(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), "nobody"))
    with pytest.raises(ValueError, match="judged by validation users, and there are none"):
        fit_jointly(model, data, nobody, lambda *_: None)


def test_a_round_that_was_begun_is_gone_on_with(joint, tmp_path):
    model, data, _ = joint
    begun = []

    def train(model, turn, folder):
        begun.append((turn, model.tree.fingerprint()))
        if turn and len(begun) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_jointly(model, data, data, train, rounds=1, stay=0.0, folder=tmp_path)
    fit_jointly(model, data, data, train, rounds=1, stay=0.0, folder=tmp_path)
    assert begun[1] == begun[3]  # the same new tree, not another one


def test_trees_with_one_item_and_of_any_shape_can_be_learned():
    for items, arity in ((1, 2), (2, 3), (17, 4)):
        tree = Tree(torch.arange(items), arity)
        scorer = FixedScorer(torch.randn(4, tree.num_nodes))
        data = Instances(FixedScorer.every(4), torch.randint(items, (4, 2)))
        assert learn_tree(bt.TreeModel(tree, scorer), data, levels_at_once=3).num_items == items

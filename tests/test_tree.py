import oracle
import pytest
import torch
from conftest import cases
from hypothesis import given
from hypothesis import strategies as st

from beamtree import PAD, Tree, random_tree


@given(cases(), st.data())
def test_relatives_are_what_the_definition_says(case, data):
    tree, b = case.tree, case.b
    nodes = torch.arange(tree.num_nodes)
    assert tree.parent(nodes).tolist() == [oracle.parent(b, n) for n in range(tree.num_nodes)]
    assert tree.parent(torch.tensor(0)) == PAD
    for level in range(tree.height):
        for n in tree.level(level):
            kept = [c for c in oracle.children(b, n) if oracle.items_below(case.slots, b, case.height, c)]
            assert [c for c in tree.children(torch.tensor(n)).tolist() if c != PAD] == kept
    leaf = data.draw(st.sampled_from(list(tree.level(tree.height))))
    path = tree.path(torch.tensor([leaf]))[0].tolist()
    assert path[-1] == leaf
    assert [oracle.parent(b, n) for n in path] == [0, *path[:-1]]
    for level in range(1, tree.height + 1):
        assert tree.ancestor(torch.tensor(leaf), level) == path[level - 1]
    assert tree.ancestor(torch.tensor(leaf), 0) == 0
    lifted = tree.lift(torch.tensor([leaf, PAD]), range(1, tree.height + 1))
    assert lifted.tolist() == [[node, PAD] for node in path]


@given(cases())
def test_leaves_and_occupancy_agree_with_the_items_below(case):
    tree = case.tree
    for n in range(tree.num_nodes):
        assert list(tree.leaves(n)) == oracle.leaves_below(case.slots, case.b, case.height, n)
        items = oracle.items_below(case.slots, case.b, case.height, n)
        assert bool(tree.mask.allows(torch.tensor(n))) == bool(items)


@given(cases())
def test_items_and_leaves_are_inverse(case):
    items = torch.arange(case.tree.num_items)
    leaves = case.tree.leaf_of_item(items)
    assert torch.equal(case.tree.item_of_leaf(leaves), items)
    assert torch.equal(case.tree.leaf_of_item(torch.tensor([PAD])), torch.tensor([PAD]))


def test_pad_stays_pad():
    tree = random_tree(10, arity=3)
    pad = torch.tensor([PAD])
    for out in (
        tree.parent(pad),
        tree.children(pad),
        tree.ancestor(pad, 1),
        tree.item_of_leaf(pad),
        tree.level_of(pad),
    ):
        assert (out == PAD).all()
    assert not tree.mask.allows(pad)


@pytest.mark.parametrize(
    ("num_items", "arity", "height"),
    [(1, 2, 1), (2, 2, 1), (1000, 2, 10), (1024, 2, 10), (1025, 2, 11), (27, 3, 3), (28, 3, 4)],
)
def test_height_is_the_least_that_holds_the_items(num_items, arity, height):
    assert random_tree(num_items, arity).height == height


def test_same_seed_gives_the_same_tree():
    assert torch.equal(random_tree(100, seed=3).items(), random_tree(100, seed=3).items())
    assert not torch.equal(random_tree(100, seed=3).items(), random_tree(100, seed=4).items())


def test_fingerprint_tells_trees_apart():
    assert random_tree(100, seed=3).fingerprint() == random_tree(100, seed=3).fingerprint()
    assert (
        len({random_tree(100, seed=s).fingerprint() for s in range(5)} | {random_tree(100, 4, seed=3).fingerprint()})
        == 6
    )


@given(cases(), st.integers(1, 30), st.booleans())
def test_drawn_nodes_are_distinct_occupied_and_on_their_level(case, count, admit_empty):
    tree = Tree(case.tree.items(), case.b, admit_empty=admit_empty)
    for level in range(1, tree.height + 1):
        nodes = tree.sample(level, 4, count, torch.Generator().manual_seed(count))
        admitted = [n for n in tree.level(level) if admit_empty or case.tree.mask.allows(torch.tensor(n))]
        assert nodes.shape[1] == min(count, len(admitted))
        for row in nodes.tolist():
            assert len(set(row)) == len(row)
            assert set(row) <= set(admitted)


@pytest.mark.parametrize("admit_empty", [True, False])
def test_every_node_is_drawn_equally_often(admit_empty):
    tree = random_tree(700, seed=1, admit_empty=admit_empty)
    nodes = tree.sample(tree.height, 20_000, 37, torch.Generator().manual_seed(0))
    counts = torch.bincount(nodes.flatten() - tree.level(tree.height).start)
    counts = counts if admit_empty else counts[counts > 0]
    assert len(counts) == (1024 if admit_empty else 700)
    expected = 20_000 * 37 / len(counts)
    # A count is nearly binomial; 5.5 standard deviations cover a thousand of them.
    assert (counts - expected).abs().max() < 5.5 * expected**0.5


def test_draws_repeat_with_the_seed():
    tree = random_tree(500)
    first, again = (tree.sample(8, 3, 20, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("count", [8, 5, 6])
def test_children_of_a_known_level_are_the_children(count):
    """Full, with an empty leaf on either side, with an empty subtree."""
    tree = Tree([0, 1, 2, 3, 4, 5, 6, 7][:count])
    for level in range(tree.height):
        nodes = tree.mask.nodes(level)
        assert torch.equal(tree.children(nodes, level), tree.children(nodes))

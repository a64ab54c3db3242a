"""Which nodes may be entered, and which are closed to single users, against the items below them."""

import oracle
import pytest
import torch
from conftest import cases
from hypothesis import given
from hypothesis import strategies as st

import beamtree as bt
from beamtree import PAD


def draw_items(data, case):
    """A set of items: any, none, all, or one of few."""
    every = st.sets(st.integers(0, case.tree.num_items - 1))
    return data.draw(st.one_of(every, st.just(set(range(case.tree.num_items)))))


def as_given(data, items):
    """The items in any order, some of them twice, PAD between them."""
    repeated = data.draw(st.lists(st.sampled_from(sorted(items)), max_size=4)) if items else []
    return data.draw(st.permutations([*items, *repeated, *[PAD] * data.draw(st.integers(0, 2))]))


def left_below(case, allowed, excluded=()):
    """How many items below each node may be found."""
    slots = oracle.only(case.slots, allowed, excluded)
    return [len(oracle.items_below(slots, case.b, case.height, n)) for n in range(case.tree.num_nodes)]


@given(cases(), st.data())
def test_a_node_may_be_entered_where_an_allowed_item_lies_below(case, data):
    allowed = draw_items(data, case)
    mask = case.tree.allow(torch.tensor(as_given(data, allowed), dtype=torch.int64))
    left = left_below(case, allowed)
    opened = [bool(count) for count in left]
    nodes = torch.arange(case.tree.num_nodes)
    assert mask.allows(nodes).tolist() == [True, *opened[1:]]  # the root always
    assert not mask.allows(torch.tensor(PAD))
    assert mask.entered.tolist() == [False, *opened[1:]]  # which follows nobody into a beam
    assert mask.is_empty == (not allowed)
    for level in range(case.height + 1):
        span = case.tree.level(level)
        inside = [n for n in span if opened[n]]
        whole = level == 0 or len(inside) == len(span)
        assert (mask.blocked(level) is None) == whole == (mask.allowed_nodes(level) is None)
        assert mask.nodes(level).tolist() == ([0] if level == 0 else inside)
        if not whole:
            assert mask.blocked(level).tolist() == [not opened[n] for n in span]
    whole_levels = [all(opened[n] for n in case.tree.level(level)) for level in range(1, case.height + 1)]
    assert mask.full_to == [*whole_levels, False].index(False)
    first = case.tree.level(case.height).start
    assert mask.slots.tolist() == opened[first:]


@given(cases(), st.data())
def test_all_items_allowed_is_the_mask_of_the_tree(case, data):
    every = case.tree.allow(torch.arange(case.tree.num_items))
    assert torch.equal(every.entered, case.tree.mask.entered)
    assert every.full_to == case.tree.mask.full_to
    shape = data.draw(st.permutations([1, case.tree.num_items, 1]))
    again = case.tree.allow(torch.arange(case.tree.num_items).view(shape))  # in any shape
    assert torch.equal(every.entered, again.entered)


@given(cases(), st.data())
def test_children_that_may_not_be_entered_are_pad(case, data):
    allowed = draw_items(data, case)
    mask, left = case.tree.allow(torch.tensor(sorted(allowed), dtype=torch.int64)), left_below(case, allowed)
    for level in range(case.height):
        nodes = torch.tensor([*case.tree.level(level), PAD])
        expected = [[c if left[c] else PAD for c in oracle.children(case.b, n)] for n in case.tree.level(level)]
        assert case.tree.children(nodes, mask=mask).tolist() == [*expected, [PAD] * case.b]
        inside = mask.nodes(level)  # those that a search comes from may be told their level
        assert torch.equal(case.tree.children(inside, level, mask), case.tree.children(inside, mask=mask))
    nodes = torch.tensor([*range(1, case.tree.num_nodes), 0, PAD, -7])
    assert mask.mask_out(nodes.clone()).tolist() == [n if n > 0 and left[n] else PAD for n in nodes.tolist()]


@given(cases(), st.data())
def test_a_node_is_closed_to_a_user_where_all_that_is_allowed_below_is_excluded(case, data):
    """What is not allowed, repeats and PAD among the excluded do not matter."""
    allowed = draw_items(data, case)
    mask = case.tree.allow(torch.tensor(sorted(allowed), dtype=torch.int64))
    users = [as_given(data, draw_items(data, case)) for _ in range(3)]
    width = max(map(len, users))
    lists = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in users], dtype=torch.int64).view(3, width)
    excluded = mask.excluded(case.tree.leaf_of_item(lists))
    assert excluded.shape == lists.shape
    left = [left_below(case, allowed, row) for row in users]
    for level in range(1, case.height + 1):
        nodes = [*case.tree.level(level), PAD]
        expected = [[n if n != PAD and row[n] else PAD for n in nodes] for row in left]
        shared = torch.tensor([nodes])
        for some in (shared, shared.expand(3, -1), shared.repeat(3, 1)):
            assert mask.keep_for(excluded, level, some).tolist() == expected
        assert shared.tolist() == [nodes]  # and what was given stays as it was
        mixed = [data.draw(st.permutations(nodes)) for _ in users]  # every user with nodes of another order
        kept = mask.keep_for(excluded, level, torch.tensor(mixed)).tolist()
        assert kept == [
            [n if n != PAD and row[n] else PAD for n in some] for row, some in zip(left, mixed, strict=True)
        ]


@given(cases(), st.data())
def test_the_excluded_of_the_whole_tree_are_counted_among_its_items(case, data):
    """By the tree's own mask, whose empty slots are not allowed."""
    row = draw_items(data, case)
    excluded = case.tree.mask.excluded(case.tree.leaf_of_item(torch.tensor([sorted(row)], dtype=torch.int64)))
    left = left_below(case, set(range(case.tree.num_items)), row)
    for level in range(1, case.height + 1):
        nodes = torch.tensor([list(case.tree.level(level))])
        expected = [[n if left[n] else PAD for n in case.tree.level(level)]]
        assert case.tree.mask.keep_for(excluded, level, nodes).tolist() == expected


@given(cases(), st.data())
def test_a_mask_that_is_moved_says_the_same(case, data):
    allowed = torch.tensor(sorted(draw_items(data, case)), dtype=torch.int64)
    mask = case.tree.allow(allowed)
    moved = mask.map(torch.clone)
    assert torch.equal(moved.entered, mask.entered)
    assert (moved.is_empty, moved.full_to) == (mask.is_empty, mask.full_to)
    leaves, excluded = case.tree.mask.nodes(case.height).unsqueeze(0), mask.excluded(case.tree.leaf_of_item(case.y))
    for each in (mask, moved):
        for level in range(case.height + 1):
            assert torch.equal(each.nodes(level), mask.nodes(level))
        assert torch.equal(each.keep_for(excluded, case.height, leaves), mask.keep_for(excluded, case.height, leaves))


def test_items_that_the_tree_does_not_hold_cannot_be_allowed():
    for item in (10, -2):
        with pytest.raises(ValueError, match=f"item {item} is not in the tree, which holds items 0…9"):
            bt.random_tree(10).allow(torch.tensor([3, item]))

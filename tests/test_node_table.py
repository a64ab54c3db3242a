"""The door to per-node parameters: gradients gathered in one place are the ordinary ones."""

import pytest
import torch

from beamtree import Tree
from beamtree.scorers.table import NodeTable


def table_and_tree(arity=3, items=20):
    tree = Tree(torch.arange(items), arity)
    return NodeTable(tree.num_nodes, 4, seed=1), tree


def loss_of(vectors, one, other):
    return (vectors(one).sin() * torch.arange(4.0)).sum() + (vectors(other) ** 2).sum()


@pytest.mark.parametrize("share", [False, True])
def test_gathered_gradients_are_those_of_ordinary_lookups(share):
    table, tree = table_and_tree()
    one = torch.randint(tree.num_nodes, (5, 7), generator=torch.Generator().manual_seed(0))
    other = torch.randint(tree.num_nodes, (2, 3, 4), generator=torch.Generator().manual_seed(1))
    plain = table.vectors(tree) if share else table.weight
    loss = loss_of(lambda nodes: plain[nodes], one, other)
    (expected,) = torch.autograd.grad(loss, table.weight)
    for _ in range(2):  # twice: nothing of the first step may be left
        table.weight.grad = None
        loss_of(table.read(tree, share=share).at, one, other).backward()
        torch.testing.assert_close(table.weight.grad, expected)
        assert bool((table.touched.bool() | (expected == 0).all(1)).all())


def test_only_touched_rows_are_marked():
    table, tree = table_and_tree()
    table.read(tree, share=False).at(torch.tensor([3, 3, 9])).sum().backward()
    assert table.touched.nonzero().flatten().tolist() == [3, 9]
    table.weight.grad = None
    table.read(tree, share=True).at(torch.tensor([tree.num_nodes - 1])).sum().backward()
    path = [0, *tree.path(torch.tensor([tree.num_nodes - 1]))[0].tolist()]
    assert table.touched.nonzero().flatten().tolist() == path


@pytest.mark.parametrize("share", [False, True])
def test_gradients_of_two_passes_add_up(share):
    table, tree = table_and_tree()
    nodes = torch.tensor([1, 5, 5, 30])
    table.read(tree, share=share).at(nodes).sum().backward()
    once = table.weight.grad.clone()
    table.read(tree, share=share).at(nodes).sum().backward()
    torch.testing.assert_close(table.weight.grad, 2 * once)


def test_nothing_is_gathered_where_nothing_is_learned():
    table, tree = table_and_tree()
    with torch.no_grad():
        rows = table.read(tree, share=True).at(torch.tensor([[4]]))
    assert not rows.requires_grad
    torch.testing.assert_close(rows[0], table.vectors(tree)[4:5].detach())

"""The graph of users and items, against its definition in numpy."""

import numpy as np
import pytest
import torch
from sample_logs import by_user, random_events

from beamtree import PAD, random_tree
from beamtree.closed_form import graph
from beamtree.closed_form.cooccurrence import cooccurrence
from beamtree.closed_form.graph import graph_partners, low_pass
from beamtree.scorers import LowPassScorer

NUM_ITEMS = 30  # of which the last two have no events


def normalised(events):
    """R̃ = D_u^-1/2 R D_i^-1/2 [U, M], and D_i [M]."""
    matrix = np.zeros((len(events), NUM_ITEMS))
    for user, items in enumerate(by_user(events)):
        matrix[user, items] = 1
    of_users, of_items = matrix.sum(1), matrix.sum(0)
    return matrix / np.sqrt(of_users[:, None] * np.maximum(of_items, 1)), of_items


def partners_of(events, items, most):
    return graph_partners(cooccurrence(events, NUM_ITEMS, 1.0), items, most)


@pytest.mark.parametrize("at_once", [1 << 24, 40])
def test_partners_are_the_largest_entries_of_the_normalised_product(monkeypatch, at_once):
    monkeypatch.setattr(graph, "ENTRIES_AT_ONCE", at_once)
    events = random_events(0)
    matrix, _ = normalised(events)
    expected = matrix.T @ matrix
    np.fill_diagonal(expected, 0)
    found = partners_of(events, torch.arange(NUM_ITEMS), 5)
    assert len(found) == NUM_ITEMS
    for item, (first, last) in enumerate(zip(found.offsets[:-1], found.offsets[1:], strict=True)):
        columns, values = found.columns[first:last].long().numpy(), found.values[first:last].numpy()
        best = np.sort(expected[item])[::-1][:5]
        assert values == pytest.approx(best[best > 0], rel=1e-5)
        assert values == pytest.approx(expected[item, columns], rel=1e-5)


def test_partners_of_some_items_are_their_rows():
    events, some = random_events(1), torch.tensor([7, 0, 29])
    whole, found = partners_of(events, torch.arange(NUM_ITEMS), 9), partners_of(events, some, 9)
    assert found.columns.tolist() == whole.take(some).columns.tolist()


def test_a_low_pass_keeps_the_leading_singular_vectors():
    events = random_events(2)
    matrix, degrees = normalised(events)
    vectors, found_degrees = low_pass(events, NUM_ITEMS, dim=6)
    assert found_degrees.numpy() == pytest.approx(degrees, rel=1e-5)
    _, strengths, axes = np.linalg.svd(matrix)
    # After a few rounds the weakest directions are not exact, but they keep nearly as much of the matrix.
    kept = np.linalg.norm(matrix @ vectors.numpy())
    assert kept == pytest.approx(np.linalg.norm(strengths[:6]), rel=0.02)
    assert np.abs(axes[0] @ vectors[:, 0].numpy()) == pytest.approx(1, abs=1e-3)
    assert (vectors.T @ vectors).numpy() == pytest.approx(np.eye(6), abs=1e-4)


def test_a_low_pass_of_all_directions_changes_nothing():
    events = random_events(3)
    matrix, _ = normalised(events)
    vectors, _ = low_pass(events, NUM_ITEMS, dim=NUM_ITEMS)
    assert matrix @ vectors.numpy() @ vectors.numpy().T == pytest.approx(matrix, abs=1e-3)


def test_the_scorer_gives_the_scores_of_the_low_pass():
    """x D_i^-1/2 V Vᵀ D_i^1/2, where of a repeated item the newest event counts."""
    events = random_events(4)
    vectors, degrees = low_pass(events, NUM_ITEMS, dim=8)
    tree = random_tree(NUM_ITEMS, seed=0)
    scorer = LowPassScorer.from_vectors(tree, vectors, degrees, power=0.5).scaled(2.0)
    x = torch.tensor([[3, 11, 3, -1], [28, -1, -1, -1], [-1, -1, -1, -1]])
    history = np.zeros((3, NUM_ITEMS))
    history[0, 3], history[0, 11], history[1, 28] = 1, 2**-0.5, 1
    root, axes = np.sqrt(degrees.numpy()), vectors.numpy()
    expected = 2 * (history / np.where(root, root, np.inf)) @ axes @ axes.T * root
    leaves = tree.leaf_of_item(torch.arange(NUM_ITEMS)).unsqueeze(0)
    found = scorer(scorer.prepare(tree, x), tree.height, leaves).numpy()
    assert found == pytest.approx(expected, rel=2e-3, abs=2e-3)


def test_an_item_that_came_later_has_no_share_in_a_history():
    vectors, degrees = low_pass(random_events(4), NUM_ITEMS, dim=8)
    tree, later = random_tree(NUM_ITEMS, seed=0), NUM_ITEMS + 2
    scorer = LowPassScorer.from_vectors(tree, vectors, degrees)
    slots = tree.items().clone()
    slots[(slots == PAD).nonzero()[0]] = later
    grown = tree.with_items(slots, later + 1)
    leaf = grown.leaf_of_item(torch.tensor([later]))
    scorer.put_vectors(grown, leaf, torch.ones(1, 8))  # as where it is placed among others
    with_it, without = torch.tensor([[later, 3, 11]]), torch.tensor([[PAD, 3, 11]])
    assert torch.equal(scorer.users(grown, with_it), scorer.users(grown, without))
    assert scorer.users(grown, without).any()

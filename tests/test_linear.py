"""The linear part of a classifier: its solver, and on which documents a node is trained."""

import numpy as np
import torch
from topics import random_matrix

from beamtree.classify.label_tree import forest, label_means, label_trees
from beamtree.classify.linear import beam_negatives, positives_below, train_linear, weight_matrix
from beamtree.classify.matrix import empty, from_entries
from beamtree.classify.model import Weights, train
from beamtree.kernels import classify as kernels


def test_the_solver_finds_the_minimum_of_the_loss():
    rng = np.random.default_rng(0)
    x = random_matrix(rng, 80, 12, 0.4)
    positive = np.flatnonzero(x.dense()[:, 0] + 0.3 * rng.random(80) > 0.4)
    task = (np.arange(80), np.array([0, len(positive)]), positive, 0, 1)
    _, features, weights, biases = kernels.train_children(x.parts, x.width, task, (1.0, 1e-5, 5000, 0.0))
    found = np.zeros(13)
    found[features], found[12] = weights, biases[0] + 1
    data = torch.tensor(np.hstack([x.dense(), np.ones((80, 1))]), dtype=torch.float64)
    sign = torch.full((80,), -1.0, dtype=torch.float64)
    sign[positive] = 1

    def loss(w):
        return 0.5 * (w @ w) + (1 - sign * (data @ w - 1)).clamp(min=0).square().sum()

    best = torch.zeros(13, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([best], max_iter=500, tolerance_grad=1e-10)
    optimizer.step(lambda: (optimizer.zero_grad(), (value := loss(best)).backward(), value)[2])
    assert float(loss(torch.tensor(found))) <= float(loss(best.detach())) * (1 + 1e-4)
    assert np.allclose(found, best.detach(), atol=1e-2)


def test_a_node_is_trained_on_documents_below_its_parent():
    groups = [[np.array([0, 1]), np.array([2, 3])]]
    trees = forest([groups], 4)
    x = random_matrix(np.random.default_rng(1), 8, 6, 0.6)
    y = from_entries(np.arange(8), np.arange(8) % 4, np.ones(8), (8, 4))
    (level_one, documents), (leaves, of_leaves) = positives_below(trees, y)
    assert level_one.tolist() == [1] * 4 + [2] * 4
    assert documents.tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert of_leaves.tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert (np.diff(leaves) >= 0).all()
    linear = train_linear(x, trees, positives_below(trees, y), min_weight=0.0)
    features = np.repeat(np.arange(6), np.diff(linear.starts))
    below = {1: {0, 1, 4, 5}, 2: {2, 3, 6, 7}}
    for parent, rows in below.items():  # features that none of the documents has are unknown there
        known = set(x.take(np.array(sorted(rows))).columns.tolist())
        assert set(features[linear.nodes == parent].tolist()) <= known
    nobody = np.empty(0, np.int64), np.empty(0, np.int64)
    everyone = np.full(8, 1), np.arange(8)  # all documents visit group 1, which has half of them below
    more = train_linear(x, trees, positives_below(trees, y), negatives=[nobody, everyone], min_weight=0.0)
    features = np.repeat(np.arange(6), np.diff(more.starts))
    assert set(features[more.nodes == 1].tolist()) == set(x.columns.tolist())
    assert np.array_equal(more.biases[trees.starts[2] : trees.ends[2]], linear.biases[trees.starts[2] : trees.ends[2]])


def test_nobody_visits_groups_without_documents():
    rng = np.random.default_rng(2)
    x, y = random_matrix(rng, 50, 30, 0.2).normalized(), random_matrix(rng, 50, 24, 0.15)
    y = y._replace(width=48)  # half of the labels have no document
    trees = label_trees(label_means(x, y), group=4)
    pairs = positives_below(trees, y)
    linear = train_linear(x, trees, pairs[:1], min_weight=0.0)
    groups, _ = beam_negatives(x, trees, linear, 3)[-1]
    assert set(groups) <= set(pairs[0][0])


def test_documents_visit_the_groups_with_the_highest_scores():
    rng = np.random.default_rng(2)
    x, y = random_matrix(rng, 50, 30, 0.2).normalized(), random_matrix(rng, 50, 24, 0.15)
    trees = label_trees(label_means(x, y), group=4, trees=2)
    pairs = positives_below(trees, y)
    linear = train_linear(x, trees, [pairs[0], pairs[2]], min_weight=0.0)
    z = x.dense() @ weight_matrix(trees, linear).dense().T + linear.biases
    of_levels = beam_negatives(x, trees, linear, 3)
    assert [len(groups) for groups, _ in of_levels] == [0, 150, 0, 150]
    for tree, (groups, documents) in enumerate(of_levels[1::2]):
        assert (np.diff(groups) >= 0).all()
        every = np.arange(trees.starts[trees.roots[tree]], trees.ends[trees.roots[tree]])
        for document in range(50):
            chosen = z[document, groups[documents == document]]
            assert np.allclose(np.sort(chosen), np.sort(z[document, every])[-3:], atol=1e-3)


def test_if_all_documents_visit_all_groups_a_tree_changes_nothing_but_the_beam(monkeypatch):
    monkeypatch.setattr("beamtree.classify.linear.TOLERANCE", 1e-4)
    monkeypatch.setattr("beamtree.classify.linear.ROUNDS", 1_000)
    monkeypatch.setattr("beamtree.classify.model.OF_GROUPS", 0.0)
    rng = np.random.default_rng(2)
    x, y = random_matrix(rng, 200, 30, 0.2).normalized(), random_matrix(rng, 200, 12, 0.15)
    settings = {"weights": Weights(0.0, 0.0), "min_weight": 0.0}
    parts = [train(x, y, empty(12, 30), group=group, **settings).parts(x)["linear"] for group in (4, 12)]
    assert np.allclose(*parts, atol=5e-3)
    apart = train(x, y, empty(12, 30), group=4, negatives=0, **settings).parts(x)["linear"]
    assert np.abs(apart - parts[1]).max() > 0.2

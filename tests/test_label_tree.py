"""Trees of labels: every label is one leaf, and alike labels are near each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from topics import random_matrix

from beamtree.classify.label_tree import k_means, label_means, label_trees
from beamtree.classify.matrix import from_any


@given(st.integers(1, 60), st.integers(2, 20), st.integers(1, 3), st.integers(0, 100))
def test_every_label_is_one_leaf_of_every_tree(labels, group, trees, seed):
    means = random_matrix(np.random.default_rng(seed), labels, 15, 0.3).normalized()
    found = label_trees(means, group=group, trees=trees, seed=seed)
    assert found.leaf.shape == (trees, labels)
    for tree in range(trees):
        assert sorted(found.label[found.leaf[tree]]) == list(range(labels))
        nodes = found.leaf[tree]
        for _ in range(found.heights[tree]):
            above = found.parent[nodes]
            assert ((found.starts[above] <= nodes) & (nodes < found.ends[above])).all()
            nodes = above
        assert (nodes == found.roots[tree]).all()
    inner = found.label < 0
    assert (found.ends[inner] > found.starts[inner]).all()
    assert (found.ends[~inner] == found.starts[~inner]).all()


def test_many_groups_have_a_level_above_them(monkeypatch):
    monkeypatch.setattr("beamtree.classify.label_tree.GROUPS", 4)
    means = random_matrix(np.random.default_rng(0), 60, 15, 0.5).normalized()
    found = label_trees(means, group=5)
    assert found.heights[0] == 3  # two levels of groups, and the leaves


def test_k_means_puts_alike_rows_together():
    rows = from_any(np.array([[1, 0, 0], [0.9, 0.1, 0], [0, 1, 0], [0, 0.9, 0.1]], np.float32)).normalized()
    for seed in range(5):
        nearest = k_means(rows, 2, np.random.default_rng(seed))
        if len(set(nearest)) == 2 and nearest[0] != nearest[2]:
            assert nearest[0] == nearest[1]
            assert nearest[2] == nearest[3]
            return
    raise AssertionError("no seed separates the two")


@pytest.mark.parametrize("at_once", [1, 7, 10**6])
def test_means_of_labels(at_once, monkeypatch):
    monkeypatch.setattr("beamtree.classify.label_tree.ENTRIES", at_once)
    rng = np.random.default_rng(0)
    x, y = random_matrix(rng, 12, 9, 0.5), random_matrix(rng, 12, 5, 0.5)
    y = y._replace(values=np.ones_like(y.values))
    means = y.dense().T @ x.dense()
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    assert np.allclose(label_means(x, y).dense(), means, atol=1e-6)

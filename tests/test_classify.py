"""Extreme classification: every compiled function against its plain definition, and the object that people use."""

import concurrent.futures
import contextlib
import json
import math
import re
import sys
import threading
import time
import warnings
from collections import Counter
from dataclasses import asdict, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree, largest_file
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from serving import serving

import beamtree as bt
from beamtree.classify.documents import open_documents, relevant_labels
from beamtree.classify.encoder import Encoder, train_encoder
from beamtree.classify.label_tree import forest, k_means, label_means, label_trees
from beamtree.classify.linear import Linear, beam_negatives, positives_below, train_linear, weight_matrix
from beamtree.classify.matrix import Matrix, empty, from_any, from_dicts, from_entries, stack
from beamtree.classify.metrics import label_metrics, precisions, propensities
from beamtree.classify.model import OF_GROUPS, Index, LabelModel, Weights, train
from beamtree.classify.part_weights import choose_weights
from beamtree.classify.text import TextFeatures
from beamtree.data import Ids
from beamtree.diagnose.explore import labels_page
from beamtree.kernels import classify as kernels
from beamtree.kernels import compiled_classify, compiled_shared
from beamtree.live import Journal
from beamtree.live.journal import CHANGES, compact
from beamtree.live.labels import LiveClassifier
from beamtree.research.label_comparison import (
    OURS,
    Row,
    Sets,
    compare_labels,
    gains,
    sparse,
    strongest_first,
    why_missing,
)
from beamtree.research.label_peers import knn
from beamtree.serve.http.access import Access, Limits
from beamtree.serve.http.classify import ClassifierService, make_classifier_app

WORDS = [[f"topic{t}word{i}" for i in range(12)] for t in range(20)]


def topic_texts(count, seed=0):
    """Texts of two topics each, and these topics as labels."""
    rng = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(count):
        first, second = rng.choice(len(WORDS), 2, replace=False)
        words = [*rng.choice(WORDS[first], 4), *rng.choice(WORDS[second], 4)]
        texts.append(" ".join(words))
        labels.append([f"t{first:02}", f"t{second:02}"])
    return texts, labels


def random_matrix(rng, rows, width, share=0.2):
    dense = rng.random((rows, width)) * (rng.random((rows, width)) < share)
    return from_any(dense.astype(np.float32))


@pytest.fixture(scope="module")
def fitted():
    texts, labels = topic_texts(600)
    return bt.Classifier(trees=2, group=8).fit(texts, labels, names={"t03": "topic3word0 topic3word1"}, verbose=False)


# Features


def plain_features(texts, documents):
    """TF-IDF by dictionaries."""
    blocks = []
    for text in texts:
        words = [word for word in text.lower().split() if len(word) > 1]
        blocks.append((words, [f"{a} {b}" for a, b in pairwise(words)], [word[:5] for word in words]))
    result = []
    for document in documents:
        words = [word for word in document.lower().split() if len(word) > 1]
        own = (words, [f"{a} {b}" for a, b in pairwise(words)], [word[:5] for word in words])
        row = {}
        for number, (tokens, weight) in enumerate(zip(own, (1, 0.5, 0.7), strict=True)):
            frequency = Counter(token for each in blocks for token in set(each[number]))
            values = {
                token: (1 + math.log(count)) * (math.log((1 + len(texts)) / (1 + frequency[token])) + 1)
                for token, count in Counter(tokens).items()
                if frequency[token] >= 2
            }
            length = math.sqrt(sum(value**2 for value in values.values()))
            row |= {(number, token): weight * value / length for token, value in values.items()}
        length = math.sqrt(sum(value**2 for value in row.values()))
        result.append({key: value / length for key, value in row.items()})
    return result


def test_features_are_tf_idf_of_words_pairs_and_beginnings(monkeypatch):
    texts = ["red lamp red", "blue lamp", "red lamps", "a green chair", "green chair and lamp", "Red LAMP"]
    monkeypatch.setattr("beamtree.classify.text.SMALL_CORPUS", 0)
    features = TextFeatures.fit(texts)
    documents = ["red red lamp", "lamp chair", "unknown words", "", "lamps green chair green chair"]
    found = features.transform(documents)
    starts = (0, *features.ends)
    for row, expected in enumerate(plain_features(texts, documents)):
        own = slice(found.offsets[row], found.offsets[row + 1])
        block = np.searchsorted(starts, found.columns[own], side="right") - 1
        names = [features.vocabulary[column] for column in found.columns[own]]
        got = dict(zip(zip(block.tolist(), names, strict=True), found.values[own], strict=True))
        assert got.keys() == expected.keys()
        assert all(math.isclose(got[key], expected[key], rel_tol=1e-5) for key in got)
        assert (np.diff(found.columns[own]) > 0).all()


# Trees


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


# Linear part


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


def test_features_that_add_up_to_infinity_are_an_error():
    with pytest.raises(ValueError, match="document 1 hold NaN or infinity"):
        from_dicts([{"3": 1.0}, {"3": 3e38, "03": 3e38}], 5)


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


# Encoder


def test_the_encoder_learns_that_features_are_alike_because_their_labels_are():
    """Two synonyms per topic: a document has one of them and a word of its own."""
    rng = np.random.default_rng(0)
    topics, synonym = rng.integers(0, 10, 400), rng.integers(0, 2, 400)
    rows = np.repeat(np.arange(400), 2)
    columns = np.stack([2 * topics + synonym, rng.integers(20, 60, 400)], axis=1).ravel()
    x = from_entries(rows, columns, np.ones(800), (400, 60)).normalized()
    y = from_entries(np.arange(400), topics, np.ones(400), (400, 10))
    state = torch.random.get_rng_state()
    encoder = train_encoder(x, y, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)  # its own randomness
    assert all(map(np.array_equal, encoder, train_encoder(x, y, seed=1)))
    p = encoder.probabilities(from_any(np.eye(60)[:20]))
    assert np.allclose(p.sum(1), 1, atol=1e-5)
    assert (p.argmax(1) == np.arange(20) // 2).all()
    u = encoder.features[:20] / np.linalg.norm(encoder.features[:20], axis=1, keepdims=True)
    alike = u @ u.T
    assert alike[0::2, 1::2].diagonal().min() > alike[0::2, 0::2][~np.eye(10, dtype=bool)].max()


def test_an_encoder_is_only_kept_where_it_pays(monkeypatch):
    texts, lists = topic_texts(300)
    x = TextFeatures.fit(texts).transform(texts)
    numbers = np.array([[int(label[1:]) for label in each] for each in lists])
    y = from_entries(np.repeat(np.arange(300), 2), numbers.ravel(), np.ones(600), (300, 20))
    kept, held_out = np.arange(200), np.arange(200, 300)
    model = train(x.take(kept), y.take(kept), empty(20, x.width), group=8)
    assert len(model.encoder.biases) == 20
    validation = x.take(held_out), y.take(held_out)
    useless = Encoder(*(np.zeros_like(each) for each in model.encoder))
    chosen, _ = choose_weights(replace(model, encoder=useless), *validation, 10)
    assert (chosen.weights.encoder, len(chosen.encoder.biases)) == (0, 0)
    linear = model.linear._replace(weights=np.zeros_like(model.linear.weights))
    labels = model.labels._replace(columns=(model.labels.columns + 7) % 20)
    blind = replace(model, linear=linear, labels=labels)  # only the encoder knows anything
    chosen, found = choose_weights(blind, *validation, 10)
    assert chosen.weights.encoder > 0
    assert found["all parts"] >= found["without encoder"] + 0.002
    for limit, value in (("WORK", 3_999), ("ENTRIES", 100)):
        with monkeypatch.context() as patch:
            patch.setattr(f"beamtree.classify.encoder.{limit}", value)
            assert not len(train(x.take(kept), y.take(kept), empty(20, x.width), group=8).encoder.biases)


# Search


def plain_search(model, x, beam_size, m, allowed):
    """The search as the docstring of the model says, with dense arrays and Python; None where a tie decides."""
    parts = model.parts(x)
    votes = parts["memory"] + parts["names"] + np.where(parts["encoder"] > 1e-3, parts["encoder"], 0)
    votes += parts["examples"]
    nodes = model.forest
    z = x.dense() @ weight_matrix(nodes, model.linear).dense().T + model.linear.biases
    miss = np.maximum(0, 1 - z) ** 3
    similar = -np.sort(-x.dense() @ model.documents.matrix(model.labels.rows).dense().T, axis=1)
    last = model.weights.neighbours

    def below(node):
        if nodes.label[node] >= 0:
            return [nodes.label[node]]
        return [label for child in range(nodes.starts[node], nodes.ends[node]) for label in below(child)]

    results = []
    for row in range(x.rows):
        total = votes[row].astype(np.float64)
        in_beam, tied = set(), similar[row, last - 1] - similar[row, last] < 1e-5
        for tree, root in enumerate(nodes.roots):
            beam = [(root, 0.0)]
            for level in range(1, nodes.heights[tree] + 1):
                children = [
                    (child, path - miss[row, child])
                    for node, path in beam
                    for child in range(nodes.starts[node], nodes.ends[node])
                    if any(allowed[label] for label in below(child))
                ]
                if level == nodes.heights[tree]:
                    for child, path in children:
                        above = path + miss[row, child]
                        log_p = model.weights.groups * above - miss[row, child]
                        total[nodes.label[child]] += math.exp(log_p) / len(nodes.roots)
                        in_beam.add(nodes.label[child])
                    break
                score = {
                    child: math.exp(path) + max(votes[row, label] for label in below(child) if allowed[label])
                    for child, path in children
                }
                order = sorted(children, key=lambda each: -score[each[0]])
                beam, labels = [], 0
                for each in order:
                    if len(beam) < beam_size or labels < m:
                        beam.append(each)
                        labels += sum(allowed[label] for label in below(each[0]))
                kept = len(beam)
                tied = tied or (0 < kept < len(order) and score[order[kept - 1][0]] - score[order[kept][0]] < 1e-5)
        candidates = [
            label for label in range(len(total)) if allowed[label] and (label in in_beam or votes[row, label])
        ]
        results.append(None if tied else {label: total[label] for label in candidates})
    return results


@given(st.integers(0, 1000), st.integers(1, 3), st.integers(1, 6), st.integers(1, 8), st.booleans())
def test_search_is_the_plain_search(seed, trees, beam_size, m, filtered):
    rng = np.random.default_rng(seed)
    x, y = random_matrix(rng, 60, 25, 0.2).normalized(), random_matrix(rng, 60, 14, 0.15)
    y = y._replace(values=np.ones_like(y.values))
    names = random_matrix(rng, 14, 25, 0.1).normalized()
    votes = (0.7, 0.3) if seed % 4 else (0.0, 0.0)  # with the encoder, or without any votes
    weights = Weights(*votes, power=2.0 if seed % 3 else 4.0, neighbours=20, budget=10**9)
    how = {"group": 4, "trees": trees, "negatives": seed % 3, "seed": seed, "min_weight": 0.01}
    model = train(x, y, names, weights=weights, **how)
    vectors = [rng.standard_normal(shape).astype(np.float32) for shape in ((25, 4), (13, 4), (13,))]  # not of the last
    model = replace(model, encoder=Encoder(*vectors), weights=model.weights._replace(encoder=float(seed % 2)))
    if seed % 5 < 3:  # some labels have examples, and some several, not one after the other
        for count in (1, 5):
            added = random_matrix(rng, count, 25, 0.3).normalized(), rng.integers(0, 14, count)
            model = replace(model, examples=model.examples.with_documents(*added))
    allowed = rng.random(14) < 0.5 if filtered else np.ones(14, bool)
    queries = random_matrix(rng, 5, 25, 0.3).normalized()
    found, scores = model.search(queries, m, beam_size=beam_size, allowed=allowed)
    for row, expected in enumerate(plain_search(model, queries, beam_size, m, allowed)):
        if expected is None:
            continue
        best = sorted(expected.values(), reverse=True)[:m]
        got = found[row][found[row] >= 0]
        assert len(set(got)) == len(got) == len(best)
        assert np.allclose(scores[row, : len(best)], best, atol=2e-3)
        assert all(abs(expected[label] - score) < 2e-3 for label, score in zip(got, scores[row], strict=False))


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_allowed_labels_are_counted_below_each_node(share):
    rng = np.random.default_rng(0)
    x, y = random_matrix(rng, 60, 25, 0.2).normalized(), random_matrix(rng, 60, 14, 0.15)
    model = train(x, y, empty(14, 25), group=4, trees=2).with_documents(x.take(np.arange(2)), empty(2, 20), 20)
    allowed, nodes = rng.random(20) < share, model.forest  # six of the labels are in no tree

    def count(node):
        if nodes.label[node] >= 0:
            return int(allowed[nodes.label[node]])
        return sum(map(count, range(nodes.starts[node], nodes.ends[node])))

    assert model.allowed_below(allowed).tolist() == [count(node) for node in range(len(nodes.parent))]


@given(st.lists(st.integers(0, 30), max_size=80), st.integers(1, 60))
def test_the_best_scores_come_first_and_equal_ones_by_index(values, most):
    scores = np.array(values, np.float32)
    indices, highest = np.empty(len(scores) + 1, np.int64), np.empty(len(scores) + 1, np.float32)
    number = compiled_shared.best(scores, len(scores), most, indices, highest)
    order = np.argsort(-scores, kind="stable")[:most]
    assert number == len(order)
    assert np.array_equal(highest[:number], scores[order])
    assert np.array_equal(scores[indices[:number]], highest[:number])
    assert np.array_equal(indices[:number], order)


def untrained(groups, trees=1):
    """A model without weights, in which all nodes have the same scores, and its only document has no feature."""
    labels = sum(map(len, groups))
    nodes = forest([[groups]] * trees, labels)
    none = np.empty(0, np.uint16)
    linear = Linear(
        np.zeros(4, np.int64), np.empty(0, np.int32), np.zeros(1, np.int32), none, none,
        np.full(len(nodes.parent), -1, np.float32),
    )  # fmt: skip
    documents = Index.of(empty(1, 3))
    return LabelModel(nodes, linear, documents, empty(1, labels), Index.of(empty(labels, 3)), Weights(0.0, 0.0))


@pytest.mark.parametrize("beam_size", [1, 10, 32, 33, 50, 80])
def test_wide_beams_find_m_labels_where_groups_are_alike(beam_size):
    starts = np.cumsum([0] + [1] * 40 + [9] * 40)
    model = untrained([np.arange(first, last) for first, last in pairwise(starts)])
    query = from_any(np.eye(3, dtype=np.float32)[:1])
    for m in (5, 100, 303, 400):
        assert model.search(query, m, beam_size=beam_size)[0][0].tolist() == list(range(m))


def test_labels_with_a_small_probability_come_before_those_with_a_smaller_vote():
    model = untrained([np.arange(10)], trees=3)
    model.linear.biases[:] = 1
    model.linear.biases[model.forest.leaf[:, :5]] = -0.995  # p = 0.00036
    model.linear.biases[model.forest.leaf[:, 5:]] = -3
    names = from_entries(np.arange(5, 10), np.zeros(5, np.int64), np.full(5, 0.01), (10, 3))
    model = replace(model, names=Index.of(names), weights=Weights(0.0, 0.1))
    query = from_any(np.eye(3, dtype=np.float32)[:1])
    for m in (3, 5, 6):
        assert model.search(query, m, beam_size=10)[0][0].tolist() == list(range(m))


def test_a_search_that_fails_leaves_nothing_behind(fitted, monkeypatch):
    x = fitted.features_of(topic_texts(1, seed=1)[0])
    expected = fitted.find(x)[1]
    search = compiled_classify.search

    def fails(*args):
        search(*args)
        args[-5][0][:] = 7.0  # totals of labels
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(compiled_classify, "search", fails)
        with pytest.raises(MemoryError):
            fitted.find(x)
    assert np.array_equal(fitted.find(x)[1], expected)


def test_a_wide_beam_finds_what_scoring_all_labels_finds(fitted):
    texts, _ = topic_texts(40, seed=1)
    x = fitted.features_of(texts)
    model = replace(
        fitted.model, weights=Weights(0.5, 0.1, neighbours=600, budget=10**9)
    )  # among equal ones any is nearest
    found, scores = model.search(x, 5, beam_size=1000)
    total = sum(model.parts(x).values())
    assert np.allclose(scores, -np.sort(-total, axis=1)[:, :5], atol=1e-3)
    assert np.allclose(np.take_along_axis(total, found, 1), scores, atol=1e-3)


def test_several_threads_and_one_find_the_same(fitted):
    texts, _ = topic_texts(50, seed=2)
    together = fitted.predict(texts)
    one_by_one = pl.concat([fitted.predict(text).with_columns(document=row) for row, text in enumerate(texts)])
    assert together.equals(one_by_one.cast(together.schema))


# The object


def test_it_learns_and_gives_labels_back(fitted):
    texts, labels = topic_texts(200, seed=3)
    evaluation = fitted.evaluate(texts, labels)
    assert evaluation["precision", 1] > 0.95
    assert evaluation["recall", 3] > 0.95
    assert "200 documents" in str(evaluation)
    frame = fitted.predict(texts[:2], m=3)
    assert frame.columns == ["document", "rank", "label", "name", "score"]
    assert frame["document"].to_list() == [0, 0, 0, 1, 1, 1]
    assert set(frame.filter(pl.col("rank") <= 2)["label"].head(2)) == set(labels[0])


def test_few_labels_are_one_group(monkeypatch):
    texts, labels = topic_texts(100)  # 20 labels
    monkeypatch.setattr("beamtree.classify.classifier.GROUP", 5)

    def groups(**options):
        nodes = bt.Classifier(**options).fit(texts, labels, verbose=False).model.forest
        return [int(nodes.ends[root] - nodes.starts[root]) for root in nodes.roots]

    assert groups() == groups(trees=2) == [1]
    assert len(groups(group=5)) == 3
    for limit, value in (("FEW_LABELS", 19), ("FEW_PAIRS", 1_999)):
        with monkeypatch.context() as patch:
            patch.setattr(f"beamtree.classify.classifier.{limit}", value)
            assert min(groups()) > 1


def test_labels_are_trained_on_visits_with_one_tree_or_where_it_does_not_take_long(monkeypatch):
    texts, labels = topic_texts(100)  # 20 labels

    def of_groups(**options):
        return bt.Classifier(**options).fit(texts, labels, verbose=False).model.weights.groups

    assert of_groups() == 1.0  # all labels are one group
    assert of_groups(group=5) == OF_GROUPS
    monkeypatch.setattr("beamtree.classify.classifier.MAX_PAIRS_WITH_NEGATIVES", 1_999)
    assert of_groups(group=5) == 1.0
    assert of_groups(group=5, trees=1) == OF_GROUPS


def test_without_memory_nearest_documents_do_not_count():
    texts, labels = topic_texts(200)
    for some, lists in ((texts, labels), (texts[:4], labels[:4])):  # with validation documents and without
        classifier = bt.Classifier(memory=False).fit(some, lists, verbose=False)
        assert classifier.model.weights.memory == 0
        assert classifier.explain(texts[0], labels[0][0])["parts"]["memory"] == 0
    classifier.add_labels({"new": None}, {"new": texts[:2]})  # labels that are added need it
    assert "new" in classifier.predict(texts[0], m=20)["label"].to_list()


def test_the_same_seed_gives_the_same_model():
    texts, labels = topic_texts(200)
    first, second = (bt.Classifier(seed=3, group=8).fit(texts, labels, verbose=False) for _ in range(2))
    arrays = second.model.arrays()
    assert all(np.array_equal(array, arrays[name]) for name, array in first.model.arrays().items())
    assert first.model.weights == second.model.weights


def test_a_classifier_of_an_earlier_version_is_read(fitted, tmp_path, monkeypatch):
    def as_before(options):
        named = asdict(options)
        return {"cost": named.pop("C"), "least": named.pop("min_weight"), **named}

    monkeypatch.setattr("beamtree.classify.classifier.asdict", as_before)
    fitted.save(tmp_path / "old")
    assert bt.Classifier.load(tmp_path / "old").options == fitted.options


def test_saved_and_loaded_it_answers_the_same(fitted, tmp_path):
    texts, labels = topic_texts(30, seed=4)
    fitted.save(tmp_path / "run")
    loaded = bt.Classifier.load(tmp_path / "run")
    assert loaded.predict(texts).equals(fitted.predict(texts))
    small = bt.Classifier(frame="pandas").fit(texts, labels, verbose=False)
    small.save(tmp_path / "small")
    assert type(bt.Classifier.load(tmp_path / "small").predict(texts)).__module__.startswith("pandas")
    assert loaded.evaluate(texts, labels)["psp", 5] == fitted.evaluate(texts, labels)["psp", 5]
    fitted.save(tmp_path / "run")  # again, over the first
    (tmp_path / "run" / "labels.txt").write_text("t00\n")
    with pytest.raises(ValueError, match=r"labels.txt is damaged"):
        bt.Classifier.load(tmp_path / "run")
    with pytest.raises(ValueError, match="is not a classifier"):
        bt.Classifier.load(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ValueError, match="choose another folder"):
        fitted.save(tmp_path / "other")


def test_matrices_and_vectors():
    texts, labels = topic_texts(300)
    dense = TextFeatures.fit(texts).transform(texts).dense()
    from_vectors = bt.Classifier(group=8).fit(dense, labels, verbose=False)
    assert from_vectors.evaluate(dense, labels)["precision", 1] > 0.95
    sparse = pytest.importorskip("scipy.sparse")
    numbers = [[int(label[1:]) for label in each] for each in labels]
    y = sparse.csr_matrix((np.ones(600), (np.repeat(np.arange(300), 2), np.concatenate(numbers))), shape=(300, 20))
    from_matrix = bt.Classifier(group=8).fit(sparse.csr_matrix(dense), y, verbose=False)
    assert from_matrix.labels == list(range(20))
    assert from_matrix.evaluate(sparse.csr_matrix(dense), y)["precision", 1] > 0.95
    with pytest.raises(ValueError, match=r"documents have 3 features, those of the training"):
        from_matrix.predict(np.ones((2, 3)))
    with pytest.raises(ValueError, match="give a matrix, not text"):
        from_matrix.predict("lamp")


def test_labels_of_a_matrix_that_are_not_known_are_never_found(fitted):
    texts, _ = topic_texts(5, seed=7)
    others = np.ones((5, 3))  # labels 0, 1 and 2, which this classifier of t00 … t19 does not have
    assert fitted.evaluate(texts, others, m=20)["recall", 20] == 0


def test_frames_and_files(tmp_path):
    texts, labels = topic_texts(300)
    frame = pl.DataFrame({"id": range(300), "title": texts, "subjects": labels})
    frame.write_parquet(tmp_path / "documents.parquet")
    joined = frame.with_columns(pl.col("subjects").list.join(";"))
    joined.write_csv(tmp_path / "documents.csv")
    frame.write_ndjson(tmp_path / "documents.jsonl")
    expected = bt.Classifier(group=8).fit(texts, labels, verbose=False).predict(texts[:5])
    for source, more in (
        (frame, {}),
        (frame.to_pandas(), {}),
        (tmp_path / "documents.parquet", {}),
        (tmp_path / "documents.jsonl", {}),
        (tmp_path / "documents.csv", {"separator": ";"}),
    ):
        found = bt.Classifier(group=8).fit(source, verbose=False, **more)
        assert found.predict(texts[:5]).equals(expected)
        assert found.predict(frame.head(5)).equals(expected)


def test_the_text_format_of_the_extreme_classification_sets(tmp_path):
    rng = np.random.default_rng(0)
    lines = []
    for row in range(60):
        label = row % 4
        lines.append(f"{label},{(label + 1) % 4} {label}:1 {4 + int(rng.integers(6))}:0.5")
    path = tmp_path / "train.txt"
    path.write_text("60 10 4\n" + "\n".join(lines) + "\n")
    found = bt.Classifier(group=2).fit(path, verbose=False)
    assert found.labels == [0, 1, 2, 3]
    assert found.evaluate(path)["recall", 3] > 0.9
    for header, line, message in (
        ("61 10 4", lines[0], "has 60 documents; its header says 61"),
        ("60 3 4", lines[0], "line 2 has the feature"),
        ("60 10 2", lines[2], "its header says 2 labels"),
        ("60 10 4", "1 2:x", "is not `label,label feature:value …`"),
    ):
        path.write_text("\n".join([header, line, *lines[1:]]) + "\n")
        with pytest.raises(ValueError, match=message):
            bt.Classifier().fit(path, verbose=False)


def test_every_document_gets_m_labels_that_are_allowed(fitted):
    texts, _ = topic_texts(30, seed=5)
    for allowed in (["t01"], ["t01", "t02", "t03"], [f"t{i:02}" for i in range(15)]):
        for m in (1, 3, 10):
            frame = fitted.predict(texts, m=m, allowed=allowed, beam_size=1)
            assert set(frame["label"]) <= set(allowed)
            assert frame.group_by("document").len()["len"].to_list() == [min(m, len(allowed))] * 30
    frame = fitted.predict(texts, m=20, exclude=["t01", "t02"], beam_size=1)
    assert not {"t01", "t02"} & set(frame["label"])
    assert len(frame) == 30 * 18
    assert set(fitted.predict(texts, allowed=["x", "t01"], m=3)["label"]) == {"t01"}
    nothing = fitted.predict(texts, allowed=["x"])  # as a recommender does
    assert nothing.is_empty()
    assert nothing.schema == frame.schema


def test_documents_without_a_known_word_get_frequent_labels(fitted):
    with pytest.warns(UserWarning, match="1 of 2 documents have no known word"):
        frame = fitted.predict(["nothing here", "topic3word1 topic3word2"], m=2)
    counts = Counter(label for each in topic_texts(600)[1] for label in each)
    assert counts[frame["label"][0]] == max(counts.values())
    assert frame["label"][2] == "t03"


def test_labels_are_added_by_name_and_by_documents(tmp_path):
    texts, labels = topic_texts(300)
    live = bt.Classifier(group=8).fit(texts, labels, verbose=False)
    before = live.predict(texts[:20], m=2)
    live.add_labels({"lamp": "topic1word1 topic2word2", "chair": None}, {"chair": ["topic4word4 topic5word5"] * 3})
    assert live.labels[-2:] == ["lamp", "chair"]
    assert live.predict(texts[:20], m=2)["label"].to_list()[:6] == before["label"].to_list()[:6]
    assert "chair" in live.predict("topic4word4 topic5word5", m=3)["label"].to_list()
    assert "lamp" in live.predict("topic1word1 topic2word2", m=5)["label"].to_list()
    assert "chair" not in live.predict("topic4word4 topic5word5", exclude=["chair"])["label"].to_list()
    for name in (None, "unknown words"):
        with pytest.raises(ValueError, match="label 'bare' has no name or document with a known word"):
            live.add_labels({"bare": name})
    with pytest.raises(ValueError, match="which is no label"):
        live.add_labels({}, {"bare": ["text"]})
    with pytest.raises(ValueError, match="label 'bare': its name must be text or None; its documents are the second"):
        live.add_labels({"bare": {"texts": ["topic1word1"]}})
    with pytest.raises(ValueError, match="give texts, not a matrix"):
        live.add_labels({"sofa": None}, {"sofa": np.ones((1, 3))})
    assert live.labels[-2:] == ["lamp", "chair"]  # as before
    live.remove_labels(["chair", "t01"])
    live.save(tmp_path / "run")
    for each in (live, bt.Classifier.load(tmp_path / "run")):
        found = each.predict("topic4word4 topic5word5", m=30)["label"].to_list()
        assert len(found) == 20
        assert not {"chair", "t01"} & set(found)
    live.add_labels({"chair": None})
    assert "chair" in live.predict("topic4word4 topic5word5", m=3)["label"].to_list()
    with pytest.raises(ValueError, match="give a list of ids"):
        live.remove_labels("chair")


@pytest.mark.parametrize("memory", [False, True])
def test_a_label_added_by_documents_is_first_for_a_copy_of_each(memory, tmp_path):
    """Also where the training has the same documents with other labels, and other added labels have similar ones."""
    texts, labels = topic_texts(300)
    live = bt.Classifier(group=8, memory=memory).fit(texts, labels, names={"t03": "topic3word1"}, verbose=False)
    fresh, _ = topic_texts(6, seed=9)
    documents = {"new": fresh[:4], "copied": texts[:2], "near": [f"{each} topic7word1" for each in fresh[:3]]}
    live.add_labels({"new": None, "copied": "topic3word2", "near": None}, documents)
    live.add_labels({"late": None, "t03": None}, {"late": [fresh[4]], "t03": [fresh[5]]})  # the last one was known
    live.save(tmp_path / "run")
    documents |= {"late": [fresh[4]], "t03": [fresh[5]]}
    for each in (live, bt.Classifier.load(tmp_path / "run")):
        for label, own in documents.items():
            for beam_size in (1, 10):
                assert each.predict(own, m=1, beam_size=beam_size)["label"].to_list() == [label] * len(own)
            explained = each.explain(own[0], label)
            assert explained["parts"]["examples"] == pytest.approx(each.model.examples_weight, rel=5e-3)
            assert sum(explained["parts"].values()) == pytest.approx(explained["score"])
            found = each.predict(own[0], m=25, beam_size=100).filter(pl.col("label") == label)["score"].item()
            assert found == pytest.approx(explained["score"], abs=5e-3)
    live.remove_labels(["new"])
    assert "new" not in live.predict(fresh, m=24)["label"].to_list()
    assert "new" not in live.predict(fresh, m=24, exclude=["new"])["label"].to_list()


@given(st.integers(0, 10**6), st.integers(0, 20), st.integers(0, 8))
def test_rows_of_an_index_are_replaced_and_added(seed, rows, changed):
    rng = np.random.default_rng(seed)
    before, more = random_matrix(rng, rows, 6, 0.4), random_matrix(rng, changed, 6, 0.4)
    numbers = rng.choice(rows + changed, changed, replace=False)
    expected = np.zeros((rows + changed, 6), np.float32)
    expected[:rows] = before.dense()
    expected[numbers] = more.dense()
    found = Index.of(before).with_rows(numbers, more).matrix(rows + changed).dense()
    assert np.array_equal(found, expected.astype(np.float16).astype(np.float32))


def test_an_explanation_adds_up_to_the_score(fitted):
    texts, labels = topic_texts(5, seed=6)
    for text, own in zip(texts, labels, strict=True):
        weights = Weights(0.5, 0.2, neighbours=600, budget=10**9, encoder=0.3)
        encoder = Encoder(*(np.full(shape, 0.1, np.float32) for shape in ((fitted.model.num_features, 2), (20, 2), 20)))
        fitted._model, kept = replace(fitted.model, weights=weights, encoder=encoder), fitted._model
        try:
            explained = fitted.explain(text, own[0])
            frame = fitted.predict(text, m=5, beam_size=100)
        finally:
            fitted._model = kept
        score = frame.filter(pl.col("label") == own[0])["score"].item()
        assert math.isclose(explained["score"], score, abs_tol=2e-3)
        assert math.isclose(sum(explained["parts"].values()), explained["score"], rel_tol=1e-6)
        assert any(own[0][1:].lstrip("0") in str(each["feature"]) for each in explained["features"])


# Weights


def test_parts_that_find_nothing_get_no_weight():
    texts, labels = topic_texts(400)
    features = TextFeatures.fit(texts)
    x = features.transform(texts)
    numbers = np.array([[int(label[1:]) for label in each] for each in labels])
    y = from_entries(np.repeat(np.arange(400), 2), numbers.ravel(), np.ones(800), (400, 20))
    misleading = x.take(np.random.default_rng(0).integers(0, 400, 20))  # names that say nothing
    model = train(x.take(np.arange(300)), y.take(np.arange(300)), misleading, group=8)
    chosen, found = choose_weights(model, x.take(np.arange(300, 400)), y.take(np.arange(300, 400)), 10)
    assert found["all parts"] >= found["linear alone"]
    assert chosen.weights.names <= 0.1


# Metrics


def test_metrics_against_plain_loops():
    rng = np.random.default_rng(0)
    counts = np.array([50, 20, 10, 5, 2, 1])
    found = np.stack([rng.permutation(6)[:4] for _ in range(30)])
    relevant = [rng.permutation(8)[: rng.integers(1, 4)] for _ in range(30)]  # 6 and 7 are not known
    names = ("precision", "ndcg", "psp", "recall", "rare_recall")
    evaluation = label_metrics(found, relevant, counts, 100, (1, 3), names)
    p = propensities(np.append(counts, [0, 0]), 100)
    for m in (1, 3):
        precision, psp, recall = [], [], []
        for got, right in zip(found, relevant, strict=True):
            hit = [label for label in got[:m] if label in right]
            precision.append(len(hit) / m)
            recall.append(len(hit) / len(right))
            psp.append(sum(1 / p[label] for label in hit) / sum(sorted(1 / p[label] for label in right)[::-1][:m]))
        assert math.isclose(evaluation["precision", m], np.mean(precision), rel_tol=1e-5)
        assert math.isclose(evaluation["recall", m], np.mean(recall), rel_tol=1e-5)
        assert math.isclose(evaluation["psp", m], np.mean(psp), rel_tol=1e-5)


def test_precisions_against_plain_loops():
    rng = np.random.default_rng(1)
    found = np.stack([rng.permutation(9)[:5] for _ in range(40)])
    found[::3, 3:] = -1
    relevant = [rng.permutation(9)[: rng.integers(0, 5)].tolist() for _ in range(40)]
    y = relevant_labels(Ids([str(number) for number in range(9)]), [[str(each) for each in row] for row in relevant])
    expected = [
        [sum(label in right for label in row[:m]) / m for m in (1, 3, 5)]
        for row, right in zip(found.tolist(), relevant, strict=True)
    ]
    assert np.allclose(precisions(found, y), expected)


def test_labels_that_are_not_known_have_numbers_above_the_others():
    ids = Ids(["a", "b"])
    found = relevant_labels(ids, [["b", "x"], [], ["y", "a", "x"]])
    assert found.offsets.tolist() == [0, 2, 2, 5]
    assert found.columns[[0, 3]].tolist() == [1, 0]
    others = found.columns[[1, 2, 4]].tolist()
    assert min(others) >= 2
    assert others[0] == others[2] != others[1]


# Other packages


def test_others_get_tf_idf_of_words(monkeypatch):
    monkeypatch.setattr("beamtree.classify.text.SMALL_CORPUS", 0)
    texts = ["red lamp red", "blue lamp", "red lamps", "a green chair", "green chair and lamp", "Red LAMP"]
    train, test = (open_documents(each, [["x"]] * len(each), needs_labels=True) for each in (texts, texts[:2]))
    sets = Sets.of(train, test, {"x": "a name"})
    for x, documents in zip(sets.words, (texts, texts[:2]), strict=True):
        for row, expected in zip(x.toarray(), plain_features(texts, documents), strict=True):
            words = np.array([value for (block, _), value in expected.items() if block == 0])
            assert np.allclose(sorted(row[row > 0]), sorted(words / np.linalg.norm(words)), atol=1e-6)
    assert sets.names == {"0": "a name"}
    with pytest.raises(ValueError, match="both be texts"):
        Sets.of(train, open_documents(np.eye(2), [["x"]] * 2, needs_labels=True))


def test_nearest_documents_against_the_definition(tmp_path, monkeypatch):
    monkeypatch.setattr("beamtree.research.label_peers.NEIGHBOURS", 7)
    rng = np.random.default_rng(0)
    x, y = random_matrix(rng, 50, 12, 0.4).normalized(), random_matrix(rng, 50, 9, 0.3)
    y = y._replace(values=np.ones_like(y.values))
    queries = random_matrix(rng, 10, 12, 0.4).normalized()
    found = knn(sparse(x), sparse(y), 2.0, tmp_path)(sparse(queries), None)
    similar = queries.dense() @ x.dense().T
    for row, labels in zip(similar, found, strict=True):
        near = np.argsort(-row)[:7]
        votes = (row[near] ** 2) @ y.dense()[near]
        assert np.allclose(votes[labels], np.sort(votes)[::-1][:5], atol=1e-5)


def test_a_comparison_chooses_settings_and_puts_the_strongest_rival_first(monkeypatch):
    """Rows that always find the same labels: those of setting 2 are right, those of setting 1 are not."""

    def train(x, y, setting, folder):
        folder.mkdir()
        return lambda documents, k: np.tile([int(setting), 0, 3, 4, 5], (documents.shape[0], 1))

    weak = Row("numpy", train, train, (1.0,))
    rows = {"weak": weak, "strong": weak._replace(settings=(1.0, 2.0), beams=False)}
    monkeypatch.setattr("beamtree.research.label_comparison.ROWS", rows)
    x = np.eye(6)[np.arange(60) % 6]
    train_set, test_set = (open_documents(each, [[2]] * len(each), needs_labels=True) for each in (x, x[:12]))
    sets = Sets.of(train_set._replace(num_labels=6), test_set)
    lines = []
    results = strongest_first(compare_labels(sets, ["weak", OURS, "strong"], [1, 10], lines.append))
    assert [(each.row, each.k) for each in results] == [
        (OURS, 1), (OURS, 10), ("strong", None), ("weak", 1), ("weak", 10),
    ]  # fmt: skip
    assert results[2].setting == 2.0
    assert results[2].values.mean(0).tolist() == pytest.approx([1, 1 / 3, 1 / 5])
    assert results[3].values.mean() == 0
    assert [(row, k) for row, k, _, _ in gains(results)] == [("strong", 1), ("strong", 10)]
    assert np.allclose(gains(results)[0][2], results[0].values.mean(0) - results[2].values.mean(0))
    assert "strong, setting 2: 51.11% on validation documents" in lines


def test_a_package_that_fails_is_left_out_of_a_comparison(monkeypatch):
    def fail(x, y, setting, folder):
        raise AttributeError("no attribute of a library")

    def train(x, y, setting, folder):
        folder.mkdir()
        return lambda documents, k: np.zeros((documents.shape[0], 5), np.int64)

    rows = {"broken": Row("numpy", fail, fail, (1.0,)), "right": Row("numpy", train, train, (1.0,), beams=False)}
    monkeypatch.setattr("beamtree.research.label_comparison.ROWS", rows)
    documents = open_documents(np.eye(3), [[0]] * 3, needs_labels=True)
    lines = []
    results = compare_labels(Sets.of(documents, documents), ["broken", "right"], [1], lines.append)
    assert [each.row for each in results] == ["right"]
    assert "broken: left out, it failed with AttributeError: no attribute of a library" in lines


class FakePecos:
    """What is called of PECOS, with the types that it takes; it finds the nearest means, if C is 1, and else no label.

    A beam of k finds at most k labels.
    """

    def __init__(self, cost):
        self.cost = cost

    @staticmethod
    def create(y, x, method):
        assert (y.format, x.format, y.dtype, x.dtype, method) == ("csr", "csr", np.float32, np.float32, "pifa")
        means = (y.T @ x).toarray()
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    @staticmethod
    def gen(means, indexer_type, nr_splits, max_leaf_size, seed, threads):
        assert indexer_type == "hierarchicalkmeans"
        return "chain", means

    @classmethod
    def train(cls, x, y, *, C, Cp, Cn, threads):  # noqa: N803
        assert (y.format, C[0], Cp) == ("csc", "chain", Cn)
        assert x.shape[0] == y.shape[0]
        model = cls(Cp)
        model.means = C[1]
        return model

    def save(self, folder):
        Path(folder).mkdir()
        np.savez(Path(folder) / "model.npz", cost=self.cost, means=self.means)

    @classmethod
    def load(cls, folder, is_predict_only):
        saved = np.load(Path(folder) / "model.npz")
        model = cls(float(saved["cost"]))
        model.means = saved["means"]
        return model

    def predict(self, x, beam_size, only_topk, threads):
        assert (x.format, x.dtype, threads) == ("csr", np.float32, 1)
        scores = x @ self.means.T * (self.cost == 1.0)
        least = np.sort(scores, axis=1)[:, -min(beam_size, only_topk)][:, None]
        return csr_matrix(np.where((scores >= least) & (scores > 0), scores, 0))


def test_pecos_is_called_as_it_is_documented(monkeypatch):
    names = {"LabelEmbeddingFactory": FakePecos, "Indexer": FakePecos, "XLinearModel": FakePecos}
    for module in ("pecos", "pecos.xmc", "pecos.xmc.xlinear", "pecos.xmc.xlinear.model"):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**names))
    texts, labels = topic_texts(200)
    train_set, test_set = (
        open_documents(texts[part], labels[part], needs_labels=True) for part in (slice(150), slice(150, 200))
    )
    sets, lines = Sets.of(train_set, test_set), []
    assert [why_missing(row, sets) for row in ("pecos", "pecos-our-features")] == [None, None]
    results = compare_labels(sets, ["pecos", "pecos-our-features"], [1, 10], lines.append)
    assert [(each.row, each.k, each.setting) for each in results] == [
        ("pecos", 1, 1.0), ("pecos", 10, 1.0), ("pecos-our-features", 1, 1.0), ("pecos-our-features", 10, 1.0),
    ]  # fmt: skip
    for narrow, wide in (results[:2], results[2:]):
        assert narrow.values[:, 0].tolist() == wide.values[:, 0].tolist()
        assert narrow.values[:, 0].mean() > 0.9
        assert (3 * narrow.values[:, 1]).max() == pytest.approx(1)
        assert (3 * wide.values[:, 1]).max() > 1
    assert "pecos, setting 0.3: 0.00% on validation documents" in lines


# Bad input


@pytest.mark.parametrize(
    ("documents", "labels", "message"),
    [
        ([], [], "there are no documents"),
        (None, None, "there are no documents"),
        (["a text"], None, "labels are missing"),
        (["a text", "another"], [["x"]], "2 documents, but labels for 1"),
        (["a text", 3], [["x"], ["y"]], "document 1 is 3: documents are texts"),
        (["a text", "another"], [[], []], "no document has a label"),
        (["", "  "], [["x"], ["y"]], "no document has both a label and a feature"),
        (np.array([[1.0, np.nan]]), [["x"]], "the features of document 0 hold NaN"),
        (np.array([1.0, 2.0]), [["x"], ["y"]], "give one row per document"),
        (pl.DataFrame({"a": [1]}), None, "no column looks like texts"),
        (pl.DataFrame({"text": ["x"]}), None, "no column looks like labels"),
        (pl.DataFrame({"text": [1], "labels": [["x"]]}), None, "documents are texts"),
        ("no/such/file.parquet", None, "is not a file"),
        (b"a text", [["x"]], "documents are a bytes: give a list of texts"),
        ({"text": ["a"]}, [["x"]], "documents are a dict"),
        (["a text", "another"], [["x"], ["two\nlines"]], "has a line break"),
    ],
)
def test_bad_input_gets_one_clear_line(documents, labels, message):
    with pytest.raises(ValueError, match=message) as error:
        bt.Classifier().fit(documents, labels, verbose=False)
    assert "\n" not in str(error.value)


def test_labels_that_are_numbers_repeated_or_missing():
    texts, labels = topic_texts(100)
    numbers = [[int(label[1:]) for label in each] * 2 for each in labels]  # each twice
    numbers[0] = []
    found = bt.Classifier(group=8).fit(texts, numbers, verbose=False)
    assert set(found.labels) <= set(range(20))
    assert found.model.labels.rows == 99
    one = bt.Classifier(group=8).fit(texts, [each[0] for each in labels], verbose=False)  # one label each
    assert set(one.labels) <= {f"t{number:02}" for number in range(20)}


@pytest.mark.parametrize(
    "options", [{"C": 0.0}, {"C": math.nan}, {"min_weight": -1.0}, {"trees": 0}, {"group": 0}, {"beam_size": 0}]
)
def test_options_that_make_no_sense(options):
    with pytest.raises(ValueError, match="give a"):
        bt.Classifier(**options)


def test_texts_from_a_generator():
    texts, labels = topic_texts(60)
    found = bt.Classifier().fit((text for text in texts), iter(labels), verbose=False)
    assert found.model.labels.rows == 60


def test_it_says_what_to_do_before_it_is_fitted():
    with pytest.raises(ValueError, match=r"call fit\(texts, labels\)"):
        bt.Classifier().predict("text")
    assert "not fitted" in repr(bt.Classifier())


def test_few_documents_and_labels_are_enough():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny = bt.Classifier().fit(["red lamp", "green chair"], [["lamp"], ["chair"]], verbose=False)
        assert tiny.predict("red lamp", m=2)["label"].to_list() == ["lamp", "chair"]


def test_matrices_of_rows():
    rng = np.random.default_rng(0)
    first, second = random_matrix(rng, 5, 7, 0.4), random_matrix(rng, 3, 7, 0.4)
    assert np.array_equal(stack(first, second).dense(), np.vstack([first.dense(), second.dense()]))
    assert np.array_equal(first.transposed().dense(), first.dense().T)
    rows = np.array([3, 0, 3])
    assert np.array_equal(first.take(rows).dense(), first.dense()[rows])
    empty = Matrix(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32), 4)
    assert empty.dense().shape == (0, 4)


# Commands and the service


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classify")
    texts, labels = topic_texts(300)
    frame = pl.DataFrame({"title": texts, "subjects": labels})
    frame.head(250).write_parquet(folder / "train.parquet")
    frame.tail(50).write_parquet(folder / "test.parquet")
    ids = sorted({label for each in labels for label in each})
    pl.DataFrame({"label": ids, "name": [f"Topic {label[1:]}" for label in ids]}).write_csv(folder / "names.csv")
    done = beamtree(
        "classify", "train", "train.parquet", "--out", "runs/topics", "--label-names", "names.csv", "--group", "8",
        folder=folder,
    )  # fmt: skip
    assert "beamtree classify predict runs/topics" in done.stdout
    return folder


def test_commands(run):
    done = beamtree("classify", "evaluate", "runs/topics", "test.parquet", "--json", "scores.json", folder=run)
    assert "50 documents" in done.stdout
    scores = {(each["metric"], each["m"]): each["value"] for each in json.loads((run / "scores.json").read_text())}
    assert scores["precision", 1] > 0.9
    text = "topic3word1 topic3word2 topic3word3"
    done = beamtree("classify", "predict", "runs/topics", "--text", text, "--m", "2", "--explain", folder=run)
    assert "t03" in done.stdout
    assert "Topic 03" in done.stdout
    assert '"parts"' in done.stdout
    (run / "ids.txt").write_text("t05\n")
    done = beamtree("classify", "predict", "runs/topics", "--text", text, "--allowed", "ids.txt", folder=run)
    assert "t05" in done.stdout
    assert "t03" not in done.stdout
    beamtree("classify", "predict", "runs/topics", "--input", "test.parquet", "--output", "out.csv", folder=run)
    assert pl.read_csv(run / "out.csv").columns == ["document", "rank", "label", "name", "score"]
    assert len(pl.read_csv(run / "out.csv")) == 250


def test_the_command_compares_and_names_what_is_missing(run):
    done = beamtree(
        "classify", "compare", "train.parquet", "test.parquet", "--beam-sizes", "1,10", "--json", "rows.json",
        "--rows", "beamtree,beamtree-one-tree,beamtree-no-tree,knn,omikuji-parabel", folder=run,
    )  # fmt: skip
    if find_spec("omikuji") is None:
        assert "Left out: omikuji-parabel (omikuji is not installed)" in done.stderr
    cells = json.loads((run / "rows.json").read_text())
    assert [(each["row"], each["k"]) for each in cells[:6]] == [
        ("beamtree", 1), ("beamtree", 10), ("beamtree-one-tree", 1), ("beamtree-one-tree", 10),
        ("beamtree-no-tree", None), ("knn", None),
    ]  # fmt: skip
    assert all(each["p1"] > 90 and 0 <= each["p1_error"] < 10 for each in cells)
    assert "beamtree over knn at k = 10, P@1, P@3 and P@5: " in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "runs/topics"], "give --text"),
        (["predict", "runs/none", "--text", "x"], "is not a classifier"),
        (["predict", "runs/topics", "--input", "test.parquet", "--output", "out.xls"], "must end in"),
        (["evaluate", "runs/topics", "names.csv"], "no column looks like texts"),
        (["evaluate", "runs/topics", "test.parquet", "--m", "x"], "whole number"),
        (["evaluate", "runs/topics", "test.parquet", "--metrics", "x"], "metric 'x' is unknown"),
        (["train", "none.parquet", "--out", "runs/x"], "is not a file"),
        (["compare", "train.parquet", "test.parquet", "--rows", "x"], "row 'x' is unknown"),
        (["compare", "train.parquet", "test.parquet", "--beam-sizes", "x"], "--beam-sizes 'x': give a whole number"),
    ],
)
def test_commands_say_what_is_wrong_in_one_line(run, words, message):
    done = beamtree("classify", *words, folder=run, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [["inspect"], ["export", "--out", "search.pt2"], ["serve"]])
def test_commands_for_runs_say_that_this_is_a_classifier(run, words):
    done = beamtree(words[0], "runs/topics", *words[1:], folder=run, check=False)
    assert done.returncode == 2
    assert "runs/topics is a classifier of documents: see `beamtree classify --help`" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_check_reads_a_classifier(run):
    assert "OK       the classifier in runs/topics" in beamtree("check", "runs/topics", folder=run).stdout


@contextlib.contextmanager
def serving_labels(classifier, folder=None, **how):
    """A classifier behind a real socket, whose changes go to a folder, and a client of it."""
    with contextlib.nullcontext() if folder is None else contextlib.closing(Journal(folder)) as journal:
        service = ClassifierService(LiveClassifier(classifier, journal), "run", **how)
        with serving(service, make_classifier_app) as client:
            yield client


def test_the_service(run):
    with serving_labels(bt.Classifier.load(run / "runs" / "topics")) as client:
        check_service(client)


def check_service(client):
    text = "topic3word1 topic3word2 topic3word3"
    found = client.post("/v1/labels", json={"text": text, "m": 3}).json()
    assert found["labels"][0]["label"] == "t03"
    assert found["labels"][0]["name"] == "Topic 03"
    assert len(found["labels"]) == 3
    several = client.post("/v1/labels", json={"texts": [text, "nothing"], "m": 2, "exclude": ["t03"]}).json()["results"]
    assert [len(each["labels"]) for each in several] == [2, 2]
    assert several[1]["known_features"] == 0
    assert "t03" not in [each["label"] for each in several[0]["labels"]]
    assert client.get("/v1/model").json()["labels"] == 20
    assert client.get("/healthz").json() == {"live": True}
    assert client.get("/").text == labels_page()
    assert client.post("/v1/explain", json={"text": text, "label": "t03"}).json()["parts"]["linear"] > 0.1
    assert client.post("/v1/labels", json={"text": text, "allowed": ["none"]}).json()["labels"] == []
    named_as_a_file = client.post("/v1/explain", json={"text": __file__, "label": "t03"})
    assert named_as_a_file.json()["features"] == []  # the text is not read as a file
    for path, body, message in (
        ("labels", {}, "exactly one of"),
        ("labels", {"text": text, "m": 0}, "m: "),
        ("labels", {"text": text, "m": 5000}, "over the limit"),
        ("labels", {"features": [{"0": 1.0}]}, "give texts, not a matrix"),
        ("labels", {"features": []}, "there are no documents"),
        ("labels", {"text": text, "extra": 1}, "extra"),
        ("explain", {"text": text, "label": "none"}, "is unknown"),
        ("explain", {"label": "t03"}, "exactly one of"),
        ("explain", {"features": {"0": 1.0}, "label": "t03"}, "give texts, not a matrix"),
    ):
        answer = client.post(f"/v1/{path}", json=body)
        assert answer.status_code == 422
        assert message in answer.json()["error"]


def test_the_service_takes_features(tmp_path):
    rng = np.random.default_rng(0)
    x = np.eye(6)[rng.integers(0, 6, 100)] + 0.1 * rng.random((100, 6))
    classifier = bt.Classifier(group=2).fit(x, [[int(row.argmax())] for row in x], verbose=False)
    with serving_labels(classifier, tmp_path) as client:
        found = client.post("/v1/labels", json={"features": [{"2": 1.0, "3": 0.1}], "m": 1}).json()
        assert found["results"][0]["labels"][0]["label"] == "2"
        explained = client.post("/v1/explain", json={"features": {"2": 1.0, "3": 0.1}, "label": "2"}).json()
        assert explained["score"] == pytest.approx(found["results"][0]["labels"][0]["score"], rel=1e-3)
        for features in ({"9": 1.0}, {"x": 1.0}):
            assert client.post("/v1/labels", json={"features": [features]}).status_code == 422
        assert client.put("/v1/labels/25", json={"features": [{"2": 1.0, "5": 1.0}] * 3}).json()["changed"]
        found = client.post("/v1/labels", json={"features": [{"2": 1.0, "5": 1.0}], "m": 3}).json()
        assert "25" in [each["label"] for each in found["results"][0]["labels"]]
        for body, message in (
            ({"name": "only a name"}, "it could never be found"),
            ({"features": [{"9": 1.0}]}, "documents of '30': feature '9' is not one of 0 … 5"),
            ({"texts": ["text"]}, "documents of '30': this classifier knows 6 features"),
            ({"texts": ["text"], "features": [{"1": 1.0}]}, "not both"),
        ):
            answer = client.put("/v1/labels/30", json=body)
            assert answer.status_code == 422
            assert message in answer.json()["error"]
        answer = client.put("/v1/labels/both", json={"features": [{"2": 1.0, "5": 1.0}]})
        assert (answer.status_code, answer.json()["error"]) == (422, NOT_WHOLE.format("both"))


# Labels that change


TEXT = "topic1word1 topic2word2 topic1word3"
NOT_WHOLE = "the id {!r} is not a whole number, as all others are: give it a number"


def found_in(client, text=TEXT, m=20):
    return [each["label"] for each in client.post("/v1/labels", json={"text": text, "m": m}).json()["labels"]]


def test_live_labels_are_added_changed_and_hidden(fitted, tmp_path):
    trained = fitted.predict(TEXT, m=5)
    with serving_labels(fitted, tmp_path) as client:
        assert client.put("/v1/labels/lamp", json={"name": TEXT}).json() == {
            "changed": True, "version": "1", "count": 1,
        }  # fmt: skip
        assert not client.put("/v1/labels/lamp", json={"name": TEXT}).json()["changed"]  # the same again
        assert "lamp" in found_in(client, m=5)
        assert client.put("/v1/labels/chair", json={"texts": [TEXT] * 3}).json()["version"] == "2"
        assert client.get("/v1/labels/chair").json() == {
            "label": "chair", "name": "", "documents": 3, "hidden": False,
        }  # fmt: skip
        client.put("/v1/labels/chair", json={"texts": [TEXT]})  # instead of the three
        assert client.get("/v1/labels/chair").json()["documents"] == 1
        client.put("/v1/labels/chair", json={"name": "a chair"})  # texts are left out, so they stay
        assert client.get("/v1/labels/chair").json()["documents"] == 1
        assert client.delete("/v1/labels/t01").json()["changed"]
        assert not client.delete("/v1/labels/t01").json()["changed"]
        assert not client.delete("/v1/labels/none").json()["changed"]
        assert "t01" not in found_in(client)
        assert len(found_in(client)) == 20  # of 22 labels one is hidden
        allowed = {"text": TEXT, "m": 3, "allowed": ["t01", "t02"]}
        assert len(client.post("/v1/labels", json=allowed).json()["labels"]) == 1
        many = {"labels": [{"label": "a/b", "name": "topic5word1"}, {"label": 7, "texts": [TEXT]}]}
        assert client.put("/v1/labels", json=many).json()["count"] == 2
        assert client.get("/v1/labels/a%2Fb").json()["name"] == "topic5word1"
        assert [each["label"] for each in client.get("/v1/labels?query=CHAIR").json()["labels"]] == ["chair"]
        before = client.get("/v1/model").json(), [found_in(client, text) for text in (TEXT, "topic5word1")]
        for path, body, message in (
            ("/new", {}, "could never be found"),
            ("/new", {"name": "zzz", "texts": ["yyy"]}, "could never be found"),
            ("/new", {"texts": ["text"] * 300}, "over the limit"),
            ("", {"labels": [{"label": "x", "name": TEXT}, {"label": "y"}]}, "label 'y' has no name or document"),
            ("", {"labels": [{"label": "x", "name": TEXT}, {"label": "x"}]}, "occurs twice"),
            ("/%20", {"name": TEXT}, "not a valid id"),
        ):
            answer = client.put(f"/v1/labels{path}", json=body)
            assert (answer.status_code, message in answer.json()["error"]) == (422, True), answer.text
        assert client.get("/v1/labels/x").status_code == 404  # all or none
        assert before == (
            client.get("/v1/model").json(), [found_in(client, text) for text in (TEXT, "topic5word1")],
        )  # fmt: skip
        assert 'beamtree_changes_total{kind="put_label"} 6.0' in client.get("/metrics").text
    with serving_labels(fitted, tmp_path) as client:  # after a restart
        assert before == (
            client.get("/v1/model").json(), [found_in(client, text) for text in (TEXT, "topic5word1")],
        )  # fmt: skip
        assert client.put("/v1/labels/t01").json()["changed"]  # shown again
        assert "t01" in found_in(client)
    assert fitted.predict(TEXT, m=5).equals(trained)  # the trained one never changes


def test_changes_of_labels_need_a_folder_and_a_token(fitted, tmp_path):
    with serving_labels(fitted) as client:
        assert client.put("/v1/labels/lamp", json={"name": TEXT}).status_code == 409
        assert client.delete("/v1/labels/t01").status_code == 409
    with serving_labels(fitted, tmp_path, access=Access(None, "secret")) as client:
        assert client.put("/v1/labels/lamp", json={"name": TEXT}).status_code == 401
        assert len(found_in(client)) == 20  # to ask needs none
        assert client.put("/v1/labels/lamp", json={"name": TEXT}, headers={"Authorization": "Bearer secret"}).is_success
    with serving_labels(fitted, tmp_path, limits=Limits(body=1000)) as client:
        assert client.post("/v1/labels", json={"text": "word " * 1000}).status_code == 413


def test_a_journal_of_labels_is_compacted_and_those_of_items_are_refused(fitted, tmp_path):
    journal = Journal(tmp_path)
    live = LiveClassifier(fitted, journal)
    for number in range(5):
        live.put_labels({"b": {"name": f"topic{number}word1"}, "a": {"documents": [TEXT]}})
        live.remove_labels(["a", "t03"])
    entries = compact(journal.entries)
    assert [entry.get("label") for entry in entries] == [None, "b", "a", "t03"]
    kept, journal.entries = journal.entries, entries
    again = LiveClassifier(fitted, journal).snapshot
    assert again.version == live.snapshot.version == len(kept)
    arrays = again.classifier.model.arrays()
    assert all(np.array_equal(each, arrays[name]) for name, each in live.snapshot.classifier.model.arrays().items())
    assert again.classifier.labels[-2:] == ["b", "a"]
    journal.append({"kind": "add", "item": "i1"})
    with pytest.raises(ValueError, match="unknown kind of change 'add'"):
        LiveClassifier(fitted, journal)
    journal.close()


def test_changes_apply_to_a_classifier_that_was_trained_again(tmp_path):
    """A label that it does not know any more, or has no known word for, is hidden; the others are as they were."""
    texts, labels = ["red car", "blue sky", "green tree"] * 5, [["r"], ["b"], ["g"]] * 5
    fitted = bt.Classifier(group=2).fit(texts, labels, verbose=False)
    again = bt.Classifier(group=2).fit(texts[1::3] + texts[2::3], labels[1::3] + labels[2::3], verbose=False)
    with contextlib.closing(Journal(tmp_path)) as journal:
        live = LiveClassifier(fitted, journal)
        live.put_labels({"n": {"name": "car"}, "k": {"name": "sky"}})
        live.remove_labels(["r", "b"])
    with contextlib.closing(Journal(tmp_path)) as journal:
        with pytest.warns(UserWarning, match="'n' has no name or document with a known word"):
            live = LiveClassifier(again, journal)
        hidden = {label: live.snapshot.classifier.describe_label(label)["hidden"] for label in "nkrbg"}
        assert hidden == {"n": True, "k": False, "r": True, "b": True, "g": False}
        with pytest.raises(ValueError, match="'r' has no name or document"):
            live.put_labels({"r": {}})
        live.put_labels({"n": {"name": "tree"}})
        assert not live.snapshot.classifier.describe_label("n")["hidden"]


def test_features_that_a_classifier_trained_again_does_not_have_are_left_out(tmp_path):
    """As unknown words of texts are; what was sent stays in the journal, also when the label is changed."""
    wide, narrow = (bt.Classifier(group=2).fit(np.eye(n), [[f"l{i}"] for i in range(n)], verbose=False) for n in (6, 4))
    texts = bt.Classifier(group=2).fit(["red car", "blue sky"], [["l0"], ["l1"]], verbose=False)
    sent = {"some": [{"1": 1.0, "2": 1.0}, {"1": 1.0, "5": 1.0}], "none": [{"5": 1.0}], "all": [{"0": 1.0, "1": 1.0}]}
    with contextlib.closing(Journal(tmp_path)) as journal:
        LiveClassifier(wide, journal).put_labels({label: {"documents": each} for label, each in sent.items()})

    @contextlib.contextmanager
    def restarted(classifier, *lines):
        with contextlib.closing(Journal(tmp_path)) as journal:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                live = LiveClassifier(classifier, journal)
            assert [str(each.message).startswith(line) for line, each in zip(lines, caught, strict=True)] == [True] * 2
            yield live

    def states(live):
        each_of = [live.snapshot.classifier.describe_label(label) for label in sent]
        return [(each["documents"], each["hidden"]) for each in each_of]

    unknown = "documents of 'some': feature '5' is not one of 0 … 3, or not a number"
    left_out = f"{unknown}; what cannot be read is left out (labels: 2)"
    with restarted(narrow, left_out, "label 'none' has no name or document") as live:
        live.put_labels({"some": {"name": "x"}})
        assert states(live) == [(2, False), (1, True), (1, False)]
        model = live.snapshot.classifier.model
        rows = model.documents.matrix(model.labels.rows).dense()[-4:-2]
        assert np.allclose(rows, [[0, 0.5**0.5, 0.5**0.5, 0], [0, 1, 0, 0]], atol=1e-3)
    with restarted(texts, "documents of 'some': this classifier was fitted to texts", "label 'some' has no") as live:
        assert states(live) == [(0, True)] * 3
    with contextlib.closing(Journal(tmp_path)) as journal:  # everything is still there
        assert states(LiveClassifier(wide, journal)) == [(2, False), (1, False), (1, False)]


def test_few_documents_can_be_compared():
    train, test = (
        open_documents(
            pl.DataFrame({"text": ["red car", "blue sky"] * n, "labels": [["r"], ["b"]] * n}), needs_labels=True
        )
        for n in (3, 1)
    )
    results = compare_labels(Sets.of(train, test), [OURS, "knn"], [1], lambda line: None)
    assert [result.values[:, 0].tolist() for result in results] == [[1, 1]] * 2


def test_one_document_has_no_interval(run):
    pl.read_parquet(run / "test.parquet").head(1).write_parquet(run / "one.parquet")
    words = ["compare", "train.parquet", "one.parquet", "--rows", "beamtree,knn", "--beam-sizes", "10"]
    done = beamtree("classify", *words, "--json", "one.json", folder=run)
    cells = json.loads((run / "one.json").read_text())
    assert [(each["row"], each["p1"], each["p1_error"]) for each in cells] == [
        ("beamtree", 100.0, None), ("knn", 100.0, None),
    ]  # fmt: skip
    assert "beamtree over knn at k = 10, P@1, P@3 and P@5: +0.00, " in done.stdout
    assert "±" not in done.stdout.replace("± half of the 95 %", "")
    assert "Warning" not in done.stderr


def test_a_comparison_needs_a_test_document_with_a_label():
    train, test = (open_documents(np.eye(3), labels, needs_labels=True) for labels in ([[0], [1], [2]], [[], [], []]))
    with pytest.raises(ValueError, match="no test document has a label"):
        Sets.of(train, test)


def test_values_of_features_must_be_finite_numbers_of_32_bits():
    for value in (1e300, 10**400, math.nan, -math.inf):
        with pytest.raises(ValueError, match="feature '1' is not one of"):
            from_dicts([{"1": value}], 3)


def test_a_feature_of_zero_is_not_known():
    found = bt.Classifier(group=2).fit(np.eye(4), [["a"], ["b"], ["b"], ["c"]], verbose=False)
    with serving_labels(found) as client:
        bodies = [{"0": 1.0, "3": 0}, {"0": 0.0}, {}]
        known = client.post("/v1/labels", json={"features": bodies, "m": 2}).json()["results"]
        assert [each["known_features"] for each in known] == [1, 0, 0]
        assert known[1]["labels"] == known[2]["labels"]  # the most frequent
        assert known[1]["labels"][0]["label"] == "b"
        assert client.post("/v1/explain", json={"features": {"0": 0.0}, "label": "a"}).status_code == 200


def test_a_label_on_a_full_disk_is_refused_and_the_service_goes_on_by_itself(fitted, tmp_path):
    with serving_labels(fitted, tmp_path) as client:
        client.put("/v1/labels/first", json={"texts": [TEXT]}).raise_for_status()
        with largest_file((tmp_path / CHANGES).stat().st_size + 30):
            refused = [client.put("/v1/labels/refused", json={"texts": [TEXT]}), client.delete("/v1/labels/t01")]
            assert client.get("/readyz").status_code == 200
        assert [(each.status_code, sorted(each.json())) for each in refused] == [(507, ["error", "hint"])] * 2
        assert client.get("/v1/labels/refused").status_code == 404
        assert client.put("/v1/labels/second", json={"texts": [TEXT]}).json()["changed"]
    with serving_labels(fitted, tmp_path) as client:
        known = [client.get(f"/v1/labels/{label}").status_code for label in ("first", "refused", "second")]
        assert known == [200, 404, 200]
        assert client.get("/v1/labels/t01").json()["hidden"] is False


def test_each_request_sees_one_model_while_labels_change(fitted, tmp_path):
    """Two labels that are added and hidden together are found together or not at all, and no change is lost."""
    seen, done = set(), threading.Event()
    with serving_labels(fitted, tmp_path) as client:

        def ask():
            with httpx.Client(base_url=client.base_url, timeout=60) as own:
                while not done.is_set():
                    found = found_in(own)
                    assert ("twin1" in found) == ("twin2" in found)
                    assert len(found) == 20
                    seen.add("twin1" in found)

        def change(number):
            with httpx.Client(base_url=client.base_url, timeout=60) as own:
                for turn in range(4):
                    own.put(
                        f"/v1/labels/own{number}-{turn}", json={"texts": [f"topic{number}word1"]}
                    ).raise_for_status()

        twins = {"labels": [{"label": f"twin{number}", "texts": [TEXT] * 5} for number in (1, 2)]}
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            asking = [pool.submit(ask) for _ in range(2)]
            changing = [pool.submit(change, number) for number in range(2)]
            while seen != {True} and not any(each.done() for each in asking):
                seen.clear()
                client.put("/v1/labels", json=twins).raise_for_status()
                time.sleep(0.01)
            for each in changing:
                each.result()
            done.set()
            for each in asking:
                each.result()
        added = {f"own{number}-{turn}" for number in range(2) for turn in range(4)}
        listed = client.get("/v1/labels?query=own").json()["labels"]
        assert added == {each["label"] for each in listed}
        assert client.get("/v1/model").json()["changes"] == 10


# The page


def test_the_page_on_classification_runs(fitted, tmp_path):
    """Its Python, with texts of topics for those of books."""
    page = (Path(__file__).parent.parent / "docs" / "classification.md").read_text()
    texts, labels = topic_texts(200)
    words = "a history of lighthouses, offshore wind power: a text, another "
    names = {
        "texts": [words + text for text in texts], "labels": [[*each, "p1234"] for each in labels],
        "test_texts": texts[:20], "test_labels": labels[:20], "text": words, "children_books": ["t01", "t02"],
    }  # fmt: skip
    with contextlib.chdir(tmp_path):
        for code in re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S):
            exec(compile(code, "classification.md", "exec"), names)
        assert bt.Classifier.load("runs/subjects").labels[-1] == "t19"
    assert names["subjects"].labels[-2:] == ["p9999", "p9998"]
    assert "p1234" not in set(names["subjects"].predict(words, m=30)["label"])


def test_a_document_is_listed_once_where_its_products_cancel():
    """1 - 1 + 1 passes through 0, for every row of the index."""
    rows = 4
    starts, entries = np.arange(0, 3 * rows + 1, rows), np.tile(np.arange(rows), 3)
    values = np.repeat(np.array([1, -1, 1], np.float16), rows).view(np.uint16)
    similarity, touched = np.full(rows, np.nan, np.float32), np.full(rows + 1, -1)
    document = np.arange(3, dtype=np.int32), np.ones(3, np.float32)
    found = compiled_classify._similar(*document, starts, entries, values, 1000, similarity, touched)
    assert touched[:found].tolist() == list(range(rows))
    assert similarity.tolist() == [1.0] * rows

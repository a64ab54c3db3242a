"""The search of a classifier's model against plain Python, and the weights of its parts."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from topics import random_matrix, topic_texts

from beamtree.classify.encoder import Encoder
from beamtree.classify.label_tree import forest
from beamtree.classify.linear import Linear, weight_matrix
from beamtree.classify.matrix import empty, from_any, from_entries
from beamtree.classify.model import Index, LabelModel, Weights, train
from beamtree.classify.part_weights import choose_weights
from beamtree.classify.text import TextFeatures
from beamtree.kernels import compiled_classify, compiled_shared


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


def test_a_search_that_fails_leaves_nothing_behind(topic_classifier, monkeypatch):
    x = topic_classifier.features_of(topic_texts(1, seed=1)[0])
    expected = topic_classifier.find(x)[1]
    search = compiled_classify.search

    def fails(*args):
        search(*args)
        args[-5][0][:] = 7.0  # totals of labels
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(compiled_classify, "search", fails)
        with pytest.raises(MemoryError):
            topic_classifier.find(x)
    assert np.array_equal(topic_classifier.find(x)[1], expected)


def test_a_wide_beam_finds_what_scoring_all_labels_finds(topic_classifier):
    texts, _ = topic_texts(40, seed=1)
    x = topic_classifier.features_of(texts)
    model = replace(
        topic_classifier.model, weights=Weights(0.5, 0.1, neighbours=600, budget=10**9)
    )  # among equal ones any is nearest
    found, scores = model.search(x, 5, beam_size=1000)
    total = sum(model.parts(x).values())
    assert np.allclose(scores, -np.sort(-total, axis=1)[:, :5], atol=1e-3)
    assert np.allclose(np.take_along_axis(total, found, 1), scores, atol=1e-3)


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

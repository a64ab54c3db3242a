"""Metrics of labels against plain loops."""

import math

import numpy as np

from beamtree.classify.documents import relevant_labels
from beamtree.classify.metrics import label_metrics, precisions, propensities
from beamtree.data import Ids


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

"""Comparisons of classifiers: what other packages are given, and how rows are chosen, measured and left out."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_matrix
from topics import plain_features, random_matrix, topic_texts

from beamtree.classify.documents import open_documents
from beamtree.research.label_comparison import (
    OURS,
    PeerRow,
    Sets,
    compare_labels,
    gains,
    sparse,
    strongest_first,
    why_missing,
)
from beamtree.research.label_peers import knn


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

    weak = PeerRow("numpy", train, train, (1.0,))
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

    rows = {
        "broken": PeerRow("numpy", fail, fail, (1.0,)),
        "right": PeerRow("numpy", train, train, (1.0,), beams=False),
    }
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


def test_few_documents_can_be_compared():
    train, test = (
        open_documents(
            pl.DataFrame({"text": ["red car", "blue sky"] * n, "labels": [["r"], ["b"]] * n}), needs_labels=True
        )
        for n in (3, 1)
    )
    results = compare_labels(Sets.of(train, test), [OURS, "knn"], [1], lambda line: None)
    assert [result.values[:, 0].tolist() for result in results] == [[1, 1]] * 2


def test_a_comparison_needs_a_test_document_with_a_label():
    train, test = (open_documents(np.eye(3), labels, needs_labels=True) for labels in ([[0], [1], [2]], [[], [], []]))
    with pytest.raises(ValueError, match="no test document has a label"):
        Sets.of(train, test)

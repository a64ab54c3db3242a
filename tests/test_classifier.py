"""The classifier that people use: fit, predict, evaluate, explain, save, and labels that are added."""

import contextlib
import math
import re
import warnings
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from topics import topic_texts

import beamtree as bt
from beamtree.classify.encoder import Encoder
from beamtree.classify.model import OF_GROUPS, Weights
from beamtree.classify.text import TextFeatures


def test_several_threads_and_one_find_the_same(topic_classifier):
    texts, _ = topic_texts(50, seed=2)
    together = topic_classifier.predict(texts)
    one_by_one = pl.concat(
        [topic_classifier.predict(text).with_columns(document=row) for row, text in enumerate(texts)]
    )
    assert together.equals(one_by_one.cast(together.schema))


def test_it_learns_and_gives_labels_back(topic_classifier):
    texts, labels = topic_texts(200, seed=3)
    evaluation = topic_classifier.evaluate(texts, labels)
    assert evaluation["precision", 1] > 0.95
    assert evaluation["recall", 3] > 0.95
    assert "200 documents" in str(evaluation)
    frame = topic_classifier.predict(texts[:2], m=3)
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


def test_saved_and_loaded_it_answers_the_same(topic_classifier, tmp_path):
    texts, labels = topic_texts(30, seed=4)
    topic_classifier.save(tmp_path / "run")
    loaded = bt.Classifier.load(tmp_path / "run")
    assert loaded.predict(texts).equals(topic_classifier.predict(texts))
    small = bt.Classifier(frame="pandas").fit(texts, labels, verbose=False)
    small.save(tmp_path / "small")
    assert type(bt.Classifier.load(tmp_path / "small").predict(texts)).__module__.startswith("pandas")
    assert loaded.evaluate(texts, labels)["psp", 5] == topic_classifier.evaluate(texts, labels)["psp", 5]
    topic_classifier.save(tmp_path / "run")  # again, over the first
    (tmp_path / "run" / "labels.txt").write_text("t00\n")
    with pytest.raises(ValueError, match=r"labels.txt is damaged"):
        bt.Classifier.load(tmp_path / "run")
    with pytest.raises(ValueError, match="is not a classifier"):
        bt.Classifier.load(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ValueError, match="choose another folder"):
        topic_classifier.save(tmp_path / "other")


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


def test_labels_of_a_matrix_that_are_not_known_are_never_found(topic_classifier):
    texts, _ = topic_texts(5, seed=7)
    others = np.ones((5, 3))  # labels 0, 1 and 2, which this classifier of t00 … t19 does not have
    assert topic_classifier.evaluate(texts, others, m=20)["recall", 20] == 0


def test_every_document_gets_m_labels_that_are_allowed(topic_classifier):
    texts, _ = topic_texts(30, seed=5)
    for allowed in (["t01"], ["t01", "t02", "t03"], [f"t{i:02}" for i in range(15)]):
        for m in (1, 3, 10):
            frame = topic_classifier.predict(texts, m=m, allowed=allowed, beam_size=1)
            assert set(frame["label"]) <= set(allowed)
            assert frame.group_by("document").len()["len"].to_list() == [min(m, len(allowed))] * 30
    frame = topic_classifier.predict(texts, m=20, exclude=["t01", "t02"], beam_size=1)
    assert not {"t01", "t02"} & set(frame["label"])
    assert len(frame) == 30 * 18
    assert set(topic_classifier.predict(texts, allowed=["x", "t01"], m=3)["label"]) == {"t01"}
    nothing = topic_classifier.predict(texts, allowed=["x"])  # as a recommender does
    assert nothing.is_empty()
    assert nothing.schema == frame.schema


def test_documents_without_a_known_word_get_frequent_labels(topic_classifier):
    with pytest.warns(UserWarning, match="1 of 2 documents have no known word"):
        frame = topic_classifier.predict(["nothing here", "topic3word1 topic3word2"], m=2)
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


def test_an_explanation_adds_up_to_the_score(topic_classifier):
    texts, labels = topic_texts(5, seed=6)
    for text, own in zip(texts, labels, strict=True):
        weights = Weights(0.5, 0.2, neighbours=600, budget=10**9, encoder=0.3)
        encoder = Encoder(
            *(np.full(shape, 0.1, np.float32) for shape in ((topic_classifier.model.num_features, 2), (20, 2), 20))
        )
        topic_classifier._model, kept = (
            replace(topic_classifier.model, weights=weights, encoder=encoder),
            topic_classifier._model,
        )
        try:
            explained = topic_classifier.explain(text, own[0])
            frame = topic_classifier.predict(text, m=5, beam_size=100)
        finally:
            topic_classifier._model = kept
        score = frame.filter(pl.col("label") == own[0])["score"].item()
        assert math.isclose(explained["score"], score, abs_tol=2e-3)
        assert math.isclose(sum(explained["parts"].values()), explained["score"], rel_tol=1e-6)
        assert any(own[0][1:].lstrip("0") in str(each["feature"]) for each in explained["features"])


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


def test_the_page_on_classification_runs(topic_classifier, tmp_path):
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


def test_a_classifier_of_an_earlier_version_is_read(topic_classifier, tmp_path, monkeypatch):
    def as_before(options):
        named = asdict(options)
        return {"cost": named.pop("C"), "least": named.pop("min_weight"), **named}

    monkeypatch.setattr("beamtree.classify.classifier.asdict", as_before)
    topic_classifier.save(tmp_path / "old")
    assert bt.Classifier.load(tmp_path / "old").options == topic_classifier.options

"""Live labels: their journal, and a classifier that was trained again."""

import contextlib
import warnings

import numpy as np
import pytest
from topics import TEXT

import beamtree as bt
from beamtree.live import Journal
from beamtree.live.journal import compact
from beamtree.live.labels import LiveClassifier


def test_a_journal_of_labels_is_compacted_and_those_of_items_are_refused(topic_classifier, tmp_path):
    journal = Journal(tmp_path)
    live = LiveClassifier(topic_classifier, journal)
    for number in range(5):
        live.put_labels({"b": {"name": f"topic{number}word1"}, "a": {"documents": [TEXT]}})
        live.remove_labels(["a", "t03"])
    entries = compact(journal.entries)
    assert [entry.get("label") for entry in entries] == [None, "b", "a", "t03"]
    kept, journal.entries = journal.entries, entries
    again = LiveClassifier(topic_classifier, journal).snapshot
    assert again.version == live.snapshot.version == len(kept)
    arrays = again.classifier.model.arrays()
    assert all(np.array_equal(each, arrays[name]) for name, each in live.snapshot.classifier.model.arrays().items())
    assert again.classifier.labels[-2:] == ["b", "a"]
    journal.append({"kind": "add", "item": "i1"})
    with pytest.raises(ValueError, match="unknown kind of change 'add'"):
        LiveClassifier(topic_classifier, journal)
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

"""Documents and labels from frames, files and lists, and what is wrong with them."""

import numpy as np
import polars as pl
import pytest
from topics import topic_texts

import beamtree as bt


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

"""The commands on classification: what they say, write and refuse."""

import json
from importlib.util import find_spec

import polars as pl
import pytest
from command import beamtree


def test_commands(topics_folder):
    done = beamtree(
        "classify", "evaluate", "runs/topics", "test.parquet", "--json", "scores.json", folder=topics_folder
    )
    assert "50 documents" in done.stdout
    scores = {
        (each["metric"], each["m"]): each["value"] for each in json.loads((topics_folder / "scores.json").read_text())
    }
    assert scores["precision", 1] > 0.9
    text = "topic3word1 topic3word2 topic3word3"
    done = beamtree("classify", "predict", "runs/topics", "--text", text, "--m", "2", "--explain", folder=topics_folder)
    assert "t03" in done.stdout
    assert "Topic 03" in done.stdout
    assert '"parts"' in done.stdout
    (topics_folder / "ids.txt").write_text("t05\n")
    done = beamtree("classify", "predict", "runs/topics", "--text", text, "--allowed", "ids.txt", folder=topics_folder)
    assert "t05" in done.stdout
    assert "t03" not in done.stdout
    beamtree(
        "classify", "predict", "runs/topics", "--input", "test.parquet", "--output", "out.csv", folder=topics_folder
    )
    assert pl.read_csv(topics_folder / "out.csv").columns == ["document", "rank", "label", "name", "score"]
    assert len(pl.read_csv(topics_folder / "out.csv")) == 250


def test_the_command_compares_and_names_what_is_missing(topics_folder):
    done = beamtree(
        "classify", "compare", "train.parquet", "test.parquet", "--beam-sizes", "1,10", "--json", "rows.json",
        "--rows", "beamtree,beamtree-one-tree,beamtree-no-tree,knn,omikuji-parabel", folder=topics_folder,
    )  # fmt: skip
    if find_spec("omikuji") is None:
        assert "Left out: omikuji-parabel (omikuji is not installed)" in done.stderr
    cells = json.loads((topics_folder / "rows.json").read_text())
    assert [(each["row"], each["k"]) for each in cells[:6]] == [
        ("beamtree", 1), ("beamtree", 10), ("beamtree-one-tree", 1), ("beamtree-one-tree", 10),
        ("beamtree-no-tree", None), ("knn", None),
    ]  # fmt: skip
    assert all(each["p1"] > 90 and 0 <= each["p1_error"] < 10 for each in cells)
    assert "beamtree over knn at k = 10, P@1, P@3 and P@5: " in done.stdout


def test_one_document_has_no_interval(topics_folder):
    pl.read_parquet(topics_folder / "test.parquet").head(1).write_parquet(topics_folder / "one.parquet")
    words = ["compare", "train.parquet", "one.parquet", "--rows", "beamtree,knn", "--beam-sizes", "10"]
    done = beamtree("classify", *words, "--json", "one.json", folder=topics_folder)
    cells = json.loads((topics_folder / "one.json").read_text())
    assert [(each["row"], each["p1"], each["p1_error"]) for each in cells] == [
        ("beamtree", 100.0, None), ("knn", 100.0, None),
    ]  # fmt: skip
    assert "beamtree over knn at k = 10, P@1, P@3 and P@5: +0.00, " in done.stdout
    assert "±" not in done.stdout.replace("± half of the 95 %", "")
    assert "Warning" not in done.stderr


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
def test_commands_say_what_is_wrong_in_one_line(topics_folder, words, message):
    done = beamtree("classify", *words, folder=topics_folder, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [["inspect"], ["export", "--out", "search.pt2"], ["serve"]])
def test_commands_for_runs_say_that_this_is_a_classifier(topics_folder, words):
    done = beamtree(words[0], "runs/topics", *words[1:], folder=topics_folder, check=False)
    assert done.returncode == 2
    assert "runs/topics is a classifier of documents: see `beamtree classify --help`" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_check_reads_a_classifier(topics_folder):
    assert "OK       the classifier in runs/topics" in beamtree("check", "runs/topics", folder=topics_folder).stdout

"""Numbers and times in text: plain digits only, wherever they are read."""

import math

import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree
from hypothesis import given
from hypothesis import strategies as st

import beamtree as bt
from beamtree.classify.matrix import from_dicts
from beamtree.cli.options import parse_beam
from beamtree.data.contexts import as_number
from beamtree.data.times import as_time
from beamtree.errors import as_float, is_number, parse_int, parse_number
from beamtree.ingest.columns import LogColumns
from beamtree.ingest.documents import read_documents
from beamtree.ingest.event_weights import event_weights
from beamtree.ingest.times import TimeScale
from beamtree.live import LiveModel
from beamtree.query import parse_rules

WRONG = ["1_000", "١٢", "１２", "²", "0x10", "nan", "inf", "-inf", "1e", "1 0", "--1", "1.2.3", ".", "", "9" * 401]


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:9])
def test_what_is_no_number_is_one_nowhere(text):
    for parse in (parse_number, parse_int, as_float, as_time):
        with pytest.raises(ValueError, match="is not a"):
            parse(text)
    assert TimeScale(dates=False).parse(text) is None
    assert as_number(text) is None
    with pytest.raises(ValueError, match="a weight is a number"):
        event_weights(["kind"], LogColumns(weight="kind", kinds=f"buy={text}"))
    with pytest.raises(ValueError, match="give the lowest weight"):
        event_weights(["stars"], LogColumns(weight="stars", target=text))
    with pytest.raises(ValueError, match="is not one of 0"):
        from_dicts([{text: 1.0}], 2000)
    with pytest.raises(ValueError, match="is not a place"):
        parse_rules({"pins": {text[:9].replace("9", "x"): "a"}})


@given(st.one_of(st.integers(-(10**18), 10**18), st.floats(allow_nan=False, allow_infinity=False)))
def test_a_number_is_read_as_it_was_written(number):
    assert parse_number(f" {number}\n") == number
    assert is_number(str(number))
    assert as_float(number) == as_float(str(number)) == float(number)


def test_whole_numbers_have_no_fraction():
    assert parse_int("+12") == 12
    with pytest.raises(ValueError, match="not a whole number"):
        parse_int("12.5")


@pytest.mark.parametrize("number", ["1_0", "١٢", "１２"])
def test_commands_take_plain_digits(tmp_path, monkeypatch, number):
    """In options, in lists, and in variables of the environment."""
    for words in (
        ["simulate", "--out", "x.parquet", "--users", number],
        ["train", "none", "--out", "run", f"--lr={number}"],
        ["evaluate", "none", "--m", f"5,{number}"],
        ["paper", "tableA2", "--bias", number],
    ):
        done = beamtree(*words, folder=tmp_path, check=False)
        assert done.returncode == 2
        assert number in done.stderr
        assert len(done.stderr.splitlines()) == 1
    with pytest.raises(ValueError, match="give a whole number"):
        parse_beam(f"5,{number}")
    monkeypatch.setenv("BEAMTREE_HTTP_PORT", number)
    done = beamtree("serve", "none", folder=tmp_path, check=False)
    assert (done.returncode, f"{number!r}: this is not a number" in done.stderr) == (2, True)


def test_files_of_features_have_plain_digits(tmp_path):
    path = tmp_path / "documents.txt"
    for line in ("1_0 0:1", "0 1_0:1", "0 0:1_0", "٠ 0:1", "0 ١:1", "0 0:١"):
        path.write_text(f"1 20 20\n{line}\n", encoding="utf-8")
        with pytest.raises(ValueError, match="line 2 is not"):
            read_documents(path, needs_labels=True)
    path.write_text("² 20 20\n0 0:1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no column looks like texts"):
        read_documents(path, needs_labels=True)


def test_logs_drop_rows_whose_time_has_other_digits(tmp_path):
    rows = [(f"u{number % 2}", f"i{number}", str(number)) for number in range(20)]
    rows += [("u0", "a", "1_000"), ("u1", "b", "١٢")]
    log = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    bt.prepare(log, tmp_path / "data")
    assert not {"a", "b"} & set(bt.load_data(tmp_path / "data").items.names)


def test_vectors_of_items_have_finite_numbers(shop):
    live = LiveModel(shop.model, vectors=torch.ones(60, 2))
    for number in (10**400, math.nan, math.inf, "1_0"):
        with pytest.raises(ValueError, match=r"too large|NaN or infinity|not a number"):
            live.update_items({"new": {"vector": [1.0, number]}})
    assert live.update_items({"new": {"vector": [1.0, 2]}}).new == 1


def test_a_feature_of_zero_is_none():
    rows = from_dicts([{"1": 0.0, "2": 1.0}, {"1": 0, "0": -0.0}, {"1": 1e-60}], 3)
    assert np.diff(rows.offsets).tolist() == [1, 0, 0]
    assert rows.columns.tolist() == [2]

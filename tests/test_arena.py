"""`benchmarks/arena.py`: from a file to a table of our rows beside published ones."""

import json
import sys

import polars as pl
import pytest
from sample_logs import shelf_log

import beamtree as bt
from benchmarks import arena


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["arena.py", *map(str, words)])
    arena.main()


def test_a_folder_like_lightgcns_is_measured_on_its_test_file(tmp_path, monkeypatch, capsys):
    log = shelf_log().with_columns(pl.all().str.slice(1).cast(int))
    is_test = pl.int_range(pl.len()).over("user") % 5 == 0
    for name, part in (("train", log.filter(~is_test)), ("test", log.filter(is_test))):
        rows = part.group_by("user", maintain_order=True).agg("item").rows()
        lines = (f"{user} {' '.join(map(str, items))}\n" for user, items in rows)
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    run(monkeypatch, "yelp2018", tmp_path, "--device", "cpu", "--json", tmp_path / "rows.json")
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (row["fitted"], row["seen"]) == ("all of train.txt", "left out")
    shop = bt.Recommender(steps=0, sequence=False).fit(tmp_path / "train.txt", split="pairs", verbose=False)
    test = tmp_path / "test.txt"
    found = shop.evaluate(20, metrics=("recall", "ndcg"), data=test, exclude_seen=True, beam_size=400)
    assert [row[metric] for metric in ("recall", "ndcg")] == [round(found[m, 20], 4) for m in ("recall", "ndcg")]
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if f"{row['recall']:.4f}" in line and "measured here" in line]
    assert len(lines) == 1
    assert "HILL" in shown


def test_any_other_log_is_measured_by_its_last_events(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(arena, "TUNED", ("rules",))
    shelf_log(users=60).write_parquet(tmp_path / "log.parquet")
    run(monkeypatch, tmp_path / "log.parquet", "--device", "cpu", "--json", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    names = ["beamtree, closed form", "beamtree, closed form, refitted", "rules"]
    assert [(row["row"], row["seen"]) for row in rows] == [(n, seen) for n in names for seen in ("left out", "kept")]
    assert {row["knows"] for row in rows} == {"order"}  # there are no times
    assert all(0 < row["ndcg"] < row["recall"] < 1 for row in rows)
    assert "log.parquet" in capsys.readouterr().out


def test_a_name_without_its_file_is_one_clear_line(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "beauty")
    assert "beauty needs a log: python benchmarks/arena.py beauty PATH" in capsys.readouterr().err

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


def split_log():
    """A log of integers, of which a fifth of each user's items is for testing."""
    log = shelf_log().with_columns(pl.all().str.slice(1).cast(int))
    is_test = pl.int_range(pl.len()).over("user") % 5 == 0
    return log.with_columns(split=pl.when(is_test).then(pl.lit("test")).otherwise(pl.lit("train")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lightgcn")
    split_log().write_parquet(folder / "log.parquet")
    arena.write_lines(folder / "log.parquet", folder)
    return folder


def test_a_split_log_becomes_lightgcns_files(folder):
    for split in ("train", "test"):
        lines = [line.split() for line in (folder / f"{split}.txt").read_text().splitlines()]
        pairs = [(int(user), int(item)) for user, *items in lines for item in items]
        assert sorted(pairs) == sorted(split_log().filter(split=split).select("user", "item").rows())


def test_a_folder_like_lightgcns_is_measured_on_its_test_file(folder, tmp_path, monkeypatch, capsys):
    run(monkeypatch, "yelp2018", folder, "--device", "cpu", "--json", tmp_path / "rows.json")
    row, exact = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (row["row"], row["fitted"], row["seen"]) == ("beamtree, closed form", "all of train.txt", "left out")
    assert (exact["row"], exact["detail"]) == ("beamtree, closed form, every item scored", True)
    shop = bt.Recommender(steps=0, sequence=False).fit(folder / "train.txt", split="pairs", verbose=False)
    for each, beam_size in ((row, 400), (exact, shop.model.tree.num_nodes)):
        test = folder / "test.txt"
        found = shop.evaluate(20, metrics=("recall", "ndcg"), data=test, exclude_seen=True, beam_size=beam_size)
        assert [each[metric] for metric in ("recall", "ndcg")] == [round(found[m, 20], 4) for m in ("recall", "ndcg")]
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if f"{row['recall']:.4f}" in line and "measured here" in line]
    assert lines
    assert "HILL" in shown


def test_a_row_for_each_part_and_others_of_the_file_stay(folder, monkeypatch, tmp_path):
    kept = {"row": "ours", "fitted": "all of train.txt", "knows": "", "seen": "left out", "recall": 0.9, "ndcg": 0.9}
    of_gpu = {**kept, "row": "on a GPU"}
    (tmp_path / "rows.json").write_text(json.dumps({"rows": [kept, of_gpu]}))
    words = ("--device", "cpu", "--json", tmp_path / "rows.json", "--name", "ours", "--parts")
    run(monkeypatch, folder / "log.parquet", *words)
    rows = {row["row"]: row for row in json.loads((tmp_path / "rows.json").read_text())["rows"]}
    assert [*rows][:3] == ["ours", "on a GPU", "ours, every item scored"]
    assert rows["on a GPU"] == of_gpu
    assert rows["ours"]["recall"] != 0.9
    details = {name for name, row in rows.items() if row.get("detail")}
    assert details == rows.keys() - {"ours", "on a GPU"}
    assert {"ours, without together", "ours, without graph", "ours, without factors"} < details


def test_seeds_are_averaged(folder, monkeypatch, tmp_path):
    def of_seed(path, m, seed, how, name, parts):
        about = {"row": name, "fitted": "all of train.txt", "knows": "", "seen": "left out"}
        return [about | {"recall": 0.1 * seed, "ndcg": 0.5}]

    monkeypatch.setattr(arena, "lightgcn", of_seed)
    run(monkeypatch, "yelp2018", folder, "--seeds", "3", "--name", "ours", "--json", tmp_path / "rows.json")
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (row["row"], row["recall"], row["ndcg"]) == ("ours", 0.1, 0.5)


def test_leaving_out_a_list_of_the_memory_leaves_the_others(folder):
    shop = bt.Recommender(steps=0, sequence=False, refit=False).fit(folder / "train.txt", split="pairs", verbose=False)
    scorer = shop.model.scorer
    weights = scorer.hyperparameters["weights"]
    lists = [name for name in ("together", "graph", "next", "follows") if weights.get(name)]
    assert scorer.part("memory").lists == len(lists) > 1
    for number, name in enumerate(lists):
        recency = arena.without(shop.model, name).scorer.part("memory").recency
        assert [bool(row.any()) for row in recency] == [other != number for other in range(len(lists))]
        assert bool(scorer.part("memory").recency.any(1).all())  # the model stays as it is
    (part,) = {name for name, weight in weights.items() if weight} - {*lists} - {"popularity", "repeats"}
    assert arena.without(shop.model, part).scorer.weight_of(part) == 0 != scorer.weight_of(part)


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


def test_means_of_several_seeds_show_how_they_differ(capsys):
    rows = [
        {"row": "ours", "fitted": "all", "knows": "", "seen": "kept", "recall": recall, "ndcg": 0.5}
        for recall in (0.1, 0.2, 0.33333)
    ]
    (row,) = arena.means(rows)
    assert (row["recall"], row["ndcg"]) == (0.2111, 0.5)
    assert capsys.readouterr().out == "ours, all, kept, 3 seeds: recall 0.2111 ± 0.1171, ndcg 0.5000 ± 0.0000\n"


def refused(monkeypatch, capsys, *words):
    with pytest.raises(SystemExit):
        run(monkeypatch, *words)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "error" in line)
    return line


def test_a_name_without_its_file_is_one_clear_line(monkeypatch, capsys):
    line = refused(monkeypatch, capsys, "beauty")
    assert "beauty needs a log: python benchmarks/arena.py beauty PATH" in line
    assert "there is no nowhere.parquet" in refused(monkeypatch, capsys, "beauty", "nowhere.parquet")


def test_a_log_that_is_not_split_as_its_arena_is_one_clear_line(folder, tmp_path, monkeypatch, capsys):
    for name in ("beauty", "movielens-1m"):
        for path in (folder, folder / "log.parquet"):
            line = refused(monkeypatch, capsys, name, path)
            assert f"{path} does not fit: {name} is measured by the last events of every user" in line
    shelf_log(users=60).write_parquet(tmp_path / "log.parquet")
    for path in (tmp_path, tmp_path / "log.parquet"):
        line = refused(monkeypatch, capsys, "yelp2018", path)
        assert f"{path} does not fit: yelp2018 is measured by LightGCN's split: give a folder with train.txt" in line
    assert "--parts is for a log that" in refused(monkeypatch, capsys, tmp_path / "log.parquet", "--parts")


def test_another_split_than_train_and_test_is_one_clear_line(tmp_path):
    split_log().with_columns(split=pl.lit("val")).write_parquet(tmp_path / "log.parquet")
    with pytest.raises(SystemExit, match=r"the column split has val: give train and test$"):
        arena.write_lines(tmp_path / "log.parquet", tmp_path)

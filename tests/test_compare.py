"""Comparisons: every row on the same users, gone on with, and tested in pairs."""

import json
import time
from dataclasses import replace
from functools import wraps

import polars as pl
import pytest
import torch
from command import beamtree

import beamtree as bt
from beamtree.cli.compare import DEFAULT_ROWS
from beamtree.evaluate.metrics import few_users
from beamtree.research.compare import ROWS, Experiment, Result, compare, markdown, records, table
from beamtree.research.compare.experiment import read_seconds, timed
from beamtree.research.compare.report import COSTS, by_setting, load_result, save_result, score_grid, split_settings
from beamtree.research.compare.rows import STRONG
from beamtree.research.paper import real_data
from beamtree.storage.runs import read_run
from beamtree.train import constant
from beamtree.train.recipes import RECIPES


def make_experiment(data, folder, **more):
    settings = {"beam_size": 8, "batch_size": 50, "steps": 6, "m": (5, 10), "test_beam": 20, **more}
    return Experiment(data, bt.cluster_tree(data), folder, **settings)


@pytest.fixture(scope="module")
def compared(market_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    lines = []
    experiment = make_experiment(market_data, folder, on_message=lines.append)
    return experiment, compare(experiment, list(ROWS)), lines


@pytest.mark.extended
def test_every_row_is_measured_on_the_same_users(compared, market_data):
    _, results, _ = compared
    assert [result.row for result in results] == list(ROWS)
    for result in results:
        assert result.values.shape == (len(market_data.test), 2, 3)
        assert bool(((result.values >= 0) & (result.values <= 1)).all())
        assert result.ms_per_query > 0
        assert result.num_bytes > 0


def test_methods_since_otm_are_rows_of_their_own(market_data, tmp_path):
    names = ["otm-margin", "otm-level-weights", "dtr"]
    results = compare(make_experiment(market_data, tmp_path), names)
    assert [result.row for result in results] == names
    assert all(ROWS[name].method == read_run(tmp_path / name)["method"] == name for name in names)
    assert all(bool((result.values[:, 1, 1] > 0).any()) for result in results)
    assert not {*names} & {*DEFAULT_ROWS.split(","), *STRONG}  # they are run where they are asked for


@pytest.mark.extended
def test_tree_rows_share_the_tree_that_jtm_learned(compared):
    experiment, _, _ = compared
    models = [bt.load_model(experiment.folder / row) for row in ("hsm", "plt", "tdm", "otm", "jtm")]
    assert len({model.tree.fingerprint() for model in models}) == 1


@pytest.mark.extended
def test_the_rows_of_a_comparison_are_runs_that_other_commands_read(compared):
    experiment, results, _ = compared
    found = beamtree("evaluate", "otm", "--beam-size", "20", "--m", "10", folder=experiment.folder)
    recall = next(
        e.value for e in table(results) if (e.row, e.metric, e.m) == ("otm", "recall", 10)
    )  # with what was seen
    assert f"{recall * 100:.2f}" in found.stdout


@pytest.mark.extended
def test_the_two_searches_of_the_dnn_find_about_the_same(compared):
    _, results, _ = compared
    recalls = {result.row: float(result.values[:, 1, 1].mean()) for result in results}
    assert recalls["youtube-dnn-hnsw"] == pytest.approx(recalls["youtube-dnn"], abs=0.02)


@pytest.mark.extended
def test_what_is_finished_is_not_done_again(compared, monkeypatch):
    experiment, results, _ = compared

    def unmade(row):
        return replace(row, make=wraps(row.make)(lambda name, *_: pytest.fail(f"{name} is made again")))

    rows = {name: unmade(row) for name, row in ROWS.items()}
    monkeypatch.setattr("beamtree.research.compare.runner.ROWS", rows)
    again = compare(experiment, list(ROWS))
    for one, other in zip(results, again, strict=True):
        assert torch.equal(one.values, other.values)


@pytest.mark.extended
def test_other_settings_in_the_same_folder_are_refused(compared, market_data, tmp_path):
    experiment, _, _ = compared
    with pytest.raises(ValueError, match="was made with steps=6, not 7: compare into another folder"):
        compare(make_experiment(market_data, experiment.folder, steps=7), ["popularity", "jtm"])
    compare(make_experiment(market_data, tmp_path), ["otm", "youtube-dnn"])
    for row in ("otm", "youtube-dnn"):  # a model without its result is not trusted either
        (tmp_path / f"{row}.json").unlink()
        with pytest.raises(ValueError, match="was made with seed=0, not 1"):
            compare(make_experiment(market_data, tmp_path, seed=1), [row])
    with pytest.raises(ValueError, match="was made with steps=6, not 9"):
        compare(make_experiment(market_data, tmp_path, steps=9), ["otm-brute-force"])


@pytest.mark.extended
def test_rows_are_added_and_other_cuts_measured_without_training_again(compared, market_data):
    experiment, results, _ = compared
    steps = []
    wider = make_experiment(market_data, experiment.folder, m=(5, 10, 15), on_steps=steps.append)
    again = {result.row: result for result in compare(wider, ["popularity", "otm"])}  # jtm is there, though not named
    assert not steps
    assert torch.equal(again["otm"].values[:, :2], results[list(ROWS).index("otm")].values)
    compare(experiment, ["otm", "popularity"])  # as it was, for the tests that follow


def test_a_rows_steps_are_those_asked_for(market_data, tmp_path):
    steps = []
    compare(make_experiment(market_data, tmp_path, batch_size=7, steps=2, on_steps=steps.append), ["hsm"])
    assert sum(steps) == 2


def test_the_time_of_training_adds_up_over_stops(tmp_path):
    for _ in range(2):
        with timed(tmp_path):
            time.sleep(0.05)
    assert read_seconds(tmp_path) >= 0.1


def test_a_row_that_was_stopped_goes_on_and_ends_the_same(market_data, tmp_path):
    whole = compare(make_experiment(market_data, tmp_path / "whole"), ["otm"])[0]

    class StopError(Exception):
        pass

    def advance(steps):
        if next(countdown) == 0:
            raise StopError

    countdown = iter(range(3, -1, -1))
    with pytest.raises(StopError):
        compare(make_experiment(market_data, tmp_path / "stopped", on_steps=advance), ["otm"])
    assert not (tmp_path / "stopped" / "otm.json").exists()
    again = compare(make_experiment(market_data, tmp_path / "stopped"), ["otm"])[0]
    assert torch.equal(again.values, whole.values)


def test_unknown_rows_and_nobody_to_test_are_told(market_data, tmp_path):
    with pytest.raises(ValueError, match="row 'otn' is unknown: choose from"):
        compare(make_experiment(market_data, tmp_path), ["otn"])
    with pytest.raises(ValueError, match="m=10 with a beam of 8"):
        compare(make_experiment(market_data, tmp_path, test_beam=8), ["otm"])


def test_wrong_words_end_in_one_line_before_any_work(market_folder, market_data, tmp_path):
    bt.prepare([market_folder / "market.parquet"], tmp_path / "unjudged", val_users=0)
    for words, said in (
        (["--recipe", "soup"], "recipe 'soup' is unknown"),
        (["--rows", ","], "no row to compare"),
        (["--m", "30", "--test-beam", "20"], "--m 30 with --test-beam 20"),
        (["--tree", "none.parquet"], "none.parquet does not exist"),
    ):
        failed = beamtree("compare", str(market_data.folder), *words, folder=tmp_path, check=False)
        assert failed.returncode == 2
        assert said in failed.stderr
        assert failed.stderr.count("\n") == 1
    small = ["--steps", "1", "--beam-size", "4", "--m", "5"]
    failed = beamtree("compare", "unjudged", "--rows", "otm-joint", *small, folder=tmp_path, check=False)
    assert "otm-joint judges new trees by validation users" in failed.stderr


def result(row, values, *more):
    metrics = ("precision", "recall", "f1")
    return Result(row, torch.as_tensor(values).view(-1, 1, 3), (10,), metrics, 1.0, 2.0, 3_000_000, (), "cpu", *more)


def test_the_table_marks_the_best_and_tests_users_in_pairs():
    generator = torch.Generator().manual_seed(0)
    base = torch.rand(50, 3, generator=generator) * 0.5
    better = base + 0.1 + 0.01 * torch.rand(50, 3, generator=generator)  # little, but for every user
    found = {(e.row, e.metric): e for e in table([result("otm", base), result("als", better)])}
    assert found["als", "recall"].best
    assert not found["otm", "recall"].best
    assert found["otm", "recall"].p is None
    assert found["als", "recall"].p < 1e-6
    text = markdown([result("otm", base), result("als", better)])
    assert "| als | **" in text
    assert "\\*\\*" in text


def test_the_table_says_who_was_measured(market_data, tmp_path):
    some = torch.rand(21, 3, generator=torch.Generator().manual_seed(0))
    assert markdown([result("otm", some, False, 60, True)]).startswith("21 of 60 users, seen items left out.\n\n|")
    assert markdown([result("otm", some)]).startswith("21 users, seen items left in.\n\n|")
    experiment = make_experiment(market_data, tmp_path)
    model = bt.TreeModel(experiment.tree, bt.DeepScorer(experiment.tree.num_nodes))
    for _ in range(2):  # the second is read
        users = [cell for cell in records(compare(experiment, ["popularity"])) if cell["metric"] == "users"]
        assert {cell["exclude_seen"] for cell in users} == {True, False}
        for cell in users:
            found = bt.evaluate(model, market_data.test, m=5, beam_size=5, exclude_seen=cell["exclude_seen"])
            assert (cell["value"], cell["asked"]) == (found.users, len(market_data.test))


def both(row, value, unseen, has_tree):
    """A row that finds so much with seen items and without them."""
    one, other = (replace(result(row, [[0.0, share, 0.0]] * 4), has_tree=has_tree) for share in (value, unseen))
    return replace(one, unseen=replace(other, exclude_seen=True))


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        ([both("otm", 0.9, 0.1, True), both("als", 0.2, 0.3, False)], True),
        ([both("otm", 0.1, 0.9, True), both("als", 0.3, 0.2, False), both("ease", 0.1, 0.25, False)], False),
        ([both("otm", 0.1, 0.9, True), both("plt", 0.1, 0.2, True)], True),
        ([both("otm", 0.1, 0.9, True), both("als", 0.3, 0.3, False)], False),
    ],
    ids=["others find more without", "others find more with", "trees alone", "a tie"],
)
def test_the_setting_that_is_best_for_the_others_comes_first(rows, first):
    cells = records(rows)
    assert [cell["exclude_seen"] for cell in cells if cell["metric"] == "users"] == [first, not first]
    assert [cell["exclude_seen"] for cell in cells if "m" in cell] == [first] * 3 * len(rows) + [not first] * 3 * len(
        rows
    )
    text, seen = markdown(rows), ["seen items left in", "seen items left out"]
    assert text.index(seen[first]) < text.index(seen[not first])
    grids = [score_grid(cells) for cells in split_settings(cells)]
    assert all([line[1] for line in grid.lines[: len(rows)]] == [each.row for each in rows] for grid in grids)


def item_log(items_of):
    """Forty users of twelve events each."""
    rows = [(f"u{user:02}", f"i{item}", time) for user in range(40) for time, item in enumerate(items_of(user))]
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


def compare_log(log, folder):
    folder.mkdir(exist_ok=True)
    bt.prepare(log, folder / "data", val_users=5, test_users=10)
    data, made = bt.load_data(folder / "data"), []

    def item_cf(name, row, experiment, note):
        made.append(name)
        return ROWS["item-cf"].make("item-cf", row, experiment, note)

    experiment = make_experiment(data, folder / "out", m=(5,))
    results = compare(experiment, ["mine"], {"mine": replace(ROWS["item-cf"], make=item_cf)})
    assert made == ["mine"]  # it was fitted once for both
    return results


def test_the_first_setting_depends_on_whether_users_come_back(tmp_path):
    """Item-CF recommends what a user has: that is right where users come back to it, and wrong where they do not."""
    returning = compare_log(
        item_log(lambda user: [(user % 4) * 3 + time % 3 for time in range(11)] + [20]), tmp_path / "a"
    )
    new_only = compare_log(item_log(lambda user: [(user % 4) * 12 + time for time in range(12)]), tmp_path / "b")
    assert [rows[0].exclude_seen for rows in by_setting(returning)] == [False, True]
    assert [rows[0].exclude_seen for rows in by_setting(new_only)] == [True, False]
    assert new_only[0].unseen.evaluation["recall", 5] > new_only[0].evaluation["recall", 5]


def test_one_setting_is_left_where_nobody_chose_anything_new(tmp_path):
    results = compare_log(item_log(lambda user: [user % 4 * 3 + time % 3 for time in range(12)]), tmp_path)
    assert results[0].unseen is None
    assert [cell["exclude_seen"] for cell in records(results) if cell["metric"] == "users"] == [False]


def test_a_result_comes_back_from_its_file_to_the_last_digit(tmp_path):
    generator = torch.Generator().manual_seed(0)
    values, unseen = (torch.rand(50, 3, generator=generator) / 3 for _ in range(2))
    first = replace(result("als", values), unseen=result("als", unseen, False, None, True))
    save_result(tmp_path, first, {"seed": 1}, {"m": [10]})
    read = load_result(tmp_path, "als", {"seed": 1}, {"m": [10]})
    assert torch.equal(read.values, first.values)
    assert torch.equal(read.unseen.values, first.unseen.values)
    assert read.unseen.exclude_seen
    assert load_result(tmp_path, "als", {"seed": 1}, {"m": [20]}) is None  # to be measured again
    with pytest.raises(ValueError, match="made with seed=1, not 2"):
        load_result(tmp_path, "als", {"seed": 2}, {"m": [10]})


def test_the_command_compares_and_writes_tables_and_a_picture(market_data, tmp_path):
    words = [
        "compare",
        str(market_data.folder),
        "--rows",
        "popularity,otm",
        "--steps",
        "3",
        "--batch-size",
        "50",
    ]
    words += ["--beam-size", "8", "--test-beam", "20", "--m", "5,10", "--out", "out", "--json", "cells.json"]
    found = beamtree(*words, folder=tmp_path)
    assert "recall" in found.stdout
    assert "ms per query" in found.stdout
    assert {path.name for path in (tmp_path / "out").glob("table.*")} == {"table.json", "table.md", "table.png"}
    cells = json.loads((tmp_path / "cells.json").read_text())
    assert {("otm", cost) for cost in COSTS} <= {(cell.get("row"), cell["metric"]) for cell in cells}
    text = (tmp_path / "out" / "table.md").read_text()
    for shown in (found.stdout, text):
        assert f"{len(market_data.test)} users, seen items left in" in shown
        assert "users, seen items left out" in shown
    first = "out" if cells[0]["exclude_seen"] else "in"
    assert text.partition(".")[0].endswith(f"users, seen items left {first}")
    assert len([cell for cell in cells if cell["metric"] == "recall"]) == 8
    assert [cell["warning"] for cell in cells if cell["metric"] == "users"] == [few_users(len(market_data.test))] * 2
    assert f"note: {few_users(len(market_data.test))}" in found.stderr.splitlines()
    assert beamtree("compare", str(market_data.folder), "--rows", "x", folder=tmp_path, check=False).returncode == 2


def test_trees_are_built_written_and_read_by_commands(market_data, tmp_path):
    data, items = str(market_data.folder), str(tmp_path / "items.parquet")
    names = bt.load_data(data).items.names
    pl.DataFrame({"item": names, "category": [f"shelf {place % 7}" for place in range(len(names))]}).write_parquet(
        items
    )
    beamtree("tree", data, "--tree", "category", "--items", items, "--out", "tree.parquet", folder=tmp_path)
    beamtree("tree", data, "--tree", "cluster", "--items", items, "--out", "told.parquet", folder=tmp_path)
    words = ["--epochs", "1", "--batch-size", "100", "--beam-size", "8", "--out", "run"]
    beamtree("train", data, "--tree", "tree.parquet", *words, folder=tmp_path)
    beamtree("tree", "run", "--out", "again.parquet", folder=tmp_path)
    assert (tmp_path / "tree.parquet").read_bytes() == (tmp_path / "again.parquet").read_bytes()
    beamtree("tree", "run", "--tree", "cluster", "--out", "new.parquet", folder=tmp_path)
    assert (tmp_path / "tree.parquet").read_bytes() != (tmp_path / "new.parquet").read_bytes()
    failed = beamtree("tree", "run", "--tree", "random", "--out", "x.parquet", folder=tmp_path, check=False)
    assert "run is a run" in failed.stderr
    for wrong, said in (
        (["--tree", "category"], "needs --items"),
        (["--tree", "random", "--items", items], "--items is for category and cluster trees, not random"),
        (["--items", items, "--vectors", items], "give one of them"),
        (["--tree", "random", "--vectors", items], "--vectors is for cluster trees, not random"),
        (["--tree", "oak"], "tree 'oak' is unknown"),
        (["--tree", "tree.parquet", "--items", items], "is a tree already"),
    ):
        failed = beamtree("tree", data, *wrong, "--out", "x.parquet", folder=tmp_path, check=False)
        assert failed.returncode == 2
        assert said in failed.stderr.replace("\n", " ")


@pytest.mark.extended
def test_tables_3_and_4_show_the_papers_numbers_beside_ours(compared, market_data, tmp_path):
    _, results, _ = compared
    wide = [replace(result, m=(10, 200)) for result in results]
    found = {(c.key["row"], c.key["metric"], c.key["m"]): c for c in real_data.cells("table3", wide)}
    assert found["otm", "recall", 200].paper == 16.36
    assert found["jtm", "precision", 10].paper == 1.84
    assert found["als", "recall", 200].paper is None
    experiment = real_data.paper_experiment(market_data, tmp_path, recipe="paper", device="cpu", seed=0)
    assert (experiment.beam_size, experiment.batch_size, experiment.steps) == (
        400,
        200,
        round(10 * len(market_data.train) / 200),
    )
    settings = experiment.settings(ROWS["otm"])
    assert settings.recipe is RECIPES["paper"]
    assert (settings.lr, settings.schedule.shape, settings.schedule.warm_up) == (1e-3, constant, None)


def test_figure_2_counts_an_instance_once_for_each_node_it_is_relevant_to(market_data):
    tree = bt.cluster_tree(market_data)
    _, y = market_data.train.batch(torch.arange(len(market_data.train)))
    expected = [0] * 4
    for row in y.tolist():
        leaves = tree.leaf_of_item(torch.tensor([item for item in row if item >= 0]))
        for node in set(tree.ancestor(leaves, 2).tolist()):
            expected[node - 3] += 1
    assert real_data.instances_of_nodes(tree, market_data.train, 2).tolist() == expected
    shares = real_data.distribution(tree, market_data.train, 2)
    assert shares.tolist() == pytest.approx([n / sum(expected) for n in sorted(expected, reverse=True)])


def test_figure_2_and_timing_are_commands(market_data, tmp_path):
    beamtree("paper", "figure2", str(market_data.folder), "--level", "3", "--json", "f.json", folder=tmp_path)
    assert len(json.loads((tmp_path / "f.json").read_text())) == 8
    assert (tmp_path / "results" / "figure2.png").exists()
    failed = beamtree("paper", "figure2", str(market_data.folder), "--level", "30", folder=tmp_path, check=False)
    assert "--level 30: the tree of" in failed.stderr.replace("\n", " ")
    words = ["--height", "5", "--batch-size", "4", "--beam-size", "4", "--iterations", "2"]
    found = beamtree("paper", "timing", *words, "--json", "t.json", folder=tmp_path)
    assert [each["row"] for each in json.loads((tmp_path / "t.json").read_text())] == ["plt", "tdm", "otm"]
    assert "0.6710" in found.stdout

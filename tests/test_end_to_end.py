"""From a log to recommendations, typed as a user would, on a small market."""

import json
import shutil

import pytest
from command import beamtree, largest_file
from conftest import MARKET_TRAIN

import beamtree as bt
from beamtree.cli import evaluate
from beamtree.evaluate import measure
from beamtree.research.baselines import build
from beamtree.research.baselines.neighbours import item_cf_nearest
from stress.checksums import update_checksums

SMALL = ["--beam-size", "50", "--m", "10,50"]


@pytest.fixture(scope="module")
def market(market_folder, tmp_path_factory):
    """A copy that the tests here write into."""
    return shutil.copytree(market_folder, tmp_path_factory.mktemp("story") / "market")


@pytest.fixture
def copy(market_folder, tmp_path):
    """A copy to damage; its run names the prepared data of the original."""
    return shutil.copytree(market_folder, tmp_path / "copy")


def test_a_run_holds_all_that_is_needed_to_use_it(market):
    run = market / "run"
    model = bt.load_model(run)
    assert model.tree.num_items == len(model.ids)
    assert model.ids.names == bt.load_data(market / "prepared").items.names
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert {"loss", "recall", "step", "seconds"} == {key for record in records for key in record}
    about = json.loads((run / "run.json").read_text())
    assert (about["method"], about["epochs"], about["beam_size"]) == ("otm-mixed", 3, 8)
    assert about["candidates"] == "beam_and_leaves(beam_size=8, extra=16)"
    assert (about["tree"], about["recipe"], about["labels"]) == ("cluster", "beamtree", "best_child")
    recalls = {record["step"]: record["recall"] for record in records if "recall" in record}
    training = about["training"]
    assert training["recall_at_start"] == recalls[0]
    assert training["best_recall"] == recalls[training["best_step"]] == max(recalls.values())
    assert training["steps_done"] == max(recalls)
    assert list((run / "tensorboard").iterdir())


def test_evaluate_prints_a_table_and_writes_cells(market):
    rows = ("item-cf", "item-cf-nearest", "popularity")
    done = beamtree("evaluate", "run", *SMALL, "--against", ",".join(rows), "--json", "c.json", folder=market)
    assert all(row in done.stdout for row in rows)
    cells = json.loads((market / "c.json").read_text())
    assert all(0 <= cell["low"] <= cell["value"] <= cell["high"] <= 1 for cell in cells)
    model, users = bt.Recommender.load(market / "run").before_refit, bt.load_data(market / "prepared").test
    for seen in (True, False):
        some = [cell for cell in cells if cell["exclude_seen"] == seen]
        assert {(cell["row"], cell["metric"], cell["m"]) for cell in some} == {
            (row, metric, m) for row in ("run", *rows) for metric in ("precision", "recall", "f1") for m in (10, 50)
        }
        ours = bt.evaluate(model, users, beam_size=50, m=(10, 50), exclude_seen=seen)
        found = {(cell["metric"], cell["m"]): cell["value"] for cell in some if cell["row"] == "run"}
        assert found == pytest.approx(dict(ours))
    recalls = [cell for cell in cells if cell["row"] in rows and (cell["metric"], cell["m"]) == ("recall", 50)]
    first = max(recalls, key=lambda cell: cell["value"])["exclude_seen"]  # in which the others find more
    assert [cell["exclude_seen"] for cell in cells] == [first] * 24 + [not first] * 24
    titles = ["seen items left in", "seen items left out"]
    assert done.stdout.index(titles[first]) < done.stdout.index(titles[not first])


def test_nearest_neighbours_are_a_row_of_their_own(market):
    """On 150 items the 100 nearest neighbours are not all, so the row differs from Item-CF, and is implicit's."""
    words = ["--against", "item-cf,item-cf-nearest", "--json", "n.json", "--metrics", "recall"]
    beamtree("evaluate", "run", *SMALL, *words, folder=market)
    found = {}
    for cell in json.loads((market / "n.json").read_text()):
        if not cell["exclude_seen"]:
            found.setdefault(cell["row"], []).append(cell["value"])
    assert found["item-cf"] != found["item-cf-nearest"]
    data = bt.load_data(market / "prepared")
    nearest = item_cf_nearest(data.train.events, data.num_items)
    expected = measure(lambda x, _: nearest.retrieve(x, 50)[0], data.test, m=(10, 50), metrics=("recall",))
    assert found["item-cf-nearest"] == pytest.approx(list(expected.values()))


def test_a_run_keeps_its_row_whatever_its_folder_is_called(copy):
    (copy / "run").rename(copy / "popularity")
    words = [*SMALL, "--against", "popularity", "--json", "../c.json", "--metrics", "recall"]
    beamtree("evaluate", ".", *words, folder=copy / "popularity")
    assert {cell["row"] for cell in json.loads((copy / "c.json").read_text())} == {"popularity (run)", "popularity"}


def test_evaluate_can_leave_out_what_was_seen_and_add_metrics(market):
    words = ["--exclude-seen", "--metrics", "ndcg,hit_rate", "--split", "val", "--json", "v.json"]
    done = beamtree("evaluate", "run", *SMALL, *words, folder=market)
    assert "ndcg" in done.stdout
    assert "precision" not in done.stdout
    assert "left in" not in done.stdout
    assert {cell["exclude_seen"] for cell in json.loads((market / "v.json").read_text())} == {True}
    done = beamtree("evaluate", "run", *SMALL, *words, "--against", "popularity", folder=market)
    assert {cell["exclude_seen"] for cell in json.loads((market / "v.json").read_text())} == {True, False}


def test_a_baseline_is_fitted_once_for_both_settings(market, monkeypatch):
    built = []
    monkeypatch.setattr(evaluate, "build", lambda row, *data: (built.append(row), build(row, *data))[1])
    beamtree("evaluate", "run", *SMALL, "--against", "popularity,item-cf", folder=market)
    assert built == ["popularity", "item-cf"]


def test_a_finished_run_resumes_to_itself_and_another_is_not_overwritten(copy):
    before = sorted(path.read_bytes() for path in (copy / "run").glob("*.safetensors"))
    done = beamtree(*MARKET_TRAIN, folder=copy, check=False)
    assert done.returncode == 2
    assert "run is already a run: add --resume" in done.stderr
    done = beamtree(*MARKET_TRAIN, "--resume", "--seed", "1", folder=copy, check=False)
    assert "was begun with" in done.stderr
    update_checksums(copy / "run", lambda about: about.update(data=str((copy / "prepared").resolve())), "run.json")
    beamtree(*MARKET_TRAIN, "--resume", folder=copy)
    assert sorted(path.read_bytes() for path in (copy / "run").glob("*.safetensors")) == before


def test_a_run_can_go_into_the_empty_folder_one_is_in(market, tmp_path):
    words = ["train", str(market / "prepared"), "--out", ".", "--beam-size", "8", "--epochs", "1"]
    beamtree(*words, folder=tmp_path)
    assert "@10" in beamtree("evaluate", ".", *SMALL, folder=tmp_path).stdout
    (tmp_path / "run.json").unlink()
    done = beamtree(*words, folder=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr == "beamtree: . holds other files: choose another folder\n"


@pytest.mark.extended
@pytest.mark.parametrize("size", [1_500, 100_000])  # the first stops the tree, the second the weights
def test_a_full_disk_stops_a_run_in_one_line_and_it_can_be_resumed(market, tmp_path, size):
    words = ["train", str(market / "prepared"), "--out", "run", "--beam-size", "8", "--epochs", "1"]
    with largest_file(size):
        done = beamtree(*words, folder=tmp_path, check=False)
    assert done.returncode == 2
    *_, line = done.stderr.splitlines()
    assert line.startswith("beamtree: run cannot be written: ")
    assert line.endswith("File too large (os error 27); free some space and continue with --resume")
    assert "Traceback" not in done.stderr
    done = beamtree("evaluate", "run", *SMALL, folder=tmp_path, check=False)
    assert "run is not finished: continue with" in done.stderr
    beamtree(*words, "--resume", folder=tmp_path)
    beamtree("evaluate", "run", *SMALL, folder=tmp_path)


def test_every_method_and_recipe_can_be_named(market):
    for method, recipe in (("hsm", "beamtree"), ("plt", "paper")):
        words = ["--method", method, "--recipe", recipe, "--tree", "random", "--beam-size", "8", "--batch-size", "400"]
        beamtree("train", "prepared", "--out", method, "--epochs", "1", *words, folder=market)
        assert bt.load_model(market / method).chained


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "nowhere", "--out", "x"], "nowhere holds no prepared data"),
        (["train", "prepared", "--out", "x", "--method", "foo"], "method 'foo' is unknown: choose from plt, hsm, tdm"),
        (["train", "prepared", "--out", "x", "--recipe", "foo"], "recipe 'foo' is unknown"),
        (["train", "prepared", "--out", "x", "--device", "tpu"], "is not here"),
        (["train", "prepared", "--out", "market.parquet"], "market.parquet is a file: choose a folder"),
        (["train", "prepared", "--out", "/proc/no/run"], "/proc/no/run cannot be written"),
        (["train", "prepared", "--out", "prepared"], "prepared holds other files: choose another folder"),
        (["train", "prepared", "--out", "x", "--lr", "0"], "--lr 0.0: must be above 0"),
        (["train", "prepared", "--out", "x", "--lr", "nan"], "--lr 'nan': this is not a number"),
        (["train", "prepared", "--out", "x", "--seed", "99999999999999999999"], "--seed"),
        (["demo", "--out", "market.parquet"], "market.parquet exists"),
        (["evaluate", "nowhere"], "nowhere is not a run"),
        (
            ["evaluate", "run", "--m", "500", "--beam-size", "400"],
            "--m 500 with --beam-size 400: the beam holds fewer items than that",
        ),
        (["evaluate", "run", "--m", "ten"], "give whole numbers"),
        (["evaluate", "run", "--metrics", "map"], "metric 'map' is unknown: choose from precision"),
        (["evaluate", "run", "--metrics", ","], "nothing to measure: give an m and a metric of precision"),
        (["evaluate", "run", "--against", "nobody"], "row 'nobody' is unknown"),
        (["evaluate", "run", "--split", "all"], "choose test, val or train"),
        (["evaluate", "run", "--data", "nowhere"], "nowhere holds no prepared data"),
        (["evaluate", "run", "--json", "."], ". cannot be written: it is a folder"),  # and no user was looked at
        (["evaluate", "run", "--json", "/proc/no/c.json"], "/proc/no/c.json cannot be written"),
        (["inspect", "run", "--plot", "x.gif"], "x.gif: the name of a picture must end in .png"),
    ],
)
def test_a_users_error_is_one_line_and_exit_code_2(market, words, message):
    done = beamtree(*words, folder=market, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert done.stdout == ""  # nothing was begun, such as a tree
    assert not (market / "x").exists()


@pytest.mark.extended
def test_data_without_validation_or_test_users_can_be_trained_on(market, tmp_path):
    log = str(market / "market.parquet")
    beamtree("prepare", log, "--out", "data", "--val-users", "0", "--test-users", "0", folder=tmp_path)
    beamtree("train", "data", "--out", "run", "--beam-size", "8", "--epochs", "1", folder=tmp_path)
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert not any("recall" in record for record in records)
    for words in (["evaluate", "run"], ["inspect", "run"], ["evaluate", "run", "--split", "val"]):
        done = beamtree(*words, folder=tmp_path, check=False)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert f"data has no {words[-1] if 'val' in words else 'test'} users" in done.stderr
    beamtree("evaluate", "run", *SMALL, "--split", "train", folder=tmp_path)


def test_one_training_user_is_too_few(tmp_path):
    rows = [f"{user},{item},{item}" for user in "abc" for item in range(12)]
    (tmp_path / "log.csv").write_text("\n".join(["user,item,time", *rows, ""]))
    beamtree("prepare", "log.csv", "--out", "data", folder=tmp_path)
    done = beamtree("train", "data", "--out", "run", folder=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("beamtree: data has one user for training")
    assert not (tmp_path / "run").exists()


@pytest.mark.extended
@pytest.mark.parametrize("items", [2, 3])
def test_a_market_of_few_items_goes_all_the_way(tmp_path, items):
    rows = [f"u{user},{' ' * (user % 5 > 2)}{(time + user) % items},{time}" for user in range(40) for time in range(12)]
    (tmp_path / "log.csv").write_text("\n".join(["user,item,time", *rows, ""]))
    done = beamtree("prepare", "log.csv", "--out", "data", folder=tmp_path)
    assert f"{items} ids of items differ from others only in white space" in done.stdout
    beamtree("train", "data", "--out", "run", "--beam-size", "8", "--epochs", "1", folder=tmp_path)
    beamtree("evaluate", "run", "--m", "1,5", "--against", "item-cf,item-cf-nearest,popularity", folder=tmp_path)
    beamtree("inspect", "run", "--m", "1", folder=tmp_path)
    done = beamtree("retrieve", "run", "--history", "who, knows", folder=tmp_path)
    assert "1 user without a known item: popular items are recommended" in done.stderr


def test_an_unfinished_run_says_so(copy):
    (copy / "run" / "settings.json").unlink()
    done = beamtree("evaluate", "run", folder=copy, check=False)
    assert "run is not finished" in done.stderr


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("run/run.json", "{", "run/run.json is damaged: train again"),
        ("run/run.json", "[]", "run/run.json is damaged: train again"),
        ("run/run.json", '{"data": 5}', "run/run.json is damaged: train again"),
        ("run/run.json", "{}", "run does not record its training data: give their folder with --data"),
        ("run/run.json", '{"data": "/nowhere"}', "the training data of run are no longer in /nowhere: give"),
        ("run/items-0.txt", None, "run/items-0.txt is missing"),
        ("run/items-0.txt", "", "run/items-0.txt is damaged, 0 of"),
        ("prepared/description.json", '{"format": 1}', "description.json is damaged: a count of users"),
        ("prepared/description.json", '{"format": 9}', "does not have format 2 or 1"),
        ("prepared/description.json", "{", "description.json is damaged"),
        ("prepared/description.json", None, "holds no prepared data"),
        ("prepared/events.npy", "x", "events.npy is damaged, 1 of"),
        ("prepared/users.txt", None, "users.txt is missing: prepare the data again"),
    ],
)
def test_damaged_folders_are_told_in_one_line(copy, file, text, message):
    if "nowhere" not in message:
        (copy / "run" / "run.json").write_text(json.dumps({"data": str(copy / "prepared")}))
    if text is None:
        (copy / file).unlink()
    else:
        (copy / file).write_text(text)
    done = beamtree("evaluate", "run", *SMALL, folder=copy, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


def test_ids_that_are_no_text_are_told_in_one_line(copy):
    ids = copy / "run" / "items-0.txt"
    ids.write_bytes(b"\xff" * (ids.stat().st_size - 1) + b"\n")
    update_checksums(copy / "run")
    done = beamtree("retrieve", "run", "--history", "a", folder=copy, check=False)
    assert done.returncode == 2
    assert done.stderr == "beamtree: run/items-0.txt is damaged: it is not UTF-8\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda names: names[::-1], "holds other items than run was trained on"),
        (
            lambda names: [" ".join(names[:2]), *names[2:]],
            "149 ids for a tree of 150 items: its files belong to different runs",
        ),
    ],
)
def test_ids_of_other_items_are_told_in_one_line(copy, change, message):
    ids = copy / "run" / "items-0.txt"
    names = change(ids.read_text().splitlines())
    ids.write_text("".join(f"{name}\n" for name in names))
    update_checksums(copy / "run")
    done = beamtree("evaluate", "run", "--data", "prepared", folder=copy, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


def test_data_with_other_items_are_refused(market):
    beamtree("simulate", "--out", "o.parquet", "--users", "100", "--items", "90", "--events", "3000", folder=market)
    beamtree("prepare", "o.parquet", "--out", "other", folder=market)
    done = beamtree("evaluate", "run", "--data", "other", folder=market, check=False)
    assert "holds other items than run was trained on" in done.stderr


@pytest.mark.slow
def test_the_demo_tells_the_whole_story(tmp_path):
    done = beamtree("demo", "--users", "400", "--items", "200", "--epochs", "1", folder=tmp_path)
    assert "Done in" in done.stdout
    assert (tmp_path / "demo" / "inspect.png").exists()

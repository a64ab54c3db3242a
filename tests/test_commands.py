"""What the commands say and take, on one small shop whose ids hold spaces, commas and bars."""

import csv
import json
import random
import re
import sys
from collections import Counter
from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree

import beamtree as bt
from beamtree.cli import inspect as inspect_command
from beamtree.cli import train as train_command
from beamtree.cli.app import app
from beamtree.cli.errors import as_flags
from beamtree.train import Checkpoints, Validation, checkpoint, steps_done
from beamtree.train.recipes import train_model

SHELVES, PER_SHELF = 4, 9
ITEMS = ["a, b", "c d|e", *(f"item {number}" for number in range(2, SHELVES * PER_SHELF))]
SIZES = ["--beam-size", "8", "--batch-size", "20"]
TRAIN = ["train", "data", "--recipe", "paper", *SIZES, "--lr", "0.03", "--patience", "99"]
COLUMNS = ["--user", "person", "--item", "thing", "--time", "when"]
AT = ["--beam-size", "20", "--m", "5,10"]


def write_shop(path):
    """A log of 100 users with two favourite shelves each; users, items and times have unusual columns."""
    draw = random.Random(0)
    rows = []
    for user in range(100):
        shelves = draw.sample(range(SHELVES), 2)
        for time in range(draw.randrange(12, 20)):
            item = draw.choice(shelves) * PER_SHELF + draw.randrange(PER_SHELF)
            rows.append((f"user {user}", ITEMS[item], 10 * time))
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("person", "thing", "when"), *rows])
    return rows


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A folder with the log, the data and a run, and what was said when it was trained."""
    folder = tmp_path_factory.mktemp("shop")
    write_shop(folder / "log.csv")
    beamtree("prepare", "log.csv", *COLUMNS, "--out", "data", "--val-users", "15", "--test-users", "15", folder=folder)
    done = beamtree(*TRAIN, "--out", "run", "--steps", "14", folder=folder)
    (folder / "said.txt").write_text(done.stdout, encoding="utf-8")
    return folder


def about(run):
    return json.loads((run / "run.json").read_text())


def weights(run):
    (path,) = run.glob("weights-*.safetensors")
    return path.read_bytes()


def one_line(done, message):
    assert done.returncode == 2
    assert done.stderr.startswith("beamtree: ")
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


# What training brought


def test_train_says_how_far_recall_rose(shop):
    said = (shop / "said.txt").read_text(encoding="utf-8")
    training = about(shop / "run")["training"]
    start, best = training["recall_at_start"] * 100, training["best_recall"] * 100
    assert best > start
    after = f"{best:.1f} % after {training['best_step']} steps of training."
    line = f"Recall@10 on 15 validation users: {start:.1f} % at the start, {after}"
    assert line in said


def test_train_says_what_to_do_where_it_did_not_improve_on_the_start(shop, tmp_path):
    words = [str(shop / "data") if word == "data" else word for word in TRAIN]
    done = beamtree(*words, "--lr", "1e-12", "--steps", "4", "--out", "run", folder=tmp_path)
    training = about(tmp_path / "run")["training"]
    assert training["best_step"] == 0
    start = f"{training['recall_at_start'] * 100:.1f} %"
    assert f"Recall@10 on 15 validation users: {start} at the start. Training did not improve on it" in done.stdout
    assert "another --lr" in done.stdout


def test_train_takes_steps_instead_of_epochs(shop, tmp_path):
    run = about(shop / "run")
    assert (run["steps"], run["epochs"], run["training"]["steps_done"]) == (14, None, 14)
    records = [json.loads(line) for line in (shop / "run" / "log.jsonl").read_text().splitlines()]
    assert max(record["step"] for record in records if "loss" in record) == 14
    done = beamtree(*TRAIN, "--out", "x", "--steps", "3", "--epochs", "2", folder=shop, check=False)
    one_line(done, "--epochs and --steps are both given: give one of them")


# Going on


@pytest.fixture
def killed(shop, monkeypatch):
    """Train into a folder with checkpoints at every step, killed after the sixth: no step-based one was due yet."""

    def kill(folder, **checkpoints):
        class KilledError(OSError):
            """As by a signal: nothing is written any more."""

        def until_killed(*words, on_step, **more):
            def stop(done, total, loss):
                on_step(done, total, loss)
                if done == 6:
                    raise KilledError("killed")

            return train_model(*words, on_step=stop, **more)

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "TIME_SHARE", 0)  # however long one takes
            patch.setattr(train_command, "Checkpoints", partial(Checkpoints, **checkpoints))
            patch.setattr(train_command, "train_model", until_killed)
            done = beamtree(*TRAIN, "--out", str(folder), "--steps", "14", folder=shop, check=False)
        assert done.returncode == 2
        return folder

    return kill


def test_a_run_killed_between_two_checkpoints_by_steps_ends_the_same(shop, killed, tmp_path):
    run = killed(tmp_path / "run", seconds=0.0)
    assert steps_done(run / "training") == 6
    done = beamtree(*TRAIN, "--out", str(run), "--steps", "14", "--resume", folder=shop)
    assert "Continuing from step 6 of 14" in done.stdout
    assert "Building" not in done.stdout
    assert weights(run) == weights(shop / "run")
    assert about(run)["training"] == about(shop / "run")["training"]


def test_a_run_without_a_checkpoint_begins_again_and_says_so(shop, killed, tmp_path):
    run = killed(tmp_path / "run", seconds=None)
    assert not (run / "training" / "settings.json").exists()
    done = beamtree(*TRAIN, "--out", str(run), "--steps", "14", "--resume", folder=shop)
    assert f"There is no checkpoint in {run}: starting from the beginning" in done.stdout
    assert weights(run) == weights(shop / "run")


def test_nothing_to_go_on_from_is_said_of_a_new_folder_too(shop, tmp_path):
    done = beamtree(*TRAIN, "--out", str(tmp_path / "new"), "--steps", "1", "--resume", folder=shop)
    assert "There is no checkpoint in" in done.stdout
    done = beamtree(*TRAIN, "--out", str(tmp_path / "newer"), "--steps", "1", folder=shop)
    assert "checkpoint" not in done.stdout


def test_checkpoints_by_the_clock_are_written_at_every_step_where_they_cost_nothing(shop, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "TIME_SHARE", 0)
    data = bt.load_data(shop / "data")
    model = bt.load_model(shop / "run")
    found = []
    bt.fit(
        model,
        data.train,
        bt.otm(4),
        steps=4,
        batch_size=20,
        checkpoints=Checkpoints(tmp_path, every=1000, seconds=0.0),
        on_step=lambda done, total, loss: found.append(steps_done(tmp_path)),
    )
    assert found == [1, 2, 3, 4]


# Comparing


COMPARE = ["compare", "data", "--steps", "2", *SIZES, "--test-beam", "20", "--m", "5"]


@pytest.fixture(scope="module")
def compared(shop):
    """A comparison in other metrics."""
    words = ["--metrics", "ndcg,mrr", "--rows", "popularity,otm", "--out", "by-ndcg"]
    return beamtree(*COMPARE, *words, "--json", "cells.json", folder=shop)


@pytest.mark.parametrize("exclude_seen", [True, False])
def test_compare_takes_other_metrics_with_what_was_seen_and_without(shop, compared, exclude_seen):
    assert f"seen items left {'out' if exclude_seen else 'in'}" in compared.stdout
    cells = [cell for cell in json.loads((shop / "cells.json").read_text()) if "m" in cell]
    scores = {(cell["row"], cell["metric"]): cell["value"] for cell in cells if cell["exclude_seen"] == exclude_seen}
    assert set(scores) == {(row, metric) for row in ("popularity", "otm") for metric in ("ndcg", "mrr")}
    model, users = bt.load_model(shop / "by-ndcg" / "otm"), bt.load_data(shop / "data").test
    found = bt.evaluate(model, users, beam_size=20, m=(5,), metrics=("ndcg", "mrr"), exclude_seen=exclude_seen)
    assert [scores["otm", metric] for metric in ("ndcg", "mrr")] == pytest.approx(list(found.values()))
    assert f"{found['mrr', 5] * 100:.2f}" in compared.stdout
    assert (shop / "by-ndcg" / "table.png").stat().st_size > 5_000
    assert "ndcg@5" in compared.stderr  # of each row as it is done


def test_a_runs_tree_is_a_name_wherever_it_was_trained(shop, compared):
    assert about(shop / "run")["tree"] == "cluster"
    assert about(shop / "by-ndcg" / "otm")["tree"] == "cluster"
    assert about(shop / "run").keys() == about(shop / "by-ndcg" / "otm").keys()


def test_rows_whose_training_changed_nothing_are_marked(shop, tmp_path, monkeypatch):
    monkeypatch.setattr(Validation, "recall", lambda *_: 0.5)  # a tie is no progress
    words = ["--rows", "popularity,otm,otm-brute-force", "--out", str(tmp_path), "--json", "marked.json"]
    done = beamtree(*COMPARE, *words, folder=shop)
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    for shown in (done.stdout, text):
        assert "otm †" in shown
        assert "otm-brute-force †" in shown
        assert "popularity †" not in shown
        assert "† training found nothing better than the start" in " ".join(shown.split())
    cells = json.loads((shop / "marked.json").read_text())
    kept = [cell["row"] for cell in cells if cell["metric"] == "kept_the_start"]
    assert kept == ["otm", "otm-brute-force"]
    assert "otm: training did not improve on the start; kept the start" in done.stdout


def test_nothing_is_marked_where_training_brought_something(shop, tmp_path, monkeypatch):
    rising = iter(range(100))
    monkeypatch.setattr(Validation, "recall", lambda *_: next(rising) / 100)
    done = beamtree(*COMPARE, "--rows", "otm", "--out", str(tmp_path), folder=shop)
    assert "†" not in done.stdout + (tmp_path / "table.md").read_text(encoding="utf-8")


# Measuring


def test_evaluate_takes_every_metric(shop):
    words = ["--metrics", "mrr,hit_rate", "--against", "popularity", "--json", "scores.json"]
    done = beamtree("evaluate", "run", *AT, *words, folder=shop)
    assert "mrr" in done.stdout
    assert "hit_rate" in done.stdout
    assert "recall" not in done.stdout
    cells = json.loads((shop / "scores.json").read_text())
    assert len(cells) == 16
    users = bt.load_data(shop / "data").test
    model = bt.load_model(shop / "run")
    for seen in (True, False):
        found = bt.evaluate(model, users, beam_size=20, m=(5, 10), metrics=("mrr", "hit_rate"), exclude_seen=seen)
        ours = [c for c in cells if (c["row"], c["exclude_seen"]) == ("run", seen)]
        assert {(c["metric"], c["m"]): c["value"] for c in ours} == pytest.approx(dict(found))


# Retrieving


def answers(shop, *words, run="run"):
    """What the command answers and writes as JSON."""
    beamtree("retrieve", run, *AT[:2], "--m", "5", *words, "--json", "answer.json", folder=shop)
    return json.loads((shop / "answer.json").read_text(encoding="utf-8"))


def by_numbers(shop, history, *, m=5, allowed=None, run="run"):
    """The same by `beamtree.retrieve`: items and scores, best first."""
    model = bt.load_model(shop / run)
    x = torch.full((1, 69), bt.PAD)
    x[0, : len(history)] = torch.tensor(model.ids.find(history[::-1]))
    allowed = None if allowed is None else torch.tensor(model.ids.find(allowed))
    items, log_p = bt.retrieve(model, x, beam_size=20, m=m, allowed=allowed)
    return [model.ids[item] for item in items[0].tolist() if item != bt.PAD], log_p[0].exp().tolist()


def test_evaluate_takes_a_log_of_other_users(shop, tmp_path):
    words = ("evaluate", str(shop / "run"), *AT, "--metrics", "recall", "--json", "found.json")
    beamtree(*words, "--log", str(shop / "log.csv"), *COLUMNS, folder=tmp_path)
    cells = json.loads((tmp_path / "found.json").read_text())
    data = bt.load_data(shop / "data")
    users = [view for view in (data.train, data.val, data.test) if len(view)]
    model, count = bt.load_model(shop / "run"), sum(map(len, users))
    means = [bt.evaluate(model, view, beam_size=20, m=5, metrics="recall")["recall", 5] for view in users]
    expected = sum(mean * len(view) for mean, view in zip(means, users, strict=True)) / count
    (found,) = [cell["value"] for cell in cells if cell["m"] == 5 and cell["metric"] == "recall"]
    assert found == pytest.approx(expected, abs=1e-6)
    one_line(beamtree(*words, "--user", "person", folder=tmp_path, check=False), "--log FILE")


def test_prepare_takes_dates_in_the_form_that_is_named(tmp_path):
    rows = [("user", "item", "time")]
    rows += [(f"u{user}", f"i{place}", f"{place + 1:02}/0{user + 1}/2020") for user in range(3) for place in range(3)]
    with (tmp_path / "log.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    done = beamtree("prepare", "log.csv", "--out", "p", folder=tmp_path, check=False)
    assert done.returncode == 2
    assert "day and month cannot be told apart" in done.stderr
    assert "--time-format" in done.stderr
    beamtree("prepare", "log.csv", "--out", "p", "--time-format", "%d/%m/%Y", folder=tmp_path)
    times = np.load(tmp_path / "p" / "times.npy")
    assert set(np.diff(times.reshape(3, 3)).ravel().tolist()) == {24 * 3600 * 10**6}


def test_train_takes_a_number_of_threads_and_shows_details_on_request(shop, tmp_path):
    before = torch.get_num_threads()
    words = ("train", str(shop / "data"), "--steps", "0", "--beam-size", "8", "--threads", "1")
    try:
        quiet = beamtree(*words, "--out", "a", folder=tmp_path)
        loud = beamtree(*words, "--out", "b", "--verbose", folder=tmp_path)
    finally:
        torch.set_num_threads(before)
    assert about(tmp_path / "a")["threads"] == 1
    assert "100 of 100 % of the closed form" in quiet.stderr
    assert "weights: " not in quiet.stderr + quiet.stdout
    assert "weights: " in loud.stderr
    assert "by the closed form, without training of a network." in quiet.stdout


def test_ids_with_spaces_commas_and_bars_are_written_as_json(shop):
    history = ["a, b", "c d|e", "item 7"]
    found = answers(shop, "--history", json.dumps(history))
    items, scores = by_numbers(shop, history)
    assert [cell["item"] for cell in found] == items
    assert [cell["score"] for cell in found] == pytest.approx(scores)
    one = answers(shop, "--history", "a, b")  # an id as it stands
    assert [cell["item"] for cell in one] == by_numbers(shop, ["a, b"])[0]
    plain = beamtree("retrieve", "run", "--history", "a, c", folder=shop)
    assert "2 events ignored: of items that the model does not know (a, c)" in plain.stderr


def test_users_of_the_log_are_known_by_all_their_events(shop):
    rows = write_shop(shop / "again.csv")
    found = answers(shop, "--users", '["user 3", "user 70"]')
    assert list(dict.fromkeys(cell["user"] for cell in found)) == ["user 3", "user 70"]
    for user in ("user 3", "user 70"):
        items, scores = by_numbers(shop, [item for name, item, _ in rows if name == user])
        cells = [cell for cell in found if cell["user"] == user]
        assert [cell["item"] for cell in cells] == items
        assert [cell["score"] for cell in cells] == pytest.approx(scores)
    done = beamtree("retrieve", "run", "--users", '["user 3"]', "--exclude-seen", folder=shop)
    assert "user 3" in done.stdout
    seen = {item for name, item, _ in rows if name == "user 3"}
    shown = {line.split("│")[2].strip() for line in done.stdout.splitlines() if line.count("│") == 4}
    assert len(shown) == 10
    assert not shown & seen


@pytest.mark.parametrize("users", ['["user 3", "nobody"]', "nobody"])
def test_a_user_who_is_not_in_the_log_is_told_in_one_line(shop, users):
    done = beamtree("retrieve", "run", "--users", users, "--unknown", "error", folder=shop, check=False)
    one_line(done, "user 'nobody' is not in the log")


def test_files_say_what_may_be_found_and_what_not(shop):
    history = ["a, b", "item 7"]
    (shop / "allowed.txt").write_text("a, b\nc d|e\n\n item 3 \nitem 4\nnever heard of\n")
    (shop / "exclude.txt").write_text("item 3\na, b\n")
    words = ["--history", json.dumps(history)]
    for more, left in (
        (["--allowed", "allowed.txt"], {"a, b", "c d|e", "item 3", "item 4"}),
        (["--exclude", "exclude.txt"], set(ITEMS) - {"item 3", "a, b"}),
        (["--allowed", "allowed.txt", "--exclude", "exclude.txt"], {"c d|e", "item 4"}),
        (["--allowed", "allowed.txt", "--exclude-seen"], {"c d|e", "item 3", "item 4"}),
    ):
        found = [cell["item"] for cell in answers(shop, *words, *more)]
        assert found == by_numbers(shop, history, allowed=sorted(left))[0]
        assert len(found) == min(5, len(left))
    (shop / "none.txt").write_text("never heard of\n")
    done = beamtree("retrieve", "run", *words, "--allowed", "none.txt", folder=shop, check=False)
    one_line(done, "no item is left to retrieve: drop --exclude-seen, --allowed, --exclude or --where")
    done = beamtree("retrieve", "run", *words, "--exclude", "no.txt", folder=shop, check=False)
    one_line(done, "no.txt is not a file of ids")


def test_files_of_histories_are_filtered_too(shop):
    (shop / "histories.jsonl").write_text(json.dumps({"user": "u", "history": ["a, b"]}) + "\n")
    (shop / "some.txt").write_text("c d|e\nitem 3\n")
    words = ["--input", "histories.jsonl", "--output", "answers.jsonl", "--allowed", "some.txt"]
    beamtree("retrieve", "run", *words, folder=shop)
    (line,) = (shop / "answers.jsonl").read_text().splitlines()
    assert json.loads(line)["items"] == by_numbers(shop, ["a, b"], allowed=["c d|e", "item 3"])[0]


def answers_of_file(shop, source, *words):
    beamtree("retrieve", "run", *AT[:2], "--m", "5", "--input", source, "--output", "o.parquet", *words, folder=shop)
    found = {}
    for row in pl.read_parquet(shop / "o.parquet").rows(named=True):
        found.setdefault(row["user"], []).append(row["item"])
    return found


def test_a_files_columns_may_have_any_name(shop):
    histories = {"x": ["item 3", "a, b"], "y": ["c d|e"]}
    expected = {user: by_numbers(shop, history)[0] for user, history in histories.items()}
    rows = [(30 - place, user, item) for user, history in histories.items() for place, item in enumerate(history)]
    header = ("moment", "who", "what")
    with (shop / "unusual.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *((-time, user, item) for time, user, item in rows[::-1])])
    columns = ["--user", "who", "--item", "what", "--time", "moment"]
    assert answers_of_file(shop, "unusual.csv", *columns) == {user: expected[user] for user in ("y", "x")}
    with (shop / "ratings.csv").open("w", newline="") as file:  # user, item, rating, time, and no header
        csv.writer(file).writerows((user, item, 5, -time) for time, user, item in rows)
    assert answers_of_file(shop, "ratings.csv", "--format", "amazon-ratings") == expected
    frame = pl.DataFrame({"who": list(histories), "history": list(histories.values())})
    frame.write_parquet(shop / "who.parquet")
    assert answers_of_file(shop, "who.parquet", "--user", "who") == expected


def test_dates_of_a_file_may_have_any_format(shop):
    rows = [("user", "item", "time"), ("x", "item 3", "02/01/2020"), ("x", "a, b", "01/02/2020")]
    with (shop / "dates.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    words = ["dates.csv", "--time-format"]
    assert answers_of_file(shop, *words, "%d/%m/%Y") == {"x": by_numbers(shop, ["item 3", "a, b"])[0]}
    assert answers_of_file(shop, *words, "%m/%d/%Y") == {"x": by_numbers(shop, ["a, b", "item 3"])[0]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--input", "log.csv", "--output", "o.csv", "--user", "buyer"], "there is no column 'buyer' for --user"),
        (["--input", "log.csv", "--output", "o.csv", "--format", "mine"], "--format 'mine' is unknown: choose from"),
        (
            ["--history", "item", "--user", "person"],
            "--time and --time-format describe the columns of --input",
        ),
        (["--history", "item", "--users", "u"], "give --history"),
        (["--users", "u", "--output", "o.csv"], "give --history"),
        (["--users", " , "], "--users"),
    ],
)
def test_options_that_do_not_go_together_are_told_in_one_line(shop, words, message):
    one_line(beamtree("retrieve", "run", *words, folder=shop, check=False), message)
    assert not (shop / "o.csv").exists()


def test_who_is_unknown_gets_what_is_popular(shop):
    events = bt.load_data(shop / "data").train.events
    names = bt.load_data(shop / "data").items.names
    counts = Counter(dict.fromkeys(names, 0))
    counts.update(names[number] for number in events.item_numbers().tolist())
    popular = sorted(names, key=lambda name: (-counts[name], names.index(name)))[:5]
    for words in (["--history", "nothing known"], ["--history", "[]"]):
        found = answers(shop, *words)
        assert [cell["item"] for cell in found] == popular
        shares = [counts[name] / counts.total() for name in popular]
        assert [cell["score"] for cell in found] == pytest.approx(shares)
    (shop / "some.txt").write_text("\n".join([popular[1], popular[3]]))
    found = answers(shop, "--history", "nothing known", "--allowed", "some.txt")
    assert [cell["item"] for cell in found] == [popular[1], popular[3]]


# Recommender and commands read each other's runs


def test_a_run_of_the_command_is_a_recommender(shop):
    found = bt.Recommender.load(shop / "run")
    history = ["c d|e", "item 12"]
    ours = found.recommend(history, m=5, beam_size=20)
    theirs = answers(shop, "--history", json.dumps(history))
    assert ours["item"].to_list() == [cell["item"] for cell in theirs]
    assert ours["score"].to_list() == pytest.approx([cell["score"] for cell in theirs])
    ours = found.recommend(users=["user 5"], m=5, beam_size=20, exclude_seen=True)
    theirs = answers(shop, "--users", '["user 5"]', "--exclude-seen")
    assert ours["item"].to_list() == [cell["item"] for cell in theirs]
    assert found.progress.best == about(shop / "run")["training"]["best_recall"]
    assert found.evaluate(m=(5,), beam_size=20)["recall", 5] == pytest.approx(
        bt.evaluate(bt.load_model(shop / "run"), bt.load_data(shop / "data").test, beam_size=20, m=(5,))["recall", 5]
    )


def test_a_recommender_that_was_saved_is_a_run_of_the_commands(shop, tmp_path):
    columns = {"user": "person", "item": "thing", "time": "when"}
    ours = bt.Recommender(steps=2, beam_size=8, batch_size=20).fit(shop / "log.csv", **columns)
    ours.save(tmp_path / "saved")
    del ours._data  # nothing else may be needed
    done = beamtree("evaluate", "saved", *AT, "--json", "s.json", folder=tmp_path)
    assert "recall" in done.stdout
    assert "±" in beamtree("inspect", "saved", *AT, folder=tmp_path).stdout
    found = answers(tmp_path, "--history", '["a, b"]', run="saved")
    assert [cell["item"] for cell in found] == ours.recommend(["a, b"], m=5, beam_size=20)["item"].to_list()
    assert len(answers(tmp_path, "--users", '["user 5"]', run="saved")) == 5
    assert about(tmp_path / "saved")["tree"] == "cluster"


@pytest.mark.extended
def test_a_log_goes_with_a_recommender_from_folder_to_folder(shop, tmp_path):
    columns = {"user": "person", "item": "thing", "time": "when"}
    first = bt.Recommender(steps=1, beam_size=8, batch_size=20).fit(shop / "log.csv", **columns)
    first.save(tmp_path / "first")
    second = bt.Recommender.load(tmp_path / "first")
    second.save(tmp_path / "second")
    second.save(tmp_path / "first")  # where it came from
    for name in ("first", "second"):
        found = bt.Recommender.load(tmp_path / name).evaluate(m=(5,), beam_size=20)
        assert dict(found) == dict(first.evaluate(m=(5,), beam_size=20))


def test_a_recommender_takes_no_log_of_other_items(shop, tmp_path):
    names = bt.load_data(shop / "data").items.names
    log = pl.DataFrame({"user": [f"u{n % 9}" for n in range(200)], "item": [names[-1 - n % 20] for n in range(200)]})
    bt.prepare(log, tmp_path / "other")
    with pytest.raises(ValueError, match=r"other holds other items than .*run was trained on"):
        bt.Recommender.load(shop / "run", data=tmp_path / "other")
    with pytest.raises(ValueError, match="nowhere holds no prepared data"):
        bt.Recommender.load(shop / "run", data=tmp_path / "nowhere")


def test_a_recommender_on_prepared_data_says_where_they_are(shop, tmp_path):
    ours = bt.Recommender(steps=2, beam_size=8, batch_size=20).fit(shop / "data")
    ours.save(tmp_path / "saved")
    assert not (tmp_path / "saved" / "data").exists()
    beamtree("evaluate", "saved", *AT, folder=tmp_path)


# Inspecting


def test_inspect_shows_an_interval_and_gives_no_advice_that_is_followed(shop):
    """The run was trained on beams, by rows of their own: only sharing these may be advised."""
    done = beamtree("inspect", "run", *AT, folder=shop)
    found = bt.inspect(
        bt.load_model(shop / "run"),
        bt.load_data(shop / "data").test,
        beam_size=20,
        m=(5, 10),
        trained_on_beams=True,
    )
    assert found.advice in done.stdout
    assert "OTM" not in done.stdout
    assert re.search(r"\d+\.\d\d ± \d+\.\d\d points apart", done.stdout)


@pytest.mark.parametrize(("method", "walks"), [("otm-mixed", True), ("tdm", False)])
def test_inspect_knows_how_the_run_was_trained(shop, tmp_path, monkeypatch, method, walks):
    if method != "otm-mixed":
        beamtree(*TRAIN, "--method", method, "--out", str(tmp_path / "run"), "--steps", "1", folder=shop)
    run = shop / "run" if method == "otm-mixed" else tmp_path / "run"
    found = []

    def spy(*words, **more):
        found.append(bt.inspect(*words, **more))
        return found[0]

    monkeypatch.setattr(inspect_command, "inspect", spy)
    beamtree("inspect", str(run), *AT, "--users", "3", folder=shop)
    assert [each.trained_on_beams for each in found] == [walks]


# Errors in the words of the command


def test_messages_of_the_library_name_flags_in_the_command():
    for message, told in (
        ("prepare with `val_users`", "prepare with --val-users"),
        ("m=5 with beam_size=4: too many", "--m 5 with --beam-size 4: too many"),
        ("lr=0.0: give a number above 0", "--lr 0.0: give a number above 0"),
        ("run was begun with seed=0, not 1", "run was begun with --seed 0, not 1"),
        ("x_y.csv does not exist", "x_y.csv does not exist"),
        ("hive/seed=1/part.parquet does not exist", "hive/seed=1/part.parquet does not exist"),
        ("event_date=2020 does not exist", "event_date=2020 does not exist"),
        ("`names` is for text files", "--format is for text files"),
        ("candidates=beam(beam_size=3), not x", "candidates=beam(beam_size=3), not x"),
        ("begun with method=otm, not tdm", "begun with --method otm, not tdm"),
        ("make one with `beamtree train DATA --out run`", "make one with `beamtree train DATA --out run`"),
    ):
        assert as_flags(app, message) == told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prepare", "log.csv", "--out", "x"], "name it with --user"),
        (["prepare", "log.csv", "--out", "x", *COLUMNS, "--val-users", "97"], "lower --val-users or --test-users"),
        (["compare", "unjudged", "--rows", "jtm", "--m", "5"], "there are none: prepare with --val-users"),
        (["evaluate", "run", "--data", "untested"], "untested has no test users: choose another --split, or prepare"),
        (["train", "data", "--out", "x", "--tree", "category"], "a category tree needs --items"),
        ([*TRAIN, "--out", "run", "--steps", "14", "--resume", "--seed", "1"], "with --seed 0, not 1"),
        ([*TRAIN, "--out", "run", "--steps", "14", "--resume", "--batch-size", "9"], "with --batch-size 20, not 9"),
        ([*TRAIN, "--out", "run", "--steps", "14", "--resume", "--beam-size", "9"], "with --beam-size 8, not 9"),
        ([*TRAIN, "--out", "run", "--steps", "15", "--resume"], "with --steps 14, not 15"),
    ],
)
def test_errors_name_flags(shop, words, message):
    for name, users in (("unjudged", "--val-users"), ("untested", "--test-users")):
        if name in words and not (shop / name).exists():
            beamtree("prepare", "log.csv", *COLUMNS, users, "0", "--out", name, folder=shop)
    done = beamtree(*words, folder=shop, check=False)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("beamtree: ")]
    assert message in line
    assert "_" not in line
    assert not (shop / "x").exists()


# Without a library


@pytest.fixture
def without(monkeypatch):
    """Have a library not installed, and forget what was imported with it."""

    def forget(library):
        for name in [name for name in sys.modules if name.split(".")[0] == library]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, library, None)
        monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
        for name in ("plots", "baselines.als", "baselines.neighbours", "baselines.two_tower"):
            room, _, module = f"beamtree.research.{name}".rpartition(".")
            monkeypatch.delitem(sys.modules, f"beamtree.research.{name}", raising=False)
            if room in sys.modules:
                monkeypatch.delattr(sys.modules[room], module, raising=False)

    return forget


def test_without_matplotlib_pictures_are_skipped_with_a_note(shop, tmp_path, without):
    without("matplotlib")
    log, data, run = (str(shop / name) for name in ("log.csv", "data", "run"))
    for words, picture in (
        (["prepare", log, *COLUMNS, "--out", "data"], "data/summary.png"),
        (["inspect", run, *AT, "--plot", "inspect.png"], "inspect.png"),
        (["compare", data, "--rows", "popularity", "--m", "5", "--out", "compared"], "compared/table.png"),
        (["paper", "figure2", data, "--level", "2"], "results/figure2.png"),
        (["paper", "table1", "--runs", "1"], "results/table1.runs=1.png"),
    ):
        done = beamtree(*words, folder=tmp_path)
        assert "note: no picture" in done.stderr, words
        assert "beamtree[plots]" in done.stderr, words
        assert not (tmp_path / picture).exists()
        assert ".png" not in done.stdout, words


@pytest.mark.parametrize(
    ("library", "words", "row"),
    [
        ("implicit", ["evaluate", "run", *AT, "--against", "popularity,als"], "als"),
        ("implicit", ["evaluate", "run", *AT, "--against", "item-cf-nearest"], "item-cf-nearest"),
        ("scipy", ["evaluate", "run", *AT, "--against", "item-cf"], "item-cf"),
        ("faiss", [*COMPARE, "--rows", "youtube-dnn", "--out", "dnn"], "youtube-dnn"),
    ],
)
def test_without_its_library_a_row_is_one_line_with_what_to_install(shop, without, library, words, row):
    without(library)
    done = beamtree(*words, folder=shop, check=False)
    assert done.returncode == 2
    *_, line = done.stderr.splitlines()
    assert line == f"beamtree: row {row} needs {library}, which is not installed: pip install 'beamtree[compare]'"


def test_without_tensorboard_a_run_is_the_same(shop, tmp_path, without):
    without("tensorboard")
    beamtree(*TRAIN, "--out", str(tmp_path / "run"), "--steps", "1", folder=shop)
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert (tmp_path / "run" / "log.jsonl").exists()

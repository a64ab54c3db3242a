"""Scores that are too high, because the model was fitted to these users, and scores of too few users, are told."""

import json
import shutil
import warnings

import polars as pl
import pytest
from command import beamtree
from sample_logs import cyclic_log

import beamtree as bt
from beamtree.metrics import few_users

AT = ["--beam-size", "20", "--m", "5", "--metrics", "recall"]


def told(shop, **how):
    """The warnings of an evaluation, which are also in its result; those about few users apart."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = shop.evaluate(m=5, beam_size=20, metrics="recall", **how)
    texts = [str(each.message) for each in found]
    assert texts == result.warnings
    assert all(each.category is UserWarning and each.filename == __file__ for each in found)
    return [text for text in texts if "users to measure" not in text]


def in_training(count, users):
    text = f"{count} of {users} users were in training: their scores are too high"
    return f"{text}; evaluate on test users, or on a later log"


@pytest.mark.parametrize(("count", "points"), [(1, 49), (6, 20), (29, 9), (30, None), (1000, None)])
def test_few_users_are_told_with_the_width_of_the_interval(count, points):
    found = few_users(count)
    assert found is None if points is None else f"is about ± {points} points" in found


def test_users_of_a_log_who_were_in_training_are_counted(shop):
    log, names = cyclic_log(), shop.data.users.names
    assert told(shop, data=log) == [in_training(100, 120)]
    assert told(shop, data=log.drop("time")) == [in_training(100, 120)]
    some = [names[0], names[1], names[-1]]  # two training users and a test user
    assert told(shop, data=log.filter(pl.col("user").is_in(some))) == [in_training(2, 3)]
    assert told(shop, data=log.filter(pl.col("user").is_in(names[100:]))) == []
    assert told(shop, data=log.with_columns(user="new " + pl.col("user"))) == []


def test_a_later_log_of_the_same_users_is_fine(shop):
    log = cyclic_log()
    assert told(shop, data=log.with_columns(time=pl.col("time") + 12)) == []
    assert told(shop, data=log.with_columns(time=pl.col("time") + 6)) == []  # what is to be found is later
    assert told(shop, data=log.with_columns(time=pl.col("time") + 5)) == [in_training(100, 120)]


def test_times_in_other_units_are_compared(tmp_path):
    log = cyclic_log().with_columns(time=1_600_000_000 + pl.col("time"))
    shop = bt.Recommender(steps=0).fit(log, verbose=False)
    later = log.with_columns(time=(pl.col("time") + 100) * 1000)
    assert told(shop, data=later) == []
    assert told(shop, data=log.with_columns(time=pl.col("time") * 1000)) == [in_training(108, 120)]


def test_users_of_prepared_data_are_compared_by_id(shop, shop_folder, tmp_path):
    assert told(shop) == told(shop, data=shop.data.test) == told(shop, data=shop_folder / "data") == []
    assert told(shop, data=shop.data.val) == []
    assert told(shop, data=shop.data.train) == [in_training(100, 100)]
    assert told(shop, data=shop.data.train.sample(7)) == [in_training(7, 7)]
    bt.prepare(shop_folder / "log.csv", tmp_path / "other", val_users=10, test_users=10, seed=5)
    other = bt.load_data(tmp_path / "other")
    count = len(set(other.users[-10:]) & set(shop.data.users[:100]))
    assert count
    for data in (other, other.test, tmp_path / "other"):
        assert told(shop, data=data) == [in_training(count, 10)]


@pytest.mark.parametrize("split", ["leave-one-out", "time:8"])
def test_users_whose_last_events_were_kept_apart_are_fine(split):
    shop = bt.Recommender(steps=0).fit(cyclic_log(), split=split, verbose=False)
    assert told(shop) == told(shop, data=shop.data.val) == told(shop, data=shop.data.test.sample(7)) == []
    assert told(shop, data=cyclic_log()) == [in_training(120, 120)]


def test_validation_users_count_after_a_refit(shop_folder):
    shop = bt.Recommender(steps=0, refit=True).fit(shop_folder / "data", verbose=False)
    assert told(shop) == []
    assert told(shop, data=shop.data.val) == [in_training(10, 10)]
    assert told(shop, data=cyclic_log()) == [in_training(110, 120)]


def test_users_of_an_update_count(shop, tmp_path):
    tester = shop.data.users[-1]
    log = cyclic_log().filter(pl.col("user") == tester)
    more = pl.concat([log, log.with_columns(user=pl.lit("new"))]).with_columns(time=pl.col("time") + 12)
    shop.update(more)
    shop.save(tmp_path / "run")
    for each in (shop, bt.Recommender.load(tmp_path / "run")):
        assert told(each) == [in_training(1, 10)]
        assert told(each, data=each.data.val) == [in_training(10, 10)]
        assert told(each, data=more) == [in_training(2, 2)]
        assert told(each, data=more.with_columns(time=pl.col("time") + 12)) == []


def test_few_users_are_a_warning(shop):
    with pytest.warns(UserWarning, match="only 10 users to measure: the 95 % interval of recall is about ± 15 points"):
        shop.evaluate(m=5, beam_size=20)


# Commands


def evaluated(run, *words, folder):
    """The notes on standard error, and the warnings in the records."""
    done = beamtree("evaluate", str(run), *AT, *words, "--json", "found.json", folder=folder)
    records = json.loads((folder / "found.json").read_text())
    assert len({record.get("warning") for record in records}) == 1
    notes = [line.removeprefix("note: ") for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert records[0].get("warning") == ("; ".join(notes) or None)
    return notes


def test_the_command_tells_it_and_writes_it(shop_folder, tmp_path):
    run, log = shop_folder / "run", str(shop_folder / "log.csv")
    assert evaluated(run, "--log", log, folder=tmp_path) == [in_training(100, 120)]
    assert evaluated(run, "--log", log, "--against", "popularity", folder=tmp_path) == [in_training(100, 120)]
    assert evaluated(run, "--split", "train", folder=tmp_path) == [in_training(100, 100)]
    assert evaluated(run, folder=tmp_path) == [few_users(10)]
    cyclic_log(users=40).with_columns(user="new " + pl.col("user")).write_csv(tmp_path / "new.csv")
    assert evaluated(run, "--log", "new.csv", folder=tmp_path) == []


def test_the_command_knows_refits_and_updates(shop_folder, tmp_path):
    shop = bt.Recommender(steps=0, refit=True).fit(shop_folder / "data", verbose=False)
    shop.save(tmp_path / "refit")
    assert evaluated("refit", "--split", "val", folder=tmp_path) == [in_training(10, 10), few_users(10)]
    shop = bt.Recommender.load(shop_folder / "run")
    shop.update(cyclic_log().filter(pl.col("user") == shop.data.users[-1]).with_columns(time=pl.col("time") + 12))
    shop.save(tmp_path / "updated")
    assert evaluated("updated", folder=tmp_path) == [in_training(1, 10), few_users(10)]
    shutil.copytree(shop_folder / "data", tmp_path / "copy")
    assert evaluated("refit", "--data", "copy", "--split", "val", folder=tmp_path) == [
        in_training(10, 10),
        few_users(10),
    ]


def test_the_report_of_a_split_says_that_few_users_test(shop_folder, tmp_path, capsys):
    words = ["prepare", str(shop_folder / "log.csv"), "--out", "data", "--val-users", "10", "--test-users"]
    assert f"note: {few_users(6)}" in beamtree(*words, "6", folder=tmp_path).stderr.splitlines()
    for users in ("30", "0"):  # none are meant
        assert "users to measure" not in beamtree(*words, users, folder=tmp_path).stderr
    bt.Recommender(steps=0).fit(cyclic_log(), test_users=6)
    assert few_users(6) in capsys.readouterr().err.replace("O", "o")

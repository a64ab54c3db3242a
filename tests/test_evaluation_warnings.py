"""Scores that are too high, because the model was fitted to these users, and scores of too few users, are told."""

import json
import shutil
import warnings
from copy import copy

import polars as pl
import pytest
from command import beamtree
from sample_logs import cyclic_log

import beamtree as bt
from beamtree.evaluate.metrics import few_users


@pytest.fixture(scope="module")
def unrefitted(shop_folder):
    """Fitted to the training users alone."""
    return bt.Recommender(steps=0, beam_size=60, refit=False).fit(shop_folder / "data", verbose=False)


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


def test_users_of_a_log_who_were_in_training_are_counted(unrefitted):
    log, names = cyclic_log(), unrefitted.data.users.names
    assert told(unrefitted, data=log) == [in_training(100, 120)]
    assert told(unrefitted, data=log.drop("time")) == [in_training(100, 120)]
    some = [names[0], names[1], names[-1]]  # two training users and a test user
    assert told(unrefitted, data=log.filter(pl.col("user").is_in(some))) == [in_training(2, 3)]
    assert told(unrefitted, data=log.filter(pl.col("user").is_in(names[100:]))) == []
    assert told(unrefitted, data=log.with_columns(user="new " + pl.col("user"))) == []


def test_a_later_log_of_the_same_users_is_fine(unrefitted):
    log = cyclic_log()
    assert told(unrefitted, data=log.with_columns(time=pl.col("time") + 12)) == []
    assert told(unrefitted, data=log.with_columns(time=pl.col("time") + 6)) == []  # what is to be found is later
    assert told(unrefitted, data=log.with_columns(time=pl.col("time") + 5)) == [in_training(100, 120)]


def test_times_in_other_units_are_compared(tmp_path):
    log = cyclic_log().with_columns(time=1_600_000_000 + pl.col("time"))
    shop = bt.Recommender(steps=0, refit=False).fit(log, verbose=False)
    later = log.with_columns(time=(pl.col("time") + 100) * 1000)
    assert told(shop, data=later) == []
    assert told(shop, data=log.with_columns(time=pl.col("time") * 1000)) == [in_training(108, 120)]


def test_users_of_prepared_data_are_compared_by_id(unrefitted, shop_folder, tmp_path):
    assert (
        told(unrefitted)
        == told(unrefitted, data=unrefitted.data.test)
        == told(unrefitted, data=shop_folder / "data")
        == []
    )
    assert told(unrefitted, data=unrefitted.data.val) == []
    assert told(unrefitted, data=unrefitted.data.train) == [in_training(100, 100)]
    assert told(unrefitted, data=unrefitted.data.train.sample(7)) == [in_training(7, 7)]
    bt.prepare(shop_folder / "log.csv", tmp_path / "other", val_users=10, test_users=10, seed=5)
    other = bt.load_data(tmp_path / "other")
    count = len(set(other.users[-10:]) & set(unrefitted.data.users[:100]))
    assert count
    for data in (other, other.test, tmp_path / "other"):
        assert told(unrefitted, data=data) == [in_training(count, 10)]


@pytest.mark.parametrize("split", ["leave-one-out", "time:8"])
def test_users_whose_last_events_were_kept_apart_are_fine(split):
    shop = bt.Recommender(steps=0).fit(cyclic_log(), split=split, verbose=False)
    assert told(shop) == told(shop, data=shop.data.val) == told(shop, data=shop.data.test.sample(7)) == []
    assert told(shop, data=cyclic_log()) == [in_training(120, 120)]


def test_all_users_of_other_data_count_after_a_refit(shop, shop_folder, tmp_path):
    for held_out in (None, shop.data.test, shop.data.val, shop.data.test.sample(7), shop_folder / "data"):
        assert told(shop, data=held_out) == []  # of the model before the refit
    assert told(shop, data=shop.data.train) == [in_training(100, 100)]
    assert told(shop, data=cyclic_log()) == [in_training(120, 120)]
    bt.prepare(shop_folder / "log.csv", tmp_path / "other", val_users=10, test_users=10, seed=5)
    assert told(shop, data=tmp_path / "other") == [in_training(10, 10)]


def more_events(user, shift=12):
    return cyclic_log().filter(pl.col("user") == user).with_columns(time=pl.col("time") + shift)


def test_users_of_an_update_count(unrefitted, tmp_path):
    shop = copy(unrefitted)
    tester = shop.data.users[-1]
    more = pl.concat([more_events(tester), more_events(tester).with_columns(user=pl.lit("new"))])
    shop.update(more)
    shop.save(tmp_path / "run")
    for each in (shop, bt.Recommender.load(tmp_path / "run")):
        assert told(each) == [in_training(1, 10)]
        assert told(each, data=each.data.val) == [in_training(10, 10)]
        assert told(each, data=more) == [in_training(2, 2)]
        assert told(each, data=more.with_columns(time=pl.col("time") + 12)) == []


def test_the_model_before_a_refit_does_not_know_updates(shop):
    before, tester = shop.evaluate(m=5, beam_size=20).records(), shop.data.users[-1]
    shop.update(more_events(tester))
    assert told(shop) == []
    assert told(shop, data=more_events(tester)) == [in_training(1, 1)]
    assert shop.evaluate(m=5, beam_size=20).records() == before


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
    assert evaluated(run, "--log", log, folder=tmp_path) == [in_training(120, 120)]
    assert evaluated(run, "--log", log, "--against", "popularity", folder=tmp_path) == [in_training(120, 120)]
    assert evaluated(run, "--split", "train", folder=tmp_path) == [in_training(100, 100)]
    assert evaluated(run, folder=tmp_path) == [few_users(10)]
    cyclic_log(users=40).with_columns(user="new " + pl.col("user")).write_csv(tmp_path / "new.csv")
    assert evaluated(run, "--log", "new.csv", folder=tmp_path) == []


def test_the_command_knows_refits_and_updates(unrefitted, shop_folder, tmp_path):
    run = shop_folder / "run"
    shutil.copytree(shop_folder / "data", tmp_path / "copy")
    for words in (["--split", "val"], ["--data", "copy"], ["--data", "copy", "--split", "val"]):
        assert evaluated(run, *words, folder=tmp_path) == [few_users(10)]
    bt.prepare(shop_folder / "log.csv", tmp_path / "other", val_users=10, test_users=10, seed=5)
    assert evaluated(run, "--data", "other", folder=tmp_path) == [in_training(10, 10), few_users(10)]
    shop = copy(unrefitted)
    shop.update(more_events(shop.data.users[-1]))
    shop.save(tmp_path / "updated")
    assert evaluated("updated", folder=tmp_path) == [in_training(1, 10), few_users(10)]


def test_the_report_of_a_split_says_that_few_users_test(shop_folder, tmp_path, capsys):
    words = ["prepare", str(shop_folder / "log.csv"), "--out", "data", "--val-users", "10", "--test-users"]
    assert f"note: {few_users(6)}" in beamtree(*words, "6", folder=tmp_path).stderr.splitlines()
    for users in ("30", "0"):  # none are meant
        assert "users to measure" not in beamtree(*words, users, folder=tmp_path).stderr
    bt.Recommender(steps=0).fit(cyclic_log(), test_users=6)
    assert few_users(6) in capsys.readouterr().err.replace("O", "o")

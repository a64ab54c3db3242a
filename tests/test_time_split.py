"""A log with a clock is split by time, and the model that serves is fitted to all events."""

import copy
import json
import shutil

import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree, train_again_after_a_kill

import beamtree as bt
from beamtree.data.times import MICRO
from beamtree.ingest.report import describe_split, describe_times
from beamtree.live.refit import BEFORE
from beamtree.live.renewal import renew
from beamtree.parts import acceptance
from beamtree.parts import sequence as sequence_part
from beamtree.parts.sequence import SEQUENCE, SequenceSettings

QUICK = {"steps": 0, "beam_size": 60}
DAY, START = 86_400, 1_600_000_000
LENGTH = 100  # days


def shop_log(users=400, newcomers=30, seed=0):
    """Users walk around groups of ten items; in the last week there are new users, and new items that all choose."""
    draw = np.random.default_rng(seed)
    rows = []
    for user in range(users + newcomers):
        is_new, position = user >= users, int(draw.integers(10))
        first = LENGTH - 7 if is_new else 0
        days = np.sort(draw.uniform(first, LENGTH, 6 if is_new else 12))
        for day in days:
            position = (position + 1) % 10
            fresh = day >= LENGTH - 7 and draw.random() < 0.5
            item = f"new{draw.integers(3)}" if fresh else f"i{(user % 6) * 10 + position:02}"
            rows.append((f"u{user:03}", item, int(START + DAY * day)))
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


LOG = shop_log()


@pytest.fixture(scope="module")
def shop():
    return bt.Recommender(**QUICK).fit(LOG, verbose=False)


def same(one, other):
    """Whether two models have the same parts; those without weight are not saved."""
    states = [model.scorer.drop_zero_parts().state_dict() for model in (one, other)]
    differing = [name for name, value in states[0].items() if not torch.equal(value, states[1].get(name, value + 1))]
    return not differing and states[0].keys() == states[1].keys()


# Which split is the default


@pytest.mark.parametrize(
    ("log", "options", "split"),
    [
        (LOG, {}, "time"),
        (LOG.with_columns(pl.from_epoch("time", "s")), {}, "time"),
        (LOG.with_columns(pl.col("time") - START), {}, None),  # a clock that nobody can read
        (LOG.drop("time"), {}, None),
        (LOG.filter(pl.col("user") < "u190"), {}, None),
        (LOG, {"val_users": 0, "test_users": 0}, None),
        (LOG, {"min_eval_events": 3}, None),
        (LOG, {"split": "halves"}, None),
        (LOG.with_columns(time=START), {}, None),
    ],
)
def test_a_clock_and_enough_users_make_a_split_by_time(tmp_path, log, options, split):
    described = bt.prepare(log, tmp_path / "data", **options)
    assert described["settings"].get("split") == split
    assert ("all" in described["users"]) == (split == "time")
    if "time" in log.columns:
        has_clock = described["times"]["unit"] is not None
        assert has_clock == (log["time"].dtype != pl.Int64 or log["time"].max() >= START)
    if split is None and "split" not in options:
        asked = {**options, "split": "halves"}
        assert bt.prepare(log, tmp_path / "halves", **asked)["fingerprint"] == described["fingerprint"]


def test_a_network_that_is_not_fitted_again_sees_the_newest_events():
    deep = bt.Recommender(recipe="deep", steps=1, beam_size=10).fit(LOG, verbose=False)
    assert "split" not in deep.data.description["settings"]


def test_dates_and_unix_times_are_a_clock_and_the_report_says_so(tmp_path):
    described = bt.prepare(LOG.with_columns(pl.from_epoch("time", "s")), tmp_path / "data")
    assert described["times"]["unit"] == MICRO
    assert describe_times(described) == "The times of this log are a clock (from 2020-09-13 to 2020-12-22)."
    described = bt.prepare(LOG.with_columns(pl.col("time") - START), tmp_path / "data")
    assert describe_times(described) == "The times of this log are only an order."
    assert describe_times({}) is None


def test_the_report_says_why_a_log_with_a_clock_is_split_by_users(tmp_path):
    few = LOG.filter(pl.col("user") < "u150")
    cut = few["time"].sort()[len(few) - len(few) // 10]
    ends = few.group_by("user").agg(pl.col("time").min().alias("first"), pl.col("time").max().alias("last"))
    both = ends.filter((pl.col("first") < cut) & (pl.col("last") >= cut)).height
    why = f" It is split by users: {both} have events before and in its newest tenth, which is too few."
    assert describe_times(bt.prepare(few, tmp_path / "data")).endswith(why)
    assert describe_times(bt.prepare(few, tmp_path / "data", split="halves")).endswith(").")


@pytest.mark.parametrize(
    ("period", "text"),
    [("1h", "last hour,"), ("12h", "last 12 hours,"), ("2d", "last 2 days,"), ("4w", "last 28 days,")],
)
def test_the_report_says_how_long_the_part_after_the_cut_is(tmp_path, period, text):
    hourly = LOG.sample(fraction=1, shuffle=True, seed=0).with_columns(time=START + pl.int_range(pl.len()) * 1000)
    described = bt.prepare(hourly, tmp_path / "data", split=f"time:{period}", val_users=1, test_users=1)
    assert f"events of the {text} from" in describe_split(described)


def test_items_after_the_cut_come_last_and_have_leaves(shop):
    data = shop.data
    trained = data.train.events.popularity(data.num_items)
    assert bool((trained.diff() <= 0).all())
    new = data.items.find(["new0", "new1", "new2"])
    assert not trained[new].any() or data.num_items - max(new) == 1
    assert data.num_items == LOG["item"].n_unique() == shop.model.tree.num_placed


# The second fit


def test_the_model_that_serves_is_fitted_to_all_events_on_a_tree_of_all_events(shop):
    data = shop.data
    counts = dict(LOG["item"].value_counts().rows())
    assert shop.model.popularity.tolist() == [counts[item] for item in data.items.names]
    before = shop.before_refit
    assert before.popularity.tolist() == data.train.events.popularity(data.num_items).tolist()
    assert before.scorer.hyperparameters == shop.model.scorer.hyperparameters
    assert torch.equal(before.scorer.weights, shop.model.scorer.weights)
    assert shop.model.tree.items().tolist() == shop._build_tree(data.of_all_events()).items().tolist()
    assert before.tree.items().tolist() == shop._build_tree(data).items().tolist()
    assert shop.model.tree.items().tolist() != before.tree.items().tolist()


def test_new_items_and_new_users_are_in_the_model(shop):
    assert {"u410", "u000"} <= set(shop.users.names)
    found = shop.recommend(users=["u410"], m=10)
    assert not found["popular"].any()
    ranks = [_rank(model, shop.data, "new0") for model in (shop.model, shop.before_refit)]
    assert ranks[0] < ranks[1]


def _rank(model, data, item):
    history = torch.full((1, 69), bt.PAD)
    history[0, :2] = torch.tensor(data.items.find(["new1", "new2"]))
    items = bt.retrieve(model, history, beam_size=64, m=data.num_items)[0][0].tolist()
    return items.index(data.items.find([item])[0])


def test_what_is_measured_is_the_first_model(shop, tmp_path):
    plain = bt.Recommender(**QUICK, refit=False).fit(LOG, verbose=False)
    expected = plain.evaluate(m=10).records()
    assert same(shop.before_refit, plain.model)
    assert shop.evaluate(m=10).model == BEFORE
    assert shop.evaluate(m=10).records() == expected
    shop.save(tmp_path / "run")
    loaded = bt.Recommender.load(tmp_path / "run")
    assert same(loaded.before_refit, plain.model)
    assert loaded.before_refit.tree.items().tolist() == plain.model.tree.items().tolist()
    assert loaded.evaluate(m=10).records() == expected
    beamtree("evaluate", "run", "--m", "10", "--json", "found.json", folder=tmp_path)
    cells = json.loads((tmp_path / "found.json").read_text())
    assert [{name: cell[name] for name in expected[0]} for cell in cells] == expected


def test_the_same_seed_gives_the_same_model_and_the_command_does_so_too(shop, tmp_path):
    again = bt.Recommender(**QUICK).fit(LOG, verbose=False)
    assert same(again.model, shop.model)
    LOG.write_parquet(tmp_path / "log.parquet")
    done = beamtree("prepare", "log.parquet", "--out", "data", folder=tmp_path)
    assert "The times of this log are a clock" in done.stdout
    done = beamtree("train", "data", "--out", "run", "--steps", "0", "--beam-size", "60", folder=tmp_path)
    assert f"The model was chosen on what {len(shop.data.val)} users did in the last 7 days." in done.stdout
    loaded = bt.Recommender.load(tmp_path / "run")
    assert same(loaded.model, shop.model)
    assert loaded.model.tree.items().tolist() == shop.model.tree.items().tolist()


@pytest.fixture
def trainings(monkeypatch):
    """What the trainings of sequence parts were given, which are short and add the part whatever it finds."""
    settings = SequenceSettings(16, 0.2, 0.0, 1, 40, 20, None, batch_size=16)
    monkeypatch.setattr(acceptance, "choose_weights", lambda candidates, start, loss: {**start, SEQUENCE: 0.1})
    monkeypatch.setattr(acceptance.Gain, "is_certain", lambda gain, *limits: True)
    monkeypatch.setattr(sequence_part, "sequence_settings", lambda data, device, minutes: settings)
    given, original = [], sequence_part.fit_sequence

    def recorded(events, num_items, settings, **options):
        assert num_items == 63
        users, size = len(events), int(events.counts().sum())
        given.append((users, size, settings.steps, options.get("trained")))
        return original(events, num_items, settings, **options)

    monkeypatch.setattr(sequence_part, "fit_sequence", recorded)
    return given


def test_the_sequence_part_is_trained_again_for_the_steps_that_were_chosen(trainings):
    shop = bt.Recommender(**QUICK, sequence=True).fit(LOG, verbose=False)
    record = shop.model.scorer.hyperparameters[SEQUENCE]
    assert SEQUENCE in shop.model.scorer.names, record
    assert record["steps"] in (20, 40)
    before = (len(shop.data.train), int(shop.data.train.events.counts().sum()))
    assert trainings == [(*before, 40, None), (430, len(LOG), record["steps"], None)]
    first = shop.before_refit
    shop._measured = shop._first = None
    again = shop.before_refit
    assert again is not first
    assert same(again, first)
    assert trainings[2] == (*before, record["steps"], None)


def test_training_goes_on_where_there_is_no_time_to_begin_again(trainings, monkeypatch):
    monkeypatch.setattr(sequence_part.BestPart, "finish", lambda part: setattr(part, "more_steps", 7))
    shop = bt.Recommender(**QUICK, sequence=True).fit(LOG, verbose=False)
    first = shop.before_refit
    users, size, steps, (encoder, vectors) = trainings[1]
    assert (users, size, steps) == (430, len(LOG), 7)
    part = first.scorer.part(SEQUENCE)
    same_weights = zip(encoder.parameters(), part.encoder.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in same_weights)
    known = shop.data.train.events.popularity(63) > 0
    expected = part.item_vectors(first.tree).float()
    torch.testing.assert_close(vectors[known], expected[known])
    assert not torch.isclose(vectors[~known], expected[~known]).all(1).any()  # those of new items begin anew
    shop._measured = shop._first = None
    assert same(shop.before_refit, first)
    assert trainings[2][2:] == (shop.model.scorer.hyperparameters[SEQUENCE]["steps"], None)


def test_the_first_model_is_saved_where_a_part_of_it_was_trained(trainings, tmp_path, monkeypatch):
    shop = bt.Recommender(**QUICK, sequence=True).fit(LOG, verbose=False)
    first, expected = shop.before_refit, shop.evaluate(m=10).records()
    shop.save(tmp_path / "run")
    bt.Recommender.load(tmp_path / "run").save(tmp_path / "copy")
    loaded = bt.Recommender.load(tmp_path / "copy")
    assert same(loaded.before_refit, first)
    assert loaded.before_refit.tree.items().tolist() == first.tree.items().tolist()
    assert loaded.evaluate(m=10).records() == expected
    assert copy.deepcopy(shop).evaluate(m=10).records() == expected
    beamtree("evaluate", "copy", "--m", "10", "--json", "found.json", folder=tmp_path)
    cells = json.loads((tmp_path / "found.json").read_text())
    assert [{name: cell[name] for name in expected[0]} for cell in cells] == expected
    # Items that were removed, and events that came since, train nothing again either
    loaded.remove_items(["i00"])
    loaded.update(pl.DataFrame({"user": ["u000", "v"], "item": ["i01", "i02"], "time": [START + DAY * 101] * 2}))
    changed = loaded.before_refit
    assert changed.tree.hidden().tolist() == loaded.ids.find(["i00"])
    assert torch.equal(changed.popularity, first.popularity)
    assert len(trainings) == 2
    bt.Recommender(**QUICK, sequence=False).fit(LOG, verbose=False).save(tmp_path / "run")
    assert not (tmp_path / "run" / "before_refit").exists()


def test_the_command_saves_the_first_model_too(trainings, tmp_path):
    LOG.write_parquet(tmp_path / "log.parquet")
    beamtree("prepare", "log.parquet", "--out", "data", folder=tmp_path)
    words = ["train", "data", "--out", "run", "--steps", "0", "--beam-size", "60", "--sequence"]
    beamtree(*words, folder=tmp_path)
    loaded = bt.Recommender.load(tmp_path / "run")
    scores = loaded._run["training"]["before_refit"]["scores"]
    found = {(each["metric"], each["m"]): each["value"] for each in loaded.evaluate(m=(10, 50)).records()}
    assert {key: found[key] for key in found if key[0] == "recall"} == {
        (each["metric"], each["m"]): each["value"]
        for each in scores
        if each["metric"] == "recall" and each["m"] in (10, 50)
    }
    assert len(trainings) == 2
    assert "before_refit" in beamtree("check", "run", folder=tmp_path).stdout


def test_a_tree_that_only_python_knows_is_that_of_the_first_model_after_loading(tmp_path):
    def build(data):
        return bt.random_tree(data.num_items, seed=int(data.train.events.counts().sum()))

    shop = bt.Recommender(**QUICK, tree=build).fit(LOG, verbose=False)
    expected = shop.evaluate(m=10).records()
    shop.save(tmp_path / "run")
    loaded = bt.Recommender.load(tmp_path / "run")
    assert loaded.before_refit.tree.items().tolist() == shop.before_refit.tree.items().tolist()
    assert loaded.evaluate(m=10).records() == expected


def test_a_run_of_an_earlier_version_says_that_a_part_is_trained_again(trainings, tmp_path, caplog):
    shop = bt.Recommender(**QUICK, sequence=True).fit(LOG, verbose=False)
    shop.save(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "before_refit")
    assert same(bt.Recommender.load(tmp_path / "run").before_refit, shop.before_refit)
    assert "its sequence part is trained again, which takes a while" in caplog.text
    assert len(trainings) == 3


def test_a_run_that_was_killed_between_the_fits_is_the_same_when_it_continues(shop, tmp_path, monkeypatch):
    one, other = train_again_after_a_kill(shop.data.folder, tmp_path, monkeypatch)
    assert same(one.model, other.model)
    assert one.model.tree.items().tolist() == other.model.tree.items().tolist()
    assert int(one.model.popularity.sum()) == len(LOG)


# Afterwards


def test_a_cut_after_which_all_users_are_new_is_one_clear_line(tmp_path):
    cut = START + DAY * 90
    log = LOG.with_columns(user=pl.when(pl.col("time") < cut).then("user").otherwise(pl.lit("new ") + pl.col("user")))
    message = rf"^split=time:{cut}: no user has events both before and after it: choose another date$"
    with pytest.raises(ValueError, match=message):
        bt.prepare(log, tmp_path / "data", split=f"time:{cut}")


@pytest.mark.parametrize(("dates", "kind"), [(False, "numbers.* a period such as 30d"), (True, "dates.* 30d")])
@pytest.mark.parametrize("point", ["0d", "-5d", "12 h", "30y", "2020-13-01", "soon"])
def test_a_period_that_is_none_is_one_clear_line(tmp_path, dates, kind, point):
    log = LOG.with_columns(pl.from_epoch("time")) if dates else LOG
    message = rf"^split=time:{point}: '{point}' cannot be read; the times of the log are {kind}$"
    with pytest.raises(ValueError, match=message):
        bt.prepare(log, tmp_path / "data", split=f"time:{point}")


def test_a_renewal_adds_events_moves_the_cut_on_and_fits_to_all_of_them(shop, tmp_path):
    shop.save(tmp_path / "run")
    day = START + DAY * (LENGTH + 1)
    rows = [(f"u{user:03}", f"i{user % 60:02}" if user % 3 else "newest", day + user) for user in range(0, 430, 2)]
    rows += [(f"v{user:03}", item, day + user) for user in range(5) for item in ("newest", "i00")]
    today = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    result = renew(tmp_path / "run", today, force=True, verbose=False)
    assert (result.events, result.users, result.items, result.saved) == (len(rows), 5, 1, True)
    renewed = bt.Recommender.load(tmp_path / "run")
    data, before = renewed.data, shop.data.description["times"]
    log = pl.concat([LOG, today])
    assert data.description["num_events"] == len(log)
    assert data.description["times"]["cut"] == sorted(log["time"])[len(log) - len(log) // 10] > before["cut"]
    assert data.joined_users(data.whole) == log["user"].unique().sort().to_list()
    assert int(data.train.events.counts().sum()) == int((log["time"] < data.description["times"]["cut"]).sum())
    assert "newest" in renewed.recommend(["newest", "i00"], m=60)["item"].to_list()
    held_out = result.evaluated
    assert int(renewed.model.popularity.sum()) == len(log) - held_out
    first = renewed.before_refit
    assert first.popularity.tolist() == data.train.events.popularity(data.num_items).tolist()
    assert len(renewed.evaluate(m=10).scores) > 0


def test_a_date_stays_where_it_is_when_events_are_added(tmp_path):
    date = START + DAY * 90
    bt.Recommender(**QUICK).fit(LOG, split=f"time:{date}", verbose=False).save(tmp_path / "run")
    days = [START + DAY * (LENGTH + day) for day in range(1, 10)]
    today = pl.DataFrame({"user": ["u000"] * 9, "item": ["i01"] * 9, "time": days})
    renew(tmp_path / "run", today, force=True, verbose=False)
    description = bt.Recommender.load(tmp_path / "run").data.description
    assert (description["times"]["cut"], description["num_events"]) == (date, len(LOG) + 9)


def test_an_update_counts_every_event_once(shop, tmp_path):
    shop.save(tmp_path / "run")
    changed = bt.Recommender.load(tmp_path / "run")
    rows = {"user": ["u000", "somebody"], "item": ["i01", "new1"], "time": [START + DAY * 101] * 2}
    changed.update(pl.DataFrame(rows))
    assert int(changed.model.popularity.sum()) == len(LOG) + 2
    assert changed.users.names[:1] == ["somebody"]

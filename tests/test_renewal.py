"""Nightly renewal: the joined log, the renewed model, when it is saved, and how to go back."""

import contextlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree, largest_file
from hypothesis import given
from hypothesis import strategies as st
from sample_logs import cyclic_log

import beamtree as bt
from beamtree.data.views import HISTORY
from beamtree.files import staging
from beamtree.ingest.append import append_log
from beamtree.live import renew, renewal
from beamtree.live.placement import like_histories
from beamtree.parts import PARTS
from beamtree.parts.closed_form import ClosedForm
from beamtree.storage.settings import fingerprint
from beamtree.tree import PAD

WHOLE = cyclic_log(users=240).with_columns(  # a fifth of the events are of any item
    item=pl.when(pl.Series(np.random.default_rng(0).random(2880) < 0.2))
    .then(pl.Series([f"i{item:02}" for item in np.random.default_rng(1).integers(60, size=2880)]))
    .otherwise("item")
)
LOG = WHOLE.filter(pl.col("user") < "u180")
TODAY = pl.concat(
    [
        WHOLE.filter(pl.col("user") >= "u180"),
        pl.DataFrame([("u001", "i13", 20), ("u001", "i14", 21)], orient="row", schema=WHOLE.schema),
    ]
)
# In group 2, the new item takes the place of i25.
TODAY = TODAY.with_columns(item=pl.when(pl.col("item") == "i25").then(pl.lit("new")).otherwise("item"))


def disliked_by(data, user):
    (row,) = data.users.find([user])
    return [] if row is None else data.dislikes([row])[0]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A run of yesterday's log, and a file of today's events."""
    folder = tmp_path_factory.mktemp("fitted")
    bt.Recommender(steps=0, seed=3).fit(LOG, test_users=12, val_users=12, verbose=False).save(folder / "run")
    TODAY.write_parquet(folder / "today.parquet")
    return folder


@pytest.fixture
def run(fitted, tmp_path):
    return shutil.copytree(fitted / "run", tmp_path / "run")


@pytest.fixture(scope="module")
def renewed(fitted, tmp_path_factory):
    """A renewed run and its report."""
    run = shutil.copytree(fitted / "run", tmp_path_factory.mktemp("renewed") / "run")
    return run, renew(run, TODAY, verbose=False)


def best(run, history, m=10):
    return bt.Recommender.load(run).recommend(history, m=m)["item"].to_list()


# The joined log


def sequences(data):
    """The items of every user by section, and where they are cut."""
    result = {}
    first = 0
    for name in ("train", "val", "test"):
        view = getattr(data, name)
        for row in range(len(view)):
            start, stop = view.events.offsets[row : row + 2].tolist()
            cut = (stop - start) // 2 if view.cuts is None else int(view.cuts[row])
            items = [data.items[number] for number in view.events.items[start:stop].tolist()]
            weights = None if view.events.weights is None else view.events.weights[start:stop].tolist()
            result[data.users[first + row], name] = items, cut, weights
        first += len(view)
    return result


rows_of_log = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 9), st.integers(0, 30), st.sampled_from(["view", "buy", "dislike"])),
    min_size=30,
    max_size=60,
    unique_by=lambda row: (row[0], row[2]),  # ties are in the order of the log, which two files do not share
)


def frame(rows):
    rows = [(f"u{user}", f"i{item}", time, kind) for user, item, time, kind in rows]
    return pl.DataFrame(rows, schema=["user", "item", "time", "kind"], orient="row")


@given(rows_of_log, st.integers(10, 25), st.sampled_from(["leave-one-out", "halves"]))
def test_a_log_in_two_parts_is_the_log_in_one(tmp_path_factory, rows, count, split):
    folder, log = tmp_path_factory.mktemp("append"), frame(rows)
    kinds = {"kinds": {"view": 1, "buy": 5, "dislike": -1}}
    first = log[count:]
    try:
        bt.prepare(first, folder / "old", split=split, **kinds)
    except ValueError:  # too few users for this split
        return
    old = bt.load_data(folder / "old")
    try:
        added = append_log(old, old.items, log, folder / "new")  # all rows of `first` again
    except ValueError:
        assert set(log.rows()) == set(first.rows())
        return
    new = bt.load_data(folder / "new")
    assert new.items.names[: len(old.items)] == old.items.names
    assert len(added.is_new) == int(new.test.events.offsets[-1])
    bt.prepare(log, folder / "whole", min_events=1, **kinds)
    whole, scale = bt.load_data(folder / "whole"), old.description["mean_weight"]
    expected = {user: value for (user, _), value in sequences(whole).items()}
    found = sequences(new)
    longest = {
        user: max((found[user, n] for n in ("train", "val", "test") if (user, n) in found), key=len_of)
        for user, _ in found
    }
    for user, (items, _, weights) in expected.items():
        mean = whole.description["mean_weight"]
        got = longest[user]
        if split == "halves" or len(items) >= 3:
            assert len(got[0]) == len(items) or split == "leave-one-out"
        assert got[0] == items[: len(got[0])]
        assert [w * scale for w in got[2]] == pytest.approx([w * mean for w in weights[: len(got[0])]], rel=1e-5)
    assert {(u, whole.items[i]) for u in expected for i in disliked_by(whole, u)} == {
        (u, new.items[i]) for u in expected for i in disliked_by(new, u)
    }
    if split == "halves":
        before = dict(sequences(old).keys())
        for user, section in found:
            assert section in (before.get(user, section), "train")
    else:
        for user, items in longest.items():
            if len(items[0]) >= 3 and (user, "test") in found:
                assert found[user, "train"][0] == items[0][:-2]
                assert found[user, "test"][1] == len(items[0]) - 1


def len_of(value):
    return len(value[0])


def test_new_events_are_marked_and_counted(fitted, tmp_path):
    data = bt.load_data(fitted / "run" / "data")
    rows = pl.concat([TODAY, LOG.head(30), pl.DataFrame({"user": [None], "item": ["i01"], "time": [1]})])
    added = append_log(data, data.items, rows, tmp_path / "new")
    assert (added.events, added.users, added.items, added.repeated, added.dropped) == (722, 60, 1, 30, 1)
    assert int(added.is_new.sum()) == 722
    new = bt.load_data(tmp_path / "new")
    (row,) = new.users.find(["u001"])
    start, stop = new.train.events.offsets[row : row + 2].tolist()
    assert added.is_new[start:stop].tolist() == [False] * 12 + [True] * 2


@pytest.mark.parametrize(("unit", "other"), [(1, 10**3), (10**6, 1)])
def test_times_may_have_another_unit(tmp_path, unit, other):
    begin = 1_700_000_000
    log = LOG.with_columns(time=(pl.col("time") + begin) * unit)
    bt.prepare(log, tmp_path / "old")
    old = bt.load_data(tmp_path / "old")
    later = pl.DataFrame({"user": ["u003"], "item": ["i01"], "time": [(begin + 5) * other + (other > 1)]})
    again = LOG.head(50).with_columns(time=(pl.col("time") + begin) * other)
    added = append_log(old, old.items, pl.concat([again, later]), tmp_path / "new")
    assert (added.events, added.repeated) == (1, 50)
    with pytest.raises(ValueError, match="of another kind"):
        append_log(old, old.items, LOG, tmp_path / "bad")


# The renewed model


@pytest.mark.parametrize("refit", [False, True])
def test_parts_are_those_of_the_joined_log_with_yesterdays_choices(tmp_path, refit):
    run = tmp_path / "run"
    old = bt.Recommender(steps=0, seed=3, refit=refit)
    old.fit(LOG, val_users=0, verbose=False)  # without choices all parts have weight
    old.save(run)
    report, new = renew(run, TODAY, verbose=False), bt.Recommender.load(run)
    data, scorer = new.data, new.model.scorer
    assert {"factors", "memory"} <= set(scorer.names)
    assert scorer.hyperparameters == old.model.scorer.hyperparameters
    assert torch.equal(scorer.weights, bt.load_model(tmp_path / "run.previous").scorer.weights)
    form = ClosedForm(
        new.model.tree, data, 3, "cpu", new.model.first_level, hyperparameters=dict(scorer.hyperparameters), parts=PARTS
    )
    form.log, evaluated = held_out_by_definition(data, data.sections if refit else data.sections[:1])
    parts = form.fit()
    for name in ("factors", "memory"):
        for key, value in parts.part(name).state_dict().items():
            assert torch.equal(value, scorer.part(name).state_dict()[key]), (name, key)
    assert report.evaluated == evaluated > 10


def held_out_by_definition(data, sections):
    """The events without the second half of the new ones of a quarter of the users; and how many these users are.

    Only those count that are at a user's end, after at least one event that is left.
    """
    events, names, rows, users = data.joined(sections), data.joined_users(sections), [], []
    for row, count in enumerate(events.counts().tolist()):
        name, start = names[row], int(events.offsets[row])
        newest = count if name >= "u180" else 2 if name == "u001" else 0
        held = newest - newest // 2
        rows.append((events.items[start : start + count].tolist(), held))
        if 0 < held < count:
            users.append(row)
    order = torch.randperm(len(users), generator=torch.Generator().manual_seed(3))[: len(users) // 4]
    chosen = {users[place] for place in order.tolist()}
    kept = [items[: len(items) - held] if row in chosen else items for row, (items, held) in enumerate(rows)]
    offsets = torch.tensor([0, *(len(items) for items in kept)]).cumsum(0)
    items = torch.tensor([item for row in kept for item in row], dtype=torch.int32)
    return replace(events, offsets=offsets, items=items), len(chosen)


def test_users_of_an_update_are_not_compared(run):
    """Yesterday's model was fitted to their new events already."""
    shop = bt.Recommender.load(run)
    shop.update(TODAY.filter(pl.col("user") >= "u200", pl.col("item") != "new")).save(run)
    report = renew(run, TODAY, verbose=False)
    data = bt.load_data(run / "data")
    known = {*data.val.user_names(), *(f"u{user}" for user in range(200, 240))}
    others = {*TODAY["user"].unique()} - known
    assert report.evaluated == len(others) // 4 > 2


def test_new_items_are_recommended_and_old_ones_keep_their_numbers(fitted, renewed):
    run, report = renewed
    old, new = bt.load_model(fitted / "run"), bt.load_model(run)
    assert new.ids.names == [*old.ids.names, "new"]
    assert "new" in best(run, ["i23", "i24"], m=12)
    assert "new" not in best(run, ["i43", "i44"], m=12)
    leaf = int(new.tree.leaf_of_item(torch.tensor([60]))[0])
    first = new.tree.level(new.tree.height).start
    beside = new.tree.items()[max(0, leaf - first - 4) : leaf - first + 5]
    groups = [new.ids[item][1] for item in beside.tolist() if item not in (PAD, 60)]
    assert max(groups, key=groups.count) == "2"
    assert report.items == 1
    assert report.saved
    assert 0.5 < report.unchanged <= 1


def test_users_of_today_have_their_histories(renewed):
    shop = bt.Recommender.load(renewed[0])
    assert shop.recommend(users=["u001", "u200"], m=3).height == 6
    assert len(shop.data.test) >= 12
    assert shop.evaluate(10)["recall", 10] > 0.5


def test_users_of_today_were_in_training_after_a_renewal(fitted, renewed):
    assert not any(
        "in training" in text for text in bt.Recommender.load(fitted / "run").evaluate(10, data=TODAY).warnings
    )
    with pytest.warns(UserWarning, match=r"\d+ of 61 users were in training") as found:
        result = bt.Recommender.load(renewed[0]).evaluate(10, data=TODAY)
    assert [str(each.message) for each in found] == result.warnings
    assert result.warnings[0].startswith("61 of 61 users were")


def test_similar_items_of_a_new_one_are_those_of_its_users_histories(fitted, renewed):
    model, data = bt.load_model(fitted / "run"), bt.load_data(renewed[0] / "data")
    events = data.train.events
    placement = renewal._placements(model, events, data)["new"]
    histories = []
    for row in range(len(events)):
        items = events.items[events.offsets[row] : events.offsets[row + 1]].tolist()
        if 60 in items:
            histories.append([item for item in items if item != 60])
    model.popularity = events.popularity(61)
    expected = like_histories(model, histories)
    order, other = placement.items.sort(), expected.items.sort()
    assert order.values.tolist() == other.values.tolist()
    assert torch.allclose(placement.shares[order.indices], expected.shares[other.indices])


@given(st.integers(0, 2**20), st.integers(1, 25))
def test_users_for_a_smaller_model_have_its_items_as_history_and_all_targets(seed, count):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 9, (6,), generator=generator)
    items = torch.randint(0, 30, (int(lengths.sum()),), generator=generator).int()
    weights = torch.randn(len(items), generator=generator)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    cuts = 1 + (torch.rand(6, generator=generator) * (lengths - 1)).long()
    users = bt.data.BeforeAfter(bt.data.Events(offsets, items, "test", weights=weights), cuts)
    model = bt.TreeModel(bt.random_tree(count), bt.LinearScorer(bt.random_tree(count).num_nodes, 2))
    x, y = renewal.known_to(model, users).batch(torch.arange(6))
    for row in range(6):
        own = items[offsets[row] : offsets[row + 1]].tolist()
        signs = weights[offsets[row] : offsets[row + 1]].tolist()
        cut = int(cuts[row])
        assert [i for i in x[row].tolist() if i != PAD] == [i for i in own[:cut] if i < count][::-1]
        assert [i for i in y[row].tolist() if i != PAD] == [
            i for i, sign in zip(own[cut:], signs[cut:], strict=True) if sign > 0
        ]
    assert x.shape[1] == HISTORY


@pytest.mark.extended
def test_training_keeps_the_start_or_something_better(run, monkeypatch):
    fitted_to = []
    monkeypatch.setattr(
        renewal, "refit_parts", lambda *given, **named: fitted_to.append(given[2]) or REFIT(*given, **named)
    )
    report = renew(run, TODAY, steps=4, verbose=False)
    data = bt.load_data(run / "data")
    assert [len(events) for events in fitted_to] == [len(data.train), len(data.train) + len(data.val) + len(data.test)]
    assert report.steps == 4
    assert report.saved
    assert "new" in best(run, ["i23", "i24"], m=12)


@pytest.mark.parametrize("split", ["halves", "leave-one-out"])
def test_kinds_targets_and_dislikes_are_read_as_in_the_first_log(tmp_path, split):
    kind = pl.col("time").replace_strict({0: "view", 1: "dislike"}, default="buy")
    reading = {"kinds": {"view": 1, "buy": 4, "dislike": -1}, "target": "buy", "split": split}
    shop = bt.Recommender(steps=0).fit(LOG.with_columns(kind=kind), verbose=False, **reading)
    shop.save(tmp_path / "run")
    report = renew(tmp_path / "run", TODAY.with_columns(kind=kind), verbose=False)
    assert report.saved
    assert report.events == 722 - 60
    data = bt.Recommender.load(tmp_path / "run").data
    weights = data.train.events.weights * data.description["mean_weight"]
    assert {round(weight, 4) for weight in weights.tolist()} == {-1.0, 4.0}
    (disliked,) = TODAY.filter(pl.col("user") == "u200", pl.col("time") == 1)["item"]
    assert [data.items[number] for number in disliked_by(data, "u200")] == [disliked]
    assert [data.items[number] for number in disliked_by(data, "u002")] == [LOG.row(25)[1]]
    with pytest.raises(ValueError, match="kind"):
        renew(tmp_path / "run", TODAY, verbose=False)


# Changes made without training


def test_live_changes_stay_and_their_events_count_once(run):
    shop = bt.Recommender.load(run)
    shop.update_items({"live": {"like": ["i33"], "title": "A kettle"}, "seen": {"like": ["i33"]}})
    shop.remove_items(["i07"])
    shop.forget_items(["i08"])
    shop.save(run)
    shop._live_model().record_events([("u001", ["i13"], 20), ("ann", ["i33"], 5)])
    shop.save(run)
    today = TODAY.with_columns(item=pl.when(pl.col("item") == "i31").then(pl.lit("seen")).otherwise("item"))
    renew(run, today, verbose=False, force=True)
    changes = json.loads((run / "live.json").read_text())
    assert changes["added"] == ["live"]
    assert changes["events"].keys() == {"ann"}
    found = best(run, ["i32", "i33", "i34"], m=60)
    assert {"live", "seen"} <= set(found)
    assert not {"i07", "i08"} & set(found)
    assert bt.Recommender.load(run).ids.names[60:] == ["live", "seen", "new"]


def test_a_much_larger_catalogue_gets_a_new_tree(run):
    shop = bt.Recommender.load(run)
    shop.remove_items(["i07"])
    shop.forget_items(["i08"])
    shop.save(run)
    more = TODAY.with_columns(item=pl.when(pl.col("item") > "i30").then("item").otherwise(pl.lit("j") + pl.col("item")))
    report = renew(run, more, verbose=False, force=True)
    assert report.growth > 0.3
    assert report.rebuilt == "built again"
    found = best(run, ["i03", "i04"], m=80)
    assert any(item.startswith("ji") for item in found)
    assert not {"i07", "i08"} & set(found)
    assert json.loads((run / "run.json").read_text())["tree_items"] == bt.load_model(run).tree.num_items


# Saved or not


def worse(grown, *arguments, **named):
    """The model with scores turned around."""
    model = REFIT(grown, *arguments, **named)
    model.scorer.weights = -model.scorer.weights
    return model


REFIT = renewal.refit_parts


def test_a_worse_model_is_not_saved_unless_forced(run, tmp_path, monkeypatch, fitted):
    before = fingerprint(run)
    monkeypatch.setattr(renewal, "refit_parts", worse)
    done = beamtree("renew", "run", str(fitted / "today.parquet"), "--json", "r.json", folder=tmp_path, check=False)
    assert done.returncode == 3, done.stderr
    assert "Not saved" in done.stdout
    record = json.loads((tmp_path / "r.json").read_text())
    assert (record["result"], record["saved"]) == ("worse", False)
    assert record["recall"][0]["high"] < 0
    assert record["recall"][0]["after"] < record["recall"][0]["before"]
    assert fingerprint(run) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", "run"]
    beamtree("renew", "run", str(fitted / "today.parquet"), "--force", folder=tmp_path)
    assert fingerprint(run) != before


def test_a_run_can_be_rolled_back_and_forward(run, tmp_path, fitted):
    before, today = fingerprint(run), str(fitted / "today.parquet")
    done = beamtree("renew", "run", today, folder=tmp_path)
    assert "Added 722 events, 60 users and 1 items." in done.stdout
    after = fingerprint(run)
    beamtree("check", "run", folder=tmp_path)
    beamtree("renew", "run", "--roll-back", folder=tmp_path)
    assert fingerprint(run) == before
    assert "new" not in best(run, ["i23", "i24"], m=12)
    beamtree("renew", "run", "--roll-back", folder=tmp_path)
    assert fingerprint(run) == after


def no_rows(log):
    return log.clear()


def the_same_rows(log):
    return log


@pytest.mark.parametrize("tonight", [no_rows, the_same_rows])
def test_a_night_with_nothing_new_leaves_the_run_unchanged_and_is_no_error(renewed, tmp_path, tonight):
    run = shutil.copytree(renewed[0], tmp_path / "run")
    before, rows = fingerprint(run), tonight(TODAY)
    rows.write_csv(tmp_path / "tonight.csv")
    done = beamtree("renew", "run", "tonight.csv", "--force", "--json", "r.json", folder=tmp_path)
    assert done.stdout == f"Unchanged: the log has {len(rows):,} rows, and nothing in them is new.\n"
    record = json.loads((tmp_path / "r.json").read_text())
    assert (record["result"], record["saved"], record["events"]) == ("unchanged", False, 0)
    assert (record["repeated"], record["unchanged"], record["recall"]) == (len(rows), 1.0, [])
    assert fingerprint(run) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", "run", "tonight.csv"]


def test_dislikes_that_are_known_are_nothing_new(tmp_path):
    kind = pl.col("time").replace_strict({1: "dislike"}, default="view")
    log, today = (rows.with_columns(kind=kind) for rows in (LOG, TODAY))
    bt.Recommender(steps=0).fit(log, verbose=False, kinds={"view": 1, "dislike": -1}).save(tmp_path / "run")
    assert renew(tmp_path / "run", today, verbose=False).result == "saved"
    assert renew(tmp_path / "run", today, verbose=False).result == "unchanged"


def test_a_log_of_which_no_row_can_be_used_is_an_error(run):
    with pytest.raises(ValueError, match="none of the 722 rows of the log can be used"):
        renew(run, TODAY.with_columns(user=pl.lit(None, pl.String)), verbose=False)


def test_a_run_can_be_renewed_every_night(renewed, tmp_path):
    run = shutil.copytree(renewed[0], tmp_path / "run")
    tomorrow = TODAY.with_columns(user="v" + pl.col("user"), item=pl.col("item").replace("new", "newer"))
    report = renew(run, tomorrow, verbose=False)
    assert report.saved
    assert bt.load_model(run).ids.names[60:] == ["new", "newer"]
    assert json.loads((run / "run.json").read_text())["renewals"] == 2
    assert bt.load_model(tmp_path / "run.previous").ids.names[60:] == ["new"]


class Killed(BaseException):
    """Stands for a kill: nothing is cleaned up after it."""


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("operation", range(1, 6))
@pytest.mark.parametrize("command", ["renew", "roll back"])
def test_a_kill_between_renames_leaves_the_former_run(tmp_path, monkeypatch, command, operation, can_exchange):
    """At every rename of the last steps, where folders can be swapped at once and where they cannot."""
    run, previous, kept = (tmp_path / f"run{suffix}" for suffix in ("", ".previous", ".kept"))
    for folder, name in ((run, "old"), (previous, "older"), (tmp_path / "draft" / "run", "new")):
        folder.mkdir(parents=True)
        for file in ("run.json", "settings.json"):
            (folder / file).write_text(f'{{"data": "{name}"}}')
    count, rename = 0, os.rename

    def killed_rename(*paths):
        nonlocal count
        count += 1
        if count >= operation:
            raise Killed
        rename(*paths)

    def end(folder):
        return json.loads((folder / "run.json").read_text())["data"]

    if not can_exchange:
        monkeypatch.setattr(renewal, "exchange", lambda one, other: False)
        monkeypatch.setattr(staging, "exchange", lambda one, other: False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed_rename)
        with contextlib.suppress(Killed):
            if command == "roll back":
                renewal.roll_back(run)
            else:
                renewal._keep(run)
                renewal.swap(run, tmp_path / "draft" / "run")
                renewal._complete(run)
    renewal._recover(run)
    assert not kept.exists()
    former = {"old": "older", "new": "old", "older": "old"}
    assert end(previous) == former[end(run)]
    now = end(run)
    renewal.roll_back(run)
    assert (end(run), end(previous)) == (former[now], now)


@pytest.mark.parametrize("step", ["append_log", "refit_parts", "save_model", "_keep", "move_into_place", "swap"])
def test_a_renewal_that_is_stopped_leaves_the_run(run, monkeypatch, step):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    place = "beamtree.ingest.append.append_log" if step == "append_log" else f"beamtree.live.renewal.{step}"
    before = fingerprint(run)
    with monkeypatch.context() as patch:
        patch.setattr(place, stop)
        with pytest.raises(KeyboardInterrupt):
            renew(run, TODAY, verbose=False)
    assert fingerprint(run) == before
    assert bt.Recommender.load(run).data.num_items == 60
    leftover = run.with_name("run.new-beamtree")
    assert os.listdir(run.parent) == ["run"]
    (leftover / "run").mkdir(parents=True)  # of a process that was killed
    assert renew(run, TODAY, verbose=False).saved


def test_a_run_with_data_elsewhere_gets_its_own(fitted, tmp_path):
    data = shutil.copytree(fitted / "run" / "data", tmp_path / "prepared")
    bt.Recommender(steps=0).fit(data, verbose=False).save(tmp_path / "run")
    before = sorted((path.name, path.stat().st_mtime_ns) for path in data.iterdir())
    renew(tmp_path / "run", TODAY, verbose=False)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in data.iterdir()) == before
    shutil.rmtree(data)
    assert bt.Recommender.load(tmp_path / "run").data.num_items == 61


# Errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "give the new events"),
        (["run", "nothing.parquet"], "nothing.parquet"),
        (["nowhere", "today.parquet"], "is not a run"),
        (["run", "--roll-back"], "was not renewed"),
        (["run", "today.parquet", "--roll-back"], "takes no LOG"),
        (["run", "today.parquet", "--time", "when"], "when"),
        (["run", "one.parquet"], "too few users of the log can be evaluated on: --force"),
    ],
)
def test_errors_are_one_line_and_change_nothing(run, fitted, tmp_path, words, message):
    shutil.copy(fitted / "today.parquet", tmp_path)
    TODAY.head(1).write_parquet(tmp_path / "one.parquet")
    before = fingerprint(run)
    done = beamtree("renew", *words, folder=tmp_path, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert fingerprint(run) == before


def test_only_models_with_closed_form_parts_and_open_logs_are_renewed(fitted, tmp_path):
    bt.Recommender(steps=1, recipe="deep").fit(LOG, verbose=False).save(tmp_path / "deep")
    with pytest.raises(ValueError, match="no closed-form parts"):
        renew(tmp_path / "deep", TODAY)


def test_a_run_keeps_its_log_of_training(run):
    (run / "log.jsonl").write_text("{}\n")
    renew(run, TODAY, verbose=False)
    assert Path(run / "log.jsonl").read_text() == "{}\n"


def test_a_full_disk_is_one_line_that_names_the_run(run, tmp_path, fitted):
    before = fingerprint(run)
    with largest_file(2000):
        done = beamtree("renew", "run", str(fitted / "today.parquet"), folder=tmp_path, check=False)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("beamtree: ")]
    assert done.returncode == 2
    assert "run" in line
    assert "cannot be written: " in line
    assert fingerprint(run) == before
    assert os.listdir(tmp_path) == ["run"]

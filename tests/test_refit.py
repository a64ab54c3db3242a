"""A model that serves is fitted to all users; numbers about it are of the model before that."""

import json
from copy import deepcopy

import polars as pl
import pytest
import torch
from command import beamtree, train_again_after_a_kill
from ranks import run_ranks
from sample_logs import cyclic_log, device_log
from sample_scorers import told_by

import beamtree as bt
from beamtree.data.events import Events
from beamtree.diagnose.inspect import inspect
from beamtree.distributed.training import join
from beamtree.live import refit
from beamtree.live.refit import BEFORE, SERVED, refit_parts, refit_to_all
from beamtree.parts import PARTS, closed_form
from beamtree.parts.closed_form import ClosedForm
from beamtree.train.backend import current_backend
from beamtree.train.options import TrainingOptions
from beamtree.train.recipes import build_model, resolve_settings

QUICK = {"steps": 0, "beam_size": 60}


def state(model):
    return model.scorer.state_dict()


def same(one, other):
    return state(one).keys() == state(other).keys() and all(
        torch.equal(value, state(other)[name]) for name, value in state(one).items()
    )


@pytest.fixture(scope="module")
def data(shop_folder):
    return bt.load_data(shop_folder / "data")


@pytest.fixture(scope="module")
def plain(data):
    return bt.Recommender(**QUICK, refit=False).fit(data, verbose=False)


@pytest.fixture
def count_refits(monkeypatch):
    """The number of users of each refit so far."""
    counts = []
    original = refit.refit_parts

    def counted(model, data, events, *more, **named):
        counts.append(len(events))
        return original(model, data, events, *more, **named)

    monkeypatch.setattr(refit, "refit_parts", counted)
    return counts


# Whose events


def rows_of(events, names):
    ends = events.offsets.tolist()
    return {name: events.items[start:stop].tolist() for name, start, stop in zip(names, ends, ends[1:], strict=False)}


@pytest.mark.parametrize("split", ["halves", "leave-one-out", "time:8"])
@pytest.mark.parametrize("users", [{}, {"val_users": 30, "test_users": 7}])
def test_all_events_of_a_user_count_once(tmp_path, split, users):
    log = cyclic_log().with_columns(rating=pl.int_range(pl.len()) % 3 + 1, place=pl.col("item").str.slice(2))
    bt.prepare(log, tmp_path / "data", split=split, weight="rating", context="place", **users)
    data = bt.load_data(tmp_path / "data")
    for sections in (data.sections[:2], data.sections, data.whole):
        events, names = data.joined(sections), data.joined_users(sections)
        assert len(names) == len(set(names)) == len(events)
        longest = {}
        for view in sections:
            for row, name in enumerate(view.user_names()):
                start, stop = view.events.offsets[row : row + 2].tolist()
                if stop - start >= len(longest.get(name, ([],))[0]):
                    span = slice(start, stop)
                    longest[name] = (
                        view.events.items[span],
                        view.events.weights[span],
                        view.events.contexts.number[span],
                    )
        assert set(names) == set(longest)
        for row, name in enumerate(names):
            span = slice(*events.offsets[row : row + 2].tolist())
            assert torch.equal(events.items[span], longest[name][0])
            assert torch.equal(events.weights[span], longest[name][1])
            assert torch.equal(events.contexts.number[span], longest[name][2])
    if split != "leave-one-out" or not users:  # otherwise the last of some are not stored
        by_user = log.sort("user", "time").group_by("user", maintain_order=True).agg("item").rows()
        items = {name: [data.items[number] for number in row] for name, row in rows_of(events, names).items()}
        assert items == dict(by_user)


def test_what_only_test_users_chose_is_recommended(tmp_path):
    data = bt.load_data(prepared(cyclic_log(), tmp_path / "data"))
    secret = set(data.test.user_names())
    log = cyclic_log().with_columns(
        item=pl.when(pl.col("user").is_in(secret), pl.col("time") % 3 == 2).then(pl.lit("secret")).otherwise("item")
    )
    data = bt.load_data(prepared(log, tmp_path / "secret"))
    assert set(data.test.user_names()) == secret
    shop = bt.Recommender(**QUICK).fit(data, verbose=False)
    (number,) = data.items.find(["secret"])
    history = torch.tensor([data.items.find(["i03", "i02"]) + [bt.PAD] * 67])
    ranks = [
        bt.retrieve(model, history, beam_size=61, m=61)[0][0].tolist().index(number)
        for model in (shop.model, shop.before_refit)
    ]
    assert ranks[0] < 15 < ranks[1]
    assert shop.before_refit.popularity[number] == 0
    assert shop.model.popularity[number] == 4 * len(secret)


def prepared(log, folder):
    bt.prepare(log, folder, val_users=10, test_users=10)
    return folder


def test_parts_are_those_of_all_events_with_the_choices_of_the_training_users(data, plain):
    shop = bt.Recommender(**QUICK).fit(data, verbose=False)
    scorer, chosen = shop.model.scorer, plain.model.scorer
    assert scorer.hyperparameters == chosen.hyperparameters
    assert torch.equal(scorer.weights, chosen.weights)
    assert torch.equal(scorer.calibration, chosen.calibration)
    rows = [view.events.items[slice(*view.events.offsets[[0, -1]].tolist())] for view in data.sections]
    lengths = torch.cat([view.events.counts() for view in data.sections])
    events = Events(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), torch.cat(rows), "all", data.items)
    parts = ClosedForm(
        shop.model.tree, data, 0, "cpu", shop.model.first_level, events=events,
        hyperparameters=dict(chosen.hyperparameters), start=chosen, parts=PARTS,
    ).fit()  # fmt: skip
    for name in parts.names:
        for key, value in parts.part(name).state_dict().items():
            assert torch.equal(value, scorer.part(name).state_dict()[key]), (name, key)
    assert torch.equal(shop.model.popularity, events.popularity(data.num_items))


# What was measured before


def test_the_numbers_are_those_of_before_to_the_digit(data, plain, tmp_path, capsys):
    expected = plain.evaluate().records()
    shop = bt.Recommender(**QUICK).fit(data)
    assert same(shop.before_refit, plain.model)
    assert not same(shop.model, plain.model)
    recalls = {record["m"]: record["value"] * 100 for record in expected if record["metric"] == "recall"}
    report = capsys.readouterr().err
    assert (
        f"Before the refit, on 10 test users: recall@10 {recalls[10]:.1f} %, recall@50 {recalls[50]:.1f} %." in report
    )
    assert "Fitted the closed form again, to all events of all 120 users." in report
    shop.save(tmp_path / "run")
    beamtree("train", str(data.folder), "--out", "trained", "--steps", "0", "--beam-size", "60", folder=tmp_path)
    for run in ("run", "trained"):
        recorded = json.loads((tmp_path / run / "run.json").read_text())["training"]["before_refit"]
        assert recorded == {"test_users": 10, "scores": expected}
        loaded = bt.Recommender.load(tmp_path / run)
        assert loaded.evaluate().records() == expected
        assert loaded.evaluate(data=data.val).records() == plain.evaluate(data=data.val).records()
        beamtree("evaluate", run, "--json", "found.json", folder=tmp_path)
        cells = json.loads((tmp_path / "found.json").read_text())
        assert [{name: cell[name] for name in expected[0]} for cell in cells] == expected
        assert {cell["model"] for cell in cells} == {BEFORE}
    loaded.save(tmp_path / "trained")
    assert json.loads((tmp_path / "trained" / "run.json").read_text())["training"]["before_refit"] == recorded


def test_contexts_are_as_before_to_the_digit():
    log, options = device_log(users=150), {"context": ["device", "other"], "split": "leave-one-out", "verbose": False}
    plain = bt.Recommender(**QUICK, refit=False).fit(log, **options)
    shop = bt.Recommender(**QUICK).fit(log, **options)
    assert "context" in shop.model.scorer.names
    assert same(shop.before_refit, plain.model)
    assert not same(shop.model, plain.model)
    assert shop.evaluate().records() == plain.evaluate().records()


def test_trained_parts_stay_as_they_are_trained(data):
    options = {"steps": 4, "beam_size": 20, "batch_size": 20}
    plain = bt.Recommender(**options, refit=False).fit(data, verbose=False)
    shop = bt.Recommender(**options).fit(data, verbose=False)
    for name, value in state(plain.model).items():
        if name.startswith("parts.deep"):
            assert torch.equal(state(shop.model)[name], value)
    assert same(shop.before_refit, plain.model)


def test_the_model_before_is_fitted_once(shop, count_refits):
    shop.evaluate(m=5)
    assert count_refits == [100]
    shop.evaluate(m=10, metrics="ndcg", data=shop.data.val)
    assert count_refits == [100]
    shop.remove_items(["i03"])  # another model is served
    shop.evaluate(m=10)
    assert count_refits == [100, 100]


def test_other_users_are_measured_on_the_model_that_serves(shop):
    log = cyclic_log().with_columns(user="new " + pl.col("user"))
    served = shop.evaluate(m=5, data=log)
    assert served.model == SERVED
    assert str(served).splitlines()[-1] == f"of the model {SERVED}"
    before = shop.evaluate(m=5)
    assert before.model == BEFORE
    assert str(before).splitlines()[-1] == f"of the model {BEFORE}"


def test_without_a_refit_nothing_changes(plain, tmp_path):
    assert plain.before_refit is plain.model
    found = plain.evaluate(m=5)
    assert found.model == ""
    assert "of the model" not in str(found)
    plain.save(tmp_path / "run")
    assert "before_refit" not in (tmp_path / "run" / "run.json").read_text()
    done = beamtree("evaluate", "run", "--m", "5", folder=tmp_path)
    assert "of the model" not in done.stdout


# When there is one


def test_a_refit_is_left_out_where_it_would_change_nothing(data):
    def refits(**options):
        return resolve_settings(data, TrainingOptions(**options)).refit

    assert refits()
    assert not refits(refit=False)
    for other in ({"recipe": "deep"}, {"method": "plt"}, {"recipe": "paper"}):
        assert not refits(**other)
        with pytest.raises(ValueError, match="`refit` needs closed-form parts"):
            refits(refit=True, **other)
    shop = bt.Recommender(**QUICK).fit(cyclic_log(), val_users=0, test_users=0, verbose=False)
    assert shop._run["refit"] is False
    assert shop.before_refit is shop.model


def test_a_split_that_does_not_keep_all_events_is_told(capsys):
    bt.Recommender(**QUICK).fit(cyclic_log(), split="leave-one-out", val_users=6, test_users=6)
    stored = 120 * 10 + 6 * 2  # the last events are those of test users, who also validate
    line = f"Fitted the closed form again, to {stored:,} of 1,440 events; the split does not keep the rest."
    assert line in capsys.readouterr().err


def test_a_part_without_weight_is_not_fitted_again(data, plain, tmp_path, monkeypatch):
    model = deepcopy(plain.model)
    model.scorer.set_weights(factors=0.0)
    model.scorer.hyperparameters["weights"]["factors"] = 0.0
    bt.save_model(model, tmp_path / "model")
    model = bt.load_model(tmp_path / "model")
    assert "factors" not in model.scorer.names
    monkeypatch.setattr(closed_form, "implicit_als", None)
    assert same(refit_parts(model, data, data.train.events, 0), model)
    result, _ = refit_to_all(model, data, 0)
    assert result.popularity.sum() == 1440 > model.popularity.sum()
    assert len(bt.retrieve(result, data.test.batch(torch.arange(2))[0], beam_size=20, m=5)[0]) == 2


def test_without_test_users_nothing_is_measured(tmp_path, capsys):
    shop = bt.Recommender(**QUICK).fit(cyclic_log(), test_users=0)
    assert "Fitted the closed form again, to all events of all 120 users." in capsys.readouterr().err
    assert shop._run["training"]["before_refit"] == {"test_users": 0, "scores": []}
    assert len(shop.recommend(["i02"], m=3)) == 3


def test_a_run_that_was_killed_before_its_refit_is_refitted_when_it_continues(data, tmp_path, monkeypatch):
    runs = train_again_after_a_kill(data.folder, tmp_path, monkeypatch)
    assert same(*(run.model for run in runs))
    assert runs[0]._run["training"] == runs[1]._run["training"]


# Commands


def test_commands_say_which_model_they_measure(shop, shop_folder, tmp_path):
    run, sentence = str(shop_folder / "run"), f"The numbers are of the model {BEFORE}"
    done = beamtree("inspect", run, "--m", "5,10", "--json", "i.json", "--plot", "i.png", folder=tmp_path)
    assert sentence in done.stdout
    expected = inspect(shop.before_refit, shop.data.test, m=(5, 10)).records()
    assert json.loads((tmp_path / "i.json").read_text()) == expected
    bt.Recommender.load(run).save(tmp_path / "run")
    done = beamtree("tune", "run", folder=tmp_path)
    assert sentence in done.stdout
    assert beamtree("evaluate", "run", "--beam-size", "tuned", "--m", "5", folder=tmp_path).returncode == 0
    done = beamtree("evaluate", run, "--m", "5", "--against", "popularity", "--json", "e.json", folder=tmp_path)
    assert f"The numbers of run are of the model {BEFORE}." in done.stdout
    cells = json.loads((tmp_path / "e.json").read_text())
    assert {(cell["row"], cell.get("model")) for cell in cells} == {("run", BEFORE), ("popularity", None)}
    done = beamtree("evaluate", run, "--m", "5", "--log", str(shop_folder / "log.csv"), folder=tmp_path)
    assert f"The numbers of run are of the model {SERVED}." in done.stdout


def test_a_recorded_page_is_of_the_model_before(shop_folder, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("beamtree.cli.explore.page", lambda content: shown.append(content) or "")
    beamtree("explore", str(shop_folder / "run"), "--users", "2", "--out", str(tmp_path / "page.html"), folder=tmp_path)
    assert shown[0]["name"] == "run before the refit"
    assert all(model["name"].startswith("run before the refit") for model in shown[0]["models"])


# Several ranks


def refitted(folder, out):
    join()
    data = bt.load_data(folder)
    settings = resolve_settings(data, TrainingOptions(steps=0))
    model = build_model(settings, data, bt.random_tree(data.num_items, 2, seed=0))
    result, measured = refit_to_all(model, data, 0)
    current_backend().save_model(result, out)
    return measured


@pytest.mark.extended
def test_ranks_refit_as_one_process_does(tmp_path, market_data):
    one = refitted(market_data.folder, tmp_path / "one")
    for measured in run_ranks(2, refitted, market_data.folder, tmp_path / "two"):
        assert measured["test_users"] == one["test_users"] > 0
        for found, expected in zip(measured["scores"], one["scores"], strict=True):
            assert found == pytest.approx(expected, abs=0.02)
    first, second = (bt.load_model(tmp_path / name) for name in ("one", "two"))
    assert torch.equal(first.popularity, second.popularity)
    assert int(first.popularity.sum()) == market_data.description["num_events"]
    ours, theirs = (told_by(model.scorer) for model in (first, second))
    torch.testing.assert_close(theirs, ours, atol=2e-3, rtol=2e-3)

"""The front door: a frame in, recommendations out, strings all the way."""

import copy
import gc
import pickle
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree
from sample_logs import random_log

import beamtree as bt
from beamtree.data import Ids
from beamtree.research.baselines import popularity
from beamtree.storage import runs
from beamtree.storage.runs import table_file
from beamtree.train import Progress


@pytest.fixture(scope="module")
def log(market_folder):
    """Ids that hold spaces, commas and quotes."""
    odd = pl.col("item").str.replace("i", 'item, "no. ').add('" | x')
    return pl.read_parquet(market_folder / "market.parquet").with_columns(item=odd)


@pytest.fixture(scope="module")
def shop(log):
    return bt.Recommender(beam_size=20, batch_size=50, steps=8, seed=3).fit(log)


def test_one_history_gives_ranks_items_and_scores(shop, log):
    items = log["item"].unique().sort().to_list()
    found = shop.recommend(items[:2], m=10)
    assert found.columns == ["rank", "item", "score"]
    assert found["rank"].to_list() == list(range(1, 11))
    assert found["item"].n_unique() == 10
    assert set(found["item"]) <= set(items)
    assert found["score"].is_sorted(descending=True)
    assert found["score"].is_between(0, 1).all()


def test_a_string_is_an_id_and_not_a_list_of_letters(shop, log):
    name = log["item"][0]
    with pytest.raises(ValueError, match=r"recommend\(\[.*\]\) for a history of one item, recommend\(users="):
        shop.recommend(name, m=3)
    with pytest.raises(ValueError, match=r"recommend\(users='16758'\) for a user"):
        shop.recommend(16758)
    assert set(shop.recommend([name], m=5, allowed=name)["item"]) == {name}


def test_several_histories_and_several_users(shop, log):
    items = log["item"].unique().sort().to_list()
    several = shop.recommend([items[:3], items[5:6], []], m=4)
    assert several.columns == ["history", "rank", "item", "score"]
    assert several["history"].to_list() == [0] * 4 + [1] * 4 + [2] * 4
    assert several.filter(pl.col("history") == 1).drop("history").equals(shop.recommend([items[5]], m=4))
    by_name = shop.recommend({"ann": items[:3], "bob": np.array(items[5:6])}, m=4)
    assert by_name.columns == ["user", "rank", "item", "score"]
    assert by_name.drop("user").equals(several.filter(pl.col("history") < 2).drop("history"))


def test_users_of_the_log_are_known_by_all_their_events(shop, log):
    user = shop.data.users[0]
    history = log.filter(pl.col("user") == user).sort("timestamp", maintain_order=True)["item"].to_list()
    found = shop.recommend(users=[user], m=7, exclude_seen=True)
    assert found.columns == ["user", "rank", "item", "score", "popular"]
    assert not set(found["item"]) & set(history)
    assert found.drop("user", "popular").equals(shop.recommend(history, m=7, exclude_seen=True))
    with pytest.raises(ValueError, match="user 'nobody' is not in the log"):
        shop.recommend(users="nobody", unknown="error")


def test_m_items_come_back_wherever_m_are_allowed(shop, log):
    items = log["item"].unique().sort().to_list()
    history = items[10:13]
    in_stock, sold_out = items[:30], items[25:40]
    found = shop.recommend(history, m=25, allowed=in_stock, exclude=sold_out, exclude_seen=True)
    assert set(found["item"]) == set(items[:25]) - set(history)
    assert len(shop.recommend(history, m=150)) == shop.data.num_items  # fewer than m only where fewer there are
    assert len(shop.recommend(history, allowed=["no such item"])) == 0


def test_a_history_of_which_nothing_is_known_gets_what_is_popular(shop):
    events = shop.data.joined(shop.data.sections)
    counts = events.popularity(shop.data.num_items)
    expected = [shop.data.items[int(item)] for item in popularity(events, len(counts))._items[:5]]
    with pytest.warns(UserWarning, match="1 of 1 histories have no known item, such as 'no such item'"):
        answers = [shop.recommend(["no such item"], m=5), shop.recommend([], m=5)]
    for found in answers:
        assert found["item"].to_list() == expected
        assert found["score"].to_list() == pytest.approx(
            (counts.sort(descending=True).values[:5] / counts.sum()).tolist(), rel=1e-6
        )
    best = shop.recommend([], m=2, exclude=expected[:1])["item"].to_list()
    assert best == expected[1:3]


def test_it_is_evaluated_on_its_test_users(shop):
    def at_least_one(hit, relevant, m):
        return hit[:, :m].any(1)

    found = shop.evaluate(m=(10, 50), metrics=("recall", "hit_rate", at_least_one))
    assert found.users == len(shop.data.test)
    frame = found.to_frame()
    assert frame.columns == ["metric", "m", "value", "low", "high"]
    assert len(frame) == 6
    assert found["at_least_one", 10] == found["hit_rate", 10]
    assert found["recall", 50] == pytest.approx(
        bt.evaluate(shop.before_refit, shop.data.test, beam_size=400, m=(50,))["recall", 50]
    )


def test_it_is_saved_with_its_log_and_loaded(shop, log, tmp_path):
    shop.save(tmp_path / "shop")
    again = bt.Recommender.load(tmp_path / "shop")
    user = shop.data.users[3]
    assert again.recommend(users=[user]).equals(shop.recommend(users=[user]))
    assert again.evaluate(m=10).to_frame().equals(shop.evaluate(m=10).to_frame())
    assert again.ids.names == shop.ids.names
    assert repr(again) == repr(shop)
    shop.save(tmp_path / "shop")  # once more into the same folder
    assert len(bt.Recommender.load(tmp_path / "shop").recommend([log["item"][0]])) == 10


@pytest.mark.extended
def test_commands_and_the_object_read_each_others_runs(shop, tmp_path):
    shop.save(tmp_path / "saved")
    user = shop.data.users[0]
    beamtree("retrieve", "saved", "--users", user, "--m", "5", "--json", "best.json", folder=tmp_path)
    best = pl.read_json(tmp_path / "best.json")
    assert best["item"].to_list() == shop.recommend(users=[user], m=5)["item"].to_list()
    prepared = str(tmp_path / "saved" / "data")
    words = ("--beam-size", "20", "--batch-size", "50", "--steps", "8", "--seed", "3")
    beamtree("train", prepared, "--out", "trained", *words, folder=tmp_path)
    trained = bt.Recommender.load(tmp_path / "trained")
    for name, weight in shop.model.scorer.drop_zero_parts().state_dict().items():
        assert torch.equal(trained.model.scorer.state_dict()[name], weight), name
    assert trained.recommend(users=[user]).equals(shop.recommend(users=[user]))


def test_a_saved_model_keeps_its_ids(shop, tmp_path):
    data = shop.data
    tree = bt.random_tree(data.num_items)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes))
    bt.fit(model, data.train, bt.otm(beam_size=5), steps=1, batch_size=10)
    bt.save_model(model, tmp_path / "model")
    assert bt.load_model(tmp_path / "model").ids.names == data.items.names


def test_everything_shows_one_helpful_line(shop):
    assert repr(bt.Recommender()) == "Recommender(otm-mixed on a cluster tree, not fitted: call fit(log))"
    for thing, words in (
        (shop, "items, otm-mixed"),
        (shop.data, "items"),
        (shop.data.test, "users"),
        (shop.data.train.events, "users"),
        (shop.data.items, "Ids("),
        (shop.model, "TreeModel(Tree("),
    ):
        assert words in repr(thing)
        assert len(repr(thing)) < 200
        assert "\n" not in repr(thing)
    assert "recall" in repr(shop.evaluate(m=10))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"method": "otn"}, "method 'otn' is unknown: choose from plt"),
        ({"tree": "oak"}, "tree 'oak' is unknown: choose from cluster"),
        ({"recipe": "soup"}, "recipe 'soup' is unknown"),
        ({"optimizer": "sgd"}, "optimizer 'sgd' is unknown"),
        ({"lr": -1.0}, "lr=-1.0: must be above 0"),
        ({"steps": 3, "epochs": 3}, "`epochs` and `steps` are both given"),
        ({"epochs": 0}, "epochs=0: must be at least 1; `steps=0`"),
        ({"epochs": 10**10}, "epochs=10000000000: must be at most 1,000,000,000"),
        ({"steps": -1}, "steps=-1: must be 0 or more"),
        ({"steps": 1.5}, "steps=1.5: give a whole number"),
        ({"beam_size": 0}, "beam_size=0: must be at least 1"),
        ({"nodes": -3}, "nodes=-3: must be at least 1"),
        ({"batch_size": True}, "batch_size=True: give a whole number"),
        ({"patience": 0}, "patience=0: must be above 0"),
        ({"arity": 1}, "arity=1: a tree needs at least 2 children per node"),
        ({"seed": "7"}, "seed='7': give a whole number"),
        ({"lr": "fast"}, "lr=fast: must be above 0"),
        ({"refit": "yes"}, "refit='yes': give True, False or None"),
        ({"sequence": "yes"}, "sequence='yes': give True, False or None"),
        ({"refit": True, "method": "plt"}, "`refit` needs closed-form parts"),
        ({"sequence": True, "recipe": "deep"}, "`sequence` needs closed-form parts"),
        ({"scorer": 3}, "scorer=3: give a class of scorers"),
        ({"device": "abacus"}, "device 'abacus' is not here"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_when_a_recommender_is_made(how, message):
    with pytest.raises(ValueError, match=message) as error:
        bt.Recommender(**how)
    assert "\n" not in str(error.value)


def test_nothing_learned_nothing_recommended(shop, tmp_path):
    with pytest.raises(ValueError, match=r"call fit\(log\)"):
        bt.Recommender().recommend(["a"])
    with pytest.raises(ValueError, match="one of the two"):
        shop.recommend()
    with pytest.raises(ValueError, match="is not a run"):
        bt.Recommender.load(tmp_path)


QUICK = {"steps": 1, "beam_size": 4, "batch_size": 10}


def test_a_run_may_be_saved_over_another_and_who_reads_the_old_one_reads_on(tmp_path):
    run, prepared = tmp_path / "run", tmp_path / "prepared"
    bt.Recommender(**QUICK).fit(random_log("a", seed=1)).save(run)
    reader = bt.Recommender.load(run)
    before = reader.recommend(users=["u1"], m=3)
    bt.prepare(random_log("b", seed=2), prepared)
    bt.Recommender(**QUICK).fit(prepared).save(run)
    assert reader.recommend(users=["u1"], m=3).equals(before)
    again = bt.Recommender.load(run)
    assert all(item.startswith("b") for item in again.recommend(users=["u1"], m=3)["item"])
    assert not (run / "data").exists()
    bt.Recommender(**QUICK).fit(random_log("c", seed=3)).save(run)
    assert all(item.startswith("c") for item in bt.Recommender.load(run).recommend(users=["u1"], m=3)["item"])


@pytest.mark.parametrize("step", ["replace_data", "save_changes", "remove_stale_beam", "write_run"])
def test_a_run_is_as_it_was_where_saving_over_it_was_stopped(tmp_path, monkeypatch, step):
    run, other = tmp_path / "run", bt.Recommender(**QUICK).fit(random_log("b", seed=2))
    bt.Recommender(**QUICK).fit(random_log("a", seed=1)).save(run)
    before = {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(f"beamtree.recommender.{step}", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(OSError, match=f"{run} cannot be written: No space left on device"):
            other.save(run)
    assert {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert [*tmp_path.iterdir()] == [run]
    assert all(item.startswith("a") for item in bt.Recommender.load(run).recommend(users=["u1"], m=3)["item"])
    monkeypatch.chdir(run)  # which cannot be replaced
    other.save(".")
    assert all(item.startswith("b") for item in bt.Recommender.load(run).recommend(users=["u1"], m=3)["item"])


def test_who_loads_a_run_while_it_is_saved_reads_what_is_known_of_its_training(tmp_path, monkeypatch):
    shop, seen = bt.Recommender(**QUICK).fit(random_log("a", seed=1)), []
    shop._run["training"] = {"before_refit": {}}
    write = runs.write_checked_json

    def written(path, content, format):
        write(path, content, format)
        seen.append(Progress.of_run(runs.read_run(path.parent)))

    monkeypatch.setattr(runs, "write_checked_json", written)
    shop.save(tmp_path / "run")
    assert {(each.step, each.best) for each in seen} == {(shop.progress.step, shop.progress.best)}


def test_ids_stay_with_a_model_whatever_becomes_of_the_files(tmp_path):
    model = bt.Recommender(**QUICK).fit(random_log("a", seed=1)).model  # the object and its folder are gone
    gc.collect()
    bt.save_model(model, tmp_path / "model")
    loaded = bt.load_model(tmp_path / "model")
    other = bt.Recommender(**QUICK).fit(random_log("b", seed=2)).model
    for _ in range(2):
        bt.save_model(other, tmp_path / "model")
    assert loaded.ids.names == model.ids.names
    assert all(name.startswith("a") for name in copy.deepcopy(loaded).ids.names)


def test_a_model_of_save_model_is_loaded_too(tmp_path):
    shop = bt.Recommender(**QUICK).fit(random_log("a", seed=1))
    bt.save_model(shop.model, tmp_path / "model")
    again = bt.Recommender.load(tmp_path / "model")
    assert again.recommend(["a1"], m=3).equals(shop.recommend(["a1"], m=3))
    with pytest.raises(ValueError, match="the log of this recommender is missing"):
        again.recommend(users=["u1"])


def test_a_fit_that_fails_leaves_what_was_there(shop):
    ours = bt.Recommender(**QUICK).fit(random_log("a", seed=1))
    before = ours.recommend(users=["u1"], m=3)

    def stop(step, recall):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ours.fit(random_log("b", seed=2), val_users=2, on_check=stop)
    assert ours.recommend(users=["u1"], m=3).equals(before)
    with pytest.raises(ValueError, match="prepared already"):
        ours.fit(shop.data, min_events=3)
    assert ours.recommend(users=["u1"], m=3).equals(before)


def test_a_loaded_recommender_does_not_need_its_log_for_a_history(tmp_path):
    bt.prepare(random_log("a", seed=1), tmp_path / "prepared")
    bt.Recommender(**QUICK).fit(tmp_path / "prepared").save(tmp_path / "run")
    bt.prepare(random_log("b", seed=2), tmp_path / "prepared")  # tonight's log in the place of yesterday's
    again = bt.Recommender.load(tmp_path / "run")
    assert len(again.recommend(["a1", "a2"], m=4)) == 4
    with pytest.raises(ValueError, match="holds other items"):
        again.recommend(users=["u1"])


def test_what_is_no_list_of_ids_is_not_taken_for_one(shop):
    with pytest.raises(ValueError, match="a frame of histories needs the columns user, item and time"):
        shop.recommend(pl.DataFrame({"item": ["a"]}))
    for wrong in (pl.DataFrame({"item": ["a"]}), shop.data.test, torch.tensor([1, 2])):
        if not isinstance(wrong, pl.DataFrame):
            with pytest.raises(ValueError, match="is not a list of ids"):
                shop.recommend(wrong)
        with pytest.raises(ValueError, match="is not a list of ids"):
            shop.recommend([], allowed=wrong)


def test_a_user_who_is_asked_for_twice_is_answered_twice(shop):
    user = shop.data.users[0]
    found = shop.recommend(users=[user, user], m=2)
    assert found["user"].to_list() == [user] * 4
    empty = shop.recommend(users=[user], allowed=[])
    assert empty.schema == found.schema
    assert len(empty) == 0


def test_a_scorer_may_be_a_class():
    class Flat(bt.Scorer):
        """The same for everybody."""

        def __init__(self, num_nodes, *, seed=0):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(num_nodes))

        def prepare(self, tree, x):
            return x

        def forward(self, prepared, level, nodes):
            scores = self.bias[nodes.clamp(min=0)].expand(len(prepared), -1)
            return scores.masked_fill(nodes == bt.PAD, -torch.inf)

        def settings(self):
            return {"num_nodes": len(self.bias)}

    ours = bt.Recommender(scorer=Flat, **QUICK).fit(random_log("a", seed=1))
    assert isinstance(ours.model.scorer, Flat)
    assert len(ours.recommend(["a1"], m=5)) == 5


def test_zero_is_a_number_and_not_a_default(shop):
    for how in ({"beam_size": 0}, {"batch_size": 0}, {"nodes": 0}):
        with pytest.raises(ValueError, match=r"=0: must be at least 1"):
            bt.Recommender(**how).fit(shop.data)
    with pytest.raises(ValueError, match="beam_size=0"):
        shop.recommend([shop.ids[0]], beam_size=0)


def test_a_recommenders_run_is_finished_and_not_resumed(tmp_path):
    bt.prepare(random_log("a", seed=1), tmp_path / "prepared")
    bt.Recommender(**QUICK).fit(tmp_path / "prepared").save(tmp_path / "run")
    words = ("--steps", "1", "--beam-size", "4", "--batch-size", "10", "--resume")
    done = beamtree("train", "prepared", "--out", "run", *words, folder=tmp_path, check=False)
    assert done.returncode == 2
    assert "holds a finished model and no checkpoint" in done.stderr


def test_the_advice_knows_how_the_model_was_trained(shop):
    assert bt.inspect(shop.model, shop.data.test, beam_size=20, m=(10,)).trained_on_beams


def test_ids_come_in_any_kind_of_list(shop):
    pandas = pytest.importorskip("pandas")
    users, items = shop.data.users.names[:3], shop.ids.names[:4]
    by_users, by_items = shop.recommend(users=users, m=3), shop.recommend(items, m=3)
    allowed = shop.recommend(items, m=3, allowed=items)
    assert shop.recommend(users=shop.data.users, m=1)["user"].to_list() == shop.data.users.names
    for made in (Ids, tuple, np.array, pl.Series, iter):
        assert shop.recommend(users=made(users), m=3).equals(by_users)
        assert shop.recommend(made(items), m=3).equals(by_items)
        assert shop.recommend([made(items)], m=3).drop("history").equals(by_items)
    for made in (Ids, set, np.array, pl.Series, iter, pandas.Series):
        assert shop.recommend(items, m=3, allowed=made(items)).equals(allowed)
        assert not set(shop.recommend(items, m=3, exclude=made(items))["item"]) & set(items)
    assert shop.recommend(pandas.Series(items), m=3)["item"].tolist() == by_items["item"].to_list()


def test_a_number_of_items_that_is_not_whole_is_refused_in_one_line(shop):
    items = shop.ids.names[:2]
    for wrong in (2.5, True, "3"):
        for call in (lambda **how: shop.recommend(items, **how), shop.evaluate):
            with pytest.raises(ValueError, match=r"m=.*: give a whole number of at least 1"):
                call(m=wrong)
            with pytest.raises(ValueError, match=r"beam_size=.*: give a whole number of at least 1"):
                call(m=2, beam_size=wrong)
    assert shop.recommend(items, m=np.int64(2), beam_size=np.int32(9)).equals(shop.recommend(items, m=2, beam_size=9))
    assert shop.evaluate(m=np.int64(5))["recall", 5] == shop.evaluate(m=[5])["recall", 5]


def test_a_frame_of_events_is_histories_by_user(shop):
    items = shop.ids.names[:3]
    frame = pl.DataFrame({"user": ["b", "a", "a"], "item": items, "time": [1, 3, 2]})
    expected = shop.recommend({"a": [items[2], items[1]], "b": items[:1]}, m=3)
    assert shop.recommend(frame, m=3).equals(expected)
    pytest.importorskip("pandas")
    found = shop.recommend(frame.to_pandas(), m=3)
    assert found["item"].tolist() == expected["item"].to_list()


def test_answers_are_frames_of_the_kind_that_the_log_was(tmp_path):
    pandas = pytest.importorskip("pandas")
    ours = bt.Recommender(**QUICK).fit(random_log("a", seed=1).to_pandas(), val_users=2, test_users=2)
    ours.save(tmp_path / "run")
    for each in (ours, bt.Recommender.load(tmp_path / "run")):
        assert isinstance(each.recommend(["a1"], m=3), pandas.DataFrame)
        assert isinstance(each.evaluate(m=3).to_frame(), pandas.DataFrame)
        assert isinstance(each.recommend(["a1"], m=3, allowed=[]), pandas.DataFrame)
    assert isinstance(bt.Recommender.load(tmp_path / "run", frame="polars").recommend(["a1"]), pl.DataFrame)
    with pytest.raises(ValueError, match="frame='arrow': choose polars or pandas"):
        bt.Recommender(frame="arrow")


def test_a_recommender_is_pickled_and_copied_with_its_log(tmp_path):
    for tree in ("cluster", "random", bt.random_tree):
        pickle.loads(pickle.dumps(bt.Recommender(tree=tree, **QUICK)))
    ours = bt.Recommender(**QUICK).fit(random_log("a", seed=1))
    best, known = ours.recommend(["a1", "a2"], m=5), ours.recommend(users=["u1"], m=5)
    copies = [pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)]
    ours.update_items({"new": {"like": ["a1"]}})
    live = pickle.loads(pickle.dumps(ours))
    assert live.recommend(["new"], m=3).equals(ours.recommend(["new"], m=3))
    del ours
    gc.collect()
    for each in copies:
        assert each.recommend(["a1", "a2"], m=5).equals(best)
        assert each.recommend(users=["u1"], m=5).equals(known)
        each.save(tmp_path / "run")
        assert bt.Recommender.load(tmp_path / "run").recommend(users=["u1"], m=5).equals(known)


def test_a_foreign_folder_is_refused_and_an_earlier_run_replaced_wholly(tmp_path):
    ours = bt.Recommender(**QUICK).fit(random_log("a", seed=1))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="notes holds other files: choose another folder"):
        ours.save(tmp_path / "notes")
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["mine.txt"]
    ours.save(tmp_path / "clean")
    bt.Recommender(**QUICK).fit(random_log("b", seed=2)).save(tmp_path / "run")
    (tmp_path / "run" / "training").mkdir()
    for name in ("tune.json", "live.json", "log.jsonl", "items.parquet", "vectors.parquet"):
        (tmp_path / "run" / name).write_text("{}")
    ours.save(tmp_path / "run")
    names = [{path.name for path in (tmp_path / folder).iterdir()} for folder in ("clean", "run")]
    assert {name.replace("-0b.", "-0.") for name in names[1]} == {name.replace("-0b.", "-0.") for name in names[0]}


def test_a_split_is_chosen_in_fit():
    ours = bt.Recommender(**QUICK).fit(random_log("a", seed=1), split="leave-one-out", min_item_events=2)
    assert len(ours.data.test) == 20
    assert ours.data.description["settings"]["min_item_events"] == 2


def test_a_log_of_other_users_is_measured(shop, log):
    rows = log.filter(pl.col("user").is_in(shop.data.users.names[-len(shop.data.test) :]))
    with pytest.warns(UserWarning, match="15 of 15 users were in training"):
        found = shop.evaluate(m=10, data=rows)["recall", 10]
    assert found == pytest.approx(bt.evaluate(shop.model, shop.data.test, beam_size=400, m=10)["recall", 10])
    items = shop.ids.names
    known = pl.DataFrame({"who": ["x"] * 4, "item": items[:4]})
    found = shop.evaluate(m=150, data=known, user="who", metrics="recall")
    assert found["recall", 150] == 1
    other = pl.DataFrame({"who": ["x"] * 6 + ["y"], "item": ["new", *items[:2], "new", items[3], "newer", items[0]]})
    assert shop.evaluate(m=150, data=other, user="who", metrics="recall")["recall", 150] == pytest.approx(1 / 3)
    again = shop.evaluate(m=150, data=other, user="who", metrics="recall", exclude_seen=True)
    assert again["recall", 150] == pytest.approx(1 / 2)
    with pytest.raises(ValueError, match="`user` is for reading a log"):
        shop.evaluate(data=shop.data.val, user="who")


@pytest.mark.parametrize("kind", ["items", "vectors"])
def test_what_is_known_of_items_may_be_in_memory_and_is_saved(tmp_path, kind):
    names = [f"a{number}" for number in range(25)]
    vectors = {name: np.arange(3) + number for number, name in enumerate(names)}
    frame = pl.DataFrame({"item": names, "category": [name[-1] for name in names]})
    given = frame.to_pandas() if kind == "items" else vectors
    ours = bt.Recommender(**QUICK, **{kind: given}).fit(random_log("a", seed=1))
    ours.save(tmp_path / "run")
    again = bt.Recommender.load(tmp_path / "run")
    assert again._run[kind] == f"{kind}.parquet"
    again.save(tmp_path / "copy")
    for folder in ("run", "copy"):
        file = table_file(tmp_path / folder, kind)
        assert file == tmp_path / folder / f"{kind}.parquet"
        assert set(pl.read_parquet(file)["item"]) == set(names)
    with pytest.raises(ValueError, match=f"{kind} is a int: give a file, a frame"):
        bt.Recommender(**{kind: 5})

"""Changes and questions from several threads: nothing is lost, and everyone sees one state."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
import pytest
from sample_logs import cyclic_log

import beamtree as bt
from beamtree.classify import classifier as classifiers
from beamtree.live import live_model
from beamtree.query import Filter, MaskCache
from stress.threads import run_threads


def visible(shop):
    return {*shop.item_vectors()["item"]}


def test_readers_writers_and_updates_work_beside_each_other(shop):
    counts, faults = run_threads(shop, 1.0, seed=1)
    assert faults == []
    assert min(counts[name] for name in ("reads", "removals", "updates")) > 0


@pytest.mark.extended
@pytest.mark.parametrize("seed", [1, 2])
def test_eight_readers_three_writers_and_updates_work_beside_each_other_for_ten_seconds(shop, seed):
    counts, faults = run_threads(shop, 10.0, seed)
    assert faults == []
    assert min(counts[name] for name in ("reads", "removals", "updates")) > 5


def beside(first, second, monkeypatch, where, name):
    """Call two functions so that the second one runs while the first is within another function, if it may."""
    original, inside, done = getattr(where, name), threading.Event(), threading.Event()

    def waiting(*args, **options):
        if not inside.is_set():
            inside.set()
            done.wait(0.2)  # that long where the second waits for the first
        return original(*args, **options)

    def call_second():
        assert inside.wait(60)
        result = second()
        done.set()
        return result

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(where, name, waiting)
        futures = pool.submit(first), pool.submit(call_second)
        return [future.result() for future in futures]


def test_of_two_changes_at_once_none_is_lost(shop, monkeypatch):
    log = pl.DataFrame({"user": ["ann"], "item": ["new"], "time": [900]})
    changes = [lambda: shop.remove_items(["i01"]), lambda: shop.remove_items(["i02"])]
    assert beside(*changes, monkeypatch, live_model, "with_hidden") == [1, 1]
    changes = [lambda: shop.update(log), lambda: shop.remove_items(["i03"])]
    beside(*changes, monkeypatch, live_model, "with_items")
    assert visible(shop) == {f"i{number:02}" for number in range(60)} - {"i01", "i02", "i03"} | {"new"}


def test_two_first_changes_at_once_are_made_to_one_model(shop, monkeypatch):
    changes = [lambda: shop.remove_items(["i01"]), lambda: shop.remove_items(["i02"])]
    assert beside(*changes, monkeypatch, bt.recommender, "LiveModel") == [1, 1]
    assert visible(shop) == {f"i{number:02}" for number in range(60)} - {"i01", "i02"}


def test_a_question_keeps_to_the_items_that_were_there_when_it_began(shop, monkeypatch):
    """Also where the history of its user has got an item that was added since."""
    log = pl.DataFrame({"user": ["u001"], "item": ["new"], "time": [900]})
    shop.update(pl.DataFrame({"user": ["u001"], "item": ["i03"], "time": [899]}))
    questions = [lambda: shop.recommend(users=["u001"], m=70, beam_size=70), lambda: shop.update(log)]
    answer, _ = beside(*questions, monkeypatch, bt.recommender.Searcher, "mask_of")
    assert {*answer["item"]} == {f"i{number:02}" for number in range(60)}
    assert "new" in {*shop.recommend(users=["u001"], m=70, beam_size=70)["item"]}


def test_items_of_a_table_are_seen_with_their_columns_or_not_at_all(monkeypatch):
    prices = pl.DataFrame({"item": [f"i{number:02}" for number in range(30)], "price": [*range(30)]})
    shop = bt.Recommender(steps=0).fit(cyclic_log(), items=prices, test_users=10, verbose=False)
    more = pl.DataFrame({"item": ["new 1", "new 2"], "price": [100, 200]})

    def ask():
        return {*shop.recommend(["i01"], where="price > 20 or price < 3", m=99, beam_size=99)["item"]}

    before = ask()
    _, answer = beside(lambda: shop.update_items(more), ask, monkeypatch, live_model, "with_items")
    assert answer == before
    assert ask() == before | {"new 1", "new 2"}


def test_a_mask_belongs_to_the_model_it_was_made_for(shop, monkeypatch):
    one, other = shop.model, live_model.with_hidden(shop.model, [1, 2])
    masks, filter = MaskCache(), Filter(exclude=frozenset(["i05"]))
    ask = [lambda model=model: masks.get(filter, model, model.ids)[1] for model in (one, other)]
    assert beside(*ask, monkeypatch, one.tree.__class__, "allow") == [59, 57]
    assert [each() for each in reversed(ask)] == [57, 59]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda shop: pickle.loads(pickle.dumps(shop))])
def test_a_copy_changes_by_itself(shop, again):
    shop.remove_items(["i01"])
    shop.recommend(["i03"], exclude=["i04"])
    other = again(shop)
    with shop._changes, ThreadPoolExecutor(1) as pool:
        assert pool.submit(other.remove_items, ["i02"]).result(60) == 1
    assert (len(visible(shop)), len(visible(other))) == (59, 58)
    assert isinstance(copy.deepcopy(MaskCache()), MaskCache)


# Classifiers


def test_labels_change_from_two_threads_and_none_is_lost(monkeypatch):
    found = bt.Classifier(group=2).fit(np.eye(6), [[f"l{number}"] for number in range(6)], verbose=False)
    documents = np.eye(6)[:1]

    def add(name):
        return lambda: found.add_labels({name: ""}, {name: documents})

    beside(add("new 1"), add("new 2"), monkeypatch, classifiers, "check_ids")
    beside(lambda: found.remove_labels(["l1"]), add("new 3"), monkeypatch, classifiers, "replace")
    assert found.labels == [*(f"l{number}" for number in range(6)), "new 1", "new 2", "new 3"]
    answer, _ = beside(
        lambda: found.predict(documents, m=20), add("new 4"), monkeypatch, classifiers.LabelModel, "search"
    )
    assert {*answer["label"]} == {*found.labels} - {"l1", "new 4"}
    assert "new 4" in {*copy.deepcopy(found).predict(documents, m=20)["label"]}
    assert {*pickle.loads(pickle.dumps(found)).add_labels({"l1": ""}).predict(documents, m=20)["label"]} == {
        *found.labels
    }

"""Contexts of requests: how a log's are read, what is counted, and what a model does with one."""

import datetime
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree
from hypothesis import given
from hypothesis import strategies as st
from sample_logs import DEVICES, FIRST_TIME, device_log
from serving import make_service, open_shop, serving

import beamtree as bt
from beamtree import PAD, beam
from beamtree.closed_form import contexts as counted
from beamtree.data import HISTORY, Ids, load_data
from beamtree.data.catalogue import Catalogue
from beamtree.data.contexts import EventContexts, value_numbers
from beamtree.diagnose.explain import explain
from beamtree.diagnose.explore import record, variants
from beamtree.ingest.append import append_log
from beamtree.ingest.prepare import prepare
from beamtree.ingest.user_events import read_users
from beamtree.live.refit import refit_parts
from beamtree.query import History, in_context, model_input
from beamtree.scorers import context_part
from beamtree.train.recipes import parts_report


@pytest.fixture(scope="module")
def shop():
    log = device_log()
    return bt.Recommender(steps=0).fit(log, context=["device", "other"], split="leave-one-out", verbose=False)


# Reading


def plain_contexts(frame, unit):
    """The events of each user in order, as (item, device, other, hour, day), by the definition."""
    users = {}
    for user, item, time, device, other in frame.iter_rows():
        moment = datetime.datetime.fromtimestamp(time / unit, datetime.UTC)
        context = {"device": device, "other": other, "hour": str(moment.hour), "day": str(moment.isoweekday())}
        users.setdefault(user, []).append((time, item, context))
    return {user: [row[1:] for row in sorted(rows, key=lambda row: row[0])] for user, rows in users.items()}


@pytest.mark.parametrize("kind", ["seconds", "milliseconds", "dates"])
def test_prepared_events_keep_the_context_of_their_rows(tmp_path, kind):
    unit = 1000 if kind == "milliseconds" else 1
    frame = device_log(users=40).sample(fraction=1.0, shuffle=True, seed=1)
    frame = frame.with_columns(pl.col("timestamp") * unit)
    expected = plain_contexts(frame, unit)
    if kind == "dates":
        frame = frame.with_columns(pl.from_epoch("timestamp"))
    prepare(frame, tmp_path / "data", context="device, other,hour,day", min_item_events=2, min_events=2)
    data, found = load_data(tmp_path / "data"), {}
    for part, first in ((data.train, 0), (data.val, len(data.train)), (data.test, len(data.train) + len(data.val))):
        events = part.events
        for row in range(len(part)):
            of_user = range(*events.offsets[row : row + 2].tolist())
            context = [events.contexts.contexts[int(events.contexts.number[index])] for index in of_user]
            items = [data.items[int(events.items[index])] for index in of_user]
            found[data.users[first + row]] = list(zip(items, context, strict=True))
    kept = set(data.items.names)  # rare items are dropped
    assert found == {user: [row for row in rows if row[0] in kept] for user, rows in expected.items()}
    assert data.description["settings"]["context"] == ["device", "other", "hour", "day"]


def test_events_that_are_equal_but_for_their_context_count_once(tmp_path):
    frame = device_log(users=30)
    twice = pl.concat([frame, frame.with_columns(device=pl.lit("watch"))])
    counts = [
        prepare(log, tmp_path / str(index), context=["device"])["num_events"]
        for index, log in enumerate((frame, twice))
    ]
    assert counts[0] == counts[1]
    contexts = load_data(tmp_path / "1").train.events.contexts
    assert all(contexts.contexts[number]["device"] != "watch" for number in contexts.number.tolist())


def test_a_wrong_context_is_one_clear_line(tmp_path, shop, monkeypatch):
    frame = device_log(users=20)
    with pytest.raises(ValueError, match=r"no column 'land' for `context`: there are user, item"):
        prepare(frame, tmp_path / "data", context="device,land")
    with pytest.raises(ValueError, match="no column 'hour' for `context`: the log has no times"):
        prepare(frame.drop("timestamp"), tmp_path / "data", context="hour")
    with pytest.raises(ValueError, match="hour needs dates or Unix times"):
        prepare(frame.with_columns(timestamp=pl.int_range(len(frame))), tmp_path / "data", context="hour")
    prepare(frame.with_columns(device=pl.lit("phone")), tmp_path / "one", context="device")
    monkeypatch.setattr("beamtree.ingest.contexts.MAX_CONTEXTS", 1)
    with pytest.raises(ValueError, match="combinations of device, hour, and 1 are possible: leave a column out"):
        prepare(frame, tmp_path / "data", context="device,hour")
    data, more = load_data(tmp_path / "one"), frame.with_columns(pl.col("timestamp") + 10**6)
    append_log(data, data.items, more.with_columns(device=pl.lit("phone")), tmp_path / "grown")
    with pytest.raises(ValueError, match="11 combinations of device, and 1 are possible: leave a column out"):
        append_log(data, data.items, more.with_columns(device=pl.col("item").str.slice(3)), tmp_path / "data")
    with pytest.raises(ValueError, match="no column 'country'; its columns are device, other"):
        shop.recommend(["i001"], context={"country": "DE"})
    with pytest.raises(ValueError, match="2 contexts for 1 histories"):
        shop.recommend(["i001"], context=[{"device": "phone"}] * 2)
    with pytest.raises(ValueError, match="a context is a dict"):
        shop.recommend(["i001"], context=["device"])


def test_appended_events_bring_their_contexts(tmp_path):
    frame = device_log(users=40)
    late = frame.filter(pl.col("timestamp") > FIRST_TIME + 40_000).with_columns(device=pl.lit("watch"))
    early = frame.filter(pl.col("timestamp") <= FIRST_TIME + 40_000)
    prepare(early, tmp_path / "old", context="device,hour")
    data = load_data(tmp_path / "old")
    append_log(data, data.items, late, tmp_path / "new")
    events = load_data(tmp_path / "new").train.events
    device = [events.contexts.contexts[number]["device"] for number in events.contexts.number[events.span()].tolist()]
    hours = [events.contexts.contexts[number]["hour"] for number in events.contexts.number[events.span()].tolist()]
    times = events.times[events.span()]
    assert [name == "watch" for name in device] == (times > FIRST_TIME + 40_000).tolist()
    assert hours == [str(hour) for hour in (times // 3600 % 24).tolist()]


# Views


def test_users_have_the_context_of_the_first_event_to_be_predicted(tmp_path):
    prepare(device_log(users=40), tmp_path / "data", context="device")
    view = load_data(tmp_path / "data").train
    draw = torch.rand(len(view.events.items), generator=torch.Generator().manual_seed(0))
    weighted = replace(view, events=replace(view.events, weights=torch.where(draw < 0.6, -1.0, 1.0)))
    values = {"device": ["desktop", "phone"]}
    for each in (view, weighted, weighted.sample(7)):
        x, y = each.with_contexts(values).batch(torch.arange(len(each)))
        plain_x, plain_y = each.batch(torch.arange(len(each)))
        assert torch.equal(x[:, :HISTORY], plain_x)
        assert torch.equal(y, plain_y)
        first = each.target_index(torch.arange(len(each)))[:, 0].tolist()
        contexts = each.events.contexts
        names = [None if index == PAD else contexts.contexts[contexts.number[index]]["device"] for index in first]
        assert x[:, HISTORY:].tolist() == [[PAD if name is None else values["device"].index(name)] for name in names]
    assert None in names or len(names) == 7


def test_values_that_are_missing_or_unknown_have_no_number():
    values = {"country": ["DE", "7"], "hour": ["20"]}
    contexts = [{"hour": 20, "country": "DE"}, {"country": " 7 "}, {"country": 7.0, "hour": None}, {"hour": "x"}, {}]
    assert value_numbers(values, contexts).tolist() == [[0, 2], [1, PAD], [1, PAD], [PAD, PAD], [PAD, PAD]]
    assert value_numbers(values, []).shape == (0, 2)


def test_a_number_is_found_however_it_is_written():
    values = {"hour": ["8", "20"], "price": ["0.5", "1"], "area": ["08", "9"], "country": ["DE", "8"]}
    contexts = [{"hour": hour} for hour in ("08", "8", 8, 8.0, "8.0", " 8 ", np.int64(8), "8x", "nan")]
    assert [row[0] for row in value_numbers(values, contexts).tolist()] == [0] * 7 + [PAD] * 2
    assert value_numbers(values, [{"price": "0.50"}, {"price": "1.0"}])[:, 1].tolist() == [2, 3]
    # Numbers with zeros before them are text, and so is a column with other values than numbers.
    assert value_numbers(values, [{"area": "08"}, {"area": 8}, {"area": "09"}])[:, 2].tolist() == [4, PAD, PAD]
    assert value_numbers(values, [{"country": "08"}])[:, 3].tolist() == [PAD]


def test_truth_values_are_found_as_columns_of_them_are_read():
    contexts = [{"mobile": True}, {"mobile": np.False_}, {"mobile": "true"}]
    assert value_numbers({"mobile": ["false", "true"]}, contexts).tolist() == [[1], [0], [1]]
    assert value_numbers({"mobile": ["False", "True"]}, contexts).tolist() == [[1], [0], [PAD]]


# Counting


@given(st.integers(0, 1000), st.booleans(), st.integers(1, 60))
def test_inner_products_are_the_log_ratios_of_counts(seed, weighted, entries):
    draw = np.random.default_rng(seed)
    values = {"country": ["DE", "FR", None], "day": ["1", "2"]}
    contexts = [{"country": country, "day": day} for country in values["country"] for day in values["day"]]
    number, items = torch.from_numpy(draw.integers(6, size=200)), torch.from_numpy(draw.integers(5, size=200))
    weights = torch.from_numpy(draw.choice([-2.0, 0.5, 3.0], size=200).astype(np.float32)) if weighted else None
    events = bt.data.Events(torch.tensor([0, 90, 200]), items, "log", weights=weights)
    events = replace(events, contexts=EventContexts(number.int(), contexts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counted, "MIN_EVENTS", 1)
        patch.setattr(counted, "ENTRIES", entries)
        columns, vectors, item_vectors = counted.fit_contexts(events, 5)
    assert columns == {"country": ["DE", "FR"], "day": ["1", "2"]}
    counts, of_value, of_item = Counter(), Counter(), Counter()
    for index, (context, item) in enumerate(zip(number.tolist(), items.tolist(), strict=True)):
        size = 1.0 if weights is None else abs(float(weights[index]))
        for column, value in contexts[context].items():
            if value is not None:
                counts[column, value, item] += size
                of_value[column, value] += size
                of_item[column, item] += size
    expected = torch.zeros(4, 5)
    for row, (column, value) in enumerate((name, value) for name, values in columns.items() for value in values):
        share = of_value[column, value] / sum(of_value[column, other] for other in columns[column])
        for item in range(5):
            likely = of_item[column, item] * share + counted.SMOOTHING
            expected[row, item] = math.log((counts[column, value, item] + counted.SMOOTHING) / likely)
    torch.testing.assert_close(vectors @ item_vectors.T, expected, rtol=1e-3, atol=1e-4)


def test_only_values_with_enough_events_are_used(monkeypatch):
    contexts = [{"country": name} for name in "abcd"]
    number = torch.tensor([0] * 60 + [1] * 49 + [2] * 80 + [3] * 70).int()
    events = bt.data.Events(torch.tensor([0, len(number)]), torch.zeros(len(number), dtype=torch.int64), "log")
    events = replace(events, contexts=EventContexts(number, contexts))
    assert counted.frequent_values(events) == {"country": ["a", "c", "d"]}
    rare = [{**context, "city": str(number)} for number, context in enumerate(contexts * 10)]
    events = replace(events, contexts=EventContexts(number + 4 * (torch.arange(len(number)) % 10).int(), rare))
    columns, vectors, items = counted.fit_contexts(events, 2)  # a column without a frequent value
    assert columns == {"country": ["a", "c", "d"], "city": []}
    assert torch.isfinite(vectors @ items.T).all()
    nothing = replace(events, contexts=EventContexts(torch.arange(len(number)).int() % 40, rare[:40]))
    monkeypatch.setattr(counted, "MIN_EVENTS", 1000)
    assert len(counted.fit_contexts(nothing, 2).values) == 0
    monkeypatch.undo()
    monkeypatch.setattr(counted, "MAX_VALUES", 2)
    assert counted.frequent_values(events) == {"country": ["c", "d"], "city": []}


# Models


def test_a_context_part_finds_more_and_only_the_useful_column_counts(shop):
    assert "context" in shop.model.scorer.names
    weights = shop.model.scorer.hyperparameters["context"]["weights"]
    assert weights["device"] > 0 == weights["other"]
    assert "raises recall" in parts_report(shop.model.scorer)[-1]
    test = shop.data.test
    found = bt.evaluate(shop.model, test, m=10, metrics="recall")["recall", 10]
    blind = replace(test, events=replace(test.events, contexts=None))
    assert found > 1.2 * bt.evaluate(shop.model, blind, m=10, metrics="recall")["recall", 10]


def test_hours_of_a_log_without_dates_are_not_known():
    log = pl.DataFrame({"user": ["a", "a", "b", "b"], "item": ["i1", "i2"] * 2, "time": [1, 2, 3, 4]})
    log = log.with_columns(country=pl.lit("DE"))
    assert read_users(log, Ids(["i1", "i2"]), context=("hour",)).events.contexts is None
    contexts = read_users(log, Ids(["i1", "i2"]), context=("hour", "country")).events.contexts
    assert contexts.contexts == [{"country": "DE"}]


def test_users_of_another_log_are_evaluated_in_their_contexts(shop, tmp_path):
    """The context of a user is that of the first event to be found."""
    log = device_log(users=25, seed=5).sample(fraction=1.0, shuffle=True, seed=2)
    log = log.with_columns(user="other " + pl.col("user"))
    repeated = pl.concat([log, log.with_columns(device=pl.lit("watch"))])  # the first of equal events counts
    expected = {"device": [], "none": []}
    for rows in log.sort("user", "timestamp").partition_by("user", maintain_order=True):
        half = len(rows) // 2
        history, targets, device = rows["item"][:half].to_list(), set(rows["item"][half:]), rows["device"][half]
        for name, context in (("device", {"device": device}), ("none", None)):
            found = shop.recommend(history, m=10, context=context)["item"]
            expected[name].append(len(targets & set(found)) / len(targets))
    assert np.mean(expected["device"]) != np.mean(expected["none"])
    for other, name in ((log, "device"), (repeated, "device"), (log.drop("device", "other"), "none")):
        assert shop.evaluate(10, metrics="recall", data=other)["recall", 10] == pytest.approx(np.mean(expected[name]))
    shop.save(tmp_path / "run")
    log.write_parquet(tmp_path / "log.parquet")
    words = ["evaluate", "run", "--log", "log.parquet", "--m", "10", "--metrics", "recall", "--json", "out.json"]
    beamtree(*words, folder=tmp_path)
    assert pl.read_json(tmp_path / "out.json")["value"].item() == pytest.approx(np.mean(expected["device"]))


def test_searches_of_the_page_are_in_the_context_of_their_user(shop):
    data, size, m = shop.data, 40, 40
    pack = record(variants("shop", shop.model), data.test, [""] * len(data.test), Catalogue.of_ids(shop.ids),
                  count=6, beam_sizes=[size])  # fmt: skip
    contexts = data.test.events.contexts
    rows = torch.linspace(0, len(data.test) - 1, 6).long()
    first = data.test.target_index(rows)[:, 0].tolist()
    models = {model["name"]: model for model in pack["models"]}
    for user, index, with_context, without in zip(
        pack["users"], first, models["shop"]["searches"], models["shop without context"]["searches"], strict=True
    ):
        history = [pack["items"]["id"][item] for item in user["history"]][::-1]  # it is recorded newest first
        assert with_context[0]["found"] != without[0]["found"]
        context = contexts.contexts[int(contexts.number[index])]
        expected = shop.recommend(history, m=m, beam_size=size, context=context)["score"].to_list()
        assert [score for _, score in with_context[0]["found"]] == pytest.approx(expected, rel=1e-4)


def test_the_context_of_a_request_decides(shop):
    history = ["i002", "i003", "i008"]
    for device, rest in (("phone", 0), ("desktop", 1)):
        items = shop.recommend(history, m=2, context={"device": device})["item"].to_list()
        assert [int(item[1:]) % 2 for item in items] == [rest, rest]
        new = shop.recommend([[]], m=8, context={"device": device})["item"].to_list()  # a visitor without a history
        assert all(int(item[1:]) % 2 == rest for item in new)
    plain = shop.recommend(history, m=9)
    for nothing in ({}, {"device": None}, {"device": "watch"}, {"other": "y"}):
        assert shop.recommend(history, m=9, context=nothing).equals(plain)
    several = shop.recommend([history, history], m=5, context=[{"device": "phone"}, {"device": "desktop"}])
    for row, device in enumerate(DEVICES):
        one = shop.recommend(history, m=5, context={"device": device})
        assert several.filter(pl.col("history") == row).drop("history").equals(one)
    user = shop.data.users[0]
    assert not shop.recommend(users=[user], m=5, context={"device": "phone"}).equals(shop.recommend(users=[user], m=5))


def test_scores_are_those_of_recommendations(shop):
    for history in (["i002", "i003"], []):
        for context in ({"device": "phone"}, None):
            best = shop.recommend([history], m=6, context=context)
            scores = shop.score([history], best["item"].to_list(), context=context)["score"]
            np.testing.assert_allclose(scores, best["score"], rtol=1e-4)


def test_rules_are_kept_in_a_context(shop):
    for history in (["i002", "i003"], []):
        best = shop.recommend([history], m=6, context={"device": "phone"})
        ruled = shop.recommend([history], m=6, context={"device": "phone"}, rules={"diversity": 0})
        assert ruled["item"].to_list() == best["item"].to_list()


def test_the_compiled_and_the_plain_search_find_the_same_in_a_context(shop, monkeypatch):
    histories = [History(list(range(n, n + 5))) for n in range(8)]
    histories = in_context(shop.model, histories, [{"device": DEVICES[n % 2]} for n in range(8)])
    x = model_input(shop.model, histories)
    compiled = bt.retrieve(shop.model, x, beam_size=20, m=6)
    assert beam.search_parts(shop.model.scorer, shop.model.tree, x) is not None
    monkeypatch.setattr(beam, "search_parts", lambda *_: None)
    plain = bt.retrieve(shop.model, x, beam_size=20, m=6)
    torch.testing.assert_close(compiled[1], plain[1], rtol=1e-4, atol=1e-4)
    assert torch.equal(compiled[0].sort().values, plain[0].sort().values)


def test_an_explanation_shows_the_share_of_the_context(shop):
    histories = in_context(shop.model, [History([1, 2])], {"device": "phone"})
    wanted = shop.ids.find_known([f"i{2 * n + 1:03}" for n in range(60)])  # not sold on a phone
    explained = explain(shop.model, model_input(shop.model, histories), beam_size=4, m=4, items=wanted)
    decided = [path.pruned for path in explained.items if path.pruned is not None]
    assert any(part.name == "context" and part.difference < 0 for pruned in decided for part in pruned.parts)


def test_a_context_that_says_nothing_is_left_out_and_changes_nothing():
    log = device_log(useful=False, users=150)
    model = bt.Recommender(steps=0).fit(log, context="device", verbose=False)
    plain = bt.Recommender(steps=0).fit(log, verbose=False)
    assert "context" not in model.model.scorer.names
    assert "context part was left out" in parts_report(model.model.scorer)[-1]
    answer = model.recommend(["i002", "i003"], m=9, context={"device": "phone"})  # a request may still say it
    assert answer.equals(plain.recommend(["i002", "i003"], m=9))
    with pytest.raises(ValueError, match="no column 'land'; its columns are device"):
        model.recommend(["i002"], context={"land": 1})
    with pytest.raises(ValueError, match="fitted without `context`"):
        plain.recommend(["i002"], context={"device": "phone"})


def test_a_model_is_saved_with_its_contexts_and_asked_by_command_and_service(shop, tmp_path):
    shop.save(tmp_path / "run")
    context = {"device": "desktop"}
    expected = shop.recommend(["i002", "i003"], m=5, context=context)["item"].to_list()
    loaded = bt.Recommender.load(tmp_path / "run")
    assert loaded.recommend(["i002", "i003"], m=5, context=context)["item"].to_list() == expected
    assert loaded.evaluate(4, metrics="recall") == shop.evaluate(4, metrics="recall")
    words = ["retrieve", "run", "--history", "i002,i003", "--m", "5", "--json", "out.json", "--context"]
    beamtree(*words, "device=desktop", folder=tmp_path)
    assert pl.read_json(tmp_path / "out.json")["item"].to_list() == expected
    assert "give COLUMN=VALUE" in beamtree(*words, "desktop", folder=tmp_path, check=False).stderr
    assert "no column 'land'" in beamtree(*words, "land=DE", folder=tmp_path, check=False).stderr
    with serving(make_service(tmp_path / "run", open_shop, beam_size=400)) as client:
        body = {"history": ["i002", "i003"], "m": 5, "context": context}
        (result,) = client.post("/v1/recommend", json=body).raise_for_status().json()["results"]
        assert result["items"] == expected
        explained = client.post("/v1/explain", json=body).raise_for_status().json()["explanation"]
        assert [row["item"]["item"] for row in explained["found"]] == expected
        reply = client.post("/v1/recommend", json={**body, "context": {"land": "DE"}})
        assert (reply.status_code, "no column 'land'" in reply.json()["error"]) == (422, True)


def test_a_refit_counts_the_new_events_with_the_same_weights(shop):
    part, events = context_part(shop.model.scorer), shop.data.joined(shop.data.sections)
    again = context_part(refit_parts(shop.model, shop.data, events, 0).scorer)
    assert torch.equal(again.table.weight, part.table.weight)
    assert torch.equal(again.weights, part.weights)
    renamed = [{**context, "device": f"new {context['device']}"} for context in events.contexts.contexts]
    events = replace(events, contexts=events.contexts._replace(contexts=renamed))
    values = context_part(refit_parts(shop.model, shop.data, events, 0).scorer).values
    assert values["device"] == ["new desktop", "new phone"]


def test_new_items_and_another_tree_keep_the_context(shop):
    model, part = shop.model, context_part(shop.model.scorer)
    moved = model.on_tree(bt.random_tree(model.tree.num_items, seed=3))
    assert context_part(moved.scorer).values == part.values
    leaves = [each.tree.leaf_of_item(torch.arange(each.tree.num_items)) for each in (model, moved)]
    assert torch.equal(part.table.weight[leaves[0]], context_part(moved.scorer).table.weight[leaves[1]])
    x = model_input(moved, in_context(moved, [History([1, 2])], {"device": "phone"}))
    assert bt.retrieve(moved, x, m=5)[0].shape == (1, 5)


def test_an_item_that_is_added_is_sold_where_similar_ones_are(shop, tmp_path):
    shop.save(tmp_path / "run")
    other = bt.Recommender.load(tmp_path / "run")
    other.update_items({"new": {"like": ["i002"]}})
    scores = [other.score(["i002"], ["new"], context={"device": device})["score"][0] for device in DEVICES]
    assert scores[0] > 2 * scores[1]

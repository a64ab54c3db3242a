"""Segments by time, history and popularity, against plain definitions."""

import datetime
import json

import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree
from sample_logs import cyclic_log

import beamtree as bt
from beamtree.data import BeforeAfter, Events
from beamtree.evaluate.beyond_accuracy import ItemFacts
from beamtree.evaluate.slices import HISTORIES, SEGMENTS, by_popularity, by_time

WEEK = 7 * 86_400
START = int(datetime.datetime(2020, 3, 2, 15, 30, tzinfo=datetime.UTC).timestamp())


def make_users(users=40, items=30, unit=1, span=5 * WEEK, first=START, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 60, (users,), generator=generator)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    count = int(offsets[-1])
    chosen = (torch.rand(count, generator=generator) ** 3 * items).int()
    times = first + (torch.rand(count, generator=generator, dtype=torch.float64) * span).long()
    for user in range(users):
        own = slice(int(offsets[user]), int(offsets[user + 1]))
        times[own] = times[own].sort().values
    return BeforeAfter(Events(offsets, chosen, "users", times=times * unit))


def make_model(data, items=30):
    tree = bt.random_tree(items, seed=1)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, scale=1.0))
    model.popularity = data.events.popularity(items)
    return model


def held_out(data):
    """(user, history length, item, time) of every target."""
    for user in range(len(data)):
        start, stop = data.events.offsets[user : user + 2].tolist()
        cut = start + (stop - start) // 2
        for event in range(cut, stop):
            yield user, cut - start, int(data.events.items[event]), int(data.events.times[event])


def plain_recall(data, model, m, segment_of):
    """The mean over users of recall among the targets of each segment."""
    x, _ = data.batch(torch.arange(len(data)))
    best, _ = bt.retrieve(model, x, beam_size=20, m=m)
    targets = {}
    for user, length, item, time in held_out(data):
        targets.setdefault(segment_of(length, item, time), {}).setdefault(user, set()).add(item)
    return {
        segment: np.mean([len(items & set(best[user].tolist())) / len(items) for user, items in users.items()])
        for segment, users in targets.items()
    }


@pytest.mark.parametrize("unit", [1, 1000, 10**6])
def test_recall_by_time_is_that_of_the_targets_of_each_week(unit):
    data = make_users(unit=unit)
    model = make_model(data)
    result = bt.evaluate(model, data, beam_size=20, m=10, metrics="recall", by="time")
    first = min(time for *_, time in held_out(data)) // unit // 86_400 * 86_400

    def week(length, item, time):
        begin = datetime.datetime.fromtimestamp(first + (time // unit - first) // WEEK * WEEK, datetime.UTC)
        return f"{begin:%Y-%m-%d} to {begin + datetime.timedelta(days=6):%Y-%m-%d}"

    expected = plain_recall(data, model, 10, week)
    assert {name: part["recall", 10] for name, part in result.segments.items()} == pytest.approx(expected)
    assert list(result.segments) == sorted(expected)
    assert len(expected) > 3
    assert dict(bt.evaluate(model, data, beam_size=20, m=10, metrics="recall")) == dict(result)


def test_recall_by_history_is_that_of_users_with_histories_of_some_length():
    data = make_users(users=80)
    data = BeforeAfter(data.events, torch.minimum(data.events.counts() - 1, torch.tensor([2, 9, 40, 200] * 20)))
    model = make_model(data)
    result = bt.evaluate(model, data, beam_size=20, m=10, metrics=("recall", "coverage"), by="history")
    names = ["new: up to 5 events", "6 to 20 events", "21 to 100 events"]
    assert list(result.segments) == names
    lengths = data.history_lengths(torch.arange(80))
    everyone = bt.evaluate(model, data, beam_size=20, m=10, metrics="recall").per_user[:, 0, 0]
    bounds = [-1, *HISTORIES]
    for name, low, high in zip(names, bounds, bounds[1:], strict=False):
        users = (lengths > low) & (lengths <= high)
        assert result.segments[name].users == int(users.sum())
        assert result.segments[name]["recall", 10] == pytest.approx(float(everyone[users].mean()))


def test_recall_by_popularity_is_that_of_the_targets_in_each_third_of_the_events():
    data = make_users()
    model = make_model(data)
    result = bt.evaluate(model, data, beam_size=20, m=10, metrics="recall", by="popularity")
    counts, before, third = model.popularity.tolist(), 0, {}
    for item in sorted(range(30), key=lambda item: (-counts[item], item)):
        third[item] = min(2, 3 * before // sum(counts)) if counts[item] else 2
        before += counts[item]
    sizes = [list(third.values()).count(number) for number in range(3)]
    names = [f"{name}: {size} items" for name, size in zip(("popular", "middle", "rare"), sizes, strict=True)]
    expected = plain_recall(data, model, 10, lambda length, item, time: names[third[item]])
    assert {name: part["recall", 10] for name, part in result.segments.items()} == pytest.approx(expected)


def test_items_that_training_does_not_have_are_rare():
    segments = by_popularity(make_users(), ItemFacts(popularity=torch.tensor([6, 3, 3, 0])))
    assert segments.of(torch.arange(1), torch.zeros(1, 5), torch.tensor([[0, 1, 2, 3, 7]])).tolist() == [
        [0, 1, 2, 2, 2]
    ]


@pytest.mark.parametrize(
    ("span", "first_name"),
    [
        (5 * 3600, "2020-03-02 15:00"),
        (6 * 86_400, "2020-03-02"),
        (300 * 86_400, "2020-03-02 to 2020-03-29"),
        (5000 * 86_400, "2020-03-02 to 2022-02-27"),
    ],
)
def test_there_are_at_most_twelve_periods_of_a_usual_length(span, first_name):
    data = make_users(span=span, users=200)
    data = BeforeAfter(data.events, torch.zeros(200, dtype=torch.int64))  # everything is held out
    data.events.times[0] = START
    names = by_time(data, ItemFacts()).names
    assert names[0] == first_name
    assert 4 <= len(names) <= 12


def test_numbers_that_are_no_dates_make_equal_ranges():
    data = make_users(first=0, span=120)
    data = BeforeAfter(data.events, torch.zeros(40, dtype=torch.int64))
    segments = by_time(data, ItemFacts())
    length = (int(data.events.times.max()) - int(data.events.times.min())) // 12 + 1
    first = int(data.events.times.min())
    assert segments.names[:2] == [f"{first} to {first + length - 1}", f"{first + length} to {first + 2 * length - 1}"]
    number = segments.of(torch.arange(1), torch.arange(len(data.events.times)).unsqueeze(0), torch.zeros(1, 1))
    assert number.max() == len(segments.names) - 1


def test_segments_leave_out_what_was_seen_and_are_in_the_frame():
    data = make_users()
    model = make_model(data)
    result = bt.evaluate(model, data, beam_size=20, m=5, metrics="recall", exclude_seen=True, by="popularity")
    frame = result.to_frame()
    assert frame["segment"].to_list() == ["all", *result.segments]
    assert frame.columns == ["segment", "metric", "m", "value", "low", "high"]
    assert all(name in str(result) for name in result.segments)
    sizes = [part.users for part in result.segments.values()]
    assert max(sizes) <= result.users


def test_a_sample_of_users_keeps_the_times_of_their_events():
    data = make_users()
    some, rows = data.sample(7), torch.linspace(0, 39, 7).long()
    for index, row in enumerate(rows.tolist()):
        own, all_own = (slice(*each.events.offsets[at : at + 2].tolist()) for each, at in ((some, index), (data, row)))
        assert torch.equal(some.events.times[own], data.events.times[all_own])
    assert bt.evaluate(make_model(data), some, beam_size=20, m=5, metrics="recall", by="time").segments


def test_metrics_of_lists_are_for_segments_of_users_alone():
    data = make_users()
    model = make_model(data)
    metrics = ("coverage", "recall")
    by_item = bt.evaluate(model, data, beam_size=20, m=(5, 10), metrics=metrics, by="popularity")
    assert ("coverage", 5) in by_item
    for part in by_item.segments.values():
        assert list(part) == [("recall", 5), ("recall", 10)]
    assert str(by_item).count("coverage") == 1
    by_user = bt.evaluate(model, data, beam_size=20, m=5, metrics=metrics, by="history")
    assert all(("coverage", 5) in part for part in by_user.segments.values())
    with pytest.raises(ValueError, match="by='time' divides what is to be found: add a metric such as recall"):
        bt.evaluate(model, data, beam_size=20, m=5, metrics="coverage", by="time")


def test_what_segments_need_is_told():
    data = make_users()
    model = make_model(data)
    untimed = BeforeAfter(Events(data.events.offsets, data.events.items, "users"))
    with pytest.raises(ValueError, match="by='time': these events have no times"):
        bt.evaluate(model, untimed, beam_size=20, m=5, by="time")
    with pytest.raises(ValueError, match="by 'weather' is unknown: choose from time, history, popularity"):
        bt.evaluate(model, data, beam_size=20, m=5, by="weather")
    assert list(SEGMENTS) == ["time", "history", "popularity"]


def test_the_command_writes_segments_of_every_row(shop_folder, tmp_path):
    words = ["evaluate", str(shop_folder / "run"), "--beam-size", "20", "--m", "5", "--metrics", "recall,novelty"]
    words += ["--by", "popularity", "--against", "popularity", "--json", "found.json"]
    done = beamtree(*words, folder=tmp_path)
    cells = json.loads((tmp_path / "found.json").read_text())
    shop = bt.Recommender.load(shop_folder / "run")
    result = shop.evaluate(m=5, beam_size=20, metrics=("recall", "novelty"), by="popularity")
    own = [cell for cell in cells if cell["row"] == "run" and not cell["exclude_seen"]]
    more = ("row", "exclude_seen", "warning", "model")
    own = [{name: value for name, value in cell.items() if name not in more} for cell in own]
    assert own == [pytest.approx(record) for record in result.records()]
    assert {cell["segment"] for cell in cells if cell["row"] == "popularity"} == {"all", *result.segments}
    assert "novelty (not in %)" in done.stdout
    assert all(name in done.stdout for name in result.segments)
    words[words.index("--by") + 1] = "wether"
    done = beamtree(*words, folder=tmp_path, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--by 'wether' is unknown: choose from time, history" in done.stderr


def test_weighted_recall_and_periods_of_a_log_with_both(tmp_path):
    log = cyclic_log().with_columns(
        rating=pl.int_range(pl.len()) % 5 + 1, time=pl.datetime(2024, 1, 1) + pl.duration(days=pl.col("time"))
    )
    shop = bt.Recommender(steps=0, beam_size=60).fit(log, weight="rating", test_users=20, verbose=False)
    shop.save(tmp_path / "run")
    result = shop.evaluate(m=5, metrics=("recall", "weighted_recall"), by="time")
    assert list(result.segments) == [f"2024-01-{day:02}" for day in range(7, 13)]  # the second half of twelve days
    x, _ = shop.data.test.batch(torch.arange(20))
    best, _ = bt.retrieve(shop.before_refit, x, beam_size=400, m=5)
    values = []
    for user, items in enumerate(best.tolist()):
        name = shop.data.users.names[-20:][user]
        targets = {item: rating for _, item, _, rating in log.filter(pl.col("user") == name)[6:].rows()}
        found = sum(rating for item, rating in targets.items() if item in {shop.ids[item] for item in items})
        values.append(found / sum(targets.values()))
    assert result["weighted_recall", 5] == pytest.approx(np.mean(values))
    done = beamtree("evaluate", "run", "--m", "5", "--metrics", "recall", "--weighted", folder=tmp_path)
    assert "weighted_recall" in done.stdout
    frame = log.select("user", "item", "time").with_columns(user="other " + pl.col("user"))
    other = shop.evaluate(m=5, metrics="recall", data=frame, by="time")
    assert list(other.segments) == list(result.segments)

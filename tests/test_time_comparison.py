"""A comparison on a log that is split by time: popularity has a window, tuned baselines have a half-life."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import beamtree as bt
from beamtree.data import BeforeAfter, Events
from beamtree.data.times import DAY
from beamtree.research.baselines import build, popularity
from beamtree.research.baselines.tuned import HALF_LIFE, shuffle_items
from beamtree.research.compare import Experiment, compare, markdown, records
from beamtree.research.compare.rows import ROWS, STRONG

START, DAYS, CHANGES = 1_600_000_000, 320, 40
ITEMS = 60


def changing_log(users=400, events=24, seed=0):
    """Users walk around a group of ten items; which items these are, and which group most are in, changes."""
    draw, rows = np.random.default_rng(seed), []
    for user in range(users):
        for day in sorted(draw.uniform(0, DAYS, events)):
            season = int(day // CHANGES)
            items = np.random.default_rng(season).permutation(ITEMS)
            group = season % 6 if draw.random() < 0.3 else user % 6
            rows.append((f"u{user}", f"i{items[10 * group + draw.integers(10)]}", START + int(day * DAY)))
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


@pytest.fixture(scope="module")
def changing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("changing") / "data"
    bt.prepare(changing_log(), folder)
    return bt.load_data(folder)


def without_clock(users):
    return replace(users, events=replace(users.events, clock=None))


@pytest.mark.extended
def test_every_strong_row_works_on_a_split_by_time(changing, tmp_path):
    assert changing.description["settings"]["split"] == "time"
    lines = []
    experiment = Experiment(
        changing, bt.cluster_tree(changing), tmp_path, beam_size=8, batch_size=50, steps=6, m=(5, 10), test_beam=20,
        on_message=lines.append,
    )  # fmt: skip
    results = {result.row: result for result in compare(experiment, STRONG)}
    assert tuple(results) == STRONG, lines
    for result in results.values():
        assert len(result.values) == len(changing.test)
        assert result.evaluation["recall", 10] > 0
    chosen = results["popularity"].label
    assert chosen in ("popularity, 7 days", "popularity, 30 days")
    assert f"| {chosen} |" in markdown(list(results.values()))
    assert [cell["value"] for cell in records(list(results.values())) if cell["metric"] == "label"] == [chosen]
    for row in ("ease", "ials", "rules"):
        assert HALF_LIFE in results[row].notes[0]
    assert HALF_LIFE not in results["user-knn"].notes[0]
    again = compare(experiment, ["popularity"])[0]
    assert again.label == chosen


def test_popularity_counts_the_newest_days(changing):
    events = changing.train.events
    found = popularity(events, ITEMS, changing.val)
    days = int(found.label.removesuffix(" days"))
    items, times = events.item_numbers().tolist(), events.seconds(torch.arange(len(events.items))).tolist()
    counts = [0] * ITEMS
    for item, time in zip(items, times, strict=False):
        counts[item] += time > max(times[: len(items)]) - days * DAY
    order = sorted(range(ITEMS), key=lambda item: (-counts[item], item))
    assert found.retrieve(torch.zeros(1, 1), ITEMS)[0][0].tolist() == order


def test_the_window_is_the_one_that_validation_users_choose_from():
    """Everything is chosen again after a year, so that the whole log says the most."""
    draw = torch.Generator().manual_seed(0)
    times = torch.rand(4000, generator=draw).mul(DAYS * DAY).long().sort().values + START
    items = (torch.rand(4000, generator=draw) ** 3 * 500).int()
    events = Events(torch.tensor([0, 4000]), items, "steady", times=times, clock=1)
    users = BeforeAfter(Events(torch.arange(101) * 20, items[torch.randint(4000, (2000,), generator=draw)], "users"))
    assert popularity(events, 500, users).label == "all days"
    assert popularity(events, 500).label == "all days"
    assert popularity(replace(events, clock=None), 500, users).label == ""


@pytest.mark.parametrize("name", ["ease", "ials", "rules"])
def test_old_events_count_less_where_that_finds_more(changing, name):
    train, val = changing.train.events, changing.val
    aged = build(name, train, ITEMS, val)
    assert 0 < aged.settings[HALF_LIFE] < DAYS / 2
    plain = build(name, replace(train, clock=None), ITEMS, without_clock(val))
    assert HALF_LIFE not in plain.settings
    x, y = changing.test.batch(torch.arange(len(changing.test)))

    def recall(row):
        items = row.retrieve(x, 10)[0]
        return float(((items.unsqueeze(2) == y.unsqueeze(1)) & (y != bt.PAD).unsqueeze(1)).any(1).float().sum())

    assert recall(aged) > 1.05 * recall(plain)


def test_the_half_life_of_a_setting_is_that_of_the_events():
    times = START + torch.tensor([0, 10, 30]) * DAY
    events = Events(torch.tensor([0, 2, 3]), torch.arange(3).int(), "log", times=times, clock=1)
    log = shuffle_items(events, 3)
    weights = log.aged({HALF_LIFE: 10.0}).events.weights
    assert (weights / weights[2]).tolist() == pytest.approx([1 / 8, 1 / 4, 1])
    assert log.aged({HALF_LIFE: 0.0}) is log
    assert log.aged({}) is log
    heavy = shuffle_items(replace(events, weights=torch.tensor([4.0, -1.0, 1.0])), 3).aged({HALF_LIFE: 10.0})
    assert (heavy.events.weights / heavy.events.weights[2]).tolist() == pytest.approx([1 / 2, -1 / 4, 1])


def test_rows_read_histories_as_long_as_they_can(tmp_path):
    draw = np.random.default_rng(0)
    rows = [(f"u{user}", f"i{draw.integers(40)}", START + 3600 * time) for user in range(60) for time in range(200)]
    bt.prepare(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"), tmp_path / "data", test_users=10)
    data, widths = bt.load_data(tmp_path / "data"), set()

    def watched(name, row, experiment, on_message):
        made = ROWS["item-cf"].make("item-cf", row, experiment, on_message)

        def find(x, exclude):
            widths.add(x.shape[1])
            return made.retrieve(x, exclude)

        return made._replace(retrieve=find)

    experiment = Experiment(data, bt.cluster_tree(data), tmp_path / "out", m=(5,), test_beam=40)
    extra = {"watched": replace(ROWS["item-cf"], make=watched)}
    ours = compare(experiment, ["watched", "beamtree-start"], extra)[1]
    assert widths == {128}
    model = bt.load_model(tmp_path / "out" / "beamtree-start")
    assert dict(ours.evaluation) == dict(bt.evaluate(model, data.test, m=5, beam_size=40))

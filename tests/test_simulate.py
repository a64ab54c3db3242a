"""A simulated market has the shapes of a real one, whole or not at all."""

import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree

from beamtree.data import BeforeAfter, Events
from beamtree.evaluate.metrics import precision_recall_f
from beamtree.files.staging import NEW, OLD
from beamtree.ingest import simulate as module
from beamtree.ingest.simulate import item_names, items_file, simulate
from beamtree.research.baselines import build

USERS, ITEMS, EVENTS = 20_000, 10_000, 400_000


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    """Events and items of a market of the demo's size, and what simulate says of it."""
    out = tmp_path_factory.mktemp("market") / "market.parquet"
    shape = simulate(out, users=USERS, items=ITEMS, events=EVENTS)
    return pl.read_parquet(out), pl.read_parquet(items_file(out)), shape


def log_of(events, items, users):
    """The events of some users; an item's number is the one in its id."""
    part = events.filter(pl.col("user").is_in(users.implode()))
    counts = part.group_by("user", maintain_order=True).len()["len"].to_numpy()
    numbers = part["item"].str.slice(1).cast(pl.Int64).to_numpy().copy()
    assert numbers.max() < items
    offsets = np.append(0, counts.cumsum()).astype(np.int64)
    return BeforeAfter(Events(torch.from_numpy(offsets), torch.from_numpy(numbers), "test"))


def test_columns_ids_and_times(market):
    events, items, _ = market
    assert events.schema == {"user": pl.String, "item": pl.String, "timestamp": pl.Int64}
    assert events.height == EVENTS
    assert events["user"].n_unique() == USERS
    assert events["user"].is_sorted()
    assert events["user"].str.contains(r"^u\d{7}$").all()
    assert items.schema == {"item": pl.String, "category": pl.String, "name": pl.String}
    assert items["item"].to_list() == [f"i{number:07}" for number in range(ITEMS)]
    assert items["category"].str.contains(r"^\d+/\d+/\d+/\d+$").all()
    assert events["item"].is_in(items["item"].implode()).all()
    later = events["timestamp"].diff() > 0
    assert (later | (events["user"] != events["user"].shift(1))).fill_null(True).all()


def test_popularity_is_zipf_like(market):
    events, _, shape = market
    sold = events["item"].value_counts()["count"].sort(descending=True)
    share = sold.head(ITEMS // 100).sum() / EVENTS
    assert 0.15 <= share <= 0.30
    assert shape["top_percent_share"] == pytest.approx(share)
    assert shape["items_with_events"] == len(sold)


def test_events_per_user_have_a_long_tail(market):
    events, _, shape = market
    counts = events["user"].value_counts()["count"]
    assert counts.median() == shape["events_per_user"]["median"] == pytest.approx(10, abs=2)
    assert counts.quantile(0.99) == pytest.approx(150, rel=0.1)
    assert counts.min() >= 1


def test_another_ratio_keeps_the_shape(tmp_path):
    per_user = simulate(tmp_path / "m.parquet", users=2_000, items=50, events=160_000)["events_per_user"]
    assert per_user["median"] == pytest.approx(40, rel=0.15)
    assert per_user["p99"] == pytest.approx(600, rel=0.25)


def test_ids_tell_nothing(market):
    events, items, _ = market
    sold = items.join(events["item"].value_counts(), on="item", how="left")["count"].fill_null(0).to_numpy()
    first = items["category"].str.split("/").list.first().cast(pl.Int64).to_numpy()
    number = np.arange(ITEMS)
    assert abs(np.corrcoef(number, sold)[0, 1]) < 0.05
    assert abs(np.corrcoef(number, first)[0, 1]) < 0.05


def test_interests_last_and_drift_to_near_categories(market):
    events, items, _ = market
    paths = events.join(items, on="item", how="left", maintain_order="left")["category"].str.split("/")
    same = (events["user"] == events["user"].shift(-100)).fill_null(False)  # long users: a hundred events apart
    near = (events["user"] == events["user"].shift(-1)).fill_null(False)

    def share(apart, level, rows):
        head = paths.list.head(level).list.join("/")
        return (head == head.shift(-apart)).filter(rows).mean()

    assert share(1, 4, near) > 1.5 * share(100, 4, same)  # interests move on …
    assert share(100, 2, same) > 3 / 16  # … within the same second level, of which there are 16
    assert share(100, 4, same) > 3 / 256


def test_item_cf_beats_popularity(market):
    events, _, _ = market
    counts = events["user"].value_counts()
    users = counts.filter(pl.col("count") >= 10)["user"].sort()
    train, test = log_of(events, ITEMS, users[:-500]), log_of(events, ITEMS, users[-500:])
    x, y = test.batch(torch.arange(500))
    rows = [build(name, train.events, ITEMS) for name in ("item-cf", "popularity")]
    recall = [precision_recall_f(row.retrieve(x, 50)[0], y, 50)[:, 1].mean() for row in rows]
    assert recall[0] > 2 * recall[1]


def test_same_seed_same_market_in_files_of_any_size(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 1_000)
    frames = []
    for name, part in (("one.parquet", 8), ("two.parquet", 1), ("parts", 1), ("more", 3)):
        monkeypatch.setattr(module, "PART", part)
        simulate(tmp_path / name, users=300, items=200, events=6_000, seed=5)
        frames.append((pl.read_parquet(tmp_path / name), pl.read_parquet(items_file(tmp_path / name))))
    assert all(frame.equals(frames[0][0]) and items.equals(frames[0][1]) for frame, items in frames)
    assert sorted(path.name for path in (tmp_path / "more").iterdir())[:2] == [
        "part-00000.parquet",
        "part-00001.parquet",
    ]
    assert len(list((tmp_path / "parts").iterdir())) == 6
    simulate(tmp_path / "other.parquet", users=300, items=200, events=6_000, seed=6)
    assert not pl.read_parquet(tmp_path / "other.parquet").equals(frames[0][0])


@pytest.mark.parametrize("name", ["m.parquet", "m"])
def test_a_market_is_whole_or_as_it_was(tmp_path, monkeypatch, name):
    out = tmp_path / name
    simulate(out, users=10, items=10, events=100)
    before = pl.read_parquet(out)
    monkeypatch.setattr(module, "BLOCK", 100)

    def stop(count):
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        simulate(out, users=100, items=10, events=1_000, on_events=stop)
    assert pl.read_parquet(out).equals(before)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "m.items.parquet"])
    simulate(out, users=100, items=10, events=1_000)
    assert pl.read_parquet(out).height == 1_000
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "m.items.parquet"])


def test_what_parquet_cannot_write_is_an_os_error(tmp_path, monkeypatch):
    def write(frames, path):
        next(frames).write_parquet(path)
        raise pl.exceptions.ComputeError("no space left on device")

    monkeypatch.setattr(module, "_write", write)
    with pytest.raises(OSError, match=r"m.parquet cannot be written: no space left on device"):
        simulate(tmp_path / "m.parquet", users=1, items=1, events=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("numbers", [(1, 1, 1), (1, 300, 7), (50, 1, 50), (3, 61, 5_000)])
def test_small_markets_are_markets(tmp_path, numbers):
    users, items, events = numbers
    told = []
    simulate(tmp_path / "m.parquet", users=users, items=items, events=events, on_events=told.append)
    frame = pl.read_parquet(tmp_path / "m.parquet")
    assert (frame["user"].n_unique(), frame.height, sum(told)) == (users, events, events)
    assert pl.read_parquet(tmp_path / "m.items.parquet").height == items


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"users": 0}, "users=0: a market needs at least one"),
        ({"items": 0}, "items=0: a market needs at least one"),
        ({"events": 9}, "events=9 with users=10: every user has at least one event"),
        ({"seed": -1}, "seed=-1 is negative"),
    ],
)
def test_a_bad_number_is_one_line(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        simulate(tmp_path / "m.parquet", **({"users": 10, "items": 10, "events": 100, "seed": 0} | change))
    assert not list(tmp_path.iterdir())


def test_nothing_else_is_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "folder.parquet").mkdir()
    for name, message in (("mine", "holds something else"), ("folder.parquet", "it is a folder")):
        with pytest.raises(ValueError, match=message):
            simulate(tmp_path / name, users=1, items=1, events=1)
    assert (tmp_path / "mine" / "letter.txt").exists()
    (tmp_path / "here").mkdir()
    words = ["simulate", "--out", ".", "--users", "1", "--items", "1", "--events", "1"]
    done = beamtree(*words, folder=tmp_path / "here", check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("beamtree: . is the current folder")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["shop", "shop.parquet"])
def test_what_a_killed_process_left_is_no_hindrance(tmp_path, name):
    simulate(tmp_path / name, users=1, items=1, events=1)
    for state in (NEW, OLD):
        (tmp_path / f"{name}{state}").mkdir()
        (tmp_path / f"{name}{state}" / "half").write_text("")
    simulate(tmp_path / name, users=1, items=1, events=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "shop.items.parquet"])


def test_the_command_says_what_it_made_and_what_comes_next(tmp_path):
    words = ["simulate", "--out", "shop.parquet", "--users", "100", "--items", "50", "--events", "2000", "--seed", "3"]
    done = beamtree(*words, folder=tmp_path)
    assert "100 users, 50 items" in done.stdout
    assert "beamtree prepare shop.parquet --out prepared/shop" in done.stdout
    assert "2,000 of 2,000 events" in done.stderr
    assert pl.read_parquet(tmp_path / "shop.parquet").height == 2_000
    bad = beamtree("simulate", "--users", "10", "--events", "5", folder=tmp_path, check=False)
    assert bad.returncode == 2
    assert bad.stderr == "beamtree: --events 5 with --users 10: every user has at least one event\n"


def test_items_have_names_that_tell_their_category(tmp_path):
    simulate(tmp_path / "m.parquet", users=50, items=5000, events=500)
    items = pl.read_parquet(tmp_path / "m.items.parquet")
    assert items["name"].n_unique() == 5000
    words = items.select("category", kind=pl.col("name").str.replace(r", \d+$", "")).unique()
    assert words["category"].n_unique() == words["kind"].n_unique() == len(words)


def test_words_come_again_with_a_number_where_there_are_too_few():
    names = item_names(pl.Series([0, 29 * 30**3, 29 * 30**3]), 30)
    assert names.to_list() == [
        "red oak lamp for the garden, 1",
        "red oak lamp for the school 3, 1",
        "red oak lamp for the school 3, 2",
    ]


def test_with_contexts_some_items_sell_in_one_country_or_at_some_hours(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 1 << 13)  # the same rules in all blocks
    simulate(tmp_path / "market.parquet", users=4000, items=100, events=80_000, contexts=True)
    events = pl.read_parquet(tmp_path / "market.parquet")
    assert set(events["country"]) == set(module.COUNTRIES)
    assert set(events["device"]) == set(module.DEVICES)
    assert events.group_by("user").agg(pl.col("country").n_unique())["country"].max() == 1
    sold = events.with_columns(hour=pl.col("timestamp") // 3600 % 24).group_by("item")
    shares = sold.agg(
        events=pl.len(),
        country=(pl.col("country") == pl.col("country").mode().first()).mean(),
        daily=pl.col("hour").value_counts(sort=True).struct.field("count").head(module.DAYPART).sum() / pl.len(),
        device=(pl.col("device") == "phone").mean(),
    ).filter(pl.col("events") > 60)
    assert (shares["country"] > 0.9).mean() == pytest.approx(module.LOCAL, abs=0.1)
    assert (shares["daily"] > 0.8).mean() == pytest.approx(module.DAILY, abs=0.1)
    assert shares["device"].mean() == pytest.approx(module.DEVICES["phone"], abs=0.03)

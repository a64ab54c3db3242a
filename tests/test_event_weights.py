"""Weights and kinds of events: how they are read, what is predicted, and what the closed forms make of them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree
from hypothesis import given
from hypothesis import strategies as st
from sample_logs import by_user, repeating_events

import beamtree as bt
from beamtree import PAD
from beamtree.closed_form.als import implicit_als
from beamtree.closed_form.cooccurrence import cooccurrence, cooccurring_pairs, sum_entries
from beamtree.closed_form.transitions import (
    near_pairs,
    next_partners,
    pairs_of_cuts,
    past_and_future,
    rules_of,
)
from beamtree.data import BeforeAfter, Events
from beamtree.ingest.prepare import prepare
from beamtree.parts.sequence import draw_windows

KINDS = {"view": 1, "cart": 3, "buy": 10}
NUM_ITEMS = 12


def shop_log(users=40, seed=0):
    """Users who view, put into carts and buy items of 12, and say that they do not want some."""
    draw = np.random.default_rng(seed)
    rows = [
        (
            f"u{user}",
            f"i{draw.integers(12)}",
            str(draw.choice(["view", "cart", "buy", "hide"], p=[0.5, 0.2, 0.2, 0.1])),
            t,
        )
        for user in range(users)
        for t in range(int(draw.integers(6, 20)))
    ]
    return pl.DataFrame(rows, schema=["user", "item", "event", "time"], orient="row")


def weighted_events(seed=0, **options):
    events = repeating_events(seed=seed, **options)
    draw = torch.Generator().manual_seed(seed + 1)
    sign = torch.where(torch.rand(len(events.items), generator=draw) < 0.3, -1, 1)
    return replace(events, weights=sign * (torch.rand(len(events.items), generator=draw) * 3 + 0.1))


def weights_by_user(events):
    return [events.weights[a:b].tolist() for a, b in pairwise(events.offsets.tolist())]


# Reading


def test_kinds_become_weights_of_mean_one_and_the_sign_says_what_is_predicted(tmp_path):
    log = shop_log().filter(pl.col("event") != "hide")
    prepare(log, tmp_path / "out", kinds=KINDS, target="buy", val_users=5, test_users=5)
    data = bt.load_data(tmp_path / "out")
    user_names = iter(data.users.names)
    for view in (data.train, data.val, data.test):
        for items, weights in zip(by_user(view.events), weights_by_user(view.events), strict=True):
            user = next(user_names)
            rows = log.filter(pl.col("user") == user).sort("time", maintain_order=True)
            assert [data.items.names[item] for item in items] == rows["item"].to_list()
            expected = [KINDS[kind] * (1 if kind == "buy" else -1) for kind in rows["event"]]
            scale = expected[0] / weights[0]
            assert weights == pytest.approx([value / scale for value in expected], rel=1e-5)
    stored = np.load(tmp_path / "out" / "weights.npy")
    assert np.abs(stored).mean() == pytest.approx(1, rel=1e-5)


def test_only_users_with_a_target_to_predict_validate_and_test(tmp_path):
    log = shop_log(users=60)
    log = log.with_columns(
        event=pl.when(pl.col("user").str.slice(1).cast(int) % 2 == 0).then(pl.lit("view")).otherwise("event")
    )
    prepare(log, tmp_path / "out", kinds=KINDS, target="buy", val_users=8, test_users=8)
    data = bt.load_data(tmp_path / "out")
    for view in (data.val, data.test):
        _, y = view.batch(torch.arange(len(view)))
        assert ((y != PAD).sum(1) > 0).all()
    with pytest.raises(ValueError, match=r"one to predict \(`target`\)"):
        prepare(log, tmp_path / "more", kinds=KINDS, target="buy", val_users=20, test_users=20)


@pytest.mark.parametrize("split", ["leave-one-out", "time:9"])
def test_other_splits_predict_targets_only(tmp_path, split):
    log = shop_log(users=60)
    prepare(log, tmp_path / "out", kinds=KINDS, target="buy", split=split)
    data = bt.load_data(tmp_path / "out")
    assert min(len(data.val), len(data.test)) > 0
    for view in (data.val, data.test):
        _, y = view.batch(torch.arange(len(view)))
        assert ((y != PAD).sum(1) > 0).all()


def test_dislikes_are_no_events_and_are_never_recommended_to_their_users(tmp_path):
    log = shop_log().with_columns(rating=pl.col("event").replace_strict({"hide": 1, "view": 3, "cart": 4, "buy": 5}))
    shop = bt.Recommender(steps=0, seed=0).fit(log, weight="rating", dislike=2, target=4, verbose=False)
    assert shop.data.description["report"]["dislikes"] == log.filter(pl.col("event") == "hide").height
    disliked = log.filter(pl.col("event") == "hide").group_by("user").agg(pl.col("item").unique())
    found = shop.recommend(users=disliked["user"].to_list(), m=12)
    for user, items in disliked.iter_rows():
        recommended = set(found.filter(pl.col("user") == user)["item"])
        assert recommended == {f"i{n}" for n in range(12)} - set(items)
    shop.save(tmp_path / "run")
    loaded = bt.Recommender.load(tmp_path / "run")
    assert loaded.recommend(users=disliked["user"].to_list(), m=12).equals(found)


def test_rows_without_a_weight_and_of_other_kinds_are_dropped_and_counted(tmp_path):
    log = shop_log().with_columns(rating=pl.when(pl.col("time") == 2).then(None).otherwise(pl.lit(3.0)))
    report = prepare(log, tmp_path / "numbers", weight="rating")["report"]
    assert report["missing_weight"] == log.filter(pl.col("time") == 2).height
    report = prepare(log, tmp_path / "kinds", kinds={"buy": 2, "view": 1})["report"]
    assert report["missing_weight"] == log.filter(pl.col("event").is_in(["cart", "hide"])).height


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "buy"}, "`target` needs weights of events"),
        ({"dislike": 2}, "`dislike` needs weights of events"),
        ({"weight": "stars"}, "there is no column 'stars' for `weight`"),
        ({"weight": "time", "target": "buy"}, "give the lowest weight that is to be predicted"),
        ({"weight": "time", "target": 2, "dislike": 3}, "weights of at most 3 are dislikes"),
        ({"weight": "time", "dislike": -1}, "give a number above 0"),
        ({"kinds": "view"}, "give each kind once with its weight"),
        ({"kinds": "view=1,view=2"}, "give each kind once with its weight"),
        ({"kinds": "view=much"}, "a weight is a number"),
        ({"kinds": {"view": float("nan")}}, "a finite weight"),
        ({"kinds": "view=0"}, "a weight above 0"),
        ({"kinds": KINDS, "target": "sell"}, "choose from the kinds view, cart, buy"),
        ({"kinds": {**KINDS, "hide": -1}, "target": "hide"}, "hide is a dislike"),
    ],
)
def test_what_makes_no_sense_is_one_line(tmp_path, options, message):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        prepare(shop_log(), tmp_path / "out", **options)
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_the_command_reads_weights_and_names_a_rating_column_that_is_not_used(tmp_path):
    log = shop_log().with_columns(rating=pl.lit(4))
    log.write_parquet(tmp_path / "log.parquet")
    shown = beamtree("prepare", "log.parquet", "--out", "plain", folder=tmp_path)
    assert "with --weight=rating events count by their rating" in shown.stdout
    options = ("--kinds", "view=1,cart=3,buy=10,hide=-1", "--target", "buy")
    shown = beamtree("prepare", "log.parquet", "--out", "kinds", *options, folder=tmp_path)
    assert "weight event (view 1, cart 3, buy 10, hide -1), to predict: buy" in " ".join(shown.stdout.split())
    assert "not used unless" not in shown.stdout


# What is predicted


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=2, max_size=12), min_size=1, max_size=5))
def test_targets_are_the_events_to_predict_and_histories_hold_everything(users):
    offsets = torch.tensor([0, *np.cumsum([len(row) for row in users]).tolist()])
    flat = [pair for row in users for pair in row]
    items = torch.tensor([item for item, _ in flat]).int()
    weights = torch.tensor([1.0 if wanted else -1.0 for _, wanted in flat])
    x, y = BeforeAfter(Events(offsets, items, "a", weights=weights)).batch(torch.arange(len(users)))
    for row, past, future in zip(users, x.tolist(), y.tolist(), strict=True):
        half = len(row) // 2
        assert [item for item in past if item != PAD] == [item for item, _ in row[:half]][::-1]
        wanted = [item for item, is_wanted in row[half:] if is_wanted]
        assert future[: len(wanted)] == wanted
        assert set(future[len(wanted) :]) <= {PAD}


def test_windows_of_the_sequence_part_predict_targets_only():
    items = torch.arange(40).int()
    events = Events(torch.tensor([0, 20, 40]), items, "a", weights=torch.where(items % 2 == 0, 1.0, -1.0))
    generator = torch.Generator().manual_seed(0)
    x, y, *_ = draw_windows(events, torch.arange(2), reach=5, targets=4, generator=generator)
    assert (x % 2 == 1).any()
    assert (y != PAD).any()
    assert (y[y != PAD] % 2 == 0).all()


# Closed forms


def weighted_matrix(events):
    """The largest weight of each user and item."""
    found = np.zeros((len(events), NUM_ITEMS))
    for user, (items, weights) in enumerate(zip(by_user(events), weights_by_user(events), strict=True)):
        for item, weight in zip(items, weights, strict=True):
            found[user, item] = max(found[user, item], abs(weight))
    return found


def dense(rows):
    found = torch.zeros(len(rows), len(rows))
    found[torch.repeat_interleave(rows.offsets.diff()), rows.columns.long()] = rows.values.float()
    return found.numpy()


@pytest.mark.parametrize("power", [0.0, 0.5])
@pytest.mark.parametrize("device", ["cpu", "any"])
def test_cooccurrence_multiplies_the_roots_of_weights(monkeypatch, device, power):
    """A user of n items counts n⁻ᵃ, whatever the weights are: old events of a log that fades count less."""
    events = weighted_events()
    root = np.sqrt(weighted_matrix(events))
    if device == "any":  # the way of other devices
        found = sum_entries(cooccurring_pairs(events, NUM_ITEMS, power), NUM_ITEMS, torch.device("cpu"))
    else:
        found = cooccurrence(events, NUM_ITEMS, power)
    of_users = (root > 0).sum(1, keepdims=True) ** -power
    assert dense(found) == pytest.approx(root.T @ (of_users * root), rel=1e-4, abs=1e-5)


def test_als_minimises_the_weighted_loss():
    """One more round of exact least squares does not move the products of users and items."""
    events, penalty, everywhere = weighted_events(), 0.02, 0.05
    factors = implicit_als(events, NUM_ITEMS, dim=4, penalty=penalty, unobserved_weight=everywhere, rounds=200)
    scale = (penalty / factors.penalty) ** 0.5  # vectors are normalized, and λ with them
    items, weights = scale * factors.items.double().numpy(), weighted_matrix(events)

    def solve(other, weight, count):
        gram = everywhere * other.T @ other
        rows = []
        for row in weight:
            left = gram + (other.T * row) @ other + penalty * (row.sum() + everywhere * count) * np.eye(4)
            rows.append(np.linalg.solve(left, other.T @ row))
        return np.array(rows)

    users = solve(items, weights, NUM_ITEMS)
    again = solve(users, weights.T, len(events))
    assert again @ users.T == pytest.approx(items @ users.T, abs=1e-3)
    unweighted = implicit_als(
        replace(events, weights=None), NUM_ITEMS, dim=4, penalty=penalty, unobserved_weight=everywhere
    )
    assert not np.allclose(unweighted.penalty, factors.penalty, rtol=1e-2)


def test_rules_count_the_weight_of_the_event_that_follows():
    events = weighted_events()
    expected = np.zeros((NUM_ITEMS, NUM_ITEMS))
    for items, weights in zip(by_user(events), weights_by_user(events), strict=True):
        for place, item in enumerate(items):
            for gap in range(1, 4):
                if place + gap < len(items):
                    expected[item, items[place + gap]] += abs(weights[place + gap]) / gap
                if place - gap >= 0:
                    expected[item, items[place - gap]] += 0.5 * abs(weights[place - gap]) / gap
    found = np.zeros_like(expected)
    for first, second, weight in near_pairs(events, window=3, backward=0.5):
        np.add.at(found, (first.numpy(), second.numpy()), weight.numpy())
    assert found == pytest.approx(expected, rel=1e-5)


def test_partners_that_come_next_are_those_of_the_pairs():
    """The compiled rules of a CPU against the sums of pairs that other devices use."""
    events = weighted_events(users=60)
    found = dense(next_partners(events, NUM_ITEMS, most=NUM_ITEMS))
    sums = sum_entries(near_pairs(events), NUM_ITEMS, torch.device("cpu"))
    popularity = events.popularity(NUM_ITEMS).float()
    rules = rules_of(sums, torch.arange(NUM_ITEMS), popularity, NUM_ITEMS)
    assert found == pytest.approx(dense(rules), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("weighted", [True, False])
def test_the_future_counts_by_weight(weighted):
    """Users of two events are always cut between them."""
    events = weighted_events(users=50, longest=2)
    expected = np.zeros((NUM_ITEMS, NUM_ITEMS))
    for (first, second), (_, weight) in zip(by_user(events), weights_by_user(events), strict=True):
        expected[second, first] += abs(weight) if weighted else 1
    log = events if weighted else replace(events, weights=None)
    past, future = past_and_future(log, NUM_ITEMS, torch.ones(69), readings=1, seed=0)
    assert dense(future) == pytest.approx(expected, rel=1e-5)
    assert dense(past).sum() == len(events)
    entries = pairs_of_cuts(log, torch.ones(69), 1, 0)
    assert dense(sum_entries(entries[1], NUM_ITEMS, torch.device("cpu"))) == pytest.approx(expected, rel=1e-5)


def test_an_item_that_was_viewed_and_bought_counts_as_bought():
    events = Events(torch.tensor([0, 3]), torch.tensor([0, 1, 1]).int(), "a", weights=torch.tensor([1.0, -1.0, 10.0]))
    seen = set()
    for seed in range(8):
        _, future = past_and_future(events, 2, torch.ones(69), readings=1, seed=seed)
        seen.add(float(dense(future)[1, 0]))
    assert seen == {10.0}

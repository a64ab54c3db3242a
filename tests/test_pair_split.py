"""A log without order is split by pairs of users and items, and the model that serves is fitted to all of them."""

from collections import Counter

import polars as pl
import pytest
import torch
from command import beamtree
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_logs import cyclic_log, shelf_log

import beamtree as bt
from beamtree.data import load_data
from beamtree.data.prepared import SECTIONS
from beamtree.ingest import arrays
from beamtree.ingest.report import describe_choice, describe_log, describe_split
from beamtree.live.refit import BEFORE
from beamtree.live.renewal import renew

QUICK = {"steps": 0, "beam_size": 60}


LOG = shelf_log()


@pytest.fixture(scope="module")
def shop():
    return bt.Recommender(**QUICK).fit(LOG, verbose=False)


def told(folder):
    """What a prepared folder says of each section: user -> (events, how many of them are history)."""
    data = load_data(folder)
    names, found = iter(data.users.names), {}
    for name, view in zip(SECTIONS, data.stored, strict=True):
        found[name] = {}
        for row in range(len(view)):
            start, stop = view.events.offsets[row : row + 2].tolist()
            items = [data.items[number] for number in view.events.items[start:stop].tolist()]
            found[name][next(names)] = items, int(view.history_lengths(torch.tensor([row])))
    assert next(names, None) is None
    return found


rows = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("ijklmnop")), min_size=12, max_size=60)


@settings(max_examples=30)
@given(rows=rows, share=st.sampled_from([0.1, 0.3, 0.5]), at_once=st.sampled_from([3, 1 << 24]))
def test_a_share_of_the_pairs_of_every_user_is_to_be_found_from_the_others(tmp_path_factory, rows, share, at_once):
    folder = tmp_path_factory.mktemp("log")
    log = {user: [item for who, item in rows if who == user] for user in sorted({user for user, _ in rows})}
    several = {user for user, items in log.items() if len(set(items)) > 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "EVENTS_AT_ONCE", at_once)
        frame = pl.DataFrame(rows, schema=["user", "item"], orient="row")
        if len(log) < 2 or len({item for _, item in rows}) < 2 or not several:
            with pytest.raises(ValueError, match=r"two items are needed|no user has several items"):
                bt.prepare(frame, folder / "out", split=f"pairs:{share}")
            return
        description = bt.prepare(frame, folder / "out", split=f"pairs:{share}")
    found = told(folder / "out")
    assert {user: items for user, (items, _) in found["all"].items()} == log
    for user, items in log.items():
        kept, _ = found["train"][user]
        number = max(1, round(share * len(set(items)))) if user in several else 0
        assert len(set(items) - set(kept)) == number
        assert kept == [item for item in items if item in kept]  # all events of a pair, in their order
    measured = found["val"] | found["test"]
    assert len(measured) == len(found["val"]) + len(found["test"]) == len(several)
    for user, (items, cut) in measured.items():
        assert items[:cut] == found["train"][user][0]
        assert items[cut:] == [item for item in log[user] if item not in items[:cut]]
    assert description["settings"]["split"] == f"pairs:{share}"
    training = Counter(item for items, _ in found["train"].values() for item in items)
    sold = Counter(item for _, item in rows)
    order = sorted(sold, key=lambda item: (-training[item], -sold[item], item))
    assert load_data(folder / "out").items.names == order


def test_which_pairs_are_held_out_depends_on_the_seed(tmp_path):
    drawn = [bt.prepare(LOG, tmp_path / "data", split="pairs", seed=seed)["fingerprint"] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_only_what_is_to_be_predicted_is_held_out(tmp_path):
    kind = pl.when(pl.col("item").str.ends_with("0")).then(pl.lit("view")).otherwise(pl.lit("buy"))
    log = LOG.with_columns(kind=kind)
    bt.prepare(log, tmp_path / "data", split="pairs:0.5", kinds={"view": 1, "buy": 5}, target="buy")
    held_out = [items[cut:] for items, cut in told(tmp_path / "data")["test"].values()]
    assert held_out
    assert all(items and not any(item.endswith("0") for item in items) for items in held_out)


# Which split is the default


@pytest.mark.parametrize(
    ("log", "options", "split"),
    [
        (LOG, {}, "pairs:0.1"),
        (LOG.sort("user", "item"), {}, "pairs:0.1"),  # neighbours are often a pair, but only since they are sorted
        (LOG.with_columns(item=pl.col("item").str.slice(1).cast(int)).sort("user", "item"), {}, "pairs:0.1"),
        (cyclic_log(users=400, items=58).drop("time"), {}, None),
        (LOG.with_columns(time=pl.int_range(pl.len())), {}, None),
        (LOG.filter(pl.col("user") < "u190"), {}, None),
        (LOG.group_by("user", maintain_order=True).head(2), {}, None),  # too few pairs to tell
        (LOG, {"val_users": 0, "test_users": 0}, None),
        (LOG, {"min_eval_events": 3}, None),
        (LOG, {"split": "halves"}, None),
        (LOG, {"split": "leave-one-out"}, "leave-one-out"),
    ],
)
def test_the_pairs_of_a_log_without_order_are_split(tmp_path, log, options, split):
    assert bt.prepare(log, tmp_path / "data", **options)["settings"].get("split") == split


@pytest.mark.parametrize("share", ["0", "-0.1", "0.6", "nan", "tenth"])
def test_a_share_that_is_none_is_one_clear_line(tmp_path, share):
    message = rf"^split=pairs:{share}: the share of the pairs to hold out is above 0 and at most 0.5$"
    with pytest.raises(ValueError, match=message):
        bt.prepare(LOG, tmp_path / "data", split=f"pairs:{share}")


def test_more_users_than_have_several_items_are_one_clear_line(tmp_path):
    message = r"^301 validation and 0 test users are more than the 300 who have several items: lower"
    with pytest.raises(ValueError, match=message):
        bt.prepare(LOG, tmp_path / "data", split="pairs", val_users=301, test_users=0)


# What is said of it


def test_the_reports_say_what_was_held_out(tmp_path):
    description = bt.prepare(LOG, tmp_path / "data")
    assert description["users"] == {"train": 300, "val": 225, "test": 75, "all": 300}
    lines = "\n".join(describe_log(description))
    assert "user user, item item, no time.\n" in lines
    assert "Split of pairs: a tenth of the pairs of each user are to be found from the others." in lines
    assert describe_choice(description) == "The model was chosen on a tenth of the pairs of 225 users."
    description = bt.prepare(LOG, tmp_path / "data", split="pairs:0.25")
    assert describe_split(description) == "25 % of the pairs of each user are to be found from the others"
    LOG.write_csv(tmp_path / "log.csv")
    shown = beamtree("prepare", "log.csv", "--out", "data", folder=tmp_path).stdout
    assert "Split: pairs: a tenth of the pairs of each user" in " ".join(shown.split())


# The model that serves


def test_the_model_that_serves_is_fitted_to_all_pairs(shop, capsys):
    assert int(shop.model.popularity.sum()) == len(LOG)
    held_out = len(LOG) - int(shop.before_refit.popularity.sum())
    counts = LOG.group_by("user").len()["len"].to_list()
    assert held_out == sum(max(1, round(count / 10)) for count in counts)
    result = shop.evaluate(m=10)
    assert (result.model, result.warnings) == (BEFORE, [])
    bt.Recommender(**QUICK).fit(LOG)
    shown = capsys.readouterr().err
    assert "It was chosen on" not in shown
    assert "The model was chosen on a tenth of the pairs of 225 users." in shown
    assert f"Fitted it again, to all events of all {len(counts)} users." in shown


def test_all_items_of_a_user_count_in_a_request(shop):
    user = LOG["user"][0]
    items = LOG.filter(user=user)["item"].to_list()
    of_user = shop.recommend(users=[user], m=20).drop("user", strict=False)
    assert of_user["item"].to_list() == shop.recommend(items, m=20)["item"].to_list()


def test_a_renewal_holds_out_pairs_of_all_events(shop, tmp_path):
    shop.save(tmp_path / "run")
    rows = [("u000", "i159"), *(("somebody", f"i{item:03}") for item in range(6))]
    renew(tmp_path / "run", pl.DataFrame(rows, schema=["user", "item"], orient="row"), force=True, verbose=False)
    data = bt.Recommender.load(tmp_path / "run").data
    assert data.description["settings"]["split"] == "pairs:0.1"
    assert data.description["users"] == {"train": 301, "val": 225, "test": 75, "all": 301}
    assert int(data.all.events.counts().sum()) == len(LOG) + len(rows)
    found = told(data.folder)
    assert found["all"]["somebody"][0] == [item for _, item in rows[1:]]
    assert len(found["train"]["somebody"][0]) == 5

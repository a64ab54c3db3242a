"""What users did with items that have no events in training stays known, and all users are listed."""

import json
import pickle
from copy import copy
from functools import partial

import numpy as np
import polars as pl
import pytest
from command import beamtree
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_logs import cyclic_log
from serving import make_service, open_shop, serving

import beamtree as bt
from beamtree.data.prepared import DESCRIPTION
from beamtree.files.checksums import file_checksum, with_checksum
from beamtree.ingest import arrays
from beamtree.ingest.append import append_log
from beamtree.ingest.prepare import Executor, prepare
from beamtree.ingest.report import describe_log
from beamtree.live import Journal, renew

# i70 has few events, and i80 has only dislikes; u000 and u001 know both.
LOG = cyclic_log().with_columns(rating=pl.lit(5))
MORE = [("u000", "i70", 20, 5), ("u001", "i70", 21, 4), ("u000", "i80", 22, 1), ("u001", "i80", 23, 2)]
LOG = pl.concat([LOG, pl.DataFrame(MORE, schema=LOG.schema, orient="row")])
TABLE = pl.DataFrame({"item": [*(f"i{n:02}" for n in range(60)), "i70", "i80"]}).with_columns(
    category=pl.col("item").str.slice(1, 1)
)
OPTIONS = {"weight": "rating", "dislike": 2, "min_item_events": 3, "verbose": False}
USERS = ["u000", "u001", "u002"]


def unwanted(shop, m=62):
    """Of i70 and i80, what is recommended to each of three users, with seen items and without."""
    result = []
    for exclude_seen in (False, True):
        found = shop.recommend(users=USERS, m=m, beam_size=70, exclude_seen=exclude_seen, allowed=["i70", "i80"])
        result.append([sorted(found.filter(pl.col("user") == user)["item"]) for user in USERS])
    return result


EXPECTED = [[["i70"], ["i70"], ["i70", "i80"]], [[], [], ["i70", "i80"]]]  # the third knows neither


@pytest.fixture(scope="module")
def fitted():
    """Without a table: the model has neither of the two items."""
    return bt.Recommender(steps=0, seed=0).fit(LOG, **OPTIONS)


@pytest.fixture(scope="module")
def listed():
    """With a table, from which both are added."""
    return bt.Recommender(steps=0, seed=0).fit(LOG, items=TABLE, **OPTIONS)


def test_items_of_a_table_are_not_recommended_to_users_who_know_them(listed, tmp_path):
    assert unwanted(listed) == EXPECTED
    best = listed.recommend(users=USERS[:2], m=62, beam_size=70, rules={"pins": ["i80"]})
    assert "i80" not in best["item"]
    listed.save(tmp_path / "run")
    for other in (bt.Recommender.load(tmp_path / "run"), pickle.loads(pickle.dumps(listed)), copy(listed)):
        assert unwanted(other) == EXPECTED


def update(shop):
    """i70 comes with an event of another user, i80 by itself."""
    shop.update(pl.DataFrame({"user": ["u005"], "item": ["i70"], "time": [30]}))
    shop.update_items(["i80"])


@pytest.mark.parametrize(
    "add",
    [
        lambda shop: shop.update_items(["i70", "i80"]),
        lambda shop: shop.update_items(TABLE),
        update,
        lambda shop: (
            shop.update_items(["i70", "i80"]),
            shop.forget_items(["i70", "i80"]),
            shop.update_items(["i70", "i80"]),
        ),
    ],
)
def test_however_an_item_comes_back_its_users_are_known(fitted, add):
    shop = copy(fitted)
    add(shop)
    assert unwanted(shop) == EXPECTED
    assert unwanted(pickle.loads(pickle.dumps(shop))) == EXPECTED


def test_without_events_of_its_own_a_user_is_not_known(tmp_path):
    """Nobody is left of a user whose events are all dropped: later events make a new user."""
    log = LOG.filter(pl.col("user").is_in(["u000", "u001"]).not_() | pl.col("item").is_in(["i70", "i80"]))
    shop = bt.Recommender(steps=0, seed=0).fit(log, items=TABLE, **OPTIONS)
    assert not {"u000", "u001"} & set(shop.users)
    with pytest.raises(ValueError, match="user 'u000' is not in the log"):
        shop.recommend(users=["u000"], unknown="error")


def test_the_service_knows_what_users_did_with_an_item_that_is_added_later(fitted, tmp_path):
    fitted.save(tmp_path / "one")
    journal = Journal(tmp_path / "changes")
    service = make_service(tmp_path / "one", partial(open_shop, journal=journal))
    with serving(service) as client:
        for item in ("i70", "i80"):
            client.put(f"/v1/items/{item}", json={}).raise_for_status()
        client.post("/v1/events", json={"user": "guest", "items": ["later"]}).raise_for_status()
        client.put("/v1/items/later", json={}).raise_for_status()

        def found(exclude_seen, users, allowed):
            request = {"users": users, "m": 3, "allowed": allowed, "exclude_seen": exclude_seen}
            results = client.post("/v1/recommend", json=request).json()["results"]
            return [sorted(each["items"]) for each in results]

        assert [found(seen, USERS, ["i70", "i80"]) for seen in (False, True)] == EXPECTED
        assert found(True, ["guest"], ["later"]) == [[]]
        request = {"user": "u000", "m": 3, "exclude_seen": True, "allowed": ["i70", "i80"], "items": ["i70", "i80"]}
        told = client.post("/v1/explain", json=request).json()["explanation"]
        assert [(each["item"]["item"], each["may_be_found"]) for each in told["items"]] == [
            ("i70", False),
            ("i80", False),
        ]
        assert client.get("/v1/users", params={"query": "gue"}).json()["users"] == ["guest"]
        assert client.get("/v1/model").json()["users"] == 121
    service.close()
    journal.close()


def test_the_command_knows_them_and_later_events(listed, tmp_path):
    shop = copy(listed)
    shop.update(pl.DataFrame({"user": ["new user"], "item": ["i70"], "time": [30]}))
    shop.save(tmp_path / "run")
    pl.DataFrame({"item": ["i70", "i80", "i55"]}).write_csv(tmp_path / "allowed.csv")
    options = ("--allowed", "allowed.csv", "--exclude-seen", "--json", "found.json")
    for user in ("u000", "new user"):
        beamtree("retrieve", "run", "--users", json.dumps([user]), *options, folder=tmp_path)
        found = {row["item"] for row in json.loads((tmp_path / "found.json").read_text())}
        assert "i70" not in found
        assert ("i80" in found) == (user != "u000")


# Renewal


def test_a_renewal_keeps_what_users_did_with_dropped_items(listed, tmp_path):
    """i70 comes back with events; i90 comes with dislikes alone, and later from a table."""
    listed.save(tmp_path / "run")
    rows = [(f"u{n:03}", "i70", 40 + n, 5) for n in range(40, 60)]
    rows += [("u002", "i90", 70, 1), ("u003", "i91", 71, 4), *((f"v{n}", f"i{n:02}", 80 + n, 5) for n in range(9))]
    renew(tmp_path / "run", pl.DataFrame(rows, schema=LOG.schema, orient="row"), force=True, verbose=False)
    shop = bt.Recommender.load(tmp_path / "run")
    assert unwanted(shop) == EXPECTED
    shop.update_items(["i90"])
    found = shop.recommend(users=USERS, m=1, allowed=["i90"])
    assert found["user"].to_list() == ["u000", "u001"]
    assert shop.users.names == sorted({*LOG["user"], *(f"v{n}" for n in range(9))})


# Dislikes of an update


def test_an_update_reads_dislikes_as_the_first_log_did(fitted, tmp_path):
    rows = [("u002", "i80", 50, 1), ("u002", "i03", 51, 2), ("u002", "i04", 52, 4), ("guest", "i01", 53, 5)]
    rows += [("guest", "i02", 54, 1), ("u004", "i05", 55, None)]
    new = pl.DataFrame(rows, schema=LOG.schema, orient="row")
    shop = copy(fitted)
    shop.update(new)
    assert "i80" not in shop.ids.names  # a dislike is no event
    shop.update_items(["i80"])
    shop.save(tmp_path / "run")
    renew(tmp_path / "run", new.with_columns(item=pl.lit("i09")), force=True, verbose=False)
    for each in (shop, pickle.loads(pickle.dumps(shop)), bt.Recommender.load(tmp_path / "run")):
        found = each.recommend(users=["u002", "guest"], m=61, beam_size=70)
        assert not {"i80", "i03"} & set(found.filter(pl.col("user") == "u002")["item"])
        assert "i02" not in found.filter(pl.col("user") == "guest")["item"]
        assert "i04" in found["item"]
    plain = copy(fitted)
    plain.update(new.drop("rating"))  # without the column every row is an event
    assert "i80" in plain.ids.names


def test_a_popular_item_without_events_has_a_score_above_0(listed):
    """It is the share of all events, and no score is exactly 0 or 1."""
    found, count = listed.recommend([], m=62), len(LOG) - len(MORE)
    assert found["item"].to_list()[-2:] == ["i70", "i80"]
    assert found["score"].to_list()[-2:] == pytest.approx([0.5 / count, 0.5 / count])
    with pytest.warns(UserWarning, match="unknown"):
        scores = listed.score(users=["nobody"], items=["i80", "i70", "i01"])
    with pytest.warns(UserWarning, match="unknown"):
        reasons = listed.explain(users=["nobody"], items="i80")
    assert scores["score"].to_list()[:2] == pytest.approx([0.5 / count, 0.5 / count])
    assert reasons["total"].to_list() == pytest.approx([0.5 / count])


# Users with dislikes alone

GRUMBLER = pl.DataFrame([("grumbler", f"i{n:02}", n, 1) for n in range(25)], schema=LOG.schema, orient="row")
DISLIKED = set(GRUMBLER["item"])


def found_for(shop, user="grumbler", **how):
    with pytest.warns(UserWarning, match="1 of 1 users are unknown"):
        return set(shop.recommend(users=[user], m=30, **how)["item"])


def test_a_user_with_dislikes_alone_is_unknown_and_gets_none_of_them(tmp_path):
    shop = bt.Recommender(steps=0, seed=0).fit(pl.concat([LOG, GRUMBLER]), **OPTIONS)
    assert "grumbler" not in shop.users
    shop.save(tmp_path / "run")
    for each in (shop, bt.Recommender.load(tmp_path / "run"), pickle.loads(pickle.dumps(shop))):
        assert not found_for(each) & DISLIKED
        assert not found_for(each, rules={"pins": ["i03"]}) & DISLIKED
        with pytest.raises(ValueError, match="user 'grumbler' is not in the log"):
            each.recommend(users=["grumbler"], unknown="error")
    beamtree("retrieve", "run", "--users", "grumbler", "--m", "30", "--json", "found.json", folder=tmp_path)
    assert not {row["item"] for row in json.loads((tmp_path / "found.json").read_text())} & DISLIKED
    with serving(make_service(tmp_path / "run", open_shop)) as client:
        (result,) = client.post("/v1/recommend", json={"users": ["grumbler"], "m": 30}).json()["results"]
        assert result["items"]
        assert not set(result["items"]) & DISLIKED
        assert client.get("/v1/users/grumbler").status_code == 404
    more = pl.DataFrame([("grumbler", "i40", 90, 5), ("guest", "i01", 91, 1)], schema=LOG.schema, orient="row")
    shop.update(more)  # the first is a user from now on, the second has a dislike alone
    shop.save(tmp_path / "updated")
    renew(tmp_path / "run", more, force=True, verbose=False)
    for each in (shop, *(bt.Recommender.load(tmp_path / name) for name in ("updated", "run"))):
        assert "grumbler" in each.users
        found = each.recommend(users=["grumbler"], m=30)
        assert len(found) == 30
        assert not set(found["item"]) & DISLIKED
        assert "i01" not in found_for(each, "guest")


# All users


def test_all_users_are_listed_after_fit_update_load_and_pickle(fitted, tmp_path):
    assert fitted.users.names == [f"u{n:03}" for n in range(120)]
    shop = copy(fitted)
    shop.update(pl.DataFrame({"user": ["a new one", "u003"], "item": ["i05", "i06"], "time": [30, 31]}))
    expected = ["a new one", *(f"u{n:03}" for n in range(120))]
    shop.save(tmp_path / "run")
    for each in (shop, pickle.loads(pickle.dumps(shop)), bt.Recommender.load(tmp_path / "run")):
        assert each.users.names == expected
        assert each.recommend(users=each.users, m=1)["user"].to_list() == expected
    assert len(fitted.users) == 120


def test_users_of_several_sections_are_listed_once():
    shop = bt.Recommender(steps=0, seed=0).fit(LOG, split="leave-one-out", verbose=False)
    assert len(shop.data.users) > 120
    assert shop.users.names == [f"u{n:03}" for n in range(120)]


# Prepared folders


def known_pairs(data):
    """(user, item, whether it is disliked) of all pairs beside the events."""
    users = [*data.users.names, *data.dropped_users.names]
    rows, ids = range(len(users)), data.items.extended(data.dropped_items.names)
    return {
        (users[row], ids[item], is_dislike)
        for is_dislike, read in ((False, data.seen), (True, data.dislikes))
        for row, items in zip(rows, read(rows, ids), strict=True)
        for item in items
    }


def plain_pairs(rows, min_events, min_item_events):
    """The definition: users and items with few events are dropped in turn, and the rest know what they did.

    Dislikes stay known of all users.
    """
    events = list(dict.fromkeys(row for row in rows if row[3] > 2))
    left = events
    while True:
        items = [row[1] for row in left]
        kept = [row for row in left if items.count(row[1]) >= min_item_events]
        users = [row[0] for row in kept]
        kept = [row for row in kept if users.count(row[0]) >= min_events]
        if kept == left:
            break
        left = kept
    users, items = {row[0] for row in left}, {row[1] for row in left}
    seen = {(user, item, False) for user, item, *_ in events if user in users and item not in items}
    return seen | {(user, item, True) for user, item, _, rating in rows if rating <= 2}


ROWS = st.lists(
    st.tuples(
        st.sampled_from([f"u{n}" for n in range(6)]),
        st.sampled_from([f"i{n}" for n in range(9)]),
        st.integers(0, 30),
        st.integers(1, 5),
    ),
    min_size=25,
    max_size=60,
)


@settings(max_examples=8)
@given(ROWS, st.integers(1, 3), st.integers(1, 4), st.sampled_from(["halves", "time:15"]))
def test_pairs_are_those_of_the_definition(tmp_path_factory, rows, min_events, min_item_events, split):
    folder = tmp_path_factory.mktemp("pairs")
    log = pl.DataFrame(rows, schema=["user", "item", "time", "rating"], orient="row")
    options = {"weight": "rating", "dislike": 2, "min_events": min_events, "min_item_events": min_item_events}
    try:
        prepare(log, folder / "out", split=split, **options)
    except ValueError:  # too few are left
        return
    data, expected = bt.load_data(folder / "out"), plain_pairs(rows, min_events, min_item_events)
    assert known_pairs(data) == {pair for pair in expected if pair[2] or pair[0] in data.users.names}
    without_events = {item for _, item, _ in expected} - set(data.items.names)
    if split == "halves":
        assert data.dropped_items.names == sorted(without_events)
    added = [("u0", "i0", 40, 5), ("u1", "i1", 41, 1), ("u2", "new", 42, 1), ("u3", "i2", 43, 4)]
    if split == "halves":
        append_log(data, data.items, pl.DataFrame(added, schema=log.schema, orient="row"), folder / "more")
        joined = bt.load_data(folder / "more")
        more = {(user, item, True) for user, item, _, rating in added if rating <= 2}
        assert known_pairs(joined) == known_pairs(data) | more


def test_shares_of_a_log_do_not_change_a_byte_of_the_pairs(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    columns = {"user": draw.integers(30, size=900), "item": (60 * draw.random(900) ** 3).astype(int)}
    log = pl.DataFrame({**columns, "time": draw.integers(99, size=900), "rating": draw.integers(1, 6, size=900)})
    log.write_parquet(tmp_path / "log.parquet")
    options = {"weight": "rating", "dislike": 2, "min_item_events": 8}
    prepare(tmp_path / "log.parquet", tmp_path / "one", **options)
    monkeypatch.setattr(arrays, "EVENTS_AT_ONCE", 70)
    prepare(
        tmp_path / "log.parquet",
        tmp_path / "many",
        engine=Executor(lambda work, jobs: iter([work(*job) for job in list(jobs)[::-1]][::-1]), 100),
        **options,
    )
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names >= {"seen.npy", "dislikes.npy", "dropped_items.txt"}
    assert names == {path.name for path in (tmp_path / "many").iterdir()}
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes() for name in names)


def test_a_folder_that_is_replaced_does_not_change_what_is_open(tmp_path):
    prepare(LOG, tmp_path / "out", weight="rating", dislike=2, min_item_events=3)
    data = bt.load_data(tmp_path / "out")
    prepare(LOG.filter(pl.col("user") != "u000"), tmp_path / "out", weight="rating", dislike=2)
    assert known_pairs(data) == {
        (user, item, is_dislike) for user in USERS[:2] for item, is_dislike in (("i70", False), ("i80", True))
    }


@pytest.mark.parametrize("pair", [[0, 62], [-1, 0], [120, 0], [0, -1]])
def test_a_pair_that_is_out_of_range_is_an_error(tmp_path, pair):
    prepare(LOG, tmp_path / "out", weight="rating", dislike=2, min_item_events=3)
    np.save(tmp_path / "out" / "seen.npy", np.array([pair]))
    description = json.loads((tmp_path / "out" / DESCRIPTION).read_text())
    description["files"]["seen.npy"] = file_checksum(tmp_path / "out" / "seen.npy")
    del description["seal"]
    (tmp_path / "out" / DESCRIPTION).write_text(json.dumps(with_checksum(description)))
    with pytest.raises(ValueError, match=r"seen.npy is damaged: it has unknown users or items; prepare the data again"):
        bt.load_data(tmp_path / "out")


def test_a_line_break_in_an_item_with_dislikes_alone_is_an_error(tmp_path):
    log = LOG.with_columns(item=pl.col("item").replace({"i80": "i\n80"}))
    with pytest.raises(ValueError, match=r"the id 'i\\n80' of an item contains a line break: remove it"):
        prepare(log, tmp_path / "out", weight="rating", dislike=2)


def test_the_report_counts_the_items_and_users_that_are_dropped(tmp_path):
    log = pl.concat([LOG, pl.DataFrame([("short", "i70", 50, 5)], schema=LOG.schema, orient="row")])
    description = prepare(log, tmp_path / "out", min_events=2, min_item_events=4)
    assert describe_log(description)[2] == "Dropped 5 rows of items with fewer than 4 events (2 items, 1 users)."

"""A service whose items come and go: what was acknowledged outlives restarts and swaps."""

import re
import subprocess
import sys
import time
from functools import partial

import polars as pl
import pytest
from command import largest_file
from sample_logs import cyclic_log
from serving import make_service, open_shop, save_run, serving

import beamtree as bt
from beamtree.live import Journal
from beamtree.serve.engine.served_run import last_served_run


def found(client, item):
    reply = client.post("/v1/recommend", json={"history": ["i1", "i2"], "m": 3, "allowed": [item]}).json()
    return reply["results"][0]["items"]


@pytest.fixture
def place(tmp_path):
    save_run(tmp_path / "one")
    save_run(tmp_path / "two", seed=1)
    return tmp_path


def started(place, **how):
    journal = Journal(place / "changes")
    run = place / "one"
    service = make_service(run, partial(open_shop, journal=journal), first=last_served_run(run, journal), **how)
    return journal, service


def test_what_was_acknowledged_outlives_restarts_and_swaps(place):
    journal, service = started(place)
    with serving(service) as client:
        added = client.put("/v1/items/new", json={"like": ["i5"], "title": "New"}).json()
        assert added["changed"]
        assert client.put("/v1/items/new", json={"like": ["i5"], "title": "New"}).json()["changed"] is False
        assert client.delete("/v1/items/i7").json()["changed"]
        assert client.post("/v1/events", json={"user": "ann", "items": ["i1", "new", "nothing"]}).json()["known"] == 2
        assert (found(client, "new"), found(client, "i7")) == (["new"], [])
        client.post("/v1/model", json={"run": "two"}).raise_for_status()
        assert (found(client, "new"), found(client, "i7")) == (["new"], [])
    service.close()
    journal.close()
    journal, service = started(place)
    with serving(service) as client:
        about = client.get("/v1/model").json()
        assert (about["run"], about["start_run"], about["posted"]) == ("two", "one", True)
        assert (found(client, "new"), found(client, "i7")) == (["new"], [])
        assert client.get("/v1/items/new").json()["title"] == "New"
        assert [each["item"] for each in client.get("/v1/users/ann").json()["history"]] == ["i1", "new"]
    service.close()
    journal.close()


def test_a_change_on_a_full_disk_is_refused_and_the_service_goes_on_by_itself(place, caplog):
    refused = [
        ("PUT", "/v1/items/refused", {"like": ["i5"]}),
        ("POST", "/v1/items", {"items": [{"item": "refused"}]}),
        ("DELETE", "/v1/items/i9", None),
        ("POST", "/v1/events", {"user": "ann", "items": ["i3"]}),
        ("DELETE", "/v1/events?before=5", None),
        ("POST", "/v1/model", {"run": "two"}),
    ]
    journal, service = started(place)
    with serving(service) as client:

        def state():
            history = [each["item"] for each in client.get("/v1/users/ann").json()["history"]]
            about = client.get("/v1/model").json()
            return about["run"], about["items"], about["changes"], history

        client.put("/v1/items/new", json={"like": ["i5"]}).raise_for_status()
        client.post("/v1/events", json={"user": "ann", "items": ["i1"]}).raise_for_status()
        before = state()
        with largest_file(journal.path.stat().st_size + 30):
            replies = [client.request(method, path, json=body) for method, path, body in refused]
            assert client.get("/readyz").status_code == 200
        assert [(each.status_code, sorted(each.json())) for each in replies] == [(507, ["error", "hint"])] * len(
            refused
        )
        lines = [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]
        assert len(lines) == len(refused)
        assert not any(each.exc_info for each in lines)
        assert state() == before
        assert client.put("/v1/items/more", json={"like": ["i6"]}).json()["changed"]
        assert 'requests_rejected_total{reason="storage"} 6.0' in client.get("/metrics").text
        after = state()
    service.close()
    journal.close()
    journal, service = started(place)
    with serving(service) as client:
        assert state() == after
        assert (found(client, "refused"), found(client, "i9"), found(client, "more")) == ([], ["i9"], ["more"])
    service.close()
    journal.close()


def test_a_disk_that_fails_is_another_error_than_a_full_one(place, monkeypatch):
    def fail(file, content):
        raise OSError(5, "Input/output error")

    journal, service = started(place)
    with serving(service) as client:
        monkeypatch.setattr("beamtree.live.journal.write_all", fail)
        assert client.delete("/v1/items/i9").status_code == 503
        monkeypatch.undo()
        assert client.delete("/v1/items/i9").json()["changed"]
    service.close()
    journal.close()


def test_a_service_without_a_folder_for_changes_says_what_to_do(place):
    service = make_service(place / "one")
    with serving(service) as client:
        reply = client.put("/v1/items/new", json={})
        assert reply.status_code == 409
        assert "--changes" in reply.json()["hint"]
    service.close()


def test_a_vector_where_there_are_none_is_refused_and_nothing_is_written(place):
    journal, service = started(place)
    with serving(service) as client:
        reply = client.put("/v1/items/new", json={"vector": [1.0, 2.0]})
        assert reply.status_code == 422
        assert "not built from vectors" in reply.json()["error"]
        assert found(client, "new") == []
    service.close()
    assert journal.entries == []
    journal.close()


def ranked(client, history, m=50):
    return client.post("/v1/recommend", json={"history": history, "m": m, "beam_size": 70}).json()["results"][0]


def test_a_removed_item_comes_back_as_it_was_also_after_a_restart(place):
    journal, service = started(place)
    with serving(service) as client:
        before = ranked(client, ["i1", "i2"])
        name = before["items"][0]
        assert client.delete(f"/v1/items/{name}").json()["changed"]
        assert client.get(f"/v1/items/{name}").json()["hidden"]
        assert client.get("/v1/model").json()["items"] == 59
    service.close()
    journal.close()
    journal, service = started(place)
    with serving(service) as client:
        assert name not in ranked(client, ["i1", "i2"])["items"]
        assert client.put(f"/v1/items/{name}", json={"title": "Back"}).json()["changed"]
        after = ranked(client, ["i1", "i2"])
        assert (after["items"], after["scores"]) == (before["items"], before["scores"])
        assert client.delete(f"/v1/items/{name}", params={"forget": "true"}).json()["changed"]
        assert not client.delete(f"/v1/items/{name}", params={"forget": "true"}).json()["changed"]
        assert client.put(f"/v1/items/{name}").json()["changed"]
        assert client.get(f"/v1/items/{name}").json()["title"] is None
    service.close()
    journal.close()


def test_a_put_that_leaves_a_field_out_keeps_it_and_null_clears_it(place):
    journal, service = started(place)
    with serving(service) as client:

        def known():
            told = client.get("/v1/items/new").json()
            return told["title"], told["category"]

        client.put("/v1/items/new", json={"title": "Lamp", "category": "Home", "like": ["i5"]})
        for body, expected in (
            ({"like": ["i6"]}, ("Lamp", "Home")),
            ({"title": "Desk lamp"}, ("Desk lamp", "Home")),
            ({"category": None}, ("Desk lamp", None)),
        ):
            assert client.put("/v1/items/new", json=body).json()["changed"]
            assert known() == expected
    service.close()
    journal.close()


def test_an_item_that_is_like_an_unknown_one_is_refused_and_none_of_its_request_is_kept(place):
    journal, service = started(place)
    with serving(service) as client:
        reply = client.put("/v1/items/new", json={"like": ["i5", "nobody"]})
        assert reply.status_code == 422
        assert "'nobody'" in reply.json()["error"]
        several = [{"item": "good", "like": ["i5"]}, {"item": "bad", "like": ["nobody"]}]
        assert client.post("/v1/items", json={"items": several}).status_code == 422
        assert found(client, "good") == []
        assert journal.entries == []
        several[1]["like"] = ["good"]
        assert client.post("/v1/items", json={"items": several}).json()["count"] == 2
        assert (found(client, "good"), found(client, "bad")) == (["good"], ["bad"])
        assert (place / "changes" / "changes.log").read_bytes().count(b"\n") == 1
    service.close()
    journal.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two runs: the second knows one event more of u001, and an item."""
    folder = tmp_path_factory.mktemp("trained")
    start = int(time.time()) + 1000
    log = cyclic_log().with_columns(pl.col("time") + start)
    more = pl.DataFrame([("u001", "i40", start + 20), *((f"u{n:03}", "new", start + 30) for n in range(2, 30))],
                        schema=log.schema, orient="row")  # fmt: skip
    for name, rows in (("one", log), ("two", pl.concat([log, more]))):
        bt.Recommender(steps=0, beam_size=20).fit(rows, test_users=10).save(folder / name)
    return folder, start


def events_of(client, user):
    return [each["item"] for each in client.get(f"/v1/users/{user}").json()["history"]]


@pytest.mark.parametrize("timed", [False, True])
def test_a_swap_leaves_out_what_the_new_run_knows(trained, tmp_path, timed):
    folder, start = trained
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(folder / name)
    journal, service = started(tmp_path)
    with serving(service) as client:
        logged = events_of(client, "u001")
        when = {"time": start + 20} if timed else {}
        for _ in range(2):
            client.post("/v1/events", json={"user": "u001", "items": ["i40"], "id": "r1", **when}).raise_for_status()
        client.post("/v1/events", json={"user": "guest", "items": ["i40"]}).raise_for_status()
        client.put("/v1/items/new", json={"like": ["i50"], "title": "New"}).raise_for_status()
        assert events_of(client, "u001") == [*logged, "i40"]
        client.post("/v1/model", json={"run": "two"}).raise_for_status()
        assert events_of(client, "u001") == [*logged, "i40"]
        assert events_of(client, "guest") == ["i40"]  # of a user whom the log does not have
        assert client.get("/v1/items/new").json()["title"] == "New"
        run = bt.Recommender.load(folder / "two").recommend(["i22", "i23"], m=10, beam_size=70)["item"].to_list()
        assert ranked(client, ["i22", "i23"], 10)["items"] == run  # where the run itself puts the new item
        assert not client.post("/v1/events", json={"user": "u001", "items": ["i40"], "id": "r1"}).json()["changed"]
        client.post("/v1/model", json={"run": "one"}).raise_for_status()
        assert events_of(client, "u001") == [*logged, "i40"]  # the first run does not know it
    service.close()
    journal.close()


def test_events_are_retired_by_hand(place):
    journal, service = started(place)
    with serving(service) as client:
        events = [
            {"user": "ann", "items": ["i1"], "time": "2026-01-01"},
            {"user": "ann", "items": ["i2"], "time": "2026-03-01"},
        ]
        client.post("/v1/events", json={"events": events}).raise_for_status()
        told = client.delete("/v1/events", params={"before": "2026-02-01"}).json()
        assert (told["changed"], told["count"]) == (True, 1)
        assert events_of(client, "ann") == ["i2"]
        assert client.delete("/v1/events").status_code == 422
        for date in ("2099-01-01", 4_070_908_800, 4_070_908_800_000):
            events = [{"user": "ann", "items": ["i3"]}, {"user": "ann", "items": ["i1"], "time": date}]
            refused = client.post("/v1/events", json={"events": events})
            assert refused.status_code == 422
            assert refused.json()["error"] == "time: an event of 2099-01-01 is in the future: give when it happened"
        assert events_of(client, "ann") == ["i2"]
        assert client.delete("/v1/events", params={"before": "soon"}).status_code == 422
    service.close()
    journal.close()


def test_the_service_places_an_item_by_the_table_that_its_run_names(tmp_path):
    rows = [(f"i{place:02}", f"group {place // 10}") for place in range(60)]
    table = tmp_path / "items.parquet"
    pl.DataFrame(rows, schema=["item", "category"], orient="row").write_parquet(table)
    shop = bt.Recommender(steps=0, tree="category", items=table).fit(cyclic_log(), test_users=10)
    shop.save(tmp_path / "one")
    shop.update_items({"new": {"category": "group 3"}})
    journal, service = started(tmp_path)
    with serving(service) as client:
        client.put("/v1/items/new", json={"category": "group 3"}).raise_for_status()
        history = ["i32", "i33", "i34"]
        assert ranked(client, history)["items"] == shop.recommend(history, m=50, beam_size=70)["item"].to_list()
    service.close()
    journal.close()


@pytest.mark.extended
def test_a_restart_says_that_a_posted_run_is_served(place):
    Journal(place / "changes").close()
    journal, service = started(place)
    with serving(service) as client:
        client.post("/v1/model", json={"run": "two"}).raise_for_status()
    service.close()
    journal.close()
    words = [sys.executable, "-m", "beamtree", "serve", str(place / "one"), "--port", "0"]
    with subprocess.Popen([*words, "--changes", str(place / "changes")], stderr=subprocess.PIPE, text=True) as child:
        try:
            assert re.match(r"two was posted to /v1/model and is served instead of \S*one", child.stderr.readline())
        finally:
            child.kill()


def test_a_run_that_takes_the_place_of_the_first_is_the_one_that_a_restart_serves(place):
    journal, service = started(place, watch=0.1)
    with serving(service) as client:
        client.post("/v1/model", json={"run": "two"}).raise_for_status()
        save_run(place / "one", seed=2)
        while client.get("/v1/model").json()["posted"]:
            time.sleep(0.05)
        while last_served_run(place / "one", journal) != place / "one":
            time.sleep(0.05)
    service.close()
    journal.close()


def test_what_was_changed_through_the_object_is_served(shop, tmp_path):
    shop.update_items({"new": {"like": ["i05"], "title": "New"}})
    shop.update(pl.DataFrame({"user": ["u001", "ann"], "item": ["new", "i40"], "time": [50, 51]}))
    shop.remove_items(["i06"])
    shop.save(tmp_path / "one")
    journal, changing = started(tmp_path)
    for service in (changing, make_service(tmp_path / "one")):
        with serving(service) as client:
            assert (events_of(client, "u001")[-1], events_of(client, "ann")) == ("new", ["i40"])
            assert client.get("/v1/items/new").json()["title"] == "New"
            assert (found(client, "new"), found(client, "i06")) == (["new"], [])
    changing.close()
    journal.close()

"""A service whose items come and go: what was acknowledged outlives restarts and swaps."""

import pytest
from serving import a_run, a_service, serving

from beamtree.live import Journal
from beamtree.serve.living import last_chosen, open_live


def found(client, item):
    reply = client.post("/v1/recommend", json={"history": ["i1", "i2"], "m": 3, "allowed": [item]}).json()
    return reply["results"][0]["items"]


@pytest.fixture
def place(tmp_path):
    a_run(tmp_path / "one")
    a_run(tmp_path / "two", seed=1)
    return tmp_path


def started(place):
    journal = Journal(place / "changes")
    run = place / "one"
    service = a_service(run, open_live("shop", "cpu", journal), first=last_chosen(run, journal))
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
        assert client.get("/v1/model").json()["run"] == "two"
        assert (found(client, "new"), found(client, "i7")) == (["new"], [])
        assert client.get("/v1/items/new").json()["title"] == "New"
        assert [each["item"] for each in client.get("/v1/users/ann").json()["history"]] == ["i1", "new"]
    service.close()
    journal.close()


def test_a_service_without_a_folder_for_changes_says_what_to_do(place):
    service = a_service(place / "one")
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
        assert "not made from vectors" in reply.json()["error"]
        assert found(client, "new") == []
    service.close()
    assert journal.entries == []
    journal.close()

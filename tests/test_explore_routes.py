"""The routes that the page needs besides recommendations."""

import json
from types import SimpleNamespace

import pytest
from page_data import make_catalogue, make_model, sample_users
from serving import serving

from beamtree.data.catalogue import Catalogue
from beamtree.diagnose.explain import parts_of, without_part
from beamtree.diagnose.explore import catalogue_map, losses_as_dict, page
from beamtree.diagnose.inspect import inspect
from beamtree.live import LiveModel
from beamtree.query import UNKNOWN_USER, History
from beamtree.serve.engine.served_run import LoadedRun
from beamtree.serve.http.service import Service

MODEL = make_model()
KNOWN = make_catalogue(MODEL)
CATALOGUE = Catalogue(MODEL.ids, [f"<b>{n}" for n in range(180)], KNOWN.categories)


class Shop(LiveModel):
    def history(self, user, ids=None):
        return History([5, 8]) if user == "ann / 1" else UNKNOWN_USER


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    shop = Service(
        tmp_path_factory.mktemp("run"), lambda _: LoadedRun(Shop(MODEL, catalogue=CATALOGUE), "shop", "abc"), timeout=20
    )
    with serving(shop) as client:
        yield client


def test_the_page_is_at_the_root(client):
    response = client.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert response.text == page(live=True)


def test_the_map_is_that_of_the_model(client):
    assert client.get("/v1/map").json() == catalogue_map(MODEL, CATALOGUE)
    assert client.get("/v1/map").json() == client.get("/v1/map").json()


def test_losses_are_those_of_inspect_over_test_users_and_need_a_log(client, tmp_path):
    refused = client.get("/v1/losses")
    assert (refused.status_code, refused.json()["hint"]) == (404, "pass its folder with --data")
    log = SimpleNamespace(test=sample_users(), val=[], users=[])
    shop = Service(tmp_path, lambda _: LoadedRun(Shop(MODEL, catalogue=CATALOGUE), "shop", "abc", data=log), timeout=20)
    with serving(shop) as with_log:
        response = with_log.get("/v1/losses").json()
        assert response == with_log.get("/v1/losses").json()
    found = inspect(MODEL, sample_users(), beam_size=100, m=(5, 10, 20, 50))
    assert response == json.loads(json.dumps(losses_as_dict(found)))
    assert response["users"] == len(sample_users())


def test_a_users_events_are_listed_oldest_first(client):
    response = client.get("/v1/users/ann%20%2F%201").json()
    assert response["user"] == "ann / 1"
    assert [(each["item"], each["title"]) for each in response["history"]] == [("i5", "<b>5"), ("i8", "<b>8")]
    answer = client.get("/v1/users/nobody")
    assert answer.status_code == 404
    assert answer.json() == {"error": "there is no such user", "hint": "search with /v1/users?query=…"}


def test_a_part_of_the_score_can_be_left_out_of_an_explanation(client):
    assert client.get("/v1/model").json()["parts"] == parts_of(MODEL) == ["memory", "repeats", "deep"]
    asked = {"history": ["i3", "i9"], "m": 5, "beam_size": 10}
    whole = client.post("/v1/explain", json=asked).json()["explanation"]["found"]
    part = client.post("/v1/explain", json={**asked, "without": "memory"}).json()["explanation"]["found"]
    assert [each["item"] for each in part] != [each["item"] for each in whole]
    refused = client.post("/v1/explain", json={**asked, "without": "magic"})
    assert refused.status_code == 422
    assert "is the sum of memory, repeats, deep" in refused.json()["error"]


def test_what_has_no_parts_cannot_be_had_without_one():
    with pytest.raises(ValueError, match="no parts"):
        without_part(type(MODEL)(MODEL.tree, MODEL.scorer.part("repeats")), "repeats")

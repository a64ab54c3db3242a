"""The service over HTTP: what it answers, what it refuses and how, what it counts, and how it stops."""

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import httpx
import pytest
from sample_logs import random_log
from serving import ITEMS, Gate, SteadyLoad, make_service, open_changing, save_run, serving

import beamtree as bt
from beamtree.live.journal import CHANGES, Journal, read_entries
from beamtree.serve.engine import served_run
from beamtree.serve.http.access import Access, Limits, is_local, is_read_only
from beamtree.serve.http.app import sibling_folder
from beamtree.serve.http.errors import ApiError
from beamtree.serve.http.server import listen


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        save_run(folder / f"run{seed}", ITEMS + 5 * seed, seed)
    return folder


@pytest.fixture(scope="module")
def log_run(tmp_path_factory):
    """A run with a log of users u0 … u79."""
    run = tmp_path_factory.mktemp("log") / "run"
    bt.Recommender(steps=2, beam_size=5, batch_size=10, recipe="deep").fit(random_log(users=80, items=40)).save(run)
    return run


@pytest.fixture(scope="module")
def service(runs):
    limits = Limits(m=50, beam_size=100, history=80, histories=4, listed=100, body=20_000, changes=20)
    return make_service(runs / "run0", open_changing, limits=limits)


@pytest.fixture(scope="module")
def client(service):
    with serving(service) as client:
        yield client


def refused(answer, status, *words):
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert set(told) == {"error", "hint"}
    assert all(told.values())
    for word in words:
        assert word in told["error"] + told["hint"]
    return answer


def metric(client, name):
    found = re.search(rf"^{re.escape(name)} (\S+)$", client.get("/metrics").text, flags=re.M)
    return 0.0 if found is None else float(found[1])


# Answers


def test_a_history_is_answered_as_the_library_answers_it(client, runs):
    told = client.post("/v1/recommend", json={"history": ["i3", "i5"], "m": 7}).json()
    shop = bt.Recommender.load(runs / "run0")
    found = shop.recommend(["i3", "i5"], m=7, beam_size=20)
    (result,) = told["results"]
    assert result["items"] == found["item"].to_list()
    assert result["scores"] == pytest.approx(found["score"].to_list(), rel=1e-5)
    assert result["ranks"] == list(range(1, 8))
    assert result["titles"] == [f"The title of {name}" for name in result["items"]]
    assert (result["unknown"], result["popular"], result["notes"]) == ([], False, [])
    assert told["degraded"] is None
    assert told["milliseconds"] > 0
    assert (told["model"], told["version"]) == ("shop", client.get("/v1/model").json()["version"])


def test_a_run_whose_name_is_not_utf_8_is_served(runs):
    with serving(make_service(runs / "run0", partial(served_run.open_run, name="shop\udcff"))) as client:
        told = client.post("/v1/recommend", json={"history": ["i3"], "m": 2})
        assert told.status_code == 200
        assert json.loads(told.content)["model"] == "shop\udcff"


@pytest.mark.parametrize("more", ['"timeout_ms": 1', '"rules": {"boosts": [{"items": ["i1"], "factor": 1'])
def test_numbers_beyond_floats_are_refused(client, more):
    body = f'{{"history": ["i3"], {more}{"0" * 400}' + ("}]}}" if "rules" in more else "}")
    refused(client.post("/v1/recommend", content=body, headers={"Content-Type": "application/json"}), 422)


def test_several_histories_are_answered_in_their_order(client):
    both = client.post("/v1/recommend", json={"histories": [["i3"], [], ["i9", "i1"]], "m": 4}).json()["results"]
    for history, result in zip((["i3"], [], ["i9", "i1"]), both, strict=True):
        alone = client.post("/v1/recommend", json={"history": history, "m": 4}).json()["results"][0]
        assert result["items"] == alone["items"]


def test_unknown_ids_are_passed_over_and_named(client):
    (result,) = client.post("/v1/recommend", json={"history": ["i3", "zz", 17], "m": 3}).json()["results"]
    assert result["unknown"] == ["zz", "17"]
    assert "2 ids" in result["notes"][0]
    (plain,) = client.post("/v1/recommend", json={"history": ["i3"], "m": 3}).json()["results"]
    assert result["items"] == plain["items"]


def test_who_has_nothing_known_gets_what_is_popular_and_is_told(client):
    for asked in ({"history": ["zz"]}, {"user": "nobody"}):
        (result,) = client.post("/v1/recommend", json={**asked, "m": 3}).json()["results"]
        assert result["popular"]
        assert result["items"] == ["i0", "i1", "i2"]
        assert any("popular" in note for note in result["notes"])


def test_filters_leave_what_they_leave_and_an_empty_answer_says_why(client):
    def items(**asked):
        return client.post("/v1/recommend", json={"history": ["i3"], "m": 50, **asked}).json()["results"][0]

    assert set(items(allowed=["i7", "i8", "zz"])["items"]) == {"i7", "i8"}
    assert set(items(category="films/old")["items"]) == {f"i{n}" for n in range(0, ITEMS, 6)}
    assert not {"i3", "i4"} & set(items(exclude=["i4"], exclude_seen=True)["items"])
    for asked in ({"allowed": ["zz"]}, {"allowed": []}, {"category": "nothing"}):
        empty = items(**asked)
        assert empty["items"] == []
        assert "no known item" in empty["notes"][-1]


def test_users_of_the_log_and_their_new_events_are_known(log_run):
    shop = bt.Recommender.load(log_run)
    with serving(make_service(log_run, open_changing)) as client:
        (result,) = client.post("/v1/recommend", json={"user": "u3", "m": 5}).json()["results"]
        found = shop.recommend(users=["u3"], m=5, beam_size=20)
        assert result["items"] == found["item"].to_list()
        assert result["user"] == "u3"
        assert client.get("/v1/users", params={"query": "u3", "limit": 2}).json()["users"] == ["u3", "u30"]
        history = client.get("/v1/users/u3").json()["history"]
        asked = {"history": [each["item"] for each in history], "m": 5}
        assert client.post("/v1/recommend", json=asked).json()["results"][0]["items"] == result["items"]
        refused(client.get("/v1/users/nobody"), 404)
        told = client.post("/v1/events", json={"user": "new", "items": [shop.ids[2], "zz"]}).json()
        assert (told["changed"], told["known"]) == (True, 1)
        (now,) = client.post("/v1/recommend", json={"user": "new", "m": 5}).json()["results"]
        assert now["items"] == shop.recommend([shop.ids[2]], m=5, beam_size=20)["item"].to_list()


def test_similar_items_are_what_follows_the_item_alone(client):
    told = client.get("/v1/similar/i5", params={"m": 4}).json()["results"][0]
    asked = {"history": ["i5"], "m": 4, "exclude_seen": True}
    assert told["items"] == client.post("/v1/recommend", json=asked).json()["results"][0]["items"]
    assert "i5" not in told["items"]
    refused(client.get("/v1/similar/zz"), 404)


def test_an_explanation_follows_what_was_asked_for(client):
    asked = {"history": ["i3", "zz"], "items": ["i9", "yy"], "m": 4, "beam_size": 8}
    told = client.post("/v1/explain", json=asked).json()
    assert told["unknown"] == ["zz", "yy"]
    found = told["explanation"]
    assert [each["item"]["item"] for each in found["items"]] == ["i9"]
    best = client.post("/v1/recommend", json={"history": ["i3"], "m": 4, "beam_size": 8}).json()["results"][0]
    assert [each["item"]["item"] for each in found["found"]] == best["items"]
    refused(client.post("/v1/explain", json={"m": 3}), 422, "history or user")


def test_the_map_counts_all_items(client):
    told = client.get("/v1/map").json()
    assert told["items"][0] == ITEMS
    assert len(told["names"]) == len(told["items"]) == len(told["events"])
    assert client.get("/v1/map").json() == told


def test_items_are_found_by_id_and_title(client):
    found = client.get("/v1/items", params={"query": "title of i5", "limit": 3}).json()["items"]
    assert [each["item"] for each in found] == ["i5", "i50", "i51"]
    assert client.get("/v1/items/i5").json() == found[0]
    assert found[0] == {
        "item": "i5",
        "title": "The title of i5",
        "category": "Books/New",
        "events": ITEMS - 5,
        "hidden": False,
    }
    refused(client.get("/v1/items/zz"), 404)


def test_a_beam_may_have_one_width_per_level(client):
    plain = client.post("/v1/recommend", json={"history": ["i3"], "m": 4, "beam_size": 20}).json()
    listed = client.post("/v1/recommend", json={"history": ["i3"], "m": 4, "beam_size": [20] * 5}).json()
    assert listed["results"] == plain["results"]
    refused(client.post("/v1/recommend", json={"history": ["i3"], "beam_size": [20]}), 422, "levels 2 to 6")


# Changes


def test_changes_are_idempotent_and_raise_the_version(client):
    before = client.get("/v1/model").json()["changes"]
    first = client.put("/v1/items/new/one", json={"title": "New", "like": ["i3", 4], "vector": [1, 0.5]}).json()
    again = client.put("/v1/items/new/one", json={"title": "New", "like": ["i3", 4], "vector": [1, 0.5]}).json()
    gone, gone_again = (client.delete("/v1/items/new/one").json() for _ in range(2))
    assert [each["changed"] for each in (first, again, gone, gone_again)] == [True, False, True, False]
    assert client.get("/v1/model").json()["changes"] == before + 2
    assert first["version"] == again["version"] != gone["version"]


def test_an_item_needs_no_body_and_an_id(client, service):
    assert client.put("/v1/items/bare").json()["changed"]
    assert service.loaded.live.added["bare"] == {}
    for name in ("%20", "a%09b", "x" * 600):
        refused(client.put(f"/v1/items/{name}"), 422, "not a valid id")


def test_a_service_that_cannot_change_says_so(runs):
    with serving(make_service(runs / "run0")) as client:
        refused(client.put("/v1/items/new"), 409)
        refused(client.post("/v1/events", json={"user": "a", "items": ["i1"]}), 409)


# Bad input


BAD = [
    ({}, "give one of"),
    ({"history": ["i1"], "user": "u"}, "give one of"),
    ({"history": "i1"}, "history"),
    ({"history": [None]}, "history"),
    ({"history": [True]}, "history"),
    ({"history": [1.5]}, "history"),
    ({"history": ["i1"], "m": 0}, "m"),
    ({"history": ["i1"], "m": 51}, "limit of 50"),
    ({"history": ["i1"], "m": 2**70}, "m"),
    ({"history": ["i1"], "beam_size": 101}, "limit of 100"),
    ({"history": ["i1"], "m": 30, "beam_size": 20}, "m=30"),
    ({"history": ["i1"] * 81}, "limit of 80"),
    ({"histories": [["i1"]] * 5}, "limit of 4"),
    ({"users": ["u"] * 5}, "limit of 4"),
    ({"history": ["i1"], "allowed": ["i1"] * 101}, "limit of 100"),
    ({"history": ["i1"], "exclude": ["i1"] * 101}, "limit of 100"),
    ({"history": ["i1"], "excluded": ["i1"]}, "excluded"),
    ({"history": ["x" * 501]}, "500"),
    ([], "not an object"),
]


@pytest.mark.parametrize(("body", "word"), BAD, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_said_in_one_shape(client, body, word):
    refused(client.post("/v1/recommend", json=body), 422, word)


def test_what_is_no_json_or_too_large_or_nowhere_is_refused(client):
    def post(content):
        return client.post("/v1/recommend", content=content, headers={"content-type": "application/json"})

    for content in (b"", b"{", b"\xff\xfe", b'{"history": ["\\ud800"]}', b"[" * 15_000, b'{"m": NaN}'):
        assert post(content).status_code in (400, 422)
        assert set(post(content).json()) == {"error", "hint"}
    refused(post(b" " * 20_001), 413)
    refused(post(b" " * 1_000 for _ in range(30)), 413)  # without saying how much
    refused(client.get("/v1/recommend"), 405)
    refused(client.get("/nowhere"), 404)
    refused(client.get("/v1/items", params={"limit": 1000}), 422, "limit")
    refused(client.get("/v1/../../etc/passwd"), 404)


def test_json_is_read_whatever_its_content_type_and_a_change_says_that_the_header_is_missing(client):
    for kind in ("application/x-www-form-urlencoded", "text/plain", "application/vnd.api+json"):
        answer = client.post("/v1/recommend", content=b'{"history": ["i1"]}', headers={"content-type": kind})
        assert answer.status_code == 200
        answer = client.put("/v1/items/typed", content=b'{"title": "T"}', headers={"content-type": kind})
        assert answer.status_code == 200
    event = b'{"user": "a", "items": ["i1"]}'
    for kind in ({"content-type": "application/x-www-form-urlencoded"}, {}):
        refused(client.post("/v1/events", content=event, headers=kind), 415, "Content-Type: application/json")
    assert client.post("/v1/events", content=event, headers={"content-type": "application/json"}).status_code == 200


def test_many_items_and_events_go_into_one_request(client, service):
    told = client.post("/v1/items", json={"items": [{"item": "b1", "title": "B"}, {"item": 17, "like": ["i1"]}]}).json()
    assert (told["changed"], told["count"]) == (True, 2)
    assert service.loaded.live.added["17"] == {"like": ["i1"]}
    events = [{"user": "u1", "items": ["i1", "i2"]}, {"user": "u2", "items": ["i3", "zz"], "time": 5}]
    assert client.post("/v1/events", json={"events": events, "id": "r"}).json()["known"] == 3
    refused(client.post("/v1/items", json={"items": [{"item": "b1"}, {"item": "b1"}]}), 422, "twice")
    refused(client.post("/v1/items", json={"items": [{"item": "b"}] * 21}), 422, "limit of 20")
    refused(client.post("/v1/items", json={"items": []}), 422, "items")
    refused(client.post("/v1/items", json={"items": [{"title": "B"}]}), 422, "item")


@pytest.mark.parametrize(
    "body",
    [
        {"user": "a"},
        {"items": ["i1"]},
        {"events": [], "id": "r"},
        {"events": [{"user": "a", "items": ["i1"]}], "user": "a", "items": ["i1"]},
        {"events": [{"user": "a", "items": ["i1"]}], "time": 5},
        {"events": [{"user": "a", "items": ["i1"]}] * 21},
        {"user": "a", "items": ["i1"], "time": "soon"},
        {"user": "a", "items": ["i1"], "time": True},
    ],
    ids=lambda body: str(body)[:60],
)
def test_events_that_are_not_as_they_should_be_are_refused(client, body):
    refused(client.post("/v1/events", json=body), 422)


def test_the_deadline_grows_with_the_histories_of_a_request(runs):
    service = make_service(runs / "run0", timeout=0.5)
    with serving(service) as client:
        assert [service.seconds_for(count) for count in (1, 10, 20, 256)] == [0.5, 0.5, 1.0, 12.8]
        busy = Gate(service.engine)
        refused(client.post("/v1/recommend", json={"history": ["i1"]}), 504, "500 ms")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            many = pool.submit(client.post, "/v1/recommend", json={"histories": [["i1"]] * 256})
            time.sleep(0.7)
            assert not many.done()
            busy.open()
            assert len(many.result().json()["results"]) == 256


# The Open Inference Protocol


def infer(client, data, shape, datatype="BYTES", path="/v2/models/shop/infer", **more):
    tensor = {"name": "history", "shape": shape, "datatype": datatype, "data": data}
    return client.post(path, json={"inputs": [tensor], **more})


def test_tensors_of_ids_and_of_numbers_give_the_same_items(client):
    plain = client.post("/v1/recommend", json={"histories": [["i3", "i5"], ["i9"]], "m": 4}).json()
    expected = [name for each in plain["results"] for name in each["items"]]
    for data, datatype in (
        (["i3", "i5", "i9", ""], "BYTES"),
        ([["i3", "i5"], ["i9", ""]], "BYTES"),
        ([3, 5, 9, -1], "INT64"),
    ):
        told = infer(client, data, [2, 2], datatype, id="a", parameters={"m": 4}).json()
        item, score = told["outputs"]
        assert (item["name"], item["datatype"], item["shape"]) == ("item", "BYTES", [2, 4])
        assert item["data"] == expected
        assert (score["name"], score["datatype"], len(score["data"])) == ("score", "FP32", 8)
        assert (told["id"], told["model_name"]) == ("a", "shop")


def test_rows_with_fewer_items_are_filled_up(client):
    told = infer(client, [f"i{n}" for n in range(58)], [1, 58], parameters={"m": 5, "exclude_seen": True}).json()
    assert set(told["outputs"][0]["data"][:2]) == {"i58", "i59"}
    assert told["outputs"][0]["data"][2:] == [""] * 3
    assert told["outputs"][1]["data"][2:] == [0.0] * 3


def test_the_protocol_tells_of_its_model_and_refuses_others(client):
    version = client.get("/v1/model").json()["version"]
    about = client.get("/v2/models/shop").json()
    assert about["versions"] == [version]
    assert client.get(f"/v2/models/shop/versions/{version}/ready").json()["ready"]
    assert infer(client, ["i3"], [1, 1], path=f"/v2/models/shop/versions/{version}/infer").status_code == 200
    assert client.get("/v2").json()["name"] == "beamtree"
    refused(client.get("/v2/models/other"), 404)
    refused(client.get("/v2/models/shop/versions/7/ready"), 404)
    for wrong in (
        infer(client, ["i3"], [2, 1]),
        infer(client, ["i3"], [1]),
        infer(client, [3], [1, 1]),
        infer(client, ["i3"], [1, 1], "INT64"),
        infer(client, [["i3", ["i4"]]], [1, 2]),
        infer(client, ["i3"], [1, 1], "FP32"),
        infer(client, [], [5, 0]),
        infer(client, ["i3"] * 81, [1, 81]),
        infer(client, ["i3"], [1, 1], parameters={"k": 3}),
        infer(client, ["i3"], [1, 1], parameters={"m": True}),
        infer(client, ["i3"], [1, 1], parameters={"m": 51}),
        client.post("/v2/models/shop/infer", json={"inputs": []}),
    ):
        refused(wrong, 422)
    assert infer(client, [10**6], [1, 1], "INT64").status_code == 200  # an item that nobody knows


# The description


def test_every_example_of_the_description_is_answered(log_run, tmp_path):
    log = Journal(tmp_path)
    with contextlib.closing(log), serving(make_service(log_run, open_changing, journal=log)) as client:
        tried = 0
        for path, methods in client.get("/openapi.json").json()["paths"].items():
            for method, operation in methods.items():
                filled = path
                for parameter in operation.get("parameters", []):
                    if parameter["in"] == "path":
                        filled = filled.replace(f"{{{parameter['name']}}}", parameter["example"])
                content = operation.get("requestBody", {}).get("content", {}).get("application/json")
                examples = [None] if content is None else [each["value"] for each in content["examples"].values()]
                query = {each["name"]: each["example"] for each in operation.get("parameters", []) if "example" in each}
                for example in examples:
                    answer = client.request(method.upper(), filled, json=example, params=query)
                    assert answer.status_code == 200, (method, filled, answer.text)
                    tried += 1
        assert tried >= 30


# Health and metrics


def test_probes_and_load(client):
    for path in ("/healthz", "/livez", "/readyz", "/v2/health/live", "/v2/health/ready"):
        assert client.get(path).status_code == 200
    told = client.get("/load").json()
    assert (told["waiting"], told["beam_size"], told["stopping"]) == (0, 20, False)


def test_metrics_count_by_route_and_name_no_ids(client):
    name = 'beamtree_requests_total{code="200",route="/v1/recommend"}'
    before = metric(client, name)
    client.post("/v1/recommend", json={"history": ["i3", "secret-item"], "m": 3})
    client.get("/v1/items/i3")
    client.get("/nowhere/secret-path")
    assert metric(client, name) == before + 1
    text = client.get("/metrics").text
    assert "secret" not in text
    assert 'route="other"' in text
    assert metric(client, "beamtree_short_results_total") == 0
    assert metric(client, "beamtree_index_items") == ITEMS
    for each in ("request_duration", "queue_duration", "search_duration"):
        assert f"beamtree_{each}_seconds_bucket" in text
    ours = re.findall(r"^# TYPE (\S+) (\S+)", text, flags=re.M)
    assert all(name.startswith(("beamtree_", "process_")) for name, _ in ours)
    assert all(name.endswith("_total") for name, kind in ours if kind == "counter")


# Load


def test_a_full_queue_is_answered_429_with_retry_after(runs):
    service = make_service(runs / "run0", max_queue=2)
    with serving(service) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
        busy = Gate(service.engine)
        waiting = [pool.submit(client.post, "/v1/recommend", json={"history": ["i1"]}) for _ in range(2)]
        while service.engine.waiting < 2:
            time.sleep(0.01)
        assert client.get("/load").json()["waiting"] == 2
        answer = refused(client.post("/v1/recommend", json={"history": ["i1"]}), 429)
        assert int(answer.headers["retry-after"]) >= 1
        busy.open()
        assert [each.result().status_code for each in waiting] == [200, 200]
        assert metric(client, 'beamtree_requests_rejected_total{reason="queue_full"}') == 1


def test_deadlines_are_kept_and_what_missed_them_is_not_searched(runs):
    service = make_service(runs / "run0")
    with serving(service) as client:
        client.post("/v1/recommend", json={"history": ["i1"]})
        busy = Gate(service.engine)
        searched = metric(client, "beamtree_batch_size_count")
        refused(client.post("/v1/recommend", json={"history": ["i1"], "timeout_ms": 20}), 504, "20 ms")
        busy.open()
        assert client.post("/v1/recommend", json={"history": ["i1"]}).status_code == 200
        assert metric(client, "beamtree_batch_size_count") == searched + 1
        assert metric(client, 'beamtree_requests_rejected_total{reason="deadline"}') == 1


def test_a_narrowed_beam_is_told(runs):
    service = make_service(runs / "run0")
    service.engine.load_control = SteadyLoad(1)
    with serving(service) as client:
        told = client.post("/v1/recommend", json={"history": ["i1"], "m": 4}).json()
        assert told["degraded"] == {"beam_size": 10, "reason": "load"}
        assert len(told["results"][0]["items"]) == 4
        assert client.get("/load").json()["steps_narrowed"] == 1
        assert metric(client, 'beamtree_degraded_total{reason="load"}') == 1


# Swaps


def test_runs_are_swapped_without_a_failed_request(runs):
    with serving(make_service(runs / "run0")) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
        ended, codes, versions = threading.Event(), [], set()

        def keep_asking():
            while not ended.is_set():
                answer = client.post("/v1/recommend", json={"history": ["i1"], "m": 5})
                codes.append(answer.status_code)
                versions.add(answer.json()["version"])

        asking = [pool.submit(keep_asking) for _ in range(2)]
        told = [client.post("/v1/model", json={"run": f"run{turn % 3}"}) for turn in range(1, 7)]
        ended.set()
        for each in asking:
            each.result()
        assert {each.status_code for each in told} == set(codes) == {200}
        assert [each.json()["items"] for each in told[:3]] == [ITEMS + 5, ITEMS + 10, ITEMS]
        assert versions <= {each.json()["version"] for each in told}
        assert metric(client, 'beamtree_reloads_total{result="ok"}') == 6


def test_a_run_that_fails_is_not_served_and_is_told_of(runs):
    with serving(make_service(runs / "run0")) as client:
        before = client.get("/v1/model").json()["version"]
        refused(client.post("/v1/model", json={"run": "nowhere"}), 422, "stays as it was")
        about = client.get("/v1/model").json()
        assert about["version"] == before
        assert about["last_reload"]["run"] == "nowhere"
        assert about["last_reload"]["error"]
        assert metric(client, 'beamtree_reloads_total{result="failed"}') == 1
        assert client.post("/v1/recommend", json={"history": ["i1"]}).status_code == 200


def test_only_folders_beside_the_run_can_be_asked_for(runs):
    assert sibling_folder(runs / "run0", "run1") == runs / "run1"
    for name in ("/etc", "../x", "a/../../x", "", ".", "a\0b", "..\\x"):
        with pytest.raises(ApiError):
            sibling_folder(runs / "run0", name)


# Who may


def test_tokens_for_reading_and_for_changing(runs):
    with serving(make_service(runs / "run0", open_changing, access=Access("r-secret", "c-secret"))) as client:
        ask = {"history": ["i1"]}

        def with_token(token, method, path, **more):
            return client.request(method, path, headers={"authorization": f"Bearer {token}"}, **more).status_code

        for path in ("/healthz", "/readyz", "/v2/health/live", "/"):
            assert client.get(path).status_code == 200
        for path in ("/metrics", "/v1/model", "/openapi.json", "/load", "/v1/items"):
            assert refused(client.get(path), 401).headers["www-authenticate"] == "Bearer"
        refused(client.post("/v1/recommend", json=ask), 401)
        assert with_token("wrong", "POST", "/v1/recommend", json=ask) == 401
        assert with_token("r-secret", "POST", "/v1/recommend", json=ask) == 200
        assert with_token("c-secret", "POST", "/v1/recommend", json=ask) == 200
        for method, path in (("PUT", "/v1/items/x"), ("DELETE", "/v1/items/x")):
            assert with_token("r-secret", method, path) == 401
            assert with_token("c-secret", method, path) == 200
        assert with_token("r-secret", "POST", "/v1/model", json={"run": "run0"}) == 401


def test_whatever_is_not_known_to_read_counts_as_a_change():
    assert is_read_only("POST", "/v1/recommend")
    assert is_read_only("POST", "/v2/models/shop/infer")
    for method, path in (("POST", "/v1/events"), ("POST", "//v1/recommend"), ("PATCH", "/v1/recommend"), ("X", "/")):
        assert not is_read_only(method, path)
    assert Access(None, None, open_changes=False).check("PUT", "/v1/items/a", "")[0] == 403
    assert Access(None, None, open_changes=True).check("PUT", "/v1/items/a", "") is None
    assert Access("r", None, open_changes=True).check("GET", "/v1/model", "Bearer ")[0] == 401
    assert [is_local(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "shop")] == [True] * 3 + [False] * 2


# The process


def test_the_command_serves_and_stops_in_peace(runs):
    """Told to stop it is not ready and goes on; told again it finishes what is in flight and ends."""
    settings = {"READ_TOKEN": "very-secret", "BEAM_SIZE": "30", "DRAIN": "100", "TIMEOUT": "60000", "SLOW": "60000"}
    env = {**os.environ, **{f"BEAMTREE_{name}": value for name, value in settings.items()}}
    words = [sys.executable, "-m", "beamtree", "serve", str(runs / "run0"), "--port", "0"]
    secret = {"authorization": "Bearer very-secret"}
    with subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True) as child:
        try:
            address = re.search(r"http://\S+", child.stderr.readline())[0]
            with httpx.Client(base_url=address, headers=secret, timeout=60) as client:
                assert client.get("/readyz").status_code == 200
                assert client.get("/load").json()["beam_size"] == 30
                child.send_signal(signal.SIGTERM)
                while client.get("/readyz").status_code == 200:
                    time.sleep(0.01)
                ask = {"histories": [["i1"]] * 256, "m": 30}
                assert client.post("/v1/recommend", json=ask).status_code == 200
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    last = pool.submit(client.post, "/v1/recommend", json=ask)
                    while "beamtree_batch_size_sum 256.0" in client.get("/metrics").text and not last.done():
                        time.sleep(0.001)  # it may not have come yet
                    child.send_signal(signal.SIGTERM)
                    assert last.result().status_code == 200
            assert child.wait(60) == 0
            assert "very-secret" not in child.stderr.read()
        finally:
            child.kill()


PREPARES_FOR_LONG = """
import time
from beamtree.__main__ import main
from beamtree.live import LiveModel
from beamtree.kernels.threads import parallel_map
LiveModel.warm_up = lambda self: parallel_map(time.sleep, [600, 600])
main()
"""


def test_a_service_that_still_prepares_for_new_items_stops_at_once(runs, tmp_path):
    words = [sys.executable, "-c", PREPARES_FOR_LONG, "serve", str(runs / "run0"), "--port", "0"]
    with subprocess.Popen(
        [*words, "--changes", str(tmp_path / "changes"), "--drain", "0"], stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            address = re.search(r"http://\S+", child.stderr.readline())[0]
            assert httpx.get(f"{address}/readyz", timeout=60).status_code == 200
            assert httpx.put(f"{address}/v1/items/new", json={"like": ["i1"]}, timeout=60).status_code == 200
            child.send_signal(signal.SIGTERM)
            assert child.wait(60) == 0
        finally:
            child.kill()
    assert len(read_entries(tmp_path / "changes" / CHANGES)[0]) == 1


def test_a_port_that_is_taken_is_told_in_one_line():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match="choose another"):
            listen("127.0.0.1", port)


def test_a_run_is_searched_before_it_is_served(runs, monkeypatch):
    """So that no request waits for compiled code."""
    searches = []
    monkeypatch.setattr(served_run, "retrieve", lambda model, x, **options: searches.append(x.shape))
    served_run.open_run(runs / "run0", name="shop")
    assert searches == [(1, 1)]

"""A classifier over HTTP: what it answers and refuses, and labels that change while it serves."""

import concurrent.futures
import contextlib
import threading
import time

import httpx
import numpy as np
import pytest
from command import largest_file
from serving import serving
from topics import TEXT

import beamtree as bt
from beamtree.diagnose.explore import labels_page
from beamtree.live import Journal
from beamtree.live.journal import CHANGES
from beamtree.live.labels import LiveClassifier
from beamtree.serve.http.access import Access, Limits
from beamtree.serve.http.classify import ClassifierService, make_classifier_app

NOT_WHOLE = "the id {!r} is not a whole number, as all others are: give it a number"


@contextlib.contextmanager
def serving_labels(classifier, folder=None, **how):
    """A classifier behind a real socket, whose changes go to a folder, and a client of it."""
    with contextlib.nullcontext() if folder is None else contextlib.closing(Journal(folder)) as journal:
        service = ClassifierService(LiveClassifier(classifier, journal), "run", **how)
        with serving(service, make_classifier_app) as client:
            yield client


def found_in(client, text=TEXT, m=20):
    return [each["label"] for each in client.post("/v1/labels", json={"text": text, "m": m}).json()["labels"]]


def test_the_service(topics_folder):
    with serving_labels(bt.Classifier.load(topics_folder / "runs" / "topics")) as client:
        check_service(client)


def check_service(client):
    text = "topic3word1 topic3word2 topic3word3"
    found = client.post("/v1/labels", json={"text": text, "m": 3}).json()
    assert found["labels"][0]["label"] == "t03"
    assert found["labels"][0]["name"] == "Topic 03"
    assert len(found["labels"]) == 3
    several = client.post("/v1/labels", json={"texts": [text, "nothing"], "m": 2, "exclude": ["t03"]}).json()["results"]
    assert [len(each["labels"]) for each in several] == [2, 2]
    assert several[1]["known_features"] == 0
    assert "t03" not in [each["label"] for each in several[0]["labels"]]
    assert client.get("/v1/model").json()["labels"] == 20
    assert client.get("/healthz").json() == {"live": True}
    assert client.get("/").text == labels_page()
    assert client.post("/v1/explain", json={"text": text, "label": "t03"}).json()["parts"]["linear"] > 0.1
    assert client.post("/v1/labels", json={"text": text, "allowed": ["none"]}).json()["labels"] == []
    named_as_a_file = client.post("/v1/explain", json={"text": __file__, "label": "t03"})
    assert named_as_a_file.json()["features"] == []  # the text is not read as a file
    for path, body, message in (
        ("labels", {}, "exactly one of"),
        ("labels", {"text": text, "m": 0}, "m: "),
        ("labels", {"text": text, "m": 5000}, "over the limit"),
        ("labels", {"features": [{"0": 1.0}]}, "give texts, not a matrix"),
        ("labels", {"features": []}, "there are no documents"),
        ("labels", {"text": text, "extra": 1}, "extra"),
        ("explain", {"text": text, "label": "none"}, "is unknown"),
        ("explain", {"label": "t03"}, "exactly one of"),
        ("explain", {"features": {"0": 1.0}, "label": "t03"}, "give texts, not a matrix"),
    ):
        answer = client.post(f"/v1/{path}", json=body)
        assert answer.status_code == 422
        assert message in answer.json()["error"]


def test_the_service_takes_features(tmp_path):
    rng = np.random.default_rng(0)
    x = np.eye(6)[rng.integers(0, 6, 100)] + 0.1 * rng.random((100, 6))
    classifier = bt.Classifier(group=2).fit(x, [[int(row.argmax())] for row in x], verbose=False)
    with serving_labels(classifier, tmp_path) as client:
        found = client.post("/v1/labels", json={"features": [{"2": 1.0, "3": 0.1}], "m": 1}).json()
        assert found["results"][0]["labels"][0]["label"] == "2"
        explained = client.post("/v1/explain", json={"features": {"2": 1.0, "3": 0.1}, "label": "2"}).json()
        assert explained["score"] == pytest.approx(found["results"][0]["labels"][0]["score"], rel=1e-3)
        for features in ({"9": 1.0}, {"x": 1.0}):
            assert client.post("/v1/labels", json={"features": [features]}).status_code == 422
        assert client.put("/v1/labels/25", json={"features": [{"2": 1.0, "5": 1.0}] * 3}).json()["changed"]
        found = client.post("/v1/labels", json={"features": [{"2": 1.0, "5": 1.0}], "m": 3}).json()
        assert "25" in [each["label"] for each in found["results"][0]["labels"]]
        for body, message in (
            ({"name": "only a name"}, "it could never be found"),
            ({"features": [{"9": 1.0}]}, "documents of '30': feature '9' is not one of 0 … 5"),
            ({"texts": ["text"]}, "documents of '30': this classifier knows 6 features"),
            ({"texts": ["text"], "features": [{"1": 1.0}]}, "not both"),
        ):
            answer = client.put("/v1/labels/30", json=body)
            assert answer.status_code == 422
            assert message in answer.json()["error"]
        answer = client.put("/v1/labels/both", json={"features": [{"2": 1.0, "5": 1.0}]})
        assert (answer.status_code, answer.json()["error"]) == (422, NOT_WHOLE.format("both"))


def test_a_feature_of_zero_is_not_known():
    found = bt.Classifier(group=2).fit(np.eye(4), [["a"], ["b"], ["b"], ["c"]], verbose=False)
    with serving_labels(found) as client:
        bodies = [{"0": 1.0, "3": 0}, {"0": 0.0}, {}]
        known = client.post("/v1/labels", json={"features": bodies, "m": 2}).json()["results"]
        assert [each["known_features"] for each in known] == [1, 0, 0]
        assert known[1]["labels"] == known[2]["labels"]  # the most frequent
        assert known[1]["labels"][0]["label"] == "b"
        assert client.post("/v1/explain", json={"features": {"0": 0.0}, "label": "a"}).status_code == 200


def test_live_labels_are_added_changed_and_hidden(topic_classifier, tmp_path):
    trained = topic_classifier.predict(TEXT, m=5)
    with serving_labels(topic_classifier, tmp_path) as client:
        assert client.put("/v1/labels/lamp", json={"name": TEXT}).json() == {
            "changed": True, "version": "1", "count": 1,
        }  # fmt: skip
        assert not client.put("/v1/labels/lamp", json={"name": TEXT}).json()["changed"]  # the same again
        assert "lamp" in found_in(client, m=5)
        assert client.put("/v1/labels/chair", json={"texts": [TEXT] * 3}).json()["version"] == "2"
        assert client.get("/v1/labels/chair").json() == {
            "label": "chair", "name": "", "documents": 3, "hidden": False,
        }  # fmt: skip
        client.put("/v1/labels/chair", json={"texts": [TEXT]})  # instead of the three
        assert client.get("/v1/labels/chair").json()["documents"] == 1
        client.put("/v1/labels/chair", json={"name": "a chair"})  # texts are left out, so they stay
        assert client.get("/v1/labels/chair").json()["documents"] == 1
        assert client.delete("/v1/labels/t01").json()["changed"]
        assert not client.delete("/v1/labels/t01").json()["changed"]
        assert not client.delete("/v1/labels/none").json()["changed"]
        assert "t01" not in found_in(client)
        assert len(found_in(client)) == 20  # of 22 labels one is hidden
        allowed = {"text": TEXT, "m": 3, "allowed": ["t01", "t02"]}
        assert len(client.post("/v1/labels", json=allowed).json()["labels"]) == 1
        many = {"labels": [{"label": "a/b", "name": "topic5word1"}, {"label": 7, "texts": [TEXT]}]}
        assert client.put("/v1/labels", json=many).json()["count"] == 2
        assert client.get("/v1/labels/a%2Fb").json()["name"] == "topic5word1"
        assert [each["label"] for each in client.get("/v1/labels?query=CHAIR").json()["labels"]] == ["chair"]
        before = client.get("/v1/model").json(), [found_in(client, text) for text in (TEXT, "topic5word1")]
        for path, body, message in (
            ("/new", {}, "could never be found"),
            ("/new", {"name": "zzz", "texts": ["yyy"]}, "could never be found"),
            ("/new", {"texts": ["text"] * 300}, "over the limit"),
            ("", {"labels": [{"label": "x", "name": TEXT}, {"label": "y"}]}, "label 'y' has no name or document"),
            ("", {"labels": [{"label": "x", "name": TEXT}, {"label": "x"}]}, "occurs twice"),
            ("/%20", {"name": TEXT}, "not a valid id"),
        ):
            answer = client.put(f"/v1/labels{path}", json=body)
            assert (answer.status_code, message in answer.json()["error"]) == (422, True), answer.text
        assert client.get("/v1/labels/x").status_code == 404  # all or none
        assert before == (
            client.get("/v1/model").json(), [found_in(client, text) for text in (TEXT, "topic5word1")],
        )  # fmt: skip
        assert 'beamtree_changes_total{kind="put_label"} 6.0' in client.get("/metrics").text
    with serving_labels(topic_classifier, tmp_path) as client:  # after a restart
        assert before == (
            client.get("/v1/model").json(), [found_in(client, text) for text in (TEXT, "topic5word1")],
        )  # fmt: skip
        assert client.put("/v1/labels/t01").json()["changed"]  # shown again
        assert "t01" in found_in(client)
    assert topic_classifier.predict(TEXT, m=5).equals(trained)  # the trained one never changes


def test_changes_of_labels_need_a_folder_and_a_token(topic_classifier, tmp_path):
    with serving_labels(topic_classifier) as client:
        assert client.put("/v1/labels/lamp", json={"name": TEXT}).status_code == 409
        assert client.delete("/v1/labels/t01").status_code == 409
    with serving_labels(topic_classifier, tmp_path, access=Access(None, "secret")) as client:
        assert client.put("/v1/labels/lamp", json={"name": TEXT}).status_code == 401
        assert len(found_in(client)) == 20  # to ask needs none
        assert client.put("/v1/labels/lamp", json={"name": TEXT}, headers={"Authorization": "Bearer secret"}).is_success
    with serving_labels(topic_classifier, tmp_path, limits=Limits(body=1000)) as client:
        assert client.post("/v1/labels", json={"text": "word " * 1000}).status_code == 413


def test_a_label_on_a_full_disk_is_refused_and_the_service_goes_on_by_itself(topic_classifier, tmp_path):
    with serving_labels(topic_classifier, tmp_path) as client:
        client.put("/v1/labels/first", json={"texts": [TEXT]}).raise_for_status()
        with largest_file((tmp_path / CHANGES).stat().st_size + 30):
            refused = [client.put("/v1/labels/refused", json={"texts": [TEXT]}), client.delete("/v1/labels/t01")]
            assert client.get("/readyz").status_code == 200
        assert [(each.status_code, sorted(each.json())) for each in refused] == [(507, ["error", "hint"])] * 2
        assert client.get("/v1/labels/refused").status_code == 404
        assert client.put("/v1/labels/second", json={"texts": [TEXT]}).json()["changed"]
    with serving_labels(topic_classifier, tmp_path) as client:
        known = [client.get(f"/v1/labels/{label}").status_code for label in ("first", "refused", "second")]
        assert known == [200, 404, 200]
        assert client.get("/v1/labels/t01").json()["hidden"] is False


def test_each_request_sees_one_model_while_labels_change(topic_classifier, tmp_path):
    """Two labels that are added and hidden together are found together or not at all, and no change is lost."""
    seen, done = set(), threading.Event()
    with serving_labels(topic_classifier, tmp_path) as client:

        def ask():
            with httpx.Client(base_url=client.base_url, timeout=60) as own:
                while not done.is_set():
                    found = found_in(own)
                    assert ("twin1" in found) == ("twin2" in found)
                    assert len(found) == 20
                    seen.add("twin1" in found)

        def change(number):
            with httpx.Client(base_url=client.base_url, timeout=60) as own:
                for turn in range(4):
                    own.put(
                        f"/v1/labels/own{number}-{turn}", json={"texts": [f"topic{number}word1"]}
                    ).raise_for_status()

        twins = {"labels": [{"label": f"twin{number}", "texts": [TEXT] * 5} for number in (1, 2)]}
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            asking = [pool.submit(ask) for _ in range(2)]
            changing = [pool.submit(change, number) for number in range(2)]
            while seen != {True} and not any(each.done() for each in asking):
                seen.clear()
                client.put("/v1/labels", json=twins).raise_for_status()
                time.sleep(0.01)
            for each in changing:
                each.result()
            done.set()
            for each in asking:
                each.result()
        added = {f"own{number}-{turn}" for number in range(2) for turn in range(4)}
        listed = client.get("/v1/labels?query=own").json()["labels"]
        assert added == {each["label"] for each in listed}
        assert client.get("/v1/model").json()["changes"] == 10

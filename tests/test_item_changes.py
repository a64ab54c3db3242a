"""Attributes of items change over HTTP and by the command: at once, durable, and as a whole."""

import json
import multiprocessing
import shutil
import time
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from command import beamtree, largest_file
from sample_logs import ITEM_NAMES, cyclic_log, shop_table
from serving import make_service, open_shop, serving

import beamtree as bt
from beamtree.files import atomic, staging
from beamtree.live import Journal, renewal
from beamtree.serve import item_client
from beamtree.serve.http.access import Access, Limits
from beamtree.storage import runs
from beamtree.storage.runs import read_run
from beamtree.storage.settings import fingerprint
from beamtree.storage.tuned import load_tuned_beam, save_tuned_beam


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted") / "run"
    bt.Recommender(steps=0, seed=0).fit(cyclic_log(), items=shop_table(), test_users=10, verbose=False).save(folder)
    return folder


@pytest.fixture
def run(fitted, tmp_path):
    return Path(shutil.copytree(fitted, tmp_path / "run"))


class Served:
    """A service of a run with a journal beside it, which can be started again."""

    def __init__(self, run, **how):
        self.run, self.how, self._open = run, how, None
        self.start()

    def start(self):
        self.journal = Journal(self.run.with_name("changes"))
        self.service = make_service(self.run, partial(open_shop, journal=self.journal), **self.how)
        self._open = serving(self.service)
        self.client = self._open.__enter__()
        self.url = f"http://127.0.0.1:{self.client.port}"

    def stop(self):
        self._open.__exit__(None, None, None)
        self.service.close()
        self.journal.close()

    def restart(self):
        self.stop()
        self.start()

    def found(self, where=None, **more):
        body = {"history": ["i31", "i32"], "m": 99, "beam_size": 99, "where": where, **more}
        answer = self.client.post("/v1/recommend", json=body).raise_for_status().json()
        return {*answer["results"][0]["items"]}

    def item(self, name):
        return self.client.get(f"/v1/items/{name}").raise_for_status().json()


@pytest.fixture
def served(run):
    served = Served(run)
    yield served
    served.stop()


CHANGES = {"i05": {"price": 500, "brand": "x"}, "i06": {"price": 500.5, "brand": "x"}, "i57": {"price": None}}


def by_put(served, folder):
    for name, fields in CHANGES.items():
        assert served.client.put(f"/v1/items/{name}", json=fields).raise_for_status().json()["changed"]


def by_patch(served, folder):
    for name, fields in CHANGES.items():
        assert served.client.patch(f"/v1/items/{name}", json=fields).raise_for_status().json()["changed"]


def by_post(served, folder):
    items = [{"item": name, **fields} for name, fields in CHANGES.items()]
    answer = served.client.post("/v1/items", json={"items": items}).raise_for_status().json()
    assert (answer["changed"], answer["count"], answer["added"]) == (True, 3, 0)


def by_command(served, folder):
    rows = [{"item": name, "price": fields["price"], "brand": fields.get("brand", "brand 2")}
            for name, fields in CHANGES.items()]  # fmt: skip
    pl.DataFrame(rows).write_csv(folder / "prices.csv")
    done = beamtree("items", served.url, "prices.csv", folder=folder)
    assert "Added 0 and changed 3 items" in done.stdout


@pytest.mark.parametrize("change", [by_put, by_patch, by_post, by_command])
def test_the_next_request_reads_what_was_changed_also_after_a_restart(served, tmp_path, change):
    assert served.found("price > 56") == {"i57", "i58", "i59"}
    change(served, tmp_path)
    for _ in range(2):
        assert served.found("price > 56") == {"i05", "i06", "i58", "i59"}
        assert served.found("price is null") == {"i57"}
        assert len(served.found("brand = 'x'", rules={"at_most": {"brand": 1}})) == 1
        boosted = {"boosts": [{"where": "price > 400", "factor": 3.0}]}
        answer = served.client.post("/v1/recommend", json={"history": ["i31"], "m": 60, "rules": boosted}).json()
        result = answer["results"][0]
        assert {item for item, rules in zip(result["items"], result["rules"], strict=True) if rules} == {"i05", "i06"}
        assert served.item("i06")["attributes"]["price"] == 500.5
        served.restart()


def test_an_item_shows_all_of_its_attributes_as_json(served):
    shown = served.item("i05")
    assert shown["attributes"] == {
        "name": "Title 5", "category": "group 0", "price": 5, "stock": 1, "brand": "brand 0", "new": False,
        "released": "2026-01-06", "genres": ["all", "genre 2"],
    }  # fmt: skip
    fields = {"title": "T", "new": True, "released": "2027-05-05", "genres": ["a"], "stock": None}
    served.client.patch("/v1/items/i05", json=fields).raise_for_status()
    shown = served.item("i05")
    assert (shown["title"], shown["category"]) == ("T", "group 0")
    expected = {"name": "T", "new": True, "released": "2027-05-05", "genres": ["a"], "stock": None, "price": 5}
    assert {name: shown["attributes"][name] for name in expected} == expected
    assert served.client.get("/v1/model").json()["columns"] == {
        "title": "text", "category": "text", "name": "text", "price": "numbers", "stock": "numbers", "brand": "text",
        "new": "true or false", "released": "dates such as 2026-12-31", "genres": "lists of text",
    }  # fmt: skip


def test_a_patch_changes_known_items_alone_and_a_put_shows_hidden_ones(served):
    client = served.client
    refused = client.patch("/v1/items/nobody", json={"price": 1})
    assert (refused.status_code, refused.json()["error"]) == (404, "there is no such item")
    assert served.journal.entries == []
    client.delete("/v1/items/i01").raise_for_status()
    assert client.patch("/v1/items/i01", json={"price": 100}).json()["changed"]
    assert client.post("/v1/items", json={"items": [{"item": "i01", "stock": 9}]}).json()["count"] == 1
    assert served.found("price = 100") == set()
    for _ in range(2):
        assert served.item("i01")["hidden"]
        served.restart()
    assert served.client.put("/v1/items/i01", json={"price": 100}).json()["changed"]
    assert served.found("price = 100 and stock = 9") == {"i01"}
    served.client.delete("/v1/items/i01", params={"forget": True}).raise_for_status()
    assert served.client.patch("/v1/items/i01", json={"price": 100}).status_code == 404
    assert served.client.post("/v1/items", json={"items": [{"item": "i01"}]}).json()["added"] == 1
    assert served.item("i01")["attributes"]["stock"] is None


def test_new_items_come_with_every_column(served):
    fields = {"title": "Title 22", "price": 9.5, "brand": "brand 2", "genres": ["all"], "released": "2026-05-05"}
    assert served.client.put("/v1/items/one", json=fields).json()["changed"]
    several = [{"item": "two", "price": 9.5, "like": ["i05"]}, {"item": "three", "price": 9.5, "like": ["two"]}]
    assert served.client.post("/v1/items", json={"items": several}).json()["added"] == 2
    for _ in range(2):
        assert served.found("price = 9.5") == {"one", "two", "three"}
        assert served.found("released = date('2026-05-05') and array_contains(genres, 'all')") == {"one"}
        served.restart()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"colour": "red"}, "there is no field 'colour', but like, histories, vector, title, category, name, price"),
        ({"price": "cheap"}, "item 'i05': 'price' takes numbers, not 'cheap'"),
        ({"price": {"a": 1}}, "'price' takes numbers"),
        ({"price": [1]}, "'price' takes numbers"),
        ({"price": 10**400}, "'price' takes numbers"),
        ({"new": 1}, "'new' takes true or false"),
        ({"released": "soon"}, "'released' takes dates such as 2026-12-31"),
        ({"genres": "x"}, "'genres' takes lists of text"),
        ({"genres": [["x"]]}, "'genres' takes lists of text"),
        ({"brand": 5}, "'brand' takes text"),
        ({"item": "x", "price": 1}, "there is no field 'item'"),
        ({"vector": [1.0]}, "not built from vectors"),
        ({"price": 1, "like": ["nobody"]}, "'nobody', which is not known"),
    ],
)
def test_what_is_not_valid_is_refused_and_nothing_is_changed(served, fields, words):
    def same():
        return served.journal.entries == [] and served.item("i05")["attributes"]["price"] == 5

    for method in ("PUT", "PATCH"):
        answer = served.client.request(method, "/v1/items/i05", content=json.dumps(fields))
        assert answer.status_code == 422
        assert words in answer.json()["error"]
        assert same()
    if "item" not in fields:
        items = [{"item": "i04", "price": 1}, {"item": "i05", **fields}]
        assert served.client.post("/v1/items", json={"items": items}).status_code == 422
        assert same()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_json_does_not_have_is_none(served, number):
    answer = served.client.patch("/v1/items/i05", content=f'{{"price": {number}}}')
    assert (answer.status_code == 422) == (number != "NaN")
    assert served.item("i05")["attributes"]["price"] == (None if number == "NaN" else 5)


def test_the_description_names_the_columns_and_its_examples_are_valid(served):
    described = served.client.get("/openapi.json").json()
    for name in ("Item", "NamedItem"):
        fields = described["components"]["schemas"][name]
        assert fields["additionalProperties"] is False
        assert fields["properties"]["price"]["anyOf"] == [{"type": "number"}, {"type": "null"}]
        assert fields["properties"]["genres"]["anyOf"][0]["type"] == "array"
    for path, method in (("/v1/items/{item}", "put"), ("/v1/items/{item}", "patch"), ("/v1/items", "post")):
        examples = described["paths"][path][method]["requestBody"]["content"]["application/json"]["examples"]
        for example in examples.values():
            address = path.replace("{item}", "i05")
            answer = served.client.request(method.upper(), address, json=example["value"])
            assert answer.status_code == 200, answer.text


def test_a_change_on_a_full_disk_is_not_made(served):
    served.client.patch("/v1/items/i05", json={"price": 100}).raise_for_status()
    with largest_file(served.journal.path.stat().st_size + 10):
        for method, path, body in (
            ("PATCH", "/v1/items/i05", {"price": 7}),
            ("PUT", "/v1/items/i05", {"price": 7}),
            ("POST", "/v1/items", {"items": [{"item": name, "price": 7} for name in ITEM_NAMES]}),
        ):
            assert served.client.request(method, path, json=body).status_code == 507
    for _ in range(2):
        assert served.found("price >= 100") == {"i05"}
        served.restart()


def test_changes_stay_when_another_run_is_served(served, run):
    served.client.patch("/v1/items/i05", json={"price": 100, "title": "Mine"}).raise_for_status()
    served.client.put("/v1/items/new", json={"price": 101}).raise_for_status()
    other = bt.Recommender.load(run)
    other.update_items({"i05": {"price": 1, "stock": 77}, "i06": {"price": 102}, "i07": {"brand": "y"}})
    other.save(run.with_name("other"))
    served.client.post("/v1/model", json={"run": "other"}).raise_for_status()
    for _ in range(2):
        assert served.found("price >= 100") == {"i05", "i06", "new"}
        assert served.found("stock = 77 and name = 'Mine'") == {"i05"}
        assert served.found("brand = 'y'") == {"i07"}
        served.restart()
        served.client.post("/v1/model", json={"run": "other"}).raise_for_status()


def test_changes_stay_when_the_run_is_renewed(run):
    served = Served(run, watch=0.05)
    served.client.patch("/v1/items/i05", json={"price": 100}).raise_for_status()
    served.client.put("/v1/items/new", json={"price": 101, "like": ["i33"]}).raise_for_status()
    digest = served.service.loaded.digest
    log = cyclic_log().with_columns(pl.col("user") + "b", item=pl.col("item").replace("i25", "logged"))
    renewal.renew(run, log, force=True, verbose=False)
    while served.service.loaded.digest == digest:
        time.sleep(0.05)
    for _ in range(2):
        assert served.found("price >= 100") == {"i05", "new"}
        served.client.patch("/v1/items/logged", json={"price": 7.5}).raise_for_status()
        assert served.found("price = 7.5") == {"logged"}
        served.restart()
    served.stop()


def test_a_service_without_a_table_takes_titles_and_categories(run, tmp_path):
    shop = bt.Recommender(steps=0).fit(cyclic_log(), test_users=10, verbose=False)
    shop.save(tmp_path / "bare")
    served = Served(tmp_path / "bare")
    refused = served.client.patch("/v1/items/i05", json={"price": 1})
    assert "columns need a table of the items" in refused.json()["error"]
    served.client.patch("/v1/items/i05", json={"title": "Mine"}).raise_for_status()
    assert served.found("title = 'Mine'") == {"i05"}
    assert "attributes" not in served.item("i05")
    served.stop()


# The command, for a run


def ask(run, where):
    return {*bt.Recommender.load(run).recommend(["i31"], m=99, beam_size=99, where=where)["item"]}


@pytest.fixture
def prices(tmp_path):
    rows = [("i05", 500.5, 9), ("i57", None, 9), ("new", 501.0, 9)]
    pl.DataFrame(rows, schema=["item", "price", "stock"], orient="row").write_parquet(tmp_path / "prices.parquet")
    return tmp_path / "prices.parquet"


def test_the_command_changes_a_run_in_one_step(run, prices, tmp_path):
    done = beamtree("items", "run", "prices.parquet", folder=tmp_path)
    assert done.stdout == "Added 1 and changed 2 items of run.\n"
    assert ask(run, "price > 400") == {"i05", "new"}
    assert ask(run, "price is null and stock = 9") == {"i57"}
    words = ("--history", "i31", "--m", "9", "--where", "price > 400", "--json", "found.json")
    beamtree("retrieve", "run", *words, folder=tmp_path)
    assert {row["item"] for row in json.loads((tmp_path / "found.json").read_text())} == {"i05", "new"}
    assert beamtree("check", "run", folder=tmp_path).returncode == 0
    state = (run.stat().st_ino, sorted(path.name for path in tmp_path.iterdir()))
    done = beamtree("items", "run", "prices.parquet", folder=tmp_path)
    assert done.stdout == "Added 0 and changed 0 items of run.\n"
    assert (run.stat().st_ino, sorted(path.name for path in tmp_path.iterdir())) == state


def test_new_prices_leave_the_model_and_its_tuned_beam_as_they_are(run, prices, tmp_path):
    save_tuned_beam(run, {"beam_size": [4, 8, 16]})
    pl.read_parquet(prices).filter(pl.col("item") != "new").write_parquet(prices)
    before, data = fingerprint(run), read_run(run)["data"]
    beamtree("items", "run", "prices.parquet", folder=tmp_path)
    assert (fingerprint(run), read_run(run)["data"]) == (before, data)
    assert load_tuned_beam(run) == (4, 8, 16)
    assert ask(run, "price > 400") == {"i05"}
    assert len(bt.Recommender.load(run).users) == 120


def test_a_command_that_is_stopped_leaves_the_run_as_it_was(run, prices, tmp_path, monkeypatch):
    def stop(*arguments):
        raise OSError(28, "No space left on device")

    for where, name in ((atomic, "swap"), (bt.recommender, "save_changes"), (runs, "save_table")):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, stop)
            done = beamtree("items", "run", "prices.parquet", folder=tmp_path, check=False)
            assert (done.returncode, "No space left" in done.stderr) == (2, True)
            assert ask(run, "price > 400") == set()
    beamtree("items", "run", "prices.parquet", folder=tmp_path)
    assert ask(run, "price > 400") == {"i05", "new"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prices.parquet", "run"]


def hold(folder, held, end):
    with staging.folder_lock(folder):
        held.set()
        end.wait(60)


def test_a_run_that_another_process_writes_to_is_refused(run, prices, tmp_path):
    context = multiprocessing.get_context("fork")
    held, end = context.Event(), context.Event()
    other = context.Process(target=hold, args=(run, held, end))
    other.start()
    assert held.wait(60)
    done = beamtree("items", "run", "prices.parquet", folder=tmp_path, check=False)
    end.set()
    other.join()
    assert (done.returncode, "is being written by another process" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "table", "message"),
    [
        (("none", "prices.csv"), {"item": ["i01"], "price": [1]}, "none is not a run"),
        (("run", "none.csv"), {"item": ["i01"]}, "none.csv does not exist"),
        (("run", "prices.csv"), {"item": ["i01"], "price": ["cheap"]}, "'price' takes numbers, not 'cheap'"),
        (("run", "prices.csv"), {"item": ["i01", "i01"], "price": [1, 2]}, "item 'i01' more than once"),
        (("http://127.0.0.1:1", "prices.csv"), {"item": ["i01"], "price": [1]}, "127.0.0.1:1/v1/model does not answer"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_one_line(run, tmp_path, monkeypatch, words, table, message):
    monkeypatch.setattr(item_client, "ATTEMPTS", 1)
    pl.DataFrame(table).write_csv(tmp_path / "prices.csv")
    done = beamtree("items", *words, folder=tmp_path, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr


def test_a_service_that_watches_a_run_reads_new_prices_without_another_model(run, prices, tmp_path):
    pl.read_parquet(prices).filter(pl.col("item") != "new").write_parquet(prices)
    service = make_service(run, watch=0.05)
    with serving(service) as client:

        def found():
            body = {"history": ["i31"], "m": 60, "where": "price > 400"}
            return client.post("/v1/recommend", json=body).json()["results"][0]["items"]

        assert found() == []
        beamtree("items", "run", "prices.parquet", folder=tmp_path)
        end = time.monotonic() + 60
        while not found() and time.monotonic() < end:
            time.sleep(0.05)
        assert found() == ["i05"]
    service.close()


# The command, for a service


def test_a_table_is_sent_in_batches_and_again_if_the_service_is_busy(run, tmp_path, monkeypatch):
    served = Served(run, limits=Limits(changes=7, body=1000), access=Access(read="r", change="secret"))
    monkeypatch.setattr(item_client.time, "sleep", lambda seconds: None)
    rows = [
        {"item": f"i{number:02}", "price": 100 + number, "genres": ["x"], "released": "2027-01-01"}
        for number in range(60)
    ]
    pl.DataFrame([*rows, {**rows[0], "item": "new"}]).write_parquet(tmp_path / "all.parquet")
    done = beamtree("items", served.url, "all.parquet", folder=tmp_path, check=False)
    assert (done.returncode, "BEAMTREE_CHANGE_TOKEN" in done.stderr) == (2, True)
    monkeypatch.setenv("BEAMTREE_CHANGE_TOKEN", "secret")
    busy, original = iter([True, False] * 100), served.service.change

    async def change(*arguments):
        if next(busy):
            raise served.service._rejection("queue_full", 429, "too many requests are waiting")
        return await original(*arguments)

    monkeypatch.setattr(served.service, "change", change)
    done = beamtree("items", served.url, "all.parquet", folder=tmp_path)
    assert done.stdout == f"Added 1 and changed 60 items of {served.url}.\n"
    assert "61 of 61 items" in done.stderr
    served.client.headers["Authorization"] = "Bearer secret"
    assert served.found("price >= 100 and released = date('2027-01-01')") == {*ITEM_NAMES, "new"}
    lines = served.journal.path.read_bytes().count(b"\n")
    assert lines == 9
    done = beamtree("items", served.url, "all.parquet", folder=tmp_path)
    assert "Added 0 and changed 0" in done.stdout
    assert served.journal.path.read_bytes().count(b"\n") == lines
    served.stop()


def test_a_column_that_the_service_does_not_have_is_refused_before_anything_is_sent(served, tmp_path):
    pl.DataFrame({"item": ["i01"], "colour": ["red"]}).write_csv(tmp_path / "items.csv")
    done = beamtree("items", served.url, "items.csv", folder=tmp_path, check=False)
    assert "the service has no column 'colour' of its items, but title, category, name, price" in done.stderr
    assert served.journal.entries == []


def test_a_command_that_breaks_off_says_how_far_it_came_and_can_be_repeated(run, tmp_path):
    served = Served(run, limits=Limits(changes=20))
    pl.DataFrame({"item": [*ITEM_NAMES, "\u200b"], "price": [100] * 61}).write_csv(tmp_path / "items.csv")
    done = beamtree("items", served.url, "items.csv", folder=tmp_path, check=False)
    assert "after 60 of 61 items" in done.stderr
    assert "can be repeated" in done.stderr
    pl.DataFrame({"item": ITEM_NAMES, "price": [100] * 60}).write_csv(tmp_path / "items.csv")
    done = beamtree("items", served.url, "items.csv", folder=tmp_path)
    assert "Added 0 and changed 0" in done.stdout
    served.stop()


def test_what_is_no_service_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(item_client, "ATTEMPTS", 1)
    import http.server
    import threading

    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    pl.DataFrame({"item": ["i01"], "price": [1]}).write_csv(tmp_path / "items.csv")
    done = beamtree("items", f"http://127.0.0.1:{server.server_port}", "items.csv", folder=tmp_path, check=False)
    assert "is it a service of beamtree?" in done.stderr
    server.shutdown()
    server.server_close()
    thread.join()

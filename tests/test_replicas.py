"""One service makes changes, and others follow them: what they have, what they refuse, and what they say."""

import contextlib
import threading
import time
from functools import partial

import httpx
import pytest
from command import beamtree, wait_for
from journal_changes import failing
from serving import make_service, open_shop, save_run, serving

from beamtree.files.staging import InUseError
from beamtree.live import Journal, following, journal
from beamtree.live.following import POSITION, FolderChanges, Heartbeat, UrlChanges, open_changes
from beamtree.live.journal import CHANGES, encode_line, file_id
from beamtree.serve.engine import follower as follower_module
from beamtree.serve.engine.follower import Follower
from beamtree.serve.engine.served_run import last_served_run
from beamtree.serve.http.access import Access

PATIENCE = 60.0  # seconds; that it takes less than two is measured in benchmarks


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with two runs, and followers that notice things soon."""
    for name, seconds in (("WAIT_SECONDS", 0.1), ("AWAY_SECONDS", 0.8), ("REOPEN_SECONDS", 0.2)):
        monkeypatch.setattr(follower_module, name, seconds)
    monkeypatch.setattr(following, "BEAT_SECONDS", 0.05)
    save_run(tmp_path / "one")
    save_run(tmp_path / "two", seed=1)
    return tmp_path


@contextlib.contextmanager
def writing(place, run="one", **how):
    """A writer: its client, with the journal."""
    log = Journal(place / "changes")
    folder = place / run
    service = make_service(
        folder, partial(open_shop, journal=log), first=last_served_run(folder, log), journal=log, **how
    )
    with contextlib.closing(log), serving(service) as client:
        client.journal, client.service = log, service
        heart = Heartbeat(place / "changes", str(client.base_url))
        try:
            yield client
        finally:
            heart.close()


@contextlib.contextmanager
def reading(place, source, run="one", token=None, **how):
    """A reader: its client."""
    folder = place / run
    follower = Follower(folder, partial(open_shop, follows=True), partial(open_changes, str(source), token))
    service = make_service(folder, follower=follower, **how)
    with serving(service) as client:
        client.service = service
        yield client


@pytest.fixture
def trio(place):
    """A writer, a reader of its folder, and one of its address."""
    with writing(place) as writer, reading(place, place / "changes") as one, reading(place, writer.base_url) as other:
        yield writer, one, other


def about(client):
    return client.get("/v1/model").json()


def state_of(client):
    """What readers of one journal must agree on."""
    model = about(client)
    users = {user: client.get(f"/v1/users/{user}").json() for user in ("ann", "bob")}
    items = client.get("/v1/items", params={"limit": 100}).json()
    return model["version"], model["run"], model["items"], sorted(map(str, items["items"])), users


def agree(*clients):
    """Wait until all have the state of the first."""
    wait_for(lambda: len({str(state_of(client)) for client in clients}) == 1)


def follows(client):
    return client.get("/readyz").json()["follows"]


def metric(client, name):
    (line,) = [line for line in client.get("/metrics").text.splitlines() if line.startswith(f"beamtree_{name} ")]
    return float(line.split()[1])


def found(client, item):
    reply = client.post("/v1/recommend", json={"history": ["i1", "i2"], "m": 1, "allowed": [item]})
    assert reply.status_code == 200
    return bool(reply.json()["results"][0]["items"])


def test_an_item_hidden_at_the_writer_is_gone_from_every_replica(trio):
    writer, *readers = trio
    writer.delete("/v1/items/i7").raise_for_status()
    for reader in readers:
        wait_for(lambda reader=reader: not found(reader, "i7"))
    writer.put("/v1/items/i7").raise_for_status()
    for reader in readers:
        wait_for(lambda reader=reader: found(reader, "i7"))


def test_replicas_have_all_that_changes_at_the_writer(trio):
    writer, *readers = trio
    writer.put("/v1/items/new", json={"like": ["i5"], "title": "New"}).raise_for_status()
    several = [{"item": "first", "like": ["new"]}, {"item": "second", "like": ["first"], "category": "Films"}]
    writer.post("/v1/items", json={"items": several}).raise_for_status()
    writer.delete("/v1/items/i9", params={"forget": "true"}).raise_for_status()
    for user, items in (("ann", ["i1", "new"]), ("bob", ["i3"])):
        writer.post("/v1/events", json={"user": user, "items": items, "time": "2026-03-01"}).raise_for_status()
    agree(writer, *readers)
    writer.post("/v1/model", json={"run": "two"}).raise_for_status()
    writer.delete("/v1/events", params={"before": "2027-01-01"}).raise_for_status()
    agree(writer, *readers)
    for reader in readers:
        assert about(reader)["run"] == "two"
        assert metric(reader, "changes_behind") == 0
        assert [each["item"] for each in reader.get("/v1/users/ann").json().get("history", [])] == []


def test_a_replica_that_starts_later_has_everything_before_it_is_ready(place):
    with writing(place) as writer:
        writer.delete("/v1/items/i7").raise_for_status()
        writer.post("/v1/model", json={"run": "two"}).raise_for_status()
        for source in (place / "changes", writer.base_url):
            with reading(place, source) as reader:
                assert state_of(reader) == state_of(writer)
                assert not found(reader, "i7")


def test_changes_sent_to_a_replica_are_refused_and_the_writer_is_named(trio):
    writer, *readers = trio
    changes = [
        ("PUT", "/v1/items/new", {"like": ["i5"]}),
        ("POST", "/v1/items", {"items": [{"item": "new"}]}),
        ("DELETE", "/v1/items/i9", None),
        ("POST", "/v1/events", {"user": "ann", "items": ["i3"]}),
        ("DELETE", "/v1/events?before=5", None),
        ("POST", "/v1/model", {"run": "two"}),
    ]
    before = state_of(writer)
    for reader in readers:
        for method, path, body in changes:
            reply = reader.request(method, path, json=body)
            assert reply.status_code == 409, path
            assert str(writer.base_url).rstrip("/") in reply.json()["hint"]
        assert "follow" in reader.get("/v1/changes").json()["hint"]
        assert state_of(reader) == before


def test_a_replica_whose_writer_is_away_answers_and_says_so_and_goes_on_when_it_is_back(place):
    with contextlib.ExitStack() as stack:
        with writing(place) as writer:
            port = writer.port
            readers = [stack.enter_context(reading(place, each)) for each in (place / "changes", writer.base_url)]
            writer.delete("/v1/items/i7").raise_for_status()
            agree(writer, *readers)
            for reader in readers:
                wait_for(lambda reader=reader: follows(reader)["connected"])
                assert metric(reader, "writer_connected") == 1
                assert follows(reader)["away_since"] is None
        gone = time.time()
        for reader in readers:
            wait_for(lambda reader=reader: not follows(reader)["connected"])
            reply = reader.get("/readyz")
            assert (reply.status_code, reply.json()["ready"]) == (200, True)
            assert abs(reply.json()["follows"]["away_since"] - gone) < PATIENCE
            assert metric(reader, "writer_connected") == 0
            assert metric(reader, "writer_silent_seconds") > 0.7
            assert found(reader, "i8")
            assert not found(reader, "i7")
            assert str(port) in about(reader)["follows"]["writer"]
        with writing_at(place, port) as writer:
            writer.delete("/v1/items/i8").raise_for_status()
            agree(writer, *readers)
            for reader in readers:
                wait_for(lambda reader=reader: follows(reader)["connected"])


@contextlib.contextmanager
def writing_at(place, port):
    """A writer at the port of another that has ended."""
    from beamtree.serve.http.server import listen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serving.listen", lambda host, _: listen(host, port))
        with writing(place) as writer:
            yield writer


def is_in_present_file(reader, log):
    position = reader.service.follower._position
    with log.path.open("rb") as file:
        return position is not None and position.split(":")[0] == file_id(file)


def test_a_replica_at_the_end_of_a_file_needs_no_new_run_when_it_is_compacted(place, monkeypatch):
    monkeypatch.setattr(journal, "COMPACT_FROM", 10)
    with writing(place) as writer, reading(place, place / "changes") as one, reading(place, writer.base_url) as other:
        for number in range(60):
            files = writer.journal.entries
            writer.post("/v1/events", json={"user": "ann", "items": [f"i{number}"]}).raise_for_status()
            if writer.journal.entries is not files:
                wait_for(lambda: all(is_in_present_file(reader, writer.journal) for reader in (one, other)))
        agree(writer, one, other)
        for reader in (one, other):
            assert about(reader)["last_reload"] is None


def test_a_replica_that_missed_a_file_opens_its_run_again_and_no_request_fails(place, monkeypatch):
    monkeypatch.setattr(journal, "COMPACT_FROM", 10)
    with writing(place) as writer, reading(place, place / "changes") as one, reading(place, writer.base_url) as other:
        writer.delete("/v1/items/i5").raise_for_status()
        agree(writer, one, other)
        with pause(monkeypatch):
            for number in range(60):
                writer.post("/v1/events", json={"user": "ann", "items": [f"i{number}"]}).raise_for_status()
            writer.delete("/v1/items/i7").raise_for_status()
        for reader in (one, other):
            wait_for(lambda reader=reader: found(reader, "i8") and about(reader)["last_reload"])
        agree(writer, one, other)
        assert not found(one, "i7")


@contextlib.contextmanager
def pause(monkeypatch):
    """Readers that hear nothing."""
    with monkeypatch.context() as patch:
        for kind in (FolderChanges, UrlChanges):
            patch.setattr(kind, "read", failing(5))
        time.sleep(0.5)  # until none is waiting any more
        yield


def test_changes_that_come_while_a_run_is_opened_are_seen_at_once_and_after(place, monkeypatch):
    opened, go_on = threading.Event(), threading.Event()

    def slow(run, **how):
        if opened.is_set():
            assert go_on.wait(PATIENCE)
        opened.set()
        return open_shop(run, **how)

    follower = Follower(place / "one", partial(slow, follows=True), partial(open_changes, str(place / "changes")))
    with writing(place) as writer, serving(make_service(place / "one", follower=follower)) as reader:
        writer.post("/v1/model", json={"run": "two"}).raise_for_status()
        writer.delete("/v1/items/i7").raise_for_status()
        wait_for(lambda: not found(reader, "i7"))
        assert about(reader)["run"] == "one"
        go_on.set()
        agree(writer, reader)
        assert about(reader)["run"] == "two"
        assert not found(reader, "i7")


def test_a_replica_without_the_run_of_the_writer_goes_on_with_its_own_and_says_so(place):
    other = place / "elsewhere"
    save_run(other / "one")
    with writing(place) as writer, reading(other, writer.base_url, watch=0.1) as reader:
        writer.post("/v1/model", json={"run": "two"}).raise_for_status()
        writer.delete("/v1/items/i7").raise_for_status()
        wait_for(lambda: not found(reader, "i7"))
        assert about(reader)["run"] == "one"
        assert about(reader)["follows"]["note"] == "the writer serves two, and this service goes on with one"
        save_run(other / "two", seed=1)
        agree(writer, reader)
        assert about(reader)["follows"]["note"] is None


def test_a_run_that_is_not_complete_is_opened_until_it_is(place):
    other = place / "elsewhere"
    save_run(other / "one")
    (other / "two").mkdir()
    with writing(place) as writer, reading(other, writer.base_url) as reader:
        writer.post("/v1/model", json={"run": "two"}).raise_for_status()
        writer.delete("/v1/items/i7").raise_for_status()
        wait_for(lambda: (about(reader)["last_reload"] or {}).get("error"))
        assert about(reader)["run"] == "one"
        wait_for(lambda: not found(reader, "i7"))
        save_run(other / "two", seed=1)
        agree(writer, reader)
        wait_for(lambda: about(reader)["follows"]["note"] is None)


def test_a_writer_that_starts_with_another_version_of_its_run_tells_its_replicas(place):
    with contextlib.ExitStack() as stack:
        with writing(place) as writer:
            port = writer.port
            writer.post("/v1/model", json={"run": "one"}).raise_for_status()
            reader = stack.enter_context(reading(place, place / "changes"))
            agree(writer, reader)
        before = about(reader)["version"]
        save_run(place / "one", seed=2)
        with writing_at(place, port) as writer:
            agree(writer, reader)
            assert about(reader)["version"].split(".")[0] != before.split(".")[0]
            assert about(reader)["follows"]["note"] is None


def test_a_run_that_takes_the_place_of_one_is_served_by_replicas_that_watch(place):
    with writing(place, watch=0.1) as writer, reading(place, place / "changes", watch=0.1) as reader:
        writer.delete("/v1/items/i7").raise_for_status()
        before = about(reader)["version"].split(".")[0]
        save_run(place / "one", seed=2)
        wait_for(lambda: about(reader)["version"].split(".")[0] != before)
        agree(writer, reader)
        assert not found(reader, "i7")


def test_a_change_that_the_disk_refused_after_a_replica_saw_it_is_taken_back(place, monkeypatch):
    with writing(place) as writer, reading(place, place / "changes") as reader:
        with monkeypatch.context() as patch:
            # It is on the disk until the replica has it, and then cannot be flushed.
            patch.setattr(journal.os, "fsync", failing(5, lambda _: wait_for(lambda: seen or not found(reader, "i7"))))
            seen = []
            assert writer.delete("/v1/items/i7").status_code == 503
            seen.append(True)
        wait_for(lambda: found(reader, "i7"))
        agree(writer, reader)


def test_changes_of_a_newer_version_are_not_applied_and_the_replica_says_so(place, monkeypatch):
    with writing(place) as writer, reading(place, place / "changes") as reader:
        writer.delete("/v1/items/i7").raise_for_status()
        agree(writer, reader)
        writer.journal.append({"kind": "unheard of"})
        wait_for(lambda: "newer beamtree" in str(about(reader)["follows"]["note"]))
        assert (found(reader, "i8"), found(reader, "i7")) == (True, False)
        wait_for(lambda: "newer beamtree" in str((about(reader)["last_reload"] or {}).get("error")))
        with pytest.raises(ValueError, match="newer beamtree"), reading(place, place / "changes"):
            pass


def test_damaged_changes_are_not_applied_and_the_replica_says_so(place):
    with writing(place) as writer, reading(place, place / "changes") as reader:
        line = bytearray(encode_line({"kind": "remove", "item": "i7"}))
        line[-5] ^= 1
        whole = writer.journal.path.read_bytes()
        with writer.journal.path.open("ab") as file:
            file.write(line)
        wait_for(lambda: "damaged" in str(about(reader)["follows"]["note"]))
        assert found(reader, "i7")
        writer.journal.path.write_bytes(whole)
        wait_for(lambda: about(reader)["follows"]["note"] is None)


# Over HTTP


def test_changes_over_http_need_the_token_for_changes(place):
    access = Access("read", "change", open_changes=False)
    with writing(place, access=access) as writer:
        statuses = [
            writer.get("/v1/changes", headers={"authorization": f"Bearer {token}"}).status_code
            for token in ("other", "read", "change")
        ]
        assert statuses == [401, 401, 200]
        for token in (None, "read"):
            with pytest.raises(ValueError, match="set BEAMTREE_CHANGE_TOKEN to the same token on both"):
                UrlChanges(str(writer.base_url), token).read("")
        with reading(place, writer.base_url, token="change") as reader:
            writer.delete("/v1/items/i7", headers={"authorization": "Bearer change"}).raise_for_status()
            wait_for(lambda: not found(reader, "i7"))


def test_changes_are_read_from_a_position_on_and_one_that_is_gone_is_refused(place, monkeypatch):
    monkeypatch.setattr(journal, "COMPACT_FROM", 4)
    with writing(place) as writer:
        position, content = "", b""
        for item in ("i1", "i2", "i3"):
            writer.delete(f"/v1/items/{item}").raise_for_status()
            reply = writer.get("/v1/changes", params={"position": position})
            position, content = reply.headers[POSITION], content + reply.content
        assert content == (place / "changes" / CHANGES).read_bytes()
        start = time.monotonic()
        reply = writer.get("/v1/changes", params={"position": position, "wait": 0.3})
        assert (reply.content, reply.headers[POSITION]) == (b"", position)
        assert time.monotonic() - start > 0.25
        for item in range(4, 20):
            writer.delete(f"/v1/items/i{item}").raise_for_status()
        reply = writer.get("/v1/changes", params={"position": position})
        assert (reply.status_code, sorted(reply.json())) == (410, ["error", "hint"])
        for bad in ({"position": "x"}, {"wait": -1}, {"wait": 1000}):
            assert writer.get("/v1/changes", params=bad).status_code == 422


def test_a_question_that_waits_is_answered_as_soon_as_there_is_a_change(place):
    with writing(place) as writer:
        start, change = time.monotonic(), threading.Timer(0.2, writer.delete, ["/v1/items/i7"])
        change.start()
        with httpx.Client(base_url=writer.base_url, timeout=60) as client:
            assert b"i7" in client.get("/v1/changes", params={"wait": 30}).content
        assert time.monotonic() - start < 25
        change.join()


def test_a_service_without_changes_has_none_to_follow(place):
    with serving(make_service(place / "one")) as client:
        reply = client.get("/v1/changes")
        assert (reply.status_code, "--changes" in reply.json()["hint"]) == (409, True)
        with pytest.raises(ValueError, match="gives no changes to follow: this service is read-only"):
            UrlChanges(str(client.base_url)).read("")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--changes", "changes", "--follow", "changes"],
            "--changes and --follow: a service makes changes, or follows those of another",
        ),
        (["--follow", "nothing"], "nothing is not a folder: start the writer with it first"),
        (
            ["--follow", "ftp://writer"],
            "'ftp://writer' is not the address of a writer: give http://HOST:PORT, or a folder",
        ),
    ],
)
def test_what_cannot_be_followed_is_told_in_one_line(place, words, message):
    done = beamtree("serve", "one", "--port", "0", *words, folder=place, check=False)
    assert (done.returncode, done.stderr) == (2, f"beamtree: {message}\n")


def test_a_second_writer_is_told_to_follow(place, monkeypatch):
    monkeypatch.setattr(journal, "folder_lock", in_use)
    done = beamtree("serve", "one", "--port", "0", "--changes", "changes", folder=place, check=False)
    message = "beamtree: changes has the changes of another service: --follow them instead\n"
    assert (done.returncode, done.stderr) == (2, message)


def in_use(folder):
    raise InUseError(folder)

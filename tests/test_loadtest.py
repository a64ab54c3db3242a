"""`beamtree bench-serve` against a tiny service in a thread: counts, errors, latency from when a request was due."""

import asyncio
import contextlib
import json
import socket
import statistics
import threading
import time
from itertools import pairwise

import pytest
from command import beamtree
from hypothesis import given
from hypothesis import strategies as st

from beamtree.loadtest import Reply, Report, arrivals, load
from beamtree.loadtest.client import Client
from beamtree.loadtest.open_loop import histories_of, percentile

ITEMS = {"items": [{"item": f"i{number}"} for number in range(30)]}


@contextlib.contextmanager
def serving(answer):
    """A service in a thread: `answer(request)` gives the bytes of an answer, or None to hang up.

    Gives its address, and the requests it got as (method, path, headers, body).
    """
    got, ready, ended = [], threading.Event(), []

    async def handle(reader, writer):
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                words = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = await reader.readexactly(int(words["content-length"]))
                method, path, _ = head.split("\r\n")[0].split()
                got.append((method, path, words, json.loads(body) if body else None))
                said = answer(got[-1])
                said = await said if asyncio.iscoroutine(said) else said
                if said is None:
                    break
                writer.write(said)
                await writer.drain()

    async def run():
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        ended.extend((asyncio.get_running_loop(), asyncio.Event(), server.sockets[0].getsockname()[1]))
        ready.set()
        await ended[1].wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{ended[2]}", got
    finally:
        ended[0].call_soon_threadsafe(ended[1].set)
        thread.join()


def said(content, status=200, more=""):
    body = json.dumps(content).encode()
    return f"HTTP/1.1 {status} Any\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def plain(request):
    return said(ITEMS if request[0] == "GET" else {"results": [], "degraded": None})


# When requests are due


@given(st.floats(1, 500), st.floats(0.1, 5), st.integers(0, 99))
def test_arrivals_are_in_order_within_the_time_and_the_same_for_a_seed(rate, seconds, seed):
    due = arrivals(rate, seconds, seed=seed)
    assert due == sorted(due) == arrivals(rate, seconds, seed=seed)
    assert all(0 <= at < seconds for at in due)
    even = arrivals(rate, seconds, constant=True)
    assert even == [pytest.approx(number / rate) for number in range(len(even))]
    assert abs(len(even) - rate * seconds) <= 1


def test_arrivals_by_chance_are_a_poisson_process():
    """As many as asked, with gaps that spread as much as they last: both to four standard errors."""
    due = arrivals(100, 100, seed=1)
    gaps = [after - before for before, after in pairwise(due)]
    assert len(due) == pytest.approx(10_000, abs=400)
    assert statistics.stdev(gaps) == pytest.approx(0.01, rel=0.06)


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (-1, 1), (1, 0), (float("nan"), 1), (1, float("inf"))])
def test_a_rate_that_cannot_be_is_refused(rate, seconds):
    with pytest.raises(ValueError, match="give numbers above 0"):
        arrivals(rate, seconds)


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values, share):
    found = percentile(values, share)
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    lower = [value for value in values if value < found]
    assert not lower or sum(value <= max(lower) for value in values) < share * len(values)


def test_histories_are_of_the_items_and_the_same_for_a_seed():
    found = histories_of(["a", "b"], 5, length=3, seed=2)
    assert found == histories_of(["a", "b"], 5, length=3, seed=2)
    assert [len(each) for each in found] == [3] * 5
    assert {item for each in found for item in each} <= {"a", "b"}


# Against a service


def test_every_request_is_sent_and_counted():
    heard = []
    with serving(plain) as (url, got):
        found = load(url, rate=200, seconds=0.25, asked={"m": 3}, constant=True, token="secret", on_reply=heard.append)
    posts = [request for request in got if request[0] == "POST"]
    assert len(found.replies) == len(posts) == sum(heard) == 50
    assert {path for _, path, _, _ in posts} == {"/v1/recommend"}
    assert {words["authorization"] for _, _, words, _ in posts} == {"bearer secret"}
    assert all(body["m"] == 3 and len(body["history"]) == 20 for *_, body in posts)
    numbers = found.as_dict()
    assert (numbers["sent"], numbers["answered"], numbers["errors"], numbers["degraded"]) == (50, 50, {}, 0)
    assert 0 < numbers["p50_ms"] <= numbers["p95_ms"] <= numbers["p99_ms"] <= numbers["max_ms"]
    assert [reply.due for reply in found.replies] == arrivals(200, 0.25, constant=True)


def test_connections_are_kept():
    ports = set()

    def answer(request):
        return plain(request)

    with serving(answer) as (url, _):

        async def ask():
            client = Client(url)
            for _ in range(5):
                assert await client.ask(client.request("GET", "/v1/items")) == (200, json.dumps(ITEMS).encode())
                (connection,) = client._idle
                ports.add(connection._transport.get_extra_info("sockname"))
            client.close()

        asyncio.run(ask())
    assert len(ports) == 1


def test_errors_are_counted_by_code_and_degraded_answers_by_share():
    kinds = {
        "better": said({"degraded": None}), "false": said({"degraded": False}),
        "worse": said({"degraded": {"beam_size": 50}}), "true": said({"degraded": True}),
        "429": said({"error": "too many"}, 429, "Retry-After: 1\r\n"), "503": said({}, 503), "hang up": None,
    }  # fmt: skip
    given_out = []

    def answer(request):
        if request[0] == "GET":
            return plain(request)
        given_out.append(list(kinds)[len(given_out) % len(kinds)])
        return kinds[given_out[-1]]

    with serving(answer) as (url, _):
        found = load(url, rate=100, seconds=0.7, asked={}, constant=True)
    counts = {kind: given_out.count(kind) for kind in kinds}
    assert counts["429"] >= 10
    assert (found.errors["429"], found.errors["503"]) == (counts["429"], counts["503"])
    assert set(found.errors) <= {"429", "503", "connection"}  # who hangs up on a kept connection is asked once more
    assert len(found.answered) + sum(found.errors.values()) == len(found.replies) == 70
    degraded = counts["worse"] + counts["true"]
    assert found.as_dict()["degraded"] == degraded / (degraded + counts["better"] + counts["false"])


def test_latency_counts_from_when_a_request_was_due():
    """A service that answers nobody before a moment owes each of them the whole time from its own moment on."""
    started = []

    async def stall(request):
        if request[0] == "GET":
            return plain(request)
        started.append(time.monotonic())
        await asyncio.sleep(max(0.0, started[0] + 0.3 - time.monotonic()))
        return plain(request)

    with serving(stall) as (url, _):
        found = load(url, rate=100, seconds=0.2, asked={}, constant=True)
    assert len(found.answered) == 20
    for reply in found.replies:
        assert reply.due + reply.latency >= 0.299
        assert reply.latency >= 0.299 - reply.due


def test_a_client_with_no_room_left_charges_the_wait_too(monkeypatch):
    """With one connection and answers that take 20 ms each, the tenth is 200 ms after the first was due."""
    monkeypatch.setattr("beamtree.loadtest.client.CONNECTIONS", 1)

    async def slow(request):
        if request[0] == "POST":
            await asyncio.sleep(0.02)
        return plain(request)

    with serving(slow) as (url, _):
        found = load(url, rate=1000, seconds=0.01, asked={}, constant=True)
    ends = sorted(reply.due + reply.latency for reply in found.replies)
    assert all(end >= 0.019 * (place + 1) for place, end in enumerate(ends))


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4;x=y\r\n":1}\r\n0\r\n\r\n',
        b'HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{"a":1}',
        b'HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length:7\r\n\r\n{"a":1}',
    ],
    ids=["chunks", "until the end", "closing"],
)
def test_answers_are_read_however_long_they_say_they_are(answer):
    async def ask():
        async def handle(reader, writer):
            with contextlib.closing(writer):
                await reader.readuntil(b"\r\n\r\n")
                for start in range(0, len(answer), 5):
                    writer.write(answer[start : start + 5])
                    await writer.drain()
                    await asyncio.sleep(0)
                if b"lose" not in answer:
                    await reader.read()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        client = Client(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        found = await client.ask(client.request("GET", "/"))
        kept = len(client._idle)
        client.close()
        server.close()
        return found, kept

    found, kept = asyncio.run(ask())
    assert found == (200, b'{"a":1}')
    assert kept == (0 if b"lose" in answer else 1)


def test_a_service_that_does_not_answer_in_time_is_a_timeout():
    async def ask():
        async def handle(reader, writer):
            with contextlib.closing(writer):
                await reader.read()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        client = Client(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout=0.05)
        with pytest.raises(TimeoutError):
            await client.ask(client.request("GET", "/"))
        assert not client._idle
        server.close()

    asyncio.run(ask())


def nobody():
    """An address where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize(
    ("url", "message"),
    [("ftp://here", "is no address"), ("http://", "is no address"), ("http://a:b", "is no address"), (None, "answer")],
)
def test_where_no_service_is_that_is_said(url, message):
    with pytest.raises(ValueError, match=message):
        load(url or nobody(), rate=10, seconds=0.1, asked={})


def test_what_is_no_service_of_ours_is_said():
    for answer in (
        said({"error": "no"}, 404),
        said([1]),
        said({"items": []}),
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{",
    ):
        with (
            serving(lambda request, answer=answer: answer) as (url, _),
            pytest.raises(ValueError, match=r"beamtree serve|no items"),
        ):
            load(url, rate=10, seconds=0.1, asked={})


def test_a_report_without_answers_has_no_percentiles():
    found = Report(1, 1, (Reply(0.0, 0.0, 0.1, "503", False),)).as_dict()
    assert (found["p99_ms"], found["degraded"], found["answered"]) == (None, 0.0, 0)


# The command


def test_the_command_prints_writes_and_draws(tmp_path):
    (tmp_path / "histories.txt").write_text('i1 i2\n\n["a b", "c"]\n')
    words = ("--rate", "40", "--seconds", "0.5", "--m", "7", "--beam-size", "20,30", "--history", "histories.txt")
    with serving(plain) as (url, got):
        done = beamtree("bench-serve", url, *words, "--json", "n.json", "--plot", "n.png", folder=tmp_path)
    assert {tuple(body["history"]) for *_, body in got} == {("i1", "i2"), ("a b", "c")}
    assert all((body["m"], body["beam_size"]) == (7, [20, 30]) for *_, body in got)
    numbers = json.loads((tmp_path / "n.json").read_text())
    assert numbers["sent"] == numbers["answered"] == len(got)
    assert (numbers["url"], numbers["m"]) == (url, 7)
    assert (tmp_path / "n.png").exists()
    assert "p99" in done.stdout
    assert f"{len(got)} of {len(got)} requests" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate", "0"], "--rate 0 for --seconds 10: give numbers above 0"),
        (["--history", "none.txt"], "none.txt is no file of histories"),
        (["--history", "empty.txt"], "empty.txt holds no history"),
        (["--beam-size", "wide"], "--beam-size 'wide'"),
        (["--json", "/proc/no/n.json"], "/proc/no"),
        (["--seconds", "0.1"], "does not answer: start the service with"),
    ],
)
def test_a_users_error_is_one_line(tmp_path, words, message):
    (tmp_path / "empty.txt").write_text("\n")
    done = beamtree("bench-serve", nobody(), *words, folder=tmp_path, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr

"""`load_test.py` against a tiny service in a thread: counts, errors, latency from when a request was due."""

import asyncio
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import load_test as script
import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_test import Reply, Report, arrivals, load_test, percentile, random_histories

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "speed" / "load_test.py"
ITEMS = {"items": [{"item": f"i{number}"} for number in range(30)]}


@contextlib.contextmanager
def serving(answer):
    """A service in a thread: `answer(request)` gives the bytes of a response, or None to hang up.

    Gives its URL, and the requests it got as (method, path, headers, body).
    """
    got, ready, server_state = [], threading.Event(), []

    async def handle(reader, writer):
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, path, _ = head.split("\r\n")[0].split()
                got.append((method, path, headers, json.loads(body) if body else None))
                reply = answer(got[-1])
                reply = await reply if asyncio.iscoroutine(reply) else reply
                if reply is None:
                    break
                writer.write(reply)
                await writer.drain()

    async def run():
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        server_state.extend((asyncio.get_running_loop(), asyncio.Event(), server.sockets[0].getsockname()[1]))
        ready.set()
        await server_state[1].wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{server_state[2]}", got
    finally:
        server_state[0].call_soon_threadsafe(server_state[1].set)
        thread.join()


def response(content, status=200, more=""):
    body = json.dumps(content).encode()
    return f"HTTP/1.1 {status} Any\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def plain(request):
    return response(ITEMS if request[0] == "GET" else {"results": [], "degraded": None})


# When requests are due


@given(st.floats(1, 500), st.floats(0.1, 5), st.integers(0, 99))
def test_arrivals_are_in_order_within_the_time_and_the_same_for_a_seed(rate, seconds, seed):
    due = arrivals(rate, seconds, seed=seed)
    assert due == sorted(due) == arrivals(rate, seconds, seed=seed)
    assert all(0 <= at < seconds for at in due)
    even = arrivals(rate, seconds, constant=True)
    assert even == [pytest.approx(number / rate) for number in range(len(even))]
    assert abs(len(even) - rate * seconds) <= 1


def test_arrivals_are_a_poisson_process():
    """The expected number of arrivals, and gaps with a standard deviation equal to their mean."""
    due = arrivals(100, 100, seed=1)
    gaps = [after - before for before, after in pairwise(due)]
    assert len(due) == pytest.approx(10_000, abs=400)
    assert statistics.stdev(gaps) == pytest.approx(0.01, rel=0.06)


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (-1, 1), (1, 0), (float("nan"), 1), (1, float("inf"))])
def test_an_impossible_rate_is_refused(rate, seconds):
    with pytest.raises(ValueError, match="must be above 0"):
        arrivals(rate, seconds)


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_the_smallest_value_that_the_share_does_not_exceed(values, share):
    result = percentile(values, share)
    assert sum(value <= result for value in values) >= share * len(values) - 1e-9
    lower = [value for value in values if value < result]
    assert not lower or sum(value <= max(lower) for value in values) < share * len(values)


def test_histories_are_of_the_items_and_the_same_for_a_seed():
    histories = random_histories(["a", "b"], 5, length=3, seed=2)
    assert histories == random_histories(["a", "b"], 5, length=3, seed=2)
    assert [len(each) for each in histories] == [3] * 5
    assert {item for each in histories for item in each} <= {"a", "b"}


# Against a service


def test_every_request_is_sent_and_counted():
    with serving(plain) as (url, got):
        report = load_test(url, rate=200, seconds=0.25, options={"m": 3}, constant=True, token="secret")
    posts = [request for request in got if request[0] == "POST"]
    assert len(report.replies) == len(posts) == 50
    assert {path for _, path, _, _ in posts} == {"/v1/recommend"}
    assert {headers["authorization"] for _, _, headers, _ in posts} == {"bearer secret"}
    assert all(body["m"] == 3 and len(body["history"]) == 20 for *_, body in posts)
    numbers = report.as_dict()
    assert (numbers["sent"], numbers["answered"], numbers["errors"], numbers["degraded"]) == (50, 50, {}, 0)
    assert 0 < numbers["p50_ms"] <= numbers["p95_ms"] <= numbers["p99_ms"] <= numbers["max_ms"]
    assert [reply.due for reply in report.replies] == arrivals(200, 0.25, constant=True)


def test_errors_are_counted_by_status_and_degraded_answers_by_share():
    kinds = {
        "null": response({"degraded": None}), "false": response({"degraded": False}),
        "object": response({"degraded": {"beam_size": 50}}), "true": response({"degraded": True}),
        "429": response({"error": "too many"}, 429, "Retry-After: 1\r\n"), "503": response({}, 503), "hang up": None,
    }  # fmt: skip
    given_out = []

    def answer(request):
        if request[0] == "GET":
            return plain(request)
        given_out.append(list(kinds)[len(given_out) % len(kinds)])
        return kinds[given_out[-1]]

    with serving(answer) as (url, _):
        report = load_test(url, rate=100, seconds=0.7, options={}, constant=True)
    counts = {kind: given_out.count(kind) for kind in kinds}
    assert (report.errors["429"], report.errors["503"]) == (counts["429"], counts["503"])
    assert report.errors["connection"] >= counts["hang up"]  # also those sent on a connection that was just closed
    assert set(report.errors) == {"429", "503", "connection"}
    assert len(report.answered) + sum(report.errors.values()) == len(report.replies) == 70
    degraded = counts["object"] + counts["true"]
    assert report.as_dict()["degraded"] == degraded / (degraded + counts["null"] + counts["false"])


def test_latency_counts_from_when_a_request_was_due():
    """If a service answers nobody before some moment, each request is charged from its own due time to that moment."""
    started = []

    async def stall(request):
        if request[0] == "GET":
            return plain(request)
        started.append(time.monotonic())
        await asyncio.sleep(max(0.0, started[0] + 0.3 - time.monotonic()))
        return plain(request)

    with serving(stall) as (url, _):
        report = load_test(url, rate=100, seconds=0.2, options={}, constant=True)
    assert len(report.answered) == 20
    for reply in report.replies:
        assert reply.latency >= 0.299 - reply.due


def test_waiting_for_a_free_connection_counts_as_latency(monkeypatch):
    """With one connection and answers that take 20 ms each, the tenth is 200 ms after the first was due."""
    monkeypatch.setattr(script, "CONNECTIONS", 1)

    async def slow(request):
        if request[0] == "POST":
            await asyncio.sleep(0.02)
        return plain(request)

    with serving(slow) as (url, _):
        report = load_test(url, rate=1000, seconds=0.01, options={}, constant=True)
    ends = sorted(reply.due + reply.latency for reply in report.replies)
    assert all(end >= 0.019 * (number + 1) for number, end in enumerate(ends))


def test_an_answer_that_comes_too_late_is_a_timeout(monkeypatch):
    monkeypatch.setattr(script, "TIMEOUT", 1.0)

    async def slow(request):
        if request[0] == "POST":
            await asyncio.sleep(3.0)
        return plain(request)

    with serving(slow) as (url, _):
        report = load_test(url, rate=20, seconds=0.1, options={}, constant=True)
    assert report.errors == {"timeout": 2}


def closed_url():
    """A URL where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://here", "is not the URL"),
        ("http://", "answer"),
        ("http://a:b", "is not the URL"),
        (None, "answer"),
    ],
)
def test_a_url_without_a_service_is_an_error(url, message):
    with pytest.raises(ValueError, match=message):
        load_test(url or closed_url(), rate=10, seconds=0.1, options={})


@pytest.mark.parametrize(
    "answer",
    [
        response({"error": "no"}, 404),
        response([1]),
        response({"items": []}),
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{",
    ],
    ids=["404", "other JSON", "no items", "no JSON"],
)
def test_another_kind_of_service_is_an_error(answer):
    with serving(lambda request: answer) as (url, _), pytest.raises(ValueError, match=r"beamtree serve|no items"):
        load_test(url, rate=10, seconds=0.1, options={})


def test_a_report_without_answers_has_no_percentiles():
    numbers = Report(1, 1, (Reply(0.0, 0.0, 0.1, "503", False),)).as_dict()
    assert (numbers["p99_ms"], numbers["degraded"], numbers["answered"]) == (None, 0.0, 0)


# The script


def run_script(*words, folder):
    return subprocess.run([sys.executable, SCRIPT, *words], cwd=folder, capture_output=True, text=True)


@pytest.mark.extended
def test_the_script_prints_writes_and_draws(tmp_path):
    (tmp_path / "histories.txt").write_text('i1 i2\n\n["a b", "c"]\n')
    words = ("--rate", "40", "--seconds", "0.5", "--m", "7", "--beam-size", "20,30", "--history", "histories.txt")
    with serving(plain) as (url, got):
        done = run_script(url, *words, "--json", "n.json", "--plot", "n.png", folder=tmp_path)
    assert {tuple(body["history"]) for *_, body in got} == {("i1", "i2"), ("a b", "c")}
    assert all((body["m"], body["beam_size"]) == (7, [20, 30]) for *_, body in got)
    numbers = json.loads((tmp_path / "n.json").read_text())
    assert numbers["sent"] == numbers["answered"] == len(got)
    assert (numbers["url"], numbers["m"]) == (url, 7)
    assert (tmp_path / "n.png").exists()
    assert "p99_ms" in done.stdout


def test_an_error_of_the_user_is_one_line(tmp_path):
    done = run_script(closed_url(), "--rate", "0", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "load_test: rate=0 for seconds=10: both must be above 0\n"

"""Malformed requests: the short form of `python -m stress.malformed_requests`, and schemathesis on the OpenAPI."""

import contextlib
import http.client
import json
import random
import re
import socket
import time
import warnings
from functools import partial

import httpx
import pytest
from error_replies import check_error
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from serving import make_service, open_changing, priced, save_run, serving

from beamtree.serve.http import middleware, server
from beamtree.serve.http.access import Limits
from stress.malformed_requests import (
    SERVER_ERRORS,
    count_open,
    deep_json,
    huge_body,
    not_http,
    open_slow_clients,
    path_tricks,
    send,
    wrong_headers,
    wrong_types,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    run, open_priced = save_run(folder / "shop"), partial(open_changing, catalogue=priced)
    service = make_service(run, open_priced, limits=Limits(body=1 << 20, seconds_of_body=0.5))
    with serving(service) as client:
        yield client


def test_clients_that_send_many_requests_and_leave_are_no_error(client, caplog):
    body = b'{"history":["i1"],"m":1}'
    request = b"POST /v1/recommend HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", client.port)) as link:
            link.sendall(request * 40)
    for _ in range(20):  # until they have been read
        assert client.post("/v1/recommend", json={"history": ["i1"]}).status_code == 200
    time.sleep(0.2)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    "kind", [wrong_types, deep_json, huge_body, path_tricks, not_http, wrong_headers], ids=lambda kind: kind.__name__
)
def test_no_request_is_answered_with_an_error_of_the_service_or_not_at_all(client, kind):
    draw = random.Random(kind.__name__)
    for _ in range(40):
        what, content = kind(draw)
        status = send("127.0.0.1", client.port, content)
        assert status not in SERVER_ERRORS, (what, content[:300])
        assert status != -1, (what, content[:300])
    assert client.post("/v1/recommend", json={"history": ["i1"]}).status_code == 200


def test_slow_clients_are_dropped_and_nobody_waits_for_them(client, monkeypatch):
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.5)
    links = open_slow_clients("127.0.0.1", client.port, 20)
    assert client.post("/v1/recommend", json={"history": ["i1"]}).status_code == 200
    assert count_open(links, 10) == 0


def test_a_client_that_leaves_in_its_body_is_no_error_of_the_service(client):
    def count(code):
        found = re.search(rf'requests_total{{code="{code}",route="/v1/recommend"}} (\S+)', client.get("/metrics").text)
        return 0.0 if found is None else float(found[1])

    before, errors = count(499), count(500)
    with socket.create_connection(("127.0.0.1", client.port)) as link:
        link.sendall(b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    end = time.monotonic() + 30
    while count(499) == before and time.monotonic() < end:
        time.sleep(0.01)
    assert (count(499), count(500)) == (before + 1, errors)


def post_slowly(port, head, chunks, pause=0.0):
    """The answer to a request whose body is sent to its end before anything is read, as most clients do."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as link:
        link.sendall(b"POST /v1/recommend HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n\r\n")
        for chunk in chunks:
            link.sendall(chunk)
            time.sleep(pause)
        answer = b""
        while part := link.recv(1 << 16):
            answer += part
    return answer


@pytest.mark.parametrize("pause", [0.0, 0.01])
@pytest.mark.parametrize("in_chunks", [False, True])
def test_a_body_that_is_too_large_gets_its_answer_although_the_client_still_sends(client, pause, in_chunks):
    parts = [b"x" * (50 << 10)] * 100  # 5 MB
    head = b"Content-Length: %d" % sum(map(len, parts))
    if in_chunks:
        head, parts = b"Transfer-Encoding: chunked", [*(b"%x\r\n%s\r\n" % (len(p), p) for p in parts), b"0\r\n\r\n"]
    answer = post_slowly(client.port, head, parts, pause)
    assert answer.startswith(b"HTTP/1.1 413")
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert "limit" in body["error"] or "more than" in body["error"]
    assert body["hint"] == "send less at once"


def test_usual_clients_read_the_answer_to_a_body_that_is_too_large(client):
    for _ in range(5):
        reply = httpx.post(f"http://127.0.0.1:{client.port}/v1/recommend", content=b"x" * (5 << 20))
        assert reply.status_code == 413
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)) as link:
            link.request("POST", "/v1/recommend", b"x" * (5 << 20))
            assert link.getresponse().status == 413


def test_what_is_dropped_after_an_answer_is_bounded(client, monkeypatch):
    """A client that never ends, or that says that it will send more and does not, is closed."""
    monkeypatch.setattr(middleware, "LINGER_BYTES", 8 << 20)
    monkeypatch.setattr(middleware, "LINGER_IDLE_SECONDS", 0.2)
    head = b"POST /v1/recommend HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (1 << 40)
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as link:
        link.sendall(head)
        with pytest.raises(ConnectionError):
            link.sendall(b"x" * (256 << 20))
    for more in (b"", b"Expect: 100-continue\r\n"):
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", client.port), timeout=30) as link:
            link.sendall(head[:-2] + more + b"\r\n")
            answer = b""
            while part := link.recv(1 << 16):
                answer += part
        assert answer.startswith(b"HTTP/1.1 413")
        assert time.monotonic() - began < 10


def test_a_head_without_end_is_dropped(client):
    status = send("127.0.0.1", client.port, b"GET / HTTP/1.1\r\nX: " + b"y" * 1_000_000)
    assert status <= 0 or status == 431


def head_of(size):
    """A request whose path and headers have so many bytes."""
    line, usual = b"GET /readyz HTTP/1.1\r\n", b"Host: x\r\nConnection: close\r\n"
    return line + usual + b"X: " + b"y" * (size - len("/readyz") - len(usual) - len("X: \r\n")) + b"\r\n\r\n"


@pytest.mark.parametrize(("size", "status"), [(1 << 16, 200), ((1 << 16) + 1, 431), (66_000, 431), (200_000, 431)])
def test_a_head_has_64_kib_at_most_however_it_arrives(client, size, status):
    content = head_of(size)
    assert send("127.0.0.1", client.port, content) == status
    many = b"GET /readyz HTTP/1.1\r\n" + b"".join(b"X: %d\r\n" % (number % 10) for number in range(size // 6))
    assert send("127.0.0.1", client.port, many + b"Connection: close\r\n\r\n") == 431
    if size < 100_000:  # more is refused before it is complete
        with socket.create_connection(("127.0.0.1", client.port)) as link:
            for start in (0, 20_000, 40_000, 60_000):
                link.sendall(content[start : start + 20_000])
                time.sleep(0.01)
            assert link.recv(100).startswith(b"HTTP/1.1 %d" % status)


def test_a_long_head_is_refused_by_itself_and_not_for_the_requests_before_it(client):
    body = json.dumps({"history": ["i1"] * 900, "m": 1}).encode()
    first = b"POST /v1/recommend HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", client.port)) as link:
        link.sendall(first * 12 + head_of(1000)[:-2])
        time.sleep(0.1)
        link.sendall(head_of(1000)[-2:])
        answer = b""
        while part := link.recv(1 << 16):
            answer += part
    assert answer.count(b"HTTP/1.1 200") == 13


@pytest.mark.parametrize(
    "time",
    ["9" * 401, int("9" * 401), "1_000", "١٢", 1e999, "1e999", "nan", "0x10", ""],
    ids=lambda time: str(time)[:9],
)
def test_a_time_that_is_none_is_refused(client, time):
    body = json.dumps({"user": "ann", "items": ["i1"], "time": time})
    reply = client.post("/v1/events", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 422
    several = json.dumps({"events": [{"user": "ann", "items": ["i1"], "time": time}]})
    reply = client.post("/v1/events", content=several, headers={"Content-Type": "application/json"})
    assert reply.status_code == 422
    assert client.delete("/v1/events", params={"before": str(time)}).status_code == 422


@pytest.mark.parametrize("number", ["1_0", "١٢", "1e1", "x", ""])
def test_a_number_in_a_query_has_plain_digits(client, number):
    assert client.get("/v1/items", params={"limit": number}).status_code == 422
    assert client.get("/v1/similar/i1", params={"m": number}).status_code == 422
    pins = {"history": ["i1"], "rules": {"pins": {number: "i2"}}}
    assert client.post("/v1/recommend", json=pins).status_code == 422


@pytest.mark.extended
@pytest.mark.parametrize("mode", [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
def test_answers_are_as_the_description_says(client, mode):
    described = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    tried = 0
    for found in described.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=5, deadline=None, phases=[Phase.generate], database=None, derandomize=True,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(operation.as_strategy(generation_mode=mode))
        def ask(case):
            nonlocal tried
            tried += 1
            answer = case.call(base_url=f"http://127.0.0.1:{client.port}")
            case.validate_response(answer, checks=CHECKS)
            if answer.status_code in (400, 422):
                check_error(answer, case)

        try:
            ask()
        except Unsatisfiable:
            continue  # a route that takes nothing can be asked nothing wrong
    assert tried > 50

"""Malformed and hostile requests to a service: no error of its own, no hang, and its memory stays level.

python -m stress.hostile http://127.0.0.1:8000 --requests 5000
"""

import argparse
import json
import random
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

PATIENCE = 20.0  # seconds without an answer or an end after which a request hangs
OWN = {500, 501, 502}  # errors of the service itself; 503 and 504 say that it is busy
PATHS = ("/v1/recommend", "/v1/explain", "/v1/events", "/v1/model", "/v2/models/shop/infer", "/v1/items/x")
FIELDS = (
    *("history", "histories", "user", "users", "m", "beam_size", "exclude_seen", "allowed", "exclude", "category"),
    *("timeout_ms", "items", "inputs", "parameters", "run", "title", "like", "vector", "outputs", "id"),
)
TRICKS = (
    *("/../../etc/passwd", "/v1/items/../../../etc/passwd", "/v1/items/%2e%2e%2f%2e%2e%2fetc", "//v1//model", "/%00"),
    *("/v1/items/%00", "/v1/items/%ff%fe", "/v1/items/" + "a" * 5000, "/v1/items?query=%F0%9F%8C%B3&limit=-1"),
    *("/v1/similar/..%5c..%5c", "/v1/model/../model", "/v2/models/%2e/infer", "/./v1/model", "*", "http://x/v1/model"),
    *("/v1/items/%0d%0aSet-Cookie:x", "/v1/users?query=" + "%" * 50, "/v1/items;x", "/v1/items?" + "&a=1" * 2000),
)

RIGHT = "Content-Length: 19"
LIES = (
    ["Content-Length: -1"],
    ["Content-Length: x"],
    ["Content-Length: 5", RIGHT],
    [RIGHT, "Transfer-Encoding: chunked"],
    ["Content-Encoding: gzip", RIGHT],
    ["Content-Type: text/xml", RIGHT],
    ["Expect: 100-continue", RIGHT],
    ["Upgrade: websocket", "Connection: Upgrade", RIGHT],
    ["Authorization: Bearer " + "x" * 9000, RIGHT],
    ["Authorization: \xff\xfe", RIGHT],
    ["Host: a", "Host: b", RIGHT],
    [f"X-{n}: {'y' * 500}" for n in range(200)],
)
Request = tuple[str, bytes]  # what it is, and what is sent


def one(draw: random.Random) -> Request:
    """Any kind of request that nobody should send."""
    kinds: tuple[Callable[[random.Random], Request], ...] = (
        wrong_types,
        wrong_types,
        deep,
        huge,
        tricks,
        garbage,
        lies,
    )
    return draw.choice(kinds)(draw)


def wrong_types(draw: random.Random) -> Request:
    fields = draw.sample(FIELDS, draw.randint(1, 5))
    body = json.dumps({field: value(draw) for field in fields})
    return "wrong types", post(draw.choice(PATHS), body.encode(), draw.choice(("POST", "POST", "PUT", "DELETE")))


def value(draw: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can hold, and some that it cannot."""
    if depth < 3 and draw.random() < 0.4:
        size = draw.randint(0, 4)
        if draw.random() < 0.5:
            return [value(draw, depth + 1) for _ in range(size)]
        return {draw.choice(FIELDS): value(draw, depth + 1) for _ in range(size)}
    return draw.choice(
        (None, True, False, 0, -1, 2**63, -(2**63), 10**30, 1e308, float("nan"), float("inf"), "", "i1", "\ud800", "\0",
         "x" * 1000, "🌳", "1e5", [], {}, [[]], [["i1"], 3], "history", "BYTES")
    )  # fmt: skip


def deep(draw: random.Random) -> Request:
    levels = draw.choice((100, 1_000, 100_000))
    shape = draw.choice((b"[", b'{"history":', b'{"history":[['))
    return "deep JSON", post(draw.choice(PATHS), shape * levels)


def huge(draw: random.Random) -> Request:
    way = draw.randrange(3)
    if way == 0:  # says so, and sends little of it
        return "huge body", head(draw.choice(PATHS), ["Content-Length: 999999999999"]) + b'{"history": ["'
    if way == 1:  # does not say so
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        return "huge body", head(draw.choice(PATHS), ["Transfer-Encoding: chunked"]) + chunk * 100 + b"0\r\n\r\n"
    return "many ids", post("/v1/recommend", json.dumps({"history": ["i1"] * 50_000}).encode())


def tricks(draw: random.Random) -> Request:
    method = draw.choice(("GET", "PUT", "DELETE", "POST", "HEAD", "OPTIONS", "PATCH", "TRACE"))
    return "path tricks", head(draw.choice(TRICKS), ["Content-Length: 0"], method)


def garbage(draw: random.Random) -> Request:
    noise = bytes(draw.randrange(256) for _ in range(draw.randint(1, 200)))
    return "no HTTP", draw.choice(
        (noise, b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 50, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + noise)
    )


def lies(draw: random.Random) -> Request:
    body = b'{"history": ["i1"]}'
    headers = draw.choice(LIES)
    return "lying headers", head("/v1/recommend", headers) + body


def head(path: str, headers: list[str], method: str = "POST") -> bytes:
    """The head of a request."""
    usual = ["Host: x", "Content-Type: application/json", "Connection: close"]
    lines = [f"{method} {path} HTTP/1.1", *usual, *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def post(path: str, body: bytes, method: str = "POST") -> bytes:
    """A request with a body."""
    return head(quote(path), [f"Content-Length: {len(body)}"], method) + body


def send(host: str, port: int, content: bytes) -> int:
    """The status of the answer; 0 where the service hung up without one, -1 where nothing came."""
    with socket.create_connection((host, port), timeout=PATIENCE) as link:
        try:
            link.sendall(content)
            link.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, OSError):
            pass  # the service would not hear it out
        try:
            first = link.recv(65536)
        except TimeoutError:
            return -1
        except OSError:
            return 0
        found = re.match(rb"HTTP/1\.[01] (\d{3})", first)
        return int(found[1]) if found else 0


def slow(host: str, port: int, count: int) -> list[socket.socket]:
    """Clients that begin a request and never end it."""
    begun = (b"POST /v1/rec", head("/v1/recommend", ["Content-Length: 100"]) + b"{", b"", head("/v1/model", [])[:-2])
    links = []
    for number in range(count):
        link = socket.create_connection((host, port), timeout=PATIENCE)
        link.sendall(begun[number % len(begun)])
        links.append(link)
    return links


def hung(links: list[socket.socket], patience: float) -> int:
    """How many of some connections the service has not ended after a while."""
    end, left = time.monotonic() + patience, 0
    for link in links:
        link.settimeout(max(0.01, end - time.monotonic()))
        try:
            while link.recv(65536):
                pass
        except TimeoutError:
            left += 1
        except OSError:
            pass
        link.close()
    return left


def trials(host: str, port: int, requests: int, seed: int) -> Iterator[tuple[str, int]]:
    """Send requests one after another; what each was, and the status of its answer."""
    draw = random.Random(seed)
    for _ in range(requests):
        what, content = one(draw)
        yield what, send(host, port, content)


def memory(base: str) -> float:
    """MiB that the service holds."""
    with urlopen(f"{base}/metrics", timeout=PATIENCE) as answer:
        found = re.search(r"^process_resident_memory_bytes (\S+)", answer.read().decode(), flags=re.M)
    return float(found[1]) / 2**20 if found else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="A service that may be ill-treated.")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", type=int, default=50, help="Clients that never end their request.")
    args = parser.parse_args()
    place = urlsplit(args.url)
    host, port, base = place.hostname or "127.0.0.1", place.port or 80, args.url.rstrip("/")
    tries: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    statuses: Counter[int] = Counter()
    lingering = slow(host, port, args.slow)
    began = 0.0
    for number, (what, status) in enumerate(trials(host, port, args.requests, args.seed)):
        tries[what] += 1
        statuses[status] += 1
        faults[what] += status in OWN or status == -1
        if number == args.requests // 5:  # after what is allocated once
            began = memory(base)
    ended, left = memory(base), hung(lingering, PATIENCE)
    for what in sorted(tries):
        print(f"{what:14} {tries[what]:6,} tries {faults[what]:4,} faults")
    print(f"slow clients   {args.slow:6,} tries {left:4,} faults")
    print("statuses", dict(sorted(statuses.items())))
    print(f"memory {began:.0f} MiB after a fifth, {ended:.0f} MiB at the end")
    return 1 if faults.total() or left or ended > 1.1 * began + 16 else 0


if __name__ == "__main__":
    sys.exit(main())

"""Send malformed requests to a service: no server errors, no hangs, and no growth of memory.

python -m stress.malformed_requests http://127.0.0.1:8000 --requests 5000
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

TIMEOUT = 20.0  # seconds after which a request counts as hung
SERVER_ERRORS = {500, 501, 502}  # 503 and 504 are for a busy service
PATHS = (
    *("/v1/recommend", "/v1/explain", "/v1/events", "/v1/model", "/v2/models/shop/infer", "/v1/items/x", "/v1/items"),
    *("/v1/labels", "/v1/labels/x"),
)
FIELDS = (
    *("history", "histories", "user", "users", "m", "beam_size", "exclude_seen", "allowed", "exclude", "category"),
    *("timeout_ms", "items", "inputs", "parameters", "run", "title", "like", "vector", "outputs", "id"),
    *("where", "rules", "boosts", "at_most", "pins", "diversity", "factor", "time", "events", "context", "item"),
    *("text", "texts", "features", "label", "labels", "name", "price", "stock", "genres", "day"),
)
PATHS_TO_REJECT = (
    *("/../../etc/passwd", "/v1/items/../../../etc/passwd", "/v1/items/%2e%2e%2f%2e%2e%2fetc", "//v1//model", "/%00"),
    *("/v1/items/%00", "/v1/items/%ff%fe", "/v1/items/" + "a" * 5000, "/v1/items?query=%F0%9F%8C%B3&limit=-1"),
    *("/v1/similar/..%5c..%5c", "/v1/model/../model", "/v2/models/%2e/infer", "/./v1/model", "*", "http://x/v1/model"),
    *("/v1/items/%0d%0aSet-Cookie:x", "/v1/users?query=" + "%" * 50, "/v1/items;x", "/v1/items?" + "&a=1" * 2000),
)

RIGHT = "Content-Length: 19"
WRONG_HEADERS = (
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
Request = tuple[str, bytes]  # a description, and the bytes to send


def random_request(rng: random.Random) -> Request:
    """A random malformed request."""
    kinds: tuple[Callable[[random.Random], Request], ...] = (
        wrong_types,
        wrong_types,
        deep_json,
        huge_body,
        path_tricks,
        not_http,
        wrong_headers,
    )
    return rng.choice(kinds)(rng)


def wrong_types(rng: random.Random) -> Request:
    fields = rng.sample(FIELDS, rng.randint(1, 5))
    body = json.dumps({field: value(rng) for field in fields})
    return "wrong types", post(rng.choice(PATHS), body.encode(), rng.choice(("POST", "POST", "PUT", "PATCH", "DELETE")))


def value(rng: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can hold, and some that it cannot."""
    if depth < 3 and rng.random() < 0.4:
        size = rng.randint(0, 4)
        if rng.random() < 0.5:
            return [value(rng, depth + 1) for _ in range(size)]
        return {rng.choice(FIELDS): value(rng, depth + 1) for _ in range(size)}
    return rng.choice(
        (None, True, False, 0, -1, 2**63, -(2**63), 10**30, 10**400, 1e308, float("nan"), float("inf"), "", "i1",
         "\ud800", "\0", "x" * 1000, "🌳", "1e5", [], {}, [[]], [["i1"], 3], "history", "BYTES")
    )  # fmt: skip


def deep_json(rng: random.Random) -> Request:
    levels = rng.choice((100, 1_000, 100_000))
    shape = rng.choice((b"[", b'{"history":', b'{"history":[['))
    return "deep JSON", post(rng.choice(PATHS), shape * levels)


def huge_body(rng: random.Random) -> Request:
    way = rng.randrange(3)
    if way == 0:  # announced by Content-Length
        return "huge body", head(rng.choice(PATHS), ["Content-Length: 999999999999"]) + b'{"history": ["'
    if way == 1:  # not announced
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        return "huge body", head(rng.choice(PATHS), ["Transfer-Encoding: chunked"]) + chunk * 100 + b"0\r\n\r\n"
    return "many ids", post("/v1/recommend", json.dumps({"history": ["i1"] * 50_000}).encode())


def path_tricks(rng: random.Random) -> Request:
    method = rng.choice(("GET", "PUT", "DELETE", "POST", "HEAD", "OPTIONS", "PATCH", "TRACE"))
    return "path tricks", head(rng.choice(PATHS_TO_REJECT), ["Content-Length: 0"], method)


def not_http(rng: random.Random) -> Request:
    noise = bytes(rng.randrange(256) for _ in range(rng.randint(1, 200)))
    return "no HTTP", rng.choice(
        (noise, b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 50, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + noise)
    )


def wrong_headers(rng: random.Random) -> Request:
    body = b'{"history": ["i1"]}'
    headers = rng.choice(WRONG_HEADERS)
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
    """The status of the answer; 0 where the service closed the connection, -1 where it hangs."""
    with socket.create_connection((host, port), timeout=TIMEOUT) as link:
        try:
            link.sendall(content)
            link.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, OSError):
            pass  # the service closed the connection early
        try:
            first = link.recv(65536)
        except TimeoutError:
            return -1
        except OSError:
            return 0
        match = re.match(rb"HTTP/1\.[01] (\d{3})", first)
        return int(match[1]) if match else 0


def open_slow_clients(host: str, port: int, count: int) -> list[socket.socket]:
    """Connections that begin a request and never finish it."""
    beginnings = (
        b"POST /v1/rec",
        head("/v1/recommend", ["Content-Length: 100"]) + b"{",
        b"",
        head("/v1/model", [])[:-2],
    )
    links = []
    for number in range(count):
        link = socket.create_connection((host, port), timeout=TIMEOUT)
        link.sendall(beginnings[number % len(beginnings)])
        links.append(link)
    return links


def count_open(links: list[socket.socket], timeout: float) -> int:
    """The number of connections that the service has not closed after `timeout` seconds."""
    end, left = time.monotonic() + timeout, 0
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
    """Send requests one after another: (description, status)."""
    rng = random.Random(seed)
    for _ in range(requests):
        description, content = random_request(rng)
        yield description, send(host, port, content)


def memory(base: str) -> float:
    """The memory of the service in MiB."""
    with urlopen(f"{base}/metrics", timeout=TIMEOUT) as answer:
        match = re.search(r"^process_resident_memory_bytes (\S+)", answer.read().decode(), flags=re.M)
    return float(match[1]) / 2**20 if match else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="The URL of a test service.")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", type=int, default=50, help="Number of clients that never finish a request.")
    args = parser.parse_args()
    url = urlsplit(args.url)
    host, port, base = url.hostname or "127.0.0.1", url.port or 80, args.url.rstrip("/")
    tries: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    statuses: Counter[int] = Counter()
    slow_clients = open_slow_clients(host, port, args.slow)
    start_memory = 0.0
    for number, (description, status) in enumerate(trials(host, port, args.requests, args.seed)):
        tries[description] += 1
        statuses[status] += 1
        faults[description] += status in SERVER_ERRORS or status == -1
        if number == args.requests // 5:  # after one-time allocations
            start_memory = memory(base)
    end_memory, left = memory(base), count_open(slow_clients, TIMEOUT)
    for description in sorted(tries):
        print(f"{description:14} {tries[description]:6,} tries {faults[description]:4,} faults")
    print(f"slow clients   {args.slow:6,} tries {left:4,} faults")
    print("statuses", dict(sorted(statuses.items())))
    print(f"memory {start_memory:.0f} MiB after a fifth, {end_memory:.0f} MiB at the end")
    return 1 if faults.total() or left or end_memory > 1.1 * start_memory + 16 else 0


if __name__ == "__main__":
    sys.exit(main())

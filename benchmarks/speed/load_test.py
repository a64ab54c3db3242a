"""Load-test a service of `beamtree serve`: latency percentiles, errors by status, the share of degraded responses.

The load is an open loop: requests are sent at times fixed in advance. Latency is measured from the time a request was
due, so that a stalled service is charged for all requests of that time. Delays of the client count too, and are
reported.

    python benchmarks/speed/load_test.py http://localhost:8000 --rate 200 --seconds 60 --m 10 --beam-size 100
    python benchmarks/speed/load_test.py http://localhost:8000 --rate 50
        --rules '{"at_most": {"brand": 2}, "diversity": 0.2}'

Run it on another machine than the service if possible.
"""

import argparse
import asyncio
import gc
import itertools
import json
import math
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import httpx

from beamtree.query import parse_ids, parse_rules

try:
    from uvloop import run as run_loop
except ImportError:  # Windows
    from asyncio import run as run_loop

OK = "200"
BODIES = 1000  # different requests, sent in turn
CONNECTIONS = 512  # at most; a request that finds all of them busy waits
TIMEOUT = 10.0  # seconds
NOT_DEGRADED = re.compile(rb'"degraded": ?(?:null|false)')
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


class Reply(NamedTuple):
    """The outcome of one request; times in seconds, `due` from the start."""

    due: float
    late: float  # how much later it was sent
    latency: float  # from when it was due to the end of its answer
    outcome: str  # the status, such as 200, or timeout, or connection
    degraded: bool


@dataclass(frozen=True)
class Report:
    """How a service answered under load."""

    rate: float  # requested, per second
    seconds: float
    replies: tuple[Reply, ...]

    @property
    def answered(self) -> list[Reply]:
        """The replies with status 200."""
        return [reply for reply in self.replies if reply.outcome == OK]

    @property
    def errors(self) -> dict[str, int]:
        """The number of other replies, by outcome."""
        counts = Counter(reply.outcome for reply in self.replies if reply.outcome != OK)
        return dict(sorted(counts.items()))

    def as_dict(self) -> dict[str, Any]:
        """All numbers of the report."""
        answered = self.answered
        duration = max([self.seconds, *(reply.due + reply.latency for reply in answered)])
        latencies = [reply.latency * 1e3 for reply in answered]
        return {
            "rate": self.rate,
            "seconds": self.seconds,
            "sent": len(self.replies),
            "answered": len(answered),
            "answered_per_second": len(answered) / duration,
            "errors": self.errors,
            "degraded": sum(reply.degraded for reply in answered) / len(answered) if answered else 0.0,
            "p50_ms": percentile(latencies, 0.5),
            "p95_ms": percentile(latencies, 0.95),
            "p99_ms": percentile(latencies, 0.99),
            "max_ms": percentile(latencies, 1.0),
            "client_late_p99_ms": percentile([reply.late * 1e3 for reply in self.replies], 0.99),
        }


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of all values does not exceed; None if there are no values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def arrivals(rate: float, seconds: float, *, seed: int = 0, constant: bool = False) -> list[float]:
    """When requests are due: a Poisson process, or evenly spaced."""
    if not 0 < rate < math.inf or not 0 < seconds < math.inf:
        raise ValueError(f"rate={rate:g} for seconds={seconds:g}: both must be above 0")
    if constant:
        return [number / rate for number in range(math.ceil(rate * seconds))]
    generator = random.Random(seed)
    due, now = [], generator.expovariate(rate)
    while now < seconds:
        due.append(now)
        now += generator.expovariate(rate)
    return due


def random_histories(items: Sequence[str], count: int, *, length: int = 20, seed: int = 0) -> list[list[str]]:
    """Histories of items drawn at random."""
    generator = random.Random(seed)
    return [generator.choices(items, k=length) for _ in range(count)]


class Connection(asyncio.Protocol):
    """An HTTP/1.1 connection for one request at a time, with little work of its own: the service may share the core."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._received = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None  # while a request waits

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    async def post(self, head: bytes, body: bytes) -> tuple[int, bytes]:
        """The status and the body of an answer."""
        assert self.transport is not None
        self._received, self._answer = b"", asyncio.get_running_loop().create_future()
        self.transport.write(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
        try:
            return await self._answer
        except BaseException:
            self.transport.close()
            raise
        finally:
            self._answer = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if end and self._answer is not None and not self._answer.done():
            if length is None:
                self._answer.set_exception(ConnectionError("an answer without a length"))
            elif len(body) >= int(length[1]):
                self._answer.set_result((int(head.split(b" ", 2)[1]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the connection was closed"))


async def send(url: httpx.URL, head: bytes, bodies: Sequence[bytes], due: Sequence[float]) -> list[Reply]:
    """Send the bodies in turn, each at its time, and wait for all answers."""
    loop = asyncio.get_running_loop()
    idle, room = list[Connection](), asyncio.Semaphore(CONNECTIONS)
    secure = url.scheme == "https"

    async def post(body: bytes) -> tuple[int, bytes]:
        async with room:
            while idle:
                connection = idle.pop()
                assert connection.transport is not None
                if not connection.transport.is_closing():
                    break
            else:
                port = url.port or (443 if secure else 80)
                _, connection = await loop.create_connection(Connection, url.host, port, ssl=secure or None)
            answer = await connection.post(head, body)
            idle.append(connection)
            return answer

    gc.freeze()  # collections would delay requests
    gc.disable()
    start = time.monotonic()  # that of uvloop counts milliseconds

    async def send_one(at: float, body: bytes) -> Reply:
        late, degraded = time.monotonic() - start - at, False
        try:
            async with asyncio.timeout(TIMEOUT):
                status, answer = await post(body)
            outcome = str(status)
            degraded = outcome == OK and NOT_DEGRADED.search(answer) is None
        except TimeoutError:
            outcome = "timeout"
        except OSError:
            outcome = "connection"
        return Reply(at, late, time.monotonic() - start - at, outcome, degraded)

    tasks = []
    for number, at in enumerate(due):
        await asyncio.sleep(max(0.0, start + at - time.monotonic()))  # also when late, so that answers are read
        tasks.append(loop.create_task(send_one(at, bodies[number % len(bodies)])))
    replies = list(await asyncio.gather(*tasks))
    gc.enable()
    for connection in idle:
        assert connection.transport is not None
        connection.transport.close()
    await asyncio.sleep(0)  # in which they are closed
    return replies


async def some_items(client: httpx.AsyncClient) -> list[str]:
    """Ids of some items of the service; a ValueError if it does not answer like `beamtree serve`."""
    items: dict[str, None] = {}
    for query in ("", *"0123456789"):
        response = await client.get("v1/items", params={"query": query, "limit": 100})
        if response.status_code != 200:
            raise ValueError(f"GET /v1/items answered {response.status_code}: is this a `beamtree serve` service?")
        try:
            items |= dict.fromkeys(str(each["item"]) for each in response.json()["items"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError("GET /v1/items has an unknown format: is this a `beamtree serve` service?") from error
    if not items:
        raise ValueError("the service has no items: pass histories in a file")
    return list(items)


def load_test(
    url: str,
    *,
    rate: float,
    seconds: float,
    options: Mapping[str, Any],
    histories: Sequence[Sequence[str]] | None = None,
    rules: Sequence[Mapping[str, Any]] = (),
    constant: bool = False,
    seed: int = 0,
    token: str | None = None,
) -> Report:
    """Load-test `POST /v1/recommend`.

    Args:
        url: of the service.
        rate: requests per second.
        seconds: duration.
        options: of every request beside its history, such as {"m": 10}.
        histories: lists of ids; drawn from the items of the service unless given.
        rules: sent with the requests in turn, beginning again after the last.
        constant: space requests evenly instead of a Poisson process.
        seed: of arrivals and drawn histories.
        token: the bearer token of the service, if it has one.
    """
    due = arrivals(rate, seconds, seed=seed, constant=constant)
    url = url if "//" in url else f"http://{url}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def run() -> list[Reply]:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT) as client:
            try:
                chosen = histories or random_histories(await some_items(client), min(BODIES, len(due)), seed=seed)
            except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
                raise ValueError(f"{url!r} is not the URL of a service: give http://HOST:PORT") from error
            except httpx.HTTPError as error:
                raise ValueError(f"{url} does not answer: start the service with `beamtree serve RUN`") from error
            more = itertools.cycle([{"rules": each} for each in rules] or [{}])
            contents = [{**options, **next(more), "history": each} for each in chosen[:BODIES]]
            bodies = [json.dumps(content).encode() for content in contents]
            target = client.build_request("POST", "v1/recommend", headers={"Content-Type": "application/json"})
            lines = [f"POST {target.url.raw_path.decode()} HTTP/1.1"]
            lines += [f"{name}: {value}" for name, value in target.headers.items() if name != "content-length"]
            return await send(target.url, ("\r\n".join(lines) + "\r\n").encode(), bodies, due)

    try:
        return Report(rate, seconds, tuple(run_loop(run())))
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not the URL of a service: give http://HOST:PORT") from error


def plot(report: Report, path: Path) -> None:
    """Latency over time, and the share of answers that took longer than a given time."""
    from beamtree.research.plots import COLOURS, plt, save_figure

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6))
    groups = {"answered": report.answered, "degraded": [reply for reply in report.answered if reply.degraded]}
    groups |= {name: [reply for reply in report.replies if reply.outcome == name] for name in report.errors}
    for colour, (name, replies) in zip(COLOURS, groups.items(), strict=False):
        if replies:
            due, latency = [reply.due for reply in replies], [reply.latency * 1e3 for reply in replies]
            left.plot(due, latency, ".", ms=3, alpha=0.5, color=colour, label=f"{name} ({len(replies):,})")
    left.set(title=f"{report.rate:g} requests per second", xlabel="due after seconds", ylabel="milliseconds")
    left.set_ylim(bottom=0)
    left.legend(fontsize="small", markerscale=3)
    latency = sorted(reply.latency * 1e3 for reply in report.answered)
    right.step(latency, [100 * (1 - i / len(latency)) for i in range(len(latency))], where="post", color=COLOURS[0])
    right.set(title="Answers that took longer", xlabel="milliseconds", ylabel="% of answers", yscale="log")
    for axis in (left, right):
        axis.grid(alpha=0.3)
    save_figure(figure, path)


def read_histories(path: Path) -> list[list[str]]:
    """One history per line, written as `beamtree retrieve --history` takes it."""
    histories = [parse_ids(line) for line in path.read_text(encoding="utf-8").splitlines()]
    histories = [history for history in histories if history]
    if not histories:
        raise ValueError(f"{path} has no history: write one per line")
    return histories


def read_rules(text: str) -> list[dict[str, Any]]:
    """Rules of requests from JSON, or from a file of it: one object, or a list of objects."""
    is_json = text.lstrip().startswith(("{", "["))
    content = json.loads(text if is_json else Path(text).read_text(encoding="utf-8"))
    rules = content if isinstance(content, list) else [content]
    for each in rules:
        parse_rules(each)
    return rules


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="of a service, such as http://localhost:8000")
    parser.add_argument("--rate", type=float, default=100, help="requests per second")
    parser.add_argument("--seconds", type=float, default=10, help="duration")
    parser.add_argument("--m", type=int, default=10, help="items per request")
    parser.add_argument("--beam-size", help="k, or one width per level; the service's default unless given")
    parser.add_argument("--history", type=Path, help="a file with one history per line; random items unless given")
    parser.add_argument("--rules", help="JSON, or a file of it: rules of all requests, or a list to send in turn")
    parser.add_argument("--constant", action="store_true", help="space requests evenly instead of a Poisson process")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and random histories")
    parser.add_argument("--token", default=os.environ.get("BEAMTREE_READ_TOKEN"), help="the bearer token, if needed")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--plot", type=Path, help="draw latency over time and its distribution")
    args = parser.parse_args()
    try:
        options: dict[str, Any] = {"m": args.m}
        if args.beam_size:
            widths = [int(word) for word in args.beam_size.split(",")]
            options["beam_size"] = widths[0] if len(widths) == 1 else widths
        report = load_test(
            args.url, rate=args.rate, seconds=args.seconds, options=options, constant=args.constant, seed=args.seed,
            token=args.token, histories=read_histories(args.history) if args.history else None,
            rules=read_rules(args.rules) if args.rules else (),
        )  # fmt: skip
    except (ValueError, OSError) as error:
        print(f"load_test: {error}", file=sys.stderr)
        sys.exit(2)
    numbers = report.as_dict()
    for name, value in numbers.items():
        print(f"{name:<20} {value if not isinstance(value, float) else f'{value:,.3f}'}")
    if args.json:
        args.json.write_text(json.dumps({"url": args.url, **options, **numbers}, indent=1) + "\n")
    if args.plot:
        plot(report, args.plot)


if __name__ == "__main__":
    main()

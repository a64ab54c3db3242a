"""Load for a service: requests at times that are fixed before, whatever the answers do.

That is an open loop, as users are: they do not wait for one another. Latency counts from the moment at which a request
was due, so that a service which stalls pays for everybody who would have asked meanwhile. A client that is late pays as
well, and how late it was is reported beside.
"""

import asyncio
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from beamtree.loadtest.client import Client

DEGRADED = re.compile(rb'"degraded":\s*+(?!null|false)')
OK = "200"
BODIES = 1000  # different requests, sent in turn


class Reply(NamedTuple):
    """What became of one request; times in seconds, `due` from the start."""

    due: float
    late: float  # how much later it was sent
    latency: float  # from when it was due to the end of its answer
    outcome: str  # the status, such as 200, or timeout, or connection
    degraded: bool


@dataclass(frozen=True)
class Report:
    """What a service did under load."""

    rate: float  # requests per second that were asked for
    seconds: float
    replies: tuple[Reply, ...]

    @property
    def answered(self) -> list[Reply]:
        """The replies with status 200."""
        return [reply for reply in self.replies if reply.outcome == OK]

    @property
    def errors(self) -> dict[str, int]:
        """How many requests ended otherwise, by outcome."""
        counts = Counter(reply.outcome for reply in self.replies if reply.outcome != OK)
        return dict(sorted(counts.items()))

    def percentile(self, share: float) -> float | None:
        """The latency in milliseconds that this share of the answers kept below or at; None without answers."""
        return percentile([reply.latency * 1e3 for reply in self.answered], share)

    def as_dict(self) -> dict[str, Any]:
        """The numbers of the table."""
        answered = self.answered
        lasted = max([self.seconds, *(reply.due + reply.latency for reply in answered)])
        return {
            "rate": self.rate,
            "seconds": self.seconds,
            "sent": len(self.replies),
            "answered": len(answered),
            "answered_per_second": len(answered) / lasted,
            "errors": self.errors,
            "degraded": sum(reply.degraded for reply in answered) / len(answered) if answered else 0.0,
            "p50_ms": self.percentile(0.5),
            "p95_ms": self.percentile(0.95),
            "p99_ms": self.percentile(0.99),
            "max_ms": self.percentile(1.0),
            "client_late_p99_ms": percentile([reply.late * 1e3 for reply in self.replies], 0.99),
        }


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that this share of all values does not exceed; None of nothing."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def arrivals(rate: float, seconds: float, *, seed: int = 0, constant: bool = False) -> list[float]:
    """When requests are due: by chance, as users come (a Poisson process), or evenly."""
    if not 0 < rate < math.inf or not 0 < seconds < math.inf:
        raise ValueError(f"rate={rate:g} for seconds={seconds:g}: give numbers above 0")
    if constant:
        return [number / rate for number in range(math.ceil(rate * seconds))]
    generator = random.Random(seed)
    found, now = [], generator.expovariate(rate)
    while now < seconds:
        found.append(now)
        now += generator.expovariate(rate)
    return found


def histories_of(items: Sequence[str], count: int, *, length: int = 20, seed: int = 0) -> list[list[str]]:
    """Made-up histories of these items."""
    generator = random.Random(seed)
    return [generator.choices(items, k=length) for _ in range(count)]


async def fire(
    client: Client, requests: Sequence[bytes], due: Sequence[float], on_reply: Callable[[int], None] | None = None
) -> list[Reply]:
    """Send requests, in turn, each at its time, and wait for all answers; `on_reply` hears of each."""
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def one(at: float, request: bytes) -> Reply:
        late, degraded = loop.time() - start - at, False
        try:
            status, body = await client.ask(request)
            outcome, degraded = str(status), DEGRADED.search(body) is not None
        except TimeoutError:
            outcome = "timeout"
        except OSError:
            outcome = "connection"
        reply = Reply(at, late, loop.time() - start - at, outcome, degraded)
        if on_reply is not None:
            on_reply(1)
        return reply

    tasks = []
    for number, at in enumerate(due):
        await asyncio.sleep(max(0.0, start + at - loop.time()))  # at least once, so that answers are heard
        tasks.append(loop.create_task(one(at, requests[number % len(requests)])))
    return list(await asyncio.gather(*tasks))


def load(
    url: str,
    *,
    rate: float,
    seconds: float,
    asked: Mapping[str, Any],
    histories: Sequence[Sequence[str]] | None = None,
    constant: bool = False,
    seed: int = 0,
    token: str | None = None,
    on_reply: Callable[[int], None] | None = None,
) -> Report:
    """Put load on `POST /v1/recommend` of a service.

    Args:
        url: of the service.
        rate: requests per second.
        seconds: for how long.
        asked: what every request says beside its history, such as {"m": 10}.
        histories: of ids; made up from items of the service unless given.
        constant: whether requests come evenly, and not by chance.
        seed: of arrivals and of histories that are made up.
        token: the bearer token of the service, where it has one.
        on_reply: hears how many requests were done since it was last called.
    """
    due = arrivals(rate, seconds, seed=seed, constant=constant)

    async def run() -> list[Reply]:
        client = Client(url, token)
        try:
            some = histories or histories_of(await known_items(client), min(BODIES, len(due)), seed=seed)
            requests = [client.request("POST", "/v1/recommend", {**asked, "history": each}) for each in some[:BODIES]]
            return await fire(client, requests, due, on_reply)
        except (OSError, TimeoutError) as error:
            raise ValueError(f"{url} does not answer: start the service with `beamtree serve RUN`") from error
        finally:
            client.close()

    return Report(rate, seconds, tuple(asyncio.run(run())))


async def known_items(client: Client) -> list[str]:
    """Ids of some items of the service; a ValueError where it does not answer as one of ours does."""
    found: dict[str, None] = {}
    for query in ("", *"0123456789"):
        status, body = await client.ask(client.request("GET", f"/v1/items?query={query}&limit=100"))
        if status != 200:
            raise ValueError(f"GET /v1/items was answered with {status}: is it a service of `beamtree serve`?")
        try:
            found |= dict.fromkeys(str(each["item"]) for each in json.loads(body)["items"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError("GET /v1/items was answered with something else: is it `beamtree serve`?") from error
    if not found:
        raise ValueError("the service knows no items: give histories in a file")
    return list(found)

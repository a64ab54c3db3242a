"""Soak test of a service: searches, explanations, changes of items and events, and swaps of runs.

python -m stress.soak RUN --minutes 60

All acknowledged changes must be there at the end, no response may be 5xx, and every response must have m items. The
memory of the service is printed every minute and must not grow in the second half.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from stress.service_kills import ServiceState, change, check, start, trained_items

MAX_GROWTH = 1.05  # memory of the second half, relative to the first


class Readers:
    """Threads that send requests at a given rate and count the responses."""

    def __init__(self, url: str, items: list[str], rate: float, threads: int = 4) -> None:
        self.responses: Counter[str] = Counter()
        self.slowest = 0.0
        self._items, self._pause, self._end = items, threads / rate, threading.Event()
        self._threads = [threading.Thread(target=self._send_all, args=(url, seed)) for seed in range(threads)]
        for thread in self._threads:
            thread.start()

    def _send_all(self, url: str, seed: int) -> None:
        rng = random.Random(seed)
        with httpx.Client(base_url=url, timeout=60) as client:
            while not self._end.wait(rng.expovariate(1 / self._pause)):
                start = time.monotonic()
                try:
                    self.responses[self._send(client, rng)] += 1
                except httpx.HTTPError as error:
                    self.responses[type(error).__name__] += 1
                self.slowest = max(self.slowest, time.monotonic() - start)

    def _send(self, client: httpx.Client, rng: random.Random) -> str:
        history, kind = rng.sample(self._items, rng.randrange(1, 20)), rng.random()
        if kind < 0.85:
            body: dict[str, Any] = {"history": history, "m": 10, "exclude_seen": rng.random() < 0.5}
            if rng.random() < 0.2:
                body["exclude"] = rng.sample(self._items, 5)
            response = client.post("/v1/recommend", json=body)
            if response.status_code == 200 and len(response.json()["results"][0]["items"]) != 10:
                return "fewer than m"
        elif kind < 0.9:
            response = client.post("/v1/explain", json={"history": history, "items": rng.sample(self._items, 2)})
        elif kind < 0.95:
            response = client.get(f"/v1/similar/{history[0]}")
        else:
            response = client.get(rng.choice(["/metrics", "/v1/model", "/v1/items?limit=5", "/readyz"]))
        return str(response.status_code)

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def resident(pid: int) -> float:
    """Memory of a process in MiB."""
    words = Path(f"/proc/{pid}/status").read_text().split()
    return int(words[words.index("VmRSS:") + 1]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m stress.soak", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--changes", type=float, default=2.0, help="changes a second")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, state, made, memory = random.Random(args.seed), ServiceState(), 0, []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("one", "two"):
            shutil.copytree(args.run, Path(folder, name), symlinks=True)
        process, client = start(Path(folder, "one"), "--changes", str(Path(folder, "changes")))
        items = trained_items(client)
        readers = Readers(str(client.base_url), items[40:], args.rate)
        start_time = printed = time.monotonic()
        while (now := time.monotonic()) < start_time + 60 * args.minutes:
            change(client, state, items, ["one", "two"], rng)
            made += 1
            memory.append(resident(process.pid))
            if now > printed + 60:
                printed = now
                minutes, counts = (now - start_time) / 60, dict(readers.responses)
                print(f"{minutes:.0f} min: {memory[-1]:.0f} MiB, {made} changes, {counts}", flush=True)
            time.sleep(rng.expovariate(args.changes))
        readers.stop()
        faults = check(client, state)
        short = [
            line for line in client.get("/metrics").text.splitlines() if line.startswith("beamtree_short_results_t")
        ]
        client.close()
        process.terminate()
        faults += [] if process.wait(60) == 0 else [f"exit code {process.returncode}"]
    half = len(memory) // 2
    growth = max(memory[half:]) / max(memory[:half])
    wrong = {kind: count for kind, count in readers.responses.items() if kind not in ("200", "404", "429", "503")}
    print(
        json.dumps(
            {"changes": made, "responses": dict(readers.responses), "slowest_seconds": round(readers.slowest, 2)}
        )
    )
    print(f"memory: {memory[0]:.0f} MiB at first, {max(memory[:half]):.0f} at most in the first half, ", end="")
    print(f"{max(memory[half:]):.0f} in the second, {memory[-1]:.0f} at the end; {short[0]}")
    print(f"wrong responses {wrong}, lost {faults[:5]}")
    return 1 if faults or wrong or growth > MAX_GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())

"""Mixed load on a service for as long as you say: searches, explanations, changes of items and events, and swaps.

python -m stress.mixed RUN --minutes 60

What was acknowledged must be there at the end, nothing may answer 5xx, and every answer must hold m items. The memory
of the service is told along the way: over the second half it must stay level.
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

from stress.served import Told, change, check, learned, start

LEVEL = 1.05  # times the memory of the first half that the second may take at most


class Readers:
    """Threads that ask, each as fast as it is told to, and count what comes back."""

    def __init__(self, url: str, known: list[str], rate: float, threads: int = 4) -> None:
        self.answers: Counter[str] = Counter()
        self.slowest = 0.0
        self._known, self._pause, self._end = known, threads / rate, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(url, seed)) for seed in range(threads)]
        for thread in self._threads:
            thread.start()

    def _ask(self, url: str, seed: int) -> None:
        draw = random.Random(seed)
        with httpx.Client(base_url=url, timeout=60) as client:
            while not self._end.wait(draw.expovariate(1 / self._pause)):
                began = time.monotonic()
                try:
                    self.answers[self._one(client, draw)] += 1
                except httpx.HTTPError as error:
                    self.answers[type(error).__name__] += 1
                self.slowest = max(self.slowest, time.monotonic() - began)

    def _one(self, client: httpx.Client, draw: random.Random) -> str:
        history, kind = draw.sample(self._known, draw.randrange(1, 20)), draw.random()
        if kind < 0.85:
            body: dict[str, Any] = {"history": history, "m": 10, "exclude_seen": draw.random() < 0.5}
            if draw.random() < 0.2:
                body["exclude"] = draw.sample(self._known, 5)
            answer = client.post("/v1/recommend", json=body)
            if answer.status_code == 200 and len(answer.json()["results"][0]["items"]) != 10:
                return "fewer than m"
        elif kind < 0.9:
            answer = client.post("/v1/explain", json={"history": history, "items": draw.sample(self._known, 2)})
        elif kind < 0.95:
            answer = client.get(f"/v1/similar/{history[0]}")
        else:
            answer = client.get(draw.choice(["/metrics", "/v1/model", "/v1/items?limit=5", "/readyz"]))
        return str(answer.status_code)

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def resident(pid: int) -> float:
    """Memory of a process in MiB."""
    words = Path(f"/proc/{pid}/status").read_text().split()
    return int(words[words.index("VmRSS:") + 1]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m stress.mixed", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--changes", type=float, default=2.0, help="changes a second")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draw, told, made, memory = random.Random(args.seed), Told(), 0, []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("one", "two"):
            shutil.copytree(args.run, Path(folder, name), symlinks=True)
        process, client = start(Path(folder, "one"), Path(folder, "changes"))
        known = learned(client)
        readers = Readers(str(client.base_url), known[40:], args.rate)
        began = said = time.monotonic()
        while (now := time.monotonic()) < began + 60 * args.minutes:
            change(client, told, known, ["one", "two"], draw)
            made += 1
            memory.append(resident(process.pid))
            if now > said + 60:
                said = now
                print(f"{(now - began) / 60:.0f} min: {memory[-1]:.0f} MiB, {made} changes, {dict(readers.answers)}")
                sys.stdout.flush()
            time.sleep(draw.expovariate(args.changes))
        readers.stop()
        faults = check(client, told)
        short = [
            line for line in client.get("/metrics").text.splitlines() if line.startswith("beamtree_short_results_t")
        ]
        client.close()
        process.terminate()
        faults += [] if process.wait(60) == 0 else [f"exit code {process.returncode}"]
    half = len(memory) // 2
    grown = max(memory[half:]) / max(memory[:half])
    wrong = {kind: count for kind, count in readers.answers.items() if kind not in ("200", "404", "429", "503")}
    print(json.dumps({"changes": made, "answers": dict(readers.answers), "slowest_seconds": round(readers.slowest, 2)}))
    print(f"memory: {memory[0]:.0f} MiB at first, {max(memory[:half]):.0f} at most in the first half, ", end="")
    print(f"{max(memory[half:]):.0f} in the second, {memory[-1]:.0f} at the end; {short[0]}")
    print(f"wrong answers {wrong}, lost {faults[:5]}")
    return 1 if faults or wrong or grown > LEVEL else 0


if __name__ == "__main__":
    sys.exit(main())

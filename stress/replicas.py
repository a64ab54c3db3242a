"""Kill a writer and its replicas while items, events and runs change, and measure how soon changes are everywhere.

One replica follows the folder of the writer, another its address. A replica must have everything as soon as it answers
after a start, and answer while the writer is away. An item that is hidden or shown at the writer must be so at every
replica within two seconds, which is measured beside random changes.

python -m stress.replicas RUN --kills 30
"""

import argparse
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from stress.service_kills import ServiceState, change, check, connect, launch, trained_items

LIMIT_SECONDS = 2.0
PATIENCE_SECONDS = 120.0
CHANGES = 6  # measured before each kill
WRITER, FOLDER, ADDRESS = "writer", "replica of the folder", "replica of the address"


class Trio:
    """A writer, a replica that follows its folder, and one that follows its address."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.changes = folder, folder / "changes"
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.clients: dict[str, httpx.Client] = {}
        self.port = 0  # of the writer

    def start(self, name: str) -> httpx.Client:
        """Start one of them; its client, once it answers."""
        self.launch(name)
        return self.connect(name)

    def launch(self, name: str) -> None:
        """Start the process of one of them."""
        options = {
            WRITER: ("--changes", str(self.changes)),
            FOLDER: ("--follow", str(self.changes)),
            ADDRESS: ("--follow", f"http://127.0.0.1:{self.port}"),
        }
        port = self.port if name == WRITER else 0
        self.processes[name] = launch(self.folder / "one", *options[name], port=port)

    def connect(self, name: str) -> httpx.Client:
        """The client of one of them, once it answers."""
        self.clients[name] = client = connect(self.processes[name])
        if name == WRITER:
            self.port = client.base_url.port or 0
        return client

    def kill(self, name: str) -> None:
        """Kill one of them, and wait until it is gone."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()
        self.clients[name].close()

    def close(self) -> None:
        """Kill all."""
        for name, process in self.processes.items():
            process.kill()
            process.wait()
            if name in self.clients:
                self.clients[name].close()

    @property
    def replicas(self) -> dict[str, httpx.Client]:
        """The clients of those that follow."""
        return {name: client for name, client in self.clients.items() if name != WRITER}


def has_item(client: httpx.Client, item: str) -> bool:
    """Whether a service recommends an item."""
    reply = client.post("/v1/recommend", json={"history": [], "m": 1, "allowed": [item]})
    return bool(reply.raise_for_status().json()["results"][0]["items"])


def seconds_until(client: httpx.Client, item: str, expected: bool, since: float) -> float:
    """How long it takes until a service has an item, or has it no more."""
    while has_item(client, item) != expected:
        if time.monotonic() - since > PATIENCE_SECONDS:
            break
    return time.monotonic() - since


def is_connected(client: httpx.Client) -> bool:
    """Whether a replica has signs of its writer."""
    reply = client.get("/readyz").raise_for_status().json()
    return bool(reply["follows"]["connected"])


def wait_until_same(trio: Trio) -> float:
    """Wait until all serve the same version of the same run; the seconds it took."""
    begin = time.monotonic()
    while time.monotonic() - begin < PATIENCE_SECONDS:
        models = [client.get("/v1/model").json() for client in trio.clients.values()]
        if len({(model["version"], model["run"]) for model in models}) == 1:
            break
        time.sleep(0.02)
    return time.monotonic() - begin


def measure(trio: Trio, state: ServiceState, items: list[str], rng: random.Random) -> dict[str, list[float]]:
    """Hide or show items at the writer; the seconds from its answer until each replica does so."""
    delays: dict[str, list[float]] = {name: [] for name in trio.replicas}
    writer = trio.clients[WRITER]
    with ThreadPoolExecutor(len(delays)) as pool:
        for item in rng.sample(items[:40], CHANGES):
            time.sleep(rng.random() * 0.5)  # at any time between two looks
            expected = not has_item(writer, item)
            url = f"/v1/items/{item}"
            (writer.put(url, json={}) if expected else writer.delete(url)).raise_for_status()
            since = time.monotonic()
            state.items[item] = expected
            waits = {
                name: pool.submit(seconds_until, client, item, expected, since)
                for name, client in trio.replicas.items()
            }
            for name, wait in waits.items():
                delays[name].append(wait.result())
    return delays


def kill_one(trio: Trio, victim: str, state: ServiceState, items: list[str], rng: random.Random) -> list[str]:
    """Kill one of the three while there are changes, and start it again; what was wrong."""
    runs, faults = ["one", "two"], []
    threading.Timer(rng.random() * 1.5, trio.processes[victim].send_signal, (signal.SIGKILL,)).start()
    try:
        while trio.processes[victim].poll() is None:
            change(trio.clients[WRITER], state, items, runs, rng)
    except httpx.TransportError:  # the writer was killed
        pass
    trio.processes[victim].wait()
    trio.clients[victim].close()
    if victim == WRITER:
        begin = time.monotonic()
        while any(map(is_connected, trio.replicas.values())):
            has_item(trio.clients[FOLDER], items[0])
            if time.monotonic() - begin > PATIENCE_SECONDS:
                faults.append("a replica does not notice that the writer is away")
                break
        took = time.monotonic() - begin
        print(f"  replicas answered, and said after {took:.1f} s that the writer is away", flush=True)
        faults += check(trio.start(WRITER), state)
    else:
        for _ in range(rng.randrange(20)):
            change(trio.clients[WRITER], state, items, runs, rng)
        begin = time.monotonic()
        faults += [f"{victim}: {fault}" for fault in check(trio.start(victim), state)]
        print(f"  it had all changes when it answered, {time.monotonic() - begin:.1f} s after its start", flush=True)
    state.pending = None
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m stress.replicas", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, state, failures = random.Random(args.seed), ServiceState(), 0
    delays: dict[str, list[float]] = {FOLDER: [], ADDRESS: []}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("one", "two"):
            shutil.copytree(args.run, Path(folder, name), symlinks=True)
        trio = Trio(Path(folder))
        try:
            for name in (WRITER, FOLDER, ADDRESS):
                trio.start(name)
            for kill in range(args.kills):
                victim = [WRITER, FOLDER, ADDRESS][kill % 3]
                items = trained_items(trio.clients[WRITER])
                for name, seconds in measure(trio, state, items, rng).items():
                    delays[name] += seconds
                print(f"{kill + 1}: the {victim} is killed", flush=True)
                faults = kill_one(trio, victim, state, items, rng)
                took = wait_until_same(trio)
                for name, client in trio.clients.items():
                    faults += [f"{name}: {fault}" for fault in check(client, state)]
                print(f"  all three serve the same, {took:.1f} s later", flush=True)
                if faults:
                    print(f"  FAILED: {faults[:3]}", flush=True)
                failures += bool(faults)
        finally:
            trio.close()
    for name, seconds in delays.items():
        late = sum(each > LIMIT_SECONDS for each in seconds)
        failures += late
        print(
            f"{name}: {len(seconds)} changes seen after {statistics.median(seconds):.3f} s in the median"
            f" and {max(seconds):.3f} s at most, {late} later than {LIMIT_SECONDS:g} s"
        )
    print(f"{args.kills} kills, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

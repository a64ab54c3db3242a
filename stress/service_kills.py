"""Kill a service while items, events and runs change. After a restart, all acknowledged changes must be there.

python -m stress.service_kills RUN --kills 100
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

import httpx


class ServiceState:
    """The changes that a service has acknowledged, and the one that it may or may not have made."""

    def __init__(self) -> None:
        self.items: dict[str, bool] = {}  # whether each is in the catalogue
        self.titles: dict[str, str] = {}
        self.events: dict[str, int] = {}
        self.run: str | None = None
        self.pending: tuple[str, str] | None = None


def launch(run: Path, *options: str, port: int = 0) -> subprocess.Popen[str]:
    """Start a service, which may not answer yet."""
    words = [sys.executable, "-m", "beamtree", "serve", str(run), "--port", str(port), *options]
    words += ["--timeout", "60000"]  # the first item with histories waits for a slow machine
    return subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def connect(process: subprocess.Popen[str]) -> httpx.Client:
    """A client of a service, once it answers."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "is served at" in line:
            threading.Thread(target=_read_to_end, args=(process.stderr,), daemon=True).start()
            return httpx.Client(base_url=line.split()[-1], timeout=90)
    process.stderr.close()
    process.wait()
    raise RuntimeError(f"the service did not start: {''.join(lines)[-500:]}")


def _read_to_end(stream: IO[str]) -> None:
    with stream:
        stream.read()


def start(run: Path, *options: str) -> tuple[subprocess.Popen[str], httpx.Client]:
    """Start a service, and a client for it once it answers."""
    process = launch(run, *options)
    return process, connect(process)


def change(client: httpx.Client, state: ServiceState, items: list[str], runs: list[str], rng: random.Random) -> None:
    """Make one random change, and record it when it is acknowledged."""
    kind = rng.random()
    if kind < 0.1:
        run = rng.choice(runs)
        state.pending = "run", run
        client.post("/v1/model", json={"run": run}).raise_for_status()
        state.run = run
    elif kind < 0.25:
        user = f"user-{rng.randrange(5)}"
        state.pending = "events", user
        client.post("/v1/events", json={"user": user, "items": rng.sample(items, 2)}).raise_for_status()
        state.events[user] = state.events.get(user, 0) + 2
    elif kind < 0.4:
        item, title = rng.choice(items[40:]), f"title {rng.random()}"
        state.pending = "title", item
        client.patch(f"/v1/items/{item}", json={"title": title}).raise_for_status()
        state.titles[item] = title
    else:
        item = rng.choice([f"new {rng.randrange(40)}", rng.choice(items[:40])])
        add = rng.random() < 0.6
        state.pending = "item", item
        others = rng.sample(items[40:], 3)
        facts = {"like": others, "title": item.title()} if rng.random() < 0.5 else {"histories": [others, others[:2]]}
        forget = {"forget": rng.random() < 0.2}
        url = f"/v1/items/{item}"
        (client.put(url, json=facts) if add else client.delete(url, params=forget)).raise_for_status()
        state.items[item] = add
    state.pending = None


def trained_items(client: httpx.Client) -> list[str]:
    """Some items that the run was trained on."""
    items = client.get("/v1/items", params={"limit": 100}).json()["items"]
    return sorted(each["item"] for each in items if not each["item"].startswith("new "))


def check(client: httpx.Client, state: ServiceState) -> list[str]:
    """Faults where the service does not have the acknowledged state."""
    faults = []
    if state.pending is not None and state.pending[0] == "item":
        state.items.setdefault(state.pending[1], False)
    for item, expected in state.items.items():
        response = client.post("/v1/recommend", json={"history": [], "m": 1, "allowed": [item]}).json()
        present = bool(response["results"][0]["items"])
        if state.pending == ("item", item):  # not acknowledged: either is right
            state.items[item] = present
        elif present != expected:
            faults.append(f"{item}: {'lost' if expected else 'came back'}")
    for user, count in state.events.items():
        history = client.get(f"/v1/users/{user}").json().get("history", [])
        if len(history) < count:
            faults.append(f"{user} has {len(history)} events of {count}")
    for item, title in state.titles.items():
        shown = client.get(f"/v1/items/{item}").json()["title"]
        if state.pending == ("title", item):
            state.titles[item] = shown
        elif shown != title:
            faults.append(f"{item} has the title {shown!r}, and got {title!r}")
    served = client.get("/v1/model").json().get("run")
    if state.pending is not None and state.pending[0] == "run":
        state.run = served
    elif state.run is not None and served != state.run:
        faults.append(f"{served} is served, and {state.run} was chosen")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m stress.service_kills", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, state, failures = random.Random(args.seed), ServiceState(), 0
    with tempfile.TemporaryDirectory() as folder:
        runs = ["one", "two"]
        for name in runs:
            shutil.copytree(args.run, Path(folder, name), symlinks=True)
        for kill in range(args.kills):
            process, client = start(Path(folder, "one"), "--changes", str(Path(folder, "changes")))
            faults = check(client, state)
            failures += bool(faults)
            if faults:
                print(f"FAILED after kill {kill}: {faults[:3]}", flush=True)
            state.pending = None
            items = trained_items(client)
            threading.Timer(rng.random() * 1.5, process.send_signal, (signal.SIGKILL,)).start()
            try:
                while process.poll() is None:
                    change(client, state, items, runs, rng)
            except httpx.TransportError:
                pass
            client.close()
            process.wait()
    print(f"{args.kills} kills, {failures} failures, {len(state.items)} items, {sum(state.events.values())} events")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

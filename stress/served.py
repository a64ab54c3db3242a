"""Kills of a service while items come and go and runs are swapped; after each, the last acknowledged state.

python -m stress.served RUN --kills 100
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

import httpx


class Told:
    """What the service acknowledged, and the one change that it may or may not have made."""

    def __init__(self) -> None:
        self.items: dict[str, bool] = {}  # whether each is there
        self.events: dict[str, int] = {}
        self.run: str | None = None
        self.open: tuple[str, str] | None = None


def start(run: Path, changes: Path) -> tuple[subprocess.Popen[str], httpx.Client]:
    """A service and a client of it, once it answers."""
    words = [sys.executable, "-m", "beamtree", "serve", str(run), "--port", "0", "--changes", str(changes)]
    words += ["--timeout", "60000"]  # the first item with histories waits for a slow machine
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "is served at" in line:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, httpx.Client(base_url=line.split()[-1], timeout=90)
    raise RuntimeError(f"the service did not start: {''.join(lines)[-500:]}")


def change(client: httpx.Client, told: Told, known: list[str], runs: list[str], draw: random.Random) -> None:
    """One change, and what was acknowledged."""
    kind = draw.random()
    if kind < 0.1:
        run = draw.choice(runs)
        told.open = "run", run
        client.post("/v1/model", json={"run": run}).raise_for_status()
        told.run = run
    elif kind < 0.25:
        user = f"user-{draw.randrange(5)}"
        told.open = "events", user
        client.post("/v1/events", json={"user": user, "items": draw.sample(known, 2)}).raise_for_status()
        told.events[user] = told.events.get(user, 0) + 2
    else:
        item = draw.choice([f"new {draw.randrange(40)}", draw.choice(known[:40])])
        add = draw.random() < 0.6
        told.open = "item", item
        others = draw.sample(known[40:], 3)
        facts = {"like": others, "title": item.title()} if draw.random() < 0.5 else {"histories": [others, others[:2]]}
        forget = {"forget": draw.random() < 0.2}
        url = f"/v1/items/{item}"
        (client.put(url, json=facts) if add else client.delete(url, params=forget)).raise_for_status()
        told.items[item] = add
    told.open = None


def learned(client: httpx.Client) -> list[str]:
    """Some items that the run was trained on."""
    items = client.get("/v1/items", params={"limit": 100}).json()["items"]
    return sorted(each["item"] for each in items if not each["item"].startswith("new "))


def check(client: httpx.Client, told: Told) -> list[str]:
    """What of the acknowledged state is not there."""
    faults = []
    if told.open is not None and told.open[0] == "item":
        told.items.setdefault(told.open[1], False)
    for item, there in told.items.items():
        found = client.post("/v1/recommend", json={"history": [], "m": 1, "allowed": [item]}).json()
        is_there = bool(found["results"][0]["items"])
        if told.open == ("item", item):  # nobody was told: from now on it is as it is
            told.items[item] = is_there
        elif is_there != there:
            faults.append(f"{item}: {'lost' if there else 'came back'}")
    for user, count in told.events.items():
        have = client.get(f"/v1/users/{user}").json().get("history", [])
        if len(have) < count:
            faults.append(f"{user} has {len(have)} events of {count}")
    served = client.get("/v1/model").json().get("run")
    if told.open is not None and told.open[0] == "run":
        told.run = served
    elif told.run is not None and served != told.run:
        faults.append(f"{served} is served, and {told.run} was chosen")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m stress.served", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draw, told, failures = random.Random(args.seed), Told(), 0
    with tempfile.TemporaryDirectory() as folder:
        runs = ["one", "two"]
        for name in runs:
            shutil.copytree(args.run, Path(folder, name), symlinks=True)
        for kill in range(args.kills):
            process, client = start(Path(folder, "one"), Path(folder, "changes"))
            faults = check(client, told)
            failures += bool(faults)
            if faults:
                print(f"FAILED after kill {kill}: {faults[:3]}", flush=True)
            told.open = None
            known = learned(client)
            threading.Timer(draw.random() * 1.5, process.send_signal, (signal.SIGKILL,)).start()
            try:
                while process.poll() is None:
                    change(client, told, known, runs, draw)
            except httpx.TransportError:
                pass
            client.close()
            process.wait()
    print(f"{args.kills} kills, {failures} failures, {len(told.items)} items, {sum(told.events.values())} events")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

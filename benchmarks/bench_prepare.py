"""`beamtree prepare` on a simulated log: events per second and peak resident memory, measured in a process of its own.

python benchmarks/bench_prepare.py [--events N] [--items N] [--json FILE]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from beamtree.ingest.simulate import simulate

# The child reports as JSON; ru_maxrss counts kilobytes on Linux, bytes on a Mac.
CHILD = """
import json, resource, sys, time
from beamtree.ingest.prepare import prepare

started, stages = time.perf_counter(), []
say = lambda stage: (stages.append((time.perf_counter() - started, stage)), print(stage, file=sys.stderr, flush=True))
description = prepare(sys.argv[1], sys.argv[2], on_stage=say)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
seconds = time.perf_counter() - started
kept = {name: description[name] for name in ("num_users", "num_items", "num_events")}
print(json.dumps({"seconds": seconds, "peak_bytes": peak, "stages": stages, **kept}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--items", type=int, help="one for 25 events if not given: 4 million for 100 million events")
    parser.add_argument("--json")
    options = parser.parse_args()
    users, items = max(3, options.events // 20), options.items or max(2, options.events // 25)
    with tempfile.TemporaryDirectory() as folder:
        log, out = Path(folder, "log"), Path(folder, "prepared")
        simulate(log, users=users, items=items, events=options.events)
        words = [sys.executable, "-c", CHILD, str(log), str(out)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    record = {"bench": "prepare", "events": options.events, "users": users, "items": items, **found}
    record["events_per_second"] = options.events / found["seconds"]
    print(
        f"{options.events:,} events of {users:,} users and {items:,} items: {found['seconds']:.1f} s, "
        f"{record['events_per_second']:,.0f} events per second, {found['peak_bytes'] / 2**30:.2f} GiB at most"
    )
    if options.json:
        Path(options.json).write_text(json.dumps([record], indent=1) + "\n")


if __name__ == "__main__":
    main()

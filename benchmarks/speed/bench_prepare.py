"""`beamtree prepare` with each engine on the same log: seconds, and the peak memory of all its processes.

The log is synthetic, in parts of one day each. Memory is the proportional set size (PSS), summed over the command and
all its child processes, including those of Ray and its object store.

python benchmarks/speed/bench_prepare.py [--parts N] [--rows N] [--engines here,ray] [--log FOLDER] [--json FILE]
"""

import argparse
import filecmp
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

DAY = 86_400
EVERY = 0.3  # seconds between two looks at the memory


def make_log(folder: Path, parts: int, rows: int) -> None:
    """Users as active as in `simulate`, 20 events each on average; one item for 25 events, by Zipf's law."""
    users, items = max(100, parts * rows // 20), max(100, parts * rows // 25)
    rng = np.random.default_rng(0)
    active = np.cumsum(rng.lognormal(0, 1.164, users))
    popular = np.cumsum(rng.permutation(np.arange(1, items + 1) ** -0.67))
    folder.mkdir(parents=True)
    for part in range(parts):
        draw = np.random.default_rng([1, part])
        frame = pl.DataFrame(
            {
                "user": np.searchsorted(active, np.sort(draw.random(rows)) * active[-1]),
                "item": np.searchsorted(popular, np.sort(draw.random(rows)) * popular[-1]),
            }
        )
        ids = [
            pl.format(f"{name[0]}{{}}", pl.col(name).cast(pl.String).str.zfill(8)).alias(name) for name in frame.columns
        ]
        days = [column.shuffle(seed=part * 2 + n) for n, column in enumerate(frame.select(ids))]
        times = np.sort(draw.integers(0, DAY, rows)) + DAY * part
        pl.DataFrame([*days, pl.Series("timestamp", times)]).write_parquet(folder / f"part-{part:05}.parquet")


def measure(words: list[str]) -> tuple[float, int]:
    """The seconds that a command takes, and the peak memory of it and its children in bytes."""
    start, peak = time.perf_counter(), 0
    command = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while command.poll() is None:
        peak = max(peak, sum(map(memory, process_tree(command.pid))))
        time.sleep(EVERY)
    if command.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {command.returncode}")
    return time.perf_counter() - start, peak


def process_tree(root: int) -> Iterator[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it is gone
            continue
        children.setdefault(parent, []).append(int(path.name))
    waiting = [root]
    while waiting:
        process = waiting.pop()
        yield process
        waiting += children.get(process, [])


def memory(process: int) -> int:
    """The proportional set size of a process, in bytes: what it shares with others is divided among them."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--rows", type=int, default=250_000, help="of each part")
    parser.add_argument("--engines", default="here,ray")
    parser.add_argument("--log", help="a folder to make the log in, or to find it in")
    parser.add_argument("--json")
    args = parser.parse_args()
    events, records = args.parts * args.rows, []
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(args.log or Path(temporary, "log"))
        if not log.exists():
            make_log(log, args.parts, args.rows)
        outs = []
        for engine in args.engines.split(","):
            outs.append(Path(temporary, engine))
            words = ["prepare", str(log), "--out", str(outs[-1]), "--engine", engine]
            seconds, peak = measure([sys.executable, "-m", "beamtree", *words])
            speed = events / seconds
            print(f"{engine}: {events:,} events in {seconds:.1f} s ({speed:,.0f} per second), {peak / 2**30:.2f} GiB")
            records.append({"bench": "prepare", "engine": engine, "events": events, "seconds": seconds, "bytes": peak})
        for out in outs[1:]:
            differ = [name for name in os.listdir(out) if not filecmp.cmp(out / name, outs[0] / name, shallow=False)]
            print(f"{out.name}: {'the same files' if not differ else f'other files: {differ}'}")
    if args.json:
        Path(args.json).write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()

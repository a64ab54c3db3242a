"""The closed form with one and with two threads, alone and beside a busy process: seconds, and their ratio.

python benchmarks/speed/bench_threads.py --users 1000 --items 1000 --events 60000
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import beamtree as bt
from beamtree.data import Prepared
from beamtree.ingest.simulate import simulate
from beamtree.parts import PARTS
from beamtree.parts.closed_form import ClosedForm
from beamtree.train.recipes import first_level
from beamtree.tree import Tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="a prepared folder; a simulated log unless given")
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--events", type=int, default=60_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.data or Path(temporary) / "prepared")
        if not args.data:
            log = Path(temporary) / "market.parquet"
            simulate(log, users=args.users, items=args.items, events=args.events)
            bt.prepare(log, folder, split="halves")
        data = bt.load_data(folder)
        tree = bt.cluster_tree(data, seed=0)
        for busy in (False, True):
            one, two = (measure(data, tree, threads, busy) for threads in (1, 2))
            where = "beside a busy process" if busy else "alone"
            print(f"{where}: one thread {one[0]:.1f} s ({one[1]:.1f} s of CPU), two {two[0]:.1f} s ({two[1]:.1f} s)")
            print(f"  two threads take {two[0] / one[0]:.2f} times as long as one", flush=True)


def measure(data: Prepared, tree: Tree, threads: int, busy: bool) -> tuple[float, float]:
    """Seconds on the clock and of CPU."""
    torch.set_num_threads(threads)
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        clock, cpu = time.perf_counter(), time.process_time()
        ClosedForm(tree, data, 0, "cpu", first_level(tree, 100), parts=PARTS).fit()
        return time.perf_counter() - clock, time.process_time() - cpu
    finally:
        if neighbour is not None:
            neighbour.kill()


if __name__ == "__main__":
    main()

"""Item-CF over several splits of a log, beside what a published row says: mean and spread.

    python benchmarks/item_cf.py LOG [--splits 5] [--history 69] [--expect 13.1,6.9,4.9,3.4,11.4,19.5,23.3,27.4]

Events of one time are put in any order, anew for each split: a log that was sorted by time alone says no more. With
--history, test users are known by that many of their newest events; by all of them unless given.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

import beamtree as bt
from beamtree.evaluate import leaving_out, measure
from beamtree.research.baselines.neighbours import item_cf

CUTS = (10, 50, 100, 200)


def row(log: Path, seed: int, history: int | None, folder: Path) -> list[float]:
    """Precision and recall at every cut, percent, of one split."""
    shuffled = folder / "log.parquet"
    pl.read_parquet(log).sample(fraction=1.0, shuffle=True, seed=seed).write_parquet(shuffled)
    bt.prepare([shuffled], folder / f"split-{seed}", test_users=1000, val_users=0, seed=seed)
    data = bt.load_data(folder / f"split-{seed}")
    model = item_cf(data.train.events, data.num_items)
    users = replace(data.test, history=history or int(data.test.events.counts().max()))
    found = measure(leaving_out(model.retrieve, max(CUTS)), users, m=CUTS, batch_size=100)
    return [100 * found[metric, cut] for metric in ("precision", "recall") for cut in CUTS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--history", type=int)
    parser.add_argument("--expect", type=lambda text: [float(number) for number in text.split(",")])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = np.array([row(options.log, seed, options.history, Path(folder)) for seed in range(options.splits)])
    names = [f"{metric}@{cut}" for metric in "PR" for cut in CUTS]
    for place, name in enumerate(names):
        mean, spread = rows[:, place].mean(), rows[:, place].std(ddof=1)
        beside = ""
        if options.expect:
            beside = f"   expected {options.expect[place]:.1f}, ours {mean / options.expect[place] - 1:+.1%}"
        print(f"{name:6} {mean:6.2f}, splits differ by {spread:.2f}{beside}")


if __name__ == "__main__":
    main()

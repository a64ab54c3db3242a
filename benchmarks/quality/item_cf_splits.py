"""Item-CF over several splits of a log: mean and standard deviation, and the difference from published numbers.

    python benchmarks/quality/item_cf_splits.py LOG [--splits 5] [--history 69]
        [--expect 13.1,6.9,4.9,3.4,11.4,19.5,23.3,27.4]

Events of the same time are shuffled for each split, because a log sorted by time does not order them. With --history,
only the newest events of test users are used; by default all.
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
    bt.prepare([shuffled], folder / f"split-{seed}", split="halves", test_users=1000, val_users=0, seed=seed)
    data = bt.load_data(folder / f"split-{seed}")
    model = item_cf(data.train.events, data.num_items)
    users = replace(data.test, history=history or int(data.test.events.counts().max()))
    evaluation = measure(leaving_out(model.retrieve, max(CUTS)), users, m=CUTS, batch_size=100)
    return [100 * evaluation[metric, cut] for metric in ("precision", "recall") for cut in CUTS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--history", type=int)
    parser.add_argument("--expect", type=lambda text: [float(number) for number in text.split(",")])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = np.array([row(args.log, seed, args.history, Path(folder)) for seed in range(args.splits)])
    names = [f"{metric}@{cut}" for metric in "PR" for cut in CUTS]
    for index, name in enumerate(names):
        mean, deviation = rows[:, index].mean(), rows[:, index].std(ddof=1)
        comparison = ""
        if args.expect:
            comparison = f"   expected {args.expect[index]:.1f}, ours {mean / args.expect[index] - 1:+.1%}"
        print(f"{name:6} {mean:6.2f}, splits differ by {deviation:.2f}{comparison}")


if __name__ == "__main__":
    main()

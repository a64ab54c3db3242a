"""Rows of a comparison without the command: for a machine that has torch and numpy alone.

python benchmarks/rows.py prepared/diginetica --rows sasrec,youtube-dnn --device cuda --steps 10000 --out results/rows
"""

import argparse
import json
import time
from pathlib import Path

import beamtree as bt
from beamtree.research.compare import Plan, compare
from beamtree.research.compare.results import records
from beamtree.train.recipes import default_sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--metrics", default="precision,recall,f1")
    parser.add_argument("--m", default="10,50,100,200")
    parser.add_argument("--exclude-seen", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    began = time.monotonic()
    data, usual = bt.load_data(args.data), default_sizes(args.device)
    plan = Plan(
        data, bt.cluster_tree(data, arity=2, seed=args.seed), args.out / args.data.name, tree_name="cluster",
        device=args.device, seed=args.seed, beam_size=usual.beam_size, batch_size=usual.batch_size,
        steps=args.steps or usual.steps, m=tuple(map(int, args.m.split(","))), metrics=tuple(args.metrics.split(",")),
        exclude_seen=args.exclude_seen, say=lambda line: print(args.data.name, line, flush=True),
    )  # fmt: skip
    for row in args.rows.split(","):
        found = records(compare(plan, [row]))
        name = f"{args.data.name}-{row}{'-unseen' if args.exclude_seen else ''}.json"
        (args.out / name).write_text(json.dumps(found, indent=1) + "\n")
        shown = [round(100 * cell["value"], 2) for cell in found if cell.get("metric") == "recall"]
        print(f"{args.data.name} {row} [{time.monotonic() - began:.0f} s] recall {shown}", flush=True)


if __name__ == "__main__":
    main()

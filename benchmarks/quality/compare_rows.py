"""Rows of a comparison without the command line and its libraries: tree rows and SASRec need only torch and numpy.

    python benchmarks/quality/compare_rows.py prepared/diginetica --rows sasrec,otm --device cuda --steps 10000
        --out results/rows

`beamtree compare` with the same settings reads the folder OUT/LOG and adds rows to it. The records of every row are
also written to OUT/LOG-ROW.json.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import beamtree as bt
from beamtree.research.compare import ROWS, Experiment, compare, markdown, records
from beamtree.train.recipes import RECIPES, default_sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", required=True, help=f"any of {', '.join(ROWS)}, separated by commas")
    parser.add_argument("--recipe", default="deep", choices=list(RECIPES))
    parser.add_argument("--own-trees", action="store_true")
    parser.add_argument("--beam-size", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--metrics", default="precision,recall,f1")
    parser.add_argument("--m", default="10,50,100,200")
    parser.add_argument("--exclude-seen", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    start = time.monotonic()
    data, sizes, name = bt.load_data(args.data), default_sizes(args.device), args.data.name
    done = 0

    def on_steps(steps: int) -> None:
        nonlocal done
        done += steps
        if done // 1000 > (done - steps) // 1000:
            print(f"{name} {done:,} steps [{time.monotonic() - start:.0f} s]", flush=True)

    experiment = Experiment(
        data, bt.cluster_tree(data, arity=2, seed=args.seed), args.out / name, tree_name="cluster",
        recipe=args.recipe, own_trees=args.own_trees, device=args.device, seed=args.seed,
        beam_size=args.beam_size or sizes.beam_size, batch_size=args.batch_size or sizes.batch_size,
        steps=args.steps or sizes.steps, m=tuple(map(int, args.m.split(","))), metrics=tuple(args.metrics.split(",")),
        on_message=lambda line: print(name, line, flush=True), on_steps=on_steps,
    )  # fmt: skip
    results = []
    for row in args.rows.split(","):
        results += compare(experiment, [row])
        file = args.out / f"{name}-{row}{'-unseen' if args.exclude_seen else ''}.json"
        result = results[-1].unseen if args.exclude_seen else replace(results[-1], unseen=None)
        file.write_text(json.dumps(records([result]), indent=1) + "\n")
        print(f"{name} {row} [{time.monotonic() - start:.0f} s]", flush=True)
    print(markdown(results))


if __name__ == "__main__":
    main()

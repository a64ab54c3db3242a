"""Rows of a comparison on prepared data, for a GPU machine that has torch and safetensors alone: flat rows need more.

    python benchmarks/quality.py prepared/books --rows plt,tdm,otm --out comparison [--device cuda] [--steps N]

The same as `beamtree compare` without the command line and its libraries: what it leaves in the folder, `beamtree
compare` with the same settings reads, adds other rows to, and shows.
"""

import argparse
from pathlib import Path

from beamtree import cluster_tree, load_data
from beamtree.research.compare import ROWS, Plan, compare
from beamtree.research.compare.results import markdown
from beamtree.train.recipes import RECIPES, default_sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--rows", default="otm-mixed", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--out", default="comparison")
    parser.add_argument("--own-trees", action="store_true")
    parser.add_argument("--recipe", default="beamtree", choices=list(RECIPES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--beam-size", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    usual, data = default_sizes(options.device), load_data(options.data)
    plan = Plan(
        data,
        cluster_tree(data, seed=options.seed),
        Path(options.out),
        tree_name="cluster",
        recipe=options.recipe,
        beam_size=options.beam_size or usual.beam_size,
        batch_size=options.batch_size or usual.batch_size,
        steps=options.steps or usual.steps,
        device=options.device,
        seed=options.seed,
        own_trees=options.own_trees,
        say=lambda line: print(line, flush=True),
    )
    print(markdown(compare(plan, options.rows.split(","))))


if __name__ == "__main__":
    main()

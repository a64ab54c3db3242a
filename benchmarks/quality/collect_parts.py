"""Average runs of part_ablation.py over seeds, in percent, for the pages.

python benchmarks/quality/collect_parts.py RUNS/*.json --out results/parts.json
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

METRICS = ("recall", "precision", "f1", "ndcg")


def averages(files: list[Path]) -> list[dict[str, Any]]:
    """One record per log, recipe, method, model, beam and exclude_seen: the values of every metric by cut."""
    values_of: dict[tuple[Any, ...], dict[str, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(dict))
    seeds: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for file in sorted(files):
        for cell in json.loads(file.read_text()):
            if cell["metric"] not in METRICS:
                continue
            key = tuple(cell[name] for name in ("data", "recipe", "method", "model", "beam_size", "exclude_seen"))
            seeds[key].add(cell["seed"])
            values_of[key][cell["metric"]].setdefault(cell["m"], []).append(100 * cell["value"])
    names = ("log", "recipe", "method", "model", "k", "exclude_seen")
    return [
        {
            **dict(zip(names, key, strict=True)),
            "seeds": len(seeds[key]),
            **{
                metric: {str(m): round(mean(values), 2) for m, values in sorted(cuts.items())}
                for metric, cuts in metrics.items()
            },
        }
        for key, metrics in sorted(values_of.items())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--settings", default="", help="How it was measured.")
    args = parser.parse_args()
    lines = ",\n  ".join(json.dumps(cell) for cell in averages(args.runs))
    args.out.write_text(f'{{\n "settings": {json.dumps(args.settings)},\n "cells": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()

"""One beam over several trees of the same items, beside one tree with a wider beam.

    python benchmarks/quality/several_trees.py movielens-1m.parquet --json results/several_trees.json

The trees are cluster trees of other seeds, and the scores of items are the same on all of them. Each tree is searched
with a beam of k, and the best k of all items that were found are the answer. One tree with a beam of 2k or 3k visits
as many nodes. `best` is the share of the best k items that were found. Times are of one query on one thread.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import torch
from torch import Tensor

import beamtree as bt
from beamtree.beam import retrieve
from beamtree.evaluate.metrics import hits
from beamtree.ingest.inputs import tree_builder
from beamtree.model import TreeModel
from beamtree.scorers import with_inputs
from beamtree.tree import PAD, first_of_each

sys.path.append(str(Path(__file__).parent.parent / "speed"))
from timing import times

BEAMS, WIDE = (20, 50), 2000
TIMED = 300  # queries


def best_of_all(models: Sequence[TreeModel], x: Tensor, beam_size: int, m: int) -> Tensor:
    """The m best items that a beam finds on any of the trees [B, m]."""
    if len(models) == 1:
        return retrieve(models[0], x, beam_size=beam_size, m=m)[0]
    found = [retrieve(model, x, beam_size=beam_size, m=m) for model in models]
    items, scores = (torch.cat(each, dim=1) for each in zip(*found, strict=True))
    order = items.argsort(dim=1)
    items, scores = items.gather(1, order), scores.gather(1, order)
    scores = scores.masked_fill(~first_of_each(items) | (items == PAD), -torch.inf)
    best = scores.topk(m, dim=1)
    return items.gather(1, best.indices).masked_fill(best.values == -torch.inf, PAD)


def mean_and_interval(values: Tensor) -> list[float]:
    """The mean over users and half of its 95 % interval."""
    return [round(float(values.mean()), 2), round(float(1.96 * values.std() / len(values) ** 0.5), 2)]


def milliseconds(models: Sequence[TreeModel], x: Tensor, beam_size: int, m: int) -> float:
    """The median time of a query."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    queries = cycle(x.split(1))
    spent = times(lambda: best_of_all(models, next(queries), beam_size, m), "cpu", TIMED, warm_up=50)
    torch.set_num_threads(threads)
    return round(statistics.median(spent), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", help="A log, or a folder written by `beamtree prepare`.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--users", type=int, default=1000, help="Test users.")
    parser.add_argument("--sequence", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--json", type=Path, help="A file to which the cells are added.")
    args = parser.parse_args()
    shop = bt.Recommender(seed=args.seed, sequence=args.sequence, refit=False)
    data = shop.fit(args.log, split=None if Path(args.log).is_dir() else "halves").data
    build = tree_builder("cluster")
    model = shop.model.eval()
    models = [model, *(model.on_tree(build(data, model.tree.arity, args.seed + 1 + n)) for n in range(2))]
    models = [each.eval() for each in models]
    x, y = with_inputs(model.scorer, data.test).batch(torch.arange(min(args.users, len(data.test))))
    cells = []
    for k in BEAMS:
        exact = best_of_all(models[:1], x, WIDE, k)
        for name, trees, width in (
            ("one tree", models[:1], k),
            ("two trees", models[:2], k),
            ("one tree, a beam of 2k", models[:1], 2 * k),
            ("three trees", models, k),
            ("one tree, a beam of 3k", models[:1], 3 * k),
        ):
            found = best_of_all(trees, x, width, k)
            recall = 100 * hits(found, y).sum(1) / (y != PAD).sum(1).clamp(min=1)
            best = 100 * hits(found, exact).sum(1) / (exact != PAD).sum(1).clamp(min=1)
            cell = {"log": Path(args.log).stem, "k": k, "row": name, "recall": mean_and_interval(recall)}
            cells.append({**cell, "best": mean_and_interval(best), "ms": milliseconds(trees, x, width, k)})
            print(cells[-1], flush=True)
    if args.json is not None:
        before = json.loads(args.json.read_text())["cells"] if args.json.exists() else []
        lines = ",\n  ".join(json.dumps(cell) for cell in [*before, *cells])
        command = "benchmarks/quality/several_trees.py LOG, a CPU"
        args.json.write_text(f'{{\n "command": "{command}",\n "cells": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()

"""Ablation: the recall of all parts of a score, without each, of each alone, and of training, at several beams.

    python benchmarks/quality/part_ablation.py prepared/movielens-1m --seed 0 --device cuda --steps 10000
        --json runs/movielens-1m-0.json

It needs only torch and numpy. To run several at a time on one GPU, set OMP_NUM_THREADS=1.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import beamtree as bt
from beamtree.live.refit import refit_parts
from beamtree.model import TreeModel
from beamtree.scorers import as_sum
from beamtree.train.options import TrainingOptions
from beamtree.train.recipes import build_model, resolve_settings, train_model

CUTS, BEAMS = (5, 10, 50, 100, 200), (20, 50, 400)


def measure(
    model: TreeModel, data: bt.data.Prepared, name: str, beams: tuple[int, ...], exclude_seen: bool
) -> list[Any]:
    """The scores of a model on the test users, as flat records."""
    records = []
    for beam_size in beams:
        cuts = tuple(cut for cut in (*CUTS, 20) if cut <= beam_size)
        metrics = ("precision", "recall", "f1", "ndcg")
        scores = bt.evaluate(
            model, data.test, beam_size=beam_size, m=cuts, metrics=metrics, exclude_seen=exclude_seen, batch_size=200
        )
        for score in scores.scores:
            cell = {"model": name, "beam_size": beam_size, "metric": score.metric, "m": score.m}
            records.append(
                {**cell, "exclude_seen": exclude_seen, "value": score.value, "low": score.low, "high": score.high}
            )
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="otm-mixed")
    parser.add_argument("--recipe", default="beamtree", help="beamtree, or deep for the network alone.")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tree", type=Path, help="The slots of a tree, as a NumPy file. Default: a cluster tree.")
    parser.add_argument("--refit", action="store_true", help="Also refit the parts with the validation users.")
    parser.add_argument("--both-ways", action="store_true", help="Also leave out seen items.")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    began = time.monotonic()
    data = bt.load_data(args.data)

    def say(line: str) -> None:
        print(f"{args.data.name} {args.method} {args.seed} [{time.monotonic() - began:.0f} s] {line}", flush=True)

    settings = resolve_settings(
        data,
        TrainingOptions(recipe=args.recipe, method=args.method, steps=args.steps, seed=args.seed, device=args.device),
    )
    tree = bt.cluster_tree(data, arity=2, seed=args.seed) if args.tree is None else bt.Tree(np.load(args.tree))
    made = time.monotonic()
    model = build_model(settings, data, tree)
    seconds = {"tree": made - began, "start": time.monotonic() - made}
    both = (False, True) if args.both_ways else (False,)
    records = [cell for exclude_seen in both for cell in measure(model, data, "start", BEAMS, exclude_seen)]
    say(f"start: {[round(cell['value'], 4) for cell in records if cell['metric'] == 'recall']}")
    about = {
        "data": args.data.name,
        "seed": args.seed,
        "method": args.method,
        "recipe": args.recipe,
        "device": args.device,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)

    def write() -> None:
        args.json.write_text(json.dumps([{**about, **cell} for cell in records]) + "\n")

    write()  # in case training is stopped
    made = time.monotonic()
    progress = train_model(settings, data, model, on_check=lambda step, recall: say(f"step {step}: {recall:.4f}"))
    seconds["training"] = time.monotonic() - made
    records += [cell for exclude_seen in both for cell in measure(model, data, "trained", BEAMS, exclude_seen)]
    say(f"trained: {[round(cell['value'], 4) for cell in records if cell['metric'] == 'recall']}")
    scorer = as_sum(model.scorer)
    if scorer is not None:
        weights = {name: scorer.weight_of(name) for name in scorer.names}
        for name in (name for name in scorer.names if weights[name]):
            ablated = TreeModel(model.tree, scorer.without(name), first_level=model.first_level).to(args.device)
            records += measure(ablated, data, f"without {name}", (400,), False)
            alone = TreeModel(model.tree, scorer.part(name), first_level=model.first_level).to(args.device)
            records += measure(alone, data, f"{name} alone", (400,), False)
        records += [{"metric": "weight", "part": name, "value": value} for name, value in weights.items()]
    records += [{"metric": "seconds", "what": what, "value": value} for what, value in seconds.items()]
    records += [{"metric": "steps", "value": progress.step}, {"metric": "best_step", "value": progress.best_step}]
    if args.refit:
        model = refit_parts(model, data, data.joined(data.sections[:2]), args.seed)
        records += [cell for exclude_seen in both for cell in measure(model, data, "refitted", BEAMS, exclude_seen)]
    write()
    say("done")


if __name__ == "__main__":
    main()

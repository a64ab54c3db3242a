"""What the sequence part finds beside the closed form, on the test users of a prepared log.

python benchmarks/quality/sequence_part.py prepared/LOG --device cuda --seed 0 --out runs/LOG

`unseen` is recall and NDCG at 10 without items that a user has had. Rows "without times" ask a model that reads the
clock without the times of the events and of the request. `--more 2` adds two further transformers of other seeds, and
`--deep 10000` trains the network of the paper for so many steps beside the rest.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import beamtree as bt
from beamtree.beam import brute_force, retrieve
from beamtree.data import Prepared
from beamtree.data.inputs import NO_TIME
from beamtree.evaluate import measure
from beamtree.parts import Fitting
from beamtree.parts.deep import DEEP, DeepPart
from beamtree.parts.sequence import SEQUENCE, SequencePart, sequence_settings
from beamtree.scorers import SumScorer, with_inputs
from beamtree.train.backend import current_backend
from beamtree.train.options import TrainingOptions
from beamtree.train.recipes import build_model, resolve_settings, train_model

M = (10, 50, 100, 200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", default="{}", help="SequenceSettings that differ from the default, as JSON")
    parser.add_argument("--length", type=int, help="events of a history that are read")
    parser.add_argument("--more", type=int, default=0)
    parser.add_argument("--deep", type=int, default=0)
    parser.add_argument("--each", action=argparse.BooleanOptionalAction, default=True, help="rows of each part")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = bt.load_data(args.folder)
    options = TrainingOptions(steps=0, beam_size=400, device=args.device, seed=args.seed)
    began = time.monotonic()
    tree = bt.cluster_tree(data, arity=2, seed=args.seed)
    model = build_model(resolve_settings(data, options), data, tree)
    model.scorer = model.scorer.drop_zero_parts()
    report(args, "closed form", model, data, began)
    assert isinstance(model.scorer, SumScorer)
    settings = replace(sequence_settings(data, args.device), **json.loads(args.settings))
    began = time.monotonic()
    fitting = Fitting(tree, data, args.seed, args.device, model.first_level)
    scorer = SequencePart(settings, length=args.length).add(model.scorer, fitting)
    both = current_backend().place(model.with_scorer(scorer), args.device).eval()
    record = scorer.hyperparameters.get(SEQUENCE, {})
    report(args, "with sequence", both, data, began, **record)
    if scorer.reads_clock:
        report(args, "with sequence, without times", both, data, began, timeless=True)
    for count in range(1, args.more + 1):
        part = SequencePart(settings, length=args.length)
        part.name = f"{SEQUENCE}{count}"
        other = Fitting(tree, data, args.seed + 100 * count, args.device, model.first_level)
        scorer = part.add(scorer, other)
        both = current_backend().place(model.with_scorer(scorer), args.device).eval()
        report(args, f"with {count} more", both, data, began)
    if args.deep:
        deeper = replace(options, steps=args.deep)
        with_deep = DeepPart().add(scorer.to("cpu"), Fitting(tree, data, args.seed, "cpu", model.first_level))
        start = time.monotonic()
        last = current_backend().place(model.with_scorer(with_deep), args.device)
        train_model(resolve_settings(data, deeper), data, last)
        weight = last.scorer.weight_of(DEEP)
        report(args, "with deep", last.eval(), data, start, weight=weight)
        both = current_backend().place(both, args.device)
    if args.each:
        report(args, "with sequence, every leaf", both, data, began, every_leaf=True)
    for name in reversed(scorer.names) if args.each else [SEQUENCE]:
        alone = both.with_scorer(scorer.part(name))
        report(args, f"{name} alone", alone, data, began)
        if scorer.part(name).reads_clock:
            report(args, f"{name} alone, without times", alone, data, began, timeless=True)
        if len(scorer.names) > 1 and scorer.weight_of(name):
            report(args, f"without {name}", both.with_scorer(scorer.without(name)), data, began)
    if args.out:
        bt.save_model(both.cpu(), args.out)


def without_times(model: bt.TreeModel, x: Tensor) -> Tensor:
    """x as it would be if nobody knew when the events were."""
    inputs = model.scorer.columns.split(x)
    times, request = (torch.full_like(each, NO_TIME) for each in (inputs.times, inputs.request))
    return inputs._replace(times=times, request=request).joined()


def report(
    args: argparse.Namespace,
    row: str,
    model: bt.TreeModel,
    data: Prepared,
    began: float,
    every_leaf: bool = False,
    timeless: bool = False,
    **more: object,
) -> None:
    """Print recall at M and NDCG@10 of the test users as a line of JSON."""
    seconds = round(time.monotonic() - began)

    def find(x: Tensor, exclude: Tensor) -> Tensor:
        x, exclude = x.to(model.tree.device), exclude.to(model.tree.device)
        x = without_times(model, x) if timeless else x
        if every_leaf:
            return brute_force(model, x, m=max(M))[0]
        return retrieve(model, x, beam_size=400, m=max(M), exclude=exclude)[0]

    metrics = ("precision", "recall", "f1", "ndcg")
    users = with_inputs(model.scorer, data.test)
    result = measure(find, users, m=M, metrics=metrics)
    line = {
        "log": args.folder.name,
        "seed": args.seed,
        "row": row,
        **{name: [round(100 * float(result[name, m]), 2) for m in M] for name in metrics[:3]},
        "ndcg@10": round(100 * float(result["ndcg", 10]), 2),
        "mb": round(sum(each.nbytes for each in model.scorer.state_dict().values()) / 1e6, 1),
        "seconds": seconds,
    }
    if not every_leaf:
        unseen = measure(find, users, m=10, metrics=("recall", "ndcg"), exclude_seen=True)
        line["unseen"] = [round(100 * float(unseen[metric, 10]), 2) for metric in ("recall", "ndcg")]
    print(json.dumps({**line, **more}), flush=True)


if __name__ == "__main__":
    main()

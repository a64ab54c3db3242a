"""Milliseconds per query of the parts of a score: each alone, the closed-form parts together, and all.

python benchmarks/speed/bench_parts.py --items 100000                    # one query, one thread
python benchmarks/speed/bench_parts.py --items 4000000 --device cuda
"""

import argparse
import json
import statistics
from functools import partial
from pathlib import Path

import torch
from timing import times

import beamtree as bt
from beamtree.data.csr import CSR
from beamtree.scorers import (
    DeepScorer,
    FactorScorer,
    MemoryScorer,
    RepeatScorer,
    Scorer,
    SequenceScorer,
    SumScorer,
)
from beamtree.scorers.factors import Factors
from beamtree.scorers.memory import recency_weights
from beamtree.train.recipes import first_level


def random_partners(items: int, count: int) -> CSR:
    """Random partners for every item."""
    near = (torch.arange(items).unsqueeze(1) + torch.randint(1, 20 * count, (items, count))) % items
    return CSR(torch.arange(items + 1) * count, near.flatten().int(), torch.rand(items * count))


def scorers(tree: bt.Tree, dim: int, count: int) -> dict[str, Scorer]:
    """Each part, the closed-form parts together, and all."""
    factors = Factors(torch.randn(tree.num_items, dim) * 0.1, torch.rand(dim), 0.005, 0.003 * tree.num_items)
    lists = [random_partners(tree.num_items, count) for _ in range(2)]
    closed = {
        "factors": FactorScorer.from_factors(tree, factors, 0.6),
        "memory": MemoryScorer.from_partners(lists, [recency_weights(0.6), recency_weights(1.0, newest=20)]),
        "repeats": RepeatScorer(),
    }
    deep, sequence = DeepScorer(tree.num_nodes), SequenceScorer(tree.num_nodes, dim=128)
    sequence.table.half().requires_grad_(False)  # as trained ones are
    sums = {
        "closed form": closed,
        "with deep": {**closed, "deep": deep},
        "with sequence": {**closed, "sequence": sequence},
        "all": {**closed, "sequence": sequence, "deep": deep},
    }
    alone = {"deep": deep, **closed, "sequence": sequence}
    return {**alone, **{name: SumScorer(parts, tree.height) for name, parts in sums.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--beam-size", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--dim", type=int, default=192)
    parser.add_argument("--partners", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    tree = bt.Tree(torch.arange(args.items))
    x = torch.randint(args.items, (args.batch_size, 69), device=args.device)
    top = first_level(tree, args.beam_size)
    records = []
    for name, scorer in scorers(tree, args.dim, args.partners).items():
        model = bt.TreeModel(tree, scorer, first_level=top).to(args.device).eval()
        run = partial(bt.retrieve, model, x, beam_size=args.beam_size, m=10)
        ms = statistics.median(times(run, args.device, 40, warm_up=40))
        records.append({"scorer": name, "items": args.items, "device": args.device, "value": ms})
        print(f"{name:14s} {ms:8.3f} ms  {ms / records[0]['value']:.2f} times the deep scorer", flush=True)
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()

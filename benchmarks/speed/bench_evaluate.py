"""Users per second of `evaluate` with the deep scorer, in batches, against one user at a time.

Both must give the same recall before either is timed.

    python benchmarks/speed/bench_evaluate.py [--items N] [--users N] [--beam-size K] [--threads N] [--json FILE]
"""

import argparse
import json
import time

import torch

from beamtree import DeepScorer, TreeModel, evaluate, random_tree
from beamtree.data import BeforeAfter, Events


def market(users: int, items: int) -> BeforeAfter:
    """Users with 140 random events each: a full history, and as many targets."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(0, items, (users * 140,), generator=generator, dtype=torch.int32)
    return BeforeAfter(Events(torch.arange(users + 1) * 140, chosen, "random"))


def measure(model: TreeModel, users: BeforeAfter, beam_size: int, batch_size: int) -> tuple[float, float]:
    """Users per second, and recall@200."""
    start = time.perf_counter()
    evaluation = evaluate(model, users, beam_size=beam_size, m=(200,), batch_size=batch_size)
    return len(users) / (time.perf_counter() - start), evaluation["recall", 200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--users", type=int, default=500)
    parser.add_argument("--beam-size", type=int, default=400)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tree = random_tree(args.items)
    model = TreeModel(tree, DeepScorer(tree.num_nodes), first_level=args.beam_size.bit_length() - 1)
    model.to(args.device).eval()
    users = market(args.users, args.items)
    few = market(20, args.items)
    _, alone = measure(model, few, args.beam_size, 1)
    _, together = measure(model, few, args.beam_size, 20)
    assert abs(alone - together) < 1e-3, "batches change what is found"
    one, _ = measure(model, market(60, args.items), args.beam_size, 1)
    many, _ = measure(model, users, args.beam_size, 64)
    print(f"{args.items:,} items, beam {args.beam_size}, {args.threads} threads, {args.device}")
    print(f"one by one {one:,.0f} users/s, in batches {many:,.0f} users/s: {many / one:.1f} times")
    if args.json:
        keys = {"bench": "evaluate", "device": args.device, "items": args.items, "threads": args.threads}
        with open(args.json, "w") as file:
            json.dump([{**keys, "beam_size": args.beam_size, "one": one, "batches": many}], file, indent=1)


if __name__ == "__main__":
    main()

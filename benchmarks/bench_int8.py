"""What int8 weights gain and lose: users per second and recall, with them and without.

The items have made-up vectors, users choose near what they chose before, and the scorer starts from the vectors.

    python benchmarks/bench_int8.py [--items N] [--users N] [--beam-size K] [--threads N] [--json FILE]
"""

import argparse
import json
import statistics
import time

import torch

from beamtree import DeepScorer, TreeModel, evaluate
from beamtree.builders.split import split_tree
from beamtree.data import BeforeAfter, Events
from beamtree.model import quantized

REPEATS = 5
TASTES, EVENTS, SPREAD = 3, 140, 0.7


def market(users: int, items: int) -> tuple[torch.Tensor, BeforeAfter]:
    """Vectors of items around a few hundred centres, and users who draw from three of them."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(max(2, items // 100), 24, generator=generator)
    group = torch.randint(0, len(centres), (items,), generator=generator).sort().values
    vectors = centres[group] + SPREAD * torch.randn(items, 24, generator=generator)
    tastes = torch.randint(0, items, (users, TASTES), generator=generator)
    chosen = tastes.gather(1, torch.randint(0, TASTES, (users, EVENTS), generator=generator))
    near = (chosen + torch.randint(-50, 51, (users, EVENTS), generator=generator)).clamp(0, items - 1)
    events = Events(torch.arange(users + 1) * EVENTS, near.flatten().int(), "made")
    return torch.nn.functional.normalize(vectors), BeforeAfter(events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--users", type=int, default=256)
    parser.add_argument("--beam-size", type=int, default=400)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    vectors, users = market(options.users, options.items)
    tree = split_tree(vectors)
    scorer = DeepScorer(tree.num_nodes).start_from(tree, vectors)
    model = TreeModel(tree, scorer, first_level=options.beam_size.bit_length() - 1).eval()
    recall, taken = {}, {"float32": [], "int8": []}
    for _ in range(REPEATS):
        for name, each in (("float32", model), ("int8", quantized(model))):
            start = time.perf_counter()
            found = evaluate(each, users, beam_size=options.beam_size, m=(200,), metrics=("recall",))
            taken[name].append((time.perf_counter() - start) / options.users * 1e3)
            recall[name] = found["recall", 200]
    assert abs(recall["int8"] - recall["float32"]) < 0.05, "int8 loses too much"
    ms = {name: statistics.median(times) for name, times in taken.items()}
    print(f"{options.items:,} items, beam {options.beam_size}, {options.threads} threads, batches of 64")
    for name in ms:
        print(f"{name:<8} {ms[name]:.2f} ms per user, recall@200 {recall[name]:.2%}")
    faster, change = ms["float32"] / ms["int8"], recall["int8"] - recall["float32"]
    print(f"int8 is {faster:.2f} times as fast and changes recall by {change:+.2%}")
    if options.json:
        record = {"bench": "int8", "items": options.items, "beam_size": options.beam_size, "threads": options.threads}
        record |= {f"{name}_ms": ms[name] for name in ms} | {f"{name}_recall": recall[name] for name in recall}
        with open(options.json, "w") as file:
            json.dump([record], file, indent=1)


if __name__ == "__main__":
    main()

"""Trees over item vectors: `split_tree`, all groups of a level at once, against one group after another.

Both must give balanced trees of about the same variance within groups before either is timed.

    python benchmarks/speed/bench_build.py [--items N] [--small N] [--dim N] [--device cuda] [--json FILE]
"""

import argparse
import json
import resource
import statistics

import torch
from timing import times
from torch import Tensor

from beamtree import Tree
from beamtree.builders.cluster import split_tree

LEVEL = 6  # where groups are compared


def split_one_by_one(vectors: Tensor) -> Tree:
    """Every group cut in two along its first principal direction, by itself."""
    height = max(1, (len(vectors) - 1).bit_length())
    groups = [torch.arange(len(vectors), device=vectors.device)]
    for _ in range(height):
        halves = []
        for group in groups:
            if len(group) > 1:
                centred = vectors[group] - vectors[group].mean(0)
                along = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -1]
                group = group[(centred @ along).argsort()]
            middle = (len(group) + 1) // 2
            halves += [group[:middle], group[middle:]]
        groups = halves
    slots = torch.cat([group if len(group) else group.new_full((1,), -1) for group in groups])
    return Tree(slots)


def within_group_variance(tree: Tree, vectors: Tensor) -> float:
    """The mean squared distance of items from the mean of their group on one level."""
    items = tree.items().view(2**LEVEL, -1)
    real = (items >= 0).unsqueeze(-1)
    grouped = vectors[items.clamp(min=0)] * real
    mean = grouped.sum(1, keepdim=True) / real.sum(1, keepdim=True)
    return float(((grouped - mean) ** 2 * real).sum() / len(vectors))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000, help="for ours alone")
    parser.add_argument("--small", type=int, default=10_000, help="for both")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json")
    args = parser.parse_args()
    device = args.device
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> Tensor:
        centres = torch.randn(500, args.dim, generator=generator)
        near = torch.randint(500, (count,), generator=generator)
        return (centres[near] + torch.randn(count, args.dim, generator=generator)).to(device)

    vectors = draw(args.small)
    ours, expected = (
        within_group_variance(split_tree(vectors), vectors),
        within_group_variance(split_one_by_one(vectors), vectors),
    )
    assert abs(ours / expected - 1) < 0.05, f"variance within groups {ours:.3f}, expected {expected:.3f}"
    slow = times(lambda: split_one_by_one(vectors), device, args.repeats)
    fast = times(lambda: split_tree(vectors), device, args.repeats)
    vectors = draw(args.items)
    large = times(lambda: split_tree(vectors), device, 1)
    keys = {"bench": "build cluster", "device": device, "dim": args.dim, "threads": torch.get_num_threads()}
    records = [
        {
            **keys,
            "items": args.small,
            "literal_ms": statistics.median(slow),
            "ours_ms": statistics.median(fast),
            "speedup": statistics.median(slow) / statistics.median(fast),
        },
        {**keys, "items": args.items, "ours_ms": large[0]},
    ]
    peak = (
        torch.cuda.max_memory_allocated()
        if device != "cpu"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    print(f"variance within groups at level {LEVEL}: ours {ours:.3f}, one by one {expected:.3f}")
    both = f"one by one {slow[0]:,.0f} ms, ours {fast[0]:,.0f} ms, {records[0]['speedup']:.1f} times"
    print(f"{args.small:,} items: {both}")
    print(f"{args.items:,} items: {large[0] / 1e3:.1f} s, peak memory {peak / 1e9:.1f} GB")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(records, file, indent=1)


if __name__ == "__main__":
    main()

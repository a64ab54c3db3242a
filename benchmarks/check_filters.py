"""Filters on a device: m items wherever m are allowed, the same as on a CPU, recorded or not; and what they cost.

python benchmarks/check_filters.py --device cuda
"""

import argparse
import statistics
import time

import torch

import beamtree as bt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--users", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    asked = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    tree = bt.random_tree(asked.items, seed=0)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, scale=1.0), first_level=8).eval()
    x = torch.randint(asked.items, (asked.users, 69), generator=generator)
    some = torch.randperm(asked.items, generator=generator)[: asked.items // 50]
    hidden = some[
        torch.rand(asked.users, len(some), generator=generator).argsort(1)[:, : len(some) // 2]
    ]  # of each user
    plain = [bt.retrieve(model, x, beam_size=400, m=20, allowed=some, exclude=each)[0] for each in (None, hidden)]
    model.to(asked.device)
    x, hidden = x.to(asked.device), hidden.to(asked.device)
    mask = model.tree.allow(some.to(asked.device))
    for name, allowed, exclude, expected in (
        ("no filter", None, None, None),
        ("2 % allowed", mask, None, plain[0]),
        ("2 % allowed, half of them hidden", mask, hidden, plain[1]),
    ):
        taken = []
        for _ in range(asked.repeats + 20):  # searches of one shape are recorded after sixteen
            start = time.perf_counter()
            items, _ = bt.retrieve(model, x, beam_size=400, m=20, allowed=allowed, exclude=exclude)
            items = items.cpu()
            taken.append(time.perf_counter() - start)
        found = (items != bt.PAD).sum(1)
        agree = float("nan") if expected is None else float(torch.isin(items, expected).float().mean())
        ms = statistics.median(taken[-asked.repeats :]) * 1e3 / asked.users
        print(f"{name:<34} {ms:8.4f} ms per user, fewest {int(found.min())} of 20, as on a CPU {agree:.1%}")


if __name__ == "__main__":
    main()

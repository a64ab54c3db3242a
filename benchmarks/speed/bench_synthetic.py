"""One training step of every row of Table 2: as shipped, and with every node gathered one by one.

Both compute the same loss, which is checked first; the ratio is measured in one run, turn by turn.

    python benchmarks/speed/bench_synthetic.py [--json FILE] [--threads N] [--bias C]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from beamtree import LinearScorer, Method, TreeModel, gaussian, random_tree, targets
from beamtree.research.paper.synthetic import BATCH_SIZE, DEFAULT_ROWS, DIM, ITEMS, LR, method_of
from beamtree.scorers import linear

REPEATS, WARM_UP = 15, 3
WHOLE = (targets.WHOLE_LEVEL_FACTOR, linear.WHOLE_LEVEL_SIZE)
GATHERED = (0, 0)


def set_limits(limits: tuple[int, int]) -> None:
    targets.WHOLE_LEVEL_FACTOR, linear.WHOLE_LEVEL_SIZE = limits


def stepper(method: Method, bias: float) -> Callable[[int], torch.Tensor]:
    data = gaussian(ITEMS, DIM, bias, train=BATCH_SIZE, test=1)
    tree = random_tree(ITEMS, admit_empty=True)
    model = TreeModel(tree, LinearScorer(tree.num_nodes, DIM), chained=method.chained)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    generator = torch.Generator()

    def step(seed: int) -> torch.Tensor:
        loss = method.loss(model, data.train.x, data.train.y, generator.manual_seed(seed))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def measure(method: Method, bias: float) -> tuple[float, float]:
    """Median milliseconds of a step, gathered and by whole levels, after both gave the same losses."""
    ways = []
    for limits in (GATHERED, WHOLE):
        set_limits(limits)
        step = stepper(method, bias)
        ways.append((limits, step, [step(seed) for seed in range(WARM_UP)]))
    for gathered, whole in zip(ways[0][2], ways[1][2], strict=True):
        torch.testing.assert_close(gathered, whole, rtol=1e-4, atol=0)
    times: list[list[float]] = [[], []]
    for repeat in range(REPEATS):
        for row_times, (limits, step, _) in zip(times, ways, strict=True):
            set_limits(limits)
            start = time.perf_counter()
            step(WARM_UP + repeat)
            row_times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--bias", type=float, default=-5.0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    records = []
    print(f"{'row':<15}{'gathered ms':>12}{'ours ms':>9}{'speedup':>9}{'4,000 steps':>13}")
    for row in DEFAULT_ROWS:
        gathered, ours = measure(method_of(row), args.bias)
        print(f"{row:<15}{gathered:>12.1f}{ours:>9.1f}{gathered / ours:>9.2f}{ours * 4:>11.0f} s", flush=True)
        record = {"bench": "synthetic_step", "row": row, "bias": args.bias, "threads": args.threads}
        records.append({**record, "gathered_ms": gathered, "ours_ms": ours, "speedup": gathered / ours})
    if args.json:
        with open(args.json, "w") as file:
            json.dump(records, file, indent=1)


if __name__ == "__main__":
    main()

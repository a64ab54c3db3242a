"""One training step of PLT, TDM and OTM with the deep scorer: as published, and ours.

As published: the user's windows tiled to every node, dense gradients of the table, one forward per level, one kernel
after another. Both must give the same logits, the same beams up to ties and the same loss before either is timed.

    python benchmarks/speed/bench_step.py [--height H] [--batch B] [--beam-size K] [--targets P]
        [--device D] [--json FILE]
"""

import argparse
import json
import statistics
from collections.abc import Callable

import torch
from reference_scorer import ReferenceScorer, WithoutKernels
from timing import times
from torch import Tensor

from beamtree import DeepScorer, Method, Tree, TreeModel, otm, plt, tdm
from beamtree.beam import walk
from beamtree.train.optimizer import Optimizer, adam, lazy
from beamtree.train.step import Stepper


def compare(ours: TreeModel, literal: TreeModel, method: Method, x: Tensor, y: Tensor, beam_size: int) -> str:
    """Check that the differences are small, and describe them."""
    seed = torch.Generator(x.device)
    with torch.no_grad():
        one, other = ours.query(x), literal.query(x)
        level = ours.tree.height
        nodes = ours.tree.sample(level, len(x), 500, seed.manual_seed(1))
        logits = one.logits(level, nodes)
        with WithoutKernels():
            expected = other.logits(level, nodes)
            expected_beam = list(walk(other, beam_size))[-1].beam
        apart = float((logits - expected).norm() / expected.norm())
        beam = list(walk(one, beam_size))[-1].beam
        same = float((beam.unsqueeze(2) == expected_beam.unsqueeze(1)).any(2).float().mean())
        loss = float(method.loss(ours, x, y, seed.manual_seed(2)))
        with WithoutKernels():
            expected_loss = float(method.loss(literal, x, y, seed.manual_seed(2)))
    assert apart < 5e-3, f"logits differ by {apart:.1e}"
    assert same > 0.95, f"only {same:.1%} of the beams agree"
    assert abs(loss / expected_loss - 1) < 5e-3, f"loss {loss} and {expected_loss}"
    return f"logits {apart:.0e} apart, {same:.2%} of the last beams, loss {abs(loss / expected_loss - 1):.0e} apart"


def literal_step(model: TreeModel, method: Method, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A function that takes a step as published."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator(x.device).manual_seed(3)

    def step() -> None:
        loss = method.loss(model, x, y, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def our_step(model: TreeModel, method: Method, optimizer: Optimizer, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    stepper = Stepper(model, optimizer(model, 1e-3))
    generator = torch.Generator(x.device).manual_seed(3)
    return lambda: stepper(method, x, y, generator)


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--height", type=int, default=22 if on_gpu else 14)
    parser.add_argument("--batch", type=int, default=100 if on_gpu else 20)
    parser.add_argument("--beam-size", type=int, default=400 if on_gpu else 100)
    parser.add_argument("--targets", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--share", action="store_true", help="rows shared with ancestors, as our recipe has them")
    parser.add_argument("--json")
    args = parser.parse_args()
    device, k = torch.device(args.device), args.beam_size
    torch.set_float32_matmul_precision("high")  # tf32 for both
    tree = Tree(torch.randperm(2**args.height, generator=torch.Generator().manual_seed(0)))
    seed = torch.Generator().manual_seed(1)
    x = torch.randint(2**args.height, (args.batch, 69), generator=seed).to(device)
    y = torch.randint(2**args.height, (args.batch, args.targets), generator=seed).to(device)
    keys = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "items": 2**args.height,
        "beam_size": k,
        "batch": args.batch,
        "threads": torch.get_num_threads(),
    }
    records = []
    for method in (plt(), tdm(2 * k), otm(k)):
        scorer = DeepScorer(tree.num_nodes, scale=1.0, share=args.share)
        start = {name: value.clone() for name, value in scorer.state_dict().items()}
        ours = TreeModel(tree, scorer, chained=method.chained, first_level=k.bit_length() - 1).to(device)
        literal = TreeModel(ours.tree, ReferenceScorer(scorer), chained=method.chained, first_level=ours.first_level)
        print(f"{method.name}: {compare(ours, literal, method, x, y, k)}", flush=True)
        with WithoutKernels():
            step = literal_step(literal, method, x, y)
            slow = times(step, device, max(3, args.repeats // 4), warm_up=2)
        del step
        for optimizer in (lazy, adam):
            scorer.load_state_dict(start)
            scorer.table.weight.grad = None
            step = our_step(ours, method, optimizer, x, y)
            fast = times(step, device, args.repeats, warm_up=5)
            del step
            records.append(
                {
                    "bench": f"step {method.name} {optimizer.__name__}{' share' if args.share else ''}",
                    **keys,
                    "literal_ms": statistics.median(slow),
                    "ours_ms": statistics.median(fast),
                    "speedup": statistics.median(slow) / statistics.median(fast),
                    "literal_spread": max(slow) - min(slow),
                    "ours_spread": max(fast) - min(fast),
                }
            )
    print(f"\n{'step':<28}{'as published':>16}{'ours':>16}{'times':>8}   median (max - min), ms")
    for r in records:
        print(
            f"{r['bench'][5:]:<28}{r['literal_ms']:>9.2f} ({r['literal_spread']:.1f})"
            f"{r['ours_ms']:>9.2f} ({r['ours_spread']:.1f}){r['speedup']:>8.1f}"
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(records, file, indent=1)


if __name__ == "__main__":
    main()

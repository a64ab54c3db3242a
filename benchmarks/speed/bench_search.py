"""Search with the deep scorer as published and with ours, turn by turn, one query at a time and in batches.

Both must give the same logits and the same beams before either is timed. Every number of threads gets its own process,
because some libraries under torch read it from the environment only once.

    python benchmarks/speed/bench_search.py [--items N,N] [--batch N,N] [--threads N,N] [--device cuda] [--json FILE]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
from reference_scorer import ReferenceScorer, WithoutKernels
from timing import times

from beamtree import PAD, DeepScorer, TreeModel, random_tree, retrieve
from beamtree.beam import walk

WARM_UP, QUERIES = {"cpu": 3, "cuda": 20}, 8  # different batches, turn by turn; a GPU records a search that recurs
M = 200


def models(items: int, first_level: int, device: str) -> tuple[TreeModel, TreeModel]:
    """The literal model and ours, with the same weights."""
    tree = random_tree(items)
    ours = TreeModel(tree, scorer := DeepScorer(tree.num_nodes, scale=1.0), first_level=first_level).to(device).eval()
    return TreeModel(ours.tree, ReferenceScorer(scorer), first_level=first_level).eval(), ours


def histories(items: int, batch: int, device: str) -> list[torch.Tensor]:
    """Users with up to 69 random events each."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(QUERIES):
        x = torch.randint(0, items, (batch, 69), generator=generator)
        length = torch.randint(20, 70, (batch, 1), generator=generator)
        batches.append(x.masked_fill(torch.arange(69) >= length, PAD).to(device))
    return batches


def check(literal: TreeModel, ours: TreeModel, x: torch.Tensor, beam_size: int, tolerance: float) -> None:
    """The same logits for the same nodes, the same beams but for ties, the same answers."""
    with torch.no_grad():
        steps = list(walk(ours.query(x), beam_size))
        logits = ours.query(x).logits(steps[-1].level, steps[-1].candidates)
        items, scores = retrieve(ours, x, beam_size=beam_size, m=M)
        with WithoutKernels():
            expected_steps = list(walk(literal.query(x), beam_size))
            expected = literal.query(x).logits(steps[-1].level, steps[-1].candidates)
            expected_items, expected_scores = retrieve(literal, x, beam_size=beam_size, m=M)
    torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance)
    for one, other in zip(expected_steps, steps, strict=True):
        torch.testing.assert_close(other.scores.sort().values, one.scores.sort().values, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(scores, expected_scores, rtol=tolerance, atol=tolerance)
    same = (items.unsqueeze(2) == expected_items.unsqueeze(1)).any(2).float().mean()
    assert same > 0.95, f"only {same:.1%} of the items are the same: more than ties allow"


def measure(
    both: tuple[TreeModel, TreeModel], xs: list[torch.Tensor], beam_size: int, repeats: int
) -> list[list[float]]:
    """Milliseconds per query of every turn, literal and ours."""
    times_of_both: list[list[float]] = [[], []]
    warm_up = WARM_UP[xs[0].device.type]
    for turn in range(warm_up + repeats):
        x = xs[turn % len(xs)]
        for times_ms, model in zip(times_of_both, both, strict=True):
            with WithoutKernels() if model is both[0] else nullcontext():
                (ms,) = times(lambda m=model, x=x: retrieve(m, x, beam_size=beam_size, m=M), x.device, 1)
            times_ms.append(ms / len(x))
    return [times_ms[warm_up:] for times_ms in times_of_both]


def run(args: argparse.Namespace, threads: int) -> list[dict[str, object]]:
    torch.set_num_threads(threads)
    records = []
    for items in args.items:
        both = models(items, args.first_level, args.device)
        for batch in args.batch:
            xs = histories(items, batch, args.device)
            check(*both, xs[0], args.beam_size, args.tolerance)
            literal, ours = measure(both, xs, args.beam_size, args.repeats if batch == 1 else 1 + args.repeats // 4)
            record = {"bench": "search", "device": args.device, "items": items, "beam_size": args.beam_size}
            record |= {"batch": batch, "threads": threads}
            for name, times_ms in (("literal", literal), ("ours", ours)):
                low, _, high = statistics.quantiles(times_ms, n=4)
                record |= {f"{name}_ms": statistics.median(times_ms), f"{name}_low": low, f"{name}_high": high}
            records.append(record | {"speedup": statistics.median(literal) / statistics.median(ours)})
    return records


def run_in_subprocess(threads: int) -> list[dict[str, object]]:
    """The same with this number of threads."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "records.json")
        words = [sys.executable, __file__, *sys.argv[1:], "--threads", str(threads), "--json", str(out), "--quiet"]
        subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, check=True)
        records: list[dict[str, object]] = json.loads(out.read_text())
    return records


def show(records: list[dict[str, object]]) -> None:
    print(f"{'device':<8}{'items':>10}{'batch':>7}{'threads':>9}{'literal ms':>24}{'ours ms':>24}{'speedup':>9}")
    for each in records:
        line = f"{each['device']:<8}{each['items']:>10,}{each['batch']:>7}{each['threads']:>9}"
        for name in ("literal", "ours"):
            spread = f"({each[f'{name}_low']:.2f} … {each[f'{name}_high']:.2f})"
            line += f"{each[f'{name}_ms']:>8.2f} {spread:>15}"
        print(f"{line}{each['speedup']:>9.2f}")


def main() -> None:
    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=numbers, default=[100_000, 4_000_000])
    parser.add_argument("--batch", type=numbers, default=[1, 64])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--beam-size", type=int, default=400)
    parser.add_argument("--first-level", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--tolerance", type=float, help="1e-3; on a GPU, which multiplies as tf32, 5e-2")
    parser.add_argument("--json")
    parser.add_argument("--quiet", action="store_true", help="no table")
    args = parser.parse_args()
    args.tolerance = args.tolerance or (1e-3 if args.device == "cpu" else 5e-2)
    torch.set_float32_matmul_precision("high")  # tf32 on a GPU, for both
    if args.quiet or args.device != "cpu":
        records = run(args, args.threads[0])
    else:
        records = [record for threads in args.threads for record in run_in_subprocess(threads)]
    if not args.quiet:
        print(f"beam {args.beam_size}, m {M}; median milliseconds per query, and the middle half of all turns")
        show(records)
    if args.json:
        Path(args.json).write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()

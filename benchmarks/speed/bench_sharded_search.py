"""Search on several ranks compared with one: memory of each rank, and seconds per batch.

    python benchmarks/speed/bench_sharded_search.py                          # 2 ranks against 1, a million items
    python benchmarks/speed/bench_sharded_search.py --ranks 4 --memory-of 20 # with 20 partners for every item

Ranks are processes of one thread on this machine over gloo. On a busy machine, compare the CPU time of the busiest
rank rather than the elapsed time.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import torch
from launch_ranks import run_ranks

import beamtree as bt
from beamtree.data.csr import CSR
from beamtree.distributed.group import connect
from beamtree.distributed.load_shard import load_part
from beamtree.distributed.remote_search import Coordinator, follow
from beamtree.scorers import DeepScorer, MemoryScorer, SumScorer
from beamtree.scorers.memory import recency_weights

WARM_UP = 2  # batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=float, default=2**20)
    parser.add_argument("--dim", type=int, default=24)
    parser.add_argument("--memory-of", type=int, default=0, help="partners of every item")
    parser.add_argument("--users", type=int, default=16, help="that are searched together")
    parser.add_argument("--beam-size", type=int, default=100)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    args.items = int(args.items)
    if "RANK" in os.environ:
        print(json.dumps(work(args, Path(os.environ["BENCH_MODEL"]))), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        bt.save_model(make(args), folder)
        for _ in range(args.rounds):
            compare(run_ranks(1, BENCH_MODEL=folder), run_ranks(args.ranks, BENCH_MODEL=folder))


def make(args: argparse.Namespace) -> bt.TreeModel:
    tree = bt.random_tree(args.items, seed=0)
    deep = DeepScorer(tree.num_nodes, args.dim, seed=0)
    if not args.memory_of:
        return bt.TreeModel(tree, deep, first_level=6)
    entries = args.items * args.memory_of
    generator = torch.Generator().manual_seed(2)
    named = torch.randint(args.items, (entries,), generator=generator, dtype=torch.int32)
    lists = CSR(torch.arange(0, entries + 1, args.memory_of), named, torch.rand(entries, generator=generator))
    parts = {"memory": MemoryScorer.from_partners([lists], [recency_weights(0.5)]), "deep": deep}
    return bt.TreeModel(tree, SumScorer(parts, tree.height), first_level=6)


def work(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Some batches on one rank."""
    torch.set_num_threads(1)
    now = connect()
    parts: list[bt.TreeModel] = []

    def open_part(name: str) -> tuple[bt.TreeModel, str]:
        parts.append(load_part(folder, now))
        return parts[-1], ""

    passed = 0.0
    before = resident()
    spent = time.process_time()
    if not now.is_first:
        follow(now, open_part)
    else:
        lead = Coordinator(now, open_part)
        model = lead.open("")
        x = torch.randint(args.items, (args.users, 69), generator=torch.Generator().manual_seed(1))
        for batch in range(WARM_UP + args.batches):
            if batch == WARM_UP:
                spent, start = time.process_time(), time.perf_counter()
            bt.retrieve(model, x.roll(batch, 1), beam_size=args.beam_size)
        passed = time.perf_counter() - start
        lead.close()
    used = time.process_time() - spent
    weights = sum(each.numel() * each.element_size() for each in parts[0].scorer.state_dict().values())
    return {
        "seconds": passed / args.batches,
        "cpu": used / args.batches,
        "weights": weights / 2**20,
        "resident": resident() - before,
    }


def resident() -> float:
    """MiB that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def compare(one: list[dict[str, float]], several: list[dict[str, float]]) -> None:
    alone, first = one[0], several[0]
    largest = {key: max(each[key] for each in several) for key in ("weights", "resident")}
    print(
        f"1 rank {alone['seconds'] * 1e3:.0f} ms a batch, {len(several)} ranks {first['seconds'] * 1e3:.0f} ms: "
        f"{alone['seconds'] / first['seconds']:.2f} times by the clock, {alone['cpu'] / first['cpu']:.2f} by the first "
        f"one's CPU time; weights {alone['weights']:,.0f} MiB on 1, at most {largest['weights']:,.0f} on each: "
        f"{largest['weights'] / alone['weights']:.3f}; {alone['resident']:,.0f} and "
        f"{largest['resident']:,.0f} MiB resident",
        flush=True,
    )


if __name__ == "__main__":
    main()

"""Training on several ranks compared with one: memory of each rank, and seconds per step.

    python benchmarks/speed/bench_ranks.py                      # 2 ranks against 1, a step of OTM
    python benchmarks/speed/bench_ranks.py --memory --ranks 4   # the table and its moments, 16 million items

Ranks are processes of one thread on this machine over gloo. On a busy machine, compare the CPU time of the busiest
rank rather than the elapsed time.
"""

import argparse
import json
import os
import resource
import sys
import time

import torch
from launch_ranks import run_ranks

import beamtree as bt
from beamtree.data.instances import Instances
from beamtree.distributed.group import ranks
from beamtree.distributed.training import join
from beamtree.methods import sized
from beamtree.scorers import DeepScorer, NodeTable
from beamtree.train.backend import current_backend
from beamtree.train.optimizer import OPTIMIZERS

WARM_UP = 2  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=float, default=None, help="2^17, or 2^24 with --memory")
    parser.add_argument("--dim", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--beam-size", type=int, default=100)
    parser.add_argument("--method", default="otm")
    parser.add_argument("--optimizer", default="lazy")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--memory", action="store_true", help="the memory of a table, after one small step")
    parser.add_argument("--profile", action="store_true", help="what the first rank spends its time on")
    args = parser.parse_args()
    args.items = int(args.items or (2**24 if args.memory else 2**17))
    if args.memory:
        args.steps, args.rounds, args.batch_size, args.beam_size = 1, 1, 4, 8
    if "RANK" in os.environ:
        print(json.dumps(work(args)), flush=True)
        return
    for _ in range(args.rounds):
        one, several = run_ranks(1), run_ranks(args.ranks)
        if args.memory:
            compare_memory(one, several)
        else:
            compare_speed(one, several)


def work(args: argparse.Namespace) -> dict[str, float]:
    """Train some steps on one rank."""
    torch.set_num_threads(1)
    join()
    tree = bt.random_tree(args.items, seed=0)
    scorer = DeepScorer(tree.num_nodes, args.dim, seed=0)
    model = current_backend().place(bt.TreeModel(tree, scorer, first_level=6), "cpu")
    step = current_backend().stepper(model, OPTIMIZERS[args.optimizer](model, 1e-3))
    generator = torch.Generator().manual_seed(1)
    users = args.batch_size * (args.steps + WARM_UP)
    popular = (torch.rand(users, 79, generator=generator) ** 3 * args.items).long()  # a few items make peak events
    data, method = Instances(popular[:, :69], popular[:, 69:]), sized(args.method, args.beam_size, 2 * args.beam_size)
    cpu_start, start = 0.0, 0.0
    profile = torch.profiler.profile() if args.profile and ranks().is_first else None
    for t in range(args.steps + (0 if args.memory else WARM_UP)):
        if t == WARM_UP:
            ranks().gather(None)
            cpu_start, start = time.process_time(), time.perf_counter()
            if profile is not None:
                profile.start()
        rows = torch.arange(t * args.batch_size, (t + 1) * args.batch_size)
        step(method, *data.batch(rows), generator.manual_seed(t))
    if profile is not None:
        profile.stop()
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25), file=sys.stderr)
    elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    table: NodeTable = scorer.table
    moments = [each for each in step.optimizer.state[table.weight].values() if each.dim()]
    table_bytes = sum(each.numel() * each.element_size() for each in (table.weight, *moments))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return {"seconds": elapsed / args.steps, "cpu": cpu / args.steps, "table": table_bytes / 2**20, "resident": peak}


def compare_speed(one: list[dict[str, float]], several: list[dict[str, float]]) -> None:
    alone, wall = one[0]["seconds"], max(each["seconds"] for each in several)
    cpu, busiest = one[0]["cpu"], max(each["cpu"] for each in several)
    print(
        f"1 rank {alone * 1e3:.0f} ms a step ({cpu * 1e3:.0f} of a CPU), {len(several)} ranks {wall * 1e3:.0f} ms "
        f"({busiest * 1e3:.0f} of a CPU each): {alone / wall:.2f} times by the clock, {cpu / busiest:.2f} by CPU time",
        flush=True,
    )


def compare_memory(one: list[dict[str, float]], several: list[dict[str, float]]) -> None:
    alone, peak = one[0], {key: max(each[key] for each in several) for key in ("table", "resident")}
    share = peak["table"] / alone["table"]
    print(
        f"table and moments: {alone['table']:,.0f} MiB on 1 rank, {peak['table']:,.0f} on each of {len(several)}: "
        f"{share:.3f}; resident at peak {alone['resident']:,.0f} and {peak['resident']:,.0f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    main()

"""Estimate what a catalogue needs on several GPUs: memory, network traffic, checkpoints, and the time of a step.

    python benchmarks/speed/plan_scale.py --items 1e9 --gpus 64 [--arity 8] [--apart] [--factors 192] [--partners 300]
        [--batch 64] [--wire 50] [--json FILE]

Rows are counted as the package divides them. Milliseconds come from constants that `bench_large.py` measured on one
H200 (MEASURED). The speeds of the network and the disk are arguments.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from typing import NamedTuple

from beamtree.distributed.group import Ranks
from beamtree.distributed.partition import TOP, Shard
from beamtree.tree import height_for

HISTORY, BYTES = 69, 4  # events that a user is known by; bytes of a number
HALF, PARTNER, LIST = 2, 6, 8  # bytes of a number of factors, of a partner with its weight, and of where a list begins
LISTS = 3  # of partners: what goes together, what comes next, what follows


class Measured(NamedTuple):
    """On one NVIDIA H200, 10^8 items of 24 numbers, arity 2, k = 400, 64 users a step."""

    step_ms: float = 2.98  # rows of their own: search, loss, gradients and Adam on touched rows
    sums_ms: float = 46.7  # more, where rows are shared with ancestors: sums down all paths, and gradients up
    table_gb: float = 25.77  # that these sums go over
    users: int = 64
    memory_gb: float = 145.0  # that can be had of 150.1 (139.8 GiB), less what CUDA and batches take


MEASURED = Measured()


@dataclass(frozen=True)
class Plan:
    """What one of several GPUs stores, sends and computes."""

    items: float
    gpus: int
    arity: int
    share: bool
    batch: int  # users of a step, of one GPU
    nodes: int
    rows: int  # of one GPU, the top counted
    top_rows: int  # that every GPU has
    weights_gb: float  # of one GPU, as the following
    moments_gb: float
    gradient_gb: float
    sums_gb: float
    factors_gb: float
    memory_gb: float
    tree_gb: float  # the same on every GPU
    total_gb: float
    fits: bool
    rounds: int  # levels of a search whose rows come from elsewhere: each is an exchange
    sent_mb: float  # by one GPU in a step: ids, rows and gradients
    checkpoint_gb: float  # of all GPUs
    checkpoint_s: float
    compute_ms: float
    wire_ms: float
    step_ms: float
    users_per_s: float


class Group(Ranks):
    """Ranks without processes, to count rows."""

    def __init__(self, size: int) -> None:
        self.size = size


def plan(
    items: float,
    gpus: int,
    *,
    arity: int = 2,
    dim: int = 24,
    share: bool = True,
    factors: int = 0,
    partners: int = 0,
    batch: int = 64,
    beam_size: int = 400,
    wire: float = 50.0,
    latency: float = 30.0,
    disk: float = 2.0,
) -> Plan:
    """The arithmetic. `wire` and `disk` are GB/s of one GPU, `latency` microseconds of one exchange.

    Parts in closed form: `factors` are numbers of a node, `partners` those of an item in all lists.
    """
    height = height_for(int(items), arity)
    cut = max(level for level in range(height + 1) if arity**level <= TOP)
    shard = Shard(arity, height, cut, Group(gpus))
    row = dim * BYTES
    weights = shard.num_rows * row / 1e9
    sums = weights if share else 0.0
    tree = (8 * len(shard.level(height)) + 8 * items + shard.num_nodes) / 1e9  # slots, leaves, and who may be entered
    folded = shard.num_rows * factors * HALF / 1e9
    memory = -(-items // gpus) * (partners * PARTNER + LISTS * LIST) / 1e9 if partners else 0.0
    total = 4 * weights + sums + shard.num_rows / 1e9  # two moments, a gradient, and a mark of one byte
    total += folded + memory + tree
    below = len(shard.below) if gpus > 1 else 0
    seen = batch * (arity * beam_size + HISTORY)  # nodes of a level that a step reads, each counted once
    distinct = min(seen, len(shard.level(height)))
    away = (gpus - 1) / gpus
    sent = below * distinct * away * (8 + 2 * row) / 1e6
    compute = MEASURED.step_ms * batch / MEASURED.users
    compute += MEASURED.sums_ms * weights / MEASURED.table_gb if share else 0.0
    waits = below * 3 * latency / 1000  # counts, ids, rows
    on_wire = sent / wire + waits if gpus > 1 else 0.0
    checkpoint = 3 * shard.num_nodes * row / 1e9 + shard.num_nodes * factors * HALF / 1e9 + memory * gpus
    step = compute + on_wire
    return Plan(
        items, gpus, arity, share, batch, shard.num_nodes, shard.num_rows, shard.num_top,
        weights, 2 * weights, weights, sums, folded, memory, tree, total, total <= MEASURED.memory_gb,
        below, sent, checkpoint, checkpoint / gpus / disk, compute, on_wire, step, 1000 * batch * gpus / step,
    )  # fmt: skip


def lines(result: Plan) -> list[str]:
    """The plan as text."""
    how = "shared with ancestors" if result.share else "of their own"
    fits = "fits" if result.fits else f"does NOT fit {MEASURED.memory_gb:.0f} GB"
    return [
        f"{result.items:,.0f} items on {result.gpus} GPUs, arity {result.arity}, rows {how}: {result.nodes:,} nodes",
        f"  rows of one GPU    {result.rows:>16,}   (of these {result.top_rows:,} are on every GPU)",
        f"  weights            {result.weights_gb:>13.1f} GB",
        f"  moments            {result.moments_gb:>13.1f} GB",
        f"  gradient           {result.gradient_gb:>13.1f} GB",
        f"  sums down paths    {result.sums_gb:>13.1f} GB",
        f"  folded factors     {result.factors_gb:>13.1f} GB",
        f"  memory             {result.memory_gb:>13.1f} GB",
        f"  the tree           {result.tree_gb:>13.1f} GB   on every GPU",
        f"  together           {result.total_gb:>13.1f} GB   {fits}",
        f"  exchanges          {result.rounds:>16}   levels of a beam, of {result.sent_mb:.0f} MB sent in a step",
        f"  checkpoint         {result.checkpoint_gb:>13.1f} GB   {result.checkpoint_s:.0f} s, all GPUs writing",
        f"  a step             {result.step_ms:>13.1f} ms   {result.compute_ms:.1f} compute, {result.wire_ms:.1f} wire",
        f"  users a second     {result.users_per_s:>16,.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=float, default=1e9)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--arity", type=int, default=2)
    parser.add_argument("--dim", type=int, default=24, help="numbers in a row")
    parser.add_argument("--apart", action="store_true", help="rows of their own, not shared with ancestors")
    parser.add_argument("--factors", type=int, default=0, help="numbers of folded factors; 192 in the recipe beamtree")
    parser.add_argument("--partners", type=int, default=0, help="of an item in all lists; 300 at most there")
    parser.add_argument("--batch", type=int, default=64, help="users of a step, of one GPU")
    parser.add_argument("--beam-size", type=int, default=400)
    parser.add_argument("--wire", type=float, default=50.0, help="GB/s that one GPU sends to others")
    parser.add_argument("--latency", type=float, default=30.0, help="microseconds of one exchange")
    parser.add_argument("--disk", type=float, default=2.0, help="GB/s that one GPU's machine writes for it")
    parser.add_argument("--table", action="store_true", help="10^8 and 10^9 items on 1, 8 and 64 GPUs, as Markdown")
    parser.add_argument("--json", help="also write the plan to this file")
    args = parser.parse_args()
    if args.items < 2 or args.gpus < 1 or args.arity < 2 or min(args.wire, args.disk, args.batch) <= 0:
        parser.error("give at least 2 items, 1 GPU, 2 children, and speeds above 0")
    how = {"arity": args.arity, "dim": args.dim, "share": not args.apart, "batch": args.batch}
    how |= {"factors": args.factors, "partners": args.partners}
    how |= {"beam_size": args.beam_size, "wire": args.wire, "latency": args.latency, "disk": args.disk}
    if args.table:
        print(table(how))
        return
    result = plan(args.items, args.gpus, **how)
    print("\n".join(lines(result)))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(asdict(result), file, indent=1)


def table(how: dict[str, float]) -> str:
    """The table of docs/ranks.md."""
    head = "| items | GPUs | GB each | fits | sent a step | exchanges | checkpoint | step | users a second |"
    rows = [head, "|" + " --- |" * 9]
    for items in (1e8, 1e9):
        for gpus in (1, 8, 64):
            result = plan(items, gpus, **how)  # type: ignore[arg-type]
            saved = f"{result.checkpoint_gb:,.0f} GB, {result.checkpoint_s:,.0f} s"
            cells = [f"10^{len(str(int(items))) - 1}", str(gpus), f"{result.total_gb:,.1f}"]
            cells += ["yes" if result.fits else "no", f"{result.sent_mb:,.0f} MB", str(result.rounds), saved]
            cells += [f"{result.step_ms:,.1f} ms", f"{result.users_per_s:,.0f}"] if result.fits else ["–", "–"]
            rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()

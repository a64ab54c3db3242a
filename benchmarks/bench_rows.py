"""What is made without a gradient over ranks: time and memory of each, against one rank of one thread, in one run.

    python benchmarks/bench_rows.py [--ranks 2] [--users N] [--items N] [--events N] [--pieces factors together ...]

The log is one that `beamtree simulate` makes. Ranks are processes of one thread on this machine over gloo. Where other
programs use its cores, the time that passes says little: the CPU time of the busiest rank says what a rank has to do.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from launch import measured

import beamtree as bt
from beamtree.builders.split import split_rows
from beamtree.closed_form import next_partners, ridge_partners
from beamtree.closed_form.als import ials_by_rows
from beamtree.closed_form.cooccurrence import together
from beamtree.data import Prepared
from beamtree.data.factors import factors_by_rows
from beamtree.distributed.group import join, ranks

CENTRES = 500  # that vectors to cluster lie around
Piece = Callable[[Prepared, argparse.Namespace], object]


def factors(data: Prepared, args: argparse.Namespace) -> object:
    """Implicit ALS, two rounds."""
    size = {"dim": args.dim, "rounds": 2, "penalty": 0.005, "everywhere": 0.003, "seed": 0}
    return ials_by_rows(data.train.events, data.num_items, **size)


def near(data: Prepared, args: argparse.Namespace) -> object:
    """Co-occurrence factors, as those of a log that is too large to do all of it on every rank."""
    sys.modules[factors_by_rows.__module__].ALIKE = 0  # type: ignore[attr-defined]
    return factors_by_rows(data.train.events, data.num_items, dim=args.dim)


def ridge(data: Prepared, args: argparse.Namespace) -> object:
    """What goes together: the Gram matrix, and all blocks for one λ."""
    order = torch.randperm(data.num_items, generator=torch.Generator().manual_seed(0))
    gram = together(data.train.events, data.num_items, order)
    return ridge_partners(gram, order, 300.0, features=args.features)


def rules(data: Prepared, args: argparse.Namespace) -> object:
    """What comes next."""
    return next_partners(data.train.events, data.num_items)


def cluster(data: Prepared, args: argparse.Namespace) -> object:
    """A tree over vectors, of which each rank draws its own."""
    generator = torch.Generator().manual_seed(ranks().rank)
    centres = torch.randn(CENTRES, args.dim, generator=torch.Generator().manual_seed(99))
    share = ranks().share(args.vectors)
    near = torch.randint(CENTRES, (share.stop - share.start,), generator=generator)
    return split_rows(centres[near] + torch.randn(len(near), args.dim, generator=generator), args.vectors)


PIECES: dict[str, Piece] = {"factors": factors, "near": near, "together": ridge, "next": rules, "cluster": cluster}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--events", type=int, default=400_000)
    parser.add_argument("--vectors", type=int, default=400_000, help="to cluster")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pieces", nargs="+", default=list(PIECES), choices=list(PIECES))
    parser.add_argument("--data", type=Path, help="a prepared folder; one is made unless given")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if "RANK" in os.environ:
        print(json.dumps(work(args)), flush=True)
        return
    records = []
    with tempfile.TemporaryDirectory() as folder:
        data = args.data or make_up(Path(folder), args)
        for piece in args.pieces:
            one, several = (measured(size, ["--data", str(data), "--pieces", piece]) for size in (1, args.ranks))
            records.append(compare(piece, one[0], several))
    if args.json:
        args.json.write_text(json.dumps(records, indent=1))


def make_up(folder: Path, args: argparse.Namespace) -> Path:
    """A prepared log."""
    from beamtree.ingest.simulate import simulate

    simulate(folder / "log.parquet", users=args.users, items=args.items, events=args.events, seed=0)
    bt.prepare(folder / "log.parquet", folder / "data", time="timestamp")
    return folder / "data"


def work(args: argparse.Namespace) -> dict[str, float]:
    """One piece on one rank."""
    torch.set_num_threads(1)
    join()
    data, piece = bt.load_data(args.data), PIECES[args.pieces[0]]
    ranks().wait()
    before = resident()
    spent, began = time.process_time(), time.perf_counter()
    found = piece(data, args)
    ranks().wait()
    assert found is not None
    used = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - spent}
    return {**used, "grown": resident() - before}


def resident() -> float:
    """The most memory that was used so far, in MiB, as Linux knows it; `resource` also counts whoever started us."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 2**10


def compare(piece: str, one: dict[str, float], several: list[dict[str, float]]) -> dict[str, object]:
    most = {name: max(each[name] for each in several) for name in one}
    print(
        f"{piece}: 1 rank {one['seconds']:.1f} s ({one['cpu']:.1f} of a CPU), {one['grown']:,.0f} MiB; "
        f"{len(several)} ranks {most['seconds']:.1f} s ({most['cpu']:.1f} of a CPU), {most['grown']:,.0f} MiB each: "
        f"{one['seconds'] / most['seconds']:.2f} times by the clock, {one['cpu'] / most['cpu']:.2f} by CPU time, "
        f"{most['grown'] / one['grown']:.2f} of the memory",
        flush=True,
    )
    return {"bench": "rows", "piece": piece, "ranks": len(several), "one": one, "several": most}


if __name__ == "__main__":
    main()

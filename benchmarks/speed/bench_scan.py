"""Every item scored exactly, beside a beam: milliseconds per query, one query at a time and in batches, in one run.

The tables are random and as large as those of a fitted model: factors of 64 numbers, a sequence part of 192, two lists
of partners, repeats and popularity. So neither a log nor Numba is needed on a GPU.

    python benchmarks/speed/bench_scan.py [--items N,N] [--batch N,N] [--device cuda] [--json FILE]

Rows, turn by turn: our scan; our beam; a plain product of vectors as long as all of ours together, in half precision on
a GPU, with top k in torch; and on a CPU FAISS's flat index of the same vectors, where FAISS is installed. The last two
know no memory, repeats, filters or excluded items, and take vectors of users that are given. `scan, no sequence` and
`beam, no sequence` leave the sequence part out. What a scan finds is compared with the definition before it is timed.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from timing import times

import beamtree as bt
from beamtree.data.csr import CSR
from beamtree.kernels.cuda_graphs import WARMUP_RUNS, CudaGraphCache
from beamtree.scorers import (
    FactorScorer,
    MemoryScorer,
    NodeTable,
    PopularityScorer,
    RepeatScorer,
    SequenceScorer,
    SumScorer,
)
from beamtree.scorers.factors import Factors
from beamtree.scorers.memory import recency_weights
from beamtree.train.recipes import first_level

HISTORY = 69
Search = Callable[[torch.Tensor], object]


def random_table(num_nodes: int, dim: int, generator: torch.Generator) -> NodeTable:
    """Random rows of all nodes, as halves."""
    rows = torch.empty(num_nodes, dim, dtype=torch.float16, device=generator.device)
    for some in rows.split(1 << 20):
        some.copy_(torch.randn(some.shape, generator=generator, device=generator.device))
    return NodeTable.from_rows(rows).requires_grad_(False)


def random_partners(items: int, count: int, generator: torch.Generator) -> CSR:
    """Random partners for every item, near it."""
    apart = torch.randint(1, 20 * count, (items, count), generator=generator, device=generator.device)
    near = (torch.arange(items, device=generator.device).unsqueeze(1) + apart) % items
    weights = torch.rand(items * count, generator=generator, device=generator.device).half()
    return CSR(torch.arange(items + 1, device=generator.device) * count, near.flatten().int(), weights)


def make_models(args: argparse.Namespace, items: int) -> dict[str, bt.TreeModel]:
    """Models with and without the sequence part, over the same tree."""
    generator = torch.Generator(args.device).manual_seed(0)
    tree, partners = bt.Tree(torch.arange(items)), min(args.partners, items // 20)
    factors = Factors(torch.empty(0, args.factors), torch.rand(args.factors), 0.005, 0.003 * items)
    lists = [random_partners(items, partners, generator) for _ in range(2)]
    counts = torch.randint(1, 1000, (items,))
    sequence = SequenceScorer(1, args.sequence)
    parts = {
        "factors": FactorScorer.from_table(random_table(tree.num_nodes, args.factors, generator), factors, 0.6),
        "memory": MemoryScorer.from_partners(lists, [recency_weights(0.6), recency_weights(1.0, newest=20)]),
        "repeats": RepeatScorer(),
        "popularity": PopularityScorer.from_counts(tree, counts),
        "sequence": SequenceScorer.from_table(random_table(tree.num_nodes, args.sequence, generator), sequence.encoder),
    }
    scorer, top = SumScorer(parts, tree.height), first_level(tree, args.beam_size)
    scorer.calibration = torch.stack([torch.linspace(-200, 200, 16), torch.linspace(-12, -1, 16)])
    scorers = {"": scorer, ", no sequence": scorer.without("sequence")}
    return {name: bt.TreeModel(tree, each, first_level=top).to(args.device).eval() for name, each in scorers.items()}


def histories(args: argparse.Namespace, items: int, batch: int) -> torch.Tensor:
    """Users with `--events` random events each."""
    generator = torch.Generator().manual_seed(batch)
    x = torch.full((batch, HISTORY), bt.PAD)
    x[:, : args.events] = torch.randint(items, (batch, args.events), generator=generator)
    return x.to(args.device)


def plain_product(args: argparse.Namespace, items: int, batch: int) -> Search:
    """A product of given vectors and top k: with a GPU in half precision, recorded as a CUDA graph as ours are."""
    generator, dim = torch.Generator(args.device).manual_seed(1), args.factors + args.sequence
    table = random_table(items, dim, generator).weight
    table = table if args.device != "cpu" else table.float()
    users = torch.randn(batch, dim, generator=generator, device=args.device).to(table)
    graphs = CudaGraphCache(WARMUP_RUNS)

    def search(users: torch.Tensor) -> tuple[torch.Tensor, ...]:
        best = (users @ table.T).topk(args.m)
        return best.indices, best.values

    return lambda x: graphs("product", search, users)


def faiss_flat(args: argparse.Namespace, items: int, batch: int) -> Search:
    """The same product by FAISS, in single precision."""
    import faiss

    faiss.omp_set_num_threads(args.threads)
    generator, dim = torch.Generator().manual_seed(1), args.factors + args.sequence
    index = faiss.IndexFlatIP(dim)
    for some in random_table(items, dim, generator).weight.split(1 << 18):
        index.add(some.float().numpy())
    users = torch.randn(batch, dim, generator=generator).numpy()
    return lambda x: index.search(users, args.m)


def check(model: bt.TreeModel, x: torch.Tensor, m: int) -> None:
    """A scan finds what the definition says, but for ties."""
    items, scores = bt.retrieve(model, x[:2], m=m, exclude=x[:2, :5], search="scan")
    expected_items, expected = bt.brute_force(model, x[:2], m=m, exclude=x[:2, :5], leaves_at_once=1 << 16)
    torch.testing.assert_close(scores, expected, rtol=2e-3, atol=2e-3)
    same = (items.unsqueeze(2) == expected_items.unsqueeze(1)).any(2).float().mean()
    assert same > 0.95, f"only {same:.1%} of the items are the same: more than ties allow"


def measure(args: argparse.Namespace, items: int, batch: int, models: dict[str, bt.TreeModel]) -> dict[str, float]:
    """Milliseconds of each row for a batch, turn by turn."""
    k, m = max(args.beam_size, args.m), args.m
    rows: dict[str, Search] = {}
    for name, model in models.items():
        rows[f"scan{name}"] = lambda x, each=model: bt.retrieve(each, x, m=m, search="scan")  # type: ignore[misc]
        rows[f"beam{name}"] = lambda x, each=model: bt.retrieve(each, x, m=m, beam_size=k)  # type: ignore[misc]
    rows["plain product"] = plain_product(args, items, batch)
    if args.device == "cpu" and find_spec("faiss") is not None and items <= args.faiss_items:
        rows["FAISS, flat"] = faiss_flat(args, items, batch)
    x = histories(args, items, batch)
    check(models[""], x, m)
    check(models[", no sequence"], x, m)
    found: dict[str, list[float]] = {name: [] for name in rows}
    warm_up = 2 if args.device == "cpu" else WARMUP_RUNS + 4
    for turn in range(warm_up + args.repeats):
        for name, search in rows.items():
            (ms,) = times(lambda search=search: search(x), args.device, 1)  # type: ignore[misc]
            if turn >= warm_up:
                found[name].append(ms)
    return {name: statistics.median(of_row) for name, of_row in found.items()}


def run(args: argparse.Namespace) -> list[dict[str, object]]:
    records: list[dict[str, object]] = []
    device = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    print(f"{device}, m {args.m}, beam {max(args.beam_size, args.m)}; milliseconds, and times the beam")
    for items in args.items:
        models = make_models(args, items)
        for batch in args.batch:
            found = measure(args, items, batch, models)
            for name, ms in found.items():
                beam = found["beam, no sequence" if name.endswith("no sequence") else "beam"]
                ratio = ms / beam
                print(f"{items:>10,} items{batch:>5} users  {name:<20}{ms:>9.3f} ms {ratio:>7.2f}", flush=True)
                record: dict[str, object] = {"bench": "scan", "device": args.device, "items": items, "batch": batch}
                records.append(record | {"row": name, "threads": args.threads, "value": ms, "times_beam": ratio})
            x = histories(args, items, batch)
            for model in models.values():
                bt.retrieve(model, x, m=args.m)  # auto
        for name, model in models.items():
            for chosen in model.search_times.values():
                print(f"{items:>10,} items  auto{name}: {chosen}", flush=True)
    return records


def main() -> None:
    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=numbers, default=[4_000, 100_000, 1_000_000, 4_000_000])
    parser.add_argument("--batch", type=numbers, default=[1, 64])
    parser.add_argument("--m", type=int, default=200)
    parser.add_argument("--beam-size", type=int, default=400)
    parser.add_argument("--factors", type=int, default=64, help="numbers of a vector of the factors")
    parser.add_argument("--sequence", type=int, default=192, help="numbers of a vector of the sequence part")
    parser.add_argument("--partners", type=int, default=50, help="of an item in each of two lists")
    parser.add_argument("--events", type=int, default=50, help="of a history")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--faiss-items", type=int, default=1_000_000, help="most items of which FAISS makes an index")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    records = run(args)
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()

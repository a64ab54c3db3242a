"""From four thousand to sixteen million items: milliseconds and memory of a query and of a training step (OTM, lazy).

The number of nodes that a search scores grows with the logarithm of the items: 256 + 512 + 800 per further level at
k = 400. Time should grow no faster, and memory as the table does.

    python benchmarks/speed/bench_scale.py [--from 12] [--to 24] [--steps-to 24] [--device cuda] [--json FILE]
"""

import argparse
import gc
import json
import statistics
from contextlib import nullcontext

import torch
from reference_scorer import ReferenceScorer, WithoutKernels
from timing import times

from beamtree import DeepScorer, Tree, TreeModel, otm, retrieve
from beamtree.train.optimizer import lazy
from beamtree.train.step import Stepper

FIRST_LEVEL = 8


def memory(device: str) -> int:
    """Bytes: on a GPU allocated at most, on a CPU resident."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated()
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


def scored(height: int, beam_size: int) -> int:
    """The nodes of one search."""
    return sum(min(2**level, 2 * beam_size) for level in range(FIRST_LEVEL, height + 1))


def measure(height: int, args: argparse.Namespace) -> list[dict[str, object]]:
    device, k = args.device, args.beam_size
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    tree = Tree(torch.arange(2**height))
    scorer = DeepScorer(tree.num_nodes, scale=1.0, share=False)
    model = TreeModel(tree, scorer, first_level=FIRST_LEVEL).to(device).eval()
    literal = TreeModel(model.tree, ReferenceScorer(scorer), first_level=FIRST_LEVEL).eval()
    x = torch.randint(2**height, (args.batch, 69), generator=torch.Generator().manual_seed(0)).to(device)
    keys: dict[str, object] = {"device": device, "items": 2**height, "beam_size": k, "threads": torch.get_num_threads()}
    keys["table_bytes"] = scorer.table.weight.nbytes
    records = []
    ms, scores = {}, {}
    for name, each in (("literal", literal), ("ours", model)):
        with WithoutKernels() if each is literal else nullcontext():
            scores[name] = retrieve(each, x[:1], beam_size=k, m=200)[1]
            warm_up = 2 if device == "cpu" else 20  # a GPU records a search that recurs
            ms[name] = times(
                lambda m=each: retrieve(m, x[:1], beam_size=k, m=200), device, args.repeats, warm_up=warm_up
            )
    torch.testing.assert_close(*scores.values(), rtol=5e-2, atol=5e-2)
    records.append(record("scale query", {**keys, "batch": 1, "nodes": scored(height, k)}, ms, memory(device)))
    if height <= args.steps_to:
        y = torch.randint(2**height, (args.batch, 50), generator=torch.Generator().manual_seed(1)).to(device)
        generator = torch.Generator(device)
        with torch.no_grad():
            losses = [float(otm(k).loss(model, x, y, generator))]
            with WithoutKernels():
                losses.append(float(otm(k).loss(literal, x, y, generator)))
        assert abs(losses[0] / losses[1] - 1) < 5e-3, f"losses {losses}"
        step = Stepper(model, lazy(model, 1e-3))
        ms = {"ours": times(lambda: step(otm(k), x, y, generator), device, 2 + args.repeats // 4, warm_up=6)}
        nodes = args.batch * scored(height, k)
        records.append(record("scale step", {**keys, "batch": args.batch, "nodes": nodes}, ms, memory(device)))
    return records


def record(bench: str, keys: dict[str, object], ms: dict[str, list[float]], num_bytes: int) -> dict[str, object]:
    result: dict[str, object] = {"bench": bench, **keys, "memory_bytes": num_bytes}
    result |= {f"{name}_ms": statistics.median(values) for name, values in ms.items()}
    result |= {f"{name}_spread": max(values) - min(values) for name, values in ms.items()}
    if "literal" in ms:
        result["speedup"] = statistics.median(ms["literal"]) / statistics.median(ms["ours"])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="first", type=int, default=12, help="2^this many items at the start")
    parser.add_argument("--to", type=int, default=24)
    parser.add_argument("--steps-to", type=int, default=20, help="training steps up to 2^this many items")
    parser.add_argument("--beam-size", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8, help="users of a training step")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")
    records: list[dict[str, object]] = []
    print(f"{'items':>12}{'nodes':>10}{'query ms':>10}{'literal':>9}{'step ms':>9}{'memory':>10}{'table':>10}")
    for height in range(args.first, args.to + 1, 2):
        measured = measure(height, args)
        records += measured
        query, step = measured[0], measured[1] if len(measured) > 1 else {}
        line = f"{query['items']:>12,}{query['nodes']:>10,}{query['ours_ms']:>10.2f}{query['literal_ms']:>9.2f}"
        line += f"{step['ours_ms']:>9.2f}" if step else f"{'':>9}"
        used = int(str(measured[-1]["memory_bytes"])) / 1e6
        print(f"{line}{used:>7,.0f} MB{int(str(query['table_bytes'])) / 1e6:>7,.0f} MB", flush=True)
    for bench in ("scale query", "scale step"):
        each = {r["items"]: r for r in records if r["bench"] == bench}
        small, large = each.get(2**16), each.get(2 ** min(args.to, 24))
        if small and large and small is not large:
            time_grows = float(str(large["ours_ms"])) / float(str(small["ours_ms"]))
            nodes_grow = float(str(large["nodes"])) / float(str(small["nodes"]))
            print(
                f"{bench}, 2^16 to 2^{args.to}: time {time_grows:.2f} times, nodes {nodes_grow:.2f} times, "
                f"ratio {time_grows / nodes_grow:.2f}"
            )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(records, file, indent=1)


if __name__ == "__main__":
    main()

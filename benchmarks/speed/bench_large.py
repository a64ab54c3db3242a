"""Training steps and queries on a table as large as one device holds: milliseconds, bytes, and whether they are right.

    python benchmarks/speed/bench_large.py [--items 1e8] [--arity 2] [--apart] [--batch 64]
        [--device cuda] [--json FILE]

Past 2^31 numbers in a table, a 32-bit index would read and write the wrong rows. So logits are compared with plain
products of the rows, and a step must change the rows it read and hardly any others.
"""

import argparse
import json
import statistics

import torch
from timing import times
from torch import Tensor
from torch.nn.functional import prelu

from beamtree import DeepScorer, Tree, TreeModel, otm, retrieve
from beamtree.scorers.table import NodeTable
from beamtree.train.optimizer import lazy
from beamtree.train.recipes import first_level
from beamtree.train.step import Stepper

MOVED = 4  # times the rows that a step reads on one level, at most, of leaves that are drawn


def random_model(items: int, arity: int, share: bool, beam_size: int, device: str) -> TreeModel:
    tree = Tree(torch.arange(items, device=device), arity)
    with torch.device(device):
        scorer = DeepScorer(tree.num_nodes, share=share, seed=None)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for rows in scorer.table.weight.split(1 << 24):
            rows.normal_(std=0.05, generator=generator)
    return TreeModel(tree, scorer, first_level=first_level(tree, beam_size)).to(device)


@torch.no_grad()
def check_logits(model: TreeModel, x: Tensor) -> float:
    """How far logits of the last nodes are from those of plain products, beside their size."""
    scorer, tree = model.scorer, model.tree
    assert isinstance(scorer, DeepScorer)
    last = tree.level(tree.height)
    nodes = torch.arange(last.start + tree.num_items - 1000, last.start + tree.num_items, device=x.device).unsqueeze(0)
    query = model.query(x)
    logits = query.logits(tree.height, nodes)
    path = tree.path(nodes[0]) if scorer.share else nodes[0].unsqueeze(1)
    rows = scorer.table.weight[path].sum(1)
    rows = rows + scorer.table.weight[0] if scorer.share else rows
    hidden = query.prepared.user[:, tree.height].unsqueeze(1) + rows @ scorer.of_node.weight.T
    for slope, layer in zip(scorer.slopes, scorer.layers, strict=True):
        hidden = layer(prelu(hidden.flatten(0, 1), slope).view_as(hidden))
    expected = hidden.squeeze(-1)
    return float((logits - expected).norm() / expected.norm())


def steps(model: TreeModel, x: Tensor, y: Tensor, beam_size: int, repeats: int) -> list[float]:
    """Milliseconds of steps, after one that moved the leaves of histories and hardly any others."""
    stepper, generator = Stepper(model, lazy(model, 1e-3)), torch.Generator(x.device).manual_seed(2)
    weight, tree = table_of(model).weight.detach(), model.tree
    read = tree.leaf_of_item(x.flatten()[:64])
    others = torch.randint(tree.level(tree.height).start, tree.num_nodes, (100_000,), device=x.device)
    before = weight[read].clone(), weight[others].clone()
    stepper(otm(beam_size), x, y, generator)
    moved, strayed = ((weight[rows] != old).any(1) for rows, old in zip((read, others), before, strict=True))
    assert bool(moved.all()), "a step did not move rows that it read"
    assert float(strayed.float().mean()) <= MOVED * len(x) * (2 * beam_size + 69) / tree.num_items, "it moved others"
    return times(lambda: stepper(otm(beam_size), x, y, generator), x.device.type, repeats, warm_up=6)


def table_of(model: TreeModel) -> NodeTable:
    assert isinstance(model.scorer, DeepScorer)
    return model.scorer.table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=float, default=1e8)
    parser.add_argument("--arity", type=int, default=2)
    parser.add_argument("--apart", action="store_true", help="rows of their own, not shared with ancestors")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--beam-size", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    items, device, k = int(args.items), args.device, args.beam_size
    model = random_model(items, args.arity, not args.apart, k, device)
    seed = torch.Generator().manual_seed(1)
    x = torch.randint(items - items // 8, items, (args.batch, 69), generator=seed).to(device)
    y = torch.randint(items - items // 8, items, (args.batch, 50), generator=seed).to(device)
    apart = check_logits(model, x[:4])
    assert apart < 5e-3, f"logits are {apart:.1e} apart"
    step_times = steps(model, x, y, k, args.repeats)
    peak = torch.cuda.max_memory_allocated() if device != "cpu" else 0
    table_of(model)._spare = table_of(model).touched = None
    model.zero_grad(set_to_none=True)
    model.eval()
    query_times = times(lambda: retrieve(model, x[:1], beam_size=k, m=min(200, k)), device, args.repeats, warm_up=20)
    weight = table_of(model).weight
    record = {
        "bench": "large",
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
        "items": items,
        "arity": args.arity,
        "share": not args.apart,
        "nodes": model.tree.num_nodes,
        "table_bytes": weight.nbytes,
        "peak_bytes": peak,
        "batch": args.batch,
        "beam_size": k,
        "step_ms": statistics.median(step_times),
        "query_ms": statistics.median(query_times),
        "logits_apart": apart,
    }
    print(json.dumps(record))
    if args.json:
        with open(args.json, "w") as file:
            json.dump([record], file, indent=1)


if __name__ == "__main__":
    main()

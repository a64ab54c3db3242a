"""Ranks on one GPU: one rank with NCCL compared with none, and two ranks that share it compared with one.

    python benchmarks/speed/check_ranks_gpu.py [--items 1e6] [--steps 30]

NCCL does not let two ranks share a GPU, so they exchange tensors through the CPU with gloo. This checks that the
kernels read and write remote rows correctly, not their speed. One rank in a group with NCCL is timed.
"""

import argparse
import os
import statistics
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from launch_ranks import free_port
from timing import times
from torch import Tensor

from beamtree import DeepScorer, Tree, TreeModel, otm, retrieve, tdm
from beamtree.data.csr import CSR
from beamtree.distributed import group as distributed
from beamtree.distributed.group import Ranks, _Group
from beamtree.distributed.partition import Shard
from beamtree.distributed.sharding import shard_model
from beamtree.distributed.training import ShardedStepper
from beamtree.scorers import FactorScorer, MemoryScorer, SumScorer
from beamtree.scorers.factors import Factors
from beamtree.scorers.memory import recency_weights
from beamtree.train.optimizer import lazy
from beamtree.train.recipes import first_level
from beamtree.train.step import Stepper


class ThroughCPU(_Group):
    """Ranks that exchange tensors through the CPU."""

    def sum_(self, values: Tensor) -> Tensor:
        return values.copy_(super().sum_(values.cpu()))

    def exchange(self, rows: Tensor, sent: Any, received: Any) -> Tensor:
        return super().exchange(rows.cpu(), sent, received).to(rows.device)


def trained(items: int, steps: int, method: Any, share: bool, ranks: Ranks | None) -> tuple[TreeModel, list[float]]:
    """A model after some steps, and its losses."""
    tree = Tree(torch.arange(items))
    scorer = DeepScorer(tree.num_nodes, share=share, seed=0)
    model = TreeModel(tree, scorer, first_level=first_level(tree, 50)).to("cuda")
    if ranks is not None:
        shard_model(model, Shard.of(model.tree, ranks))
    kind = Stepper if ranks is None else ShardedStepper
    stepper, generator = kind(model, lazy(model, 1e-3)), torch.Generator("cuda")
    losses = []
    for step in range(steps):
        seed = torch.Generator().manual_seed(step)
        x, y = (torch.randint(items, (33, width), generator=seed).to("cuda") for width in (69, 20))
        losses.append(float(stepper(method, x, y, generator.manual_seed(step))))
    return model, losses


def rows_of(model: TreeModel) -> Tensor:
    assert isinstance(model.scorer, DeepScorer)
    return model.scorer.table.weight.detach()


def with_parts(items: int) -> TreeModel:
    """Factors and memory, drawn."""
    tree, generator = Tree(torch.arange(items)), torch.Generator().manual_seed(0)
    factors = Factors(torch.randn(items, 64, generator=generator), torch.ones(64), 0.1, 1.0)
    named = torch.randint(items, (items * 20,), generator=generator).int()
    lists = CSR(torch.arange(0, len(named) + 1, 20), named, torch.rand(len(named), generator=generator))
    parts = {
        "factors": FactorScorer.from_factors(tree, factors, 0.3),
        "memory": MemoryScorer.from_partners([lists, lists], [recency_weights(0.5), recency_weights(2.0, newest=3)]),
    }
    return TreeModel(tree, SumScorer(parts, tree.height), first_level=first_level(tree, 400)).to("cuda").eval()


@torch.no_grad()
def parts_apart(items: int, rank: int) -> str:
    """What users of this rank get from parts that lie on two, against parts that lie here."""
    x = torch.randint(items, (33, 69), generator=torch.Generator().manual_seed(rank)).to("cuda")
    model = with_parts(items)
    alone, scores = retrieve(model, x, beam_size=400, m=100)
    distributed._ranks = ThroughCPU()
    shard_model(model)
    items, sharded_scores = retrieve(model, x, beam_size=400, m=100)
    distributed._ranks = Ranks()
    alike, apart = float((items == alone).float().mean()), float((scores - sharded_scores).abs().max())
    return f"{alike:.2%} of items equal, scores {apart:.1e} apart"


def rows_together(table: Any) -> Tensor:
    """All rows on the first rank."""
    distributed._ranks = table.shard.ranks
    rows = torch.cat(list(table.pieces().parts))
    distributed._ranks = Ranks()
    return rows


def one_of_two(rank: int, port: int, items: int, steps: int, results: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    results.put(f"rank {rank}, parts in closed form: {parts_apart(items, rank)}")
    for method in (otm(50), tdm(100)):
        for share in (True, False):
            after = [trained(items, count, method, share, ThroughCPU()) for count in (1, steps)]
            first, (_, losses) = rows_together(after[0][0].scorer.table), after[1]
            if rank == 0:
                begin, _ = trained(items, 0, method, share, None)
                alone, _ = trained(items, 1, method, share, None)
                moved, expected = (each - rows_of(begin) for each in (first, rows_of(alone)))
                apart = float((moved - expected).norm() / expected.norm())
                alone_losses = trained(items, steps, method, share, None)[1]
                loss = max(abs(a / b - 1) for a, b in zip(losses, alone_losses, strict=True))
                line = f"the first step moves rows {apart:.1e} apart, losses of {steps} steps {loss:.1e}"
                results.put(f"{method.name}, share {share}: {line}, relative")
            dist.barrier()
    dist.destroy_process_group()


def step_ms(items: int) -> float:
    tree = Tree(torch.arange(items))
    model = TreeModel(tree, DeepScorer(tree.num_nodes, seed=0), first_level=first_level(tree, 400)).to("cuda")
    x, y = (torch.randint(items, (100, width), device="cuda") for width in (69, 50))
    stepper, generator = Stepper(model, lazy(model, 1e-3)), torch.Generator("cuda")
    return statistics.median(times(lambda: stepper(otm(400), x, y, generator), "cuda", 60, warm_up=10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=float, default=1e6)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    items = int(args.items)
    plain = [step_ms(items)]
    port = free_port()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    dist.all_reduce(torch.ones(1, device="cuda"))
    through = [step_ms(items)]
    dist.destroy_process_group()
    plain.append(step_ms(items))
    print(f"one rank through NCCL {through[0]:.3f} ms, alone {plain[0]:.3f} and {plain[1]:.3f} ms a step")
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(one_of_two, (port + 1, items // 10, args.steps, results), nprocs=2)
    while not results.empty():
        print(results.get())


if __name__ == "__main__":
    main()

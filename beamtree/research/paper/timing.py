"""The times of Sec. 5.2: seconds per training batch of PLT, TDM and OTM."""

import time
from collections.abc import Callable
from statistics import median

import torch

from beamtree.methods import otm, plt, tdm
from beamtree.model import TreeModel
from beamtree.research.paper.cells import Cell, expected
from beamtree.scorers import DeepScorer
from beamtree.train.optimizer import Optimizer
from beamtree.train.recipes import first_level
from beamtree.train.step import WARMUP_RUNS, Stepper
from beamtree.tree import Tree

TITLE = "Seconds per training batch"
HISTORY, TARGETS = 69, 50
WARM_UP = WARMUP_RUNS + 2


def num_batches(iterations: int) -> int:
    """The number of batches trained, warm-up included."""
    return 3 * (WARM_UP + iterations)


def batch_times(
    height: int,
    batch_size: int,
    beam_size: int,
    iterations: int,
    optimizer: Optimizer,
    device: str,
    on_step: Callable[[int], None] = lambda steps: None,
) -> list[Cell]:
    """The median time of a batch of random users over 2^height items, after a warm-up."""
    generator = torch.Generator().manual_seed(0)
    tree = Tree(torch.arange(2**height))
    x = torch.randint(2**height, (batch_size, HISTORY), generator=generator).to(device)
    y = torch.randint(2**height, (batch_size, TARGETS), generator=generator).to(device)
    cells = []
    for name, method in (("plt", plt()), ("tdm", tdm(2 * beam_size)), ("otm", otm(beam_size))):
        scorer = DeepScorer(tree.num_nodes, scale=1.0, share=False)
        model = TreeModel(tree, scorer, chained=method.chained, first_level=first_level(tree, beam_size)).to(device)
        step, draws = Stepper(model, optimizer(model, 1e-3)), torch.Generator(device).manual_seed(0)
        times = []
        for _ in range(WARM_UP + iterations):
            start = time.perf_counter()
            float(step(method, x, y, draws))  # waits for a GPU
            times.append(time.perf_counter() - start)
            on_step(1)
        counted = times[-iterations:]
        std = float(torch.tensor(counted).std(unbiased=False))
        cells.append(Cell("timing", {"row": name}, median(counted), std, iterations, expected()["timing"][name], None))
    return cells

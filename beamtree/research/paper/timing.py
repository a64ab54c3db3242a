"""Section 5.2's times: seconds per training batch of PLT, TDM and OTM, side by side."""

import time
from collections.abc import Callable
from statistics import median

import torch

from beamtree.methods import otm, plt, tdm
from beamtree.model import TreeModel
from beamtree.research.paper.report import Cell, expected
from beamtree.scorers import DeepScorer
from beamtree.train.optimizer import Optimizer
from beamtree.train.recipes import first_level
from beamtree.train.step import REHEARSALS, Stepper
from beamtree.tree import Tree

TITLE = "Seconds per training batch"
HISTORY, TARGETS = 69, 50
WARM_UP = REHEARSALS + 2


def batches(iterations: int) -> int:
    """How many are trained, those that do not count included."""
    return 3 * (WARM_UP + iterations)


def timing(
    height: int,
    batch_size: int,
    beam_size: int,
    iterations: int,
    optimizer: Optimizer,
    device: str,
    on_step: Callable[[int], None] = lambda steps: None,
) -> list[Cell]:
    """The median time of a batch of made-up users over 2^height items, after some that do not count."""
    generator = torch.Generator().manual_seed(0)
    tree = Tree(torch.arange(2**height))
    x = torch.randint(2**height, (batch_size, HISTORY), generator=generator).to(device)
    y = torch.randint(2**height, (batch_size, TARGETS), generator=generator).to(device)
    cells = []
    for name, method in (("plt", plt()), ("tdm", tdm(2 * beam_size)), ("otm", otm(beam_size))):
        scorer = DeepScorer(tree.num_nodes, scale=1.0, share=False)
        model = TreeModel(tree, scorer, chained=method.chained, first_level=first_level(tree, beam_size)).to(device)
        step, draws = Stepper(model, optimizer(model, 1e-3)), torch.Generator(device).manual_seed(0)
        taken = []
        for _ in range(WARM_UP + iterations):
            start = time.perf_counter()
            float(step(method, x, y, draws))  # waits for a GPU
            taken.append(time.perf_counter() - start)
            on_step(1)
        counted = taken[-iterations:]
        spread = torch.tensor(counted).std(unbiased=False)
        cells.append(
            Cell("timing", {"row": name}, median(counted), float(spread), iterations, expected()["timing"][name], None)
        )
    return cells

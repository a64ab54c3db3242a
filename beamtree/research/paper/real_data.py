"""The paper's experiments on real data: Tables 3 and 4 (Amazon Books and UserBehavior) and Figure 2."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from beamtree.builders import cluster_tree
from beamtree.data import BeforeAfter, Prepared
from beamtree.diagnose.inspect import INTERVAL
from beamtree.research.compare import Experiment, Result, table
from beamtree.research.paper.cells import Cell, expected
from beamtree.train.recipes import RECIPES
from beamtree.tree import Tree, first_of_each

TITLES = {
    "table3": "Table 3: Amazon Books, k = 400, %",
    "table4": "Table 4: UserBehavior, k = 400, %",
    "figure2": "Figure 2: level-wise distribution of S_n",
}
ROWS = ("item-cf", "youtube-dnn", "hsm", "plt", "jtm", "otm", "otm-no-beam", "otm-no-optest")
BEAM_SIZE, BATCH_SIZE = 400, 200
CHUNK = 4096  # users that are counted at once


def paper_experiment(data: Prepared, folder: Path, *, recipe: str, device: str, seed: int) -> Experiment:
    """The paper's settings: ten epochs, batches of 200, beams of 400, and for all rows the tree that JTM learns."""
    epochs = RECIPES[recipe].epochs or 10
    return Experiment(
        data,
        cluster_tree(data, seed=seed),
        folder,
        tree_name="cluster",
        recipe=recipe,
        beam_size=BEAM_SIZE,
        batch_size=BATCH_SIZE,
        steps=max(1, round(epochs * len(data.train) / BATCH_SIZE)),
        device=device,
        seed=seed,
    )


def cells(name: str, results: Sequence[Result]) -> list[Cell]:
    """Our numbers in percent with their standard error over users, and the paper's if it prints one."""
    printed = expected()[name]
    numbers = {
        (line["row"], metric, m): line[metric][index]
        for line in printed["rows"]
        for metric in ("precision", "recall", "f1")
        for index, m in enumerate(printed["m"])
    }
    return [
        Cell(
            name,
            {"row": entry.row, "metric": entry.metric, "m": entry.m},
            entry.value * 100,
            (entry.high - entry.low) / (2 * INTERVAL) * 100,
            1,
            numbers.get((entry.row, entry.metric, entry.m)),
            None,
        )
        for entry in table(results)
    ]


def instances_of_nodes(tree: Tree, users: BeforeAfter, level: int) -> Tensor:
    """S_n = Σ z_n over the instances of users, for every node of a level [|N_h|]."""
    span = tree.level(level)
    total = torch.zeros(len(span), dtype=torch.int64)
    for rows in torch.arange(len(users)).split(CHUNK):
        _, y = users.batch(rows)
        nodes = tree.ancestor(tree.leaf_of_item(y), level).sort(dim=1).values
        relevant = nodes[first_of_each(nodes)]  # an instance counts once per node
        total += torch.bincount(relevant - span.start, minlength=len(span))
    return total


def distribution(tree: Tree, users: BeforeAfter, level: int) -> Tensor:
    """S_n of a level, the largest first, as shares of their sum [|N_h|]."""
    counts = instances_of_nodes(tree, users, level).sort(descending=True).values.double()
    return counts / counts.sum()

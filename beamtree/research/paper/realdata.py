"""Tables 3 and 4: eight systems on Amazon Books and on UserBehavior, the paper's numbers beside ours."""

from collections.abc import Sequence
from pathlib import Path

from beamtree.builders import cluster_tree
from beamtree.data import Prepared
from beamtree.diagnose.inspect import INTERVAL
from beamtree.research.compare import Plan, Result, table
from beamtree.research.paper.report import Cell, expected
from beamtree.train.recipes import RECIPES
from beamtree.tree import Tree

TITLES = {
    "table3": "Table 3: Amazon Books, k = 400, %",
    "table4": "Table 4: UserBehavior, k = 400, %",
}
ROWS = ("item-cf", "youtube-dnn", "hsm", "plt", "jtm", "otm", "otm-no-beam", "otm-no-optest")
BEAM_SIZE, BATCH_SIZE = 400, 200


def plan(data: Prepared, folder: Path, *, recipe: str, device: str, seed: int, tree: Tree | None = None) -> Plan:
    """The paper's settings: ten epochs of batches of 200, beams of 400, one tree for all, the one that JTM learns."""
    epochs = RECIPES[recipe].epochs or 10
    return Plan(
        data,
        tree or cluster_tree(data, seed=seed),
        folder,
        tree_name="cluster" if tree is None else "own",
        recipe=recipe,
        beam_size=BEAM_SIZE,
        batch_size=BATCH_SIZE,
        steps=max(1, round(epochs * len(data.train) / BATCH_SIZE)),
        device=device,
        seed=seed,
    )


def cells(name: str, results: Sequence[Result]) -> list[Cell]:
    """Ours in percent, with how they scatter over users, and the paper's number where it prints one."""
    printed = expected()[name]
    numbers = {
        (line["row"], metric, m): line[metric][place]
        for line in printed["rows"]
        for metric in ("precision", "recall", "f1")
        for place, m in enumerate(printed["m"])
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

"""What all rows of a comparison have in common."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beamtree.data import Log, Prepared
from beamtree.train.recipes import RECIPES, Recipe
from beamtree.tree import Tree

CUTS = (10, 50, 100, 200)
METRICS = ("precision", "recall", "f1")


@dataclass(frozen=True)
class Plan:
    """The data, the first tree, and how long and with what beams the rows are trained."""

    data: Prepared
    tree: Tree
    folder: Path  # where rows are kept: each its result, and its model in a folder of its own
    recipe: str = "beamtree"
    beam_size: int = 400
    batch_size: int = 200
    steps: int = 10_000
    device: str = "cpu"
    seed: int = 0
    own_trees: bool = False  # whether rows other than jtm keep to the first tree
    m: tuple[int, ...] = CUTS
    test_beam: int = 400
    say: Callable[[str], None] = field(default=lambda line: None, compare=False)
    advance: Callable[[int], None] = field(default=lambda steps: None, compare=False)  # steps of training

    @property
    def how(self) -> Recipe:
        return RECIPES[self.recipe]

    @property
    def users(self) -> Log:
        """Who is asked."""
        return self.data.test

    def settings(self) -> dict[str, Any]:
        """What a row's result depends on, for a row that is there already."""
        return {
            "data": self.data.description["fingerprint"],
            "tree": self.tree.fingerprint(),
            "recipe": self.recipe,
            "beam_size": self.beam_size,
            "batch_size": self.batch_size,
            "steps": self.steps,
            "seed": self.seed,
            "own_trees": self.own_trees,
            "m": list(self.m),
            "test_beam": self.test_beam,
        }

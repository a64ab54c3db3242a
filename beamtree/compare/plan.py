"""What all rows of a comparison have in common."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from beamtree.data import Log, Prepared
from beamtree.train.recipes import RECIPES, Recipe
from beamtree.tree import Tree

CUTS = (10, 50, 100, 200)
METRICS = ("precision", "recall", "f1")
SECONDS = "seconds.txt"


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


class Made(NamedTuple):
    """A row that is ready to be asked."""

    find: Callable[[Tensor], Tensor]  # histories x [B, T] -> the best items, best first [B, m]
    num_bytes: int
    seconds: float = 0.0  # that its training took, if not in this call


Make = Callable[[Plan, Callable[[str], None]], Made]  # (plan, what a row wants to be said of it)


def write_seconds(folder: Path, seconds: float) -> None:
    """Remember how long a model was trained, for a result that is not there yet."""
    (folder / SECONDS).write_text(f"{seconds:.1f}\n")


def read_seconds(folder: Path) -> float:
    path = folder / SECONDS
    return float(path.read_text()) if path.exists() else 0.0

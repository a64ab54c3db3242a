"""What all rows of a comparison have in common."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from beamtree.data import Log, Prepared
from beamtree.data.files import read_json, write_json
from beamtree.train.recipes import RECIPES, Recipe
from beamtree.tree import Tree

CUTS = (10, 50, 100, 200)
METRICS = ("precision", "recall", "f1")
SECONDS, TRAINED = "seconds.json", "row.json"  # in a row's folder


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

    def training(self, kind: str) -> dict[str, Any]:
        """What a model of this kind depends on, `flat`, `dnn` or `tree`: one that is there already must agree."""
        found: dict[str, Any] = {"data": self.data.description["fingerprint"], "seed": self.seed}
        if kind != "flat":
            found |= {"steps": self.steps, "batch_size": self.batch_size}
        if kind == "tree":
            found |= {"tree": self.tree.fingerprint(), "recipe": self.recipe, "beam_size": self.beam_size}
        return found

    def measuring(self) -> dict[str, Any]:
        """What its numbers depend on beside: where that differs, it is measured again."""
        return {"m": list(self.m), "test_beam": self.test_beam}


class Made(NamedTuple):
    """A row that is ready to be asked."""

    find: Callable[[Tensor], Tensor]  # histories x [B, T] -> the best items, best first [B, m]
    num_bytes: int
    seconds: float = 0.0  # that its training took, if not in this call


Make = Callable[[Plan, Callable[[str], None]], Made]  # (plan, what a row wants to be said of it)


@contextmanager
def timed(folder: Path) -> Iterator[None]:
    """Add what this takes to the time that a model was trained before it was stopped."""
    began = time.monotonic()
    try:
        yield
    finally:
        write_json(folder / SECONDS, read_seconds(folder) + time.monotonic() - began)


def read_seconds(folder: Path) -> float:
    """How long a model was trained so far."""
    path = folder / SECONDS
    return float(read_json(path, "remove it")) if path.exists() else 0.0


def begin(folder: Path, training: dict[str, Any]) -> None:
    """Say in a row's folder what it is trained with; a ValueError where it was begun with something else."""
    path = folder / TRAINED
    if path.exists():
        check_same(path, read_json(path, "remove the folder and compare again"), training)
    elif folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} holds something else: compare into another folder")
    else:
        write_json(path, training)


def check_same(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise a ValueError that names the first setting which differs."""
    for name, value in now.items():
        if before.get(name) != value:
            raise ValueError(
                f"{path} was made with {name}={before.get(name)}, not {value}: compare into another folder"
            )

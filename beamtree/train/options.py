"""TrainingOptions: what a user can choose about a tree and its training.

`Recommender(...)` and `beamtree train` take these options with these defaults; a test compares them.
`recipes.resolve_settings` chooses those that are None.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beamtree.data import BeforeAfter, Data, Prepared
from beamtree.methods import Method
from beamtree.parts import Part
from beamtree.scorers import Scorer
from beamtree.tree import Tree

MakeScorer = Callable[[Tree, Prepared, int], Scorer]  # (tree, data, seed)


@dataclass(frozen=True)
class Recipe:
    """A scorer and the schedule that trains it well."""

    scorer: MakeScorer  # the part trained by gradients
    lr: float
    shape: Callable[[float], float]  # of the learning rate: see `Schedule`
    epochs: int | None  # None: enough for the usual number of steps
    warm_up: bool  # whether methods that walk a beam begin as TDM
    instances: Callable[[BeforeAfter], Data]  # from training users to the instances of a step
    parts: tuple[Part, ...] = ()  # of a sum, of which the scorer is the last; none: the scorer is the whole score


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How to build a tree and train a model on it: the arguments of `Recommender`, which describes each of them.

    None means: chosen for the log and the device.
    """

    method: str | Method = "otm-mixed"
    tree: str | Path | Tree | Callable[[Prepared], Tree] = "cluster"
    items: Any = None
    vectors: Any = None
    arity: int = 2
    scorer: MakeScorer | type[Scorer] | None = None
    recipe: str | Recipe = "beamtree"
    beam_size: int | None = None
    nodes: int | None = None
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    optimizer: str = "adam"
    patience: int = 8
    device: str = "cpu"
    seed: int = 0
    refit: bool | None = None
    sequence: bool | None = None
    parts: tuple[Part, ...] = ()

    @property
    def method_name(self) -> str:
        """The name of the method."""
        return self.method if isinstance(self.method, str) else self.method.name

    @property
    def recipe_name(self) -> str:
        """The name of the recipe: own where it is not one of the package."""
        return self.recipe if isinstance(self.recipe, str) else "own"

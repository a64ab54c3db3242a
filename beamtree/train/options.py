"""TrainingOptions: what a user can choose about a tree and its training.

`Recommender(...)` and `beamtree train` take these options with these defaults; a test compares them.
`recipes.resolve_settings` chooses those that are None.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
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

    First what most users need, then what research needs. None means: chosen for the log and the device.
    """

    device: str = "cpu"
    seed: int = 0
    sequence: bool | None = None
    minutes: float | None = None
    refit: bool | None = None
    tree: str | Path | Tree | Callable[[Prepared], Tree] = "cluster"
    items: Any = None
    vectors: Any = None
    parts: tuple[Part, ...] = ()
    steps: int | None = None
    epochs: int | None = None
    arity: int = 2
    method: str | Method = "otm-mixed"
    recipe: str | Recipe = "beamtree"
    scorer: MakeScorer | type[Scorer] | None = None
    beam_size: int | None = None
    nodes: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    optimizer: str = "adam"
    patience: int = 8

    @property
    def method_name(self) -> str:
        """The name of the method."""
        return self.method if isinstance(self.method, str) else self.method.name

    @property
    def recipe_name(self) -> str:
        """The name of the recipe: own where it is not one of the package."""
        return self.recipe if isinstance(self.recipe, str) else "own"

    def joined(self, other: "TrainingOptions") -> "TrainingOptions":
        """What these or other options choose; a ValueError where both choose the same option."""
        if not isinstance(other, TrainingOptions):
            raise ValueError(f"training={other!r}: give a TrainingOptions")
        chosen, others = self._chosen(), other._chosen()
        twice = next((name for name in chosen if name in others), None)
        if twice is not None:
            raise ValueError(f"`{twice}` is given twice: as an argument and in `training`; leave one of them out")
        return TrainingOptions(**chosen, **others)

    def _chosen(self) -> dict[str, Any]:
        """What is not the default; those whose default is None may be frames, which have no `==`."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {
            name: value
            for name, (value, default) in values.items()
            if (value is not None if default is None else value != default)
        }

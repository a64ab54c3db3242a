"""TrainingOptions: what a user can choose about a tree and its training, in one place.

`Recommender(...)` and `beamtree train` take these options with these defaults, and tests hold their signatures and help
to this file. `recipes.resolve_settings` decides what was left open.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beamtree.closed_form.builder import ClosedFormBuilder
from beamtree.data import BeforeAfter, Data, Prepared
from beamtree.methods import Method
from beamtree.scorers import Scorer, SumScorer
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
    start: Callable[[ClosedFormBuilder], SumScorer] | None = None  # closed-form parts that the scorer is added to


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How to build a tree and train a model on it. None means: chosen for the log and the device.

    Args:
        method: the training method: plt, hsm, tdm, tdm-positives, otm, otm-no-beam, otm-no-optest, otm-mixed,
            otm-mixed-all or otm-stochastic. In Python also a `Method`.
        tree: the kind of tree: cluster, category, random, or a file written by `beamtree tree`. In Python also a
            `Tree`, or a function (data) -> Tree.
        items: a table with the category of each item; category trees need it, cluster trees can use it. In Python
            also a frame.
        vectors: item vectors to cluster: a .npy file in the order of the items, or a table. In Python also a frame
            with an item and a vector, or a dict of vectors.
        arity: children per node.
        scorer: a `Scorer` class, or a function (tree, data, seed) -> Scorer. Default: that of the recipe.
        recipe: what is trained and how: beamtree (closed-form parts and a network), deep (the network alone), or
            paper (as published). In Python also a `Recipe`.
        beam_size: the beam size k in training. Default: 400 on a GPU, 100 on a CPU.
        nodes: nodes sampled per level, for methods that sample. Default: 2k.
        epochs: passes over the training users. Default: enough for 10,000 steps on a GPU, or 300 steps on a CPU.
        steps: training steps, instead of epochs; with 0 the model is the closed form.
        batch_size: users per step. Default: 200 on a GPU, 50 on a CPU.
        lr: the learning rate of Adam. Default: that of the recipe.
        optimizer: the optimizer: adam, or lazy (Adam on only the rows a step touched) for millions of items.
        patience: stop after this many validation checks without a rise in recall.
        device: the device: cpu or cuda.
        seed: the same seed gives the same model, on the same kind of machine with the same number of threads.
        refit: refit the closed-form parts at the end, with the events of validation users too.
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
    refit: bool = False

    @property
    def method_name(self) -> str:
        """The name of the method."""
        return self.method if isinstance(self.method, str) else self.method.name

    @property
    def recipe_name(self) -> str:
        """The name of the recipe: own where it is not one of the package."""
        return self.recipe if isinstance(self.recipe, str) else "own"

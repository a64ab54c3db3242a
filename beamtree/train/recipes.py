"""Training with good defaults: beam and batch sizes, learning rate, warm-up and first level.

`Recommender.fit` and the commands train, compare and demo all call `resolve_settings`, `build_model` and `train_model`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import torch

from beamtree.data import Data, Prepared
from beamtree.data.catalogue import Catalogue
from beamtree.errors import lookup
from beamtree.methods import METHODS, Method, sized, tdm
from beamtree.model import TreeModel
from beamtree.parts import PARTS, Part, check_parts
from beamtree.parts.closed_form import SAME_ITEMS
from beamtree.parts.deep import DeepPart, deep_as_published, deep_from_factors
from beamtree.parts.sequence import FIRST_SHARE, LEAST_EVENTS, MINUTES, SEQUENCE, SequencePart
from beamtree.progress import OnProgress, no_progress
from beamtree.scorers import Scorer
from beamtree.train.backend import current_backend
from beamtree.train.checkpoint import Checkpoints
from beamtree.train.loop import OnStep, fit, per_epoch
from beamtree.train.optimizer import OPTIMIZERS
from beamtree.train.options import MakeScorer, Recipe, TrainingOptions
from beamtree.train.schedule import Schedule, constant, cosine
from beamtree.train.validation import OnCheck, Progress, Validation
from beamtree.tree import Tree


class Sizes(NamedTuple):
    """Default sizes of a training run."""

    beam_size: int
    batch_size: int
    steps: int  # about


# On a CPU many small steps along narrow beams learn more in an hour than a few large ones.
DEFAULT_SIZES = {"cpu": Sizes(100, 50, 3000), "cuda": Sizes(400, 200, 10_000)}
MAX_STEPS = 10**9  # also of epochs
MAX_LR = 1e30  # Adam overflows beyond it; training diverges far below, with an error
SMALLEST = {  # of options that are whole numbers, and what a message adds
    "arity": (2, "a tree needs at least 2 children per node"),
    "beam_size": (1, "must be at least 1"),
    "nodes": (1, "must be at least 1"),
    "batch_size": (1, "must be at least 1"),
    "steps": (0, "must be 0 or more"),
    "epochs": (1, "must be at least 1; `steps=0` is the closed form only"),
    "patience": (1, "must be above 0"),
    "seed": (-math.inf, ""),
}
SAME_FOR_ALL = 0.8  # share of the same items in all lists from which on a fit says so
NEEDED = "closed-form parts: use the recipe beamtree and a method other than plt and hsm"
VALIDATION_USERS = 4000  # at most, for the checks during training


def default_sizes(device: torch.device | str) -> Sizes:
    """Sizes that suit most logs on a kind of device."""
    return DEFAULT_SIZES["cpu" if torch.device(device).type == "cpu" else "cuda"]


DEEP_RECIPE = Recipe(deep_from_factors, 2e-3, cosine, None, True, lambda users: users.random_crops())
RECIPES = {
    "beamtree": replace(DEEP_RECIPE, parts=PARTS),
    "deep": DEEP_RECIPE,
    "paper": Recipe(deep_as_published, 1e-3, constant, 10, False, lambda users: users),
}


@dataclass(frozen=True)
class TrainingSettings:
    """`TrainingOptions` with nothing left open."""

    recipe: Recipe
    method: Method
    beam_size: int
    batch_size: int
    epochs: int | None  # either epochs or steps
    steps: int | None
    lr: float
    optimizer: str = "adam"
    patience: int = 8
    seed: int = 0
    device: str = "cpu"
    refit: bool = False
    parts: tuple[Part, ...] = ()  # of the sum that is fitted; none: the scorer of the recipe is the whole score
    check_every: int | None = None  # steps between validation checks; None: a twentieth of all

    def instances(self, data: Prepared) -> Data:
        """The training instances."""
        if self.method.single_target:
            return data.train.sliding_windows()
        return self.recipe.instances(data.train)

    @property
    def sequence(self) -> bool:
        """Whether a sequence part is trained."""
        return any(part.name == SEQUENCE for part in self.parts)

    @property
    def parts_from_outside(self) -> tuple[Part, ...]:
        """Those that are not of the recipe."""
        own = {part.name for part in self.recipe.parts}
        return tuple(part for part in self.parts if part.name not in own)

    def describe(self, data: Path, options: TrainingOptions) -> dict[str, Any]:
        """The content of run.json, which a resumed run must share; `tree`, `items` and `vectors` as text."""
        tables = [name for name in ("items", "vectors") if getattr(options, name) is not None]
        names = ("batch_size", "epochs", "steps", "lr", "optimizer", "seed", "device", "refit", "sequence")
        return {
            "data": str(data.resolve()),
            "tree": str(options.tree),
            "arity": options.arity,
            "items": None if options.items is None else str(options.items),
            "vectors": None if options.vectors is None else str(options.vectors),
            "recipe": options.recipe_name,
            "method": self.method.name,
            "beam_size": self.beam_size,
            **self.method.describe(),
            **{name: getattr(self, name) for name in names},
            **({"tree_tables": tables} if tables else {}),
        }

    def num_steps(self, data: Prepared) -> int:
        """The number of steps, unless training stops early."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 0) * per_epoch(self.instances(data), self.batch_size)

    @property
    def schedule(self) -> Schedule:
        """The learning rate and the warm-up."""
        warm_up = tdm(2 * self.beam_size) if self.recipe.warm_up and self.method.uses_beam else None
        return Schedule(self.lr, self.recipe.shape, warm_up)


def check_options(options: TrainingOptions) -> Recipe:
    """Raise a ValueError for options that no data make possible; returns the recipe, with the parts that can be fitted.

    A scorer of one's own is the whole score, and closed-form parts do not give logits of a node among its siblings.
    """
    if not isinstance(options.method, Method):
        lookup(METHODS, "method", options.method)
    lookup(OPTIMIZERS, "optimizer", options.optimizer)
    recipe = options.recipe if isinstance(options.recipe, Recipe) else lookup(RECIPES, "recipe", options.recipe)
    for name, (smallest, reason) in SMALLEST.items():
        value = getattr(options, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise ValueError(f"{name}={value!r}: give a whole number")
        if value is not None and value < smallest:
            raise ValueError(f"{name}={value}: {reason}")
    for name in ("refit", "sequence"):
        if getattr(options, name) not in (None, True, False):
            raise ValueError(f"{name}={getattr(options, name)!r}: give True, False or None")
    check_parts(options.parts)
    minutes: object = options.minutes
    if minutes is not None and (
        isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes < math.inf
    ):
        raise ValueError(f"minutes={minutes}: must be above 0 and finite; `sequence=False` trains no transformer")
    if minutes is not None and options.sequence is False and not any(part.name == SEQUENCE for part in options.parts):
        raise ValueError("`minutes` are for the sequence part, which is left out: give one of the two")
    if not isinstance(options.lr, Real | None) or not 0 < (recipe.lr if options.lr is None else options.lr) <= MAX_LR:
        raise ValueError(f"lr={options.lr}: must be above 0 and at most {MAX_LR:g}; 0.001 is usual")
    if options.epochs is not None and options.steps is not None:
        raise ValueError("`epochs` and `steps` are both given: give one of them")
    for name, count in (("epochs", options.epochs), ("steps", options.steps)):
        if count is not None and count > MAX_STEPS:
            raise ValueError(f"{name}={count}: must be at most {MAX_STEPS:,}")
    if options.scorer is not None:
        if not callable(options.scorer):
            raise ValueError(f"scorer={options.scorer!r}: give a class of scorers, or a function (tree, data, seed)")
        recipe = replace(recipe, scorer=_scorer_function(options.scorer), parts=())
    if (sized(options.method, 1, 1) if isinstance(options.method, str) else options.method).chained:
        recipe = replace(recipe, parts=())
    needing = next((name for name in ("refit", "sequence", "parts") if getattr(options, name)), None)
    if needing and not recipe.parts:
        raise ValueError(f"`{needing}` needs {NEEDED}")
    return recipe


def resolve_settings(data: Prepared, options: TrainingOptions) -> TrainingSettings:
    """Check the options, and choose what was left open for these data and this device."""
    recipe = check_options(options)
    lr = recipe.lr if options.lr is None else options.lr
    sizes = default_sizes(options.device)
    beam_size = sizes.beam_size if options.beam_size is None else options.beam_size
    batch_size = sizes.batch_size if options.batch_size is None else options.batch_size
    nodes = 2 * beam_size if options.nodes is None else options.nodes
    method = sized(options.method, beam_size, nodes) if isinstance(options.method, str) else options.method
    if len(data.train) < 2:
        raise ValueError(f"{data.folder} has one user for training and at least two are needed: prepare a longer log")
    if int(data.train.events.counts().max()) < 2:
        raise ValueError(f"no training user of {data.folder} has two events: prepare a longer log")
    held_out = len(data.val) + len(data.test) > 0 or data.all is not None  # without, a refit would change nothing
    refit = bool(recipe.parts) and held_out if options.refit is None else options.refit
    settings = TrainingSettings(
        recipe, method, beam_size, batch_size, options.epochs, options.steps, lr,
        options.optimizer, options.patience, options.seed, options.device, refit,
        _parts(data, options, recipe),
    )  # fmt: skip
    if options.epochs is not None or options.steps is not None:
        return settings
    if recipe.parts:
        return replace(settings, steps=0)  # beside the other parts the network had the weight 0 on four of four logs
    steps_per_epoch = max(1, per_epoch(settings.instances(data), batch_size))
    return replace(settings, epochs=recipe.epochs or max(1, round(sizes.steps / steps_per_epoch)))


def _parts(data: Prepared, options: TrainingOptions, recipe: Recipe) -> tuple[Part, ...]:
    """The parts to try, those from outside before the one that is trained; a ValueError where one cannot be fitted."""
    is_given = any(part.name == SEQUENCE for part in options.parts)  # instead of that of the recipe
    trains_sequence = not is_given and _trains_sequence(data, options, recipe)
    parts = [part for part in recipe.parts if part.name != SEQUENCE or trains_sequence]
    for part in options.parts:
        obstacle = part.obstacle(data)
        if obstacle:
            raise ValueError(f"`parts`: {part.name} needs {obstacle}")
        if any(part.name == other.name for other in parts):
            raise ValueError(f"`parts`: there are two parts of the name {part.name!r}: give one of them another")
        parts.insert(next((at for at, other in enumerate(parts) if isinstance(other, DeepPart)), len(parts)), part)
    parts = [DeepPart(recipe.scorer) if isinstance(part, DeepPart) else part for part in parts]
    minutes = options.minutes
    if minutes is None and torch.device(options.device).type == "cpu":
        minutes = MINUTES
    if minutes is not None and data.all is not None and options.refit is not False:
        minutes *= FIRST_SHARE  # it is trained again to all events
    parts = [
        SequencePart(part.settings, minutes, part.length) if isinstance(part, SequencePart) else part for part in parts
    ]
    return tuple(part for part in parts if part.obstacle(data) is None)


def _trains_sequence(data: Prepared, options: TrainingOptions, recipe: Recipe) -> bool:
    """Whether to train a sequence part; a ValueError where it was asked for and cannot be."""
    if options.sequence is False:
        return False
    part = next((part for part in recipe.parts if part.name == SEQUENCE), None)
    obstacle = NEEDED if part is None else part.obstacle(data)
    if options.sequence and obstacle:
        raise ValueError(f"`sequence` needs {obstacle}")
    if options.sequence or obstacle is not None:
        return obstacle is None
    on_cpu = torch.device(options.device).type == "cpu"
    return options.steps != 0 and not (on_cpu and len(data.train.item_numbers()) < LEAST_EVENTS)


def _scorer_function(scorer: MakeScorer | type[Scorer]) -> MakeScorer:
    """A function as it is; a class is called with the number of nodes and the seed."""
    if not isinstance(scorer, type):
        return scorer
    kind: Callable[..., Scorer] = scorer
    return lambda tree, data, seed: kind(tree.num_nodes, seed=seed)


def build_model(
    settings: TrainingSettings,
    data: Prepared,
    tree: Tree,
    on_progress: OnProgress = no_progress,
    catalogue: Catalogue | None = None,
) -> TreeModel:
    """The model before the first step; fitting its parts calls `on_progress`.

    Args:
        settings: which parts, and how they are trained.
        data: the log.
        tree: T.
        on_progress: called with the progress.
        catalogue: the table of the items, where there is one.
    """
    backend = current_backend()
    tree = backend.tree(tree)
    top = first_level(tree, settings.beam_size)
    if settings.parts:
        form = backend.closed_form(
            tree, data, settings.seed, settings.device, top, on_progress, parts=settings.parts, catalogue=catalogue,
            processes=backend,
        )  # fmt: skip
        parts = form.fit()
        for part in form.parts:
            if part not in form.own:
                parts = part.add(parts, form)
        scorer: Scorer = parts
    else:
        scorer = settings.recipe.scorer(tree, data, settings.seed)
    model = TreeModel(tree, scorer, chained=settings.method.chained, first_level=top, ids=data.items)
    return backend.place(model, settings.device)


def start_parts(model: TreeModel) -> str:
    """What a model had before the first step, as text; empty where that was nothing but a network."""
    if not model.scorer.hyperparameters:
        return ""
    records = model.scorer.hyperparameters
    added = [f"the {name} part" for name in model.scorer.names if isinstance(records.get(name), dict)]
    return " and ".join(["the closed form", *added])


def parts_report(scorer: Scorer, parts: Sequence[Part] = PARTS) -> list[str]:
    """Lines on what the parts of a sum brought, and on those that were left out."""
    lines = [line for part in parts for line in part.report(scorer)]
    same = scorer.hyperparameters.get("same", 0.0)
    if same >= SAME_FOR_ALL:
        lines.append(
            f"Everybody gets nearly the same list: {100 * same:.0f} % of what {SAME_ITEMS} places show to validation "
            f"users are the same {SAME_ITEMS} items."
        )
    return lines


def train_model(
    settings: TrainingSettings,
    data: Prepared,
    model: TreeModel,
    *,
    checkpoints: Checkpoints | None = None,
    on_step: OnStep | None = None,
    on_check: OnCheck | None = None,
) -> Progress:
    """Train a model in place and keep the weights with the best recall on the validation users."""
    users = data.val.sample(VALIDATION_USERS)
    validation = (
        Validation(users, every=settings.check_every, patience=settings.patience, on_check=on_check)
        if len(users)
        else None
    )
    return fit(
        model,
        settings.instances(data),
        settings.method,
        epochs=settings.epochs,
        steps=settings.steps,
        batch_size=settings.batch_size,
        schedule=settings.schedule,
        optimizer=OPTIMIZERS[settings.optimizer],
        val=validation,
        checkpoints=checkpoints,
        seed=settings.seed,
        on_step=on_step,
    )


def first_level(tree: Tree, beam_size: int) -> int:
    """The first level to search: the beam holds every node above it, so nothing is decided there."""
    level = 1
    while level < tree.height and len(tree.level(level + 1)) <= beam_size:
        level += 1
    return level

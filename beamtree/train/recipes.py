"""How to train where nobody says otherwise: the one place that decides sizes, rate, warm-up and first level.

`beamtree train`, `beamtree compare`, `beamtree demo` and `Recommender.fit` all call `settle`, `start_model` and
`train_model`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch

from beamtree.closed_form.builder import LEARNED, Start, refit
from beamtree.data import BeforeAfter, Data, Prepared, Windows
from beamtree.distributed.consistency import one_model, one_tree
from beamtree.distributed.partition import own_shard
from beamtree.methods import Method, sized, tdm
from beamtree.model import TreeModel
from beamtree.progress import OnProgress, no_progress
from beamtree.scorers import DeepScorer, Scorer, SumScorer
from beamtree.train.checkpoint import Checkpoints
from beamtree.train.loop import OnStep, fit, per_epoch
from beamtree.train.optimizer import OPTIMIZERS
from beamtree.train.schedule import Schedule, constant, cosine
from beamtree.train.validation import OnCheck, Progress, Validation
from beamtree.tree import Tree

T = TypeVar("T")
MakeScorer = Callable[[Tree, Prepared, int], Scorer]  # (tree, data, seed)


class Sizes(NamedTuple):
    """How wide and how long to train."""

    beam_size: int
    batch_size: int
    steps: int  # about


LONGEST = 10**9  # steps or epochs that can be asked for

# On a CPU many small steps along narrow beams learn more in an hour than a few large ones.
# Steps on a CPU beside parts in closed form, and fewer where the first check finds nothing better than the start: a
# model is made within ten minutes, and most logs need no more.
BESIDE_PARTS = 300
USUAL = {"cpu": Sizes(100, 50, 3000), "cuda": Sizes(400, 200, 10_000)}


def usual_sizes(device: torch.device | str) -> Sizes:
    """What is right for most logs on this kind of device."""
    return USUAL["cpu" if torch.device(device).type == "cpu" else "cuda"]


@dataclass(frozen=True)
class Recipe:
    """What the models of a recipe have in common."""

    scorer: MakeScorer  # what gradients train
    lr: float
    shape: Callable[[float], float]  # of the learning rate
    epochs: int | None  # None: as many as make the usual number of steps
    warm_up: bool  # whether methods that walk a beam begin as TDM
    instances: Callable[[BeforeAfter], Data]  # from training users to what a step reads
    start: Callable[[Start], SumScorer] | None = None  # parts in closed form that it is added to


def deep_from_factors(tree: Tree, data: Prepared, seed: int) -> DeepScorer:
    """The deep scorer with shared rows, started from what users chose together."""
    return DeepScorer(tree.num_nodes, seed=seed, shard=own_shard(tree)).start_from(tree, data.own_factors)


def deep_as_published(tree: Tree, data: Prepared, seed: int) -> DeepScorer:
    """The deep scorer with rows of their own drawn from N(0, 1)."""
    return DeepScorer(tree.num_nodes, scale=1.0, share=False, seed=seed, shard=own_shard(tree))


def unlifted(make: MakeScorer) -> MakeScorer:
    """The same scorer, but a deep one reads the history at its leaves on every level, as TDM did before JTM."""

    def scorer(tree: Tree, data: Prepared, seed: int) -> Scorer:
        found = make(tree, data, seed)
        if isinstance(found, DeepScorer):
            found.lift = False
        return found

    return scorer


LARGEST_RATE = 1e30  # that Adam can multiply by; far smaller ones diverge, and are told to
ASKED = 4000  # validation users that are asked along the way, at most
DEEP = Recipe(deep_from_factors, 2e-3, cosine, None, True, lambda users: users.stretches())
RECIPES = {
    "beamtree": replace(DEEP, start=Start.all_parts),
    "deep": DEEP,
    "paper": Recipe(deep_as_published, 1e-3, constant, 10, False, lambda users: users),
}


def recipe_name(recipe: str | Recipe) -> str:
    """What a recipe is called: own where it is none of the package."""
    return recipe if isinstance(recipe, str) else "own"


@dataclass(frozen=True)
class Settings:
    """Everything that a training run decided before it began."""

    recipe: Recipe
    method: Method
    beam_size: int
    batch_size: int
    epochs: int | None  # one of the two
    steps: int | None
    lr: float
    optimizer: str = "adam"
    patience: int = 8
    seed: int = 0
    device: str = "cpu"
    refit: bool = False  # whether the parts are made again at the end, with validation users
    check_every: int | None = None  # steps between two checks; a twentieth of all unless given

    def instances(self, data: Prepared) -> Data:
        """What the steps read."""
        if self.method.single_target:
            return Windows(data.train.events)
        return self.recipe.instances(data.train)

    def num_steps(self, data: Prepared) -> int:
        """How many steps there will be, unless recall stops rising."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 0) * per_epoch(self.instances(data), self.batch_size)

    @property
    def schedule(self) -> Schedule:
        warm_up = tdm(2 * self.beam_size) if self.recipe.warm_up and self.method.walks else None
        return Schedule(self.lr, self.recipe.shape, warm_up)


def check_length(epochs: int | None, steps: int | None) -> None:
    """Raise a ValueError where it is not clear how long to train, or nobody could wait for it."""
    if epochs is not None and steps is not None:
        raise ValueError("`epochs` and `steps` both say how long to train: give one of them")
    for name, count in (("epochs", epochs), ("steps", steps)):
        if count is not None and count > LONGEST:
            raise ValueError(f"{name}={count}: nobody could wait for it; give at most {LONGEST:,}")


def settle(
    data: Prepared,
    *,
    recipe: str | Recipe = "beamtree",
    method: str | Method = "otm-mixed",
    scorer: MakeScorer | type[Scorer] | None = None,
    beam_size: int | None = None,
    nodes: int | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    optimizer: str = "adam",
    patience: int = 8,
    seed: int = 0,
    device: str = "cpu",
    refit: bool = False,
) -> Settings:
    """Decide what was left open; the arguments are those of `Recommender`."""
    found = chosen(RECIPES, "recipe", recipe) if isinstance(recipe, str) else recipe
    chosen(OPTIMIZERS, "optimizer", optimizer)
    found = found if scorer is None else replace(found, scorer=_of_class(scorer), start=None)
    if lr is not None and not 0 < lr <= LARGEST_RATE:
        raise ValueError(f"lr={lr}: give a number above 0 and not above {LARGEST_RATE:g}; 0.001 is usual")
    check_length(epochs, steps)
    usual = usual_sizes(device)
    beam_size = usual.beam_size if beam_size is None else beam_size
    batch_size = usual.batch_size if batch_size is None else batch_size
    _check_positive(beam_size=beam_size, batch_size=batch_size)
    nodes = 2 * beam_size if nodes is None else nodes
    row = sized(method, beam_size, nodes) if isinstance(method, str) else method
    if len(data.train) < 2:
        raise ValueError(f"{data.folder} has one user for training, and two at least are needed: prepare a longer log")
    if int(data.train.events.counts().max()) < 2:
        raise ValueError(
            f"no training user of {data.folder} has two events, so nothing follows anything: prepare a longer log"
        )
    if row.chained:  # the parts in closed form are no logits of a node among its siblings
        found = replace(found, start=None)
    rate = found.lr if lr is None else lr
    if refit and found.start is None:
        raise ValueError(
            "`refit` makes the parts in closed form again: train with the recipe beamtree, and not plt or hsm"
        )
    settings = Settings(
        found, row, beam_size, batch_size, epochs, steps, rate, optimizer, patience, seed, device, refit
    )
    if epochs is None and steps is None:
        every = max(1, per_epoch(settings.instances(data), batch_size))
        if found.start is not None and usual is USUAL["cpu"]:
            return replace(settings, steps=BESIDE_PARTS, check_every=BESIDE_PARTS // 3, patience=1)
        settings = replace(settings, epochs=found.epochs or max(1, round(usual.steps / every)))
    return settings


def _check_positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")


def _of_class(scorer: MakeScorer | type[Scorer]) -> MakeScorer:
    """What makes a scorer: a function as it is, a class by the number of nodes and the seed."""
    if not isinstance(scorer, type):
        return scorer
    kind: Callable[..., Scorer] = scorer
    return lambda tree, data, seed: kind(tree.num_nodes, seed=seed)


def chosen(table: dict[str, T], what: str, name: str) -> T:
    """What a name stands for; a ValueError where it stands for nothing."""
    if name not in table:
        raise ValueError(f"{what} {name!r} is unknown: choose from {', '.join(table)}")
    return table[name]


def start_model(settings: Settings, data: Prepared, tree: Tree, on_progress: OnProgress = no_progress) -> TreeModel:
    """The model as it is before the first step; `on_progress` hears how far the closed form is."""
    tree = one_tree(tree)
    top = first_level(tree, settings.beam_size)
    scorer = settings.recipe.scorer(tree, data, settings.seed)
    if settings.recipe.start is not None:
        scorer.check(data.train.observations())
        parts = settings.recipe.start(Start(tree, data, settings.seed, settings.device, top, on_progress))
        scorer = parts.with_part(LEARNED, scorer, 0.0, learned=True)
    return one_model(TreeModel(tree, scorer, first_level=top, ids=data.items).to(settings.device))


def train_model(
    settings: Settings,
    data: Prepared,
    model: TreeModel,
    *,
    checkpoints: Checkpoints | None = None,
    on_step: OnStep | None = None,
    on_check: OnCheck | None = None,
) -> Progress:
    """Train a model in place as decided; the best weights by recall on the validation users are kept."""
    users = data.val.few(ASKED)
    validation = (
        Validation(users, every=settings.check_every, patience=settings.patience, on_check=on_check)
        if len(users)
        else None
    )
    progress = fit(
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
    if settings.refit:
        refit(model, data, settings.seed)
        one_model(model)
    return progress


def first_level(tree: Tree, beam_size: int) -> int:
    """The first level whose parents all fit into a beam with room to spare: nothing is decided above it."""
    level = 1
    while level < tree.height and len(tree.level(level + 1)) <= beam_size:
        level += 1
    return level

"""What all rows of a comparison have in common."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from beamtree.data import BeforeAfter, Prepared
from beamtree.evaluate import named_metrics
from beamtree.files.atomic import read_json, write_json
from beamtree.methods import Method, describe_call
from beamtree.metrics import Metric
from beamtree.scorers import Scorer
from beamtree.train.options import MakeScorer, Recipe, TrainingOptions
from beamtree.train.recipes import TrainingSettings, resolve_settings, unlifted
from beamtree.tree import Tree

CUTS = (10, 50, 100, 200)
METRICS = ("precision", "recall", "f1")
SECONDS, TRAINED = "seconds.json", "row.json"  # in a row's folder


@dataclass(frozen=True)
class Plan:
    """What is compared, and how.

    Args:
        data: the log; its test users are asked.
        tree: the first tree.
        folder: where rows are kept: each its result, and its model in a folder of its own.
        tree_name: where the first tree comes from.
        recipe: how tree rows are trained: deep, or paper, as published; or a recipe of your own.
        beam_size: k in training.
        batch_size: users per step.
        steps: of training.
        device: where tree rows are trained and searched.
        seed: of all that is random.
        own_trees: whether rows other than jtm keep to the first tree.
        m: how many items are retrieved.
        metrics: names of `metrics.METRICS`, or functions of your own, as `evaluate` takes them.
        test_beam: k of the search.
        exclude_seen: whether what a user has seen is neither retrieved nor expected.
        say: hears what happens.
        advance: hears how many steps of training were done.
    """

    data: Prepared
    tree: Tree
    folder: Path
    tree_name: str = "own"
    recipe: str | Recipe = "deep"
    beam_size: int = 400
    batch_size: int = 200
    steps: int = 10_000
    device: str = "cpu"
    seed: int = 0
    own_trees: bool = False
    m: tuple[int, ...] = CUTS
    metrics: tuple[str | Metric, ...] = METRICS
    test_beam: int = 400
    exclude_seen: bool = False
    say: Callable[[str], None] = field(default=lambda line: None, compare=False)
    advance: Callable[[int], None] = field(default=lambda steps: None, compare=False)

    @property
    def users(self) -> BeforeAfter:
        """Who is asked."""
        return self.data.test

    @property
    def metric_names(self) -> tuple[str, ...]:
        """What the metrics are called."""
        return tuple(named_metrics(self.metrics))

    def recipe_of(self, row: "Row") -> str | Recipe:
        """The recipe of a tree row: its own, or that of the plan."""
        return row.recipe or self.recipe

    def options(self, row: "Row") -> TrainingOptions:
        """The training options of a tree row."""
        return TrainingOptions(
            tree=self.tree_name,
            recipe=self.recipe_of(row),
            method=row.method,
            scorer=row.scorer,
            beam_size=self.beam_size,
            steps=self.steps if row.trained else 0,
            batch_size=self.batch_size,
            seed=self.seed,
            device=self.device,
        )

    def settings(self, row: "Row") -> TrainingSettings:
        """How a tree row is trained."""
        settings = resolve_settings(self.data, self.options(row))
        if row.lifted:
            return settings
        return replace(settings, recipe=replace(settings.recipe, scorer=unlifted(settings.recipe.scorer)))

    def for_row(self, row: "Row") -> "Plan":
        """The same plan with the tree that a row builds for itself, if it does."""
        return self if row.tree is None else replace(self, tree=row.tree(self.data), tree_name=describe_call(row.tree))

    def training(self, row: "Row") -> dict[str, Any]:
        """What the model of a row depends on, its name aside: one that is there already must agree."""
        found: dict[str, Any] = {"data": self.data.description["fingerprint"], "seed": self.seed}
        if row.kind != "flat":
            found |= {"steps": self.steps if row.trained else 0, "batch_size": self.batch_size}
        if row.kind == "tree":
            recipe = self.recipe_of(row)
            found |= {
                "tree": self.tree.fingerprint(),
                "recipe": self.options(row).recipe_name,
                "beam_size": self.beam_size,
            }
            found |= self.settings(row).method.describe()
            found |= {"scorer": row.scorer and describe_call(row.scorer), "lifted": row.lifted, "joint": row.joint}
            if isinstance(recipe, Recipe):
                parts = {each.name: getattr(recipe, each.name) for each in fields(recipe)}
                found["recipe_parts"] = {
                    name: describe_call(part) if callable(part) else part for name, part in parts.items()
                }
        return found

    def measuring(self) -> dict[str, Any]:
        """What its numbers depend on beside: where that differs, it is measured again."""
        return {
            "m": list(self.m),
            "metrics": list(self.metric_names),
            "test_beam": self.test_beam,
            "exclude_seen": self.exclude_seen,
        }


class ReadyRow(NamedTuple):
    """A row that is ready to be asked."""

    find: Callable[[Tensor, Tensor], Tensor]  # (histories x [B, T], items to leave out [B, E]) -> the best [B, m]
    num_bytes: int
    seconds: float = 0.0  # that its training took, if not in this call
    kept_the_start: bool = False  # whether training found nothing better than what it began with


@dataclass(frozen=True)
class Row:
    """One row of a comparison: what makes it ready, and what it is made of.

    Args:
        make: (name, row, plan, hears what should be said of it) -> something to ask.
        kind: flat, dnn or tree: see `Plan.training`.
        method: of a tree row: a name of `methods.METHODS`, or a method of your own.
        scorer: of a tree row: (tree, data, seed) -> Scorer; the recipe's unless given.
        tree: of a tree row: data -> Tree; the plan's unless given.
        joint: whether a tree row learns its tree.
        recipe: of a tree row; the plan's unless given.
        trained: whether a tree row is trained, or stays as it starts.
        lifted: whether a deep scorer reads the history at the level that it scores, as since JTM, or at the leaves.
        scorers: classes of scorers from outside the package, to load a finished row.
    """

    make: Callable[[str, "Row", Plan, Callable[[str], None]], ReadyRow]
    kind: str = "flat"
    method: str | Method = ""
    scorer: MakeScorer | None = None
    tree: Callable[[Prepared], Tree] | None = None
    joint: bool = False
    recipe: str | Recipe | None = None
    trained: bool = True
    lifted: bool = True
    scorers: tuple[type[Scorer], ...] = ()


class OtherSettingsError(ValueError):
    """What is there already was made in another way than is asked for now."""


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
    """Raise an error that names the first setting which differs."""
    for name, value in now.items():
        if before.get(name) != value:
            raise OtherSettingsError(
                f"{path} was made with {name}={before.get(name)}, not {value}: compare into another folder"
            )

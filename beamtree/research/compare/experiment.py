"""What all rows of a comparison share: data, training, measurement, and a folder for results."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from beamtree.beam import DEFAULT_BEAM_SIZE
from beamtree.data import Data, Prepared
from beamtree.data.inputs import WHOLE_HISTORY
from beamtree.evaluate import Find, named_metrics
from beamtree.evaluate.metrics import Metric
from beamtree.files.atomic import read_json, write_json
from beamtree.methods import Method, describe_call
from beamtree.scorers import DeepScorer, Scorer
from beamtree.train.options import MakeScorer, Recipe, TrainingOptions
from beamtree.train.recipes import TrainingSettings, resolve_settings
from beamtree.tree import Tree

CUTS = (10, 50, 100, 200)
PAPER_METRICS = ("precision", "recall", "f1")
SECONDS, TRAINED = "seconds.json", "row.json"  # in a row's folder


@dataclass(frozen=True)
class Experiment:
    """What is compared, and how.

    Args:
        data: the log; results are measured on its test users.
        tree: the first tree.
        folder: where results are stored, and each trained model in its own folder.
        tree_name: where the first tree comes from.
        recipe: how tree rows are trained: deep, or paper (as published), or your own recipe.
        beam_size: k in training.
        batch_size: users per step.
        steps: training steps.
        device: where tree rows are trained and searched.
        seed: of all randomness.
        own_trees: whether rows other than jtm use the first tree, not the one learned by jtm.
        m: how many items are retrieved.
        metrics: names of `metrics.METRICS` or your own functions, as in `evaluate`.
        test_beam: k of the search that is measured.
        on_message: called with lines about progress.
        on_steps: called with the number of training steps done since the last call.
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
    metrics: tuple[str | Metric, ...] = PAPER_METRICS
    test_beam: int = DEFAULT_BEAM_SIZE
    on_message: Callable[[str], None] = field(default=lambda line: None, compare=False)
    on_steps: Callable[[int], None] = field(default=lambda steps: None, compare=False)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return tuple(named_metrics(self.metrics))

    def options(self, row: "Row") -> TrainingOptions:
        """The training options of a tree row."""
        return TrainingOptions(
            tree=self.tree_name,
            recipe=row.recipe or self.recipe,
            method=row.method,
            scorer=row.scorer,
            beam_size=self.beam_size,
            steps=self.steps if row.trained else 0,
            batch_size=self.batch_size,
            seed=self.seed,
            device=self.device,
            sequence=None if torch.device(self.device).type == "cuda" else False,
            refit=False,
        )

    def settings(self, row: "Row") -> TrainingSettings:
        """How a tree row is trained."""
        settings = resolve_settings(self.data, self.options(row))
        if row.lifted:
            return settings
        return replace(settings, recipe=replace(settings.recipe, scorer=with_leaf_history(settings.recipe.scorer)))

    def training(self, row: "Row") -> dict[str, Any]:
        """What the model of a row depends on, apart from its name. A stored model must agree."""
        training: dict[str, Any] = {"data": self.data.description["fingerprint"], "seed": self.seed}
        if row.kind != "flat":
            training |= {"steps": self.steps if row.trained else 0, "batch_size": self.batch_size}
        if row.kind == "tree":
            options = self.options(row)
            training |= {
                "tree": self.tree.fingerprint(),
                "recipe": options.recipe_name,
                "beam_size": self.beam_size,
                **self.settings(row).method.describe(),
                "scorer": row.scorer and describe_call(row.scorer),
                "lifted": row.lifted,
                "joint": row.joint,
            }
            if isinstance(options.recipe, Recipe):
                values = {each.name: getattr(options.recipe, each.name) for each in fields(options.recipe)}
                values["parts"] = [part.name for part in options.recipe.parts]
                training["recipe_parts"] = {
                    name: describe_call(value) if callable(value) else value for name, value in values.items()
                }
        return training

    def measuring(self) -> dict[str, Any]:
        """What the numbers of a row also depend on. A stored result that differs is measured again."""
        return {
            "m": list(self.m),
            "metrics": list(self.metric_names),
            "test_beam": self.test_beam,
            "history": WHOLE_HISTORY,
        }


class Retriever(NamedTuple):
    """A row that is ready to retrieve items."""

    retrieve: Find  # (histories x [B, T], items to leave out [B, E]) -> the best items [B, m]
    num_bytes: int
    training_seconds: float = 0.0  # 0: measured by the caller
    kept_the_start: bool = False  # whether training did not improve on the start
    users: Data | None = None  # the test users as it reads them; None: the newest HISTORY events of each
    label: str = ""  # the row's name in tables, where that says more, such as "popularity, 90 days"


@dataclass(frozen=True)
class Row:
    """One row of a comparison.

    Args:
        make: (name, row, experiment, function that takes notes about the row) -> Retriever.
        kind: flat, dnn or tree: see `Experiment.training`.
        method: of a tree row: a name of `methods.METHODS`, or your own method.
        scorer: of a tree row: (tree, data, seed) -> Scorer. Default: that of the recipe.
        tree: of a tree row: data -> Tree. Default: that of the experiment.
        joint: whether a tree row learns its tree.
        recipe: of a tree row. Default: that of the experiment.
        trained: whether a tree row is trained, or stays at its start.
        lifted: whether a deep scorer reads the history at the level that it scores, as in JTM and later, or as leaves.
        scorers: classes of scorers from outside the package, to load a finished row.
    """

    make: Callable[[str, "Row", Experiment, Callable[[str], None]], Retriever]
    kind: str = "flat"
    method: str | Method = ""
    scorer: MakeScorer | None = None
    tree: Callable[[Prepared], Tree] | None = None
    joint: bool = False
    recipe: str | Recipe | None = None
    trained: bool = True
    lifted: bool = True
    scorers: tuple[type[Scorer], ...] = ()


def with_leaf_history(make: MakeScorer) -> MakeScorer:
    """The same scorer, but a deep one reads the history as leaves on every level, as TDM did before JTM."""

    def make_with_leaf_history(tree: Tree, data: Prepared, seed: int) -> Scorer:
        scorer = make(tree, data, seed)
        if isinstance(scorer, DeepScorer):
            scorer.lift = False
        return scorer

    return make_with_leaf_history


class OtherSettingsError(ValueError):
    """A stored model or result was made with other settings."""


@contextmanager
def timed(folder: Path) -> Iterator[None]:
    """Add the duration to the training time stored in a row's folder."""
    start = time.monotonic()
    try:
        yield
    finally:
        write_json(folder / SECONDS, read_seconds(folder) + time.monotonic() - start)


def read_seconds(folder: Path) -> float:
    """The training time stored in a row's folder."""
    path = folder / SECONDS
    return float(read_json(path, "remove it")) if path.exists() else 0.0


def begin(folder: Path, training: dict[str, Any]) -> None:
    """Write the training settings to a row's folder; a ValueError where it has others."""
    path = folder / TRAINED
    if path.exists():
        check_same(path, read_json(path, "remove the folder and compare again"), training)
    elif folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} holds something else: compare into another folder")
    else:
        write_json(path, training)


def check_same(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise an error that names the first setting that differs."""
    for name, value in now.items():
        if before.get(name) != value:
            raise OtherSettingsError(
                f"{path} was made with {name}={before.get(name)}, not {value}: compare into another folder"
            )

"""Rows that are trees: how they are trained, or gone on with, or read where they are finished."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from beamtree.beam import brute_force, retrieve
from beamtree.files.atomic import read_json, write_json
from beamtree.model import TreeModel
from beamtree.research.compare.plan import Plan, ReadyRow, Row, begin, read_seconds, timed
from beamtree.storage.models import load_model, save_model
from beamtree.storage.settings import holds_model
from beamtree.train import Checkpoints, Progress
from beamtree.train.joint import fit_jointly
from beamtree.train.recipes import TrainingSettings, build_model, train_model
from beamtree.train.runs import TRAINING, describe_run, finish_run, read_run, write_run

NOTES = "notes.json"  # what was said of a tree that was learned
ROUNDS, AGAIN, SLOWER = 3, 0.25, 0.5  # of tree learning; what share of the steps and of the rate each trains with


def tree_row(name: str, row: Row, plan: Plan, note: Callable[[str], None]) -> ReadyRow:
    """A tree model, trained as the recipe says."""
    model = train_tree_row(name, row, plan, note)

    def find(x: Tensor, exclude: Tensor) -> Tensor:
        x, exclude = x.to(plan.device), exclude.to(plan.device)
        items, _ = retrieve(model, x, beam_size=plan.test_beam, m=max(plan.m), exclude=exclude)
        return items

    folder = plan.folder / name
    return ReadyRow(find, model_bytes(model), read_seconds(folder), _kept_the_start(folder))


def all_leaves_row(name: str, row: Row, plan: Plan, note: Callable[[str], None]) -> ReadyRow:
    """OTM's scorer on every leaf: what its beam loses."""
    model = train_tree_row("otm", row, plan, note)

    def find(x: Tensor, exclude: Tensor) -> Tensor:
        items, _ = brute_force(model, x.to(plan.device), m=max(plan.m), exclude=exclude.to(plan.device))
        return items

    folder = plan.folder / "otm"
    return ReadyRow(find, model_bytes(model), read_seconds(folder), _kept_the_start(folder))


def num_steps(row: Row, plan: Plan) -> int:
    """About how many steps the training of a tree row takes."""
    if not row.trained:
        return 0
    return round(plan.steps * (1 + ROUNDS * AGAIN)) if row.joint else plan.steps


def train_tree_row(name: str, row: Row, plan: Plan, note: Callable[[str], None]) -> TreeModel:
    """Train a row, or go on with it, or read it where it is finished."""
    folder = plan.folder / name
    begin(folder, {**plan.training(row), "row": name})
    if holds_model(folder):
        for line in read_json(folder / NOTES, "remove the folder and compare again") if row.joint else ():
            note(line)
        return load_model(folder, plan.device, scorers=row.scorers)
    with timed(folder):
        settings = plan.settings(row)
        if settings.recipe.start is not None:
            plan.say(f"{name}: fitting the closed form")
        model = build_model(settings, plan.data, plan.tree)
        write_run(folder, describe_run(plan.data.folder, plan.options(row), settings))
        if row.joint:
            model, progress = _train_jointly(plan, settings, model, folder, note)
        else:
            progress = _train(plan, settings, model, folder / TRAINING)
        finish_run(folder, progress)
        save_model(model, folder)
    return model


def _train(plan: Plan, settings: TrainingSettings, model: TreeModel, folder: Path | None) -> Progress:
    checkpoints = None if folder is None else Checkpoints(folder, every=2000, resume=True)
    return train_model(
        settings, plan.data, model, checkpoints=checkpoints, on_step=lambda done, total, loss: plan.advance(1)
    )


def _train_jointly(
    plan: Plan, settings: TrainingSettings, model: TreeModel, folder: Path, note: Callable[[str], None]
) -> tuple[TreeModel, Progress]:
    lines: list[str] = []
    ends: list[Progress] = []

    def say(line: str) -> None:
        lines.append(line)
        note(line)

    def train(model: TreeModel, turn: int, place: Path | None) -> None:
        """Train a model in place: all the way, or after a change of its tree for a while."""
        now = settings
        if turn:
            now = replace(
                settings,
                recipe=replace(settings.recipe, warm_up=False),
                steps=max(1, round(plan.steps * AGAIN)),
                lr=settings.lr * SLOWER,
                seed=plan.seed + turn,
            )
        ends.append(_train(plan, now, model, place))

    instances = settings.recipe.instances(plan.data.train)
    model = fit_jointly(
        model, instances, plan.data.val, train, rounds=ROUNDS, seed=plan.seed, folder=folder / TRAINING, say=say
    )
    write_json(folder / NOTES, lines)
    return model, ends[0]


def _kept_the_start(folder: Path) -> bool:
    return bool(read_run(folder).get("training", {}).get("best_step") == 0)


def model_bytes(model: TreeModel) -> int:
    """What the weights and the tree take."""
    return sum(weight.nbytes for weight in model.parameters()) + model.tree.items().nbytes

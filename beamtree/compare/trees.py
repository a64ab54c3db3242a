"""Rows that are trees: how they are trained, or gone on with, or read where they are finished."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from beamtree.beam import brute_force, retrieve
from beamtree.compare.plan import Made, Plan, begin, read_seconds, timed
from beamtree.data import Log, Windows
from beamtree.data.files import read_json, write_json
from beamtree.model import TreeModel
from beamtree.train import fit, load_model, save
from beamtree.train.joint import Train, fit_jointly
from beamtree.train.recipes import METHODS
from beamtree.train.runs import TRAINING, write_run

NOTES = "notes.json"  # what was said of a tree that was learned
ROUNDS, AGAIN, SLOWER = 3, 0.25, 0.5  # of tree learning; what share of the steps and of the rate each trains with


@dataclass(frozen=True)
class TreeRow:
    """A tree model: what it is trained by, and whether its history is lifted and its tree learned."""

    method: str
    lift: bool = True
    joint: bool = False

    def steps(self, plan: Plan) -> int:
        """About how many steps its training takes."""
        return round(plan.steps * (1 + ROUNDS * AGAIN)) if self.joint else plan.steps


TREE_ROWS = {
    "hsm": TreeRow("hsm"),
    "plt": TreeRow("plt"),
    "tdm": TreeRow("tdm", lift=False),
    "jtm": TreeRow("tdm", joint=True),
    "otm": TreeRow("otm"),
    "otm-no-beam": TreeRow("otm-no-beam"),
    "otm-no-optest": TreeRow("otm-no-optest"),
    "otm-mixed": TreeRow("otm-mixed"),
    "otm-joint": TreeRow("otm", joint=True),
}


def tree_row(row: str, plan: Plan, note: Callable[[str], None]) -> Made:
    """A tree model, trained as the recipe says."""
    return _searched(plan, train_tree_row(row, plan, note), read_seconds(plan.folder / row))


def train_tree_row(row: str, plan: Plan, note: Callable[[str], None]) -> TreeModel:
    """Train a row, or go on with it, or read it where it is finished."""
    folder, spec = plan.folder / row, TREE_ROWS[row]
    begin(folder, {**plan.training("tree"), "row": row})
    if (folder / "settings.json").exists():
        for line in read_json(folder / NOTES, "remove the folder and compare again") if spec.joint else ():
            note(line)
        return load_model(folder, plan.device)
    with timed(folder):
        instances = plan.how.instances(plan.data.train)
        training: Log | Windows = instances.windows() if spec.method == "hsm" else instances
        model = plan.how.model(plan.tree, plan.beam_size, lambda: plan.data.factors, plan.seed, lift=spec.lift)
        model.to(plan.device)
        write_run(folder, _run(plan, spec), plan.data)
        train = partial(_train, plan, spec.method, training)
        if spec.joint:
            model = _train_jointly(plan, model, instances, train, folder, note)
        else:
            train(model, 0, folder / TRAINING)
        save(model, folder)
    return model


def _train_jointly(
    plan: Plan, model: TreeModel, instances: Log, train: Train, folder: Path, note: Callable[[str], None]
) -> TreeModel:
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        note(line)

    model = fit_jointly(
        model, instances, plan.data.val, train, rounds=ROUNDS, seed=plan.seed, folder=folder / TRAINING, say=say
    )
    write_json(folder / NOTES, lines)
    return model


def _train(plan: Plan, method: str, training: Log | Windows, model: TreeModel, turn: int, folder: Path | None) -> None:
    """Train a model in place: all the way, or after a change of its tree for a while."""
    fit(
        model,
        training,
        METHODS[method](plan.beam_size, 2 * plan.beam_size),
        steps=max(1, round(plan.steps * (AGAIN if turn else 1))),
        batch_size=plan.batch_size,
        lr=plan.how.lr * (SLOWER if turn else 1),
        schedule=plan.how.schedule,
        warm_up=None if turn else plan.how.begins_as(method, plan.beam_size),
        val=plan.data.val if len(plan.data.val) else None,
        seed=plan.seed + turn,
        folder=folder,
        save_every=2000,
        resume=True,
        on_step=lambda done, total, loss: plan.advance(1),
    )


def _run(plan: Plan, spec: TreeRow) -> dict[str, object]:
    """How a run came to be, as the other commands read it."""
    return {
        "data": str(plan.data.folder.resolve()),
        "method": spec.method,
        "tree": plan.tree.fingerprint(),
        "recipe": plan.recipe,
        "beam_size": plan.beam_size,
        "batch_size": plan.batch_size,
        "steps": plan.steps,
        "seed": plan.seed,
        "device": plan.device,
    }


def _searched(plan: Plan, model: TreeModel, seconds: float = 0.0) -> Made:
    def find(x: Tensor) -> Tensor:
        items, _ = retrieve(model, x.to(plan.device), beam_size=plan.test_beam, m=max(plan.m))
        return items

    return Made(find, model_bytes(model), seconds)


def model_bytes(model: TreeModel) -> int:
    """What the weights and the tree take."""
    return sum(weight.nbytes for weight in model.parameters()) + model.tree.items().nbytes


def all_leaves(plan: Plan, note: Callable[[str], None]) -> Made:
    """OTM's scorer on every leaf: what its beam loses."""
    model = train_tree_row("otm", plan, note)

    def find(x: Tensor) -> Tensor:
        items, _ = brute_force(model, x.to(plan.device), m=max(plan.m))
        return items

    return Made(find, model_bytes(model), read_seconds(plan.folder / "otm"))

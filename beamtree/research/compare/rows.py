"""The rows of a comparison: how each is trained, resumed, or loaded if it is finished."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from beamtree.beam import brute_force, retrieve
from beamtree.data.inputs import WHOLE_HISTORY
from beamtree.errors import requires
from beamtree.evaluate import leaving_out
from beamtree.files.atomic import read_json, write_atomically, write_json
from beamtree.model import TreeModel
from beamtree.research.compare.experiment import Experiment, Retriever, Row, begin, read_seconds, timed
from beamtree.scorers import with_inputs
from beamtree.storage.models import load_model, save_model
from beamtree.storage.runs import TRAINING, finish_run, read_run, write_run
from beamtree.storage.settings import holds_model
from beamtree.storage.tensors import load_tensors, save_tensors
from beamtree.train import Checkpoints, Progress
from beamtree.train.joint import fit_jointly
from beamtree.train.recipes import TrainingSettings, build_model, train_model

NOTES = "notes.json"  # of learning a tree
ROUNDS, ROUND_STEPS, ROUND_RATE = 3, 0.25, 0.5  # of tree learning; each round's share of the steps and of the rate

Net = TypeVar("Net", bound=torch.nn.Module)
Untrained = Callable[[int, dict[str, Tensor]], Net]  # (M, the weights it will load) -> model
OnMessage = Callable[[str], None]  # takes a line about a row


# Rows without a tree. Their libraries are imported only for them, so that tree rows need only torch.


def plain_row(name: str, row: Row, experiment: Experiment, on_message: OnMessage) -> Retriever:
    """A baseline of `research.baselines`; a tuned one notes the settings it chose."""
    from beamtree.research.baselines import build

    data = experiment.data
    baseline = build(name, data.train.events, data.num_items, data.val)
    settings: dict[str, float] = getattr(baseline, "settings", {})
    if settings:
        on_message(", ".join(f"{name} {value:g}" for name, value in settings.items()))
    chosen: str = getattr(baseline, "label", "")
    return Retriever(
        leaving_out(baseline.retrieve, max(experiment.m)),
        baseline.num_bytes,
        users=replace(data.test, history=WHOLE_HISTORY),
        label=f"{name}, {chosen}" if chosen else "",
    )


def dnn_row(name: str, row: Row, experiment: Experiment, on_message: OnMessage) -> Retriever:
    """YouTube product-DNN. Its two rows share the weights and differ in the search index."""
    with requires("compare", f"row {name}"):
        from beamtree.research.baselines.two_tower import BATCH, HNSWIndex, TwoTower, exact, two_tower

    folder = experiment.folder / "youtube-dnn"
    begin(folder, {**experiment.training(row), "row": "youtube-dnn"})
    batch_size = min(BATCH, 5 * experiment.batch_size)
    model = _load_or_train(folder, experiment, lambda items, _: TwoTower(items), two_tower, batch_size)
    model.index(HNSWIndex if name == "youtube-dnn-hnsw" else exact)
    return Retriever(leaving_out(model.retrieve, max(experiment.m)), model.num_bytes, read_seconds(folder))


def sasrec_row(name: str, row: Row, experiment: Experiment, on_message: OnMessage) -> Retriever:
    """SASRec, trained for as many steps as the other rows."""
    from beamtree.research.baselines.sasrec import BATCH, SASRec, sasrec

    folder = experiment.folder / name
    begin(folder, {**experiment.training(row), "row": name, "version": 2})
    model = _load_or_train(folder, experiment, SASRec.like, sasrec, min(BATCH, experiment.batch_size))
    model.to(experiment.device)
    return Retriever(leaving_out(model.retrieve, max(experiment.m)), model.num_bytes, read_seconds(folder))


def _load_or_train(
    folder: Path, experiment: Experiment, untrained: Untrained[Net], train: Callable[..., Net], batch_size: int
) -> Net:
    """A network on the CPU: loaded from the row's folder, or trained and saved there."""
    file, data, steps = folder / "weights.safetensors", experiment.data, experiment.steps
    if file.exists():
        state = load_tensors(file)
        model = untrained(data.num_items, state).eval()
        model.load_state_dict(state)
        return model

    shown = 0

    def on_step(done: int, total: int, loss: Tensor) -> None:
        """Scale to the steps of the experiment: a row that trains several sizes takes more."""
        nonlocal shown
        experiment.on_steps(steps * done // total - shown)
        shown = steps * done // total

    with timed(folder):
        model = train(
            data.train.events,
            data.num_items,
            steps=steps,
            batch_size=batch_size,
            seed=experiment.seed,
            device=experiment.device,
            val=data.val,
            on_step=on_step,
        ).cpu()
    write_atomically(file, lambda draft: save_tensors(draft, model.state_dict()))
    return model


# Tree rows


def tree_row(name: str, row: Row, experiment: Experiment, on_message: OnMessage) -> Retriever:
    """A tree model, trained by its recipe and searched by its beam."""
    return _searched(name, row, experiment, on_message, partial(retrieve, beam_size=experiment.test_beam))


def all_leaves_row(name: str, row: Row, experiment: Experiment, on_message: OnMessage) -> Retriever:
    """OTM's scorer on every leaf, to show what its beam loses."""
    return _searched("otm", row, experiment, on_message, brute_force)


def _searched(
    name: str, row: Row, experiment: Experiment, on_message: OnMessage, search: Callable[..., tuple[Tensor, Tensor]]
) -> Retriever:
    """A tree model, trained by its recipe and searched by a function such as `retrieve`."""
    model = train_tree_row(name, row, experiment, on_message)

    def find(x: Tensor, exclude: Tensor) -> Tensor:
        x, exclude = x.to(experiment.device), exclude.to(experiment.device)
        return search(model, x, m=max(experiment.m), exclude=exclude)[0]

    folder, users = experiment.folder / name, with_inputs(model.scorer, experiment.data.test)
    num_bytes = sum(weight.nbytes for weight in model.parameters()) + model.tree.items().nbytes
    kept_the_start = read_run(folder).get("training", {}).get("best_step") == 0
    return Retriever(find, num_bytes, read_seconds(folder), kept_the_start, users)


def num_steps(row: Row, experiment: Experiment) -> int:
    """About how many steps the training of a tree row takes."""
    if not row.trained:
        return 0
    return round(experiment.steps * (1 + ROUNDS * ROUND_STEPS)) if row.joint else experiment.steps


def train_tree_row(name: str, row: Row, experiment: Experiment, on_message: OnMessage) -> TreeModel:
    """Train a row, resume it, or load it if it is finished."""
    folder, data = experiment.folder / name, experiment.data
    begin(folder, {**experiment.training(row), "row": name})
    if holds_model(folder):
        for line in read_json(folder / NOTES, "remove the folder and compare again") if row.joint else ():
            on_message(line)
        return load_model(folder, experiment.device, scorers=row.scorers)
    with timed(folder):
        settings = experiment.settings(row)
        if settings.parts:
            experiment.on_message(f"{name}: fitting the closed form")
        model = build_model(settings, data, experiment.tree)
        write_run(folder, settings.describe(data.folder, experiment.options(row)))
        if row.joint:
            model, progress = _train_jointly(experiment, settings, model, folder, on_message)
        else:
            progress = _train(experiment, settings, model, folder / TRAINING)
        finish_run(folder, progress.as_dict())
        save_model(model, folder)
    return model


def _train(experiment: Experiment, settings: TrainingSettings, model: TreeModel, folder: Path | None) -> Progress:
    checkpoints = None if folder is None else Checkpoints(folder, every=2000, resume=True)

    def on_step(done: int, total: int, loss: Tensor) -> None:
        experiment.on_steps(1)

    return train_model(settings, experiment.data, model, checkpoints=checkpoints, on_step=on_step)


def _train_jointly(
    experiment: Experiment, settings: TrainingSettings, model: TreeModel, folder: Path, on_message: OnMessage
) -> tuple[TreeModel, Progress]:
    """Train a model and its tree in turn. The progress is that of the first training."""
    notes: list[str] = []
    progress: list[Progress] = []

    def keep(line: str) -> None:
        notes.append(line)
        on_message(line)

    def train(model: TreeModel, turn: int, checkpoints: Path | None) -> None:
        """Train a model in place: fully at first, then briefly after each change of its tree."""
        turn_settings = settings
        if turn:
            turn_settings = replace(
                settings,
                recipe=replace(settings.recipe, warm_up=False),
                steps=max(1, round(experiment.steps * ROUND_STEPS)),
                lr=settings.lr * ROUND_RATE,
                seed=experiment.seed + turn,
            )
        progress.append(_train(experiment, turn_settings, model, checkpoints))

    model = fit_jointly(
        model,
        settings.recipe.instances(experiment.data.train),
        experiment.data.val,
        train,
        rounds=ROUNDS,
        seed=experiment.seed,
        folder=folder / TRAINING,
        on_message=keep,
    )
    write_json(folder / NOTES, notes)
    return model, progress[0]


ROWS: dict[str, Row] = {
    "popularity": Row(plain_row),
    "item-cf": Row(plain_row),
    "item-cf-nearest": Row(plain_row),
    "als": Row(plain_row),
    "ease": Row(plain_row),
    "ials": Row(plain_row),
    "user-knn": Row(plain_row),
    "rules": Row(plain_row),
    "sasrec": Row(sasrec_row, "dnn"),
    "youtube-dnn": Row(dnn_row, "dnn"),
    "youtube-dnn-hnsw": Row(dnn_row, "dnn"),
    "hsm": Row(tree_row, "tree", "hsm"),
    "plt": Row(tree_row, "tree", "plt"),
    "tdm": Row(tree_row, "tree", "tdm", lifted=False),  # the history as leaves, as in 2018
    "jtm": Row(tree_row, "tree", "tdm", joint=True),
    "otm": Row(tree_row, "tree", "otm"),
    "otm-no-beam": Row(tree_row, "tree", "otm-no-beam"),
    "otm-no-optest": Row(tree_row, "tree", "otm-no-optest"),
    "otm-mixed": Row(tree_row, "tree", "otm-mixed"),
    "otm-margin": Row(tree_row, "tree", "otm-margin"),
    "otm-level-weights": Row(tree_row, "tree", "otm-level-weights"),
    "dtr": Row(tree_row, "tree", "dtr"),
    "otm-joint": Row(tree_row, "tree", "otm", joint=True),
    "otm-brute-force": Row(all_leaves_row, "tree", "otm"),
    "beamtree-start": Row(tree_row, "tree", "otm-mixed", recipe="beamtree", trained=False),
    "beamtree": Row(tree_row, "tree", "otm-mixed", recipe="beamtree"),
}
# Strong baselines, and what is compared with them.
STRONG = (
    "popularity",
    "item-cf-nearest",
    "als",
    "ease",
    "ials",
    "user-knn",
    "rules",
    "sasrec",
    "youtube-dnn",
    "otm",
    "beamtree",
)

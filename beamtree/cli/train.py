"""`beamtree train`: build a tree over the items and train a model on it."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from beamtree.cli import options
from beamtree.cli.console import details, percent, progress, silence, write
from beamtree.data import Prepared, load_data
from beamtree.distributed.group import is_restarted
from beamtree.distributed.training import join
from beamtree.errors import check_device
from beamtree.files.atomic import check_writable
from beamtree.ingest.inputs import TreeBuilder, tree_builder
from beamtree.kernels.threads import use_threads
from beamtree.live.content import added_report
from beamtree.live.refit import keeps_first, refit_report, refit_to_all
from beamtree.model import TreeModel
from beamtree.recommender import Recommender
from beamtree.storage.runs import FIRST, LOG, RUN, TRAINING, RunLog, check_free, finish_run, read_run, write_run
from beamtree.storage.settings import holds_model
from beamtree.train import Checkpoints, Progress, TrainingOptions, default_m, steps_done
from beamtree.train.backend import current_backend
from beamtree.train.recipes import (
    TrainingSettings,
    build_model,
    parts_report,
    resolve_settings,
    start_parts,
    train_model,
)

LOG_EVERY = 50  # steps


def train(
    data: options.PreparedFolder,
    out_folder: Annotated[Path, typer.Option("--out", help="The run folder to write.")],
    device: Annotated[str, options.training_option("device")] = "cpu",
    seed: Annotated[int, options.training_option("seed", min=0, max=2**63 - 1)] = 0,
    sequence: Annotated[bool | None, options.training_option("sequence")] = None,
    minutes: Annotated[float | None, options.training_option("minutes")] = None,
    refit: Annotated[bool | None, options.training_option("refit")] = None,
    tree: options.TreeName = "cluster",
    items: options.ItemsFile = None,
    vectors: options.VectorsFile = None,
    features: Annotated[
        Path | None,
        typer.Option(
            help="A table about the items, to filter by and to recommend items without events; the tree does not use "
            "it."
        ),
    ] = None,
    steps: Annotated[int | None, options.training_option("steps", min=0)] = None,
    epochs: Annotated[int | None, options.training_option("epochs", min=1)] = None,
    arity: options.Arity = 2,
    method: Annotated[str, options.training_option("method")] = "otm-mixed",
    recipe: Annotated[str, options.training_option("recipe")] = "beamtree",
    beam_size: Annotated[int | None, options.training_option("beam_size", min=1)] = None,
    nodes: Annotated[int | None, options.training_option("nodes", min=1)] = None,
    batch_size: Annotated[int | None, options.training_option("batch_size", min=1)] = None,
    lr: Annotated[float | None, options.training_option("lr")] = None,
    optimizer: Annotated[str, options.training_option("optimizer")] = "adam",
    patience: Annotated[int, options.training_option("patience", min=1)] = 8,
    threads: options.Threads = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show what was chosen on the validation users.")] = False,
) -> None:
    """Build a tree and train a model on it. The weights with the best recall on the validation users are kept.

    Without validation users, the last weights are kept.

    A checkpoint is written every 500 steps and every half minute: continue a killed run with --resume. Loss and recall
    go to RUN/log.jsonl and, for TensorBoard, to RUN/tensorboard.

    Several processes train one model with `torchrun --nproc-per-node 4 -m beamtree train …`, see docs/scale.md.
    """
    use_threads(threads)
    if features is not None and items is not None:
        raise ValueError("there are two tables of items: give --features, or --items for the tree")
    training = TrainingOptions(
        device=device, seed=seed, sequence=sequence, minutes=minutes, refit=refit, tree=tree, items=items,
        vectors=vectors, steps=steps, epochs=epochs, arity=arity, method=method, recipe=recipe, beam_size=beam_size,
        nodes=nodes, batch_size=batch_size, lr=lr, optimizer=optimizer, patience=patience,
    )  # fmt: skip
    join(device)
    backend = current_backend()
    if features is not None and not backend.is_single:
        later = f"train without it, and then run `beamtree items {out_folder} {features}`"
        raise ValueError(f"--features needs a single process: {later}")
    if not backend.is_first:
        silence()
    with backend.guard():
        check_device(device)
        build = tree_builder(tree, items, vectors)
        prepared = load_data(data)
        settings = resolve_settings(prepared, training)
        run = settings.describe(prepared.folder, training)
        if features is not None:  # it becomes the table of the items in the end, and a resumed run may have that
            run["features"] = str(features.resolve())
            del run["items"]
    backend.check_equal(**{**run, "data": prepared.train.fingerprint()})
    with details() if verbose else nullcontext(), backend.lock(out_folder):
        _train_in(out_folder, run, prepared, build, settings, features, resume or is_restarted())
    if features is not None:
        shop = Recommender.load(out_folder, device=device)
        before = shop.model.tree.num_placed
        shop.update_items(features, similar=False)  # which was tried before the refit
        shop.save(out_folder)
        write(*added_report(shop.model.tree.num_placed - before))


class RunState(Enum):
    """How far a run has come."""

    NEW = "new"
    STOPPED = "stopped"
    FINISHED = "finished"


def _train_in(
    folder: Path,
    run: dict[str, Any],
    data: Prepared,
    build: TreeBuilder,
    settings: TrainingSettings,
    features: Path | None,
    resume: bool,
) -> None:
    """Train in a locked folder, save the model and print the result."""
    state = RunState.NEW
    with current_backend().guard() as first:
        if first:
            state = _check_folder(folder, run, settings.num_steps(data), resume)
    state = current_backend().broadcast(state)
    if state is RunState.FINISHED:
        return
    if state is RunState.STOPPED:
        with current_backend().guard():  # every process must see the checkpoint
            step = steps_done(folder / TRAINING)
        model = current_backend().load_model(folder / TRAINING, settings.device)
    else:
        step, model = 0, _build(run, data, build, settings, features)
        with current_backend().guard() as first:
            if first:
                write_run(folder, run)  # before training, so that a killed run can be resumed
    try:
        result = _train(folder, settings, data, model, step)
    except OSError as error:
        raise OSError(f"{folder} cannot be written: {error}; free some space and continue with --resume") from error
    report = result.as_report(data.num_items, len(data.val), start_parts(model)).replace("`lr`", "--lr")
    write(report, bold=True)
    measured = None
    if settings.refit:
        with percent("the refit to all users") as on_progress:
            before = model
            model, measured = refit_to_all(
                model, data, settings.seed, on_progress, build=lambda log: build(log, run["arity"], run["seed"])
            )
        write(*refit_report(model, measured, data))
        if keeps_first(before, data):
            current_backend().save_model(before.eval(), folder / FIRST)
    with current_backend().guard() as first:
        if first:
            finish_run(folder, result.as_dict(), measured)
    current_backend().save_model(model, folder)
    write(f"Saved {folder}. Next:", f"  beamtree evaluate {folder}", f"  beamtree inspect {folder}")


def _check_folder(folder: Path, run: dict[str, Any], steps: int, resume: bool) -> RunState:
    """How far the run of a folder has come; a ValueError where this folder cannot be used."""
    check_free(folder)
    if (folder / RUN).exists():
        if not resume:
            raise ValueError(f"{folder} is already a run: add --resume to continue it, or choose another folder")
        before = read_run(folder)
        for key, value in run.items():
            if before.get(key) != value:
                raise ValueError(f"{folder} was begun with {key}={before.get(key)}, not {value}: resume it as it began")
        has_checkpoint = holds_model(folder / TRAINING)
        if holds_model(folder):
            if not has_checkpoint:
                raise ValueError(f"{folder} holds a finished model and no checkpoint: choose another folder")
            finished = before.get("training", {}).get("steps_done")
            if finished is not None:
                write(f"Training ended at step {finished:,}: nothing to continue. {folder} is unchanged.")
                return RunState.FINISHED
        if has_checkpoint:
            write(f"Continuing from step {steps_done(folder / TRAINING):,} of {steps:,}")
            threads, now = before.get("threads"), torch.get_num_threads()
            if threads not in (None, now):
                write(f"The run began with {threads} threads and continues with {now}: results will differ slightly.")
            return RunState.STOPPED
    if resume:
        write(f"There is no checkpoint in {folder}: starting from the beginning")
    check_writable(folder / RUN)  # before building the tree, which takes a while
    return RunState.NEW


def _build(
    run: dict[str, Any], data: Prepared, build: TreeBuilder, settings: TrainingSettings, features: Path | None
) -> TreeModel:
    """Build the tree and fit the parts of the score, with progress."""
    write(f"Building a {run['tree']} tree over {data.num_items:,} items")
    tree = build(data, run["arity"], run["seed"])
    if not settings.parts:
        return build_model(settings, data, tree)
    catalogue = None
    if features is not None:
        from beamtree.ingest.item_tables import read_catalogue  # polars takes a moment to import

        catalogue = read_catalogue(features, data.items)
    start = time.monotonic()
    stages, what = (2, "the closed form and the sequence part") if settings.sequence else (1, "the closed form")
    with percent(what, stages) as on_progress:
        model = build_model(settings, data, tree, on_progress, catalogue)
    write(f"Fitted {what} in {time.monotonic() - start:.0f} s", *parts_report(model.scorer, settings.parts))
    return model


def _train(folder: Path, settings: TrainingSettings, data: Prepared, model: TreeModel, step: int) -> Progress:
    """Train with a log and a progress bar."""
    start = time.monotonic()
    m = default_m(data.num_items)
    with (
        _training_log(folder / LOG, step) as log,
        progress(settings.num_steps(data), "steps") as (advance, print_line),
    ):
        advance(step)

        def on_step(done: int, total: int, loss: Tensor) -> None:
            advance(1)
            if done % LOG_EVERY == 0 or done == total:
                log(done, loss=float(loss), seconds=round(time.monotonic() - start, 1))

        def on_check(done: int, recall: float) -> None:
            log(done, recall=recall, seconds=round(time.monotonic() - start, 1))
            print_line(f"step {done:,}  recall@{m} {100 * recall:.2f} % on {len(data.val):,} validation users")

        checkpoints = Checkpoints(folder / TRAINING, every=500, resume=True)
        return train_model(settings, data, model, checkpoints=checkpoints, on_step=on_step, on_check=on_check)


@contextmanager
def _training_log(path: Path, step: int) -> Iterator[Callable[..., None]]:
    """A function that writes to the log of the run; only the first process writes."""
    if not current_backend().is_first:
        yield lambda step, **values: None
        return
    with closing(RunLog(path, step)) as log:
        yield log.write

"""`beamtree train`: a tree over the items, a scorer trained on it, and all that is needed to use them."""

import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

from beamtree.cli.options import Device, choose
from beamtree.cli.screen import out, progress
from beamtree.cli.trees import Arity, Build, ItemsFile, TreeName, VectorsFile, builder
from beamtree.data import Log, Prepared, Windows, load
from beamtree.data.files import check_writable
from beamtree.model import TreeModel, check_device
from beamtree.train import Journal, checked_at, fit, load_model, save, steps_done
from beamtree.train.optimizer import OPTIMIZERS
from beamtree.train.recipes import METHODS, RECIPES, USUAL, Recipe
from beamtree.train.runs import LOG, RUN, TRAINING, read_run, write_run

LOG_EVERY = 50  # steps


def train(
    data: Annotated[Path, typer.Argument(help="A folder that `beamtree prepare` wrote.")],
    out_folder: Annotated[Path, typer.Option("--out", help="Where the run goes.")],
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "otm-mixed",
    tree: TreeName = "cluster",
    arity: Arity = 2,
    items: ItemsFile = None,
    vectors: VectorsFile = None,
    beam_size: Annotated[int | None, typer.Option(min=1, help="k in training: 400 on a GPU, 100 on a CPU.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Uniform nodes per level; 2k unless given.")] = None,
    recipe: Annotated[str, typer.Option(help="beamtree: good on ordinary data. paper: as published.")] = "beamtree",
    epochs: Annotated[int | None, typer.Option(min=1, help="As many as make 10,000 steps, on a CPU 3,000.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Users per step: 200 on a GPU, 50 on a CPU.")] = None,
    lr: Annotated[float | None, typer.Option(help="Adam's learning rate; the recipe's unless given.")] = None,
    optimizer: Annotated[str, typer.Option(help="adam, or lazy: rows that a step did not touch rest.")] = "adam",
    patience: Annotated[int, typer.Option(min=1, help="Stop when recall has not risen so many checks.")] = 8,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Same seed, same model.")] = 0,
    device: Device = "cpu",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
) -> None:
    """Learn a tree and train a scorer on it; the best model by recall on the validation users is kept.

    Without validation users, the last model is.

    Loss and recall go to RUN/log.jsonl and, for TensorBoard, RUN/tensorboard.
    """
    check_device(device)
    if lr is not None and not 0 < lr < math.inf:
        raise ValueError(f"--lr {lr}: give a number above 0")
    usual_beam, usual_batch, steps = USUAL["cpu" if device == "cpu" else "cuda"]
    beam_size, batch_size = beam_size or usual_beam, batch_size or usual_batch
    row = choose(METHODS, "method", method)(beam_size, nodes or 2 * beam_size)
    chosen = choose(RECIPES, "recipe", recipe)
    build = builder(tree, items, vectors)
    move = choose(OPTIMIZERS, "optimizer", optimizer)
    prepared = load(data)
    if len(prepared.train) < 2:
        raise ValueError(f"{data} has one user for training, and two at least are needed: prepare a longer log")
    instances = chosen.instances(prepared.train)
    training: Log | Windows = instances.windows() if method == "hsm" else instances
    per_epoch = max(1, -(-len(training) // batch_size))
    epochs = epochs or chosen.epochs or max(1, round(steps / per_epoch))
    run: dict[str, Any] = {
        "data": str(prepared.folder.resolve()),
        "method": method,
        "options": dict(row.options),
        "tree": tree,
        "items": items and str(items),
        "vectors": vectors and str(vectors),
        "arity": arity,
        "recipe": recipe,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr or chosen.lr,
        "optimizer": optimizer,
        "seed": seed,
        "device": device,
    }
    model, step = _start(out_folder, run, prepared, build, chosen, beam_size, resume)
    model.to(device)
    began = time.monotonic()
    at = checked_at(prepared.num_items)
    with (
        _said_how_to_go_on(out_folder),
        closing(Journal(out_folder / LOG, step)) as journal,
        progress(epochs * per_epoch, "steps") as (advance, say),
    ):
        advance(step)

        def on_step(done: int, total: int, loss: Tensor) -> None:
            advance(1)
            if done % LOG_EVERY == 0 or done == total:
                journal.write(done, loss=float(loss), seconds=round(time.monotonic() - began, 1))

        def on_check(done: int, recall: float) -> None:
            journal.write(done, recall=recall, seconds=round(time.monotonic() - began, 1))
            say(f"step {done:,}  recall@{at} {recall:.2%} on {len(prepared.val):,} validation users")

        fit(
            model,
            training,
            row,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr or chosen.lr,
            schedule=chosen.schedule,
            optimizer=move,
            warm_up=chosen.begins_as(method, beam_size),
            val=prepared.val if len(prepared.val) else None,
            patience=patience,
            seed=seed,
            folder=out_folder / TRAINING,
            save_every=500,
            resume=True,
            on_step=on_step,
            on_check=on_check,
        )
        save(model, out_folder)
    out.print(f"Saved {out_folder}. Next:", highlight=False)
    out.print(f"  beamtree evaluate {out_folder}", highlight=False)
    out.print(f"  beamtree inspect {out_folder}", highlight=False)


@contextmanager
def _said_how_to_go_on(folder: Path) -> Iterator[None]:
    """Errors of a disk in one line: what was trained so far is not lost."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{folder} cannot be written: {error}; make room and go on with --resume") from error


def _start(
    folder: Path,
    run: dict[str, Any],
    data: Prepared,
    build: Build,
    recipe: Recipe,
    beam_size: int,
    resume: bool,
) -> tuple[TreeModel, int]:
    """The model as the run begins, or as its checkpoint left it, and how many steps it has behind it."""
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / RUN).exists():
            raise ValueError(f"{folder} holds something else: choose another folder")
        before = {key: value for key, value in read_run(folder).items() if key != "commit"}
        if not resume:
            raise ValueError(f"{folder} holds a run: add --resume to go on with it, or choose another folder")
        for key, value in run.items():
            if before.get(key) != value:
                raise ValueError(f"{folder} was begun with {key}={before.get(key)}, not {value}: resume it as it began")
        if (folder / TRAINING / "settings.json").exists():
            return load_model(folder / TRAINING), steps_done(folder / TRAINING)
    check_writable(folder / RUN)  # before the tree, which takes a while
    out.print(f"Building a {run['tree']} tree over {data.num_items:,} items", highlight=False)
    tree = build(data, run["arity"], run["seed"])
    model = recipe.model(tree, beam_size, lambda: data.factors, run["seed"])
    write_run(folder, run, data)  # first, so that a run killed from here on can be resumed
    return model, 0

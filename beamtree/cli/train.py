"""`beamtree train`: a tree over the items, a scorer trained on it, and all that is needed to use them."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

from beamtree.cli.options import Device, Threads
from beamtree.cli.screen import details, hush, out, progress
from beamtree.cli.trees import Arity, ItemsFile, TreeName, VectorsFile
from beamtree.data import Prepared, load_data
from beamtree.distributed.consistency import check_alike
from beamtree.distributed.group import Ranks, is_restarted, join, ranks
from beamtree.files.atomic import check_writable
from beamtree.ingest.inputs import TreeBuilder, tree_builder
from beamtree.methods import METHODS
from beamtree.model import TreeModel, check_device
from beamtree.storage.models import load_model, save_model
from beamtree.storage.settings import holds_model
from beamtree.threads import use_threads
from beamtree.train import Checkpoints, Journal, Progress, steps_done, usual_m
from beamtree.train.recipes import Settings, settle, start_model, train_model
from beamtree.train.runs import LOG, RUN, TRAINING, describe_run, finish_run, holding, read_run, write_run
from beamtree.train.runs import threads as threads_now

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
    recipe: Annotated[
        str, typer.Option(help="beamtree: all parts. deep: the network alone. paper: as published.")
    ] = "beamtree",
    epochs: Annotated[int | None, typer.Option(min=1, help="As many as make 10,000 steps; on a CPU 300 steps.")] = None,
    steps: Annotated[int | None, typer.Option(min=0, help="In steps; 0: stop at the start in closed form.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Users per step: 200 on a GPU, 50 on a CPU.")] = None,
    lr: Annotated[float | None, typer.Option(help="Adam's learning rate; the recipe's unless given.")] = None,
    optimizer: Annotated[str, typer.Option(help="adam, or lazy: rows that a step did not touch rest.")] = "adam",
    patience: Annotated[int, typer.Option(min=1, help="Stop after this many checks without a rise in recall.")] = 8,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=2**63 - 1, help="Same seed, same model, on the same kind of machine and as many threads."
        ),
    ] = 0,
    device: Device = "cpu",
    threads: Threads = None,
    refit: Annotated[bool, typer.Option("--refit", help="Make the parts again at the end, with all events.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also show what the validation users chose.")] = False,
) -> None:
    """Learn a tree and train a scorer on it; the best model by recall on the validation users is kept.

    Without validation users, the last model is.

    Checkpoints are written every 500 steps and every half minute; a run that was killed goes on with --resume.
    Several processes train together under `torchrun --nproc-per-node 4 -m beamtree train …`.

    Loss and recall go to RUN/log.jsonl and, for TensorBoard, RUN/tensorboard.
    """
    use_threads(threads)
    with joined(device).agreed():
        check_device(device)
        build = tree_builder(tree, items, vectors)
        prepared = load_data(data)
        settings = settle(
            prepared, recipe=recipe, method=method, beam_size=beam_size, nodes=nodes, epochs=epochs, steps=steps,
            batch_size=batch_size, lr=lr, optimizer=optimizer, patience=patience, seed=seed, device=device, refit=refit,
        )  # fmt: skip
        run = describe_run(settings, prepared.folder, tree, recipe, arity=arity, items=items, vectors=vectors)
    with details() if verbose else nullcontext():
        _run(out_folder, run, prepared, build, settings, resume or is_restarted())


def joined(device: str) -> Ranks:
    """All ranks, of which the first speaks."""
    now = join(device)
    if not now.is_first:
        hush()
    return now


def _run(
    folder: Path, run: dict[str, Any], data: Prepared, build: TreeBuilder, settings: Settings, resume: bool
) -> None:
    """Train, save, and say what it brought."""
    check_alike(ranks(), **{**run, "data": data.train.fingerprint()})
    with holding(folder):
        _run_held(folder, run, data, build, settings, resume)


def _run_held(
    folder: Path, run: dict[str, Any], data: Prepared, build: TreeBuilder, settings: Settings, resume: bool
) -> None:
    steps, where = settings.num_steps(data), Where.START
    with ranks().agreed() as first:
        if first:
            where = _look(folder, run, steps, resume)
    where = ranks().gather(where)[0]
    if where is Where.END:
        return
    model, step = _start(folder, run, data, build, settings, where)
    found = _train(folder, settings, data, model, step)
    with ranks().agreed() as first:
        if first:
            finish_run(folder, found)
    save_model(model, folder)
    _say_what_it_brought(found, data, settings)
    for line in (f"Saved {folder}. Next:", f"  beamtree evaluate {folder}", f"  beamtree inspect {folder}"):
        out.print(line, highlight=False, soft_wrap=True)


def _train(folder: Path, settings: Settings, data: Prepared, model: TreeModel, step: int) -> Progress:
    """Train with a journal and a progress bar."""
    began = time.monotonic()
    at = usual_m(data.num_items)
    with (
        _said_how_to_go_on(folder),
        _written(folder / LOG, step) as write,
        progress(settings.num_steps(data), "steps") as (advance, say),
    ):
        advance(step)

        def on_step(done: int, total: int, loss: Tensor) -> None:
            advance(1)
            if done % LOG_EVERY == 0 or done == total:
                write(done, loss=float(loss), seconds=round(time.monotonic() - began, 1))

        def on_check(done: int, recall: float) -> None:
            write(done, recall=recall, seconds=round(time.monotonic() - began, 1))
            say(f"step {done:,}  recall@{at} {recall:.2%} on {len(data.val):,} validation users")

        checkpoints = Checkpoints(folder / TRAINING, every=500, resume=True)
        return train_model(settings, data, model, checkpoints=checkpoints, on_step=on_step, on_check=on_check)


def _say_what_it_brought(found: Progress, data: Prepared, settings: Settings) -> None:
    if settings.refit:
        out.print("Made the parts again, with the validation users; what follows was measured before:", highlight=False)
    line = found.as_report(data.num_items, len(data.val), settings.recipe.start is not None).replace("`lr`", "--lr")
    out.print(f"[bold]{line}[/bold]", highlight=False, soft_wrap=True)


def _check_same(folder: Path, before: dict[str, Any], run: dict[str, Any]) -> None:
    for key, value in run.items():
        if before.get(key) != value:
            raise ValueError(f"{folder} was begun with {key}={before.get(key)}, not {value}: resume it as it began")


def _has_ended(folder: Path, run: dict[str, Any]) -> bool:
    """Whether there is nothing to go on with, and say so."""
    if not (folder / RUN).exists() or not holds_model(folder):
        return False
    before = read_run(folder)
    _check_same(folder, before, run)
    if not holds_model(folder / TRAINING):
        raise ValueError(f"{folder} holds a finished model and no checkpoint to go on from: choose another folder")
    ended = before.get("training", {}).get("steps_done")
    if ended is not None:
        out.print(f"Training ended at step {ended:,}: nothing to go on with. {folder} is as it was.", highlight=False)
    return ended is not None


@contextmanager
def _written(path: Path, step: int) -> Iterator[Callable[..., None]]:
    """What writes to the journal of a run; nothing, where another rank does."""
    if not ranks().is_first:
        yield lambda step, **values: None
        return
    with closing(Journal(path, step)) as journal:
        yield journal.write


@contextmanager
def _said_how_to_go_on(folder: Path) -> Iterator[None]:
    """Errors of a disk in one line: what was trained so far is not lost."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{folder} cannot be written: {error}; make room and go on with --resume") from error


class Where(Enum):
    """Where a run begins."""

    START = "at the start"
    CHECKPOINT = "from its checkpoint"
    END = "nowhere: it has ended"


def _look(folder: Path, run: dict[str, Any], steps: int, resume: bool) -> Where:
    """Where a run begins in a folder, and say so; a ValueError where it cannot."""
    if resume and _has_ended(folder, run):
        return Where.END
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / RUN).exists():
            raise ValueError(f"{folder} holds something else: choose another folder")
        before = read_run(folder)
        if not resume:
            raise ValueError(f"{folder} holds a run: add --resume to go on with it, or choose another folder")
        _check_same(folder, before, run)
        if holds_model(folder / TRAINING):
            out.print(f"Going on from step {steps_done(folder / TRAINING):,} of {steps:,}", highlight=False)
            if before.get("threads", threads_now()) != threads_now():
                line = (
                    f"It began with {before['threads']} threads and goes on with {threads_now()}: sums round otherwise"
                )
                out.print(f"{line}, so the model will not be the same to the last bit.", highlight=False)
            return Where.CHECKPOINT
    if resume:
        out.print(f"There is no checkpoint in {folder} to go on from: beginning at the start", soft_wrap=True)
    check_writable(folder / RUN)  # before the tree, which takes a while
    return Where.START


def _start(
    folder: Path, run: dict[str, Any], data: Prepared, build: TreeBuilder, settings: Settings, where: Where
) -> tuple[TreeModel, int]:
    """The model as the run begins, or as its checkpoint left it, and how many steps it has behind it."""
    if where is Where.CHECKPOINT:
        with ranks().agreed():  # that all ranks see it
            step = steps_done(folder / TRAINING)
        return load_model(folder / TRAINING, settings.device), step
    out.print(f"Building a {run['tree']} tree over {data.num_items:,} items", highlight=False, soft_wrap=True)
    tree = build(data, run["arity"], run["seed"])
    began = time.monotonic()
    if settings.recipe.start is None:
        model = start_model(settings, data, tree)
    else:
        with progress(100, "% of the closed form") as (advance, _):
            shown = 0

            def on_progress(what: str, done: int, total: int) -> None:
                nonlocal shown
                advance(done - shown)
                shown = done

            model = start_model(settings, data, tree, on_progress)
        out.print(f"Fitted the closed form in {time.monotonic() - began:.0f} s", highlight=False)
    with ranks().agreed() as first:
        if first:
            write_run(folder, run)  # first, so that a run killed from here on can be resumed
    return model, 0

"""A run folder: a model with the ids of its items, and how it came to be.

settings.json and its files   the model, as `beamtree.load_model` reads it
run.json                      the data it was trained on, the method, the tree, the settings, the commit
log.jsonl                     loss and recall along the way, one JSON record per line
training/                     the checkpoint that `--resume` goes on from, and the best model so far
data/                         the prepared data, where they were made for this run alone
items.parquet                 the table of categories, and
vectors.parquet               the vectors, where they were given in memory
"""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from beamtree.data import Ids, Prepared, load_data
from beamtree.distributed.group import ranks
from beamtree.files.atomic import read_json, write_json
from beamtree.files.staging import folder_lock, move_into_place, remove, staging_folder
from beamtree.model import TreeModel, check_device
from beamtree.scorers import Scorer
from beamtree.storage.models import load_model
from beamtree.storage.settings import holds_model
from beamtree.train.recipes import Recipe, Settings, recipe_name
from beamtree.train.validation import Progress

RUN, LOG, TRAINING, DATA = "run.json", "log.jsonl", "training", "data"
TABLES = ("items", "vectors")  # what users know of their items: run.json names the files


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Hold a folder for all ranks, of which the first writes to it."""
    with ExitStack() as stack:
        with ranks().agreed() as first:
            if first:
                stack.enter_context(folder_lock(folder))
        yield


def describe_run(
    settings: Settings,
    data: Path,
    tree: str,
    recipe: str | Recipe,
    *,
    arity: int = 2,
    items: str | Path | None = None,
    vectors: str | Path | None = None,
) -> dict[str, Any]:
    """How a run comes to be, in words that can be compared: `tree` and `recipe` say where these come from."""
    return {
        "data": str(data.resolve()),
        "tree": tree,
        "arity": arity,
        "items": None if items is None else str(items),
        "vectors": None if vectors is None else str(vectors),
        "recipe": recipe_name(recipe),
        "method": settings.method.name,
        "beam_size": settings.beam_size,
        **settings.method.describe(),
        "batch_size": settings.batch_size,
        "epochs": settings.epochs,
        "steps": settings.steps,
        "lr": settings.lr,
        "optimizer": settings.optimizer,
        "seed": settings.seed,
        "device": settings.device,
        "refit": settings.refit,
    }


def write_run(folder: Path, run: dict[str, Any], brought: Progress | None = None) -> None:
    """Begin a run: how it comes to be, and what its training brought where it is over."""
    write_json(folder / RUN, {**run, "threads": threads(), "torch": str(torch.__version__), "commit": commit()})
    if brought is not None:
        finish_run(folder, brought)


def threads() -> int:
    """How many threads compute: other numbers round sums otherwise, and end at other weights."""
    return torch.get_num_threads()


def finish_run(folder: Path, progress: Progress) -> None:
    """Add to a run's description what its training brought."""
    brought = {"steps_done": progress.step, "recall_at_start": progress.start, "best_step": progress.best_step}
    best = progress.best if progress.best_step >= 0 else None
    write_json(folder / RUN, {**read_run(folder), "training": {**brought, "best_recall": best}})


def progress_of(run: dict[str, Any]) -> Progress | None:
    """What the training of a run brought, where that is known."""
    brought = run.get("training")
    if not isinstance(brought, dict):
        return None
    best, step = brought["best_recall"] or 0.0, int(brought["best_step"])
    return Progress(int(brought["steps_done"]), brought["recall_at_start"], best, step)


def read_run(folder: Path) -> dict[str, Any]:
    """How a run came to be; a ValueError in one line where it is none."""
    path = folder / RUN
    if not path.exists():
        raise ValueError(f"{folder} is no run: make one with `beamtree train DATA --out {folder}`")
    run: dict[str, Any] = read_json(path, "train anew")
    if not isinstance(run, dict) or not isinstance(run.get("data"), str | None):
        raise ValueError(f"{path} is damaged: train anew")
    return run


def check_run(folder: Path) -> None:
    """Raise a ValueError where a folder is no run, or one that is not finished."""
    read_run(folder)
    if not holds_model(folder):
        raise ValueError(f"{folder} is not finished: go on with `beamtree train … --out {folder} --resume`")


def open_model(folder: Path, device: str, scorers: Sequence[type[Scorer]] = ()) -> TreeModel:
    """The trained model of a run, with the ids of its items."""
    check_run(folder)
    check_device(device)
    return load_model(folder, device, scorers=scorers)


def ids_of(folder: Path, model: TreeModel) -> Ids:
    """The ids of a run's items; a ValueError where they do not belong to its model."""
    if model.ids is None:
        raise ValueError(f"{folder} holds a model whose items have numbers and no ids")
    if len(model.ids) != model.tree.num_items:
        counts = f"{len(model.ids):,} ids for a tree of {model.tree.num_items:,} items"
        raise ValueError(f"{folder}: {counts}: they are not of one run")
    return model.ids


def open_data(folder: Path, model: TreeModel, data: Path | None = None) -> Prepared:
    """The data of a run, or other data that numbers its items the same way."""
    place = data or data_folder(folder)
    if place is None:
        raise ValueError(f"{folder} does not say on which data it was trained: say where they are with `data`")
    if data is None and not place.exists():
        raise ValueError(f"{place}, on which {folder} was trained, is not there: say where the data are with `data`")
    prepared = load_data(place)
    known = ids_of(folder, model).names
    if prepared.items.names != known[: len(prepared.items)]:  # items that were added since come after
        raise ValueError(f"{prepared.folder} holds other items than {folder} was trained on")
    return prepared


def replace_data(folder: Path, source: Path | None) -> None:
    """Put a copy of prepared data into a run in one move, or take out what was there; who reads it reads on."""
    place = folder / DATA
    if source is not None and source.resolve() == place.resolve():
        return
    if source is None:
        remove(place)
        return
    with staging_folder(place) as draft:
        shutil.copytree(source, draft / DATA)
        move_into_place(draft / DATA, place)


def table_file(folder: Path, name: str, run: Mapping[str, Any] | None = None) -> Path | None:
    """The file of `items` or `vectors` that a run names, inside the run or elsewhere; None where it is not there."""
    named = (read_run(folder) if run is None else run).get(name)
    places = [folder / named, Path(named)] if isinstance(named, str) else []
    return next((place for place in places if place.is_file()), None)


def check_free(folder: Path) -> None:
    """Raise a ValueError where a folder holds files and is neither a run nor a model."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RUN).exists() and not holds_model(folder):
        raise ValueError(f"{folder} holds something else: choose another folder")


def remove_training(folder: Path) -> None:
    """Remove what the training of another model left in a run's folder."""
    for name in (LOG, TRAINING, "tensorboard"):
        remove(folder / name)


def data_folder(folder: Path) -> Path | None:
    """Where the data of a run are: inside it, or where they were."""
    if (folder / DATA).exists():
        return folder / DATA
    path = read_run(folder).get("data")
    return None if path is None else Path(path)


def commit() -> str | None:
    """The commit of the code that ran, if it runs from a checkout; with + where files were changed since."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "..")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None

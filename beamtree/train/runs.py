"""A run folder: a model, the ids of its items, and how it came to be.

settings.json, *.safetensors   the model, as `beamtree.load_model` reads it
items.txt                      the ids of its items, one per line
run.json                       the data it was trained on, the method, the settings, the commit
log.jsonl                      loss and recall along the way, one JSON record per line
training/                      the checkpoint that `--resume` goes on from, and the best model so far
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

from beamtree.data import Ids, Prepared, load
from beamtree.data.files import read_json, write_json
from beamtree.model import TreeModel, check_device
from beamtree.train.checkpoint import load_model

RUN, ITEMS, LOG, TRAINING = "run.json", "items.txt", "log.jsonl", "training"


def write_run(folder: Path, run: dict[str, Any], data: Prepared) -> None:
    """Begin a run: how it came to be, and the ids of its items."""
    write_json(folder / RUN, {**run, "commit": commit()})
    shutil.copyfile(data.folder / ITEMS, folder / ITEMS)


def read_run(folder: Path) -> dict[str, Any]:
    """How a run came to be; a ValueError in one line where it is none."""
    path = folder / RUN
    if not path.exists():
        raise ValueError(f"{folder} is no run: make one with `beamtree train DATA --out {folder}`")
    run: dict[str, Any] = read_json(path, "train anew")
    if not isinstance(run, dict) or not isinstance(run.get("data"), str):
        raise ValueError(f"{path} is damaged: train anew")
    return run


def open_model(folder: Path, device: str) -> TreeModel:
    """The trained model of a run."""
    read_run(folder)
    if not (folder / "settings.json").exists():
        raise ValueError(f"{folder} is not finished: go on with `beamtree train … --out {folder} --resume`")
    check_device(device)
    return load_model(folder, device)


def open_ids(folder: Path) -> Ids:
    """The ids of a run's items."""
    read_run(folder)
    if not (folder / ITEMS).exists():
        raise ValueError(f"{folder / ITEMS} is missing: copy it from the data of the run")
    return Ids(folder / ITEMS)


def open_data(folder: Path, data: Path | None) -> Prepared:
    """The data of a run, or other data that numbers its items the same way."""
    theirs = Path(read_run(folder)["data"])
    if data is None and not theirs.exists():
        raise ValueError(f"{theirs}, on which {folder} was trained, is not there: say where the data are with --data")
    prepared = load(data or theirs)
    open_ids(folder)
    if (prepared.folder / ITEMS).read_bytes() != (folder / ITEMS).read_bytes():
        raise ValueError(f"{prepared.folder} holds other items than {folder} was trained on")
    return prepared


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

"""A run folder: a model with the ids of its items, and how it was trained.

settings.json and its files   the model, as `beamtree.load_model` reads it
run.json                      data, method, tree, options, commit
log.jsonl                     loss and recall during training, one JSON record per line
tensorboard/                  the same for TensorBoard, where it is installed
training/                     the checkpoint for `--resume`, and the best model so far
before_refit/                 the model before the refit, where fitting it again would be another or take long
data/                         the prepared data, where they were made for this run alone
items.parquet                 the table of categories, and
vectors.parquet               the vectors, where they were given in memory

run.json has a checksum of itself and of the two tables; the other files have theirs in settings.json and in the
description of the data.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from beamtree.data import Ids, Prepared, load_data
from beamtree.data.prepared import DESCRIPTION, read_description
from beamtree.errors import check_device, explain_full_disk
from beamtree.files.atomic import write_atomically
from beamtree.files.checksums import check_file, file_checksum, read_checked_json, regular_file, write_checked_json
from beamtree.files.staging import move_into_place, remove, staging_folder
from beamtree.model import TreeModel
from beamtree.scorers import Scorer
from beamtree.storage.models import load_model
from beamtree.storage.settings import holds_model, refuse_classifier

RUN, LOG, TRAINING, DATA = "run.json", "log.jsonl", "training", "data"
FIRST = "before_refit"  # the model before the refit
TABLES = ("items", "vectors")  # tables about items: run.json names their files
FORMATS = 1, None  # of run.json; older ones have neither a format nor a checksum
CHECKSUMS = "checksums"  # in run.json: of its tables
REMEDY = "train again"


def write_run(folder: Path, run: dict[str, Any], result: Mapping[str, Any] | None = None) -> None:
    """Write run.json at the start of training, or with `Progress.as_dict()` where training is over."""
    versions = {"threads": torch.get_num_threads(), "torch": str(torch.__version__), "commit": commit()}
    kept: dict[str, Any] = {}  # of the tables that are there now
    with suppress(ValueError):
        kept = read_run(folder).get(CHECKSUMS, {})
    training = {} if result is None else {"training": {**run.get("training", {}), **result}}
    write_checked_json(folder / RUN, {**run, CHECKSUMS: kept, **versions, **training}, FORMATS[0])


def finish_run(folder: Path, result: Mapping[str, Any], before_refit: Mapping[str, Any] | None = None) -> None:
    """Add the result of training to run.json, and what was measured before a refit."""
    run, refit = read_run(folder), {} if before_refit is None else {"before_refit": before_refit}
    write_checked_json(folder / RUN, {**run, "training": {**run.get("training", {}), **result, **refit}}, FORMATS[0])


def read_run(folder: Path) -> dict[str, Any]:
    """The content of run.json; a ValueError where the folder is not a run."""
    path = folder / RUN
    if not path.exists():
        refuse_classifier(folder)
        raise ValueError(f"{folder} is not a run: make one with `beamtree train DATA --out {folder}`")
    run = read_checked_json(path, FORMATS, REMEDY)
    run.pop("format", None)
    checksums = run.get(CHECKSUMS, {})
    is_known = isinstance(checksums, dict) and all(isinstance(each, list) for each in checksums.values())
    if not is_known or not isinstance(run.get("data"), str | None):
        raise ValueError(f"{path} is damaged: {REMEDY}")
    return run


def check_run(folder: Path) -> None:
    """Raise a ValueError where a folder is not a finished run."""
    read_run(folder)
    if not holds_model(folder):
        raise ValueError(f"{folder} is not finished: continue with `beamtree train … --out {folder} --resume`")


def open_model(folder: Path, device: str, scorers: Sequence[type[Scorer]] = ()) -> TreeModel:
    """The trained model of a run, with the ids of its items."""
    check_run(folder)
    check_device(device)
    return load_model(folder, device, scorers=scorers)


def open_first(folder: Path, device: str, scorers: Sequence[type[Scorer]] = ()) -> TreeModel | None:
    """The model of a run before its refit; None where it is not saved."""
    return load_model(folder / FIRST, device, scorers=scorers) if holds_model(folder / FIRST) else None


def ids_of(folder: Path, model: TreeModel) -> Ids:
    """The ids of a run's items; a ValueError where they do not match the model."""
    if model.ids is None:
        raise ValueError(f"{folder} holds a model without item ids")
    if len(model.ids) != model.tree.num_items:
        counts = f"{len(model.ids):,} ids for a tree of {model.tree.num_items:,} items"
        raise ValueError(f"{folder} has {counts}: its files belong to different runs")
    return model.ids


def open_data(folder: Path, model: TreeModel, data: Path | None = None) -> Prepared:
    """The data of a run, or other data with the same item numbers."""
    source = data or data_folder(folder)
    if source is None:
        raise ValueError(f"{folder} does not record its training data: give their folder with `data`")
    if data is None and not source.exists():
        raise ValueError(f"the training data of {folder} are no longer in {source}: give their folder with `data`")
    prepared = load_data(source)
    names = ids_of(folder, model).names
    if prepared.items.names != names[: len(prepared.items)]:  # items added later come after these
        raise ValueError(f"{prepared.folder} holds other items than {folder} was trained on")
    return prepared


def replace_data(folder: Path, source: Path | None) -> None:
    """Copy prepared data into a run atomically, or remove them; open readers keep the old files."""
    target = folder / DATA
    if source is not None and source.resolve() == target.resolve():
        return
    if source is None:
        remove(target)
        return
    with explain_full_disk(folder), staging_folder(target) as draft:
        (draft / DATA).mkdir()
        for name in (DESCRIPTION, *read_description(source)["files"]):  # new files, with the permissions of the umask
            shutil.copyfile(regular_file(source, name, REMEDY), draft / DATA / name)
        move_into_place(draft / DATA, target)


# Tables


def table_name(name: str) -> str:
    """The file of the table `items` or `vectors` in a run."""
    return f"{name}.parquet"


def own_tables(folder: Path, run: Mapping[str, Any]) -> dict[str, Path]:
    """The files of the tables that are saved with a run."""
    files = {name: table_file(folder, name, run) for name in TABLES if run.get(name) == table_name(name)}
    return {name: file for name, file in files.items() if file is not None}


def save_tables(folder: Path, tables: Mapping[str, Any]) -> None:
    """Write tables from memory into a run, and copy those that are files; others of the run are removed."""
    for name in TABLES:
        table = tables.get(name)
        if table is None:
            remove(folder / table_name(name))
        else:
            save_table(
                folder, name, partial(shutil.copyfile, table) if isinstance(table, Path) else table.write_parquet
            )


def save_table(folder: Path, name: str, write: Callable[[Path], object]) -> None:
    """Write the table `items` or `vectors` into a run; a kill leaves the old one or the new one.

    run.json gets the checksum of the new table before this is moved into place, and keeps that of the old one.
    """
    path = folder / table_name(name)
    with explain_full_disk(folder), staging_folder(path) as draft:
        write(draft / path.name)
        run = read_run(folder)
        before = run.get(CHECKSUMS, {}).get(path.name, [])
        checksums = {**run.get(CHECKSUMS, {}), path.name: [*before[-1:], file_checksum(draft / path.name)]}
        write_checked_json(folder / RUN, {**run, CHECKSUMS: checksums}, FORMATS[0])
        move_into_place(draft / path.name, path)


def table_file(folder: Path, name: str, run: Mapping[str, Any] | None = None, *, full: bool = False) -> Path | None:
    """The file of `items` or `vectors` named by run.json, in the run or elsewhere; None where it does not exist.

    A ValueError where a table of the run does not match its checksum; with `full`, all of it is read.
    """
    run = read_run(folder) if run is None else run
    file = run.get(name)
    if not isinstance(file, str) or "\0" in file:
        return None
    if file == table_name(name) and os.path.lexists(folder / file):
        return _check_table(folder, file, run.get(CHECKSUMS, {}).get(file, []), full)
    return next((path for path in (folder / file, Path(file)) if path.is_file()), None)


def _check_table(folder: Path, file: str, checksums: Sequence[object], full: bool) -> Path:
    """A table of a run, which must match one of some checksums; older runs have none."""
    path, damage = regular_file(folder, file, REMEDY), None
    for checksum in checksums:
        try:
            return check_file(folder, file, checksum, REMEDY, full=full)
        except ValueError as error:
            damage = error
    if damage is not None:
        raise damage
    return path


def check_free(folder: Path, *, or_model: bool = False) -> None:
    """Raise a ValueError where a folder holds files but is not a run, or with `or_model` a model."""
    is_known = (folder / RUN).exists() or (or_model and holds_model(folder))
    if folder.is_dir() and any(folder.iterdir()) and not is_known:
        raise ValueError(f"{folder} holds other files: choose another folder")


def remove_training(folder: Path) -> None:
    """Remove the log and the checkpoint of an earlier training from a run."""
    for name in (LOG, TRAINING, "tensorboard"):
        remove(folder / name)


def data_folder(folder: Path) -> Path | None:
    """The folder of a run's data: inside the run, or where they were at training."""
    if (folder / DATA).exists():
        return folder / DATA
    path = read_run(folder).get("data")
    return None if path is None else Path(path)


def commit() -> str | None:
    """The commit of the code if it runs from a checkout, with + where files were changed since."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "..")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


class RunLog:
    """Writes log.jsonl, and TensorBoard events beside it.

    A run resumed at a step first drops the records after it.
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        self._truncate(path, step)
        self._file = path.open("a", encoding="utf-8")
        self._board: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._board = SummaryWriter(str(path.with_name("tensorboard")), purge_step=step)

    def write(self, step: int, **values: float) -> None:
        """Append a record."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()

    @staticmethod
    def _truncate(path: Path, step: int) -> None:
        """Keep the records up to a step; none where training begins."""
        if not path.exists():
            return
        lines = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            try:
                if step and json.loads(line)["step"] <= step:
                    lines.append(line)
            except (ValueError, KeyError, TypeError):  # cut short when the run was killed
                continue
        write_atomically(path, lambda draft: draft.write_text("".join(lines), encoding="utf-8"))

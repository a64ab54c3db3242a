"""`beamtree check`: read every byte of a folder and compare it with its checksums."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from beamtree.classify.storage import load_classifier
from beamtree.cli.console import write
from beamtree.data import load_data, prepared
from beamtree.data.prepared import DESCRIPTION
from beamtree.errors import short_message
from beamtree.files.checksums import read_checked_json
from beamtree.files.sealed import check_files
from beamtree.files.staging import remove_leftovers_in
from beamtree.live.saved import load_changes
from beamtree.scorers import SCORERS
from beamtree.storage import settings
from beamtree.storage.models import load_model
from beamtree.storage.runs import DATA, RUN, TABLES, TRAINING, read_run, table_file
from beamtree.storage.settings import holds_classifier, holds_model
from beamtree.storage.tensors import check_finite
from beamtree.storage.tuned import FORMATS, TUNE

Checks = Iterator[tuple[str, Callable[[], object]]]


def check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Prepared data, a run, a model or a comparison.")],
) -> None:
    """Read every file of a folder and compare it with its checksum. The exit code is 1 if a file is damaged.

    Loading reads files of up to 256 MiB completely and only samples larger ones. This command reads everything.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    remove_leftovers_in(folder)
    checks = list(_checks(folder))
    if not checks:
        raise ValueError(f"{folder} holds neither prepared data nor a model: nothing to check")
    failed = 0
    for name, check in checks:
        start = time.monotonic()
        try:
            check()
        except (ValueError, OSError) as error:
            failed += 1
            write(f"DAMAGED  {name}: {short_message(error)}")
        else:
            write(f"OK       {name} ({time.monotonic() - start:.1f} s)")
    raise typer.Exit(1 if failed else 0)


def _checks(folder: Path) -> Checks:
    """The checks of a folder and its subfolders."""
    if (folder / DESCRIPTION).exists():
        yield f"prepared data in {folder}", lambda: _check_prepared(folder)
    if (folder / RUN).exists():
        yield f"the run in {folder}", lambda: _check_run(folder)
    if holds_model(folder):
        yield f"the model in {folder}", lambda: _check_model(folder)
    if holds_classifier(folder):
        yield f"the classifier in {folder}", lambda: load_classifier(folder)
    for path in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        if path.name in (TRAINING, "best", DATA) or (path / RUN).exists() or holds_model(path):
            yield from _checks(path)


def _check_run(folder: Path) -> None:
    run = read_run(folder)
    for name in TABLES:
        table_file(folder, name, run, full=True)
    load_changes(folder)
    if (folder / TUNE).exists():
        read_checked_json(folder / TUNE, FORMATS, "tune it again")


def _check_prepared(folder: Path) -> None:
    description = prepared.read_description(folder)
    check_files(folder, description["files"], prepared.REMEDY, full=True)
    data = load_data(folder)
    prepared.check_arrays(folder, description, *prepared.open_arrays(folder, description))
    for ids, count in ((data.items, data.num_items), (data.users, len(data.train) + len(data.val) + len(data.test))):
        if len(ids) != count:
            raise ValueError(f"{folder} has {len(ids):,} ids where {count:,} are needed")
    prepared.check_pairs(data)
    data.items.find([""])
    data.dropped_items.find([""])
    data.dropped_users.find([""])


def _check_model(folder: Path) -> None:
    description = settings.read_settings(folder)
    settings.check_files(folder, description, full=True)
    if settings.unknown_scorers(description, SCORERS):
        return  # a scorer from outside the package cannot be loaded here
    model = load_model(folder)
    check_finite(model)
    if model.ids is not None:
        model.ids.find([""])
        if len(model.ids) != model.tree.num_items:
            raise ValueError(f"{folder} has {len(model.ids):,} ids for {model.tree.num_items:,} items")

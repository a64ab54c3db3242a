"""A log in any shape, as prepared data."""

import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from beamtree.data import Prepared, load_data
from beamtree.data.prepared import DESCRIPTION
from beamtree.errors import requires


def open_log(
    log: Any, seed: int, options: dict[str, Any], on_stage: Callable[[str], None] = lambda stage: None
) -> tuple[Prepared, bool]:
    """Prepared data as they are; a log of any other kind prepared in a folder that goes when it is let go.

    Beside the data, it says whether they were prepared here, for the caller alone. `options` are those of `prepare`,
    and have nothing to say about data that are prepared already. `on_stage` hears what is done next.
    """
    if isinstance(log, Prepared) or (isinstance(log, str | Path) and (Path(log) / DESCRIPTION).exists()):
        if options:
            raise ValueError(f"{next(iter(options))} says how a log is prepared, and this one is prepared already")
        return (log if isinstance(log, Prepared) else load_data(log)), False
    with requires("", "reading a log"):
        from beamtree.ingest.prepare import prepare

    place = tempfile.mkdtemp(prefix="beamtree-")
    try:
        prepare(
            log,
            Path(place) / "data",
            seed=seed,
            on_stage=lambda stage: on_stage(f"Preparing the log: {stage}"),
            **options,
        )
        data = load_data(Path(place) / "data")
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    weakref.finalize(data, shutil.rmtree, place, ignore_errors=True)
    return data, True


def pack(data: Prepared) -> dict[str, bytes]:
    """The files of prepared data by name, for a pickle."""
    return {path.name: path.read_bytes() for path in data.folder.iterdir()}


def unpack(files: dict[str, bytes]) -> Prepared:
    """Prepared data from such files, in a folder that goes when they are let go."""
    place = tempfile.mkdtemp(prefix="beamtree-")
    try:
        folder = Path(place) / "data"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        data = load_data(folder)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    weakref.finalize(data, shutil.rmtree, place, ignore_errors=True)
    return data

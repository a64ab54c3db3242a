"""The tuned beam of a model: one width per level, stored in its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from beamtree.files.checksums import read_checked_json, write_checked_json
from beamtree.files.staging import remove
from beamtree.storage.settings import fingerprint

TUNE = "tune.json"
FORMATS = 1, None  # older files have neither a format nor a checksum


def save_tuned_beam(folder: Path, tuned: Mapping[str, Any]) -> None:
    """Write `Tuned.as_dict()` into the folder of its model, for `--beam-size tuned`."""
    write_checked_json(folder / TUNE, {**tuned, "model": fingerprint(folder)}, FORMATS[0])


def load_tuned_beam(folder: Path) -> tuple[int, ...]:
    """The beam tuned for the model of a folder; a ValueError if there is none, or it belongs to another model."""
    path, remedy = folder / TUNE, f"tune it with `beamtree tune {folder}`"
    if not path.exists():
        raise ValueError(f"{folder} has no tuned beam: {remedy}")
    content = read_checked_json(path, FORMATS, remedy)
    beam = content.get("beam_size")
    if not isinstance(beam, list) or not beam or not all(type(width) is int and width > 0 for width in beam):
        raise ValueError(f"{path} is damaged: {remedy}")
    if content.get("model") != fingerprint(folder):
        raise ValueError(f"{path} belongs to another model: {remedy}")
    return tuple(beam)


def remove_stale_beam(folder: Path) -> None:
    """Remove a tuned beam that does not belong to the model of its folder."""
    try:
        load_tuned_beam(folder)
    except ValueError:
        remove(folder / TUNE)

"""The beam that was tuned for a model, kept beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from beamtree.files.atomic import read_json, write_json
from beamtree.storage.settings import fingerprint

TUNE = "tune.json"


def write_tuned(folder: Path, found: Mapping[str, Any]) -> None:
    """Put a beam, as `Tuned.as_dict` tells it, into the folder of its model, where `--beam-size tuned` finds it."""
    write_json(folder / TUNE, {**found, "model": fingerprint(folder)})


def tuned_beam(folder: Path) -> tuple[int, ...]:
    """The beam that was tuned for the model of a folder; a ValueError where there is none for this very model."""
    path, again = folder / TUNE, f"tune it with `beamtree tune {folder}`"
    if not path.exists():
        raise ValueError(f"{folder} has no tuned beam: {again}")
    content = read_json(path, again)
    beam = content.get("beam_size") if isinstance(content, dict) else None
    if not isinstance(beam, list) or not beam or not all(type(width) is int and width > 0 for width in beam):
        raise ValueError(f"{path} is damaged: {again}")
    if content.get("model") != fingerprint(folder):
        raise ValueError(f"{path} is of another model: {again}")
    return tuple(beam)

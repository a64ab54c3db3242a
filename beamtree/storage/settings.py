"""settings.json: what kind of model a folder holds, and which files belong to it."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.errors import short_message
from beamtree.files.checksums import check_file, read_checked_json
from beamtree.scorers import Scorer, SumScorer
from beamtree.storage.tensors import load_tensors

SETTINGS = "settings.json"
CLASSIFIER = "classifier.json"  # in the folder of a classifier
FORMATS = 3, 2  # that are read, the first is written; 2 has no checksums
MODEL_FILES = {"tree", "weights", "search", "items", "optimizer"}
DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}
TYPES: dict[str, type] = {
    "tree": str, "arity": int, "admit_empty": bool, "scorer": str, "scorer_settings": dict, "dtype": str,
    "chained": bool, "first_level": int, "progress": dict, "files": dict,
}  # fmt: skip
SHARD_TYPES = {"cut": int, "ranks": int, "rows": list, "lists": list}  # see `sharded_files`
REMEDY = "copy the folder again, or train again"


def holds_model(folder: str | Path) -> bool:
    """Whether a model is in the folder, finished or in training."""
    return (Path(folder) / SETTINGS).exists()


def holds_classifier(folder: Path) -> bool:
    """Whether a folder holds a classifier."""
    return (folder / CLASSIFIER).is_file()


def refuse_classifier(folder: Path) -> None:
    """Raise a ValueError where a folder that should be a run holds a classifier."""
    if holds_classifier(folder):
        raise ValueError(f"{folder} is a classifier of documents: see `beamtree classify --help` for its commands")


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of the model in a folder; a ValueError if there is none, or they are damaged."""
    path = folder / SETTINGS
    if not path.exists():
        raise ValueError(f"{folder} holds no model: there is no {SETTINGS}")
    settings = read_checked_json(path, FORMATS, REMEDY)
    for key, kind in TYPES.items():
        if not isinstance(settings.get(key), kind) or (kind is int and isinstance(settings[key], bool)):
            raise ValueError(f"{path} is damaged: {key} is {str(settings.get(key))[:40]!r}; {REMEDY}")
    files, required = settings["files"], {"tree", "weights"}
    if "shards" in settings:
        shards = settings["shards"]
        if isinstance(shards, dict) and "folder" in shards:
            raise ValueError(f"{folder} was written over ranks by an older version of beamtree: train again")
        if not isinstance(shards, dict) or not all(isinstance(shards.get(k), kind) for k, kind in SHARD_TYPES.items()):
            raise ValueError(f"{path} is damaged: it does not say how the model is divided; {REMEDY}")
        required = {"tree", *shard_names(min(shards["ranks"], len(files)))}
    if settings["dtype"] not in DTYPES or not required <= set(files) <= MODEL_FILES | required:
        raise ValueError(f"{path} is damaged: it does not name the files of a model; {REMEDY}")
    for part, entry in files.items():
        if settings["format"] == 2 and isinstance(entry, list) and len(entry) == 2:
            files[part] = {"file": entry[0], "bytes": entry[1]}
        elif not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
            raise ValueError(f"{path} is damaged: it does not name the file of its {part}; {REMEDY}")
    return settings


def shard_names(ranks: int) -> list[str]:
    """The names of the parts of a model that some ranks wrote."""
    return [f"shard-{rank}" for rank in range(ranks)]


def fingerprint(folder: Path) -> str:
    """A short name that identifies the model in a folder: its settings contain the checksums of all files."""
    text = json.dumps(read_settings(folder), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def unknown_scorers(settings: dict[str, Any], classes: Iterable[type[Scorer]]) -> list[str]:
    """The names of the classes of a model's scorer and of its parts that are not among these."""
    parts = settings["scorer_settings"].get("parts", {}) if settings["scorer"] == SumScorer.__name__ else {}
    if not isinstance(parts, dict) or not all(isinstance(part, list) and len(part) == 2 for part in parts.values()):
        raise ValueError(f"the settings of a {SumScorer.__name__} do not name its parts: {REMEDY}")
    known = {scorer.__name__ for scorer in classes}
    return [name for name in (settings["scorer"], *(name for name, _ in parts.values())) if name not in known]


def file_path(folder: Path, settings: dict[str, Any], part: str) -> Path:
    """The file of a part of the model."""
    return folder / str(settings["files"][part]["file"])


def read_tensors(folder: Path, settings: dict[str, Any], part: str) -> dict[str, Tensor]:
    """The tensors of a part of the model, mapped to memory."""
    return load_tensors(file_path(folder, settings, part))


def check_files(folder: Path, settings: dict[str, Any], *, full: bool = False) -> None:
    """Raise a ValueError if a file of the model does not match its checksum; with `full`, all of it is read."""
    for entry in settings["files"].values():
        try:
            check_file(folder, entry["file"], entry, REMEDY, full=full)
        except ValueError as error:
            if "shards" not in settings:
                raise
            count = f"{len(settings['files'])} files from {settings['shards']['ranks']} ranks"
            raise ValueError(f"{error} ({count} belong to {folder})") from error


@contextmanager
def explain_damage(folder: Path) -> Iterator[None]:
    """Turn errors from settings that were edited by hand, or belong to another version, into a ValueError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        raise ValueError(
            f"{folder} is damaged, its settings fit no model ({short_message(error, 120)}): {REMEDY}"
        ) from error

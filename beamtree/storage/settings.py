"""What a model's folder says of itself, read and checked before anything is made of it."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.errors import short_message
from beamtree.files.checksums import check_file, read_checked_json
from beamtree.model import TreeModel
from beamtree.scorers import SCORERS, SumScorer

SETTINGS = "settings.json"
FORMATS = 3, 2  # that are read, the first is written; 2 has no checksums
PARTS, NEEDED = {"tree", "weights", "search", "items", "optimizer"}, {"tree", "weights"}
DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}
KINDS: dict[str, type] = {  # of what settings hold
    "tree": str, "arity": int, "admit_empty": bool, "scorer": str, "scorer_settings": dict, "dtype": str,
    "chained": bool, "first_level": int, "progress": dict, "files": dict,
}  # fmt: skip
INFINITE = 0x7C00  # the bits of infinity in half precision; those of NaN are larger
AGAIN = "copy the folder again, or train anew"


def holds_model(folder: str | Path) -> bool:
    """Whether a model is in the folder, finished or in training."""
    return (Path(folder) / SETTINGS).exists()


def read_settings(folder: Path) -> dict[str, Any]:
    """What a model's folder says of it; a ValueError in one line where there is none."""
    path = folder / SETTINGS
    if not path.exists():
        raise ValueError(f"{folder} holds no model: there is no {SETTINGS}")
    settings = read_checked_json(path, FORMATS, AGAIN)
    for key, kind in KINDS.items():
        if not isinstance(settings.get(key), kind) or (kind is int and isinstance(settings[key], bool)):
            raise ValueError(f"{path} is damaged: {key} is {str(settings.get(key))[:40]!r}; {AGAIN}")
    needed = {"tree"} if _is_shards(settings.get("shards")) else NEEDED
    if settings["dtype"] not in DTYPES or not set(settings["files"]) <= PARTS or not set(settings["files"]) >= needed:
        raise ValueError(f"{path} is damaged: it does not name the files of a model; {AGAIN}")
    for part, known in settings["files"].items():
        if settings["format"] == 2 and isinstance(known, list) and len(known) == 2:
            settings["files"][part] = {"file": known[0], "bytes": known[1]}
        elif not isinstance(known, dict) or not isinstance(known.get("file"), str):
            raise ValueError(f"{path} is damaged: it does not name the file of its {part}; {AGAIN}")
    return settings


def _is_shards(found: object) -> bool:
    """Whether settings name files that several processes wrote: see `sharded_files`."""
    kinds = {"folder": str, "cut": int, "ranks": int, "rows": list, "files": dict}
    return isinstance(found, dict) and all(isinstance(found.get(key), kind) for key, kind in kinds.items())


def fingerprint(folder: Path) -> str:
    """A short name for the very model in a folder: its settings know every file by its checksum."""
    text = json.dumps(read_settings(folder), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def kinds_of(settings: dict[str, Any]) -> list[str]:
    """The classes of a model's scorer and of its parts, by name."""
    own = settings["scorer_settings"]
    parts = own.get("parts", {}) if settings["scorer"] == SumScorer.__name__ else {}
    if not isinstance(parts, dict) or not all(isinstance(each, list) and len(each) == 2 for each in parts.values()):
        raise ValueError(f"the settings of a {SumScorer.__name__} do not name its parts: {AGAIN}")
    return [settings["scorer"], *(kind for kind, _ in parts.values())]


def own_kinds() -> set[str]:
    """The classes of this package."""
    return {kind.__name__ for kind in SCORERS}


def file_of(settings: dict[str, Any], part: str) -> str:
    """The name of the file that holds a part."""
    name: str = settings["files"][part]["file"]
    return name


def read_tensors(folder: Path, settings: dict[str, Any], part: str) -> dict[str, Tensor]:
    """The tensors of a file, mapped to memory: what is written to them stays in memory."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / file_of(settings, part)
    try:
        return load_file(path)
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def check_files(folder: Path, settings: dict[str, Any], *, full: bool = False) -> None:
    """Raise a ValueError where a file that belongs to the model is not there as it was written."""
    for known in settings["files"].values():
        check_file(folder, known["file"], known, AGAIN, full=full)


class NotFiniteError(ValueError):
    """A weight is NaN or infinite: such a model answers nonsense."""


def check_finite(model: TreeModel) -> None:
    """Raise a NotFiniteError where a weight is."""
    for name, value in model.scorer.state_dict().items():
        if not is_finite(value):
            raise NotFiniteError(f"the weights {name} hold NaN or infinity: train anew")


def is_finite(value: Tensor) -> bool:
    """Whether all numbers of a tensor are, in one pass: by their sum, or of half numbers by the bits of the largest."""
    if not value.is_floating_point() or not value.numel():
        return True
    if value.dtype == torch.float16:
        return int((value.contiguous().view(torch.int16) & 0x7FFF).max()) < INFINITE
    return bool(torch.isfinite(value.sum())) or bool(torch.isfinite(value).all())


@contextmanager
def damaged(folder: Path) -> Iterator[None]:
    """Whatever goes wrong with settings that were changed by hand, or of another version, in one line."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        raise ValueError(
            f"{folder} is damaged, its settings fit no model ({short_message(error, 120)}): {AGAIN}"
        ) from error

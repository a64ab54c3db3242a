"""The artifact: one file with the search, the item ids and a description, which torch opens without this package."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch

from beamtree.beam import BeamSize
from beamtree.data.views import HISTORY
from beamtree.files.atomic import write_atomically
from beamtree.model import TreeModel
from beamtree.scorers import LinearScorer
from beamtree.serve.export.search_module import SearchModule
from beamtree.tree import PAD

SUFFIX = ".pt2"
ITEMS, DESCRIPTION = "items.txt", "beamtree.json"


def export_program(model: TreeModel, *, beam_size: BeamSize = 400, m: int = 10) -> torch.export.ExportedProgram:
    """The search of a model as a program of `torch.export`, for any number of users, on the device of the model.

    Args:
        model: a tree and a scorer.
        beam_size: k, or one width per searched level.
        m: number of items.
    """
    search = SearchModule(model, beam_size, m).eval().requires_grad_(False)
    device = model.tree.device
    if isinstance(model.scorer, LinearScorer):
        x = torch.zeros(3, model.scorer.settings()["dim"], device=device)
    else:
        x = torch.zeros(3, HISTORY, dtype=torch.int64, device=device)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about internals of torch
        return torch.export.export(search, (x,), dynamic_shapes=({0: torch.export.Dim("users", min=1)},))


def write_artifact(
    model: TreeModel, path: Path, *, beam_size: BeamSize = 400, m: int = 10, about: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Write an artifact atomically; returns its description.

    Args:
        model: a tree and a scorer, with item ids if it has any.
        path: the file, whose name ends in .pt2.
        beam_size: k, or one width per searched level.
        m: number of items.
        about: more entries of the description.
    """
    check_name(path)
    program = export_program(model, beam_size=beam_size, m=m)
    description: dict[str, Any] = {
        "format": 1,
        "m": m,
        "beam_size": beam_size if isinstance(beam_size, int) else list(beam_size),
        "history": HISTORY,
        "pad": PAD,
        "num_items": model.tree.num_items,
        "device": model.tree.device.type,
        "torch": str(torch.__version__),
        **(about or {}),
    }
    files = {DESCRIPTION: json.dumps(description, indent=1)}
    if model.ids is not None:
        files[ITEMS] = "".join(f"{name}\n" for name in model.ids.names)
    write_atomically(path, lambda draft: torch.export.save(program, draft, extra_files=files))
    return description


def check_name(path: Path) -> None:
    """Raise a ValueError for a file name without the usual suffix."""
    if path.suffix != SUFFIX:
        raise ValueError(f"{path}: end the name of an artifact in {SUFFIX}")

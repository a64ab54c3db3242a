"""An artefact: one file with the search, the ids of the items and how it was made, which torch alone can open."""

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
from beamtree.serve.export.search import Search
from beamtree.tree import PAD

SUFFIX = ".pt2"
ITEMS, ABOUT = "items.txt", "beamtree.json"


def program_of(model: TreeModel, *, beam_size: BeamSize = 400, m: int = 10) -> torch.export.ExportedProgram:
    """The search of a model, written down by `torch.export`: for any number of users, where the model is.

    Args:
        model: a tree and a scorer.
        beam_size: k, or one width for each searched level.
        m: how many items.
    """
    search = Search(model, beam_size, m).eval().requires_grad_(False)
    device, linear = model.tree.device, isinstance(model.scorer, LinearScorer)
    if linear:
        x = torch.zeros(3, model.scorer.settings()["dim"], device=device)
    else:
        x = torch.zeros(3, HISTORY, dtype=torch.int64, device=device)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        return torch.export.export(search, (x,), dynamic_shapes=({0: torch.export.Dim("users", min=1)},))


def write_artifact(
    model: TreeModel, path: Path, *, beam_size: BeamSize = 400, m: int = 10, about: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Write an artefact in one move, and give what it says of itself.

    Args:
        model: a tree and a scorer, with the ids of the items where it has any.
        path: the file, whose name ends in .pt2.
        beam_size: k, or one width for each searched level.
        m: how many items.
        about: what else it should say of itself.
    """
    check_name(path)
    program = program_of(model, beam_size=beam_size, m=m)
    beam = beam_size if isinstance(beam_size, int) else list(beam_size)
    told: dict[str, Any] = {
        "format": 1,
        "m": m,
        "beam_size": beam,
        "history": HISTORY,
        "pad": PAD,
        "num_items": model.tree.num_items,
    }
    told |= {"device": model.tree.device.type, "torch": str(torch.__version__), **(about or {})}
    files = {ABOUT: json.dumps(told, indent=1)}
    if model.ids is not None:
        files[ITEMS] = "".join(f"{name}\n" for name in model.ids.names)
    write_atomically(path, lambda draft: torch.export.save(program, draft, extra_files=files))
    return told


def check_name(path: Path) -> None:
    """Raise a ValueError where a file would not be known for what it is."""
    if path.suffix != SUFFIX:
        raise ValueError(f"{path}: end the name of an artefact in {SUFFIX}")

"""Export: the search of a model as one file, with the item ids and a description, that torch opens without beamtree."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from beamtree import kernels
from beamtree.beam import DEFAULT_BEAM_SIZE, BeamSize, walk_to_items, widths
from beamtree.data.inputs import HISTORY, NO_TIME
from beamtree.files.atomic import write_atomically
from beamtree.model import TreeModel
from beamtree.tree import PAD

SUFFIX = ".pt2"
ITEMS, DESCRIPTION = "items.txt", "beamtree.json"


class SearchModule(nn.Module):
    """Eq. 4 for a fixed beam and m: `beam.retrieve` in operations that `torch.export` can trace.

    The model is no submodule: its tensors become constants of the program, as what is cached of them does.

    Args:
        model: a tree and a scorer.
        beam_size: k, or one width per searched level.
        m: number of items.
    """

    def __init__(self, model: TreeModel, beam_size: BeamSize, m: int) -> None:
        super().__init__()
        if not model.scorer.exportable:
            scorers = model.scorer.scorers().values()
            name = next(type(part).__name__ for part in scorers if not part.exportable)
            raise ValueError(f"{name} cannot be exported: a scorer that can has `exportable = True`")
        self._model, self.m, self.widths = [model], m, widths(model, beam_size, m)

    def forward(self, x: Tensor, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The m best items and their probabilities [B, m], best first; PAD and 0 where there are fewer.

        A model with a context part also reads the values of contexts [B, columns]: see `data.contexts`. Times are not
        given: a model that reads the clock goes by the order of events.
        """
        (model,) = self._model
        none = x[:, :0]
        if model.scorer.reads_clock:
            none = torch.full_like(x[:, :1], NO_TIME).expand(-1, x.shape[1] + 1)
        users = x if values is None else torch.cat([x, none, values], dim=1)
        with kernels.plain_operations():
            items, scores = walk_to_items(model, users, self.widths, self.m)
            return items, model.scores_to_log_prob(scores).exp()


def export_program(
    model: TreeModel, *, beam_size: BeamSize = DEFAULT_BEAM_SIZE, m: int = 10
) -> torch.export.ExportedProgram:
    """The search of a model as a program of `torch.export`, for any number of users, on the device of the model.

    Args:
        model: a tree and a scorer.
        beam_size: k, or one width per searched level.
        m: number of items.
    """
    search, scorer, device = SearchModule(model, beam_size, m), model.scorer, model.tree.device
    if scorer.reads_items:
        x = torch.zeros(3, HISTORY, dtype=torch.int64, device=device)
    else:
        x = torch.zeros(3, scorer.settings()["dim"], device=device)
    columns, inputs = scorer.context_values, [x]
    if columns:
        inputs.append(torch.zeros(3, len(columns), dtype=torch.int64, device=device))
    shapes = ({0: torch.export.Dim("users", min=1)},) * len(inputs)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about internals of torch
        search(*inputs)  # which caches what is computed from weights alone
        program = torch.export.export(search, tuple(inputs), dynamic_shapes=shapes)
    for name, constant in program.constants.items():
        if isinstance(constant, Tensor):
            program.constants[name] = _whole(constant.detach())
    return program


def _whole(tensor: Tensor) -> Tensor:
    """A view is copied, because an archive would store all of its storage."""
    owns_storage = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if owns_storage else tensor.clone()


def write_artifact(
    model: TreeModel,
    path: Path,
    *,
    beam_size: BeamSize = DEFAULT_BEAM_SIZE,
    m: int = 10,
    about: dict[str, Any] | None = None,
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
        **({"context": columns} if (columns := model.scorer.context_values) else {}),
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

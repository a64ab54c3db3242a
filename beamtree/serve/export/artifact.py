"""Export: the search of a model as one file, with the item ids and a description, that torch opens without beamtree."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad

from beamtree.beam import DEFAULT_BEAM_SIZE, BeamSize, widths
from beamtree.data.views import HISTORY
from beamtree.files.atomic import write_atomically
from beamtree.model import TreeModel
from beamtree.scorers import LinearScorer, SumScorer, context_part
from beamtree.scorers.sum import calibrated
from beamtree.serve.export.scorers import add_buffer, export_scorer
from beamtree.tree import PAD

SUFFIX = ".pt2"
ITEMS, DESCRIPTION = "items.txt", "beamtree.json"


class SearchModule(nn.Module):
    """Eq. 4 for a fixed beam and m: `beam.retrieve` in plain tensors.

    Args:
        model: a tree and a scorer.
        beam_size: k, or one width per searched level.
        m: number of items.
    """

    start: Tensor
    leaf_of_item: Tensor
    item_of_slot: Tensor
    entered: Tensor
    calibration: Tensor

    def __init__(self, model: TreeModel, beam_size: BeamSize, m: int) -> None:
        super().__init__()
        tree = model.tree
        self.m, self.widths = m, widths(model, beam_size, m)
        self.first_level, self.height, self.arity = model.first_level, tree.height, tree.arity
        self.chained, self.reads_items = model.chained, model.scorer.reads_items
        self.first_leaf, self.full_to = tree.level(tree.height).start, tree.mask.full_to
        self.is_calibrated = isinstance(model.scorer, SumScorer)
        if isinstance(model.scorer, SumScorer):
            add_buffer(self, "calibration", model.scorer.calibration)
        self.scorer = export_scorer(model.scorer, tree)
        items = torch.arange(-1, tree.num_items, device=tree.device)  # PAD first
        add_buffer(self, "start", tree.mask.nodes(model.first_level - 1))
        add_buffer(self, "leaf_of_item", tree.leaf_of_item(items))
        add_buffer(self, "item_of_slot", tree.items())
        add_buffer(self, "entered", tree.mask.entered)

    def forward(self, x: Tensor, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The m best items and their probabilities [B, m], best first; PAD and 0 where there are fewer.

        A model with a context part also reads the values of contexts [B, columns]: see `data.contexts`.
        """
        leaves = self.leaf_of_item[x + 1] if self.reads_items else x
        context = self.scorer.context(x if values is None else torch.cat([x, values], dim=1), leaves)
        nodes = self.start.unsqueeze(0).expand(x.shape[0], -1)
        scores = torch.zeros(nodes.shape, device=nodes.device)
        for level, width in enumerate(self.widths, self.first_level):
            nodes = self._children(nodes, level)
            if not self.chained and level < self.height and nodes.shape[1] <= width:
                continue  # all nodes are kept, and their scores are not needed
            logits = self.scorer.scores(context, level, nodes).masked_fill(nodes == PAD, -torch.inf)
            scores = self._path_scores(logits, scores)
            if nodes.shape[1] > width:
                best = scores.topk(width, sorted=False).indices
                nodes, scores = nodes.gather(1, best), scores.gather(1, best)
        return self._best(nodes, scores)

    def _children(self, nodes: Tensor, level: int) -> Tensor:
        """The children of nodes, on `level`, with PAD for those that may not be entered [B, W b]."""
        offsets = torch.arange(1, self.arity + 1, device=nodes.device)
        children = (nodes.unsqueeze(-1) * self.arity + offsets).flatten(1)
        if level <= self.full_to:
            return children
        children = children.clamp(min=0)  # the children of PAD become the root, which is never entered
        return torch.where(self.entered[children], children, PAD)

    def _path_scores(self, logits: Tensor, parents: Tensor) -> Tensor:
        if not self.chained:
            return logits
        below = logsigmoid(logits).unflatten(1, (parents.shape[1], self.arity))
        return torch.add(below, parents.unsqueeze(-1)).flatten(1)

    def _best(self, leaves: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        items = torch.where(leaves == PAD, PAD, self.item_of_slot[(leaves - self.first_leaf).clamp(min=0)])
        best = scores.masked_fill(items == PAD, -torch.inf).topk(min(self.m, scores.shape[1]))
        top = items.gather(1, best.indices).masked_fill(best.values == -torch.inf, PAD)
        logits = calibrated(self.calibration, best.values) if self.is_calibrated else best.values
        log_p = best.values if self.chained else logsigmoid(logits)
        missing = self.m - top.shape[1]
        return pad(top, (0, missing), value=PAD), pad(log_p.exp(), (0, missing))


def export_program(
    model: TreeModel, *, beam_size: BeamSize = DEFAULT_BEAM_SIZE, m: int = 10
) -> torch.export.ExportedProgram:
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
    part, inputs = context_part(model.scorer), [x]
    if part is not None:
        inputs.append(torch.zeros(3, len(part.values), dtype=torch.int64, device=device))
    shapes = ({0: torch.export.Dim("users", min=1)},) * len(inputs)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about internals of torch
        return torch.export.export(search, tuple(inputs), dynamic_shapes=shapes)


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
        **({"context": part.values} if (part := context_part(model.scorer)) is not None else {}),
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

"""A folder that holds a model and, while it trains, all that an exact resume needs.

    settings.json                  what this is, and which files belong to it
    tree-<step>.safetensors        the items on the leaf slots
    weights-<step>.safetensors     the scorer's parameters
    optimizer-<step>.safetensors   Adam's moments, if it was saved in training
    made-<step>.safetensors        what search makes of the weights, if it was not

Files are written under names of their own and settings.json is replaced last, in one move: whoever is
killed at any moment leaves the old checkpoint or the new one, never half of each.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.data.files import flush, read_json
from beamtree.model import TreeModel
from beamtree.scorers import SCORERS
from beamtree.tree import Tree

SETTINGS = "settings.json"
FORMAT = 1
OURS = re.compile(r"(tree|weights|optimizer|made)-\d+b?\.safetensors")


@dataclass(frozen=True)
class Progress:
    """Where a training run stands."""

    step: int  # steps done
    best: float = 0.0  # the highest recall that was measured
    best_step: int = -1  # after how many steps; -1 if none was
    checks_since_best: int = 0

    def checked(self, recall: float) -> "Progress":
        """The same after recall was measured once more; a tie is no progress."""
        if self.best_step < 0 or recall > self.best:
            return replace(self, best=recall, best_step=self.step, checks_since_best=0)
        return replace(self, checks_since_best=self.checks_since_best + 1)


@dataclass(frozen=True)
class Run:
    """What must not change when a training run goes on."""

    method: str
    options: Mapping[str, int]
    settings: Mapping[str, int | float | str]


def save(model: TreeModel, folder: str | Path) -> None:
    """Write a model to a folder; a model that was there is replaced only once all of the new one is written."""
    with torch.no_grad():
        _write(Path(folder), model, 0, {"made": model.scorer.made(model.tree)}, {})


def save_checkpoint(
    folder: str | Path, model: TreeModel, optimizer: torch.optim.Optimizer, run: Run, progress: Progress
) -> None:
    """Write a model and its training to a folder."""
    state = optimizer.state_dict()["state"]
    moments = {f"{index}.{name}": value for index, part in state.items() for name, value in part.items()}
    _write(Path(folder), model, progress.step, {"optimizer": moments}, {**vars(progress), "run": vars(run)})


def holds_checkpoint(folder: str | Path) -> bool:
    return (Path(folder) / SETTINGS).exists()


def load_model(folder: str | Path, device: torch.device | str = "cpu") -> TreeModel:
    """The model of a folder that `save` or a training run wrote.

    On a CPU its weights are the file itself, mapped to memory: they are read where a search touches them.
    """
    folder = Path(folder)
    settings = _read_settings(folder)
    _check_files(folder, settings)
    items = _read_tensors(folder, settings, "tree")["items"]
    tree = Tree(items, settings["arity"], admit_empty=settings["admit_empty"])
    if tree.fingerprint() != settings["tree"]:
        raise ValueError(f"{folder} holds the tree of another model: copy the folder again, or train anew")
    if settings["scorer"] not in SCORERS:
        raise ValueError(f"{folder}: scorer {settings['scorer']!r} is unknown to this version")
    scorer = SCORERS[settings["scorer"]](**settings["scorer_settings"], seed=None)
    scorer.to(getattr(torch, settings["dtype"]))
    model = TreeModel(tree, scorer, chained=settings["chained"], first_level=settings["first_level"])
    _load_weights(folder, settings, model, assign=True)
    model.to(device).eval()
    if "made" in settings["files"] and model.tree.device.type == "cpu":
        model.scorer.keep_made(model.tree, _read_tensors(folder, settings, "made"))
    return model


def load_checkpoint(
    folder: str | Path, model: TreeModel, optimizer: torch.optim.Optimizer, run: Run, steps: int
) -> Progress:
    """Put a folder's weights and moments into a model and optimizer that were set up the same way for `steps`."""
    folder = Path(folder)
    settings = _read_settings(folder)
    _check_files(folder, settings)
    if settings["tree"] != model.tree.fingerprint():
        raise ValueError(f"{folder} was trained on another tree: resume with its own")
    if not settings["progress"]:
        raise ValueError(f"{folder} holds a finished model without its training: nothing to resume")
    for name, was, now in _differences(Run(**settings["progress"].pop("run")), run):
        raise ValueError(f"{folder} was trained with {name}={was}, not {now}: resume it as it began")
    progress = Progress(**settings["progress"])
    if progress.step > steps:
        raise ValueError(f"{folder} has {progress.step} steps behind it, more than the {steps} asked for")
    moments = _read_tensors(folder, settings, "optimizer")
    _load_weights(folder, settings, model)
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in moments.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return progress


def steps_done(folder: str | Path) -> int:
    """How many steps of training a checkpoint has behind it."""
    return int(_read_settings(Path(folder))["progress"].get("step", 0))


def load_weights(folder: str | Path, model: TreeModel) -> None:
    """Put a folder's weights into a model of the same tree."""
    folder = Path(folder)
    settings = _read_settings(folder)
    _check_files(folder, settings)
    if settings["tree"] != model.tree.fingerprint():
        raise ValueError(f"{folder} was trained on another tree: resume with its own")
    _load_weights(folder, settings, model)


def _differences(was: Run, now: Run) -> list[tuple[str, object, object]]:
    """What differs between two runs; their length may, so that a run can be made longer."""
    before = {"method": was.method, **was.options, **was.settings}
    after = {"method": now.method, **now.options, **now.settings}
    names = [*before, *(name for name in after if name not in before)]
    return [(n, before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)]


def _write(
    folder: Path,
    model: TreeModel,
    step: int,
    more: dict[str, dict[str, Tensor]],
    progress: dict[str, Any],
) -> None:
    from safetensors import SafetensorError  # here, so that training without a folder needs torch alone
    from safetensors.torch import save_file

    in_use = check_room(folder, model)
    parts = {"tree": {"items": model.tree.items()}, "weights": dict(model.scorer.state_dict()), **more}
    files = {part: f"{part}-{step}.safetensors" for part, tensors in parts.items() if tensors}
    if in_use & set(files.values()):  # never write over a file that the last good checkpoint needs
        files = {part: f"{part}-{step}b.safetensors" for part in files}
    for part, file in files.items():
        tensors = {key: value.detach().cpu().contiguous() for key, value in parts[part].items()}
        try:
            save_file(tensors, folder / file)
        except SafetensorError as error:  # which is how a full disk is told
            raise OSError(f"{file}: {error}") from error
        flush(folder / file)
    settings = {
        "format": FORMAT,
        "tree": model.tree.fingerprint(),
        "arity": model.tree.arity,
        "admit_empty": model.tree.admit_empty,
        "scorer": _scorer_name(model),
        "scorer_settings": model.scorer.settings(),
        "dtype": str(next(model.scorer.parameters()).dtype).removeprefix("torch."),
        "chained": model.chained,
        "first_level": model.first_level,
        "progress": progress,
        "files": {part: [file, (folder / file).stat().st_size] for part, file in files.items()},
    }
    draft = folder / (SETTINGS + ".new")
    draft.write_text(json.dumps(settings, indent=2) + "\n")
    flush(draft)
    os.replace(draft, folder / SETTINGS)
    flush(folder)
    for path in folder.glob("*.safetensors"):  # left by the checkpoint before, or by one cut short
        if OURS.fullmatch(path.name) and path.name not in files.values():
            path.unlink()


def check_room(folder: Path, model: TreeModel) -> set[str]:
    """Make the folder, or raise a ValueError if the model could not be saved there; the files now in use there."""
    _scorer_name(model)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: choose a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if not holds_checkpoint(folder):
        return set()
    return {file for file, _ in _read_settings(folder)["files"].values()}  # fails at settings of somebody else's


def _scorer_name(model: TreeModel) -> str:
    for name, kind in SCORERS.items():
        if type(model.scorer) is kind:
            return name
    raise ValueError(f"{type(model.scorer).__name__} is not in SCORERS: it could not be loaded again")


def _read_settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    if not path.exists():
        raise ValueError(f"{folder} holds no model: there is no {SETTINGS}")
    settings: dict[str, Any] = read_json(path, "copy the folder again, or train anew")
    if not isinstance(settings, dict) or settings.get("format") != FORMAT or "files" not in settings:
        raise ValueError(f"{path} is not one of format {FORMAT}, which this version of beamtree reads")
    return settings


def _read_tensors(folder: Path, settings: dict[str, Any], part: str) -> dict[str, Tensor]:
    """The tensors of a file, mapped to memory: what is written to them stays in memory."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file, _ = settings["files"][part]
    try:
        return load_file(folder / file)
    except SafetensorError as error:
        raise ValueError(f"{folder / file} is damaged: {error}") from error


def _check_files(folder: Path, settings: dict[str, Any]) -> None:
    """Every file that belongs to the checkpoint is there, whole."""
    for file, size in settings["files"].values():
        path = folder / file
        if not path.exists():
            raise ValueError(f"{path} is missing: copy the folder again, or train anew")
        if path.stat().st_size != size:
            raise ValueError(f"{path} is damaged: {path.stat().st_size:,} of {size:,} bytes")


def _load_weights(folder: Path, settings: dict[str, Any], model: TreeModel, *, assign: bool = False) -> None:
    """Copy the weights into the model's, or let them take their place."""
    weights = _read_tensors(folder, settings, "weights")
    try:
        model.scorer.load_state_dict(weights, assign=assign)
    except RuntimeError as error:
        raise ValueError(f"{folder}: the weights do not fit a {settings['scorer']} scorer") from error

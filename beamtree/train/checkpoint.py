"""Checkpoints: all that an exact resume needs, written while a model trains."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.distributed.checkpoint import write_spread
from beamtree.distributed.checkpoint_files import Moments, check_shards, read_moments, row_names
from beamtree.distributed.group import ranks
from beamtree.model import TreeModel
from beamtree.storage.models import check_room, load_weights, write_finished, write_model
from beamtree.storage.settings import check_files, holds_model, read_settings, read_tensors
from beamtree.train.validation import Progress

BEST = "best"  # where in its folder a run keeps the best model
COSTS = 10  # checkpoints by the clock take at most a tenth of the time


@dataclass(frozen=True)
class Checkpoints:
    """Where a run is saved, how often, and whether it goes on from what is there.

    Args:
        folder: the folder; the best model so far is in `folder`/best.
        every: steps between two checkpoints.
        seconds: and seconds, so that a run that is killed loses little; None: by steps alone.
        resume: whether to go on from a checkpoint that is found, to the weights of a run that was never broken.
    """

    folder: str | Path
    every: int = 1000
    seconds: float | None = 30.0
    resume: bool = False


class Keeper:
    """Saves a run as it goes, resumes it, and keeps its best model: in the folder, or in memory where there is none."""

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        model: TreeModel,
        optimizer: torch.optim.Optimizer,
        run: Mapping[str, object],
    ) -> None:
        self.checkpoints, self.model, self.optimizer, self.run = checkpoints, model, optimizer, dict(run)
        self.folder = None if checkpoints is None else Path(checkpoints.folder)
        self._best: dict[str, Tensor] = {}
        self._saved, self._took = time.monotonic(), 0.0

    def resume(self, steps: int) -> Progress:
        """Where the run goes on: with what the folder holds, or from the start."""
        if self.checkpoints is None or self.folder is None:
            return Progress(0)
        settings, progress = None, Progress(0)
        with ranks().agreed() as first:
            if first:
                check_room(self.folder)
            if holds_model(self.folder):
                if not self.checkpoints.resume:
                    raise ValueError(f"{self.folder} holds a checkpoint: resume it, or choose another folder")
                settings, progress = check_checkpoint(self.folder, self.model, self.run, steps)
        ranks().same(step=progress.step)
        if settings is not None:
            load_checkpoint(self.folder, settings, self.model, self.optimizer)
        return progress

    def save(self, progress: Progress, *, last: bool) -> None:
        """Write a checkpoint where one is due: by steps, by seconds, and at the end."""
        if self.checkpoints is None or self.folder is None:
            return
        now = time.monotonic()
        seconds = self.checkpoints.seconds
        late = seconds is not None and now - self._saved >= max(seconds, COSTS * self._took)
        late = late if last or ranks().size == 1 else ranks().first_says(late)  # by one clock
        if last or late or progress.step % self.checkpoints.every == 0:
            save_checkpoint(self.folder, self.model, self.optimizer, self.run, progress)
            self._saved = time.monotonic()
            self._took = self._saved - now

    def keep_best(self) -> None:
        """Take the model as it is for the best so far."""
        if self.folder is not None:
            keep_model(self.folder / BEST, self.model)
        else:
            self._best = {name: value.detach().clone() for name, value in self.model.scorer.changing().items()}

    def restore_best(self, progress: Progress) -> None:
        """Leave the model with the best weights, if any were measured."""
        if self._best:
            self.model.scorer.load_state_dict(self._best, strict=False)
        elif progress.best_step >= 0 and self.folder is not None:
            _load_own_weights(self.folder / BEST, self.model)


def keep_model(folder: Path, model: TreeModel) -> None:
    """Write a model that is not in training to a folder; all ranks call it."""
    _save(folder, model, {}, set(), 0, {})


def save_checkpoint(
    folder: str | Path,
    model: TreeModel,
    optimizer: torch.optim.Optimizer,
    run: Mapping[str, object],
    progress: Progress,
) -> None:
    """Write a model and its training to a folder."""
    state = optimizer.state_dict()["state"]
    moments = {f"{index}.{name}": value for index, part in state.items() for name, value in part.items()}
    tables = {id(table.weight) for table in row_names(model).values()}
    rows = {index for index, each in enumerate(_parameters(optimizer)) if id(each) in tables}
    of_rows = {name for name, value in moments.items() if int(name.split(".")[0]) in rows and value.dim()}
    _save(Path(folder), model, moments, of_rows, progress.step, {**vars(progress), "run": dict(run)})


def _save(
    folder: Path, model: TreeModel, moments: Moments, of_rows: set[str], step: int, progress: dict[str, object]
) -> None:
    """Write a model, by all ranks where its rows lie on them; one that is not in training is ready for search."""
    if model.scorer.is_spread:
        write_spread(folder, model, step, moments, of_rows, progress)
        return
    if not progress:
        write_finished(folder, model, ids=None)  # ids are saved once, with the finished model
        return
    with ranks().agreed() as first:
        if first:
            write_model(folder, model, step, {"optimizer": dict(moments)}, progress)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def check_checkpoint(
    folder: Path, model: TreeModel, run: Mapping[str, object], steps: int
) -> tuple[dict[str, Any], Progress]:
    """What a folder says of itself, and how far it is; a ValueError where a run of `steps` cannot go on from it."""
    settings = read_settings(folder)
    _check_own(folder, settings, model)
    if not settings["progress"]:
        raise ValueError(f"{folder} holds a finished model without its training: nothing to resume")
    was = settings["progress"].pop("run")
    for name in [*was, *(name for name in run if name not in was)]:
        if was.get(name) != run.get(name):
            found = f"{name}={was.get(name)}, not {run.get(name)}"
            raise ValueError(f"{folder} was trained with {found}: resume it as it began")
    progress = Progress(**settings["progress"])
    if progress.step > steps:
        raise ValueError(f"{folder} has {progress.step} steps behind it, more than the {steps} asked for")
    return settings, progress


def load_checkpoint(folder: Path, settings: dict[str, Any], model: TreeModel, optimizer: torch.optim.Optimizer) -> None:
    """Put a folder's weights and moments into a model and optimizer that were set up the same way."""
    moments = _read_moments(folder, settings, model, optimizer)
    load_weights(folder, settings, model)
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in moments.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def steps_done(folder: str | Path) -> int:
    """How many steps of training a checkpoint has behind it."""
    return int(read_settings(Path(folder))["progress"].get("step", 0))


def _load_own_weights(folder: Path, model: TreeModel) -> None:
    """Put a folder's weights into a model of the same tree."""
    settings = read_settings(folder)
    _check_own(folder, settings, model)
    load_weights(folder, settings, model)


def _check_own(folder: Path, settings: dict[str, Any], model: TreeModel) -> None:
    """Raise a ValueError where a folder is damaged, or of another tree."""
    check_files(folder, settings)
    if "shards" in settings:
        check_shards(folder, settings)
    if settings["tree"] != model.tree.fingerprint():
        raise ValueError(f"{folder} was trained on another tree: resume with its own")


def _read_moments(
    folder: Path, settings: dict[str, Any], model: TreeModel, optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """Adam's moments: of rows on several ranks, this rank's."""
    parameters = _parameters(optimizer)
    if "shards" in settings:
        return read_moments(folder, settings, model, parameters.__getitem__)
    moments = read_tensors(folder, settings, "optimizer")
    tables = {id(table.weight): table for table in row_names(model).values()}
    for name, value in moments.items():
        table = tables.get(id(parameters[int(name.split(".")[0])]))
        if table is not None and value.dim():
            moments[name] = table.shard.part(value)
    return moments

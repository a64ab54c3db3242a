"""Checkpoints: all that an exact resume needs, written while a model trains."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

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
        check_room(self.folder)
        if not holds_model(self.folder):
            return Progress(0)
        if not self.checkpoints.resume:
            raise ValueError(f"{self.folder} holds a checkpoint: resume it, or choose another folder")
        return load_checkpoint(self.folder, self.model, self.optimizer, self.run, steps)

    def save(self, progress: Progress, *, last: bool) -> None:
        """Write a checkpoint where one is due: by steps, by seconds, and at the end."""
        if self.checkpoints is None or self.folder is None:
            return
        now = time.monotonic()
        seconds = self.checkpoints.seconds
        late = seconds is not None and now - self._saved >= max(seconds, COSTS * self._took)
        if last or late or progress.step % self.checkpoints.every == 0:
            save_checkpoint(self.folder, self.model, self.optimizer, self.run, progress)
            self._saved = time.monotonic()
            self._took = self._saved - now

    def keep_best(self) -> None:
        """Take the model as it is for the best so far."""
        if self.folder is not None:
            write_finished(self.folder / BEST, self.model, ids=None)  # ids are saved once, with the finished model
        else:
            self._best = {name: value.detach().clone() for name, value in self.model.scorer.changing().items()}

    def restore_best(self, progress: Progress) -> None:
        """Leave the model with the best weights, if any were measured."""
        if self._best:
            self.model.scorer.load_state_dict(self._best, strict=False)
        elif progress.best_step >= 0 and self.folder is not None:
            _load_own_weights(self.folder / BEST, self.model)


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
    write_model(Path(folder), model, progress.step, {"optimizer": moments}, {**vars(progress), "run": dict(run)})


def load_checkpoint(
    folder: str | Path,
    model: TreeModel,
    optimizer: torch.optim.Optimizer,
    run: Mapping[str, object],
    steps: int,
) -> Progress:
    """Put a folder's weights and moments into a model and optimizer that were set up the same way for `steps`."""
    folder = Path(folder)
    settings = read_settings(folder)
    check_files(folder, settings)
    if settings["tree"] != model.tree.fingerprint():
        raise ValueError(f"{folder} was trained on another tree: resume with its own")
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
    moments = read_tensors(folder, settings, "optimizer")
    load_weights(folder, settings, model)
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in moments.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return progress


def steps_done(folder: str | Path) -> int:
    """How many steps of training a checkpoint has behind it."""
    return int(read_settings(Path(folder))["progress"].get("step", 0))


def _load_own_weights(folder: Path, model: TreeModel) -> None:
    """Put a folder's weights into a model of the same tree."""
    settings = read_settings(folder)
    check_files(folder, settings)
    if settings["tree"] != model.tree.fingerprint():
        raise ValueError(f"{folder} was trained on another tree: resume with its own")
    load_weights(folder, settings, model)

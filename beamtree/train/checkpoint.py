"""Checkpoints: everything that an exact resume needs, written while a model trains."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.model import TreeModel
from beamtree.storage.models import files_in_use, load_weights, write_finished, write_model
from beamtree.storage.settings import check_files, holds_model, read_settings
from beamtree.storage.sharded_files import read_moments
from beamtree.train.validation import Progress

BEST = "best"  # folder of the best model so far, inside that of a run
TIME_SHARE = 10  # checkpoints by the clock take at most a tenth of the time


@dataclass(frozen=True)
class Checkpoints:
    """Where a run is saved, how often, and whether it resumes from what is there.

    Args:
        folder: the folder; the best model so far is in `folder`/best.
        every: steps between two checkpoints.
        seconds: and seconds, so that a run that is killed loses little; None: by steps only.
        resume: whether to resume from a checkpoint; the weights are those of a run that was never interrupted.
    """

    folder: str | Path
    every: int = 1000
    seconds: float | None = 30.0
    resume: bool = False


class Checkpointer:
    """Saves and resumes a run, and keeps its best model: in the folder, or in memory where there is none."""

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
        self._saved, self._duration = time.monotonic(), 0.0

    def resume(self, steps: int) -> Progress:
        """Load the checkpoint of the folder, if there is one, and return where the run continues."""
        if self.folder is None:
            return Progress(0)
        files_in_use(self.folder)
        if not holds_model(self.folder):
            return Progress(0)
        settings, progress = self.check(self.folder, steps)
        moments = read_moments(self.folder, settings)
        load_weights(self.folder, settings, self.model)
        load_moments(self.optimizer, moments)
        return progress

    def check(self, folder: Path, steps: int) -> tuple[dict[str, Any], Progress]:
        """The settings and progress of a checkpoint; a ValueError where a run of `steps` cannot resume from it."""
        if self.checkpoints is None or not self.checkpoints.resume:
            raise ValueError(f"{folder} holds a checkpoint: resume it, or choose another folder")
        settings = read_settings(folder)
        check_same_tree(folder, settings, self.model)
        if not settings["progress"]:
            raise ValueError(f"{folder} holds a finished model without its training: nothing to resume")
        before = settings["progress"].pop("run")
        for name in [*before, *(name for name in self.run if name not in before)]:
            if before.get(name) != self.run.get(name):
                difference = f"{name}={before.get(name)}, not {self.run.get(name)}"
                raise ValueError(f"{folder} was trained with {difference}: resume it as it began")
        progress = Progress(**settings["progress"])
        if progress.step > steps:
            raise ValueError(f"{folder} has {progress.step} steps behind it, more than the {steps} asked for")
        return settings, progress

    def save(self, progress: Progress, *, last: bool) -> None:
        """Write a checkpoint where one is due: by steps, by seconds, and at the end."""
        if self.checkpoints is None or self.folder is None:
            return
        now = time.monotonic()
        if last or self.is_late(now) or progress.step % self.checkpoints.every == 0:
            self.write(self.folder, progress.step, {**vars(progress), "run": self.run})
            self._saved = time.monotonic()
            self._duration = self._saved - now

    def is_late(self, now: float) -> bool:
        """Whether a checkpoint is due by the clock."""
        seconds = None if self.checkpoints is None else self.checkpoints.seconds
        return seconds is not None and now - self._saved >= max(seconds, TIME_SHARE * self._duration)

    def write(self, folder: Path, step: int, progress: dict[str, Any]) -> None:
        """Write a checkpoint."""
        write_model(folder, self.model, step, {"optimizer": moments_of(self.optimizer)}, progress)

    def keep_best(self) -> None:
        """Keep the current weights as the best so far."""
        if self.folder is not None:
            self.write_best(self.folder / BEST)
        else:
            self._best = {name: value.detach().clone() for name, value in self.model.scorer.trainable_state().items()}

    def write_best(self, folder: Path) -> None:
        """Write the best model."""
        write_finished(folder, self.model, ids=None)  # ids are saved once, with the finished model

    def restore_best(self, progress: Progress) -> None:
        """Leave the model with the best weights, if any were measured."""
        if self._best:
            self.model.scorer.load_state_dict(self._best, strict=False)
        elif progress.best_step >= 0 and self.folder is not None:
            self.load_best(self.folder / BEST)

    def load_best(self, folder: Path) -> None:
        """Load the best weights."""
        settings = read_settings(folder)
        check_same_tree(folder, settings, self.model)
        load_weights(folder, settings, self.model)


def moments_of(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The tensors of an optimizer by name, <number of a parameter>.<name>."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": value for index, part in state.items() for name, value in part.items()}


def load_moments(optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor]) -> None:
    """Load moments as `moments_of` names them."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in moments.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def steps_done(folder: str | Path) -> int:
    """The steps of training behind a checkpoint."""
    return int(read_settings(Path(folder))["progress"].get("step", 0))


def check_same_tree(folder: Path, settings: dict[str, Any], model: TreeModel) -> None:
    """Raise a ValueError where a folder is damaged, or of another tree."""
    check_files(folder, settings)
    if settings["tree"] != model.tree.fingerprint():
        raise ValueError(f"{folder} was trained on another tree: resume with its own")

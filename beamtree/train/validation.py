"""Recall on validation users during training, and the progress of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from beamtree.beam import DEFAULT_BEAM_SIZE, default_beam_size
from beamtree.data import Data
from beamtree.evaluate import Evaluation, evaluate
from beamtree.evaluate.metrics import default_m
from beamtree.model import TreeModel

OnCheck = Callable[[int, float], None]  # (steps done, recall on the validation users)


@dataclass(frozen=True)
class Progress:
    """Where a training run stands."""

    step: int  # steps done
    start: float | None = None  # recall before the first step, if it was measured
    best: float = 0.0  # the highest recall that was measured
    best_step: int = -1  # after how many steps; -1 if none was
    checks_since_best: int = 0

    def checked(self, recall: float) -> "Progress":
        """The progress after another measurement of recall; a tie is no improvement."""
        start = recall if self.step == 0 else self.start
        if self.best_step < 0 or recall > self.best:
            return replace(self, start=start, best=recall, best_step=self.step, checks_since_best=0)
        return replace(self, start=start, checks_since_best=self.checks_since_best + 1)

    def summary(self, num_items: int) -> str:
        """The recall, such as "recall@200 31.2 → 34.8 %"; empty where it was not measured."""
        if self.start is None or self.best_step < 0:
            return ""
        what = f"recall@{default_m(num_items)} {self.start * 100:.1f}"
        return f"{what} %" if self.kept_the_start else f"{what} → {self.best * 100:.1f} %"

    def as_report(self, num_items: int, num_users: int, parts: str) -> str:
        """A sentence about recall; `parts` is what training began with, empty for a network alone."""
        if self.start is None or self.best_step < 0:
            return "There are no validation users, so nothing was measured, and the last step is the model."
        line = f"Recall@{default_m(num_items)} on {num_users:,} validation users: {self.start * 100:.1f} %"
        by = f" by {parts}" if parts else " at the start"
        if not self.kept_the_start:
            return f"{line}{by}, {self.best * 100:.1f} % after {self.best_step:,} steps of training."
        if self.step == 0:
            return f"{line}{by}, without training of a network."
        if parts:
            return f"{line}{by}. Training found nothing better, as on most logs: the model is {parts}."
        return f"{line}{by}. Training did not improve on it: train longer, with another `lr`, or with more users."

    def as_dict(self) -> dict[str, Any]:
        """What run.json records of it."""
        best = self.best if self.best_step >= 0 else None
        result = {"steps_done": self.step, "recall_at_start": self.start}
        return {**result, "best_step": self.best_step, "best_recall": best}

    @classmethod
    def of_run(cls, run: Mapping[str, Any]) -> "Progress | None":
        """The result of a run's training; None where it is not recorded."""
        training = run.get("training")
        if not isinstance(training, dict):
            return None
        best, step = training["best_recall"] or 0.0, int(training["best_step"])
        return cls(int(training["steps_done"]), training["recall_at_start"], best, step)

    @property
    def kept_the_start(self) -> bool:
        """Whether training found nothing better than what it began with."""
        return self.best_step == 0


@dataclass(frozen=True)
class Validation:
    """Users on whom recall is measured during training, how often, and when to stop.

    Args:
        data: the users, such as `data.val`.
        beam_size: k of the search.
        m: how many items are retrieved; 200, or a tenth of a small catalogue, unless given.
        every: steps between two checks; a twentieth of all unless given.
        patience: checks in a row without a rise after which training stops.
        on_check: called with the steps done and the recall.
    """

    data: Data
    beam_size: int = DEFAULT_BEAM_SIZE
    m: int | None = None
    every: int | None = None
    patience: int = 8
    on_check: OnCheck | None = None

    def recall(self, model: TreeModel, evaluate: Callable[..., Evaluation] = evaluate) -> float:
        """The recall of a model on these users, measured by `evaluate`."""
        m = self.m or default_m(model.tree.num_items)
        was_training = model.training
        model.eval()
        result = evaluate(model, self.data, beam_size=default_beam_size(m, self.beam_size), m=(m,), metrics=("recall",))
        model.train(was_training)
        return result["recall", m]

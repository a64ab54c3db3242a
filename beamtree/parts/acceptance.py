"""The one rule by which a part is added to a sum: validation users find more with it, by more than chance."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from beamtree.closed_form.part_weights import STEPS, USERS, Candidates, choose_weights, weigh_losses
from beamtree.data import Data
from beamtree.parts.processes import ALONE, Processes
from beamtree.progress import log
from beamtree.scorers import Scorer, SumScorer
from beamtree.tree import Tree

LOSS_WEIGHT = 2.0  # how much a loss of recall at one cut counts, beside gains at others
SUM = "sum"  # the name of a sum among candidates, where its parts keep their weights


class Gain(NamedTuple):
    """What validation users find more, relative to the mean recall before."""

    mean: float
    worth: float  # the same, where a loss at a cut counts `LOSS_WEIGHT` times
    error: float  # the standard error of the mean

    @classmethod
    def of(cls, before: Tensor, after: Tensor) -> "Gain":
        """The gain of users from their recall before and after, at each cut [U, cuts] each."""
        rise = (after - before) / before.mean(0).clamp(min=1e-9)
        error = float(rise.mean(1).std() / len(rise) ** 0.5) if len(rise) > 1 else 1.0
        return cls(float(rise.mean()), float(weigh_losses(rise.mean(0), LOSS_WEIGHT).mean()), error)

    def is_certain(self, errors: float = 1.0, least: float = 0.0) -> bool:
        """Whether it is worth more than so many standard errors, and than the least gain that pays."""
        return self.worth > max(errors * self.error, least)


class Trial(NamedTuple):
    """A sum with one more part, measured on validation users."""

    weights: dict[str, float]  # of all its parts
    gain: Gain
    alone: float  # the mean recall of the new part by itself
    calibration: Tensor
    accepted: bool


class Acceptance:
    """Measures on validation users what a sum finds with one more part, and adds it where the rule says so.

    Args:
        tree: T.
        parts: the sum, with its weights.
        users: validation users.
        first_level: of the search.
        device: where candidates are scored.
        errors: standard errors that a gain must be above 0.
        least: the smallest relative gain that pays.
        processes: those that fit together.
    """

    def __init__(
        self,
        tree: Tree,
        parts: SumScorer,
        users: Data,
        first_level: int,
        device: str,
        *,
        errors: float = 1.0,
        least: float = 0.0,
        processes: Processes = ALONE,
    ) -> None:
        self.parts, self.users, self._errors, self._least = parts, users, errors, least
        self._processes = processes
        self._tree, self._first_level, self._device = tree, first_level, device
        active = parts.drop_zero_parts()
        self._active = {name: active.part(name) for name in active.names}
        self._start = {name: active.weight_of(name) for name in active.names}

    @property
    def num_users(self) -> int:
        """How many users decide."""
        return min(USERS, len(self.users))

    def measure(self, tried: Mapping[str, Scorer]) -> Trial:
        """The sum with these scorers, with the weights of the highest recall."""
        candidates = self._candidates({**self._active, **tried})
        start = self._start | dict.fromkeys(tried, 0.0)
        weights = self._processes.broadcast(choose_weights(candidates, start, loss=LOSS_WEIGHT))
        return self._trial(candidates, start, weights, tried)

    def measure_beside(self, name: str, scorer: Scorer) -> Trial:
        """The sum, whose parts keep their weights and whose name is then `SUM`, beside one scorer."""
        candidates = self._candidates({SUM: self.parts, name: scorer})
        unit = float(candidates.units[1] / candidates.units[0])
        start = {SUM: 1.0, name: 0.0}
        before = candidates.user_recalls(start)

        def gain(weights: dict[str, float]) -> float:
            return Gain.of(before, candidates.user_recalls(weights)).mean

        best = max((start | {name: step * unit} for step in STEPS if step), key=gain)
        return self._trial(candidates, start, best, {name: scorer})

    def _candidates(self, parts: Mapping[str, Scorer]) -> Candidates:
        return self._processes.candidates(self._tree, parts, self.users, self._first_level, self._device)

    def _trial(
        self, candidates: Candidates, start: dict[str, float], weights: dict[str, float], tried: Mapping[str, Scorer]
    ) -> Trial:
        gain = Gain.of(candidates.user_recalls(start), candidates.user_recalls(weights))
        alone = float(candidates.user_recalls({name: float(name in tried) for name in candidates.names}).mean())
        accepted = any(weights[name] for name in tried) and gain.is_certain(self._errors, self._least)
        return self._processes.broadcast(Trial(weights, gain, alone, candidates.calibration(weights).cpu(), accepted))

    def result(self, name: str, part: Scorer | None, trial: Trial | None) -> SumScorer:
        """The sum with a part where its trial was accepted, and a record of what it brought."""
        parts = self.parts
        if part is not None and trial is not None and trial.accepted:
            parts = parts.with_part(name, part.cpu(), 0.0).set_weights(**trial.weights)
            parts.calibration = trial.calibration
        if trial is not None:
            log.debug("%s part: weights %s, %s, alone %.4f", name, trial.weights, trial.gain, trial.alone)
        gain = trial.gain.mean if trial is not None and trial.accepted else 0.0
        parts.hyperparameters[name] = {"gain": gain, "users": self.num_users}
        return parts

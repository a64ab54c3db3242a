"""The learning-rate schedule and the warm-up."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from beamtree.methods import Method


def constant(share: float) -> float:
    """The paper's schedule: the same learning rate at every step."""
    return 1.0


def cosine(share: float) -> float:
    """Linear warm-up over 1 % of the steps, then a cosine down to 2 %."""
    return min(1.0, (share + 1e-4) * 100) * (0.02 + 0.98 * (1 + math.cos(math.pi * share)) / 2)


@dataclass(frozen=True)
class Schedule:
    """The learning rate at every step, and another method for the first steps.

    Args:
        lr: the learning rate of Adam.
        shape: maps the fraction of steps done, 0 to 1, to a fraction of `lr`.
        warm_up: the method of the first steps: the beam of an untrained scorer is random.
        warm_share: the fraction of steps with that method.
    """

    lr: float = 3e-3
    shape: Callable[[float], float] = cosine
    warm_up: Method | None = None
    warm_share: float = 0.3

    def lr_at(self, t: int, steps: int) -> float:
        """The learning rate of step t."""
        return self.lr * self.shape(t / steps)

    def warm_steps(self, steps: int) -> int:
        """The number of warm-up steps."""
        return 0 if self.warm_up is None else math.ceil(self.warm_share * steps)

    def method_at(self, method: Method, t: int, steps: int) -> Method:
        """The method of step t."""
        return self.warm_up if self.warm_up is not None and t < self.warm_steps(steps) else method

    def describe(self, steps: int) -> dict[str, object]:
        """What a resumed run must share; the number of steps too, unless every step is alike."""
        warm_up = "none" if self.warm_up is None else f"{self.warm_up.describe()} {self.warm_share}"
        alike = self.shape is constant and self.warm_up is None
        name = getattr(self.shape, "__name__", repr(self.shape))
        return {"lr": self.lr, "schedule": name, "steps": "any" if alike else steps, "warm_up": warm_up}

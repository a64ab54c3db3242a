"""How fast training goes, and what its first steps train."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from beamtree.methods import Method


def constant(share: float) -> float:
    """The paper's learning rate: the same at every step."""
    return 1.0


def cosine(share: float) -> float:
    """A hundredth of the steps to warm up, then down to a fiftieth along a cosine."""
    return min(1.0, (share + 1e-4) * 100) * (0.02 + 0.98 * (1 + math.cos(math.pi * share)) / 2)


@dataclass(frozen=True)
class Schedule:
    """The learning rate along the way, and a method for the first steps.

    Args:
        lr: Adam's learning rate.
        shape: from a share of the steps, 0 to 1, to a share of `lr`.
        warm_up: the method of the first steps, if another: a beam means nothing before the scorer does.
        warm_share: the share of the steps that it gets.
    """

    lr: float = 3e-3
    shape: Callable[[float], float] = cosine
    warm_up: Method | None = None
    warm_share: float = 0.3

    def lr_at(self, t: int, steps: int) -> float:
        """The learning rate of step t."""
        return self.lr * self.shape(t / steps)

    def warm_steps(self, steps: int) -> int:
        """How many of the steps the warm-up gets."""
        return 0 if self.warm_up is None else math.ceil(self.warm_share * steps)

    def method_at(self, method: Method, t: int, steps: int) -> Method:
        """What step t trains."""
        return self.warm_up if self.warm_up is not None and t < self.warm_steps(steps) else method

    def describe(self, steps: int) -> dict[str, object]:
        """What a run that goes on must have in common; a longer run takes other steps unless all are alike."""
        warm_up = "none" if self.warm_up is None else f"{self.warm_up.describe()} {self.warm_share}"
        alike = self.shape is constant and self.warm_up is None
        name = getattr(self.shape, "__name__", repr(self.shape))
        return {"lr": self.lr, "schedule": name, "steps": "any" if alike else steps, "warm_up": warm_up}

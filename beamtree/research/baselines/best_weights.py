"""Training steps of a network that keep the best weights, judged by validation users."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from beamtree.data import BeforeAfter

CHECKS = 10  # validations over all steps
USERS = 500  # validation users, at most

Net = TypeVar("Net", bound=nn.Module)


class BestWeights(Generic[Net]):
    """The weights with the highest `quality` on validation users so far."""

    def __init__(self, model: Net, val: BeforeAfter | None, quality: Callable[[Net, BeforeAfter], float]) -> None:
        self._model, self._val, self._quality = model, val, quality
        self._best, self._weights = -torch.inf, dict[str, Tensor]()

    def check(self, step: int, steps: int) -> None:
        """Call after every step: if a validation is due, copy the weights if they are the best so far."""
        if self._val is None or not len(self._val) or step % max(1, steps // CHECKS):
            return
        quality = self._quality(self._model.eval(), self._val)
        if quality > self._best:
            self._best = quality
            self._weights = {name: value.clone() for name, value in self._model.state_dict().items()}

    def restore(self) -> Net:
        """The model with the best weights, or with the last if there was no validation."""
        if self._weights:
            self._model.load_state_dict(self._weights)
        return self._model.eval()


def train_steps(
    losses: Iterable[Tensor],
    steps: int,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    best: BestWeights[Net],
    on_step: Callable[[int, int, Tensor], None] | None,
) -> Net:
    """One optimizer step per loss, each computed after the step before; returns the model with the best weights."""
    for t, loss in enumerate(losses, 1):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        best.check(t, steps)
        if on_step is not None:
            on_step(t, steps, loss.detach())
    return best.restore()

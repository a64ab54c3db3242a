"""Steps of a network, and its best weights on the way, by what validation users find."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from beamtree.data import BeforeAfter

CHECKS = 10  # of the validation users, over all steps
USERS = 500  # of them that are asked, at most

Net = TypeVar("Net", bound=nn.Module)


class Kept(Generic[Net]):
    """The weights that found most for validation users so far; `quality` says how much, higher is better."""

    def __init__(self, model: Net, val: BeforeAfter | None, quality: Callable[[Net, BeforeAfter], float]) -> None:
        self._model, self._val, self._quality = model, val, quality
        self._best, self._weights = -torch.inf, dict[str, Tensor]()

    def look(self, step: int, steps: int) -> None:
        """After a step: where a check is due, keep the weights of now if they are the best."""
        if self._val is None or not len(self._val) or step % max(1, steps // CHECKS):
            return
        found = self._quality(self._model.eval(), self._val)
        if found > self._best:
            self._best = found
            self._weights = {name: value.clone() for name, value in self._model.state_dict().items()}

    def restored(self) -> Net:
        """The model with the best weights, or the last where nobody judged."""
        if self._weights:
            self._model.load_state_dict(self._weights)
        return self._model.eval()


def take_steps(
    losses: Iterable[Tensor],
    steps: int,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    kept: Kept[Net],
    on_step: Callable[[int, int, Tensor], None] | None,
) -> Net:
    """Move along the gradient of one loss after another, each made when the step before is taken; gives the best."""
    for t, loss in enumerate(losses, 1):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        kept.look(t, steps)
        if on_step is not None:
            on_step(t, steps, loss.detach())
    return kept.restored()

"""The best weights of a network on its way, by what validation users find."""

from collections.abc import Callable
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

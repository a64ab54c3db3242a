"""Training of the networks among the baselines."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

from beamtree.data import BeforeAfter
from beamtree.train.loop import OnStep

CHECKS = 10  # validations over all steps
USERS = 500  # validation users, at most

Net = TypeVar("Net", bound=nn.Module)


def train_network(
    model: Net,
    losses: Iterable[Tensor],
    steps: int,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    val: BeforeAfter | None,
    quality: Callable[[Net, BeforeAfter], float],
    on_step: OnStep | None,
) -> Net:
    """One optimizer step per loss. Returns the model with the best weights, or the last without validation users.

    Args:
        model: the network, trained in place.
        losses: each is computed after the step before.
        steps: the number of losses.
        optimizer: of the parameters of the model.
        schedule: of the learning rate.
        val: validation users.
        quality: (model, validation users) -> a number; the weights with the highest are the best.
        on_step: called after every step.
    """
    best, best_weights = -torch.inf, dict[str, Tensor]()
    for step, loss in enumerate(losses, 1):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if val is not None and len(val) and step % max(1, steps // CHECKS) == 0:
            value = quality(model.eval(), val)
            if value > best:
                best, best_weights = value, {name: weight.clone() for name, weight in model.state_dict().items()}
        if on_step is not None:
            on_step(step, steps, loss.detach())
    if best_weights:
        model.load_state_dict(best_weights)
    return model.eval()

"""Algorithm 1: learning optimal tree models under beam search. Every method trains in this loop."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from beamtree.data import Instances, epoch_order, mix
from beamtree.methods import Method
from beamtree.model import TreeModel
from beamtree.train.checkpoint import Run, check_room, holds_checkpoint, load_checkpoint, save_checkpoint

OnStep = Callable[[int, int, Tensor], None]  # (steps done, steps in all, loss of the last one)


def fit(
    model: TreeModel,
    data: Instances,
    method: Method,
    *,
    epochs: int,
    batch_size: int = 500,
    lr: float = 1e-2,
    seed: int = 0,
    folder: str | Path | None = None,
    save_every: int = 1000,
    resume: bool = False,
    on_step: OnStep | None = None,
) -> None:
    """Train the model in place with Adam on the device that holds it.

    Everything random is a function of `seed` and the step, so that the same call gives the same weights.
    With a `folder`, a checkpoint is written every `save_every` steps and at the end; with `resume`, the
    run goes on from the one it finds and ends with the weights of a run that was never broken.
    """
    _check(model, data, epochs=epochs, batch_size=batch_size, lr=lr, save_every=save_every)
    per_epoch = -(-len(data) // batch_size)
    steps = epochs * per_epoch
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    start = 0
    if folder is not None:
        check_room(Path(folder), model)
        device = model.tree.device.type  # its generator draws numbers of its own
        settings: dict[str, int | float | str] = {
            "batch_size": batch_size,
            "lr": lr,
            "seed": seed,
            "data": data.fingerprint(),
            "device": device,
        }
        run = Run(method.name, method.options, settings)
        if holds_checkpoint(folder):
            if not resume:
                raise ValueError(f"{folder} holds a checkpoint: resume it, or choose another folder")
            start = load_checkpoint(folder, model, optimizer, run, steps)
    model.chained = method.chained  # p_g is what the method trains it to be
    data = data.to(model.tree.device)

    generator = torch.Generator(model.tree.device)
    order = torch.empty(0)
    model.train()
    for t in range(start, steps):
        epoch, place = divmod(t, per_epoch)
        if place == 0 or not len(order):
            order = epoch_order(len(data), seed, epoch).to(model.tree.device)
        x, y = data.batch(order[place * batch_size :][:batch_size])  # draw a minibatch
        # B̃_h, ẑ and the loss under θ_t, and a step along its gradient.
        loss = method.loss(model, x, y, generator.manual_seed(mix(seed, t)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if folder is not None and ((t + 1) % save_every == 0 or t + 1 == steps):
            save_checkpoint(folder, model, optimizer, run, t + 1)
        if on_step is not None:
            on_step(t + 1, steps, loss.detach())
    model.eval()


def _check(model: TreeModel, data: Instances, **positive: float) -> None:
    for name, value in positive.items():
        if not value > 0:
            raise ValueError(f"{name}={value}: must be above 0")
    model.tree.check_items(data.y)
    model.scorer.check(data.x)

"""Algorithm 1: learning optimal tree models under beam search. Every method trains in this loop."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from beamtree.data import Data, epoch_order, mix
from beamtree.evaluate import evaluate
from beamtree.methods import Method
from beamtree.model import TreeModel
from beamtree.train.checkpoint import (
    Progress,
    Run,
    check_room,
    holds_checkpoint,
    load_checkpoint,
    load_weights,
    save,
    save_checkpoint,
)
from beamtree.train.optimizer import Optimizer, adam, set_lr
from beamtree.train.step import Stepper

OnStep = Callable[[int, int, Tensor], None]  # (steps done, steps in all, loss of the last one)
OnCheck = Callable[[int, float], None]  # (steps done, recall on the validation users)
BEST = "best"  # where in its folder a run keeps the best model


def constant(share: float) -> float:
    """The paper's learning rate: the same at every step."""
    return 1.0


def cosine(share: float) -> float:
    """A hundredth of the steps to warm up, then down to a fiftieth along a cosine."""
    return min(1.0, (share + 1e-4) * 100) * (0.02 + 0.98 * (1 + math.cos(math.pi * share)) / 2)


def fit(
    model: TreeModel,
    data: Data,
    method: Method,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 200,
    lr: float = 3e-3,
    schedule: Callable[[float], float] = cosine,
    optimizer: Optimizer = adam,
    warm_up: Method | None = None,
    warm_share: float = 0.3,
    val: Data | None = None,
    check_every: int | None = None,
    patience: int = 8,
    seed: int = 0,
    folder: str | Path | None = None,
    save_every: int = 1000,
    resume: bool = False,
    on_step: OnStep | None = None,
    on_check: OnCheck | None = None,
) -> None:
    """Train the model in place for some epochs or steps, with Adam over all rows or, `lazy`, over those touched.

    Everything random is a function of `seed` and the step, so that the same call gives the same weights.
    With a `folder`, a checkpoint is written every `save_every` steps and at the end; with `resume`, the
    run goes on from the one it finds and ends with the weights of a run that was never broken.

    `schedule` gives the share of `lr` at each share of the steps. `warm_up` is the method of the first `warm_share` of
    them: a beam means nothing before the scorer does. With `val`, recall on its users is taken at the start and every
    `check_every` steps (by default twenty times), training ends when it has not risen `patience` times in a row, and
    the model is left with the best weights, which are also kept in `folder`/best.
    """
    length = {"epochs": epochs} if steps is None else {"steps": steps}
    if (epochs is None) == (steps is None):
        raise ValueError("say how long to train, in epochs or in steps")
    positive = {"batch_size": batch_size, "lr": lr, "save_every": save_every, "patience": patience, **length}
    _check(model, data, positive)
    per_epoch = -(-len(data) // batch_size)
    if epochs is not None:
        steps = epochs * per_epoch
        check_every = check_every or max(1, epochs // 20) * per_epoch
    assert steps is not None
    check_every = check_every or max(1, steps // 20)
    moments = optimizer(model, lr)
    step = Stepper(model, moments)
    progress = Progress(0)
    device = model.tree.device
    if folder is not None:
        folder = Path(folder)
        check_room(folder, model)
        run = Run(
            method.name,
            method.options,
            {
                "batch_size": batch_size,
                "lr": lr,
                "schedule": schedule.__name__,
                "optimizer": optimizer.__name__,
                # A longer run takes other steps from the first, unless all steps are alike.
                "steps": "any" if schedule is constant and warm_up is None else steps,
                "warm_up": f"{warm_up.name} {dict(warm_up.options)} {warm_share}" if warm_up else "none",
                "check_every": check_every if val is not None else 0,
                "seed": seed,
                "data": data.fingerprint(),
                "device": device.type,  # its generator draws numbers of its own
            },
        )
        if holds_checkpoint(folder):
            if not resume:
                raise ValueError(f"{folder} holds a checkpoint: resume it, or choose another folder")
            progress = load_checkpoint(folder, model, moments, run, steps)
    data = data.to(device)
    best: dict[str, Tensor] = {}

    generator = torch.Generator(device)
    order = torch.empty(0)
    model.train()

    def check() -> None:
        nonlocal progress, best
        if val is None:
            return
        recall = recall_of(model, val)
        progress = progress.checked(recall)
        if progress.checks_since_best == 0:
            best = _keep_best(model, folder)
        if on_check is not None:
            on_check(progress.step, recall)

    if progress.step == 0:
        check()  # a start from vectors may be better than a short run
    for t in range(progress.step, steps):
        if progress.checks_since_best >= patience:
            break
        row = warm_up if warm_up is not None and t < warm_share * steps else method
        epoch, place = divmod(t, per_epoch)
        if place == 0 or not len(order):
            order = epoch_order(len(data), seed, epoch).to(device)
        generator.manual_seed(mix(seed, t))
        x, y = data.batch(order[place * batch_size :][:batch_size], generator)  # draw a minibatch
        set_lr(moments, lr * schedule(t / steps))
        loss = step(row, x, y, generator)  # B̃_h, ẑ and the loss under θ_t, and a move along its gradient
        progress = replace(progress, step=t + 1)
        if (t + 1) % check_every == 0 or t + 1 == steps:
            check()
        last = t + 1 == steps or progress.checks_since_best >= patience
        if folder is not None and ((t + 1) % save_every == 0 or last):
            save_checkpoint(folder, model, moments, run, progress)
        if on_step is not None:
            on_step(t + 1, steps, loss)
    model.chained = method.chained
    if best:
        model.scorer.load_state_dict(best)
    elif progress.best_step >= 0 and folder is not None:
        load_weights(Path(folder) / BEST, model)
    model.eval()


def checked_at(num_items: int) -> int:
    """m of the recall that says how good a model is: 200, or a tenth of a small catalogue."""
    return min(200, max(10, num_items // 10))


def recall_of(model: TreeModel, val: Data) -> float:
    """What says how good a model is."""
    m = checked_at(model.tree.num_items)
    model.eval()
    recall = evaluate(model, val, m=(m,), metrics=("recall",))["recall", m]
    model.train()
    return recall


def _keep_best(model: TreeModel, folder: Path | None) -> dict[str, Tensor]:
    """Save the model in the folder; without one, the weights to keep in memory."""
    if folder is not None:
        save(model, folder / BEST)
        return {}
    return {name: value.detach().clone() for name, value in model.scorer.state_dict().items()}


def _check(model: TreeModel, data: Data, positive: dict[str, float | None]) -> None:
    for name, value in positive.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value}: must be above 0")
    if not len(data):
        raise ValueError("there is nothing to train on; a sliding window needs a user with eight events at least")
    model.tree.check_items(data.item_numbers())
    model.scorer.check(data.observations())

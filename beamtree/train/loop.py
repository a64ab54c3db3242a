"""Algorithm 1: learning optimal tree models under beam search. Every method trains in this loop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from beamtree.data import Data
from beamtree.data.seeds import epoch_order, mix
from beamtree.methods import Method
from beamtree.model import TreeModel
from beamtree.storage.settings import NotFiniteError, holds_model
from beamtree.train.backend import Backend, backend
from beamtree.train.checkpoint import Checkpointer, Checkpoints
from beamtree.train.optimizer import Optimizer, adam, set_lr
from beamtree.train.schedule import Schedule
from beamtree.train.step import Stepper
from beamtree.train.validation import Progress, Validation
from beamtree.tree import PAD

OnStep = Callable[[int, int, Tensor], None]  # (steps done, steps in all, loss of the last one)
ASK_EVERY = 100  # steps between two checks on a GPU that all is finite
CHECKS = 20  # of the validation users, unless told otherwise


def fit(
    model: TreeModel,
    data: Data,
    method: Method,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 200,
    schedule: Schedule | None = None,
    optimizer: Optimizer = adam,
    val: Data | Validation | None = None,
    checkpoints: Checkpoints | None = None,
    seed: int = 0,
    on_step: OnStep | None = None,
) -> Progress:
    """Train the model in place, and say where it ended. The same call gives the same weights.

    Args:
        model: what is trained. It keeps the ids of the data's items.
        data: instances, such as `data.train` or `data.train.stretches()`.
        method: a row of `beamtree.methods`, such as `bt.otm(beam_size=400)`.
        epochs: how long, in passes over the data.
        steps: or in steps.
        batch_size: instances in a step.
        schedule: learning rate and warm-up; `Schedule()` unless given.
        optimizer: `adam` over all rows, or `lazy` over those that a step touched.
        val: users by whose recall the best weights are kept; a `Validation` says how they are asked.
        checkpoints: where the run is saved and resumed.
        seed: of all that is random.
        on_step: hears the steps done, those in all, and the loss.
    """
    here = backend()
    with here.guard():
        schedule = schedule or Schedule()
        run = Run(model, data, method, epochs, steps, batch_size, schedule, optimizer, val, checkpoints, seed)
    here.check_equal(tree=model.tree.fingerprint(), scorer=model.scorer.settings(), **run.describe())
    with here.lock(Path(checkpoints.folder)) if checkpoints is not None else nullcontext():
        return _take_steps(run, here, on_step)


def _take_steps(run: "Run", here: Backend, on_step: OnStep | None) -> Progress:
    model, data, method = run.model, run.data, run.method
    step, batches, checkpointer, monitor = run.begin(here)
    progress = monitor.begin(checkpointer.resume(run.total))
    check = FiniteCheck(run, here)
    for t in range(progress.step, run.total):
        if monitor.is_over(progress):
            break
        x, y, generator = batches.draw(t)  # a minibatch
        set_lr(step.optimizer, run.schedule.lr_at(t, run.total))
        row = run.schedule.method_at(method, t, run.total)
        loss = step(row, x, y, generator)  # B̃_h, ẑ and the loss under θ_t, and a move along its gradient
        with check(loss, t):
            progress = monitor.check(replace(progress, step=t + 1))
            checkpointer.save(progress, last=t + 1 == run.total or monitor.is_over(progress))
        if on_step is not None:
            on_step(t + 1, run.total, loss)
    return _finish(model, data, method, checkpointer, progress)


@dataclass
class Run:
    """What `fit` was asked for, checked, and what follows from it."""

    model: TreeModel
    data: Data
    method: Method
    epochs: int | None
    steps: int | None
    batch_size: int
    schedule: Schedule
    optimizer: Optimizer
    val: Data | Validation | None
    checkpoints: Checkpoints | None
    seed: int

    def __post_init__(self) -> None:
        val = self.val
        self.validation = Validation(val) if val is not None and not isinstance(val, Validation) else val
        self._check()
        every = per_epoch(self.data, self.batch_size)
        self.total = (self.epochs or 0) * every if self.steps is None else self.steps  # steps in all
        usual = max(1, self.epochs // CHECKS) * every if self.epochs is not None else max(1, self.total // CHECKS)
        self.check_every = 0 if self.validation is None else self.validation.every or usual

    def _check(self) -> None:
        """Raise a ValueError where nothing could be trained."""
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("say how long to train, in epochs or in steps")
        positive: dict[str, float | None] = {name: getattr(self, name) for name in ("batch_size", "epochs")}
        positive["lr"] = self.schedule.lr
        if self.checkpoints is not None:
            positive["checkpoints.every"] = self.checkpoints.every
        if self.validation is not None:
            positive |= {"patience": self.validation.patience, "validation.every": self.validation.every}
        if self.steps is not None and self.steps < 0:
            raise ValueError(f"steps={self.steps}: must be 0 or more")
        for name, value in positive.items():
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value}: must be above 0")
        if not len(self.data):
            raise ValueError("there is nothing to train on; a sliding window needs a user with eight events at least")
        self.model.tree.check_items(self.data.item_numbers())
        self.model.scorer.check(self.data.observations())

    def describe(self) -> dict[str, object]:
        """What must not change when a run goes on; its length may, where all steps are alike."""
        return {
            **self.method.describe(),
            **self.schedule.describe(self.total),
            "batch_size": self.batch_size,
            "optimizer": getattr(self.optimizer, "__name__", repr(self.optimizer)),
            "check_every": self.check_every,
            "seed": self.seed,
            "data": self.data.fingerprint(),
            "device": self.model.tree.device.type,  # its generator draws numbers of its own
        }

    def is_due(self, step: int) -> bool:
        """Whether the model is measured or saved after a step, by their number."""
        saved = self.checkpoints is not None and step % self.checkpoints.every == 0
        return saved or bool(self.check_every and step % self.check_every == 0)

    def begin(self, here: Backend) -> "tuple[Stepper, Batches, Checkpointer, Monitor]":
        """What takes the steps, what they read, what saves them, and what measures them."""
        device = self.model.tree.device
        here.place(self.model, device)
        learner = _learner(self.model)
        optimizer = self.optimizer(learner, self.schedule.lr)
        checkpointer = here.checkpointer(self.checkpoints, self.model, optimizer, self.describe())
        grace = 0 if learner is self.model else self.schedule.warm_steps(self.total)
        monitor = Monitor(self.validation, checkpointer, here, self.check_every, self.total, grace)
        batches = Batches(self.data.to(device), self.batch_size, self.seed, device)
        return here.stepper(learner, optimizer), batches, checkpointer, monitor


def _learner(model: TreeModel) -> TreeModel:
    """The model that gradients train: this one, or that of the part of its scorer that is learned."""
    scorer = model.scorer.learner()
    if scorer is model.scorer:
        return model
    return TreeModel(model.tree, scorer, chained=model.chained, first_level=model.first_level)


class Monitor:
    """Measures recall on the validation users when it is due, if there are any, and keeps the best model."""

    def __init__(
        self,
        validation: Validation | None,
        checkpointer: Checkpointer,
        here: Backend,
        every: int,
        steps: int,
        grace: int = 0,
    ) -> None:
        self.validation, self.checkpointer, self.here = validation, checkpointer, here
        self.every, self.steps = every, steps
        self.grace = grace  # steps before patience counts, for a part that begins with weight 0

    def begin(self, progress: Progress) -> Progress:
        """Before the first step: a start from vectors may be better than a short run."""
        self.checkpointer.model.train()
        return self._measure(progress) if progress.step == 0 else progress

    def check(self, progress: Progress) -> Progress:
        """After a step."""
        due = self.every and (progress.step % self.every == 0 or progress.step == self.steps)
        return self._measure(progress) if due else progress

    def is_over(self, progress: Progress) -> bool:
        """Whether recall has not risen for too long."""
        if self.validation is None:
            return False
        too_soon = self.grace and progress.step < self.grace + (self.validation.patience - 1) * self.every
        return not too_soon and self.validation.is_over(progress)

    def _measure(self, progress: Progress) -> Progress:
        if self.validation is None:
            return progress
        model = self.checkpointer.model
        if progress.step:
            self.here.weigh_parts(model, self.validation.data)
        recall = self.here.recall(self.validation, model)
        if self.validation.on_check is not None:
            self.validation.on_check(progress.step, recall)
        progress = progress.checked(recall)
        if progress.checks_since_best == 0:
            self.checkpointer.keep_best()
        return progress


class DivergedError(ValueError):
    """The loss or a weight became NaN or infinite."""


class FiniteCheck:
    """Stops a run at the first loss or weight that is not finite, before such weights are saved or measured.

    On a GPU the first bad step is recorded on the device, and read only every ASK_EVERY steps.
    """

    def __init__(self, run: Run, here: Backend) -> None:
        self.run, self.here, self._bad = run, here, torch.full((), -1, device=run.model.tree.device)

    @contextmanager
    def __call__(self, loss: Tensor, t: int) -> Iterator[None]:
        """Look at the loss of step t, then at the weights wherever the run looks at or saves them."""
        self._bad = torch.where((self._bad < 0) & ~loss.isfinite(), t, self._bad)
        last, due = t + 1 == self.run.total, self.run.is_due(t + 1)
        if (loss.device.type == "cpu" or due or last or t % ASK_EVERY == 0) and int(self._bad) >= 0:
            raise self._diverged(int(self._bad), "its loss is not finite")
        try:
            if due or last:
                self.here.check_finite(self.run.model)
            yield
        except NotFiniteError as error:
            raise self._diverged(t, str(error).split(":")[0]) from error

    def _diverged(self, t: int, what: str) -> DivergedError:
        lr, checkpoints = self.run.schedule.lr_at(t, self.run.total), self.run.checkpoints
        there = checkpoints is not None and holds_model(checkpoints.folder)
        kept = f"; the last good checkpoint is in {checkpoints.folder}" if checkpoints is not None and there else ""
        return DivergedError(
            f"training diverged at step {t + 1:,}, at a learning rate of {lr:.3g}: {what}{kept}. "
            "Train with a smaller `lr`"
        )


class Batches:
    """Minibatches in an order of their own in every epoch: a function of seed and step alone."""

    def __init__(self, data: Data, batch_size: int, seed: int, device: torch.device) -> None:
        self.data, self.batch_size, self.seed = data, batch_size, seed
        self.generator = torch.Generator(device)
        self._epoch, self._order = -1, torch.empty(0)

    def draw(self, t: int) -> tuple[Tensor, Tensor, torch.Generator]:
        """x, y and the randomness of step t."""
        epoch, place = divmod(t, per_epoch(self.data, self.batch_size))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = epoch_order(len(self.data), self.seed, epoch).to(self.generator.device)
        self.generator.manual_seed(mix(self.seed, t))
        rows = self._order[place * self.batch_size :][: self.batch_size]
        x, y = self.data.batch(rows, self.generator)
        return x, y, self.generator


def _finish(model: TreeModel, data: Data, method: Method, checkpointer: Checkpointer, progress: Progress) -> Progress:
    """Leave the model with its best weights, the ids of the items, and how often each was chosen."""
    model.chained, model.trained_on_beams = method.chained, method.walks
    checkpointer.restore_best(progress)
    model.ids = model.ids if data.ids is None else data.ids
    items = data.item_numbers().flatten().cpu()
    model.popularity = torch.bincount(items[items != PAD], minlength=model.tree.num_items)
    model.eval()
    return progress


def per_epoch(data: Data, batch_size: int) -> int:
    """Steps in an epoch."""
    return -(-len(data) // batch_size)

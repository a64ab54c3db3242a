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
from beamtree.storage.settings import holds_model
from beamtree.storage.tensors import NotFiniteError
from beamtree.train.backend import Backend, current_backend
from beamtree.train.checkpoint import Checkpointer, Checkpoints
from beamtree.train.optimizer import NoSteps, Optimizer, adam, set_lr
from beamtree.train.schedule import Schedule
from beamtree.train.step import Stepper
from beamtree.train.validation import Progress, Validation
from beamtree.tree import PAD

OnStep = Callable[[int, int, Tensor], None]  # (steps done, steps in all, loss of the last one)
CHECK_EVERY = 100  # steps between two checks on a GPU that the loss is finite
CHECKS = 20  # of the validation users in a run, by default


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
    """Train the model in place, and return the progress that was made. The same call gives the same weights.

    Args:
        model: the model to train. It keeps the ids of the data's items.
        data: instances, such as `data.train` or `data.train.random_crops()`.
        method: a row of `beamtree.methods`, such as `bt.otm(beam_size=400)`.
        epochs: how long, in passes over the data.
        steps: or in steps.
        batch_size: instances in a step.
        schedule: learning rate and warm-up. Default: `Schedule()`.
        optimizer: `adam` over all rows, or `lazy` over those that a step touched.
        val: users on whose recall the best weights are chosen; a `Validation` sets how recall is measured.
        checkpoints: where the run is saved and resumed.
        seed: of everything random.
        on_step: called with the steps done, the total and the loss.
    """
    backend = current_backend()
    with backend.guard():
        schedule = schedule or Schedule()
        run = Run(model, data, method, epochs, steps, batch_size, schedule, optimizer, val, checkpoints, seed)
    backend.check_equal(tree=model.tree.fingerprint(), scorer=model.scorer.settings(), **run.describe())
    with backend.lock(Path(checkpoints.folder)) if checkpoints is not None else nullcontext():
        step, batches, checkpointer, monitor = run.begin(backend)
        progress = checkpointer.resume(run.total)
        # Set before the first check, and also during a warm-up: recall is measured as the finished model is searched.
        model.chained = method.chained
        progress = monitor.begin(progress)
        check = FiniteCheck(run, backend)
        for t in range(progress.step, run.total):
            if monitor.is_over(progress):
                break
            x, y, generator = batches.draw(t)  # a minibatch
            set_lr(step.optimizer, schedule.lr_at(t, run.total))
            row = schedule.method_at(method, t, run.total)
            loss = step(row, x, y, generator)  # B̃_h, ẑ and the loss under θ_t, and a move along its gradient
            with check(loss, t):
                progress = monitor.check(replace(progress, step=t + 1))
                checkpointer.save(progress, last=t + 1 == run.total or monitor.is_over(progress))
            if on_step is not None:
                on_step(t + 1, run.total, loss)
        model.trained_on_beams = method.uses_beam
        checkpointer.restore_best(progress)
    model.ids = model.ids if data.ids is None else data.ids
    items = data.item_numbers().flatten().cpu()
    model.popularity = torch.bincount(items[items != PAD], minlength=model.tree.num_items)
    model.eval()
    return progress


@dataclass
class Run:
    """The arguments of `fit`, checked, and the numbers of steps that follow from them."""

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
        default = max(1, self.epochs // CHECKS) * every if self.epochs is not None else max(1, self.total // CHECKS)
        self.check_every = 0 if self.validation is None else self.validation.every or default

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
        """What must be equal when a run is resumed; its length may change where all steps are alike."""
        return {
            **self.method.describe(),
            **self.schedule.describe(self.total),
            "batch_size": self.batch_size,
            "optimizer": getattr(self.optimizer, "__name__", repr(self.optimizer)),
            "check_every": self.check_every,
            "seed": self.seed,
            "data": self.data.fingerprint(),
            "device": self.model.tree.device.type,  # each kind has another random generator
        }

    def is_due(self, step: int) -> bool:
        """Whether the model is measured or saved after a step, by their number."""
        saved = self.checkpoints is not None and step % self.checkpoints.every == 0
        return saved or bool(self.check_every and step % self.check_every == 0)

    def begin(self, backend: Backend) -> "tuple[Stepper, Batches, Checkpointer, Monitor]":
        """The objects that take the steps, draw batches, save checkpoints and measure recall."""
        device = self.model.tree.device
        learner = model = backend.place(self.model, device)
        scorer, grace = model.scorer.trainable_part(), 0
        if scorer is not model.scorer:  # only a part of the scorer is trained by gradients
            learner = TreeModel(model.tree, scorer, chained=self.method.chained, first_level=model.first_level)
            grace = self.schedule.warm_steps(self.total)
        optimizer = self.optimizer(learner, self.schedule.lr) if self.total else NoSteps()
        checkpointer = backend.checkpointer(self.checkpoints, model, optimizer, self.describe())
        monitor = Monitor(self, backend, checkpointer, grace)
        batches = Batches(self.data.to(device), self.batch_size, self.seed, device)
        return backend.stepper(learner, optimizer), batches, checkpointer, monitor


class Monitor:
    """Measures recall on the validation users when it is due, if there are any, and keeps the best model."""

    def __init__(self, run: Run, backend: Backend, checkpointer: Checkpointer, grace: int) -> None:
        """`grace`: steps before patience counts, for a part that begins with weight 0."""
        self.run, self.backend, self.checkpointer, self.grace = run, backend, checkpointer, grace
        self.validation, self.every = run.validation, run.check_every

    def begin(self, progress: Progress) -> Progress:
        """Before the first step: a start from vectors may be better than a short run."""
        self.run.model.train()
        return self._measure(progress) if progress.step == 0 else progress

    def check(self, progress: Progress) -> Progress:
        """After a step."""
        due = self.every and (progress.step % self.every == 0 or progress.step == self.run.total)
        return self._measure(progress) if due else progress

    def is_over(self, progress: Progress) -> bool:
        """Whether recall has not risen for too long."""
        if self.validation is None:
            return False
        too_soon = self.grace and progress.step < self.grace + (self.validation.patience - 1) * self.every
        return not too_soon and progress.checks_since_best >= self.validation.patience

    def _measure(self, progress: Progress) -> Progress:
        if self.validation is None:
            return progress
        if progress.step:
            self.backend.weigh_parts(self.run.model, self.validation.data)
        recall = self.backend.recall(self.validation, self.run.model)
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

    On a GPU the first bad step is recorded on the device, and read only every CHECK_EVERY steps.
    """

    def __init__(self, run: Run, backend: Backend) -> None:
        self.run, self.backend, self._bad = run, backend, torch.full((), -1, device=run.model.tree.device)

    @contextmanager
    def __call__(self, loss: Tensor, t: int) -> Iterator[None]:
        """Check the loss of step t, and the weights where the run measures or saves them."""
        self._bad = torch.where((self._bad < 0) & ~loss.isfinite(), t, self._bad)
        last, due = t + 1 == self.run.total, self.run.is_due(t + 1)
        if (loss.device.type == "cpu" or due or last or t % CHECK_EVERY == 0) and int(self._bad) >= 0:
            raise self._diverged(int(self._bad), "its loss is not finite")
        try:
            if due or last:
                self.backend.check_finite(self.run.model)
            yield
        except NotFiniteError as error:
            raise self._diverged(t, str(error).split(":")[0]) from error

    def _diverged(self, t: int, what: str) -> DivergedError:
        lr, checkpoints = self.run.schedule.lr_at(t, self.run.total), self.run.checkpoints
        saved = ""
        if checkpoints is not None and holds_model(checkpoints.folder):
            saved = f"; the last good checkpoint is in {checkpoints.folder}"
        return DivergedError(
            f"training diverged at step {t + 1:,}, at a learning rate of {lr:.3g}: {what}{saved}. "
            "Train with a smaller `lr`"
        )


class Batches:
    """Minibatches, shuffled in every epoch: a function of seed and step alone."""

    def __init__(self, data: Data, batch_size: int, seed: int, device: torch.device) -> None:
        self.data, self.batch_size, self.seed = data, batch_size, seed
        self.generator = torch.Generator(device)
        self._epoch, self._order = -1, torch.empty(0)

    def draw(self, t: int) -> tuple[Tensor, Tensor, torch.Generator]:
        """x, y and the randomness of step t."""
        epoch, index = divmod(t, per_epoch(self.data, self.batch_size))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = epoch_order(len(self.data), self.seed, epoch).to(self.generator.device)
        self.generator.manual_seed(mix(self.seed, t))
        rows = self._order[index * self.batch_size :][: self.batch_size]
        x, y = self.data.batch(rows, self.generator)
        return x, y, self.generator


def per_epoch(data: Data, batch_size: int) -> int:
    """Steps in an epoch."""
    return -(-len(data) // batch_size)

"""The sequence part of a sum: a transformer trained to predict coming events at every position of a history.

The loss is the cross-entropy over all items, or over a sample of them where there are too many. The part is added to
the sum with the weight that validation users choose, and only where the sum then finds more for them.

Where times are a clock, a position is asked about at the time of the next event. Some windows lose their times, so that
requests without a time are answered by the order of events.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, softplus

from beamtree.closed_form.part_weights import CUTS, USERS
from beamtree.data import HISTORY, BeforeAfter, Data, Events, Prepared
from beamtree.data.inputs import NO_TIME, WHOLE_HISTORY, Inputs
from beamtree.data.seeds import epoch_order, mix
from beamtree.evaluate.metrics import hits, num_relevant, recall
from beamtree.model import TreeModel
from beamtree.parts.acceptance import Acceptance, Trial
from beamtree.parts.base import Fitting, Part
from beamtree.parts.processes import ALONE, Processes
from beamtree.progress import log
from beamtree.scorers import FactorScorer, Scorer, SequenceScorer, SumScorer, with_inputs
from beamtree.scorers.dot_product import DotProductScorer, fit_to_maxima
from beamtree.scorers.sequence import SequenceEncoder
from beamtree.tree import PAD, Tree

SEQUENCE = "sequence"  # the name of the part
STAGE = "Training the sequence part"  # as progress is shown

DENSE = 100  # events per item from which a log is dense: it needs less dropout and no weight decay
MAX_REACH = 100  # events that a target may lie ahead
MAX_TARGETS = 8  # of a position
LAYERS, DENSE_LAYERS = 2, 4  # of the transformer; the second for a dense log on a GPU
LENGTH = 200  # events that are read on a GPU, of a dense log or where times are a clock
TIMELESS = 0.15  # the share of windows that lose their times
SORTED = 16  # batches that are sorted by length together
LR, WARM_UP, BETAS = 3e-3, 200, (0.9, 0.98)
BATCH = 128  # windows in a step
CPU_EVENTS, CPU_BATCH = 2048, 32  # events of a step on a CPU, about, and windows, at least
AVERAGE = 1e-3  # weight of the newest step in the running mean of the weights, which is what is used
NEWEST = 5  # the share of the steps that count early on is 1 / NEWEST
PATIENCE = 1_500  # steps without a rise after which training stops
EARLY = 1_000  # steps that are checked more often on a GPU: small logs overfit within a few epochs
FACTOR_SHARE = 0.3  # of the random vectors, kept beside the factors that item vectors begin with
MINUTES = 5.0  # of training on a CPU
LEAST_EVENTS = 50_000  # of a log, from which a CPU trains the part unless told otherwise
FIRST_SHARE = 0.75  # of the minutes, where the part is trained again to more events
LEAST_STEPS = 1_000  # for which the minutes must suffice
TIMED = 50  # steps after which it is seen whether they do
CHECKS = 12  # that divide the minutes
ALONE_USERS = 1_000  # validation users of such a check
LEAST_LOG = -1e30  # instead of log 0
CHUNK = {"cpu": 1 << 19, "cuda": 1 << 28}  # logits that are computed at once


@dataclass(frozen=True)
class SequenceSettings:
    """Sizes of the transformer and of its training."""

    dim: int
    dropout: float
    weight_decay: float
    reach: int  # how many events ahead a target may lie
    steps: int  # at most
    check_every: int
    sampled: int | None  # negatives of the loss; None for all items
    layers: int = LAYERS
    lr: float = LR
    batch_size: int = BATCH
    check_early: int = 0  # steps between the checks of the first EARLY steps; 0 for `check_every`
    length: int = HISTORY  # events of a window
    clock: bool = False  # whether times are read
    by_length: bool = False  # whether the windows of a batch have about one length
    minutes: float | None = None  # of training, at most

    def is_check(self, step: int) -> bool:
        """Whether the model is measured after this step."""
        every = self.check_early if self.check_early and step <= EARLY else self.check_every
        return step % every == 0 or step == self.steps

    @property
    def targets(self) -> int:
        """Targets of a position."""
        return min(self.reach, MAX_TARGETS)


def sequence_settings(data: Prepared, device: str, minutes: float | None = None) -> SequenceSettings:
    """Settings for a log: regularization by how dense it is, and a reach of as many events as users are asked for."""
    clock = data.train.events.clock is not None
    dense = int(data.train.events.counts().sum()) >= DENSE * data.num_items
    users = data.val.sample(USERS)
    _, y = users.batch(torch.arange(len(users)))
    reach = int(num_relevant(y).float().mean().round().clamp(1, MAX_REACH))
    on_cpu = torch.device(device).type == "cpu"
    return SequenceSettings(
        dim=64 if on_cpu else 128,
        dropout=0.2 if dense else 0.5,
        weight_decay=0.0 if dense else 0.1,
        reach=reach,
        steps=20_000 if minutes is not None else 3_000 if on_cpu else 10_000,
        check_every=TIMED if minutes is not None else 500,
        sampled=2048 if data.num_items > (4_096 if on_cpu else 250_000) else None,
        batch_size=_cpu_batch(data.train.events) if on_cpu else BATCH,
        layers=DENSE_LAYERS if dense and not on_cpu else LAYERS,
        check_early=0 if on_cpu or minutes is not None else 125,
        length=LENGTH if (clock or dense) and not on_cpu else HISTORY,
        clock=clock,
        by_length=clock or on_cpu,
        minutes=minutes,
    )


def _cpu_batch(events: Events) -> int:
    """Windows of a step on a CPU: as many as have some thousand events, since part of a step costs the same for few."""
    counts = events.counts()
    mean = float(counts[counts > 1].clamp(max=HISTORY).double().mean()) if bool((counts > 1).any()) else 1.0
    return int(min(max(CPU_EVENTS // mean, CPU_BATCH), BATCH))


class SequencePart(Part):
    """A transformer, trained as long as validation users find more with it.

    Args:
        settings: sizes. Default: `sequence_settings` of the log.
        minutes: of training, at most. Default: as long as validation users find more.
        length: how many events of a history are read, instead of what the settings say.
    """

    name = SEQUENCE

    def __init__(
        self, settings: SequenceSettings | None = None, minutes: float | None = None, length: int | None = None
    ) -> None:
        is_number = isinstance(length, int) and not isinstance(length, bool)
        if length is not None and not (is_number and 1 <= length <= WHOLE_HISTORY):
            raise ValueError(f"length={length!r}: give a whole number from 1 to {WHOLE_HISTORY:,}")
        self.settings, self.minutes, self.length = settings, minutes, length

    def add(self, parts: SumScorer, fitting: Fitting) -> SumScorer:
        """The sum with the best part that training passes through."""
        tree, data, device, seed = fitting.tree, fitting.data, fitting.device, fitting.seed
        minutes = self.minutes if fitting.processes.is_single else None  # ranks would not end at the same step
        settings = self.settings or sequence_settings(data, device, minutes)
        settings = settings if self.length is None else replace(settings, length=self.length)
        acceptance = fitting.acceptance(parts)
        best = BestPart(self.name, acceptance)
        if settings.minutes is not None:
            best = TimedPart(self.name, acceptance, tree.to(device), settings.minutes)

        def on_check(step: int, encoder: SequenceEncoder, vectors: Tensor) -> bool:
            fitting.on_progress(STAGE, *best.progress(step, settings.steps))
            if best.is_due(step, settings.steps):
                scorer = SequenceScorer.from_items(tree, deepcopy(encoder).cpu(), vectors.cpu())
                return best.check(step, scorer) or best.is_over(step)
            return best.is_over(step)

        parts.cpu()  # where the tree is
        start = None
        if "factors" in parts.names and (data.all is None or parts.weight_of("factors")):  # a refit has no others
            start = parts.tables()["factors"].item_vectors(tree)
        fit_sequence(
            data.train.events,
            data.num_items,
            settings,
            device=device,
            seed=seed,
            start=start,
            processes=fitting.processes,
            on_check=on_check,
        )
        best.finish()
        if best.scorer is not None:
            fit_to_histories(best.scorer, tree, data.train, device, seed)
        result = best.acceptance.result(self.name, best.scorer, best.trial)
        if best.trial is not None:
            record = asdict(replace(settings, minutes=None))
            result.hyperparameters[self.name] |= {"steps": best.steps, "settings": record}
            if best.more_steps and data.all is not None:
                result.hyperparameters[self.name] |= {"more_steps": best.more_steps}
        if best.too_slow is not None:
            result.hyperparameters[self.name] |= {"too_slow": best.too_slow}
        return result

    def report(self, scorer: Scorer) -> list[str]:
        steps = scorer.hyperparameters.get(self.name, {}).get("too_slow")
        if steps is None:
            return super().report(scorer)
        enough = f"the minutes given are enough for about {steps:,} steps of at least {LEAST_STEPS:,}"
        return [f"The {self.name} part was left out: {enough}. Give more `minutes`, or a GPU."]

    def refit(self, scorer: SumScorer, fitted: Mapping[str, Scorer], fitting: Fitting) -> Mapping[str, Scorer]:
        """Trained again for the steps that were chosen, where that is asked for; else it stays as it was trained.

        Where there was no time for more of them, training goes on from where it ended.
        """
        record = scorer.hyperparameters.get(self.name, {})
        if not fitting.again or self.name not in scorer.names or "steps" not in record:
            return {}
        tree, device, seed, factors = fitting.tree, fitting.device, fitting.seed, fitted.get("factors")
        start = factors.item_vectors(tree).cpu() if isinstance(factors, FactorScorer) else None
        on_cpu = tree.to("cpu")
        settings, trained = replace(SequenceSettings(**record["settings"]), steps=record["steps"]), None
        if fitting.goes_on and "more_steps" in record:
            settings, part = replace(settings, steps=record["more_steps"]), scorer.part(self.name)
            assert isinstance(part, SequenceScorer)
            vectors = part.item_vectors(tree).cpu().float()
            new = fitting.data.train.events.popularity(tree.num_items).cpu() == 0
            vectors[new] = _first_vectors(tree.num_items, settings.dim, start, seed)[new]
            trained = part.encoder, vectors

        def on_check(step: int, encoder: SequenceEncoder, vectors: Tensor) -> bool:
            fitting.on_progress(STAGE, step, settings.steps)
            return False

        encoder, vectors = fit_sequence(
            fitting.fitted_events,
            tree.num_items,
            settings,
            device=device,
            seed=seed,
            start=start,
            trained=trained,
            processes=fitting.processes,
            on_check=on_check,
        )
        part = SequenceScorer.from_items(on_cpu, deepcopy(encoder).cpu(), vectors.cpu())
        fit_to_histories(part, on_cpu, BeforeAfter(fitting.fitted_events), device, seed)
        return {self.name: part.to(tree.device)}


class BestPart:
    """The best of the parts that a training passes through."""

    def __init__(self, name: str, acceptance: Acceptance) -> None:
        self.name, self.acceptance = name, acceptance
        self.scorer: SequenceScorer | None = None
        self.trial: Trial | None = None
        self.steps = 0  # after which it was the best
        self.more_steps = 0  # for which training goes on, where there is no time to train again
        self.too_slow: int | None = None  # the steps that there is time for, where those are too few
        self._alone, self._step = 0.0, 0

    def progress(self, step: int, steps: int) -> tuple[int, int]:
        """How much of the training is done, and of how much."""
        return step, steps

    def is_due(self, step: int, steps: int) -> bool:
        """Whether it is time for a check."""
        return True

    def is_over(self, step: int) -> bool:
        """Whether training ends here, whatever a check says."""
        return False

    def finish(self) -> None:
        """Decide whether the best is good enough."""

    def check(self, step: int, scorer: SequenceScorer) -> bool:
        """Measure a part; returns whether training should stop: neither the part nor the sum has become better."""
        trial = self.acceptance.measure({self.name: scorer})
        percents = 100 * trial.alone, 100 * trial.gain.mean
        log.debug("sequence part, step %d: recall %.2f %% alone, gain %.2f %%", step, *percents)
        if trial.alone > self._alone:
            self._alone, self._step = trial.alone, step
        if trial.accepted and (self.trial is None or trial.gain.worth > self.trial.gain.worth):
            self.scorer, self.trial, self.steps, self._step = scorer, trial, step, step
        return step - self._step >= PATIENCE


class TimedPart(BestPart):
    """The best of the parts that a training of some minutes passes through.

    A check measures the part alone, which takes a second; the sum is measured once, at the end.
    """

    def __init__(self, name: str, acceptance: Acceptance, tree: Tree, minutes: float) -> None:
        super().__init__(name, acceptance)
        self._tree, self._seconds = tree, 60 * minutes
        self._began = self._checked = self._best = monotonic()

    def progress(self, step: int, steps: int) -> tuple[int, int]:
        done = max((monotonic() - self._began) / self._seconds, step / steps)
        return int(1000 * min(1.0, done)), 1000

    def is_due(self, step: int, steps: int) -> bool:
        return self.is_over(step) or step == steps or monotonic() - self._checked >= self._seconds / CHECKS

    def is_over(self, step: int) -> bool:
        elapsed = monotonic() - self._began
        possible = int(step * self._seconds / max(elapsed, 1e-9))
        if step == TIMED and possible < LEAST_STEPS:
            self.too_slow = possible
        return elapsed >= self._seconds or self.too_slow is not None

    def check(self, step: int, scorer: SequenceScorer) -> bool:
        part = deepcopy(scorer).to(self._tree.device)
        quality, self._checked = recall_alone(part, self._tree, self.acceptance.users), monotonic()
        log.debug("sequence part, step %d: recall %.2f %% alone", step, 100 * quality)
        if quality > self._alone:
            self._alone, self.scorer, self.steps, self._step = quality, scorer, step, step
            self._best = self._checked
        return step - self._step >= PATIENCE

    def finish(self) -> None:
        if self.scorer is None or self.too_slow is not None:
            self.scorer = None
            return
        self.trial = self.acceptance.measure({self.name: self.scorer})
        if not self.trial.accepted:
            self.scorer = None
        left = 1 / FIRST_SHARE - 1
        if self._best - self._began > left * self._seconds:
            self.more_steps = round(left * self.steps)


@torch.no_grad()
def recall_alone(scorer: SequenceScorer, tree: Tree, users: Data) -> float:
    """The mean recall of validation users at several cuts, where all items are ranked by this part alone."""
    users = with_inputs(scorer, users)
    vectors, total = scorer.item_vectors(tree), 0.0
    rows = torch.arange(min(ALONE_USERS, len(users)))
    for some in rows.split(64):
        x, y = (part.to(tree.device) for part in users.batch(some))
        best = (scorer.users(tree, x) @ vectors.T).topk(min(CUTS[-1], len(vectors))).indices
        hit, relevant = hits(best, y), num_relevant(y)
        total += float(torch.stack([recall(hit, relevant, m).sum() for m in CUTS]).mean())
    return total / len(rows)


@torch.no_grad()
def user_vectors(part: DotProductScorer, tree: Tree, users: BeforeAfter, seed: int = 0, count: int = 2048) -> Tensor:
    """u(x) of random histories of training users [count, dim]."""
    crops = users.random_crops().to(tree.device)
    generator = torch.Generator(tree.device).manual_seed(mix(seed, 9))
    rows = torch.randint(len(crops), (count,), generator=generator, device=tree.device)
    vectors = part.table.read(tree, share=False)

    def read(rows: Tensor) -> Tensor:
        if not part.reads_clock:
            return crops.batch(rows, generator)[0]
        events, (start, cut, _) = crops.events, crops.drawn(rows, generator)
        items, index = (read(start, cut, part.history) for read in (events.before, events.index_before))
        return Inputs(items, events.seconds(index), events.seconds(cut.unsqueeze(1)), items[:, :0]).joined()

    return torch.cat([part.encode(tree, vectors, read(each)) for each in rows.split(512)])


def fit_to_histories(part: SequenceScorer, tree: Tree, users: BeforeAfter, device: str, seed: int) -> None:
    """Fit the vectors of inner nodes to the best items below them, for histories of training users."""
    model = TreeModel(tree, part).to(device)
    fit_to_maxima(model.tree, part.table.weight, user_vectors(part, model.tree, users, seed))


def fit_sequence(
    events: Events,
    num_items: int,
    settings: SequenceSettings,
    *,
    device: str = "cpu",
    seed: int = 0,
    start: Tensor | None = None,
    trained: tuple[SequenceEncoder, Tensor] | None = None,
    processes: Processes = ALONE,
    on_check: Callable[[int, SequenceEncoder, Tensor], bool] = lambda step, encoder, vectors: False,
) -> tuple[SequenceEncoder, Tensor]:
    """Train an encoder and the vectors of the items; returns the running means of their weights.

    Several processes have all weights, and each computes the loss of its windows of a batch: the weights are those of
    one process, but for rounding and the draws of dropout.

    Args:
        events: of the training users.
        num_items: M.
        settings: sizes.
        device: where it is trained.
        seed: of all that is random.
        start: vectors of the items [M, any], such as factors, that theirs begin with.
        trained: an encoder and vectors that training goes on from.
        processes: those that train together.
        on_check: called with the step, the encoder and the vectors; training stops where it returns True.
    """
    events = events.to(device)
    counts = events.counts()
    users = (counts > 1).nonzero().squeeze(1)
    users = users.repeat_interleave(-(-counts[users] // settings.length))  # of each window: one for so many events
    seconds = events.seconds(torch.arange(len(events.items), device=device)) if settings.clock else None
    if not len(users):
        raise ValueError("nothing to train on: no user has two events")
    sizes = settings.dim, settings.layers, settings.dropout, settings.length, settings.clock
    if trained is None:
        encoder, first = SequenceEncoder(*sizes, seed=seed), _first_vectors(num_items, settings.dim, start, seed)
    else:
        encoder, first = deepcopy(trained[0]).float(), trained[1].detach().clone().float()
    encoder, vectors = encoder.to(device), nn.Parameter(first.to(device))
    weights = [*encoder.parameters(), vectors]
    average, means = deepcopy(encoder), [weight.detach().clone() for weight in weights]
    popularity = events.popularity(num_items)
    shares = popularity / popularity.sum()
    on_gpu = torch.device(device).type == "cuda"
    optimizer = torch.optim.AdamW(weights, settings.lr, BETAS, weight_decay=settings.weight_decay, fused=True)
    per_epoch = -(-len(users) // settings.batch_size)
    generator, order = torch.Generator(device), users

    def averaged() -> tuple[SequenceEncoder, Tensor]:
        with torch.no_grad():
            for weight, mean in zip(average.parameters(), means, strict=False):
                weight.copy_(mean)
        return average.eval(), means[-1]

    with torch.random.fork_rng([device] if on_gpu else []):
        torch.manual_seed(mix(seed, 8) + processes.rank)  # of dropout
        for t in range(settings.steps):
            epoch, batch = divmod(t, per_epoch)
            if batch == 0:
                order = users[epoch_order(len(users), seed, epoch).to(users.device)]
                if settings.by_length:
                    order = _by_length(order, counts, settings, mix(seed, epoch))
            rows = order[batch * settings.batch_size :][: settings.batch_size]
            generator.manual_seed(mix(seed, t))
            windows = draw_windows(events, rows, settings.reach, settings.targets, generator, settings.length, seconds)
            x, y = windows.x, windows.y
            share = processes.share(len(rows))
            own_x, own_y = share.of(x), share.of(y)
            clock = [share.of(each) for each in windows[2:] if each is not None]
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=on_gpu):
                states = encoder.train()(embedding(own_x.clamp(min=0), vectors), *clock)
            real = (own_y != PAD).any(2)
            states, own_y = states[real].float(), own_y[real]
            if settings.sampled is None:
                loss = cross_entropy(states, vectors, own_y)
            else:
                loss = sampled_cross_entropy(states, vectors, own_y, shares, settings.sampled, generator, drawn_from=y)
            if not processes.is_single:  # a mean over targets: this process has some of the batch's
                loss = loss * (0 if share.is_empty else (own_y != PAD).sum() / (y != PAD).sum().clamp(min=1))
            for group in optimizer.param_groups:
                group["lr"] = settings.lr * min(1.0, (t + 1) / WARM_UP)
            optimizer.zero_grad()
            loss.backward()
            processes.sum_gradients(weights)
            optimizer.step()
            with torch.no_grad():
                newest = max(AVERAGE, NEWEST / (t + 10 * NEWEST))
                torch._foreach_lerp_(means, [weight.detach() for weight in weights], newest)
            if settings.is_check(t + 1) and on_check(t + 1, *averaged()):
                break
    return averaged()


def _by_length(users: Tensor, counts: Tensor, settings: SequenceSettings, seed: int) -> Tensor:
    """The users of an epoch's windows in an order in which those of a batch have windows of about one length.

    Attention grows with the square of the longest window of a batch.
    """
    size = settings.batch_size
    lengths = counts[users].clamp(max=settings.length + 1)
    group = torch.arange(len(users), device=users.device) // (SORTED * size)
    users = users[(group * (settings.length + 2) + lengths).argsort(stable=True)]
    full = len(users) // size
    batches = users[: full * size].view(full, size)[epoch_order(full, seed, 0).to(users.device)]
    return torch.cat([batches.flatten(), users[full * size :]])


def _first_vectors(num_items: int, dim: int, start: Tensor | None, seed: int) -> Tensor:
    """Vectors of the items before training [M, dim], the bias last: random, or near given vectors."""
    generator = torch.Generator().manual_seed(mix(seed, 2))
    vectors: Tensor = torch.randn(num_items, dim, generator=generator) * dim**-0.5
    vectors[:, -1] = 0
    if start is not None:
        start = start[:, : dim - 1].float().cpu()
        width = start.shape[1]
        unit = float(start.norm(dim=1).mean().clamp(min=1e-9))
        vectors[:, :width] = FACTOR_SHARE * vectors[:, :width] + start / unit
    return vectors


class Windows(NamedTuple):
    """Runs of events, and what is to be predicted at each of their positions."""

    x: Tensor  # items [B, T], oldest first
    y: Tensor  # targets of every position [B, T + 1, K]; the first is before the first event
    times: Tensor | None = None  # of the events [B, T], in seconds; None where they are not read
    asked: Tensor | None = None  # the time of the next event of every position [B, T + 1]


def draw_windows(
    events: Events,
    users: Tensor,
    reach: int,
    targets: int,
    generator: torch.Generator,
    length: int = HISTORY,
    seconds: Tensor | None = None,
) -> Windows:
    """A random run of at most `length` events of each user, and targets of every position.

    A target lies 1 to `reach` events ahead of its position, log-uniformly, and is PAD after the last event. `seconds`
    are the times of the events [E], of which some windows know nothing.
    """
    device = events.offsets.device
    start, stop = events.offsets[users], events.offsets[users + 1]
    spare = (stop - start - length - 1).clamp(min=0)
    share = torch.rand(len(users), generator=generator, device=device)
    start = start + (share * (spare + 1)).long().minimum(spare)
    length = min(length, int((stop - start).max()) - 1)
    index = start.unsqueeze(1) + torch.arange(length + 1, device=device)  # of the next event
    ahead = (stop.unsqueeze(1) - index).unsqueeze(2)  # events that come
    most = ahead.clamp(min=1, max=reach)
    share = torch.rand(*index.shape, targets, generator=generator, device=device)
    offset = (most + 1.0).pow(share).long().clamp(min=1).minimum(most) - 1
    coming = index.unsqueeze(2) + offset
    real = (ahead > 0).expand_as(offset) & events.is_target(coming)
    y = torch.where(real, events.items[torch.where(real, coming, 0)].long(), PAD)
    x = events.after(start, stop, length)
    if seconds is None:
        return Windows(x, y)
    known = (torch.rand(len(users), 1, generator=generator, device=device) >= TIMELESS) & (ahead.squeeze(2) > 0)
    asked = torch.where(known, seconds[torch.where(known, index, 0)], NO_TIME)
    return Windows(x, y, asked[:, :-1], asked)


def cross_entropy(states: Tensor, vectors: Tensor, targets: Tensor) -> Tensor:
    """The mean over targets [N, K], PAD for none, of -log softmax(⟨s, v⟩) over all items [M]."""
    loss: Tensor = _CrossEntropy.apply(states, vectors, targets)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    """The gradients are computed together with the loss, so that only a chunk of the logits exists at a time."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, vectors: Tensor, targets: Tensor) -> Tensor:
        dtype = torch.bfloat16 if states.is_cuda else states.dtype
        v, total = vectors.to(dtype), states.new_zeros(())
        grad_states, grad_vectors = torch.empty_like(states), torch.zeros_like(vectors)
        rows = max(1, CHUNK[states.device.type] // len(vectors))
        for start in range(0, len(states), rows):
            s, target = states[start : start + rows].to(dtype), targets[start : start + rows]
            real, index = (target != PAD).float(), target.clamp(min=0)
            log_p = torch.log_softmax(s @ v.T, dim=1, dtype=torch.float32)
            total -= (log_p.gather(1, index) * real).sum()
            grad = log_p.exp_().mul_(real.sum(1, keepdim=True))
            grad = grad.scatter_add_(1, index, -real).to(dtype)  # count · p - z
            grad_states[start : start + rows] = grad @ v
            grad_vectors += grad.T @ s
        count = (targets != PAD).sum().clamp(min=1)
        ctx.save_for_backward(grad_states / count, grad_vectors / count)
        return total / count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        states, vectors = ctx.saved_tensors
        return states * grads[0], vectors * grads[0], None


def sampled_cross_entropy(
    states: Tensor,
    vectors: Tensor,
    targets: Tensor,
    shares: Tensor,
    sampled: int,
    generator: torch.Generator,
    drawn_from: Tensor | None = None,
) -> Tensor:
    """The same over a target and a sample: half of it uniform, half targets of the batch.

    These are `targets`, or `drawn_from` where this process has a part of the batch.

    By the log Q correction an item that is expected n times in the sample has 1/n of its weight. `shares` is how often
    items are targets [M].
    """
    batch = targets if drawn_from is None else drawn_from
    positives = batch[batch != PAD]
    half = sampled // 2 if len(positives) else 0
    uniform = torch.randint(len(vectors), (sampled - half,), generator=generator, device=targets.device)
    others = positives[torch.randint(max(1, len(positives)), (half,), generator=generator, device=targets.device)]
    sample, times = torch.cat([uniform, others]).unique(return_counts=True)
    bias = times.log() - ((sampled - half) / len(vectors) + half * shares[sample]).log()
    place = torch.full((len(vectors),), len(sample), device=targets.device)
    place[sample] = torch.arange(len(sample), device=targets.device)
    index = targets.clamp(min=0)
    rows = embedding(torch.cat([sample, index.flatten()]), vectors)
    sampled_rows, own = rows[: len(sample)], rows[len(sample) :].view(*targets.shape, -1)
    loss: Tensor = _SampledCrossEntropy.apply(states, sampled_rows, own, bias, place[index], targets != PAD)  # type: ignore[no-untyped-call]
    return loss


class _SampledCrossEntropy(torch.autograd.Function):
    """The mean over own items of log(1 + Σ_j exp(b_j + ⟨s, v_j⟩) / exp ⟨s, v⟩), without the own items in the sample.

    The gradients are computed together with the loss, as for `cross_entropy`.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, sample: Tensor, own: Tensor, bias: Tensor, place: Tensor, real: Tensor
    ) -> Tensor:
        """States [N, dim], the sample [S, dim] and its b [S]; own items [N, K, dim], where they are in it, or S."""
        total, inside = states.new_zeros(()), real & (place < len(sample))
        grad_states, grad_sample, grad_own = torch.empty_like(states), torch.zeros_like(sample), torch.empty_like(own)
        rows = max(1, CHUNK[states.device.type] // max(1, len(sample)))
        for part in (slice(start, start + rows) for start in range(0, len(states), rows)):
            s, v = states[part], own[part]
            logits = torch.addmm(bias, s, sample.T)
            row, column = inside[part].nonzero(as_tuple=True)
            logits[row, place[part][row, column]] = -torch.inf
            log_sum = logits.logsumexp(1, keepdim=True).clamp_(min=LEAST_LOG)
            above = log_sum - torch.bmm(v, s.unsqueeze(2)).squeeze(2)
            total += (softplus(above) * real[part]).sum()
            share = above.sigmoid() * real[part]
            logits.sub_(log_sum).exp_().mul_(share.sum(1, keepdim=True))
            grad_states[part] = logits @ sample - torch.bmm(share.unsqueeze(1), v).squeeze(1)
            grad_sample.addmm_(logits.T, s)
            grad_own[part] = -share.unsqueeze(2) * s.unsqueeze(1)
        count = real.sum().clamp(min=1)
        ctx.save_for_backward(*(grad.div_(count) for grad in (grad_states, grad_sample, grad_own)))
        return total / count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *(saved * grads[0] for saved in ctx.saved_tensors), None, None, None

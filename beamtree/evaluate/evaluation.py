"""Evaluation: P@m, R@m, F@m over users (Sec. 3.2.2), and other metrics, in all and by segment, with intervals."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.beam import BeamSize, retrieve
from beamtree.data import BeforeAfter, Data, Events, Prepared
from beamtree.data.frames import make_frame
from beamtree.data.times import in_micros
from beamtree.data.views import KnownUsers
from beamtree.errors import lookup, positive_int
from beamtree.evaluate.beyond_accuracy import LIST_METRICS, ItemFacts, ListMetric, Starts
from beamtree.evaluate.metrics import METRICS, Metric, bootstrap, few_users, hits, num_relevant, recall, weighted_hits
from beamtree.evaluate.slices import SEGMENTS
from beamtree.model import TreeModel
from beamtree.scorers import TableScorer, with_inputs
from beamtree.search.choice import AUTO
from beamtree.tree import PAD

Find = Callable[[Tensor, Tensor], Tensor]  # (users x, items to exclude [B, E]) -> the best items, best first
OnUsers = Callable[[int], None]  # users done since the last call
WEIGHTED_RECALL = "weighted_recall"
NO_FACTS = ItemFacts()
ALL_METRICS: dict[str, Metric | ListMetric] = {**METRICS, WEIGHTED_RECALL: recall, **LIST_METRICS}


class NoNewItemsError(ValueError):
    """No user chose anything new, so there is nothing to measure where seen items are left out."""


@dataclass(frozen=True)
class Score:
    """One metric at one m: its mean over users and the 95 % interval of that mean."""

    metric: str
    m: int
    value: float
    low: float
    high: float

    def record(self) -> dict[str, str | int | float]:
        return vars(self).copy()

    def as_text(self) -> tuple[str, str, str]:
        """The value and its interval, in percent where that is usual."""
        in_percent = self.metric not in LIST_METRICS or LIST_METRICS[self.metric].in_percent
        value, low, high = (
            f"{number * (100 if in_percent else 1):.2f}" for number in (self.value, self.low, self.high)
        )
        return value, low, high


@dataclass(frozen=True)
class FittedUsers:
    """The users that a model was fitted to.

    Args:
        data: the training log.
        sections: its users that the model was fitted to: the training users, and after an update or a refit others too.
        updated: users of updates after training.
        updated_until: the time of the newest event of an update, in microseconds if it is a date.
    """

    data: Prepared
    sections: Sequence[BeforeAfter]
    updated: frozenset[str] = frozenset()
    updated_until: float = -math.inf

    def warning(self, users: Data) -> str | None:
        """How many users the model was fitted to; None if there are none, or it is not known who they are."""
        if not isinstance(users, BeforeAfter) or isinstance(users, KnownUsers):
            return None
        fitted_to = tuple(view.events.name for view in self.sections)
        kept_apart = self.data.holds_out(users) and not users.events.name.startswith(fitted_to)
        names = None if kept_apart and not self.updated else users.user_names()
        if not names:
            return None
        fitted, until = set(self.updated), self.updated_until
        if not kept_apart:
            for view in self.sections:
                fitted |= set(names) & set(view.user_names() or ())
                until = max(until, _last_time(view.events))
        rows = torch.tensor([row for row, name in enumerate(names) if name in fitted], dtype=torch.int64)
        if len(rows) and users.events.times is not None:
            first = users.target_index(rows)[:, 0].cpu()
            rows = rows[in_micros(users.events.times)[first] <= until]  # a later log is fine
        if not len(rows):
            return None
        count = f"{len(rows):,} of {len(names):,} users were in training"
        return f"{count}: their scores are too high; evaluate on test users, or on a later log"


def _last_time(events: Events) -> float:
    """The newest time of some events; inf where times are not known."""
    times = None if events.times is None else events.times[events.span()]
    return math.inf if times is None or not len(times) else float(in_micros(times).max())


class Evaluation(Mapping[tuple[str, int], float]):
    """The scores of a model: `evaluation["recall", 200]` is a mean; it prints as a table."""

    def __init__(
        self, scores: list[Score], values: Tensor, users_asked: int | None = None, exclude_seen: bool = False
    ) -> None:
        self.scores = scores
        self.per_user = values  # [U, cuts, metrics]
        self.users = len(values)
        self.users_asked = self.users if users_asked is None else users_asked  # with those left out
        self.exclude_seen = exclude_seen
        self.of = "users"  # what the means are taken over
        self.warnings: list[str] = []  # why the scores may mislead
        self.segments: dict[str, Evaluation] = {}  # the same for parts of what is to be predicted, where asked
        self.model = ""  # which model was measured, where a run was fitted again to all users
        self.frame_kind: str | None = None  # of `to_frame`: polars, or pandas where the log was a frame of pandas
        self._means = {(score.metric, score.m): score.value for score in scores}

    def __getitem__(self, key: tuple[str, int]) -> float:
        return self._means[key]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._means)

    def __len__(self) -> int:
        return len(self._means)

    def __str__(self) -> str:
        cuts = list(dict.fromkeys(score.m for score in self.scores))
        names = list(dict.fromkeys(score.metric for score in self.scores))
        width = max(10, *(len(name) + 2 for name in (*names, *self.segments)))
        lines = ["".join([f"{'%':<{width}}", *(f"{f'@{m}':>25}" for m in cuts)])]
        for title, part in (("", self), *self.segments.items()):
            lines += [f"{title} ({part.users:,} {self.of})"] if title else []
            for metric in dict.fromkeys(score.metric for score in part.scores):
                texts = [score.as_text() for score in part.scores if score.metric == metric]
                cells = [f"{value} [{low}, {high}]" for value, low, high in texts]
                lines.append("".join([f"{metric:<{width}}", *(f"{cell:>25}" for cell in cells)]))
        lines.append(f"{self.users:,} {self.of}; in brackets the 95 % interval of the mean over {self.of}")
        plain = [name for name in names if name in LIST_METRICS and not LIST_METRICS[name].in_percent]
        if plain:
            lines.append(f"not in percent: {', '.join(plain)}")
        if self.exclude_seen:
            left_out = self.users_asked - self.users
            who = f"; so were {left_out:,} of {self.users_asked:,} users, who chose nothing new" if left_out else ""
            lines.append(f"seen items left out{who}")
        if self.model:
            lines.append(f"of the model {self.model}")
        return "\n".join(lines)

    __repr__ = __str__

    def records(self) -> list[dict[str, str | int | float]]:
        """One record per metric and m: metric, m, value, low, high; after them those of each segment, with its name."""
        parts = (("all", self), *self.segments.items())
        segment = ({"segment": name} if self.segments else {} for name, _ in parts)
        return [
            {**named, **score.record()}
            for named, (_, part) in zip(segment, parts, strict=True)
            for score in part.scores
        ]

    def to_frame(self) -> Any:
        """One row per metric and m: metric, m, value, low, high; if there are segments, a first column names them."""
        records = self.records()
        return make_frame({name: [row[name] for row in records] for name in records[0]}, kind=self.frame_kind)


def evaluate(
    model: TreeModel,
    data: Data,
    *,
    beam_size: BeamSize | None = None,
    m: Sequence[int] | int = (10, 50, 100, 200),
    metrics: Sequence[str | Metric] | str | Metric = ("precision", "recall", "f1"),
    exclude_seen: bool = False,
    by: str | None = None,
    batch_size: int = 64,
    on_users: OnUsers | None = None,
    starts: Starts | None = None,
    search: str = AUTO,
) -> Evaluation:
    """The mean over users of each metric at each m, from one search.

    Args:
        model: the model.
        data: users and their targets, such as `data.test`.
        beam_size: k, or one width for each searched level. Default: 400 or the largest m.
        m: the number of retrieved items, or several cuts of one list.
        metrics: one or several: names of `metrics.METRICS`, weighted_recall, coverage, novelty, popularity_bias,
            diversity, age, or your own functions (hits [B, m], |I_x| [B], m) -> [B].
        exclude_seen: whether items that a user has seen are neither retrieved nor expected.
        by: also for parts of what is to be predicted: by time, history (of the user) or popularity (of the item).
        batch_size: users that are searched together.
        on_users: called with the number of users done since the last call.
        starts: when each item began, for their age; with their first event in the log of these users unless given.
        search: auto, beam or scan, as in `retrieve`.
    """
    model.tree.check_items(data.item_numbers())
    cuts = all_cuts(m)
    return measure(
        search_function(model, beam_size, max(cuts, default=1), search),  # `measure` refuses an empty m
        with_inputs(model.scorer, data),
        m=cuts,
        metrics=metrics,
        exclude_seen=exclude_seen,
        by=by,
        facts=item_facts(model, data, starts),
        batch_size=batch_size,
        on_users=on_users,
    )


def warnings_about(result: Evaluation, users: Data, fitted: FittedUsers | None) -> list[str]:
    """Why the scores may mislead: users that the model was fitted to, and few users."""
    warnings = [None if fitted is None else fitted.warning(users), few_users(result.users)]
    return [warning for warning in warnings if warning is not None]


def item_facts(model: TreeModel, users: Data | None = None, starts: Starts | None = None) -> ItemFacts:
    """What metrics of lists need to know about the items of a model; `starts` are from the log of `users` else."""
    vectors = model.vectors_of if isinstance(model.scorer, TableScorer) else None
    if starts is None and isinstance(users, BeforeAfter) and users.events.clock is not None:
        events, count = users.events, model.tree.num_items
        return ItemFacts(model.tree.num_visible, model.popularity, vectors, lambda: events.starts(count))
    return ItemFacts(model.tree.num_visible, model.popularity, vectors, starts)


def search_function(model: TreeModel, beam_size: BeamSize | None, m: int, search: str = AUTO) -> Find:
    """A function that finds the m best items of a model, for users on any device."""
    device = model.tree.device

    def find(x: Tensor, exclude: Tensor) -> Tensor:
        x, exclude = x.to(device), exclude.to(device)
        return retrieve(model, x, beam_size=beam_size, m=m, exclude=exclude, search=search)[0]

    return find


class Batch(NamedTuple):
    """What metrics see of some users."""

    items: Tensor  # retrieved [B, m]
    y: Tensor  # targets [B, P]
    weights: Tensor  # of the targets [B, P]; [B, 0] where they are not needed, like the next
    history: Tensor  # all items seen before [B, S]
    time: Tensor  # of the request: that of the first event to come, in seconds [B]; [0] where it is not needed

    def of(self, mask: Tensor) -> "Batch":
        """The users with targets in a mask [B, P], with these targets."""
        y = self.y.masked_fill(~mask, PAD)
        users = (y != PAD).any(1)
        time = self.time[users] if len(self.time) else self.time
        return Batch(self.items[users], y[users], self.weights[users], self.history[users], time)


class MetricValues:
    """What the metrics keep of the users measured so far."""

    def __init__(self, metrics: Mapping[str, Metric | ListMetric], cuts: Sequence[int], facts: ItemFacts) -> None:
        self._metrics, self._cuts, self._facts = metrics, cuts, facts
        self._kept: list[tuple[int, str, list[Tensor]]] = [(m, name, []) for m in cuts for name in metrics]

    def add(self, batch: Batch) -> None:
        """Measure some users."""
        if not len(batch.y):
            return
        hit, relevant = hits(batch.items, batch.y), num_relevant(batch.y)
        gain, total = weighted_hits(batch.items, batch.y, batch.weights) if batch.weights.shape[1] else (hit, relevant)
        for m, name, kept in self._kept:
            metric = self._metrics[name]
            if isinstance(metric, ListMetric):
                kept.append(metric.keep(batch.items[:, :m], getattr(batch, metric.read), self._facts))
            elif name == WEIGHTED_RECALL:
                kept.append(metric(gain, total, m).float())
            else:
                kept.append(metric(hit, relevant, m).float())

    def values(self) -> Tensor:
        """A value for each user, whose mean over users is the metric [U, cuts, metrics]; U may be 0."""
        finished = []
        for _, name, parts in self._kept:
            kept, metric = torch.cat(parts) if parts else torch.empty(0), self._metrics[name]
            if isinstance(metric, ListMetric) and parts:
                kept = metric.finish(kept, self._facts).float()
            finished.append(kept)
        return torch.stack(finished, dim=1).view(-1, len(self._cuts), len(self._metrics))


def measure(
    find: Find,
    data: Data,
    *,
    m: Sequence[int] | int = (10, 50, 100, 200),
    metrics: Sequence[str | Metric] | str | Metric = ("precision", "recall", "f1"),
    exclude_seen: bool = False,
    by: str | None = None,
    facts: ItemFacts = NO_FACTS,
    batch_size: int = 64,
    on_users: OnUsers | None = None,
) -> Evaluation:
    """The same for any function that finds items.

    Args:
        find: (users x, items to exclude [B, E]) -> the best items, best first.
        data: users and their targets.
        m: the number of items, or several.
        metrics: names, or your own functions.
        exclude_seen: whether seen items are excluded from results and targets, with users who have no other targets.
        by: also for parts of what is to be predicted: by time, history (of the user) or popularity (of the item).
        facts: about the items, for popularity and for metrics of lists.
        batch_size: users in one call of `find`.
        on_users: called with the number of users done since the last call.
    """
    named, cuts = named_metrics(metrics, ALL_METRICS), all_cuts(m)
    if not named or not cuts:
        raise ValueError(f"nothing to measure: give an m and a metric of {', '.join(ALL_METRICS)}")
    if not len(data):
        raise ValueError("there are no users to measure")
    log_users = data if isinstance(data, BeforeAfter) else None
    weights = log_users.events.weights if log_users is not None and WEIGHTED_RECALL in named else None
    if WEIGHTED_RECALL in named and weights is None:
        raise ValueError(f"{WEIGHTED_RECALL}: all events count the same; prepare the log with `weight` or `kinds`")
    segments = None
    if by is not None:
        make_segments = lookup(SEGMENTS, "by", by)
        if log_users is None:
            raise ValueError(f"by={by!r}: only users of a log have segments")
        segments = make_segments(log_users, facts)
    # A list belongs to a user: where segments divide the targets of a user, nothing can be said of lists.
    whole_lists = segments is None or segments.of_users
    of_targets = {name: metric for name, metric in named.items() if whole_lists or not isinstance(metric, ListMetric)}
    if not of_targets:
        raise ValueError(f"by={by!r} divides what is to be found: add a metric such as recall")
    measured = [MetricValues(named, cuts, facts)]
    measured += [MetricValues(of_targets, cuts, facts) for _ in (segments.names if segments is not None else ())]
    for start in range(0, len(data), batch_size):
        rows = torch.arange(start, min(start + batch_size, len(data)))
        x, y = (part.cpu() for part in data.batch(rows))
        nothing = torch.empty(len(x), 0, dtype=torch.int64)
        exclude = data.seen(rows).cpu() if exclude_seen else nothing
        y = y.masked_fill(hits(y, exclude), PAD)
        left = (y != PAD).any(1) | (not exclude_seen)
        if bool(left.any()):
            index = nothing
            if log_users is not None and (segments is not None or weights is not None):
                index = log_users.target_index(rows).cpu()  # [B, P], as y
            y_weights = nothing if weights is None else weights[index.clamp(min=0).to(weights.device)].cpu()
            history = data.seen(rows).cpu() if "popularity_bias" in named else nothing
            items = find(x[left], exclude[left]).cpu()
            time = nothing[0]
            if log_users is not None and "age" in named:
                time = _request_times(log_users, rows)[left]
            batch = Batch(items, y[left], y_weights[left], history[left], time)
            measured[0].add(batch)
            if segments is not None:
                number = segments.of(rows[left], index[left], y[left])
                for segment, part in enumerate(measured[1:]):
                    part.add(batch.of(number == segment))
        if on_users is not None:
            on_users(len(rows))
    values = measured[0].values()
    if not len(values):
        raise NoNewItemsError("no user has a target that was not seen before: nothing to measure")
    result = summarise(values, cuts, tuple(named), len(data), exclude_seen)
    if segments is not None:
        parts = zip(segments.names, (part.values() for part in measured[1:]), strict=True)
        result.segments = {name: summarise(part, cuts, tuple(of_targets)) for name, part in parts if len(part)}
    return result


def _request_times(users: BeforeAfter, rows: Tensor) -> Tensor:
    """The times of the first events of some users that are to be predicted, else of their newest, in seconds [B]."""
    first = pad(users.target_index(rows), (0, 1), value=PAD)[:, 0].cpu()
    newest = users.events.offsets.cpu()[rows + 1] - 1
    return users.events.seconds(first.where(first != PAD, newest))


def all_cuts(m: Iterable[int] | int) -> tuple[int, ...]:
    """One or several m as a tuple; a ValueError where one is not a whole number above 0."""
    return tuple(positive_int("m", each) for each in (m if isinstance(m, Iterable) else (m,)))


def leaving_out(retrieve: Callable[[Tensor, int], tuple[Tensor, Tensor]], m: int) -> Find:
    """A search without an `exclude` argument as a `Find`: it retrieves more items, and excluded ones are removed."""

    def find(x: Tensor, exclude: Tensor) -> Tensor:
        items, scores = retrieve(x, m + exclude.shape[1])
        if not exclude.shape[1]:
            return items
        scores = scores.double().masked_fill(hits(items, exclude.to(items.device)), -torch.inf)
        best = scores.topk(min(m, scores.shape[1]))
        left = items.gather(1, best.indices).masked_fill(best.values == -torch.inf, PAD)
        return pad(left, (0, m - left.shape[1]), value=PAD)

    return find


def named_metrics(
    metrics: Sequence[str | Metric] | str | Metric, known: Mapping[str, Metric | ListMetric] = METRICS
) -> dict[str, Metric | ListMetric]:
    """One or several metrics by name; a ValueError where one is unknown."""
    if isinstance(metrics, str) or callable(metrics):
        metrics = (metrics,)
    named: dict[str, Metric | ListMetric] = {}
    for metric in metrics:
        name = metric if isinstance(metric, str) else getattr(metric, "__name__", repr(metric))
        function = lookup(known, "metric", metric) if isinstance(metric, str) else metric
        if named.setdefault(name, function) is not function:
            raise ValueError(f"two metrics are called {name!r}: give each function a name of its own")
    return named


def summarise(
    values: Tensor,
    m: Sequence[int],
    metrics: Sequence[str],
    users_asked: int | None = None,
    exclude_seen: bool = False,
) -> Evaluation:
    """Means and intervals over users of values [U, cuts, metrics]."""
    means = values.double().mean(0)
    low, high = (bound.view_as(means) for bound in bootstrap(values.flatten(1)))
    scores = [
        Score(name, size, float(means[i, j]), float(low[i, j]), float(high[i, j]))
        for j, name in enumerate(metrics)
        for i, size in enumerate(m)
    ]
    return Evaluation(scores, values, users_asked, exclude_seen)

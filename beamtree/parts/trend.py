"""The trend part: what is chosen now, by half-lives of which validation users choose."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from beamtree.data import Events, Prepared
from beamtree.data.times import DAY
from beamtree.parts.base import NOTHING_FITTED, ClosedFormPart, FittedCandidates
from beamtree.parts.closed_form import ClosedForm
from beamtree.scorers import Scorer, TrendScorer
from beamtree.scorers.trend import TREND

HALF_LIVES = {  # in seconds, longest first, with the names of their candidates
    f"{TREND}, {name}": days * DAY
    for name, days in {"365 days": 365, "90 days": 90, "30 days": 30, "7 days": 7, "1 day": 1, "6 hours": 0.25}.items()
}
CANDIDATES = 4  # half-lives that are weighed
SHARE = 0.25  # of the log, that a half-life may be


class TrendPart(ClosedFormPart):
    """Counts of events that fade; each half-life is weighed as a candidate of its own."""

    name = TREND
    stages: ClassVar = {}
    fades = True

    def obstacle(self, data: Prepared) -> str | None:
        return None if data.train.events.clock is not None else "times that are dates or Unix times"

    def fit_candidates(self, form: ClosedForm) -> FittedCandidates:
        events = form.fitted_events
        if events.clock is None or not len(events.item_numbers()):
            return NOTHING_FITTED
        chosen = form.hyperparameters.get("weights")
        names = half_lives(events) if chosen is None else [name for name in HALF_LIVES if chosen.get(name)]
        columns = decayed_counts(events, form.data.num_items, [HALF_LIVES[name] for name in names])
        counts = dict(zip(names, columns.T, strict=True))
        end = int(seconds_of(events).max())

        def scorer(names: list[str], weights: list[float]) -> TrendScorer:
            columns = torch.stack([counts[name] for name in names], dim=1)
            return form.trend_scorer(columns, [HALF_LIVES[name] for name in names], weights, end)

        def combine(others: object) -> TrendScorer | None:
            used = [name for name in names if form.weight(name)]
            return scorer(used, [form.scale(name) * form.weight(name) for name in used]) if used else None

        return FittedCandidates({name: scorer([name], [1.0]) for name in names}, combine)

    def report(self, scorer: Scorer) -> list[str]:
        weights = scorer.hyperparameters.get("weights", {})
        used = [name.removeprefix(f"{TREND}, ") for name in HALF_LIVES if weights.get(name)]
        if used:
            return [f"What is chosen now counts: events lose half of their weight in {' and in '.join(used)}."]
        return []


def half_lives(events: Events) -> list[str]:
    """The longest half-lives that are short beside the log."""
    span = events.span_of_time()
    return [name for name, half_life in HALF_LIVES.items() if half_life <= SHARE * span][:CANDIDATES]


def seconds_of(events: Events) -> Tensor:
    """The time of every event, user by user [E]."""
    span = events.span()
    return events.seconds(torch.arange(span.start, span.stop))


def decayed_counts(events: Events, num_items: int, half_lives: Sequence[float]) -> Tensor:
    """Σ 2^(-age / h) over the events of each item, for each half-life h [M, columns].

    The age of an event is the time from it to the newest of all, without the days (UTC) on which nothing was recorded.
    Of the events of a user with an item on one day only the one that counts most does. Where events have weights they
    count as much, and those that are not to be predicted do not.
    """
    seconds, items = seconds_of(events), events.item_numbers().long().cpu()
    days, day = torch.unique(seconds // DAY, return_inverse=True)
    passed = day * DAY + seconds % DAY
    owner = torch.repeat_interleave(events.counts().cpu())
    pairs, group = torch.unique((owner * num_items + items) * len(days) + day, return_inverse=True)
    share = torch.exp2((passed - passed.max()).unsqueeze(1) / torch.tensor(half_lives, dtype=torch.float64))
    if (weights := events.own_weights()) is not None:
        share *= weights.cpu().clamp(min=0).unsqueeze(1)
    most = torch.zeros(len(pairs), len(half_lives), dtype=share.dtype)
    most.scatter_reduce_(0, group.unsqueeze(1).expand_as(share), share, "amax")
    item = pairs // len(days) % num_items
    return torch.zeros(num_items, len(half_lives), dtype=share.dtype).index_add_(0, item, most).float()

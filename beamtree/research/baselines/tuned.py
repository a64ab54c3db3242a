"""What tuned baselines share: randomly numbered items, ranking with the history, and settings by validation users.

Where a log has a clock, events may lose half of their weight in a half-life, which is a setting too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.data import BeforeAfter, Events
from beamtree.data.inputs import WHOLE_HISTORY
from beamtree.data.times import DAY
from beamtree.data.views import recency
from beamtree.evaluate.metrics import hits, num_relevant, recall
from beamtree.research.baselines import pad_results
from beamtree.scorers.factors import newest_of_each
from beamtree.tree import PAD

CUTS = (10, 50, 100, 200)
USERS = 1000  # validation users, at most
MAX_SCORES = 1 << 25  # scores that are in memory at once: 128 MB
LOG_SHARES = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)  # half-lives that are tried, as shares of the length of the log
HALF_LIFE = "half-life in days"  # a setting where a log has a clock; 0: all events count the same

Score = Callable[[Tensor], Tensor]  # histories [B, T] -> the score of every item [B, M], items numbered as in the log
Settings = dict[str, float]
Trial = tuple[Settings, Tensor]  # settings, and the recall of validation users at CUTS [4]


@dataclass(frozen=True)
class ShuffledLog:
    """Training events and validation users, the items renumbered at random.

    Ties must not be broken by an item's own number: numbers go by popularity, which test users contribute to.
    """

    events: Events
    num_items: int
    order: Tensor  # the item behind each random number [M]
    x: Tensor  # histories of validation users [V, T]
    y: Tensor  # what they chose next [V, P]

    @property
    def batch_rows(self) -> int:
        """How many histories are scored at once: each needs a number per item, or per user."""
        return max(1, MAX_SCORES // max(self.num_items, len(self.events)))

    def renumber(self, items: Tensor) -> Tensor:
        """The random numbers of items, in any shape; PAD stays."""
        items = items.cpu()
        if items.numel() and int(items.max()) >= self.num_items:
            raise ValueError(f"item {int(items.max())} in a history: the log has items 0…{self.num_items - 1}")
        return _inverse(self.order)[items.clamp(min=0).long()].where(items != PAD, PAD)

    def aged(self, settings: Settings) -> "ShuffledLog":
        """The same log, whose events lose weight with the half-life of some settings."""
        days = settings.get(HALF_LIFE, 0.0)
        return replace(self, events=self.events.decayed(days * DAY)) if days else self


def shuffle_items(events: Events, num_items: int, val: BeforeAfter | None = None, seed: int = 0) -> ShuffledLog:
    """Renumber the items of training events and of validation users, if there are any."""
    order = torch.randperm(num_items, generator=torch.Generator().manual_seed(seed))
    items = _inverse(order)[events.item_numbers().cpu().long()]
    weights, times = events.own_weights(), None if events.times is None else events.times[events.span()]
    weights = None if weights is None else weights.cpu()
    offsets = (events.offsets - events.offsets[0]).cpu()
    shuffled = Events(offsets, items, events.name, weights=weights, times=times, clock=events.clock)
    empty = torch.empty(0, 1, dtype=torch.int64)
    log = ShuffledLog(shuffled, num_items, order, empty, empty)
    if val is None or not len(val):
        return log
    x, y = replace(val, history=WHOLE_HISTORY).batch(torch.arange(min(USERS, len(val))))
    return replace(log, x=log.renumber(x), y=log.renumber(y))


def _inverse(order: Tensor) -> Tensor:
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))


class Ranking(NamedTuple):
    """The best items outside the histories, and the scores of the items in the histories."""

    items: Tensor  # [B, m]
    scores: Tensor  # [B, m], -inf for items without a score
    history_scores: Tensor  # of x [B, T], -inf for PAD


def rank_outside_history(scores: Tensor, x: Tensor, m: int) -> Ranking:
    """Rank all items [B, M] but those of histories x [B, T], which must not repeat; scores are overwritten.

    A score of exactly 0 means that there is no evidence for an item, so it is not ranked.
    """
    history_scores = scores.gather(1, x.clamp(min=0)).masked_fill_(x == PAD, -torch.inf)
    scores.masked_fill_(scores == 0, -torch.inf)
    row, column = (x != PAD).nonzero(as_tuple=True)
    scores[row, x[row, column]] = -torch.inf
    best = scores.topk(min(m, scores.shape[1]))
    return Ranking(best.indices, best.values, history_scores)


def rank_with_history(ranking: Ranking, x: Tensor, bonus: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The m best of both, with a bonus [T] for the items of the history; padded with PAD and -inf."""
    scores = torch.cat([ranking.scores, ranking.history_scores + bonus], dim=1)
    best = scores.topk(min(m, scores.shape[1]))
    items = torch.cat([ranking.items, x], dim=1).gather(1, best.indices).masked_fill(best.values == -torch.inf, PAD)
    return pad_results(items, best.values, m)


def drop_repeats(x: Tensor) -> Tensor:
    """Histories [B, T] with only the newest event of each item."""
    return x.where(newest_of_each(x), PAD)


def history_bonus(length: int, settings: Settings) -> Tensor:
    """The bonus of an item of the history, by position [T]: w (1 + t)^-p."""
    return settings["repeats"] * recency(settings["recency"], length)


class TunedBaseline:
    """Scores every item, plus w (1 + t)^-p for items of the history, because users choose items again.

    With w = -inf the history is left out.
    """

    def __init__(self, log: ShuffledLog, score: Score, settings: Settings, num_bytes: int) -> None:
        """`settings` has w as "repeats" and p as "recency", and those that the scores were made with."""
        self.settings, self.num_bytes = settings, num_bytes
        self._log, self._score = log, score

    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m best items of each history x [B, T] and their scores [B, m]; padded with PAD and -inf."""
        items, scores = torch.full((len(x), m), PAD), torch.full((len(x), m), -torch.inf)
        bonus = history_bonus(x.shape[1], self.settings)
        numbers = self._log.renumber(x)
        for rows in torch.arange(len(x)).split(self._log.batch_rows):
            history = drop_repeats(numbers[rows])
            ranking = rank_outside_history(self._score(numbers[rows]), history, m)
            best, scores[rows] = rank_with_history(ranking, history, bonus, m)
            items[rows] = self._log.order[best.clamp(min=0)].where(best != PAD, PAD)
        return items.to(x.device), scores.to(x.device)


def try_repeats(log: ShuffledLog, score: Score, settings: Settings, repeats: Sequence[float]) -> list[Trial]:
    """The recall of validation users with each weight w of the history."""
    trials = [{**settings, "repeats": w} for w in repeats]
    total = torch.zeros(len(trials), len(CUTS), dtype=torch.float64)
    for rows in torch.arange(len(log.x)).split(log.batch_rows):
        history, y = drop_repeats(log.x[rows]), log.y[rows]
        ranking, relevant = rank_outside_history(score(log.x[rows]), history, max(CUTS)), num_relevant(y)
        for index, trial in enumerate(trials):
            bonus = history_bonus(history.shape[1], trial)
            hit = hits(rank_with_history(ranking, history, bonus, max(CUTS))[0], y)
            total[index] += torch.stack([recall(hit, relevant, m).double().sum() for m in CUTS])
    return list(zip(trials, total / len(log.x), strict=True))


def best_settings(trials: Sequence[Trial]) -> Settings:
    """The settings with the highest mean over the cuts of recall relative to the best at that cut."""
    recalls = torch.stack([values for _, values in trials])  # [n, cuts]
    relative = (recalls / recalls.amax(0).clamp(min=1e-9)).mean(1)
    return trials[int(relative.argmax())][0]


def settings_with_half_life(
    log: ShuffledLog, trials: Sequence[Trial], attempt: Callable[[ShuffledLog, Settings], list[Trial]]
) -> Settings:
    """The best settings, after every half-life was tried with the best that have none; those where there is no clock.

    `attempt` tries what can be tried at little cost with a log and the other settings.
    """
    best, span = best_settings(trials), log.events.span_of_time() / DAY
    if not span:
        return best
    trials = [({**settings, HALF_LIFE: 0.0}, values) for settings, values in trials]
    for share in LOG_SHARES:
        settings = {**best, HALF_LIFE: share * span}
        trials += attempt(log.aged(settings), settings)
    return best_settings(trials)

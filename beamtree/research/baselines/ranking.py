"""What the tuned peers share: items with random numbers, lists of the best, and settings by validation users."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn.functional import pad

from beamtree.closed_form.cooccurrence import newest_of_each
from beamtree.closed_form.partners import Partners
from beamtree.data import BeforeAfter, Events
from beamtree.data.views import recency
from beamtree.metrics import hits, num_relevant, recall
from beamtree.tree import PAD

CUTS = (10, 50, 100, 200)
USERS = 1000  # validation users that are asked, at most
ROOM = 1 << 25  # scores that are held at once: 128 MB

Score = Callable[[Tensor], Tensor]  # histories [B, T] -> the score of every item [B, M], in the numbers of a log
Settings = dict[str, float]


@dataclass(frozen=True)
class Log:
    """Training events and validation users, the items renumbered at random.

    Which of two equal items comes first must not go by the item's number: numbers go by popularity, in which test
    users have a part.
    """

    events: Events
    num_items: int
    order: Tensor  # the item behind each number [M]
    x: Tensor  # histories of validation users [V, T]
    y: Tensor  # and what followed [V, P]

    @property
    def together(self) -> int:
        """How many histories are scored at once: for each there are numbers of all items, or of all users."""
        return max(1, ROOM // max(self.num_items, len(self.events)))

    def numbers(self, items: Tensor) -> Tensor:
        """The numbers of items, in any shape; PAD stays."""
        items = items.cpu()
        if items.numel() and int(items.max()) >= self.num_items:
            raise ValueError(f"item {int(items.max())} in a history: the log has items 0…{self.num_items - 1}")
        return _place(self.order)[items.clamp(min=0).long()].where(items != PAD, PAD)


def renumbered(events: Events, num_items: int, val: BeforeAfter | None = None, seed: int = 0) -> Log:
    """The log of a peer; without validation users where there are none."""
    order = torch.randperm(num_items, generator=torch.Generator().manual_seed(seed))
    items = _place(order)[events.item_numbers().cpu().long()]
    own = Events((events.offsets - events.offsets[0]).cpu(), items, events.name)
    none = torch.empty(0, 1, dtype=torch.int64)
    log = Log(own, num_items, order, none, none)
    if val is None or not len(val):
        return log
    x, y = val.batch(torch.arange(min(USERS, len(val))))
    return Log(own, num_items, order, log.numbers(x), log.numbers(y))


def _place(order: Tensor) -> Tensor:
    """The number of each item [M]."""
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))


class Found(NamedTuple):
    """The best items outside the histories, and the scores of the histories' own."""

    items: Tensor  # [B, m]
    scores: Tensor  # [B, m], -inf where nothing speaks for an item
    own: Tensor  # the scores of x [B, T], -inf for PAD


def apart(scores: Tensor, x: Tensor, m: int) -> Found:
    """Rank all items [B, M] but those of histories x [B, T], each of which x holds once; scores are overwritten.

    An item with a score of exactly 0 is one that nothing speaks for: no training user has it, or nobody near.
    """
    own = scores.gather(1, x.clamp(min=0)).masked_fill_(x == PAD, -torch.inf)
    scores.masked_fill_(scores == 0, -torch.inf)
    row, column = (x != PAD).nonzero(as_tuple=True)
    scores[row, x[row, column]] = -torch.inf
    best = scores.topk(min(m, scores.shape[1]))
    return Found(best.indices, best.values, own)


def ranked(found: Found, x: Tensor, extra: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The m best of both, where what is in a history scores `extra` [T] more; PAD and -inf where fewer."""
    scores = torch.cat([found.scores, found.own + extra], dim=1)
    best = scores.topk(min(m, scores.shape[1]))
    items = torch.cat([found.items, x], dim=1).gather(1, best.indices).masked_fill(best.values == -torch.inf, PAD)
    spare = (0, m - items.shape[1])
    return pad(items, spare, value=PAD), pad(best.values, spare, value=-torch.inf)


def once(x: Tensor) -> Tensor:
    """Histories [B, T] in which of a repeated item the newest alone is left."""
    return x.where(newest_of_each(x), PAD)


def weighted(x: Tensor, weights: Tensor, num_items: int) -> csr_matrix:
    """The weights [T] of the events of histories x [B, T], summed item by item [B, M]."""
    row, column = (x != PAD).nonzero(as_tuple=True)
    value = weights[column].numpy().astype(np.float32)
    return csr_matrix((value, (row.numpy(), x[row, column].numpy())), (len(x), num_items))


def as_matrix(partners: Partners) -> csr_matrix:
    """What each item says of each other [M, M], on every rank."""
    partners = partners.whole()
    parts = partners.weights.numpy(), partners.items.numpy(), partners.offsets.numpy()
    return csr_matrix(parts, (len(partners), len(partners)))


class Peer:
    """A row that scores every item, and gives what is in the history w (1 + t)^-p more: what was chosen comes again.

    With a w of -inf the history is left out.
    """

    def __init__(self, log: Log, score: Score, settings: Settings, num_bytes: int) -> None:
        """`settings` hold w as "repeats" and p as "recency", and whatever else the scores were made with."""
        self.settings, self.num_bytes = settings, num_bytes
        self._log, self._score = log, score

    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m best items of each history x [B, T] and their scores [B, m]; PAD and -inf where fewer."""
        items, scores = torch.full((len(x), m), PAD), torch.full((len(x), m), -torch.inf)
        extra = repeated(x.shape[1], self.settings)
        numbers = self._log.numbers(x)
        for rows in torch.arange(len(x)).split(self._log.together):
            own = once(numbers[rows])
            found = apart(self._score(numbers[rows]), own, m)
            place, scores[rows] = ranked(found, own, extra, m)
            items[rows] = self._log.order[place.clamp(min=0)].where(place != PAD, PAD)
        return items.to(x.device), scores.to(x.device)


def repeated(length: int, settings: Settings) -> Tensor:
    """What an item of the history scores more, by its place [T]."""
    return settings["repeats"] * recency(settings["recency"], length)


Trial = tuple[Settings, Tensor]  # settings, and the recall at CUTS that validation users had with them [4]


def try_repeats(log: Log, score: Score, settings: Settings, repeats: Sequence[float]) -> list[Trial]:
    """What validation users find with scores, and with each w for what is in their history."""
    trials = [{**settings, "repeats": w} for w in repeats]
    total = torch.zeros(len(trials), len(CUTS), dtype=torch.float64)
    for rows in torch.arange(len(log.x)).split(log.together):
        own, y = once(log.x[rows]), log.y[rows]
        found, relevant = apart(score(log.x[rows]), own, max(CUTS)), num_relevant(y)
        for place, trial in enumerate(trials):
            hit = hits(ranked(found, own, repeated(own.shape[1], trial), max(CUTS))[0], y)
            total[place] += torch.stack([recall(hit, relevant, m).double().sum() for m in CUTS])
    return list(zip(trials, total / len(log.x), strict=True))


def best_of(trials: Sequence[Trial]) -> Settings:
    """The settings of the highest mean over the cuts, each relative to the best found there."""
    return trials[int(_relative(trials).argmax())][0]


def _relative(trials: Sequence[Trial]) -> Tensor:
    recalls = torch.stack([found for _, found in trials])  # [n, cuts]
    return (recalls / recalls.amax(0).clamp(min=1e-9)).mean(1)

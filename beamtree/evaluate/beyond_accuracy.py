"""Metrics of the recommended lists themselves: coverage, novelty, popularity bias, diversity and age.

Novelty, diversity and age are means over users of a value of each list. Coverage and popularity bias belong to all
lists together. For these, each user gets a value such that the mean over users is the metric, and the bootstrap of that
mean gives its interval: a jackknife value for coverage, the linearised ratio for the bias.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from beamtree.data.inputs import NO_TIME
from beamtree.data.times import DAY
from beamtree.tree import PAD

NO_AGE = "age: the times of these events are no dates and no Unix times, so items have no age"
Starts = Callable[[], Tensor]


@dataclass(frozen=True)
class ItemFacts:
    """What these metrics need to know about the items."""

    num_items: int | None = None  # that can be recommended
    popularity: Tensor | None = None  # events of each item in training [M]
    vectors: Callable[[Tensor], Tensor] | None = None  # of items [B, m]: [B, m, dim]
    starts: Starts | None = None  # when each item began, in seconds, NO_TIME where it is not known [M]

    @cached_property
    def known_popularity(self) -> Tensor:
        """The popularity on the CPU; a ValueError where it is not known."""
        if self.popularity is None:
            raise ValueError("the popularity of this model's items is unknown: it was not trained on a log")
        return self.popularity.cpu()

    @cached_property
    def known_starts(self) -> Tensor:
        """When the items began, on the CPU; a ValueError where it is not known."""
        if self.starts is None:
            raise ValueError(NO_AGE)
        return self.starts().cpu()

    @cached_property
    def total(self) -> int:
        """The number of events in training."""
        return int(self.known_popularity.sum())

    def counts(self, items: Tensor) -> Tensor:
        """The events of items in training, 0 for PAD and for items that the model does not have."""
        known = (items >= 0) & (items < len(self.known_popularity))
        return torch.where(known, self.known_popularity[items.where(known, 0)], 0).double()


class ListMetric(NamedTuple):
    """What is kept of each user's list, and what all of it makes of each user."""

    keep: Callable[[Tensor, Tensor, ItemFacts], Tensor]  # items [B, m], what is `read` of users, facts -> [B, ...]
    finish: Callable[[Tensor, ItemFacts], Tensor]  # kept of all users [U, ...] -> values [U], whose mean is the metric
    in_percent: bool = True
    read: str = "history"  # histories [B, S], or the `time` of the requests [B]


def novelty(items: Tensor, history: Tensor, facts: ItemFacts) -> Tensor:
    """The mean of -log2 p over a list, in bits: p is the item's share of the training events.

    An item without training events counts as if it had one.
    """
    bits = (max(1, facts.total) / facts.counts(items).clamp(min=1)).log2()
    real = items != PAD
    return (bits * real).sum(1) / real.sum(1).clamp(min=1)


def diversity(items: Tensor, history: Tensor, facts: ItemFacts) -> Tensor:
    """Intra-list diversity: 1 - the mean cosine between the vectors of two items of a list; 0 for a single item."""
    if facts.vectors is None:
        raise ValueError("diversity needs vectors of the items: the scorer of this model has no rows of nodes")
    real = items != PAD
    vectors = normalize(facts.vectors(items.where(real, 0)).double(), dim=2) * real.unsqueeze(2)
    pairs = vectors.sum(1).square().sum(1) - vectors.square().sum((1, 2))  # Σ of cosines over ordered pairs
    count = real.sum(1)
    return (1 - pairs / (count * (count - 1)).clamp(min=1)) * (count > 1)


def list_and_history_popularity(items: Tensor, history: Tensor, facts: ItemFacts) -> Tensor:
    """The mean training events of the items of a list, and of those of the history [B, 2]; 0 if either is empty."""
    both = [facts.counts(rows).sum(1) / (rows != PAD).sum(1).clamp(min=1) for rows in (items, history)]
    empty = (items == PAD).all(1) | (history == PAD).all(1)
    return torch.stack(both, dim=1).masked_fill(empty.unsqueeze(1), 0.0)


def popularity_bias(kept: Tensor, facts: ItemFacts) -> Tensor:
    """How many times as popular as the users' histories their lists are: the ratio of the two means over users.

    It is 1 plus the popularity lift. The values of users are those of the ratio's linear approximation.
    """
    mean = kept.mean(0)
    ratio = mean[0] / mean[1].clamp(min=1e-12)
    return ratio + (kept[:, 0] - ratio * kept[:, 1]) / mean[1].clamp(min=1e-12)


def coverage(kept: Tensor, facts: ItemFacts) -> Tensor:
    """The share of the items that appear in the list of any user.

    A user's value is by how much more than the mean it would fall without the user, as in the jackknife.
    """
    if facts.num_items is None:
        raise ValueError("coverage needs the number of items that can be recommended")
    items, index, count = kept.unique(return_inverse=True, return_counts=True)
    real = items != PAD
    alone = ((count == 1) & real)[index].sum(1).double()  # items that only this user gets
    values: Tensor = (real.sum() + (len(kept) - 1) * (alone - alone.mean())) / facts.num_items
    return values


def age(items: Tensor, time: Tensor, facts: ItemFacts) -> Tensor:
    """The mean age of the items of a list at the time of the request, in days, from their first event in the log.

    An item that begins later is 0 days old. Items that never begin are left out; a list of these alone counts as 0.
    """
    if bool((time == NO_TIME).any()):
        raise ValueError(NO_AGE)
    starts = facts.known_starts
    known = (items >= 0) & (items < len(starts))
    start = starts[items.where(known, 0)]
    known &= start != NO_TIME
    days = (time.unsqueeze(1) - start).clamp(min=0).double() / DAY
    return (days * known).sum(1) / known.sum(1).clamp(min=1)


def _as_kept(kept: Tensor, facts: ItemFacts) -> Tensor:
    return kept


LIST_METRICS = {
    "coverage": ListMetric(lambda items, history, facts: items.int(), coverage),
    "novelty": ListMetric(novelty, _as_kept, in_percent=False),
    "popularity_bias": ListMetric(list_and_history_popularity, popularity_bias, in_percent=False),
    "diversity": ListMetric(diversity, _as_kept),
    "age": ListMetric(age, _as_kept, in_percent=False, read="time"),
}

"""Placement of new items: which items a new one resembles, what can be learned about it, and its slot in the tree.

A new item comes with any of: items it is like, histories of users who chose it, a vector, a category. The model of a
run with a training log learns from histories by ridge regression: the item's users against background users. Inputs are
the events of a history, weighted by recency, and the user's factors. The regression is scaled so that the item is shown
about as often as an item of the popularity that `PopularityPrior` expects.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beamtree.beam import best_scores
from beamtree.data import HISTORY, Events, Prepared
from beamtree.data.ids import as_id
from beamtree.errors import as_float
from beamtree.model import TreeModel
from beamtree.query import id_list, pad_histories
from beamtree.scorers.memory import PARTNERS, recency_weights
from beamtree.tree import PAD, Tree

NEAREST = 10  # similar items of a new item, at most
MAX_SOURCES = 2 * PARTNERS  # incoming partners of a new item, at most
RECENCY = recency_weights(0.5)  # weights of the events of a history, newest first


# What a new item comes with


class NewItem(NamedTuple):
    """Information about a new item; everything is optional."""

    title: str | None = None
    category: str | None = None
    like: tuple[str, ...] = ()  # similar items
    histories: tuple[tuple[str, ...], ...] = ()  # of users who chose it next
    vector: tuple[float, ...] | None = None  # in the space of the vectors the tree was built from


def new_item(fields: Mapping[str, Any]) -> NewItem:
    """A new item from fields such as those of JSON."""
    vector = fields.get("vector")
    return NewItem(
        fields.get("title"),
        fields.get("category"),
        tuple(map(as_id, id_list(fields.get("like") or ()))),
        tuple(tuple(map(as_id, id_list(history))) for history in id_list(fields.get("histories") or ())),
        None if vector is None else tuple(map(as_float, vector)),
    )


def is_placed_by_content(new: NewItem) -> bool:
    """Whether nothing is known about an item but what it is."""
    return not (new.like or new.histories or new.vector)


# Similar items


class Placement(NamedTuple):
    """The items that a new one resembles, and what was learned about it."""

    items: Tensor  # similar items of the model [n]
    shares: Tensor  # of each; they sum to 1 [n]
    sources: Tensor | None = None  # incoming partners, if learned [s]
    weights: Tensor | None = None  # of the incoming partners [s]
    factors: Tensor | None = None  # its factors, if learned [dim]


def like_items(items: Tensor) -> Placement:
    """Equally like some items."""
    return Placement(items, torch.full((len(items),), 1 / max(1, len(items))))


def like_popular(model: TreeModel, items: Tensor) -> Placement:
    """Like the most popular of some items, such as those of a category, in proportion to popularity."""
    items = items[model.tree.leaf_of_item(items.to(model.tree.device)).cpu() != PAD]
    if model.popularity is None:
        return like_items(items[:NEAREST])
    counts = model.popularity[items].double() + 1
    best = counts.topk(min(NEAREST, len(items)))
    return Placement(items[best.indices], (best.values / best.values.sum()).float())


def like_vector(vectors: Tensor, vector: Sequence[float], placed: Tensor) -> Placement:
    """Like the items with the nearest vectors [M, dim] by cosine, of those that have a leaf [M]."""
    cosine = torch.nn.functional.cosine_similarity(vectors, torch.tensor(vector).unsqueeze(0))
    best = cosine.masked_fill(~placed[: len(cosine)], -torch.inf).topk(min(NEAREST, len(cosine)))
    shares = best.values.clamp(min=1e-6)
    return Placement(best.indices, shares / shares.sum())


def like_histories(model: TreeModel, histories: Sequence[Sequence[int]]) -> Placement:
    """Like the items that are typical of these histories: in many of them, and not popular everywhere.

    An item in n of the histories has the strength n²/(events + n).
    """
    numbers = torch.cat([torch.tensor(sorted(set(history)), dtype=torch.int64) for history in histories])
    items, count = torch.unique(numbers, return_counts=True)
    placed = model.tree.leaf_of_item(items.to(model.tree.device)).cpu() != PAD
    items, count = items[placed], count[placed].double()
    events = torch.zeros(len(items)) if model.popularity is None else model.popularity[items]
    strength = count.square() / (events + count)
    best = strength.topk(min(NEAREST, len(items)))
    return Placement(items[best.indices], (best.values / best.values.sum()).float())


def average(parts: Sequence[Placement]) -> Placement:
    """The mean of several placements; what one of them has learned is kept."""
    if not parts:
        return Placement(torch.empty(0, dtype=torch.int64), torch.empty(0))
    shares = torch.cat([part.shares for part in parts]) / len(parts)
    learned = next((part for part in parts if part.sources is not None), parts[0])
    return learned._replace(items=torch.cat([part.items for part in parts]), shares=shares)


# Learning from histories

BACKGROUND_USERS = 2000
SHOWN = 100  # items shown to a user, where it is counted how often an item is shown
EXPOSURE_RATIO = 1.3  # a new item is shown this many times as often as others of its popularity
RIDGE = 0.1, 1.0  # λ of events and of factors, both scaled to unit standard deviation and divided by their number
BEAM, BATCH = 200, 200
MIN_STD = 0.05  # added to the standard deviation of events


class BackgroundUsers:
    """Random users of the training log, their histories cut at random, and the scores of the items they are shown."""

    def __init__(self, model: TreeModel, data: Prepared, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        events = data.train.events
        users = torch.randperm(len(events), generator=generator)[:BACKGROUND_USERS]
        start, stop = events.offsets[users], events.offsets[users + 1]
        cut = start + 1 + (torch.rand(len(users), generator=generator) * (stop - start - 1)).long()
        self.x = events.before(start, cut, HISTORY).to(model.tree.device)
        self.shown = min(SHOWN, max(1, model.tree.num_placed // 10))
        with torch.no_grad():
            batches = self.x.split(BATCH)
            beam = max(BEAM, self.shown)
            scores = torch.cat([best_scores(model, x, beam_size=beam, m=self.shown) for x in batches]).cpu()
            self.threshold, self.first = scores[:, -1], max(1, self.shown // 10)
            self.first_threshold = scores[:, min(self.first, scores.shape[1]) - 1]  # of the first tenth
            self.factors = torch.cat([_user_factors(model, x) for x in batches])
        self.x = self.x.cpu()
        self.prior = PopularityPrior(events, model.tree.num_items, generator)


def _user_factors(model: TreeModel, x: Tensor) -> Tensor:
    """The factors of users [B, dim]; dim is 0 where the model has no factors with a weight."""
    if not model.scorer.weight_of("factors"):
        return torch.empty(len(x), 0)
    users: Tensor = model.scorer.scorers()["factors"].prepare(model.tree, x).user
    return users.cpu()


class PopularityPrior:
    """Expected popularity of a new item, from the histories of its first users.

    Users who choose unpopular items have chosen such items before. How strong this is differs between logs, so it is
    learned: items of the log are treated as if they were new, with as many histories as the new item comes with.

    Args:
        events: the log.
        num_items: M.
        generator: samples items and histories.
    """

    ITEMS = 500  # sampled items
    HISTORIES = 10  # of each, at most
    EVENTS = 20_000_000  # read to find these histories, at most

    def __init__(self, events: Events, num_items: int, generator: torch.Generator) -> None:
        counts = events.popularity(num_items)
        self.log_popularity = (counts + 1.0).log()  # [M]
        items = counts.nonzero().squeeze(1)
        items = items[torch.randperm(len(items), generator=generator)[: self.ITEMS]].sort().values
        log = events.item_numbers()[: self.EVENTS].long()
        position = torch.isin(log, items).nonzero().squeeze(1)
        position = position[torch.randperm(len(position), generator=generator)]
        row, order = torch.searchsorted(items, log[position]).sort(stable=True)
        position, column = position[order], torch.arange(len(row)) - torch.searchsorted(row, row)
        first = column < self.HISTORIES
        row, column, position = row[first], column[first], position[first] + events.offsets[0]
        start = events.offsets[torch.searchsorted(events.offsets, position, right=True) - 1]
        self._levels = torch.full((len(items), self.HISTORIES), torch.nan)
        self._levels[row, column] = self._level(events.before(start, position, HISTORY))
        self._targets = self.log_popularity[items]

    def _level(self, x: Tensor) -> Tensor:
        """The mean log popularity of the items of each history [B]; nan for an empty one."""
        real = (x != PAD) & (x < len(self.log_popularity))
        return (self.log_popularity[x * real] * real).sum(1) / real.sum(1)

    def relative_popularity(self, x: Tensor) -> float:
        """The expected popularity of an item chosen after histories x [B, T], relative to the average item."""
        level = self._level(x).nanmean()
        levels = self._levels[:, : max(1, min(len(x), self.HISTORIES))].nanmean(1)
        valid = ~levels.isnan()
        if not bool(valid.any()) or bool(level.isnan()):
            return 1.0
        levels, targets = levels[valid], self._targets[valid]
        centred = levels - levels.mean()
        slope = (centred * targets).sum() / centred.square().sum().clamp(min=1e-6)
        return float((slope * level).exp() / (slope * levels).exp().mean())


@torch.no_grad()
def learn_placement(model: TreeModel, histories: Sequence[Sequence[int]], background: BackgroundUsers) -> Placement:
    """The incoming partners and factors of an item that users with these histories chose."""
    x = pad_histories(histories, HISTORY)
    items = torch.unique(x[x != PAD])
    factors = torch.cat([_user_factors(model, x.to(model.tree.device)), background.factors])
    events = torch.cat([_event_weights(x, items), _event_weights(background.x, items)])
    scale = torch.cat([_deviation(events[len(x) :]) + MIN_STD, _deviation(factors[len(x) :]) + 1e-3])
    count = torch.cat([torch.full((len(items),), float(len(items))), torch.full((factors.shape[1],), factors.shape[1])])
    scale = scale * count.sqrt()
    inputs = torch.cat([events, factors], dim=1) / scale
    weights = _ridge_regression(inputs, len(x), len(items))
    scores = inputs[len(x) :] @ weights
    needed = (background.threshold / scores.clamp(min=1e-6)).sort().values  # the scale at which each user is shown it
    share = EXPOSURE_RATIO * background.prior.relative_popularity(x) * background.shown / model.tree.num_placed
    weights = weights / scale * needed[min(int(share * len(needed)), len(needed) - 1)].clamp(min=0)
    of_events, of_factors = weights[: len(items)], weights[len(items) :]
    nearest, strongest = (of_events.topk(min(limit, len(items))).indices for limit in (NEAREST, MAX_SOURCES))
    result = like_items(items[nearest])._replace(sources=items[strongest], weights=of_events[strongest])
    if not factors.shape[1]:
        return result
    return result._replace(factors=of_factors / model.scorer.weight_of("factors"))


def _deviation(rows: Tensor) -> Tensor:
    """The standard deviation of each column; 0 where there is one row."""
    return rows.std(0) if len(rows) > 1 and rows.shape[1] else rows.new_zeros(rows.shape[1])


def _event_weights(x: Tensor, items: Tensor) -> Tensor:
    """The recency weights of some items, in ascending order, in each history [B, n]."""
    index = torch.searchsorted(items, x).clamp(max=len(items) - 1)
    real = (items[index] == x) & (x != PAD)
    row = torch.arange(len(x)).unsqueeze(1).expand_as(x)
    weights = RECENCY[: x.shape[1]].expand_as(x)[real]
    return torch.zeros(len(x), len(items)).index_put_((row[real], index[real]), weights, accumulate=True)


def _ridge_regression(inputs: Tensor, count: int, num_events: int) -> Tensor:
    """Ridge regression of 1 for the first `count` rows and 0 for the others, both groups weighted equally."""
    others = len(inputs) - count
    centred = inputs - inputs[count:].mean(0)
    weight = torch.cat([torch.full((count,), 1 / count), torch.full((others,), 1 / others)])
    system = (centred * weight.unsqueeze(1)).T @ centred
    ridge = torch.full((inputs.shape[1],), RIDGE[1])
    ridge[:num_events] = RIDGE[0]
    solution: Tensor = torch.linalg.solve(system + torch.diag(ridge), centred[:count].mean(0))
    return solution


# Slots


class FreeSlots:
    """The leaf slots of a tree while new items are placed; the tree itself does not change."""

    def __init__(self, tree: Tree, reserved: Sequence[int] = ()) -> None:
        """`reserved` slots are empty, but must not be used yet."""
        self.arity = tree.arity
        self.items = tree.items().cpu().numpy().copy()
        free = self.items == PAD
        free[list(reserved)] = False
        self._free = [free.astype(np.int64)]  # free slots below the nodes of each level, leaves first
        while len(self._free[-1]) > 1:
            self._free.append(self._free[-1].reshape(-1, self.arity).sum(1))

    def best(self, near: Sequence[int], weights: Sequence[float]) -> int:
        """A free slot close to the slots `near` with weights.

        From the root down, it takes the child with the most weight below it, of those with a free slot; ties go to the
        child with the most free slots.
        """
        node, width, inside = 0, len(self.items), list(zip(near, weights, strict=True))
        for free in self._free[-2::-1]:
            width //= self.arity
            first, weight = node * self.arity, [0.0] * self.arity
            for slot, share in inside:
                weight[slot // width - first] += share
            room = free[first : first + self.arity].tolist()
            options = [(weight[child], room[child], child) for child in range(self.arity) if room[child]]
            node = first + max(options)[2]
            inside = [each for each in inside if each[0] // width == node]
        return node

    def take(self, slot: int, item: int) -> None:
        """Put an item on a free slot."""
        self.items[slot] = item
        for free in self._free:
            free[slot] -= 1
            slot //= self.arity

    def tensor(self) -> Tensor:
        """The item of each slot, as `Tree` takes them."""
        return torch.from_numpy(self.items)

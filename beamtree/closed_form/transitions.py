"""What comes after an item: pairs of events that are near each other, and the past against the future."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from beamtree.closed_form.cooccurrence import PAIRS_AT_ONCE, Entries, ItemMatrix, sum_entries, sum_products
from beamtree.data.csr import CSR, strongest
from beamtree.data.events import Events
from beamtree.data.inputs import HISTORY
from beamtree.data.views import RandomCrops, random_crops
from beamtree.kernels import sparse
from beamtree.kernels.threads import one_thread
from beamtree.scorers.factors import newest_of_each
from beamtree.scorers.memory import PARTNERS

WINDOW = 10  # events between the two of a pair, at most
BACKWARD = 0.3  # weight of a pair in the opposite order
POPULARITY_POWER = 0.3  # power of popularity that weights are divided by


def next_partners(
    events: Events,
    num_items: int,
    *,
    window: int = WINDOW,
    backward: float = BACKWARD,
    most: int = PARTNERS,
) -> CSR:
    """Sequential rules: for each item those that follow it, w/gap for each pair, divided by popularity^0.3.

    w is the weight of the event of the item that follows, 1 unless events have weights.

    Args:
        events: of the training users.
        num_items: M.
        window: how many events apart two of a pair are at most.
        backward: weight of a pair in the opposite order.
        most: partners of an item.
    """
    popularity = events.popularity(num_items)
    if events.offsets.device.type == "cpu":
        scale = popularity.clamp(min=1).float() ** -POPULARITY_POWER
        items = events.item_numbers().long()
        return CSR(*sparse.near_items(events.offsets, items, events.confidence(), window, backward, scale, most))
    with one_thread():
        matrix = sum_entries(near_pairs(events, window, backward), num_items, events.offsets.device)
        return rules_of(matrix, torch.arange(num_items, device=events.offsets.device), popularity, most)


def rules_of(matrix: ItemMatrix, items: Tensor, popularity: Tensor, most: int) -> CSR:
    """The strongest rules of some items, given the pairs of near events and the popularity of all items."""
    index, column, value = ItemMatrix.rows(matrix, items)
    return strongest(index, column, value / popularity.clamp(min=1)[column] ** POPULARITY_POWER, len(items), most)


def near_pairs(events: Events, window: int = WINDOW, backward: float = BACKWARD) -> Iterator[Entries]:
    """Pairs of events of one user, at most `window` apart, weighted by w/gap with the weight w of the second."""
    user, items = torch.repeat_interleave(events.counts()), events.item_numbers().long()
    weights = events.confidence()
    worth = torch.ones(len(items), device=items.device) if weights is None else weights
    for gap in range(1, window + 1):
        index = (user[gap:] == user[:-gap]).nonzero().squeeze(1)
        first, second = items[index], items[index + gap]
        yield first, second, worth[index + gap] / gap
        if backward:
            yield second, first, worth[index] * backward / gap


def past_and_future(
    events: Events, num_items: int, recency: Tensor, *, readings: int, seed: int
) -> tuple[ItemMatrix, ItemMatrix]:
    """PᵀP and FᵀP of random cuts of every user: P is the past, weighted by recency [T], F what followed.

    Every user is cut `readings` times. Where events have weights, F has the largest of each item.
    """
    device = events.offsets.device
    if device.type == "cpu":
        view, items = crops_of(events), events.items
        drawn = zip(*drawn_crops(view, readings, seed), strict=True)
        start, cut, stop, times = sparse.distinct_crops(*(torch.cat(each).view(readings, len(view)) for each in drawn))
        past = CSR(*sparse.distinct_spans(items, start, cut, recency, newest_first=True))
        targets = torch.ones(view.targets)
        future = CSR(*sparse.distinct_spans(items, cut, stop, targets, events.weights, newest_first=False))
        for rows in (past, future):
            assert rows.values is not None
            rows.values.mul_(times.sqrt().repeat_interleave(rows.counts()))
        return sum_products(past, past, num_items), sum_products(future, past, num_items)
    with one_thread():
        entries = pairs_of_cuts(events, recency, readings, seed)
        return sum_entries(entries[0], num_items, device), sum_entries(entries[1], num_items, device)


def pairs_of_cuts(
    events: Events, recency: Tensor, readings: int, seed: int, part: int = 0, parts: int = 1
) -> tuple[Iterator[Entries], Iterator[Entries]]:
    """The entries of PᵀP and of FᵀP; with `parts`, those of every `parts`-th batch of users, from `part` on."""
    cuts = partial(cuts_of, events, readings, seed, part, parts)
    past = _pair_up((x, x, recency[: x.shape[1]], recency[: x.shape[1]]) for x, _, _ in cuts())
    future = _pair_up((y, x, worth, recency[: x.shape[1]]) for x, y, worth in cuts())
    return past, future


def cuts_of(
    events: Events, readings: int, seed: int, part: int = 0, parts: int = 1
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches of random cuts of every user: the past, newest first, and the future [B, T] each, with its weights.

    These are [B, T], of a repeated item its largest; ones [T] where events have no weights.
    """
    view = crops_of(events)
    for crop in drawn_crops(view, readings, seed, part, parts):
        x, y = view.read(*crop)
        worth = torch.ones(y.shape[1], device=y.device)
        if events.weights is not None:
            place = crop[1].unsqueeze(1) + torch.arange(y.shape[1], device=y.device)
            worth = events.weights[place.clamp(max=len(events.weights) - 1)].abs()
            worth = torch.where(y.unsqueeze(2) == y.unsqueeze(1), worth.unsqueeze(1), 0).amax(2)
        yield x, y, worth


def crops_of(events: Events) -> RandomCrops:
    """Whole random crops, of all events."""
    return random_crops(replace(events, weights=None), item_dropout=0.0)


def drawn_crops(
    view: RandomCrops, readings: int, seed: int, part: int = 0, parts: int = 1
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The start, cut and end of crops of every user [B] each, `readings` times."""
    device = view.events.offsets.device
    generator = torch.Generator(device).manual_seed(seed)
    for _ in range(readings):
        batches = torch.arange(len(view), device=device).split(max(1, PAIRS_AT_ONCE // HISTORY**2))
        for index, rows in enumerate(batches):
            crop = view.drawn(rows, generator)  # also of other parts, so that all draw the same
            if index % parts == part:
                yield crop


def _pair_up(lists: Iterable[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Iterator[Entries]:
    """Every item of a first list with every one of a second; of a repeated item the newest counts."""
    for first, second, weight, other in lists:
        value = weight.unsqueeze(-1) * other.unsqueeze(-2)
        both = newest_of_each(first).unsqueeze(2) & newest_of_each(second).unsqueeze(1)
        parts = (first.unsqueeze(2), second.unsqueeze(1), value)
        row, column, product = (part.expand_as(both)[both] for part in parts)
        yield row, column, product

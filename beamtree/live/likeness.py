"""What a new item is like: found from what it comes with, by what the model knows already."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.answers import listed
from beamtree.data.ids import as_id
from beamtree.model import TreeModel
from beamtree.tree import PAD

NEAREST = 10  # items that a new one is like at most


class Likeness(NamedTuple):
    """What a new item is like."""

    items: Tensor  # of the model [n]
    shares: Tensor  # how much it has of each [n]; together 1
    sources: Tensor | None = None  # items that speak for it [s], where that was learned
    weights: Tensor | None = None  # and how loudly [s]
    factors: Tensor | None = None  # its own [dim], likewise


class NewItem(NamedTuple):
    """What is known of an item that is added: all of it is optional."""

    title: str | None = None
    category: str | None = None
    like: tuple[str, ...] = ()  # items that it resembles
    histories: tuple[tuple[str, ...], ...] = ()  # of users who chose it next
    vector: tuple[float, ...] | None = None  # in the space of the vectors that the tree was made from


def given(item: object, facts: NewItem | Mapping[str, Any]) -> dict[str, Any]:
    """What is told of an item, and nothing that is not: of a mapping its keys, of a `NewItem` what is not empty.

    A ValueError names an item that comes with something else.
    """
    if isinstance(facts, NewItem):
        return {name: value for name, value in new_item(facts._asdict())._asdict().items() if value not in (None, ())}
    if not isinstance(facts, Mapping) or not facts.keys() <= set(NewItem._fields):
        raise ValueError(f"item {str(item)[:80]!r}: give a dict with some of {', '.join(NewItem._fields)}")
    return {name: value for name, value in new_item(facts)._asdict().items() if name in facts}


def new_item(facts: Mapping[str, Any]) -> NewItem:
    """What is known of an item, from words, such as those of JSON."""
    vector = facts.get("vector")
    return NewItem(
        facts.get("title"),
        facts.get("category"),
        tuple(map(as_id, listed(facts.get("like") or ()))),
        tuple(tuple(map(as_id, listed(each))) for each in listed(facts.get("histories") or ())),
        None if vector is None else tuple(map(float, vector)),
    )


def placing(new: NewItem) -> object:
    """What of an item says where it stands: its category only where nothing else does."""
    return (new.like, new.histories, new.vector) if new.like or new.histories or new.vector else new.category


def of_items(items: Tensor) -> Likeness:
    """Like some items, like all of them as much."""
    return Likeness(items, torch.full((len(items),), 1 / max(1, len(items))))


def of_popular(model: TreeModel, items: Tensor, most: int = NEAREST) -> Likeness:
    """Like the most popular of some items, such as those of a category, by how popular they are."""
    items = items[model.tree.leaf_of_item(items.to(model.tree.device)).cpu() != PAD]
    if model.popularity is None:
        return of_items(items[:most])
    counts = model.popularity[items].double() + 1
    best = counts.topk(min(most, len(items)))
    return Likeness(items[best.indices], (best.values / best.values.sum()).float())


def of_vectors(vectors: Tensor, vector: Sequence[float], placed: Tensor, most: int = NEAREST) -> Likeness:
    """Like the items whose vectors [M, dim] point where this one does, of those that have a leaf [M]."""
    asked = torch.tensor(vector)
    cosine = torch.nn.functional.cosine_similarity(vectors, asked.unsqueeze(0))
    best = cosine.masked_fill(~placed[: len(cosine)], -torch.inf).topk(min(most, len(cosine)))
    shares = best.values.clamp(min=1e-6)
    return Likeness(best.indices, shares / shares.sum())


def of_histories(model: TreeModel, histories: Sequence[Sequence[int]], most: int = NEAREST) -> Likeness:
    """Like the items that stand out in histories of users who chose it: in many of them, and not in everybody's.

    An item counts n²/(events + n) where n of the histories have it: the share of its own events that this is, times n.
    """
    items = torch.cat([torch.tensor(sorted(set(each)), dtype=torch.int64) for each in histories])
    found, count = torch.unique(items, return_counts=True)
    there = model.tree.leaf_of_item(found.to(model.tree.device)).cpu() != PAD
    found, count = found[there], count[there].double()
    events = torch.zeros(len(found)) if model.popularity is None else model.popularity[found]
    strength = count.square() / (events + count)
    best = strength.topk(min(most, len(found)))
    return Likeness(found[best.indices], (best.values / best.values.sum()).float())


def mixed(parts: Sequence[Likeness]) -> Likeness:
    """As much like each of some; what one of them was learned by stays."""
    if not parts:
        return Likeness(torch.empty(0, dtype=torch.int64), torch.empty(0))
    shares = torch.cat([part.shares for part in parts]) / len(parts)
    learned = next((part for part in parts if part.sources is not None), parts[0])
    return learned._replace(items=torch.cat([part.items for part in parts]), shares=shares)

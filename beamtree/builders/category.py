"""TDM's first tree: items of a category side by side, the popular ones first."""

import torch
from torch import Tensor

from beamtree.data import Events
from beamtree.tree import PAD, Tree, height_for


def category_tree(categories: Tensor, events: Events, *, arity: int = 2) -> Tree:
    """Items in the order of their category's path, then of their popularity, evenly over all leaves.

    `categories` are [M], or [M, depth] as `beamtree.ingest.item_tables.read_categories` reads them from a file.
    """
    return in_order(category_order(categories, events), arity)


def category_order(categories: Tensor, events: Events) -> Tensor:
    """Items [M] by category, the popular ones of a category first."""
    if categories.dim() not in (1, 2) or not categories.numel():
        raise ValueError(f"categories are {list(categories.shape)}: give one for each item")
    if int(events.item_numbers().max()) >= len(categories):
        raise ValueError(f"{len(categories):,} categories, and item {int(events.item_numbers().max())} in the log")
    deepest = categories.view(len(categories), -1)[:, -1].cpu()
    if len(deepest) > 1 and bool((deepest == deepest[0]).all()):
        raise ValueError(f"one category holds all {len(deepest):,} items: it says nothing about where they belong")
    by_popularity = events.popularity(len(deepest)).cpu().argsort(descending=True, stable=True)
    return by_popularity[deepest[by_popularity].argsort(stable=True)]


def in_order(items: Tensor, arity: int = 2) -> Tree:
    """A balanced tree with these items on its leaves from left to right, and empty slots evenly between them."""
    slots = arity ** height_for(len(items), arity)
    leaves = torch.full((slots,), PAD, device=items.device)
    leaves[torch.arange(len(items), device=items.device) * slots // len(items)] = items
    return Tree(leaves, arity)

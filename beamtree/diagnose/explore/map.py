"""The map of the catalogue: the upper levels of the tree, each subtree with its size and a name that people know."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beamtree.data.catalogue import SEPARATORS, Catalogue
from beamtree.diagnose.explain import subtrees
from beamtree.mask import level_span
from beamtree.model import TreeModel
from beamtree.tree import PAD

MOST = 2048  # nodes of the map: those of a level more would not be told apart on a screen
SHARE = 0.5  # of a subtree's items: a category that holds so many names it
STEPS = 4  # of a category's path that are told apart

Ints = NDArray[np.int64]


def catalogue_map(model: TreeModel, catalogue: Catalogue) -> dict[str, Any]:
    """For each node of the upper levels: how many items lie below it, how many events they have, and its name."""
    tree = model.tree
    levels = [h for h in range(tree.height + 1) if h < 2 or level_span(tree.arity, h).stop <= MOST]
    below = subtrees(tree, model.popularity)
    stop = level_span(tree.arity, levels[-1]).stop
    slots = tree.visible().cpu().numpy()
    filled = np.flatnonzero(slots != PAD)
    items = slots[filled]
    events = np.ones(len(items)) if model.popularity is None else model.popularity.cpu().numpy()[items].astype(float)
    nodes = [filled // tree.arity ** (tree.height - h) for h in levels]  # of each item, from the left of its level
    sums = [np.bincount(place, events, tree.arity**h) for h, place in zip(levels, nodes, strict=True)]
    named = _by_category(catalogue, items, nodes, [tree.arity**h for h in levels])
    popular = below.popular[: min(tree.num_nodes, stop * tree.arity + 1)].tolist()
    names = [by_category or _by_titles(node, popular, tree.arity, catalogue) for node, by_category in enumerate(named)]
    return {
        "levels": len(levels),
        "items": below.items[:stop].tolist(),
        "events": np.concatenate(sums).astype(np.int64).tolist(),
        "names": names,
    }


def _by_category(catalogue: Catalogue, items: Ints, nodes: list[Ints], sizes: list[int]) -> list[str]:
    """The longest path of a category that holds most items of a subtree, for each node; "" where none does."""
    names = [[""] * size for size in sizes]
    for number, paths in _prefixes(catalogue, items):
        known = np.flatnonzero(number >= 0)
        for level, size in enumerate(sizes):
            whole = np.bincount(nodes[level], minlength=size)
            pair, count = np.unique(nodes[level][known] * len(paths) + number[known], return_counts=True)
            place, path = pair // len(paths), pair % len(paths)
            for found in np.flatnonzero(count > SHARE * whole[place]).tolist():
                names[level][place[found]] = paths[path[found]]
    return [name for level in names for name in level]


def _prefixes(catalogue: Catalogue, items: Ints) -> Iterator[tuple[Ints, list[str]]]:
    """For the first step of all categories, the first two and so on: the number of each item's, -1 where it has none,
    and what they are called.
    """
    steps = {
        text: tuple(step for step in re.split(SEPARATORS, text.strip()) if step)
        for text in set(catalogue.categories)
        if text is not None
    }
    longest = min(STEPS, max(map(len, steps.values()), default=0))
    for length in range(1, longest + 1):
        heads = {text: " / ".join(path[:length]) for text, path in steps.items() if len(path) >= length}
        paths = sorted(set(heads.values()))
        place = {path: number for number, path in enumerate(paths)}
        of_text: dict[str | None, int] = {text: place[head] for text, head in heads.items()}
        yield np.array([of_text.get(catalogue.category(item), -1) for item in items.tolist()], np.int64), paths


def _by_titles(node: int, popular: list[int], arity: int, catalogue: Catalogue) -> str:
    """The most popular items of the two best children."""
    below = popular[arity * node + 1 : arity * node + arity + 1] or popular[node : node + 1]
    shown = dict.fromkeys(item for item in (popular[node], *below) if item != PAD)
    return " · ".join(catalogue.title(item) or catalogue.ids[item] for item in list(shown)[:2])

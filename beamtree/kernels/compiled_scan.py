"""A scan on a CPU, compiled by Numba: every leaf that may be entered is scored, a tile of leaves at a time."""

import numpy as np

from beamtree.kernels.compiled_search import forget, most_named, remember, score
from beamtree.kernels.compiled_shared import compiled, select, sort
from beamtree.mask import PAD

TILE = 512  # leaves whose scores stay in the nearest cache


@compiled()
def _take_tile(first_leaf, slot, leaves, entered, num_slots, nodes):
    """The next leaves to score: their number, and where the tile after them begins."""
    count = 0
    if len(leaves):
        for i in range(slot, min(slot + TILE, len(leaves))):
            nodes[count] = leaves[i]
            count += 1
        return count, slot + TILE
    for i in range(slot, min(slot + TILE, num_slots)):
        nodes[count] = first_leaf + i
        count += 1 if not len(entered) else entered[first_leaf + i]  # no branch, which could not be foreseen
    return count, slot + TILE


@compiled()
def scan(first, last, task, sparse):
    """The m best leaves for the users first … last of a task, whose fields `search_cpu.ScanInput` describes.

    `sparse` are zeros for all nodes, which are zero again at the end.
    """
    x, leaf_of_item, item_of_slot, height, first_leaf, leaves, entered, hidden, parts, found, scores = task
    memory, items, item_scores, node_scores, tables, _ = parts
    m, num_slots = found.shape[1], len(item_of_slot)
    total = len(leaves) if len(leaves) else num_slots
    nodes, values = np.empty(TILE, np.int64), np.empty(TILE, np.float32)
    room = 2 * m + 2 * TILE  # the best so far, in no order, and those that came since they were chosen
    best, best_values = np.empty(room, np.int64), np.empty(room, np.float32)
    most = most_named(first, last, x, len(leaf_of_item) - 1, memory) + items.shape[1] + hidden.shape[1]
    named = np.empty(max(most, 1), np.int64)
    for b in range(first, last):
        own = b if len(items) > 1 else 0
        count = remember(
            x[b], leaf_of_item, memory, items[own], item_scores[own], sparse, named, 2, height, height
        )  # the arity is not read: nothing is lifted
        if len(hidden):
            for leaf in hidden[b]:
                if leaf != PAD:
                    named[count] = leaf
                    count += 1
                    sparse[leaf] = -np.inf
        kept, lowest, slot = 0, np.float32(-np.inf), 0
        while slot < total:
            size, slot = _take_tile(first_leaf, slot, leaves, entered, num_slots, nodes)
            score(b, height, nodes, size, sparse, node_scores, tables, values)
            for i in range(size):
                if values[i] > lowest:  # which NaN is not: no item with such a score is shown
                    best[kept], best_values[kept] = nodes[i], values[i]
                    kept += 1
            if kept > room - TILE:
                select(best, best_values, kept, m)
                kept, lowest = m, best_values[0]
                for i in range(1, m):
                    lowest = min(lowest, best_values[i])
        if kept > m:
            select(best, best_values, kept, m)
            kept = m
        sort(best, best_values, kept)
        for i in range(m):
            item = item_of_slot[best[i] - first_leaf] if i < kept else PAD
            found[b, i] = item
            scores[b, i] = best_values[i] if item != PAD else -np.inf
        forget(sparse, named, count, 2, height, height)

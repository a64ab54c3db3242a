"""Trees over labels: similar labels in one group, groups of many labels, all leaves on one level.

Such trees are wide and flat: a beam of a few groups then judges hundreds of labels. Groups are clusters of the mean
features of the documents of each label, by spherical k-means. They need not be equally large.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from beamtree.classify.matrix import Matrix, empty, from_entries, stack
from beamtree.kernels import classify as kernels
from beamtree.kernels.sparse import starts_of

ENTRIES = 10_000_000  # of documents that are added up at once, about
GROUPS = 512  # on one level, at most; with more there is a level above them
ROUNDS = 8  # of k-means
LARGEST = 2  # groups of more than so many times the wanted size are split


class Forest(NamedTuple):
    """Trees whose nodes are numbered one tree after the other, level by level, children of a node together."""

    roots: np.ndarray  # int64 [T]
    heights: np.ndarray  # int64 [T]
    starts: np.ndarray  # int64 [N]: the first child of each node
    ends: np.ndarray  # int64 [N]: one after the last
    parent: np.ndarray  # int64 [N], -1 for roots
    label: np.ndarray  # int64 [N], -1 for inner nodes
    leaf: np.ndarray  # int64 [T, L]: the leaf of each label

    def above(self, tree: int) -> list[np.ndarray]:
        """The node of each label of a tree on each level, from the level below the root to the leaves [L]."""
        levels = [self.leaf[tree]]
        while len(levels) < self.heights[tree]:
            levels.append(self.parent[levels[-1]])
        return levels[::-1]


def label_means(features: Matrix, labels: Matrix) -> Matrix:
    """The mean features of the documents of each label, of length 1; some labels at a time, to need little memory."""
    by_label, counts = labels.transposed(), np.diff(features.offsets)
    before = starts_of(counts[by_label.columns])[by_label.offsets]  # entries of all documents of earlier labels
    cuts = np.searchsorted(before, np.arange(0, before[-1], ENTRIES))
    parts = [empty(0, features.width)]
    for first, last in pairwise(np.unique([0, *cuts, labels.width]).tolist()):
        own = by_label.take(np.arange(first, last))
        documents = features.take(own.columns)
        rows = np.repeat(own.row_of_entry(), counts[own.columns])
        parts.append(from_entries(rows, documents.columns, documents.values, (own.rows, features.width)).normalized())
    return stack(*parts)


def label_trees(means: Matrix, *, group: int, trees: int = 1, seed: int = 0) -> Forest:
    """Trees over the labels with these means; groups of about `group` labels, of other sizes in further trees."""
    built = [
        _levels(means, max(2, round(group * 2.0**-index)), np.random.default_rng([seed, index]))
        for index in range(trees)
    ]
    return forest(built, means.rows)


def forest(trees: Sequence[list[list[np.ndarray]]], num_labels: int) -> Forest:
    """Trees given by levels of groups of labels, each level a division of the one above it."""
    starts: list[np.ndarray] = []
    ends: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    roots, heights = [], []
    leaf = np.empty((len(trees), num_labels), np.int64)
    first = 0
    for tree, levels in enumerate(trees):
        everything = [np.concatenate(levels[-1])]
        order = [everything, *levels]
        roots.append(first)
        heights.append(len(order))
        sizes = [len(groups) for groups in order] + [num_labels]
        firsts = first + starts_of(np.array(sizes))
        for level, groups in enumerate(order):
            below = order[level + 1] if level + 1 < len(order) else None
            if below is None:
                counts = np.array([len(each) for each in groups])
            else:
                above = np.searchsorted(np.cumsum([len(each) for each in groups]), _begin(below), side="right")
                counts = np.bincount(above, minlength=len(groups))
            bounds = firsts[level + 1] + starts_of(counts)
            starts.append(bounds[:-1])
            ends.append(bounds[1:])
            labels.append(np.full(len(groups), -1))
        leaves = np.concatenate(levels[-1])
        leaf[tree, leaves] = firsts[len(order)] + np.arange(num_labels)
        starts.append(np.zeros(num_labels, np.int64))
        ends.append(np.zeros(num_labels, np.int64))
        labels.append(leaves)
        first = int(firsts[-1])
    start, end = np.concatenate(starts).astype(np.int64), np.concatenate(ends).astype(np.int64)
    parent = np.full(len(start), -1)
    inner = np.flatnonzero(end > start)
    counts = (end - start)[inner]
    children = np.repeat(start[inner], counts) + np.arange(counts.sum()) - np.repeat(starts_of(counts)[:-1], counts)
    parent[children] = np.repeat(inner, counts)
    return Forest(np.array(roots), np.array(heights), start, end, parent, np.concatenate(labels), leaf)


def _begin(groups: list[np.ndarray]) -> np.ndarray:
    """Where each group starts, if they follow each other."""
    return np.cumsum([0, *map(len, groups)])[:-1]


def _levels(means: Matrix, group: int, rng: np.random.Generator) -> list[list[np.ndarray]]:
    """Levels of groups, coarse to fine, of about `group` labels on the last."""
    groups = max(1, -(-means.rows // group))
    depth = 1
    while groups > GROUPS**depth:
        depth += 1
    branches = groups ** (1 / depth)
    levels = [[np.arange(means.rows)]]
    for level in range(depth):
        wanted = max(1.0, means.rows / branches ** (level + 1))
        levels.append([part for each in levels[-1] for part in _divide(means, each, wanted, rng)])
    return levels[1:]


def _divide(means: Matrix, labels: np.ndarray, wanted: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Labels in groups of about the wanted size."""
    count = round(len(labels) / wanted)
    if count < 2:
        return [labels]
    nearest = k_means(means.take(labels), count, rng)
    parts = [labels[nearest == number] for number in range(count)]
    if max(map(len, parts)) == len(labels):  # all alike
        return list(np.array_split(labels, count))
    divided: list[np.ndarray] = []
    for part in parts:
        divided += _divide(means, part, wanted, rng) if len(part) > LARGEST * wanted else [part] if len(part) else []
    return divided


def k_means(rows: Matrix, count: int, rng: np.random.Generator) -> np.ndarray:
    """The cluster of each row of length 1, by spherical k-means from rows drawn at random."""
    used, columns = np.unique(rows.columns, return_inverse=True)
    compact = rows._replace(columns=columns.astype(np.int32), width=len(used))
    nearest = np.empty(0, np.int64)
    centres = compact.take(rng.choice(rows.rows, count, replace=False)).dense().T.copy()
    for _ in range(ROUNDS):
        before, nearest = nearest, kernels.nearest_means(compact.parts, centres)
        if len(before) and np.mean(before != nearest) < 0.005:
            break
        cells = columns.astype(np.int64) * count + np.repeat(nearest, np.diff(rows.offsets))
        sums = np.bincount(cells, rows.values, minlength=len(used) * count).reshape(len(used), count)
        lengths = np.sqrt((sums**2).sum(0))
        centres = np.ascontiguousarray(sums / np.where(lengths == 0, 1, lengths), np.float32)
    return nearest

"""The linear part: a classifier with sparse weights for each node, against the other children of its parent.

p(n | x) = Π exp(-max(0, 1 - z)³) over the nodes on the path to n, with z = ⟨w, x⟩ + b. A classifier has L2-regularized
squared hinge loss, and is trained on the documents with a label below the parent, as in PLT. Small weights are dropped.

Where there is time, labels are also trained on beam negatives: documents for which their group is one of the ten best.
Labels trained this way are calibrated without their group, so group log-probabilities get weight 0.5:
p(l | x) Π p(group | x)^½.
"""

from typing import NamedTuple

import numpy as np

from beamtree.classify.label_tree import Forest
from beamtree.classify.matrix import Matrix, from_entries
from beamtree.kernels import classify as kernels
from beamtree.kernels.sparse import starts_of
from beamtree.kernels.threads import parallel_map
from beamtree.progress import OnProgress, no_progress

DEFAULT_C, TOLERANCE, ROUNDS = 0.5, 0.1, 10  # of the solver
MIN_WEIGHT = 0.1  # weights below are dropped
BEAM_NEGATIVES = 10  # groups in the beam of a document, whose labels are trained on it
SHIFT = 10.0  # z above -SHIFT is told apart
WORK = 2_000_000  # documents times classifiers of a task, about


class Linear(NamedTuple):
    """Weights by feature and node: those that the children of a node have for a feature are together."""

    starts: np.ndarray  # int64 [features + 1]: where the nodes of each feature start
    nodes: np.ndarray  # int32: rising for each feature
    entries: np.ndarray  # int32, or int64 where there are more weights: where those of each of these start
    children: np.ndarray  # uint16, or uint32 where a node has more children: counted from the first child
    weights: np.ndarray  # float16 as uint16
    biases: np.ndarray  # float32 [N]


Pairs = tuple[np.ndarray, np.ndarray]  # nodes and documents, by node and document


class NodeTask(NamedTuple):
    rows: np.ndarray  # documents below a node
    starts: np.ndarray  # where the positives of each child start
    positives: np.ndarray  # as indices of rows
    first: int  # child
    last: int


def positives_below(forest: Forest, labels: Matrix) -> list[Pairs]:
    """For each tree and level the pairs of a node and a document with a label below it, by node and document."""
    documents, pairs = labels.row_of_entry(), []
    for tree in range(len(forest.roots)):
        for nodes in forest.above(tree):
            keys = np.unique(nodes[labels.columns] * labels.rows + documents)
            pairs.append((keys // labels.rows, keys % labels.rows))
    return pairs


def train_linear(
    features: Matrix,
    forest: Forest,
    pairs: list[Pairs],
    *,
    negatives: list[Pairs] | None = None,
    C: float = DEFAULT_C,
    min_weight: float = MIN_WEIGHT,
    on_progress: OnProgress = no_progress,
) -> Linear:
    """The classifiers of all nodes.

    Args:
        features: of the documents.
        forest: trees over the labels.
        pairs: the positives of each level: nodes and documents, as `positives_below` gives them.
        negatives: for each level, parents, rising, and documents that are trained on besides those below, such as
            those whose beam visits the parent.
        C: of the squared hinge loss.
        min_weight: weights below are dropped.
        on_progress: called with what is done, how much of it, and the total.
    """
    tasks: list[tuple[int, NodeTask]] = []
    for level, (nodes, documents) in enumerate(pairs):
        parents, begin = np.unique(forest.parent[nodes], return_index=True)  # nodes rise, so their parents do
        for parent, start, end in zip(parents, begin, [*begin[1:], len(nodes)], strict=True):
            rows = np.unique(documents[start:end])
            if negatives is not None:
                at = np.searchsorted(negatives[level][0], [parent, parent + 1])
                rows = np.union1d(rows, negatives[level][1][at[0] : at[1]])
            children = nodes[start:end] - forest.starts[parent]
            count = int(forest.ends[parent] - forest.starts[parent])
            task = NodeTask(
                rows,
                starts_of(np.bincount(children, minlength=count)),
                np.searchsorted(rows, documents[start:end]),
                0,
                count,
            )
            step = max(1, WORK // len(rows))
            tasks += [
                (int(parent), task._replace(first=first, last=min(first + step, count)))
                for first in range(0, count, step)
            ]
    tasks.sort(key=lambda task: -len(task[1].rows) * (task[1].last - task[1].first))
    done = 0

    def solve(numbered: tuple[int, NodeTask]) -> tuple[np.ndarray, ...]:
        nonlocal done
        settings = (C, TOLERANCE, ROUNDS, min_weight)
        found: tuple[np.ndarray, ...] = kernels.train_children(features.parts, features.width, numbered[1], settings)
        done += 1
        on_progress("Linear part", done, len(tasks))
        return found

    return _by_feature(features.width, forest, tasks, parallel_map(solve, tasks))


def beam_negatives(features: Matrix, forest: Forest, linear: Linear, count: int) -> list[Pairs]:
    """For each tree and level the documents that visit each group: of the last groups those `count` with the highest z.

    They are pairs by group, for `train_linear`: groups of other levels are visited by nobody.
    """
    weights, pairs = weight_matrix(forest, linear), []
    documents = features.with_column(np.ones(features.rows, np.float32))
    for tree, height in enumerate(forest.heights):
        groups = np.unique(forest.parent[forest.leaf[tree]])
        groups = groups[np.diff(weights.offsets)[groups] > 0]  # the others have no document
        index = weights.take(groups).with_column(linear.biases[groups] + np.float32(SHIFT)).transposed()
        best, _ = kernels.nearest_rows(documents.parts, index.parts, len(groups), count)
        order = np.argsort(best.ravel(), kind="stable")
        nobody = np.empty(0, np.int64), np.empty(0, np.int64)
        pairs += [nobody] * int(height - 1) + [(groups[best.ravel()[order]], order // best.shape[1])]
    return pairs


def _by_feature(
    width: int, forest: Forest, tasks: list[tuple[int, NodeTask]], found: list[tuple[np.ndarray, ...]]
) -> Linear:
    """Weights of all tasks by feature, parent and child."""
    biases = np.full(len(forest.parent), -1, np.float32)  # of nodes without a document: far from their side
    for (node, task), (_, _, _, bias) in zip(tasks, found, strict=True):
        biases[forest.starts[node] + task.first : forest.starts[node] + task.last] = bias
    parent = np.concatenate([np.full(len(each[0]), number) for (number, _), each in zip(tasks, found, strict=True)])
    child, feature, weight = (np.concatenate([each[column] for each in found]) for column in range(3))
    order = np.lexsort((child, parent, feature))
    parent, child, feature, weight = parent[order], child[order], feature[order], weight[order]
    new = np.ones(len(parent), bool)
    new[1:] = (parent[1:] != parent[:-1]) | (feature[1:] != feature[:-1])
    entries = np.append(np.flatnonzero(new), len(parent))
    entries = entries.astype(np.int32 if len(parent) < 1 << 31 else np.int64)
    starts = starts_of(np.bincount(feature[new], minlength=width))
    widest = int((forest.ends - forest.starts).max())
    children = child.astype(np.uint16 if widest <= 1 << 16 else np.uint32)
    halves = weight.astype(np.float16).view(np.uint16)
    return Linear(starts, parent[new].astype(np.int32), entries, children, halves, biases)


def weight_matrix(forest: Forest, linear: Linear) -> Matrix:
    """The weights of all nodes by feature [N, features]."""
    width, counts = len(linear.starts) - 1, np.diff(linear.entries)
    nodes = np.repeat(forest.starts[linear.nodes], counts) + linear.children
    features = np.repeat(np.repeat(np.arange(width), np.diff(linear.starts)), counts)
    return from_entries(nodes, features, linear.weights.view(np.float16), (len(forest.parent), width))


def log_probabilities(
    features: Matrix, forest: Forest, linear: Linear, tree: int, of_groups: float = 1.0
) -> np.ndarray:
    """log p(l | x) of all labels [n, L], to which groups add `of_groups` times their own: the plain definition."""
    z = features.dense() @ weight_matrix(forest, linear).dense().T + linear.biases
    total = np.zeros((features.rows, forest.leaf.shape[1]), np.float32)
    *groups, leaves = forest.above(tree)
    for nodes in groups:
        total -= of_groups * np.maximum(0, 1 - z[:, nodes]) ** 3
    result: np.ndarray = total - np.maximum(0, 1 - z[:, leaves]) ** 3
    return result

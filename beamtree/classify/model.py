"""A classifier without its names: features in, numbers of labels out.

The score of a label is a sum of parts, each between 0 and about 1:

    s(x, l) = mean over trees of p(l | x)                the linear part, see `linear`
            + w_memory · share of the nearest documents  Σ cos^a over those of the 100 nearest that have l, of Σ cos^a
            + w_names · cos(x, name of l)²               where labels have names
            + w_encoder · softmax of ⟨u(x), v_l⟩ + b_l   where there are few labels and it pays, see `encoder`
            + w_examples · max cos(x, d)⁴                of the documents d that were added to l without training

The last part stands for a linear part that a new label does not have. w_examples is what all other parts can give
together, so that a copy of such a document has its label first.

A search adds up all but the linear part first. In each tree a group then has the probability of the linear part, plus
the highest score that the others give to a label below. So their part of the beam is exact. The labels of the best
groups get the score of the linear part too; labels outside of the beam keep the score without it.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from beamtree.classify.encoder import Encoder, is_affordable, no_encoder, train_encoder
from beamtree.classify.label_tree import Forest, label_means, label_trees
from beamtree.classify.linear import (
    BEAM_NEGATIVES,
    DEFAULT_C,
    MIN_WEIGHT,
    Linear,
    beam_negatives,
    log_probabilities,
    positives_below,
    train_linear,
)
from beamtree.classify.matrix import Matrix, stack
from beamtree.kernels import classify as kernels
from beamtree.kernels.sparse import starts_of
from beamtree.progress import OnProgress, no_progress

OF_GROUPS = 0.5  # how much groups count in log p of a label where documents visit other groups


class Weights(NamedTuple):
    """How much memory, names and encoder count beside the linear part, and how memory is read."""

    memory: float = 0.5
    names: float = 0.1
    power: float = 2.0  # of similarities
    neighbours: int = 100
    budget: int = 10_000  # rows of the inverted index that are read for a document, about
    encoder: float = 0.0
    groups: float = 1.0  # in log p of a label: 1 as in PLT, less where labels are trained on more documents


class Index(NamedTuple):
    """An inverted index: rows by feature, with their values in half precision."""

    offsets: np.ndarray
    rows: np.ndarray
    values: np.ndarray  # float16 as uint16

    @classmethod
    def of(cls, matrix: Matrix) -> "Index":
        """The index of the rows of a matrix."""
        by_feature = matrix.transposed()
        return cls(by_feature.offsets, by_feature.columns, by_feature.values.astype(np.float16).view(np.uint16))

    def with_rows(self, numbers: np.ndarray, rows: Matrix) -> "Index":
        """The index with these rows in the place of those that have the same numbers, or after all others."""
        replaced = np.zeros(max(self.rows.max(initial=-1), numbers.max(initial=-1)) + 1, bool)
        replaced[numbers] = True
        kept, more = ~replaced[self.rows], Index.of(rows)
        offsets = starts_of(kept)[self.offsets]
        old = np.arange(offsets[-1]) + np.repeat(more.offsets[:-1], np.diff(offsets))
        new = np.arange(len(more.rows)) + np.repeat(offsets[1:], np.diff(more.offsets))
        result = Index(
            offsets + more.offsets, *(np.empty(len(old) + len(new), array.dtype) for array in (self.rows, self.values))
        )
        result.rows[old], result.rows[new] = self.rows[kept], numbers[more.rows]
        result.values[old], result.values[new] = self.values[kept], more.values
        return result

    def matrix(self, rows: int) -> Matrix:
        """The rows that it was made of."""
        values = self.values.view(np.float16).astype(np.float32)
        return Matrix(self.offsets, self.rows, values, rows).transposed()


class Examples(NamedTuple):
    """Documents that were added to labels without training: one label for each."""

    documents: Index
    labels: np.ndarray  # of the documents, int64 [n]

    def with_documents(self, features: Matrix, labels: np.ndarray) -> "Examples":
        """These with more documents."""
        rows = np.arange(len(self.labels), len(self.labels) + features.rows)
        documents = self.documents.with_rows(rows, features) if len(self.labels) else Index.of(features)
        return Examples(documents, np.concatenate([self.labels, labels]))


def no_examples() -> Examples:
    """No documents; the index has no features either."""
    return Examples(Index(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.uint16)), np.empty(0, np.int64))


@dataclass(frozen=True)
class LabelModel:
    """Trees over labels, their linear classifiers, the training documents, and the names of the labels."""

    forest: Forest
    linear: Linear
    documents: Index
    labels: Matrix  # of the documents
    names: Index  # by label; empty where there are no names
    weights: Weights
    hidden: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # labels that are never found
    encoder: Encoder = field(default_factory=no_encoder)
    examples: Examples = field(default_factory=no_examples)

    @property
    def num_labels(self) -> int:
        """All labels, also those that were added later and are in no tree."""
        return self.labels.width

    @property
    def num_features(self) -> int:
        return len(self.documents.offsets) - 1

    def search(
        self, features: Matrix, m: int, *, beam_size: int, allowed: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The m best labels of each document and their scores [n, m]: -1 where fewer are allowed.

        With `allowed` [L] the beam is as wide as needed to find m of the allowed labels, if there are so many.
        """
        parts = self._parts
        if allowed is not None:
            allowed = allowed & self.visible
            parts = parts._replace(filters=(allowed, self.allowed_below(allowed)))
        return kernels.search(features.parts, parts, beam_size, m)

    @cached_property
    def _parts(self) -> kernels.SearchInput:
        """What the compiled search reads, to search for any label."""
        leaf, weights = self.forest.leaf, self.weights
        groups = np.where(leaf < 0, -1, self.forest.parent[leaf]).astype(np.int32)
        _, first, number = np.unique(self.examples.labels, return_index=True, return_inverse=True)
        return kernels.SearchInput(
            forest=(*self.forest[:-1], groups),
            linear=tuple(self.linear),
            memory=(*self.documents, self.labels.offsets, self.labels.columns),
            names=tuple(self.names),
            encoder=tuple(self.encoder),
            examples=(*self.examples.documents, self.examples.labels, first[number]),
            weights=(
                float(weights.memory), float(weights.names), float(weights.power), int(weights.neighbours),
                int(weights.budget), float(weights.encoder), float(weights.groups), float(self.examples_weight),
            ),
            filters=(self.visible, self.allowed_below(self.visible)),
        )  # fmt: skip

    @cached_property
    def visible(self) -> np.ndarray:
        """Whether each label may be found [L]."""
        visible = np.ones(self.num_labels, bool)
        visible[self.hidden] = False
        return visible

    def allowed_below(self, allowed: np.ndarray) -> np.ndarray:
        """The number of allowed labels below each node [N]."""
        if 2 * np.count_nonzero(allowed) <= len(allowed):
            return self._count_below(allowed)
        below: np.ndarray = self._all_below - self._count_below(~allowed)
        return below

    @cached_property
    def _all_below(self) -> np.ndarray:
        return self._count_below(np.ones(self.num_labels, bool))

    def _count_below(self, chosen: np.ndarray) -> np.ndarray:
        """The number of chosen labels below each node [N]."""
        below, numbers = np.zeros(len(self.forest.parent), np.int64), np.flatnonzero(chosen)
        for leaves in self.forest.leaf:
            nodes = leaves[numbers]
            nodes = nodes[nodes >= 0]
            while len(nodes) and nodes[0] >= 0:  # all leaves of a tree are on one level
                np.add.at(below, nodes, 1)
                nodes = self.forest.parent[nodes]
        return below

    def parts(self, features: Matrix) -> dict[str, np.ndarray]:
        """What each part gives to every label [n, L]: the plain definition, without a beam."""
        n, weights = features.rows, self.weights
        linear = np.zeros((n, self.num_labels), np.float32)
        trees = len(self.forest.roots)
        for tree in range(trees):
            of_tree = np.exp(log_probabilities(features, self.forest, self.linear, tree, weights.groups))
            linear[:, : of_tree.shape[1]] += of_tree / trees
        documents = self.documents.matrix(self.labels.rows).dense()
        similarity = np.maximum(features.dense() @ documents.T, 0)
        order = np.argsort(-similarity, axis=1, kind="stable")[:, : weights.neighbours]
        near = np.zeros_like(similarity)
        np.put_along_axis(near, order, np.take_along_axis(similarity, order, 1) ** weights.power, 1)
        total = near.sum(1, keepdims=True)
        memory = (near / np.where(total == 0, 1, total)) @ self.labels.dense()
        names = (features.dense() @ self.names.matrix(self.num_labels).dense().T) ** 2
        encoder = np.zeros((n, self.num_labels), np.float32)
        if weights.encoder:
            encoder[:, : len(self.encoder.biases)] = weights.encoder * self.encoder.probabilities(features)
        examples = np.zeros((n, self.num_labels), np.float32)
        if len(self.examples.labels):
            added = self.examples.documents.matrix(len(self.examples.labels)).dense()
            np.maximum.at(examples.T, self.examples.labels, added @ features.dense().T)
        return {
            "linear": linear, "memory": weights.memory * memory, "names": weights.names * names, "encoder": encoder,
            "examples": self.examples_weight * examples**kernels.EXAMPLE_POWER,
        }  # fmt: skip

    @property
    def examples_weight(self) -> float:
        """What all other parts can give to a label together."""
        return 1.0 + self.weights.memory + self.weights.names + self.weights.encoder

    def with_documents(self, features: Matrix, labels: Matrix, num_labels: int) -> "LabelModel":
        """The same with more documents in its memory, and more labels, which are in no tree."""
        both = stack(self.labels._replace(width=num_labels), labels._replace(width=num_labels))
        leaf = self.forest.leaf
        more = np.full((len(leaf), num_labels - leaf.shape[1]), -1)
        forest = self.forest._replace(leaf=np.ascontiguousarray(np.concatenate([leaf, more], axis=1)))
        documents = self.documents.with_rows(np.arange(self.labels.rows, both.rows), features)
        return replace(self, forest=forest, documents=documents, labels=both)

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name, as they are saved."""
        named: dict[str, Any] = {
            "forest": self.forest, "linear": self.linear, "documents": self.documents, "names": self.names,
            "encoder": self.encoder,
        }  # fmt: skip
        arrays = {f"{part}.{field}": array for part, each in named.items() for field, array in each._asdict().items()}
        labels = {"labels.offsets": self.labels.offsets, "labels.columns": self.labels.columns}
        if len(self.examples.labels):
            labels |= {f"examples.{field}": array for field, array in self.examples.documents._asdict().items()}
            labels |= {"examples.labels": self.examples.labels}
        return {**arrays, **labels, "hidden": self.hidden}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], weights: Weights, num_labels: int) -> "LabelModel":
        """The model that `arrays` gave."""

        def part(kind: Any, name: str) -> Any:
            return kind(**{field: arrays[f"{name}.{field}"] for field in kind._fields})

        columns = arrays["labels.columns"]
        labels = Matrix(arrays["labels.offsets"], columns, np.ones(len(columns), np.float32), num_labels)
        return cls(
            part(Forest, "forest"), part(Linear, "linear"), part(Index, "documents"), labels, part(Index, "names"),
            weights, arrays.get("hidden", np.empty(0, np.int64)),
            part(Encoder, "encoder") if "encoder.biases" in arrays else no_encoder(),
            Examples(part(Index, "examples"), arrays["examples.labels"])
            if "examples.labels" in arrays
            else no_examples(),
        )  # fmt: skip


def train(
    features: Matrix,
    labels: Matrix,
    names: Matrix,
    *,
    group: int,
    trees: int = 1,
    negatives: int = BEAM_NEGATIVES,
    weights: Weights | None = None,
    C: float = DEFAULT_C,
    min_weight: float = MIN_WEIGHT,
    seed: int = 0,
    on_progress: OnProgress = no_progress,
) -> LabelModel:
    """Build trees over the labels and train their classifiers; `names` has a row per label, empty for those without.

    Args:
        features: of the documents.
        labels: of the documents.
        names: features of the names of labels.
        group: labels in a group, about.
        trees: their number.
        negatives: groups in the beam whose labels are trained on a document besides its own; 0 is PLT.
        weights: of the parts. Default: to be chosen; then the encoder is trained where there are few labels.
        C: of the linear classifiers.
        min_weight: weights below are dropped.
        seed: of trees and encoder.
        on_progress: called with what is done, how much of it, and the total.
    """
    forest = label_trees(label_means(features, labels), group=group, trees=trees, seed=seed)
    pairs = positives_below(forest, labels)
    settings: dict[str, Any] = {"C": C, "min_weight": min_weight, "on_progress": on_progress}
    if negatives:
        groups = [level for level in pairs if len(level[0]) and forest.label[level[0][0]] < 0]
        above = train_linear(features, forest, groups, **settings)
        settings["negatives"] = beam_negatives(features, forest, above, negatives)
    linear = train_linear(features, forest, pairs, **settings)
    chosen = (weights or Weights())._replace(groups=OF_GROUPS if negatives else 1.0)
    model = LabelModel(forest, linear, Index.of(features), labels, Index.of(names), chosen)
    if weights.encoder if weights is not None else is_affordable(features, labels):
        model = replace(model, encoder=train_encoder(features, labels, seed=seed, on_progress=on_progress))
    return model

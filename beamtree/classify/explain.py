"""Why a label has its score for a document."""

from typing import Any

import numpy as np

from beamtree.classify.matrix import Matrix
from beamtree.classify.model import LabelModel
from beamtree.data import Ids
from beamtree.kernels import classify as kernels


def explain_label(
    model: LabelModel,
    x: Matrix,
    label: int,
    words: list[str] | None,
    ids: Ids,
    *,
    features: int = 5,
    neighbours: int = 3,
) -> dict[str, Any]:
    """What each part gives to a label, the features with the largest share in it, and the nearest documents with it.

    Args:
        model: the model.
        x: a document, one row.
        label: number of a label.
        words: names of features, if they have any.
        ids: of the labels.
        features: how many to show.
        neighbours: how many to show.
    """
    probability, shares = 0.0, np.zeros(len(x.columns))
    trees = len(model.forest.roots)
    path: list[dict[str, float]] = []
    for tree in range(trees):
        node, total, own = int(model.forest.leaf[tree, label]), 0.0, np.zeros(len(x.columns))
        if node < 0:
            continue  # added without training
        counts = 1.0  # of groups it is less
        while model.forest.parent[node] >= 0:
            weights = node_weights(model, node, x.columns)
            z = float(weights @ x.values) + float(model.linear.biases[node])
            path.append({"tree": tree, "node": node, "z": z, "p": float(np.exp(-(max(0.0, 1 - z) ** 3)))})
            total -= counts * max(0.0, 1 - z) ** 3
            own += counts * weights * x.values
            counts = model.weights.groups
            node = int(model.forest.parent[node])
        probability += float(np.exp(total)) / trees
        shares += own / trees
    similarity = _similarities(x, model.documents, model.labels.rows)
    order = np.argsort(-similarity, kind="stable")[: model.weights.neighbours]
    votes = similarity[order] ** model.weights.power
    has = np.array([label in model.labels.columns[slice(*model.labels.offsets[row : row + 2])] for row in order], bool)
    memory = model.weights.memory * float(votes[has].sum() / max(votes.sum(), 1e-30))
    names = model.weights.names * float(_similarities(x, model.names, model.num_labels)[label] ** 2)
    encoder = 0.0
    if model.weights.encoder and label < len(model.encoder.biases):
        encoder = model.weights.encoder * float(model.encoder.probabilities(x)[0, label])
    examples = 0.0
    if (own_rows := np.flatnonzero(model.examples.labels == label)).size:
        cosines = _similarities(x, model.examples.documents, len(model.examples.labels))[own_rows]
        examples = model.examples_weight * float(cosines.max()) ** kernels.EXAMPLE_POWER
    strongest = np.argsort(-np.abs(shares))[:features]
    near = order[has & (votes > 0)]
    return {
        "label": ids[label],
        "score": probability + memory + names + encoder + examples,
        "parts": {
            "linear": probability,
            "memory": memory,
            "names": names,
            "encoder": encoder,
            **({"examples": examples} if len(model.examples.labels) else {}),
        },
        "features": [
            {"feature": words[x.columns[index]] if words else int(x.columns[index]), "weight": float(shares[index])}
            for index in strongest
        ],
        "documents": [{"document": int(row), "similarity": float(similarity[row])} for row in near[:neighbours]],
        "path": path,
    }


def node_weights(model: LabelModel, node: int, features: np.ndarray) -> np.ndarray:
    """The weights of a node for some features."""
    linear, parent = model.linear, int(model.forest.parent[node])
    child = node - int(model.forest.starts[parent])
    weights = np.zeros(len(features), np.float32)
    for index, feature in enumerate(features):
        first, last = linear.starts[feature], linear.starts[feature + 1]
        place = first + np.searchsorted(linear.nodes[first:last], parent)
        if place < last and linear.nodes[place] == parent:
            entries = slice(linear.entries[place], linear.entries[place + 1])
            own = np.flatnonzero(linear.children[entries] == child)
            if len(own):
                weights[index] = linear.weights[entries].view(np.float16)[own[0]]
    return weights


def _similarities(x: Matrix, index: Any, rows: int) -> np.ndarray:
    """Products of a document with all rows of an index [rows]."""
    total = np.zeros(rows, np.float32)
    for feature, value in zip(x.columns, x.values, strict=True):
        entries = slice(index.offsets[feature], index.offsets[feature + 1])
        total[index.rows[entries]] += value * index.values[entries].view(np.float16)
    return np.maximum(total, 0)

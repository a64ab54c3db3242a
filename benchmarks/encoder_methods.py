"""What training under the beam brings to an encoder over a tree of labels: g(x, n) = ⟨u(x), v_n⟩ + b_n.

    python benchmarks/encoder_methods.py data/bibtex data/delicious

The encoder part of the classifier gives u(x) and the leaves, which stay as they are. Rows differ in the inner nodes:

    means    the mean of the leaves below
    maxima   least squares to the maximum of the leaves below, on the documents where it is high
    plt      trained on the children of ancestors of right labels; p is the product down the path
    tdm      trained on the ancestors of right labels, and on as many random nodes of a level as a beam visits
    otm      trained on the nodes that the beam visits; a node is positive if its best child is (Eq. 15 of the paper)

Trained rows begin as means, scaled to probabilities level by level. A beam in training is as wide as in search. The
answer are the best of the leaves below the last beam. An encoder knows the documents that it was trained on too well,
so inner nodes are also trained on a third of the documents, with an encoder that was trained on the others.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_classification import read
from torch import Tensor, nn

import beamtree as bt
from beamtree.beam import walk
from beamtree.builders.cluster import vector_tree
from beamtree.classify.encoder import Encoder, train_encoder
from beamtree.classify.matrix import Matrix, empty, from_any
from beamtree.classify.metrics import precisions
from beamtree.classify.model import Weights, train
from beamtree.closed_form.part_weights import calibration
from beamtree.data.instances import Instances
from beamtree.methods import Method, by_name
from beamtree.model import TreeModel
from beamtree.scorers import Scorer
from beamtree.scorers.dot_product import fit_to_maxima
from beamtree.scorers.table import NodeTable
from beamtree.targets import any_relevant
from beamtree.train import Schedule
from beamtree.tree import PAD, Tree

BATCH = 256
WEIGHTS = Weights(memory=0.5, names=0.0, encoder=1.0)  # of all parts


class NodeVectors(Scorer):
    """⟨u, v_n⟩ of documents given by u; only the vectors of inner nodes are trained."""

    cheap_levels = True

    def __init__(self, tree: Tree, rows: Tensor) -> None:
        super().__init__()
        self.tree, first = tree, tree.level(tree.height).start
        self.inner = nn.Parameter(rows[:first].clone())
        self.register_buffer("leaves", rows[first:])

    def context(self, tree: Tree, x: Tensor) -> Tensor:
        return x

    def whole_level(self, context: Tensor, tree: Tree, level: int) -> Tensor:
        span = tree.level(level)
        return context @ (self.leaves if level == tree.height else self.inner[span.start : span.stop]).T

    def forward(self, context: Tensor, level: int, nodes: Tensor) -> Tensor:
        index = (nodes - self.tree.level(level).start).clamp(min=0).expand(len(context), -1)
        return self.whole_level(context, self.tree, level).gather(1, index).masked_fill(nodes == PAD, -torch.inf)

    def settings(self) -> dict[str, Any]:
        return {}


def vectors(encoder: Encoder, x: Matrix) -> Tensor:
    """u(x) and a 1, by which the bias of a node is a part of its vector [n, dim + 1]."""
    u = torch.from_numpy(x.dense() @ encoder.features)
    return torch.cat([u, torch.ones(len(u), 1)], dim=1)


def scaled_means(tree: Tree, means: Tensor, data: Instances) -> Tensor:
    """Rows of inner nodes such that σ of ⟨u, v_n⟩ estimates p(z_n = 1), by a scale and a shift of each level."""
    rows, positives = means.clone(), any_relevant(tree, data.y)
    for level in range(1, tree.height):
        nodes = tree.mask.nodes(level)
        labels = positives[level].at(nodes.unsqueeze(0))
        scale, bias = calibration((data.x @ rows[nodes].T).flatten(), labels.flatten())
        rows[nodes] *= scale
        rows[nodes, -1] += bias
    return rows


@torch.no_grad()
def search(model: TreeModel, u: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Labels of the leaves below the last beam, PAD where there are fewer, and their logits [n, kb]."""
    query = model.query(u)
    for step in walk(query, k):
        leaves = step.candidates
    return model.tree.item_of_leaf(leaves).expand(len(u), -1), query.logits(model.tree.height, leaves)


def visited_scores(labels: Tensor, logits: Tensor, others: np.ndarray, weight: float) -> np.ndarray:
    """The scores of all labels [n, L]: what the other parts give, and the softmax over the labels that were visited."""
    scores = np.concatenate([others, np.zeros((len(others), 1), np.float32)], axis=1)  # PAD is the last
    of_encoder = np.zeros_like(scores)
    np.put_along_axis(of_encoder, labels.numpy(), logits.softmax(1).numpy(), axis=1)
    return (scores + weight * of_encoder)[:, :-1]


def best(scores: np.ndarray) -> np.ndarray:
    """The five best labels of each row."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :5]


def padded(y: Matrix) -> Tensor:
    """The labels of each document, padded with PAD."""
    counts = np.diff(y.offsets)
    result = np.full((y.rows, counts.max()), PAD)
    result[np.arange(result.shape[1]) < counts[:, None]] = y.columns
    return torch.from_numpy(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--beams", default="1,2,5,10", help="k in training and in search")
    parser.add_argument("--arity", type=int, default=4, help="children of a node")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--others", action="store_true", help="train inner nodes on documents the encoder has not seen")
    parser.add_argument("--all-parts", action="store_true", help="also add the other parts of a classifier")
    parser.add_argument("--validation", action="store_true", help="measure on a fifth of the training documents")
    args = parser.parse_args()
    torch.set_num_threads(2)
    for path in args.sets:
        name, sets = read(path)
        x, x_test = (from_any(each) for each in sets.ours)
        y, y_test = sets.train_y, sets.test_y
        useful = np.flatnonzero((np.diff(x.offsets) > 0) & (np.diff(y.offsets) > 0))
        x, y = x.take(useful), y.take(useful)
        order = np.random.default_rng(0).permutation(x.rows)
        if args.validation:
            order, held_out = np.split(order, [x.rows * 4 // 5])
            x_test, y_test = x.take(held_out), y.take(held_out)
        seen, own = (order[len(order) // 3 :], order[: len(order) // 3]) if args.others else (order, order)
        encoder = train_encoder(x.take(seen), y.take(seen))
        data = Instances(vectors(encoder, x.take(own)), padded(y.take(own)))
        u = vectors(encoder, x_test)
        leaves = torch.from_numpy(np.concatenate([encoder.labels, encoder.biases[:, None]], axis=1))
        tree = vector_tree(leaves[:, :-1], arity=args.arity)
        table = NodeTable.from_rows(torch.zeros(tree.num_nodes, leaves.shape[1]))
        table.add_means(tree, leaves, share=False)
        means = table.weight.detach()
        maxima = means.clone()
        fit_to_maxima(tree, maxima, data.x)
        start = scaled_means(tree, means, data)
        parts = {"encoder": np.zeros((u.shape[0], y.width), np.float32)}
        if args.all_parts:
            whole = train(x.take(order), y.take(order), empty(y.width, x.width), group=y.width, weights=WEIGHTS)
            given = replace(whole, weights=WEIGHTS._replace(encoder=0.0)).parts(x_test)
            parts["all parts"] = given["linear"] + given["memory"]

        def fitted(method: Method, tree: Tree = tree, start: Tensor = start, data: Instances = data) -> TreeModel:
            model = TreeModel(tree, NodeVectors(tree, start))
            bt.fit(model, data, method, epochs=args.epochs, batch_size=BATCH, schedule=Schedule(args.lr))
            return model

        plt = fitted(bt.plt())
        fixed = {row: TreeModel(tree, NodeVectors(tree, rows)) for row, rows in (("means", means), ("maxima", maxima))}
        everything = torch.arange(y.width).expand(len(u), -1), u @ leaves.T
        for k in map(int, args.beams.split(",")):
            began = time.monotonic()
            rows = {
                "plt": plt,
                "tdm": fitted(by_name("tdm-positives", negatives=k * args.arity)),
                "otm": fitted(bt.otm(k)),
                **fixed,
            }
            found = {**{row: search(model, u, k) for row, model in rows.items()}, "every label": everything}
            for part, others in parts.items():
                weight = 1.0 if part == "encoder" else WEIGHTS.encoder
                values = {
                    row: precisions(best(visited_scores(*each, others, weight)), y_test)[np.diff(y_test.offsets) > 0]
                    for row, each in found.items()
                }
                for row, each in values.items():
                    difference = each - values["plt"]
                    error = 1.96 * difference.std(0) / len(each) ** 0.5
                    numbers = {"p": each.mean(0), "gain": difference.mean(0), "error": error}
                    about = {"set": name, "documents": "other" if args.others else "same", "parts": part, "k": k}
                    rounded = {key: [round(100 * float(v), 2) for v in value] for key, value in numbers.items()}
                    print(json.dumps({**about, "row": row, **rounded}), flush=True)
            print(f"{name}, k = {k}: {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()

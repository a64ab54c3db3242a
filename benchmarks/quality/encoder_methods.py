"""What training under the beam brings to an encoder over a tree of labels: g(x, n) = ⟨u(x), v_n⟩ + b_n.

    python benchmarks/quality/encoder_methods.py data/bibtex data/delicious

The encoder part of a classifier gives u(x) and the leaves, which stay as they are. Rows differ in the inner nodes:

    means    the mean of the leaves below
    maxima   least squares to the maximum of the leaves below, on the 1,000 documents where it is highest
    plt      trained on the children of ancestors of right labels; p is the product down the path
    tdm      trained on the ancestors of right labels, and on as many random nodes of a level as a beam visits
    otm      trained on the nodes that the beam visits; a node is positive if its best child is (Eq. 15 of the paper)

Trained rows begin as means, scaled to probabilities level by level. A beam in training is as wide as in search. The
answer are the best of the leaves below the last beam. With all parts, every label has its score of linear part and
memory, and those leaves p of the encoder besides. A beam does not know the total of the softmax over all labels, so its
logarithm is a linear function of u(x), fitted to the training documents.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_classification import read
from torch import Tensor, nn

import beamtree as bt
from beamtree.beam import walk
from beamtree.builders.cluster import vector_tree
from beamtree.classify.encoder import Encoder
from beamtree.classify.matrix import Matrix, from_any
from beamtree.classify.metrics import precisions
from beamtree.data.instances import Instances
from beamtree.methods import Method, by_name
from beamtree.model import TreeModel
from beamtree.research.label_comparison import half_interval, sparse
from beamtree.scorers import Scorer
from beamtree.scorers.dot_product import fit_to_maxima
from beamtree.scorers.table import NodeTable
from beamtree.targets import any_relevant
from beamtree.train import Schedule
from beamtree.tree import PAD, Tree

ARITY, NEAREST = 4, 1000
EPOCHS, BATCH, LR = 20, 256, 0.03  # chosen on validation documents
NEWTON = 12  # steps of a logistic regression


class NodeVectors(Scorer):
    """⟨u, v_n⟩ of documents given by u; only the vectors of inner nodes are trained."""

    cheap_levels = True

    def __init__(self, tree: Tree, rows: Tensor) -> None:
        super().__init__()
        self.tree, first = tree, tree.level(tree.height).start
        self.inner = nn.Parameter(rows[:first].clone())
        self.register_buffer("leaves", rows[first:])

    def prepare(self, tree: Tree, x: Tensor) -> Tensor:
        return x

    def whole_level(self, prepared: Tensor, tree: Tree, level: int) -> Tensor:
        span = tree.level(level)
        return prepared @ (self.leaves if level == tree.height else self.inner[span.start : span.stop]).T

    def forward(self, prepared: Tensor, level: int, nodes: Tensor) -> Tensor:
        index = (nodes - self.tree.level(level).start).clamp(min=0).expand(len(prepared), -1)
        return self.whole_level(prepared, self.tree, level).gather(1, index).masked_fill(nodes == PAD, -torch.inf)

    def settings(self) -> dict[str, Any]:
        return {}


def vectors(encoder: Encoder, x: Matrix) -> Tensor:
    """u(x) and a 1, by which the bias of a node is a part of its vector [n, dim + 1]."""
    u = torch.from_numpy(x.dense() @ encoder.features)
    return torch.cat([u, torch.ones(len(u), 1)], dim=1)


def instances(encoder: Encoder, x: Matrix, y: Matrix) -> Instances:
    """Documents that have a label, as training reads them."""
    counts = np.diff(y.offsets)
    labels = np.full((y.rows, counts.max()), PAD)
    labels[np.arange(labels.shape[1]) < counts[:, None]] = y.columns
    return Instances(vectors(encoder, x)[counts > 0], torch.from_numpy(labels[counts > 0]))


def logistic(scores: Tensor, chosen: Tensor) -> Tensor:
    """a > 0 and b: the logistic regression of labels on scores, by Newton's method [2]."""
    g, z = scores.double(), chosen.double()
    share = z.mean().clamp(1e-6, 1 - 1e-6)
    middle, unit = g.mean(), g.std(correction=0).clamp(min=1e-9)
    rows = torch.stack([(g - middle) / unit, torch.ones_like(g)], dim=1)
    beta = torch.stack([torch.ones_like(share), share.logit()])
    ridge = 1e-3 * torch.eye(2, dtype=g.dtype)  # for a solution also where all or none are chosen
    for _ in range(NEWTON):
        p = torch.sigmoid(rows @ beta)
        gradient = rows.T @ (z - p) - ridge @ beta
        beta = beta + torch.linalg.solve((rows * (p * (1 - p)).unsqueeze(1)).T @ rows + ridge, gradient)
    if not bool(torch.isfinite(beta).all()) or beta[0] <= 0:  # uninformative scores keep their order
        beta = torch.stack([torch.full_like(share, 1e-3), share.logit()])
    scale = beta[0] / unit
    return torch.stack([scale, beta[1] - scale * middle]).float()


def scaled_means(tree: Tree, means: Tensor, data: Instances) -> Tensor:
    """Rows of inner nodes such that σ of ⟨u, v_n⟩ estimates p(z_n = 1), by a scale and a shift of each level."""
    rows, positives = means.clone(), any_relevant(tree, data.y)
    for level in range(1, tree.height):
        nodes = tree.mask.nodes(level)
        labels = positives[level].at(nodes.unsqueeze(0))
        scale, bias = logistic((data.x @ rows[nodes].T).flatten(), labels.flatten())
        rows[nodes] *= scale
        rows[nodes, -1] += bias
    return rows


def best_is_right(tree: Tree, leaves: Tensor, data: Instances) -> float:
    """The share of the nodes of the first level above a right label whose best label below is right."""
    slots = tree.items()
    logits = (data.x @ leaves.T)[:, slots.clamp(min=0)].masked_fill(slots == PAD, -torch.inf)
    right = any_relevant(tree, data.y)[-1].at(torch.tensor(tree.level(tree.height)).unsqueeze(0))
    logits, right = logits.unflatten(1, (ARITY, -1)), right.unflatten(1, (ARITY, -1))
    best = right.gather(2, logits.argmax(2, keepdim=True)).squeeze(2)
    return float(best[right.any(2)].float().mean())


@torch.no_grad()
def search(model: TreeModel, u: Tensor, k: int, log_total: Tensor) -> np.ndarray:
    """p of the labels below the last beam, as a softmax with given totals [n]; 0 for all other labels [n, L]."""
    query = model.query(u)
    for step in walk(query, k):
        leaves = step.candidates
    labels = model.tree.item_of_leaf(leaves).expand(len(u), -1)
    result = torch.zeros(len(u), model.tree.num_items + 1)  # the last is for PAD
    logits = query.logits(model.tree.height, leaves)
    result.scatter_(1, labels % result.shape[1], (logits - log_total.unsqueeze(1)).exp())
    return result[:, :-1].numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--beams", default="1,2,5,10", help="k in training and in search")
    args = parser.parse_args()
    torch.set_num_threads(2)
    for path in args.sets:
        name, sets = read(path)
        x, x_test = (from_any(each) for each in sets.ours)
        classifier = bt.Classifier(C=0.5).fit(sets.ours[0], sparse(sets.train_y), verbose=False).model
        encoder, parts = classifier.encoder, classifier.parts(x_test)
        data, u = instances(encoder, x, sets.train_y), vectors(encoder, x_test)
        leaves = torch.from_numpy(np.concatenate([encoder.labels, encoder.biases[:, None]], axis=1))
        tree = vector_tree(leaves[:, :-1], arity=ARITY)
        shares = [best_is_right(tree, leaves, each) for each in (data, instances(encoder, x_test, sets.test_y))]
        print(json.dumps({"set": name, "best_is_right": [round(100 * share, 1) for share in shares]}), flush=True)
        table = NodeTable.from_rows(torch.zeros(tree.num_nodes, leaves.shape[1]))
        table.add_means(tree, leaves, share=False)
        means = table.weight.detach()
        start, maxima = scaled_means(tree, means, data), means.clone()
        fit_to_maxima(tree, maxima, data.x, nearest=NEAREST)

        def trained(method: Method, tree: Tree = tree, start: Tensor = start, data: Instances = data) -> TreeModel:
            model = TreeModel(tree, NodeVectors(tree, start))
            bt.fit(model, data, method, epochs=EPOCHS, batch_size=BATCH, schedule=Schedule(LR))
            return model

        totals = (data.x @ leaves.T).logsumexp(1, keepdim=True)
        log_total = (u @ torch.linalg.lstsq(data.x, totals).solution).squeeze(1)
        plt = trained(bt.plt())
        for k in map(int, args.beams.split(",")):
            rows = {
                "plt": plt,
                "tdm": trained(by_name("tdm-positives", negatives=k * ARITY)),
                "otm": trained(bt.otm(k)),
                "means": TreeModel(tree, NodeVectors(tree, means)),
                "maxima": TreeModel(tree, NodeVectors(tree, maxima)),
            }
            p = {row: search(model, u, k, log_total) for row, model in rows.items()}
            p["every label"] = encoder.probabilities(x_test)
            nothing = np.zeros_like(parts["linear"])
            for part, weight, others, more in (
                ("encoder", 1.0, nothing, {}),
                ("all parts", classifier.weights.encoder, parts["linear"] + parts["memory"], {"no encoder": nothing}),
            ):
                first = None
                for row, each in {**p, **more}.items():
                    scores = others + weight * each
                    found = np.argsort(-scores, axis=1, kind="stable")[:, :5]
                    found = np.where(np.take_along_axis(scores, found, 1) > 0, found, -1)
                    values = precisions(found, sets.test_y)[np.diff(sets.test_y.offsets) > 0]
                    first = values if first is None else first
                    gain = values - first
                    numbers = {"p": values.mean(0), "gain": gain.mean(0), "error": half_interval(gain)}
                    rounded = {key: [round(100 * float(v), 2) for v in value] for key, value in numbers.items()}
                    print(json.dumps({"set": name, "parts": part, "k": k, "row": row, **rounded}), flush=True)


if __name__ == "__main__":
    main()

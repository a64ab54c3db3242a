"""What training under the beam brings to trees over labels: PLT, TDM, hard negatives of the beam, and OTM.

    python benchmarks/quality/label_methods.py data/delicious data/yso-en.parquet

Rows, for one tree of groups and labels, with the same documents, features and tree:

    plt             a group is positive if a label below it is right; labels are trained on documents below their group
    tdm             the same, and labels are also trained on documents that drew their group at random, k groups each
    beam            as plt, and labels are also trained on the documents whose beam visits their group
    otm             as beam, and a group is positive if its highest-scored label is right (Eq. 15 of the paper)

Scores that decide on beams and labels come from two halves of the documents, each scored by the classifiers of the
other: a classifier knows the documents that it was trained on too well. A beam in training is as wide as in search.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from bench_classification import read

from beamtree.classify.label_tree import Forest, label_means, label_trees
from beamtree.classify.linear import Linear, Pairs, positives_below, train_linear, weight_matrix
from beamtree.classify.matrix import Matrix, empty, from_any
from beamtree.classify.metrics import precisions
from beamtree.classify.model import Index, LabelModel, Weights
from beamtree.research.label_comparison import sparse

AT_ONCE = 500  # documents whose labels are all scored together


def judge(x: Matrix, y: Matrix, forest: Forest, linear: Linear, k: int) -> tuple[Pairs, Pairs]:
    """Groups and documents: which of them the beam visits, and which pass as positive by Eq. 15."""
    weights, groups = sparse(weight_matrix(forest, linear)), np.arange(forest.starts[0], forest.ends[0])
    order = forest.label[forest.starts[groups[0]] : forest.ends[groups[-1]]]
    starts = forest.starts[groups] - forest.starts[groups[0]]
    leaves = weights[forest.starts[groups[0]] : forest.ends[groups[-1]]].T.tocsr()
    biases = linear.biases[forest.starts[groups[0]] : forest.ends[groups[-1]]]
    features, labels, of_groups = sparse(x), sparse(y), weights[groups].T.tocsr()
    visited, positive = [], []
    for start in range(0, x.rows, AT_ONCE):
        rows = features[start : start + AT_ONCE]
        scores = np.asarray((rows @ leaves).todense()) + biases
        right = np.asarray(labels[start : start + AT_ONCE][:, order].todense()) > 0
        best = np.maximum.reduceat(scores, starts, axis=1)
        best_right = np.maximum.reduceat(np.where(right, scores, -np.inf), starts, axis=1)
        document, group = np.nonzero(best_right >= best)
        positive.append((groups[group], document + start))
        of_group = np.asarray((rows @ of_groups).todense()) + linear.biases[groups]
        top = np.argsort(-of_group, axis=1)[:, :k]
        visited.append((groups[top].ravel(), np.repeat(np.arange(len(top)) + start, top.shape[1])))
    return join(visited), join(positive)


def join(parts: list[Pairs]) -> Pairs:
    """Pairs of nodes and documents, by node and document."""
    nodes, documents = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.lexsort((documents, nodes))
    return nodes[order], documents[order]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--group", type=int, default=64, help="labels in a group")
    parser.add_argument("--beams", default="1,2,5,10", help="k in training and in search")
    args = parser.parse_args()
    for path in args.sets:
        name, sets = read(path)
        x, x_test = (from_any(each) for each in sets.ours)
        y, y_test = sets.train_y, sets.test_y
        forest = label_trees(label_means(x, y), group=args.group)
        pairs = positives_below(forest, y)
        half = np.random.default_rng(0).permutation(x.rows) % 2 == 0
        sides = [np.flatnonzero(half), np.flatnonzero(~half)]
        fitted = [train_linear(x.take(s), forest, positives_below(forest, y.take(s))) for s in sides]
        plt = train_linear(x, forest, pairs)
        documents, names = Index.of(x), Index.of(empty(y.width, x.width))
        for k in map(int, args.beams.split(",")):
            judged = [
                judge(x.take(s), y.take(s), forest, other, k) for s, other in zip(sides, fitted[::-1], strict=True)
            ]
            visited, positive = (
                join([(each[part][0], s[each[part][1]]) for each, s in zip(judged, sides, strict=True)])
                for part in (0, 1)
            )
            everyone = np.zeros(x.rows, np.int64), np.arange(x.rows)  # all are trained on at the root
            groups = np.random.default_rng(k).integers(forest.starts[0], forest.ends[0], (x.rows, k))
            drawn = join([(groups.ravel(), np.repeat(np.arange(x.rows), k))])
            rows = {
                "plt": plt,
                "tdm": train_linear(x, forest, pairs, negatives=[everyone, drawn]),
                "beam": train_linear(x, forest, pairs, negatives=[everyone, visited]),
                "otm": train_linear(x, forest, [positive, pairs[1]], negatives=[everyone, visited]),
            }
            for parts, weights in (("linear", Weights(0.0, 0.0)), ("linear and memory", Weights(0.5, 0.0))):
                first = None
                for row, linear in rows.items():
                    model = LabelModel(forest, linear, documents, y, names, weights)
                    values = precisions(model.search(x_test, 5, beam_size=k)[0], y_test)
                    first = values if first is None else first
                    gain, error = (values - first).mean(0), 1.96 * (values - first).std(0) / len(values) ** 0.5
                    record = {"set": name, "parts": parts, "k": k, "row": row}
                    record |= {"p": [round(100 * float(v), 2) for v in values.mean(0)]}
                    record |= {"gain": [round(100 * float(v), 2) for v in gain]}
                    record |= {"error": [round(100 * float(v), 2) for v in error]}
                    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()

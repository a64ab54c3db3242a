"""Metrics of extreme classification over documents, with intervals."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from beamtree.classify.matrix import Matrix
from beamtree.errors import lookup
from beamtree.evaluate import Evaluation, summarise
from beamtree.evaluate.metrics import METRICS, num_relevant
from beamtree.tree import PAD

PROPENSITY = (0.55, 1.5)  # A and B of Jain et al. (2016), as used for most sets
PRECISIONS = (1, 3, 5)  # m of the precisions that settings are chosen by
RARE = 5  # documents of a rare label, at most
SETS = ("psp", "rare_recall")  # metrics that look at which labels were found


def propensities(counts: np.ndarray, documents: int) -> np.ndarray:
    """How likely each label is given where it is right (Jain et al., 2016) [L]: rare ones less so."""
    a, b = PROPENSITY
    c = (np.log(max(documents, 3)) - 1) * (b + 1) ** a
    result: np.ndarray = 1 / (1 + c * np.exp(-a * np.log(counts + b)))
    return result


def precisions(found: np.ndarray, labels: Matrix) -> np.ndarray:
    """P@1, P@3 and P@5 of each document [n, 3]; `found` [n, 5] has -1 where there are no more."""
    pairs = np.sort(labels.row_of_entry() * labels.width + labels.columns)
    keys = np.arange(labels.rows)[:, None] * labels.width + found
    hit = (pairs[np.searchsorted(pairs, keys).clip(max=len(pairs) - 1)] == keys) & (found >= 0)
    return np.stack([hit[:, :m].mean(1) for m in PRECISIONS], axis=1)


def label_metrics(
    found: np.ndarray,
    relevant: Sequence[np.ndarray],
    counts: np.ndarray,
    documents: int,
    cuts: tuple[int, ...],
    metrics: tuple[str, ...],
) -> Evaluation:
    """The mean of each metric over documents that have a label.

    Args:
        found: labels of each document, best first [n, m].
        relevant: the right ones of each document; those with numbers of len(counts) and above are not known.
        counts: training documents of each label.
        documents: of the training.
        cuts: m.
        metrics: names.
    """
    for name in metrics:
        lookup({**METRICS, **dict.fromkeys(SETS)}, "metric", name)
    rows = [row for row, each in enumerate(relevant) if len(each)]
    if not rows:
        raise ValueError("no document has a label: there is nothing to measure")
    width = max(len(relevant[row]) for row in rows)
    y = torch.full((len(rows), width), PAD)
    for index, row in enumerate(rows):
        y[index, : len(relevant[row])] = torch.from_numpy(np.asarray(relevant[row], np.int64))
    items = torch.from_numpy(found[rows])
    hit = (items.unsqueeze(2) == y.unsqueeze(1)).any(2) & (items >= 0)
    inverse = torch.from_numpy(1 / propensities(np.append(counts, np.zeros(1)), documents)).float()
    rare = torch.from_numpy(np.append(counts <= RARE, True))
    values = [[_values(name, hit, items, y, m, inverse, rare) for name in metrics] for m in cuts]
    kept = torch.stack([torch.stack(row, dim=1) for row in values], dim=1)
    evaluation = summarise(kept, cuts, metrics, len(relevant))
    evaluation.of = "documents"
    return evaluation


def _values(name: str, hit: Tensor, items: Tensor, y: Tensor, m: int, inverse: Tensor, rare: Tensor) -> Tensor:
    """A metric of each document [n]."""
    last = len(inverse) - 1  # of labels that are not known
    if name == "psp":
        gain = inverse[items.clamp(0, last)] * hit
        best = torch.where(y == PAD, 0, inverse[y.clamp(0, last)]).sort(dim=1, descending=True).values[:, :m].sum(1)
        return gain[:, :m].sum(1) / best
    if name == "rare_recall":
        right = ((y != PAD) & rare[y.clamp(0, last)]).sum(1)
        found = (hit[:, :m] & rare[items[:, :m].clamp(0, last)]).sum(1)
        return found / right.clamp(min=1)
    return METRICS[name](hit, num_relevant(y), m).float()

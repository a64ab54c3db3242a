"""P@m, R@m and F@m of a model over instances (Sec. 3.2.2)."""

import torch

from beamtree.beam import retrieve
from beamtree.data import Instances
from beamtree.metrics import precision_recall_f
from beamtree.model import TreeModel


def evaluate(
    model: TreeModel,
    data: Instances,
    *,
    beam_size: int = 400,
    m: tuple[int, ...] = (10, 50, 100, 200),
    batch_size: int = 256,
) -> dict[tuple[str, int], float]:
    """The mean over instances of each metric at each m, by (name, m): one search serves them all."""
    model.tree.check_items(data.y)
    totals = torch.zeros(len(m), 3, dtype=torch.float64)
    for start in range(0, len(data), batch_size):
        x, y = data.batch(torch.arange(start, min(start + batch_size, len(data))))
        x, y = x.to(model.tree.device), y.to(model.tree.device)
        items, _ = retrieve(model, x, beam_size=beam_size, m=max(m))
        totals += torch.stack([precision_recall_f(items, y, size).sum(0) for size in m]).cpu()
    means = totals / len(data)
    names = ("precision", "recall", "f1")
    return {(name, size): float(means[i, j]) for i, size in enumerate(m) for j, name in enumerate(names)}

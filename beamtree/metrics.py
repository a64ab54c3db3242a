"""P@m, R@m, F@m (Eqs. 5-7)."""

import torch
from torch import Tensor

from beamtree.tree import PAD, first_of_each


def hits(items: Tensor, y: Tensor) -> Tensor:
    """Whether each retrieved item [B, m] is among the relevant ones y [B, P]."""
    known = y.sort(dim=1).values
    place = torch.searchsorted(known, items.contiguous()).clamp(max=known.shape[1] - 1)
    return (known.gather(1, place) == items) & (items != PAD)


def precision_recall_f(items: Tensor, y: Tensor, m: int) -> Tensor:
    """P@m, R@m and F@m of each instance [B, 3]; F is 0 where P + R is 0. Repeats in y count once."""
    known = y.sort(dim=1).values
    relevant = first_of_each(known).sum(1)
    if bool((relevant == 0).any()):
        row = int((relevant == 0).nonzero()[0])
        raise ValueError(f"y of instance {row} is empty: recall needs at least one relevant item")
    found = hits(items[:, :m], y).sum(1)
    precision, recall = found / m, found / relevant
    f = 2 * precision * recall / (precision + recall)
    return torch.stack([precision, recall, f.nan_to_num(0.0)], dim=1)

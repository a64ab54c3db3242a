"""P@m, R@m, F@m (Eqs. 5-7), and two more that people ask for."""

import torch
from torch import Tensor

from beamtree.tree import PAD, first_of_each

NAMES = ("precision", "recall", "f1", "ndcg", "hit_rate")  # the columns of `all_metrics`


def hits(items: Tensor, y: Tensor) -> Tensor:
    """Whether each retrieved item [B, m] is among the relevant ones y [B, P]."""
    known = y.sort(dim=1).values
    place = torch.searchsorted(known, items.contiguous()).clamp(max=known.shape[1] - 1)
    return (known.gather(1, place) == items) & (items != PAD)


def num_relevant(y: Tensor) -> Tensor:
    """|I_x| [B]: repeats in y count once; a ValueError where there is none."""
    relevant = first_of_each(y.sort(dim=1).values).sum(1)
    if bool((relevant == 0).any()):
        row = int((relevant == 0).nonzero()[0])
        raise ValueError(f"y of instance {row} is empty: recall needs at least one relevant item")
    return relevant


def precision_recall_f(items: Tensor, y: Tensor, m: int) -> Tensor:
    """P@m, R@m and F@m of each instance [B, 3]; F is 0 where P + R is 0. Repeats in y count once."""
    return all_metrics(hits(items[:, :m], y), num_relevant(y), m)[:, :3]


def all_metrics(hit: Tensor, relevant: Tensor, m: int) -> Tensor:
    """P, R, F, NDCG and whether anything was hit, at m, from the hits [B, ≥ m] of ranked items [B, 5]."""
    hit = hit[:, :m]
    found = hit.sum(1)
    precision, recall = found / m, found / relevant
    f = 2 * precision * recall / (precision + recall)
    gain = torch.log2(torch.arange(2, m + 2, device=hit.device, dtype=torch.float32)).reciprocal()
    ideal = gain.cumsum(0)[relevant.clamp(max=m) - 1]
    ndcg = (hit * gain[: hit.shape[1]]).sum(1) / ideal
    return torch.stack([precision, recall, f.nan_to_num(0.0), ndcg, (found > 0).float()], dim=1)


def bootstrap(values: Tensor, *, rounds: int = 1000, level: float = 0.95, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The interval of the mean over users of values [U, C], by drawing users anew: two bounds [C] each."""
    generator = torch.Generator().manual_seed(seed)
    count = len(values)
    values = values.double()
    means = torch.empty(rounds, values.shape[1], dtype=torch.float64)
    together = max(1, 5_000_000 // count)  # rounds drawn at a time
    for start in range(0, rounds, together):
        size = min(together, rounds - start)
        drawn = torch.randint(count, (size, count), generator=generator)
        drawn += torch.arange(size).unsqueeze(1) * count
        times = torch.bincount(drawn.flatten(), minlength=size * count).view(size, count)
        means[start : start + size] = times.double() @ values / count
    tail = (1 - level) / 2
    low, high = means.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=0)
    return low, high


def paired_p(values: Tensor, others: Tensor) -> Tensor:
    """How likely a difference of means at least as large is by chance [C], for values of the same users [U, C] each.

    By the normal distribution of the mean difference; 1 where nothing differs.
    """
    differences = (values - others).double()
    error = differences.std(0) / len(differences) ** 0.5
    z = (differences.mean(0).abs() / error).nan_to_num(0.0)
    p: Tensor = torch.special.erfc(z / 2**0.5)
    return p

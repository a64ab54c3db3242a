"""P@m, R@m, F@m (Eqs. 5-7), and other usual metrics."""

from collections.abc import Callable

import torch
from torch import Tensor

from beamtree.tree import PAD, first_of_each

# (hits [B, ≥ m] of ranked items, |I_x| [B], m) -> one value per user [B]. Any such function is a metric.
Metric = Callable[[Tensor, Tensor, int], Tensor]
FEW_USERS, DEVIATION = 30, 0.25  # fewer users are told; the usual standard deviation of recall over users


def few_users(count: int) -> str | None:
    """A warning about a mean over few users; None where they are enough.

    With 30 users the 95 % interval of recall is about ± 9 points. With fewer, it is wider than most differences between
    models, and the bootstrap makes it too narrow.
    """
    if count >= FEW_USERS:
        return None
    points = 100 * 1.96 * DEVIATION / max(1, count) ** 0.5
    return (
        f"only {count:,} users to measure: the 95 % interval of recall is about ± {points:.0f} points; "
        "prepare with more test users, or evaluate on a log of more users"
    )


def hits(items: Tensor, y: Tensor) -> Tensor:
    """Whether each retrieved item [B, m] is among the relevant ones y [B, P]."""
    if not y.shape[1]:
        return torch.zeros_like(items, dtype=torch.bool)
    relevant = y.sort(dim=1).values
    index = torch.searchsorted(relevant, items.contiguous()).clamp(max=relevant.shape[1] - 1)
    return (relevant.gather(1, index) == items) & (items != PAD)


def num_relevant(y: Tensor) -> Tensor:
    """|I_x| [B]: repeats in y count once; a ValueError where there is none."""
    relevant = first_of_each(y.sort(dim=1).values).sum(1)
    if bool((relevant == 0).any()):
        row = int((relevant == 0).nonzero()[0])
        raise ValueError(f"y of instance {row} is empty: recall needs at least one relevant item")
    return relevant


def weighted_hits(items: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The weight of each retrieved item [B, m], 0 if it is not relevant, and the weight of all relevant items [B].

    `weights` are those of y [B, P]. An item that y has several times counts once, with its largest weight. With
    them instead of hits and |I_x|, `recall` is the weighted recall.
    """
    by_weight = weights.argsort(dim=1, descending=True)
    y, weights = y.gather(1, by_weight), weights.gather(1, by_weight)
    order = y.argsort(dim=1, stable=True)  # of each item, the largest weight first
    y, weights = y.gather(1, order), weights.gather(1, order)
    total = (weights * first_of_each(y)).sum(1)
    index = torch.searchsorted(y, items.contiguous()).clamp(max=y.shape[1] - 1)
    return weights.gather(1, index) * ((y.gather(1, index) == items) & (items != PAD)), total


def precision(hit: Tensor, relevant: Tensor, m: int) -> Tensor:
    """P@m (Eq. 5): the share of the first m items that are relevant."""
    return hit[:, :m].sum(1) / m


def recall(hit: Tensor, relevant: Tensor, m: int) -> Tensor:
    """R@m (Eq. 6): the share of the relevant items that are among the first m."""
    return hit[:, :m].sum(1) / relevant


def f1(hit: Tensor, relevant: Tensor, m: int) -> Tensor:
    """F@m (Eq. 7): the harmonic mean of precision and recall; 0 where both are."""
    p, r = precision(hit, relevant, m), recall(hit, relevant, m)
    return (2 * p * r / (p + r)).nan_to_num(0.0)


def ndcg(hit: Tensor, relevant: Tensor, m: int) -> Tensor:
    """Discounted gain of the first m items, as a share of that of the best order."""
    hit = hit[:, :m]
    gain = torch.log2(torch.arange(2, m + 2, device=hit.device, dtype=torch.float32)).reciprocal()
    ideal = gain.cumsum(0)[relevant.clamp(max=m) - 1]
    return (hit * gain[: hit.shape[1]]).sum(1) / ideal


def mrr(hit: Tensor, relevant: Tensor, m: int) -> Tensor:
    """One over the rank of the first relevant item among the first m; 0 where there is none."""
    hit = hit[:, :m]
    rank = torch.arange(1, hit.shape[1] + 1, device=hit.device, dtype=torch.float32)
    return (hit / rank).amax(1) if hit.shape[1] else hit.sum(1).float()


def hit_rate(hit: Tensor, relevant: Tensor, m: int) -> Tensor:
    """Whether anything relevant is among the first m."""
    return hit[:, :m].any(1).float()


METRICS: dict[str, Metric] = {
    "precision": precision,
    "recall": recall,
    "f1": f1,
    "ndcg": ndcg,
    "mrr": mrr,
    "hit_rate": hit_rate,
}


def precision_recall_f(items: Tensor, y: Tensor, m: int) -> Tensor:
    """P@m, R@m and F@m of each instance [B, 3]; F is 0 where P + R is 0. Repeats in y count once."""
    hit, relevant = hits(items[:, :m], y), num_relevant(y)
    return torch.stack([metric(hit, relevant, m) for metric in (precision, recall, f1)], dim=1)


def bootstrap(values: Tensor, *, rounds: int = 1000, level: float = 0.95, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The interval of the mean over users of values [U, C], by resampling users: two bounds [C] each."""
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
    """The p-value of a paired z-test [C], for values of the same users [U, C] each; 1 where nothing differs."""
    differences = (values - others).double()
    error = differences.std(0) / len(differences) ** 0.5
    z = (differences.mean(0).abs() / error).nan_to_num(0.0)
    p: Tensor = torch.special.erfc(z / 2**0.5)
    return p


def default_m(num_items: int) -> int:
    """The default m of recall: 200, or a tenth of a small catalogue."""
    return min(200, max(10, num_items // 10))

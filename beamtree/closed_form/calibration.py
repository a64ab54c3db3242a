"""From scores to probabilities: how often items with such a score are chosen by validation users."""

import torch
from torch import Tensor

KNOTS = 16  # points of a calibration
GROUPS = 512  # of neighbouring scores, before those with falling rates are joined
PRIOR = 4.0  # pairs with the mean rate that are added to each group, so that no rate is 0 or 1
MIN_STEP = 1e-3  # by which logits rise from point to point, so that the order of scores stays
NEWTON = 12  # steps of Newton's method


def calibrate(scores: Tensor, chosen: Tensor, weights: Tensor | None = None) -> Tensor:
    """Scores and logits at KNOTS points, both rising [2, KNOTS]: see `scorers.sum.calibrated`.

    The rates at which items are chosen are fitted by isotonic regression: groups of neighbouring scores are joined
    while a higher score has a lower rate.

    Args:
        scores: of pairs of a user and an item [n].
        chosen: whether the user chose the item [n].
        weights: of the pairs; all count the same unless given.
    """
    order = scores.argsort(descending=True)
    g, z = scores[order].double().cpu(), chosen[order].double().cpu()
    w = torch.ones_like(g) if weights is None else weights[order].double().cpu()
    if not len(g):
        g = z = w = torch.zeros(1, dtype=torch.float64)
    # Small groups at the top, where scores are high and few.
    ends = (len(g) * (torch.arange(1, GROUPS + 1, dtype=torch.float64) / GROUPS) ** 3).ceil().long().unique()
    _, run = g.unique_consecutive(return_inverse=True)
    first = torch.searchsorted(run, run)  # equal scores belong to one group
    group = torch.searchsorted(ends, first, right=True)

    def sums(values: Tensor) -> list[float]:
        total: list[float] = torch.zeros(len(ends), dtype=torch.float64).index_add_(0, group, values).tolist()
        return total[::-1]  # rising scores

    rate = float((w * z).sum() / w.sum().clamp(min=1e-9))
    rate = min(max(rate, 1e-6), 1 - 1e-6)
    columns = sums(w), sums(w * z), sums(w * g), sums(torch.ones_like(w))
    blocks = _joined([list(block) for block in zip(*columns, strict=True)])
    while len(blocks) > KNOTS:  # join the two neighbours with the fewest chosen items
        at = min(range(len(blocks) - 1), key=lambda i: blocks[i][1] + blocks[i + 1][1])
        blocks[at : at + 2] = [_sum(blocks[at], blocks[at + 1])]
    knots: list[tuple[float, float]] = []
    unit = float(g.std(correction=0)) or 1.0
    for total, hits, score, pairs in blocks:
        probability = (hits / total * pairs + PRIOR * rate) / (pairs + PRIOR)
        point, logit = score / total, torch.tensor(probability, dtype=torch.float64).logit().item()
        if knots:  # equal scores, and rates that the prior has turned round
            point, logit = max(point, knots[-1][0] + 1e-6 * unit), max(logit, knots[-1][1] + MIN_STEP)
        knots.append((point, logit))
    while len(knots) < KNOTS:
        knots.append((knots[-1][0] + unit, knots[-1][1] + MIN_STEP))
    return torch.tensor(knots, dtype=torch.float64).T.float()


def _joined(groups: list[list[float]]) -> list[list[float]]:
    """Groups in the order of scores, joined until their rates rise: weight, chosen, sum of scores, number of pairs."""
    blocks: list[list[float]] = []
    for group in groups:
        if not group[0]:
            continue
        blocks.append(group)
        while len(blocks) > 1 and blocks[-2][1] * blocks[-1][0] >= blocks[-1][1] * blocks[-2][0]:
            blocks[-2:] = [_sum(*blocks[-2:])]
    return blocks or [[1.0, 0.0, 0.0, 0.0]]


def _sum(one: list[float], other: list[float]) -> list[float]:
    return [a + b for a, b in zip(one, other, strict=True)]


def logistic(scores: Tensor, chosen: Tensor) -> Tensor:
    """a > 0 and b: the logistic regression of labels on scores, by Newton's method [2]."""
    g, z = scores.double(), chosen.double()
    share = z.mean().clamp(1e-6, 1 - 1e-6)
    middle, unit = g.mean(), g.std(correction=0).clamp(min=1e-9)
    rows = torch.stack([(g - middle) / unit, torch.ones_like(g)], dim=1)
    beta = torch.stack([torch.ones_like(share), share.logit()])
    ridge = 1e-3 * torch.eye(2, dtype=g.dtype, device=g.device)  # for a solution also where all or none are chosen
    for _ in range(NEWTON):
        p = torch.sigmoid(rows @ beta)
        gradient = rows.T @ (z - p) - ridge @ beta
        beta = beta + torch.linalg.solve((rows * (p * (1 - p)).unsqueeze(1)).T @ rows + ridge, gradient)
    if not bool(torch.isfinite(beta).all()) or beta[0] <= 0:  # uninformative scores keep their order
        beta = torch.stack([torch.full_like(share, 1e-3), share.logit()])
    scale = beta[0] / unit
    return torch.stack([scale, beta[1] - scale * middle]).float()

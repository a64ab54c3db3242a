"""What is optimal: η, p*, z*, regret and Bayes optimality under beam search (Sec. 4).

Everything here holds a number per item or node and is for understanding and testing, not for training.
Node arrays are [..., num_nodes] in level order.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from beamtree.tree import PAD, Tree


def eta(y: Tensor, num_items: int, weight: Tensor | None = None) -> Tensor:
    """η_j = p(y_j = 1) [M] of relevant sets y [N, P], each with its probability (default: all alike)."""
    weight = torch.full((len(y),), 1 / len(y)) if weight is None else weight
    return weight @ _as_matrix(y, num_items).to(weight.dtype)


def on_leaves(tree: Tree, values: Tensor, empty: float) -> Tensor:
    """Values of items [..., M] laid out on the leaf slots [..., b^H]."""
    items = tree.items()
    return values[..., items.clamp(min=0)].masked_fill(items == PAD, empty)


def upward(tree: Tree, leaves: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """Node values [..., num_nodes] from leaf values [..., b^H]: a parent reduces its b children."""
    levels = [leaves]
    for _ in range(tree.height):
        levels.append(reduce(levels[-1].unflatten(-1, (-1, tree.arity))))
    return torch.cat(levels[::-1], dim=-1)


def optimal_prob(tree: Tree, eta: Tensor) -> Tensor:
    """p*(z_n = 1) (Eq. 9): the highest η below n; 0 where nothing is below."""
    return upward(tree, on_leaves(tree, eta, 0.0), lambda v: v.amax(-1))


def optimal_targets(tree: Tree, eta: Tensor, y: Tensor) -> Tensor:
    """z*_n (Eq. 13) for η [B, M] and relevant items y [B, P]: the label of the leaf below n with the highest η.

    Of leaves with equal η the first counts, whatever its label: then E[z*_n] = p*.
    """
    labels = on_leaves(tree, _as_matrix(y, eta.shape[-1]), False)
    scores = on_leaves(tree, eta, -torch.inf)
    levels = [labels]
    for _ in range(tree.height):
        scores = scores.unflatten(-1, (-1, tree.arity))
        best = scores.argmax(-1, keepdim=True)
        levels.append(levels[-1].unflatten(-1, (-1, tree.arity)).gather(-1, best).squeeze(-1))
        scores = scores.gather(-1, best).squeeze(-1)
    return torch.cat(levels[::-1], dim=-1)


def relevance_odds(tree: Tree, eta: Tensor) -> Tensor:
    """-log p(z_n = 0) = -Σ log(1 - η) for independent items: orders nodes as p(z_n = 1) of Eq. 1 does, exactly."""
    return upward(tree, on_leaves(tree, -torch.log1p(-eta), 0.0), lambda v: v.sum(-1))


def regret(eta: Tensor, items: Tensor, m: int) -> Tensor:
    """reg_{p@m} (Eq. 10) of each instance [B]: mean η of the best m items less that of the first m of `items` [B, ≥ m].

    A PAD among the retrieved items counts as an item that is never relevant.
    """
    if items.shape[1] < m:
        raise ValueError(f"{items.shape[1]} items were retrieved: the regret at m={m} needs as many")
    best = eta.topk(min(m, eta.shape[-1]), dim=-1).values
    retrieved = eta.gather(-1, items[:, :m].clamp(min=0)).masked_fill(items[:, :m] == PAD, 0)
    retrieved = retrieved.sort(dim=-1, descending=True).values  # the same items in the same order: exactly 0
    return (best - retrieved[:, : best.shape[1]]).sum(-1) / m


def bayes_optimal(eta: Tensor, items: Tensor, tolerance: float = 0.0) -> Tensor:
    """Definition 1 [B]: whether the retrieved items [B, k] are a top-k set of η, whichever way ties went."""
    best = eta.topk(min(items.shape[1], eta.shape[-1]), dim=-1).values
    retrieved = eta.gather(-1, items.clamp(min=0)).masked_fill(items == PAD, -torch.inf)
    retrieved = retrieved.sort(dim=-1, descending=True).values[:, : best.shape[1]]
    distinct = items.sort(dim=-1).values
    repeats = ((distinct[:, 1:] == distinct[:, :-1]) & (distinct[:, 1:] != PAD)).any(-1)
    return (retrieved >= best - tolerance).all(-1) & ~repeats


def _as_matrix(y: Tensor, num_items: int) -> Tensor:
    """Zeros and ones [N, M] from relevant items y [N, P]; a repeat counts once."""
    relevant = torch.zeros(len(y), num_items + 1, dtype=torch.bool, device=y.device)  # the last column takes PAD
    return relevant.scatter_(1, torch.where(y == PAD, num_items, y), True)[:, :-1]

"""A balanced tree over vectors of the items, by default co-occurrence factors of the training log."""

import torch
from torch import Tensor

from beamtree.data import Prepared
from beamtree.tree import PAD, Tree, height_for

TURNS = 10  # of power iteration per split


def cluster_tree(data: Prepared, *, arity: int = 2, seed: int = 0) -> Tree:
    """Items that the same users chose lie under the same nodes: their directions, not their lengths, are clustered."""
    return split_tree(torch.nn.functional.normalize(data.factors), arity=arity, seed=seed)


def split_tree(vectors: Tensor, *, arity: int = 2, seed: int = 0) -> Tree:
    """Cut every group of a level along its first principal direction into b equal parts, all groups at once."""
    if not bool(torch.isfinite(vectors).all()):
        row = int((~torch.isfinite(vectors)).any(1).nonzero()[0])
        raise ValueError(f"the vector of item {row} holds NaN or infinity: clean it before building a tree")
    count = len(vectors)
    height = height_for(count, arity)
    generator = torch.Generator(vectors.device).manual_seed(seed)
    items = torch.arange(count, device=vectors.device)  # in the order of their groups
    group = torch.zeros(count, dtype=torch.int64, device=vectors.device)
    for level in range(height):
        groups = arity**level
        along = _principal(vectors[items], group, groups, generator)
        order = along.argsort()
        order = order[group[order].argsort(stable=True)]
        items, group = items[order], group[order]
        size = torch.bincount(group, minlength=groups)
        rank = torch.arange(count, device=vectors.device) - (size.cumsum(0) - size)[group]
        group = group * arity + rank * arity // size[group]
    slots = torch.full((arity**height,), PAD, device=vectors.device)
    slots[group] = items
    return Tree(slots, arity)


def _principal(vectors: Tensor, group: Tensor, groups: int, generator: torch.Generator) -> Tensor:
    """Where each vector lies along its group's first principal direction [M], by power iteration."""
    size = torch.bincount(group, minlength=groups).clamp(min=1).unsqueeze(1)
    mean = _sums(vectors, group, groups) / size
    vectors = vectors - mean[group]
    direction = torch.randn(groups, vectors.shape[1], generator=generator, device=vectors.device)
    along = (vectors * direction[group]).sum(1)
    for _ in range(TURNS):
        direction = torch.nn.functional.normalize(_sums(vectors * along.unsqueeze(1), group, groups))
        along = (vectors * direction[group]).sum(1)
    return along


def _sums(vectors: Tensor, group: Tensor, groups: int) -> Tensor:
    return vectors.new_zeros(groups, vectors.shape[1]).index_add_(0, group, vectors)

"""A balanced tree over items that are alike: by their vectors, and by which users chose them together."""

from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.builders.category import category_order
from beamtree.builders.matching import rank_in
from beamtree.data import BeforeAfter, Prepared
from beamtree.data.factors import pairs
from beamtree.metrics import hits
from beamtree.tree import PAD, Tree, height_for

TURNS = 10  # of power iteration per split
MEANS = 5  # of balanced k-means after it
SHARED = 2  # of moving items to where what they are chosen with is
CATEGORY_WEIGHT = 1e6  # how often items are to be chosen before their category leaves the one above it for good
USERS = 500  # are asked which of two trees is better


class Chosen(NamedTuple):
    """Which row, a user or a run of events, holds which item: every pair once."""

    row: Tensor  # [E]
    item: Tensor  # [E]


def cluster_tree(
    data: Prepared,
    *,
    vectors: Tensor | None = None,
    categories: Tensor | None = None,
    arity: int = 2,
    seed: int = 0,
) -> Tree:
    """Items that are alike lie under the same nodes: the directions of their vectors are clustered, not the lengths.

    Without vectors, items are alike that the same users chose: by co-occurrence factors or by the events themselves or,
    with categories, by the categories and the factors, whichever is best for the validation users.

    Args:
        data: a prepared log.
        vectors: any vectors of the items [M, dim], such as those of a model, `model.item_vectors()`.
        categories: ranks of the items' categories, as `beamtree.ingest.items.read_categories` gives them.
        arity: children per node.
        seed: same seed, same tree.
    """
    if vectors is not None:
        if vectors.dim() != 2 or len(vectors) != data.num_items:
            shape = list(vectors.shape)
            raise ValueError(f"vectors are {shape}: give one row for each of {data.num_items:,} items, in their order")
        return vector_tree(vectors, arity=arity, seed=seed)
    unit = torch.nn.functional.normalize(data.factors)
    found = [split_tree(unit, arity=arity, seed=seed)]
    if len(data.val) or categories is not None:
        chosen = Chosen(*pairs(data.train.events, data.num_items, data.run_length))
    if len(data.val):
        found.append(split_tree(unit, chosen, arity=arity, seed=seed))
    if categories is not None:
        times = torch.bincount(chosen.item, minlength=data.num_items).unsqueeze(1)
        order = category_order(categories, data.train.events)
        alike = of_categories(unit * times, categories)[order]  # what is equal stays in order
        found.append(_renamed(split_tree(alike, arity=arity, seed=seed), order))
    return max(found, key=lambda tree: shared_nodes(tree, data.val)) if len(data.val) else found[-1]


def of_categories(vectors: Tensor, categories: Tensor, category_weight: float = CATEGORY_WEIGHT) -> Tensor:
    """Where each item lies by the categories on its path and, for what it was chosen, by its own vector [M, dim].

    Vectors are as long as items were chosen often. A category lies where the one above it does, moved toward the sum of
    its items' vectors, and an item from its category toward its own. So one that nobody chose lies where its category
    is, and one that few chose near it.
    """
    unit = torch.nn.functional.normalize
    at = unit(vectors.sum(0, keepdim=True)).expand_as(vectors)
    for category in categories.view(len(vectors), -1).T:
        sums = _sums(vectors, category, int(category.max()) + 1)
        above = torch.zeros_like(sums).index_copy_(0, category, at)  # the same for all of a category
        at = unit(sums + category_weight * above)[category]
    return unit(vectors + category_weight * at)


def _renamed(tree: Tree, items: Tensor) -> Tree:
    """The same tree with items[i] in the place of i."""
    slots = tree.items()
    return Tree(torch.where(slots == PAD, PAD, items[slots.clamp(min=0)]), tree.arity)


def vector_tree(vectors: Tensor, *, arity: int = 2, seed: int = 0) -> Tree:
    """A tree over the directions of any vectors [M, dim]."""
    return split_tree(torch.nn.functional.normalize(_finite(vectors.float())), arity=arity, seed=seed)


def shared_nodes(tree: Tree, users: BeforeAfter) -> float:
    """The share of targets below a node that the history has items below too, mean over users and levels."""
    x, y = users.batch(torch.arange(min(USERS, len(users))))
    before, after = tree.leaf_of_item(x), tree.leaf_of_item(y)
    shares = []
    for level in range(1, tree.height):
        found = hits(tree.ancestor(after, level), tree.ancestor(before, level))
        shares.append((found.sum(1) / (y != PAD).sum(1)).mean())
    return float(torch.stack(shares).mean()) if shares else 0.0


def split_tree(vectors: Tensor, chosen: Chosen | None = None, *, arity: int = 2, seed: int = 0) -> Tree:
    """Cut every group of a level into b equal parts, all groups at once.

    The first cut is along the group's first principal direction; balanced k-means then moves it between the means of
    the parts. With `chosen`, items last go to the part where more of what they are chosen with is.
    """
    vectors = _finite(vectors)
    count, device = len(vectors), vectors.device
    height = height_for(count, arity)
    generator = torch.Generator(device).manual_seed(seed)
    items = torch.arange(count, device=device)  # group by group
    group = torch.zeros(count, dtype=torch.int64, device=device)
    for level in range(height):
        groups = arity**level
        along = _principal(vectors, group, groups, generator)
        for _ in range(MEANS):
            along = _between_means(vectors, _cut(along, group, groups, arity), group, groups, arity)
        if chosen is not None:
            chosen, along = _toward_shared(chosen, items, along, group, groups, arity)
        group = _cut(along, group, groups, arity)
        order = group.argsort(stable=True)
        vectors, items, group = vectors[order], items[order], group[order]
    slots = torch.full((arity**height,), PAD, device=device)
    slots[group] = items
    return Tree(slots, arity)


def _finite(vectors: Tensor) -> Tensor:
    if not bool(torch.isfinite(vectors).all()):
        row = int((~torch.isfinite(vectors)).any(1).nonzero()[0])
        raise ValueError(f"the vector of item {row} holds NaN or infinity: clean it before building a tree")
    return vectors


def _cut(along: Tensor, group: Tensor, groups: int, arity: int) -> Tensor:
    """The part of each item [M], as a group of the next level: equally many items each, in the order of `along`."""
    size = torch.bincount(group, minlength=groups)
    return group * arity + rank_in(group, -along) * arity // size[group]


def _principal(vectors: Tensor, group: Tensor, groups: int, generator: torch.Generator) -> Tensor:
    """Where each vector lies along its group's first principal direction [M], by power iteration."""
    vectors = vectors - _means(vectors, group, groups)[group]
    direction = torch.randn(groups, vectors.shape[1], generator=generator, device=vectors.device)
    along = (vectors * direction[group]).sum(1)
    for _ in range(TURNS):
        direction = torch.nn.functional.normalize(_sums(vectors * along.unsqueeze(1), group, groups))
        along = (vectors * direction[group]).sum(1)
    return along


def _between_means(vectors: Tensor, part: Tensor, group: Tensor, groups: int, arity: int) -> Tensor:
    """Where each vector lies between the means of its group's first and last part [M]."""
    means = _means(vectors, part, groups * arity).view(groups, arity, -1)
    direction = means[:, -1] - means[:, 0]
    return (vectors * direction[group]).sum(1)


def _toward_shared(
    chosen: Chosen, items: Tensor, along: Tensor, group: Tensor, groups: int, arity: int
) -> tuple[Chosen, Tensor]:
    """The rows that still hold two items of a group, and on which side most of what each item is chosen with lies."""
    group_of = torch.empty_like(group)
    group_of[items] = group
    rows = int(chosen.row.max()) + 1 if len(chosen.row) else 1
    _, row = torch.unique(group_of[chosen.item] * rows + chosen.row, return_inverse=True)
    size = torch.bincount(row, minlength=1)
    kept = size[row] > 1
    chosen, row = Chosen(chosen.row[kept], chosen.item[kept]), row[kept]
    times = torch.bincount(chosen.item, minlength=len(items))
    for _ in range(SHARED):
        side = torch.empty_like(along)
        side[items] = (_cut(along, group, groups, arity) % arity).to(along.dtype) / (arity - 1) - 0.5
        of_row = along.new_zeros(len(size)).index_add_(0, row, side[chosen.item]) / size
        of_item = along.new_zeros(len(items)).index_add_(0, chosen.item, of_row[row]) / times.clamp(min=1)
        along = of_item[items] + 1e-3 * torch.tanh(along)  # what shares nothing stays where it was
    return chosen, along


def _means(vectors: Tensor, group: Tensor, groups: int) -> Tensor:
    size = torch.bincount(group, minlength=groups).clamp(min=1).unsqueeze(1)
    return _sums(vectors, group, groups) / size


def _sums(vectors: Tensor, group: Tensor, groups: int) -> Tensor:
    return vectors.new_zeros(groups, vectors.shape[1]).index_add_(0, group, vectors)

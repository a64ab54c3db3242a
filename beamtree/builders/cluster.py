"""A balanced tree over similar items: balanced k-means of their vectors, refined by which users chose them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from beamtree.builders.category import category_order
from beamtree.builders.matching import rank_in
from beamtree.data import BeforeAfter, Prepared
from beamtree.data.factors import distinct_pairs
from beamtree.data.seeds import draw_rows
from beamtree.kernels import tree_splits
from beamtree.tree import PAD, Tree, height_for

CATEGORY_WEIGHT = 1e6  # how often items must be chosen before their category moves away from the one above it
USERS = 500  # whose histories decide between trees
POWER_ITERATIONS = 10  # per split
KMEANS_ROUNDS = 5  # of balanced k-means after it
CHOICE = "cluster tree"  # the name of the choice
SHARED_ROUNDS = 2  # of moving items to the side of the items that they are chosen with


def cluster_tree(
    data: Prepared,
    *,
    vectors: Tensor | None = None,
    categories: Tensor | None = None,
    arity: int = 2,
    seed: int = 0,
) -> Tree:
    """A tree with similar items under the same nodes, by the cosine similarity of their vectors.

    Without vectors, items are similar if the same users chose them. Of the trees by co-occurrence factors, by the
    events themselves and by categories, if given, the one that is best for the validation users is returned.

    Args:
        data: a prepared log.
        vectors: vectors of the items [M, dim], such as `model.item_vectors()`.
        categories: ranks of the items' categories, as `beamtree.ingest.item_tables.read_categories` gives them.
        arity: children per node.
        seed: same seed, same tree.
    """
    if vectors is not None:
        if vectors.dim() != 2 or len(vectors) != data.num_items:
            shape = list(vectors.shape)
            raise ValueError(f"vectors are {shape}: give one row for each of {data.num_items:,} items, in their order")
        return vector_tree(vectors, arity=arity, seed=seed)
    directions = normalize(data.factors)
    trees = [split_tree(directions, arity=arity, seed=seed)]
    if len(data.val) or categories is not None:
        chosen = Chosen(*distinct_pairs(data.train.events, data.num_items, data.run_length))
    if len(data.val):
        trees.append(split_tree(directions, chosen, arity=arity, seed=seed))
    if categories is not None:
        times = torch.bincount(chosen.item, minlength=data.num_items).unsqueeze(1)
        order = category_order(categories, data.train.events)
        by_category = near_category(directions * times, categories)[order]  # equal directions stay in order
        slots = split_tree(by_category, arity=arity, seed=seed).items()
        trees.append(Tree(torch.where(slots == PAD, PAD, order[slots.clamp(min=0)]), arity))
    if not len(data.val):
        return trees[-1]
    return trees[_choose(trees, data, vectors=vectors, categories=categories, arity=arity, seed=seed)]


def _choose(trees: list[Tree], data: Prepared, **options: Any) -> int:
    """The tree that is best for the validation users; where all events are in training, the one chosen before that."""
    if data.earlier is not None:
        if CHOICE not in data.earlier.choices:
            cluster_tree(data.earlier, **options)
        return int(data.earlier.choices[CHOICE])
    shares = [shared_nodes(tree, data.val) for tree in trees]
    data.choices[CHOICE] = shares.index(max(shares))
    return int(data.choices[CHOICE])


def vector_tree(vectors: Tensor, *, arity: int = 2, seed: int = 0) -> Tree:
    """A tree over the directions of any vectors [M, dim]."""
    return split_tree(normalize(vectors.float()), arity=arity, seed=seed)


def near_category(vectors: Tensor, categories: Tensor, category_weight: float = CATEGORY_WEIGHT) -> Tensor:
    """Directions of items by the categories on their path and, the more they were chosen, by their vectors [M, dim].

    The length of a vector is how often its item was chosen. The direction of a category is that of its parent, moved
    towards the sum of its items' vectors; that of an item is that of its category, moved towards its vector. So items
    that were never chosen have the direction of their category.
    """
    position = normalize(vectors.sum(0, keepdim=True)).expand_as(vectors)
    for category in (categories if categories.dim() > 1 else categories.unsqueeze(1)).T:
        total = _sums(vectors, category, int(category.max()) + 1)
        above = torch.zeros_like(total).index_copy_(0, category, position)  # equal for all items of a category
        position = normalize(total + category_weight * above)[category]
    return normalize(vectors + category_weight * position)


def shared_nodes(tree: Tree, users: BeforeAfter) -> float:
    """The share of targets below a node that is also above an item of the history, mean over users and levels."""
    x, y = users.batch(torch.arange(min(USERS, len(users))))
    first, far = tree.level(tree.height).start, 2 * len(tree.level(tree.height))
    before, after = (tree.leaf_of_item(items) - first for items in (x, y))  # slots, negative for none
    before = torch.where(before < 0, far, before).sort(dim=1).values
    index = torch.searchsorted(before, after)
    user, column = (y != PAD).nonzero(as_tuple=True)
    index, after = index[user, column], after[user, column]
    near = [before[user, each.clamp(0, before.shape[1] - 1)] for each in (index - 1, index)]  # its neighbours in order
    total = torch.zeros(len(y), dtype=torch.int64)
    for level in range(1, tree.height):
        width = tree.arity ** (tree.height - level)
        shared = (after >= 0) & ((near[0] // width == after // width) | (near[1] // width == after // width))
        total += torch.bincount(user[shared], minlength=len(y))
    return float((total / (y != PAD).sum(1)).mean()) / max(1, tree.height - 1)


class Chosen(NamedTuple):
    """Distinct pairs of a row (a user or a run of events) and an item."""

    row: Tensor  # [E]
    item: Tensor  # [E]


def split_tree(vectors: Tensor, chosen: Chosen | None = None, *, arity: int = 2, seed: int = 0) -> Tree:
    """Split every group of a level into b equal parts, all groups at once, until every item has its own leaf.

    The first cut is along the group's first principal direction; balanced k-means then moves it between the means of
    the parts. With `chosen`, items finally move to the part with more of the items they are chosen with.
    """
    if not bool(torch.isfinite(vectors).all()):
        row = int((~torch.isfinite(vectors)).any(1).nonzero()[0])
        raise ValueError(f"the vector of item {row} holds NaN or infinity: clean it before building a tree")
    height, device = height_for(len(vectors), arity), vectors.device
    generator = torch.Generator(device).manual_seed(seed)
    items = torch.arange(len(vectors), device=device)  # group by group
    group = torch.zeros(len(vectors), dtype=torch.int64, device=device)
    for level in range(height):
        part, chosen = _split(vectors[items], items, group, chosen, arity, arity**level, generator)
        order = part.argsort(stable=True)
        items, group = items[order], part[order]
    slots = torch.full((arity**height,), PAD, device=device)
    slots[group] = items
    return Tree(slots, arity)


def _split(
    vectors: Tensor,
    items: Tensor,
    group: Tensor,
    chosen: Chosen | None,
    arity: int,
    groups: int,
    generator: torch.Generator,
) -> tuple[Tensor, Chosen | None]:
    """The group of each item on the next level [M], and the rows that still hold two items of a group.

    Vectors, items and groups [M] are in order of the groups.
    """
    size = torch.bincount(group, minlength=groups)
    directions = torch.cat([piece for _, piece in draw_rows(groups, vectors.shape[1], generator)]).to(vectors)

    def parts(along: Tensor) -> Tensor:
        """Equally many items for each part of a group, in the order of `along` [M]."""
        if along.is_cuda:
            return group * arity + rank_in(group, -along) * arity // size[group]
        return group * arity + tree_splits.divide(size, along, arity)

    if vectors.is_cuda:
        along = _along_principal(vectors, group, size, directions)
        for _ in range(KMEANS_ROUNDS):  # along the line between the means of the first and the last part
            means = _means(vectors, parts(along), groups * arity).view(groups, arity, -1)
            along = (vectors * (means[:, -1] - means[:, 0])[group]).sum(1)
    else:
        along = tree_splits.place_along(size, vectors, directions, arity, POWER_ITERATIONS, KMEANS_ROUNDS)
    if chosen is None:
        return parts(along), None
    chosen, row, row_size = _within_groups(chosen, items, group)
    times = torch.bincount(chosen.item, minlength=len(items))
    for _ in range(SHARED_ROUNDS):
        side = along.new_empty(len(items))
        side[items] = (parts(along) % arity).to(along.dtype) / (arity - 1) - 0.5
        of_row = along.new_zeros(len(row_size)).index_add_(0, row, side[chosen.item]) / row_size
        of_item = along.new_zeros(len(items)).index_add_(0, chosen.item, of_row[row]) / times.clamp(min=1)
        along = of_item[items] + 1e-3 * torch.tanh(along)  # items that share nothing keep their side
    return parts(along), chosen


def _along_principal(vectors: Tensor, group: Tensor, size: Tensor, direction: Tensor) -> Tensor:
    """The position of each vector along its group's first principal direction [M], by power iteration from another."""
    vectors = vectors - _means(vectors, group, len(size))[group]
    along = (vectors * direction[group]).sum(1)
    for _ in range(POWER_ITERATIONS):
        direction = normalize(_sums(vectors * along.unsqueeze(1), group, len(size)))
        along = (vectors * direction[group]).sum(1)
    return along


def _within_groups(chosen: Chosen, items: Tensor, group: Tensor) -> tuple[Chosen, Tensor, Tensor]:
    """The rows with two or more items of a group, numbered by row and group, and the size of each."""
    group_of = torch.empty_like(group)
    group_of[items] = group
    rows = int(chosen.row.max()) + 1 if len(chosen.row) else 1
    _, row = torch.unique(group_of[chosen.item] * rows + chosen.row, return_inverse=True)
    size = torch.bincount(row, minlength=1)
    keep = size[row] > 1
    return Chosen(chosen.row[keep], chosen.item[keep]), row[keep], size


def _means(vectors: Tensor, group: Tensor, groups: int) -> Tensor:
    size = torch.bincount(group, minlength=groups).clamp(min=1).unsqueeze(1)
    return _sums(vectors, group, groups) / size


def _sums(vectors: Tensor, group: Tensor, groups: int) -> Tensor:
    """The sum of each group's vectors [groups, dim]."""
    return vectors.new_zeros(groups, vectors.shape[1]).index_add_(0, group, vectors)

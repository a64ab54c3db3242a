"""A balanced tree over items that are alike: by their vectors, and by which users chose them together."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from beamtree.builders.category import category_order
from beamtree.builders.split import Chosen, split_rows, sums
from beamtree.data import BeforeAfter, Prepared
from beamtree.data.factors import pairs
from beamtree.distributed.exchange import deal
from beamtree.distributed.group import ranks
from beamtree.metrics import hits
from beamtree.tree import PAD, Tree

CATEGORY_WEIGHT = 1e6  # how often items are to be chosen before their category leaves the one above it for good
USERS = 500  # are asked which of two trees is better


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
        categories: ranks of the items' categories, as `beamtree.ingest.item_tables.read_categories` gives them.
        arity: children per node.
        seed: same seed, same tree.
    """
    if vectors is not None:
        if vectors.dim() != 2 or len(vectors) != data.num_items:
            shape = list(vectors.shape)
            raise ValueError(f"vectors are {shape}: give one row for each of {data.num_items:,} items, in their order")
        return vector_tree(vectors, arity=arity, seed=seed)
    factors, run = data.own_factors, own_run(data.num_items)
    own = normalize(factors.at(run))
    found = [split_rows(own, data.num_items, arity=arity, seed=seed)]
    if len(data.val) or categories is not None:
        chosen = own_chosen(data)
    if len(data.val):
        found.append(split_rows(own, data.num_items, chosen, arity=arity, seed=seed))
    if categories is not None:
        times = ranks().sum_(torch.bincount(chosen.item, minlength=data.num_items)).unsqueeze(1)
        order = category_order(categories, data.train.events)
        alike = of_categories(normalize(factors.part) * deal(times).part, deal(categories).part)
        own = factors._replace(part=alike).at(order[run])  # what is equal stays in order
        found.append(_renamed(split_rows(own, data.num_items, arity=arity, seed=seed), order))
    if not len(data.val):
        return found[-1]
    shared = ranks().gather([shared_nodes(tree, data.val) for tree in found])[0]
    return found[shared.index(max(shared))]


def own_run(num_items: int) -> Tensor:
    """The items whose vectors this rank cuts into groups."""
    share = ranks().share(num_items)
    return torch.arange(share.start, share.stop)


def own_chosen(data: Prepared) -> Chosen:
    """What the users of this rank chose, their rows numbered after those of the ranks before it."""
    row, item = pairs(data.train.events.own(), data.num_items, data.run_length)
    rows = ranks().gather(int(row[-1]) + 1 if len(row) else 0)
    return Chosen(row + sum(rows[: ranks().rank]), item)


def of_categories(vectors: Tensor, categories: Tensor, category_weight: float = CATEGORY_WEIGHT) -> Tensor:
    """Where each item lies by the categories on its path and, for what it was chosen, by its own vector [M, dim].

    Vectors are as long as items were chosen often. A category lies where the one above it does, moved toward the sum of
    its items' vectors, and an item from its category toward its own. So one that nobody chose lies where its category
    is, and one that few chose near it. Over ranks, each gives items of its own, and sums are those of all.
    """
    at = normalize(ranks().sum_(vectors.sum(0, keepdim=True))).expand_as(vectors)
    for category in (categories if categories.dim() > 1 else categories.unsqueeze(1)).T:
        groups = max(ranks().gather(int(category.max()) + 1 if len(category) else 0))
        total = ranks().sum_(sums(vectors, category, groups))
        above = torch.zeros_like(total).index_copy_(0, category, at)  # the same for all of a category
        at = normalize(total + category_weight * above)[category]
    return normalize(vectors + category_weight * at)


def _renamed(tree: Tree, items: Tensor) -> Tree:
    """The same tree with items[i] in the place of i."""
    slots = tree.items()
    return Tree(torch.where(slots == PAD, PAD, items[slots.clamp(min=0)]), tree.arity)


def vector_tree(vectors: Tensor, *, arity: int = 2, seed: int = 0) -> Tree:
    """A tree over the directions of any vectors [M, dim]."""
    share = ranks().share(len(vectors))
    own = normalize(vectors[share.start : share.stop].float())
    return split_rows(own, len(vectors), arity=arity, seed=seed)


def shared_nodes(tree: Tree, users: BeforeAfter) -> float:
    """The share of targets below a node that the history has items below too, mean over users and levels."""
    x, y = users.batch(torch.arange(min(USERS, len(users))))
    before, after = tree.leaf_of_item(x), tree.leaf_of_item(y)
    shares = []
    for level in range(1, tree.height):
        found = hits(tree.ancestor(after, level), tree.ancestor(before, level))
        shares.append((found.sum(1) / (y != PAD).sum(1)).mean())
    return float(torch.stack(shares).mean()) if shares else 0.0

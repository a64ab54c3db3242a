"""Figure 2: how unevenly training instances fall on the nodes of a level."""

import torch
from torch import Tensor

from beamtree.data import BeforeAfter
from beamtree.tree import Tree, first_of_each

TITLE = "Figure 2: level-wise distribution of S_n"
USERS = 4096  # at a time


def instances_of_nodes(tree: Tree, users: BeforeAfter, level: int) -> Tensor:
    """S_n = Σ z_n over the instances of users, for every node of a level [|N_h|]."""
    span = tree.level(level)
    total = torch.zeros(len(span), dtype=torch.int64)
    for rows in torch.arange(len(users)).split(USERS):
        _, y = users.batch(rows)
        nodes = tree.ancestor(tree.leaf_of_item(y), level).sort(dim=1).values
        relevant = nodes[first_of_each(nodes)]  # an instance counts once for a node, however many targets lie below it
        total += torch.bincount(relevant - span.start, minlength=len(span))
    return total


def distribution(tree: Tree, users: BeforeAfter, level: int) -> Tensor:
    """S_n of a level, the largest first, as shares of their sum [|N_h|]."""
    counts = instances_of_nodes(tree, users, level).sort(descending=True).values.double()
    return counts / counts.sum()

"""The layers of the deep scorer on a CPU, with weights in the order that it reads fastest."""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import prelu

from beamtree.kernels import is_one, is_plain

BLOCK = 1 << 14  # user-node pairs that a CPU scores at once: more would not fit into its caches

Product = Callable[[Tensor], Tensor]


class Products(NamedTuple):
    """The layers as products of rows with weights [in, out]."""

    of_user: Product  # both halves of the first layer
    of_node: Tensor
    others: list[tuple[Tensor, Product]]  # and the slopes before each


class NodeVectors(Protocol):
    """Vectors of nodes: see `scorers.table.Vectors`."""

    def at(self, nodes: Tensor) -> Tensor: ...


def make_products(
    of_user: nn.Linear, of_node: nn.Linear, layers: Sequence[nn.Linear], slopes: Sequence[Tensor]
) -> Products:
    """The layers, ready to be multiplied."""
    pairs = list(zip(slopes, map(_product, layers), strict=True))
    return Products(_product(of_user), of_node.weight.t().contiguous(), pairs)


def score_level(vectors: NodeVectors, products: Products, nodes: Tensor, user: Tensor) -> Tensor:
    """g(x, n) [B, W] of nodes [B or 1, W], given the users' half of the first layer [B, 128]; -inf at PAD."""
    users = max(1, BLOCK // max(1, nodes.shape[1]))
    if is_plain() or len(user) <= users:
        return _score(vectors, products, nodes, user)
    of_each = nodes.split(users) if len(nodes) > 1 else repeat(nodes)
    blocks = zip(of_each, user.split(users), strict=False)
    return torch.cat([_score(vectors, products, *block) for block in blocks])


def _score(vectors: NodeVectors, products: Products, nodes: Tensor, user: Tensor) -> Tensor:
    hidden = _first(vectors, products, nodes, user)  # [BW, 128]
    for slope, product in products.others:
        hidden = product(prelu(hidden, slope))
    return hidden.view(user.shape[0], nodes.shape[1]).masked_fill_(nodes < 0, -torch.inf)


def _first(vectors: NodeVectors, products: Products, nodes: Tensor, user: Tensor) -> Tensor:
    """The first layer [BW, 128]."""
    if is_one(user.shape[0]):
        return torch.addmm(user, vectors.at(nodes)[0], products.of_node)
    hidden = vectors.at(nodes).flatten(0, 1) @ products.of_node  # [BW or W, 128]
    hidden, user = hidden.view(*nodes.shape, -1), user.unsqueeze(1)
    return (hidden + user if is_one(nodes.shape[0]) else hidden.add_(user)).flatten(0, 1)


def _product(layer: nn.Linear) -> Product:
    weight, bias = layer.weight.t().contiguous(), layer.bias
    return lambda rows: torch.addmm(bias, rows, weight)

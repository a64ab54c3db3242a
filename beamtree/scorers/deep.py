"""The deep scorer of the paper's real data (supplement C.3)."""

import copy
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, prelu

from beamtree.data import mix
from beamtree.scorers.base import Scorer
from beamtree.scorers.table import NodeTable
from beamtree.tree import PAD, Tree

WINDOWS = (1, 1, 1, 2, 2, 2, 10, 10, 20, 20)  # 69 behaviours, newest first
HIDDEN = (128, 64, 24)
QUIET = 0.3  # what is left of random weights where a scorer starts from vectors
START_LOGIT = -2.0  # and what it says where history and node have nothing to do with each other
KEPT = 1 << 16  # nodes whose half of the first layer a search on a CPU keeps: 32 MB

Product = Callable[[Tensor], Tensor]


class Products(NamedTuple):
    """The layers as products of rows with weights [in, out], the order that a CPU reads fastest."""

    of_user: Product  # both halves of the first layer
    of_node: Tensor
    others: list[tuple[Tensor, Product]]  # and the slopes before each
    halves: Tensor | None = (
        None  # the node half of the first layer, done for all nodes of the small levels [≤ KEPT, 128]
    )
    small: range = range(0)  # these levels


class DeepContext(NamedTuple):
    vectors: Tensor  # of every node [num_nodes, dim]
    user: Tensor  # the user half of the first layer, for every level [B, H + 1, 128]
    products: Products


class DeepScorer(Scorer):
    """g(x, n) = MLP([window means of x(n), row of n]), where x(n) is the history lifted to n's level.

    The first layer is linear in its input, so the part that multiplies the history is computed once per
    user and level and not once per node: the same numbers for less than a third of the work.

    With `share`, a node's vector is its own row and the vector of its parent, so that a leaf with few events
    stands near the leaves beside it until it has reason not to.
    """

    def __init__(
        self, num_nodes: int, dim: int = 24, scale: float = 0.05, *, share: bool = True, seed: int | None = 0
    ) -> None:
        super().__init__()
        self.scale, self.share = scale, share
        self.windows: Tensor
        self.int8 = False
        self._kept: tuple[object, Products] | None = None
        self.table = NodeTable(num_nodes, dim, scale, seed)
        self.register_buffer("windows", _window_of_behaviour(WINDOWS), persistent=False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(seed or 0, 3))
            self.of_user = nn.Linear(len(WINDOWS) * dim, HIDDEN[0])  # both halves of the first layer
            self.of_node = nn.Linear(dim, HIDDEN[0], bias=False)
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(HIDDEN, (*HIDDEN[1:], 1), strict=True))
        self.slopes = nn.ParameterList(nn.Parameter(torch.full((size,), 0.25)) for size in HIDDEN)

    @torch.no_grad()
    def start_from(self, tree: Tree, vectors: Tensor) -> "DeepScorer":
        """Begin with vectors of the items [M, ≥ dim] and as their product: near to the history is a high score.

        A network of these layers finds out only slowly that rows are to be multiplied. But since
        |u + n| - |u - n| is 2 min(|u|, |n|) where u and n agree in sign and -2 min(|u|, |n|) where they do not,
        and |z| is made of PReLU(z) + PReLU(-z), it can say so from the first step: four units for each dimension of
        the first layer, two of the second, one of the third. The other units stay as they were drawn, but small.
        """
        dim = min(self.table.weight.shape[1], vectors.shape[1], HIDDEN[2]) // 2 * 2
        vectors = vectors[:, :dim].to(self.table.weight)
        self.table.weight.mul_(QUIET * 0.05 / self.scale)
        self.table.start_from(tree, vectors, share=self.share)
        one, slope = torch.eye(dim, device=vectors.device), 0.25
        pairs = one[::2] + one[1::2]  # [dim / 2, dim]
        layers = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        for layer in (self.of_user, self.of_node, *layers):
            layer.weight.mul_(QUIET)
        # u + n, -(u + n), u - n, -(u - n), where u is the mean of the windows
        windows = len(WINDOWS)
        of_user = self.of_user.weight.view(HIDDEN[0], windows, -1)
        of_user[: 4 * dim] = 0
        of_user[: 4 * dim, :, :dim] = torch.cat([one, -one, one, -one]).unsqueeze(1) / windows
        self.of_node.weight[: 4 * dim] = 0
        self.of_node.weight[: 4 * dim, :dim] = torch.cat([one, -one, -one, one])
        self.of_user.bias[: 4 * dim] = 0
        # |u + n| - |u - n| of each dimension, and the same with the other sign; then of pairs of them; then of all
        absolute = torch.cat([one, one, -one, -one], dim=1) / (1 - slope)
        joined = torch.cat([pairs, -pairs], dim=1) / (1 + slope)  # z is made of PReLU(z) - PReLU(-z)
        total = torch.cat([torch.ones(1, dim // 2), -torch.ones(1, dim // 2)], dim=1).to(vectors) / (1 + slope)
        for layer, block in zip(layers, (absolute, joined, total), strict=True):
            block = torch.cat([block, -block]) if len(block) > 1 else block
            layer.weight[: len(block)] = 0
            layer.weight[: len(block), : block.shape[1]] = block
            layer.bias[: len(block)] = 0
        layers[-1].bias.fill_(START_LOGIT)
        return self

    def context(self, tree: Tree, x: Tensor) -> DeepContext:
        vectors = self.table.vectors(tree) if self.share else self.table.weight
        products = self._products(tree, vectors)
        return DeepContext(vectors, products.of_user(self._pool(tree, vectors, x)).unflatten(0, (len(x), -1)), products)

    def _products(self, tree: Tree, vectors: Tensor) -> Products:
        """Where nothing is learned they are kept until a weight changes."""
        if torch.is_grad_enabled():
            self._kept = None
            return self._arrange()
        weights = (vectors, *(layer.weight for layer in (self.of_user, self.of_node, *self.layers)))
        state = [(weight._version, weight.data_ptr()) for weight in weights]
        if self._kept is None or self._kept[0] != state:
            products = self._arrange()
            if vectors.device.type == "cpu":
                small = range(max(level + 1 for level in range(tree.height + 1) if tree.level(level).stop <= KEPT))
                halves = vectors[: tree.level(small[-1]).stop] @ products.of_node
                products = products._replace(halves=halves, small=small)
            self._kept = state, products
        return self._kept[1]

    def _arrange(self) -> Products:
        of_node = self.of_node.weight.t().contiguous()
        first, *rest = (layer for layer in self.layers if isinstance(layer, nn.Linear))
        others = [
            _rounded(first) if self.int8 and not torch.is_grad_enabled() else _product(first),
            *map(_product, rest),
        ]
        return Products(_product(self.of_user), of_node, list(zip(self.slopes, others, strict=True)))

    def quantized(self) -> "DeepScorer":
        """The same for search on a CPU, with the largest layer, 128 to 64, in int8; the weights are shared.

        The others are too small: to round their input costs more than the product saves.
        """
        scorer = copy.copy(self)
        scorer.int8, scorer._kept = True, None
        return scorer

    def _pool(self, tree: Tree, vectors: Tensor, x: Tensor) -> Tensor:
        """The mean of each window of x, lifted to every level [B (H + 1), windows * dim]."""
        shares = self.windows[:, : x.shape[1]] * (x != PAD).unsqueeze(1)  # [B, windows, T]
        shares = shares / shares.sum(-1, keepdim=True).clamp_(min=1)
        leaves = tree.leaf_of_item(x.clamp(min=0))  # any item will do for PAD, whose share is 0
        lifted = tree.lift(leaves, range(tree.height + 1)).movedim(0, -1)  # [B, T, H + 1]
        rows = embedding(lifted, vectors).flatten(2)  # [B, T, (H + 1) dim]
        means = torch.bmm(shares, rows).view(*shares.shape[:2], tree.height + 1, -1)
        return means.transpose(1, 2).reshape(len(x) * (tree.height + 1), -1)

    def forward(self, context: DeepContext, level: int, nodes: Tensor) -> Tensor:
        hidden = self._first(context, level, nodes)  # [BW, 128]
        for slope, product in context.products.others:
            hidden = product(prelu(hidden, slope))
        return hidden.view(-1, nodes.shape[1]).masked_fill_(nodes < 0, -torch.inf)

    def _first(self, context: DeepContext, level: int, nodes: Tensor) -> Tensor:
        """The first layer of all users and nodes [BW, 128]."""
        user = context.user.select(1, level)  # [B, 128]
        places, products = nodes.clamp(min=0), context.products
        if len(user) == 1 and level in products.small and products.halves is not None:
            return products.halves.index_select(0, places.view(-1)).add_(user)
        rows = embedding(places, context.vectors)  # [B or 1, W, dim]
        user = user.unsqueeze(1)
        if len(rows) == len(user):
            return torch.baddbmm(user, rows, products.of_node.expand(len(user), -1, -1)).flatten(0, 1)
        return (rows @ products.of_node + user).flatten(0, 1)

    def made(self, tree: Tree) -> dict[str, Tensor]:
        return {"vectors": self.table.vectors(tree)} if self.share else {}

    def keep_made(self, tree: Tree, made: dict[str, Tensor]) -> None:
        self.table.keep_vectors(tree, made["vectors"])

    def settings(self) -> dict[str, int | float]:
        rows, dim = self.table.weight.shape
        return {"num_nodes": rows, "dim": dim, "scale": self.scale, "share": self.share}

    def check(self, x: Tensor) -> None:
        most = self.windows.shape[1]
        if x.dim() != 2 or x.dtype != torch.int64 or x.shape[1] > most:
            raise ValueError(f"x is {x.dtype} {list(x.shape)}: this scorer takes histories, int64 [B, up to {most}]")


def _window_of_behaviour(windows: Sequence[int]) -> Tensor:
    """1 where a behaviour belongs to a window [windows, T]."""
    window = [place for place, size in enumerate(windows) for _ in range(size)]
    return torch.eye(len(windows), device="cpu")[:, window]


def _product(layer: nn.Linear) -> Product:
    weight, bias = layer.weight.t().contiguous(), layer.bias
    return lambda rows: torch.addmm(bias, rows, weight)


def _rounded(layer: nn.Linear) -> Product:
    """The product in int8: one scale for all weights, and one for all rows of a call."""
    weight, engine = layer.weight.detach(), torch.backends.quantized.engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has better in mind, but does not offer it on every CPU yet
        small = torch.quantize_per_tensor(weight, float(weight.abs().max()) / 127, 0, torch.qint8)
        if "onednn" in torch.backends.quantized.supported_engines:
            torch.backends.quantized.engine = "onednn"  # the engine that packs is the one that multiplies
        packed = torch.ops.quantized.linear_prepack(small, layer.bias)
        torch.backends.quantized.engine = engine
    return partial(torch.ops.quantized.linear_dynamic, W_prepack=packed)

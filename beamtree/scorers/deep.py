"""The deep scorer of the paper's real data (supplement C.3)."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import prelu

from beamtree import kernels
from beamtree.data import mix
from beamtree.data.log import WINDOWS, window_of_behaviour
from beamtree.scorers.base import Scorer
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import PAD, Tree

HIDDEN = (128, 64, 24)
QUIET = 0.3  # what is left of random weights where a scorer starts from vectors
START_LOGIT = -2.0  # and what it says where history and node have nothing to do with each other
BLOCK = 1 << 14  # user-node pairs that a CPU scores at once: more would go in and out of its caches
KEPT = 1 << 16  # nodes whose half of the first layer a search on a CPU keeps: 32 MB

Product = Callable[[Tensor], Tensor]


class Products(NamedTuple):
    """The layers as products of rows with weights [in, out], the order that a CPU reads fastest."""

    of_user: Product  # both halves of the first layer
    of_node: Tensor
    others: list[tuple[Tensor, Product]]  # and the slopes before each
    halves: Tensor  # what of_node gives for all nodes of the small levels [≤ KEPT, 128]
    small: range  # these levels


class DeepContext(NamedTuple):
    vectors: Vectors  # of every node
    user: Tensor  # the user half of the first layer, for every level [B, H + 1, 128]
    products: Products | None  # where the kernels do not do them


class DeepScorer(Scorer):
    """g(x, n) = MLP([window means of x(n), row of n]), where x(n) is the history lifted to n's level.

    The first layer is linear in its input, so the part that multiplies the history is computed once per
    user and level and not once per node: the same numbers for less than a third of the work.

    With `share`, a node's vector is its own row and the vector of its parent, so that a leaf with few events
    stands near the leaves beside it until it has reason not to. Without `lift`, the history is read at its leaves on
    every level, as TDM did before JTM.
    """

    def __init__(
        self,
        num_nodes: int,
        dim: int = 24,
        scale: float = 0.05,
        *,
        share: bool = True,
        lift: bool = True,
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        self.scale, self.share, self.lift = scale, share, lift
        self.windows: Tensor
        self.int8 = False
        self._kept: tuple[object, Products] | None = None
        self.table = NodeTable(num_nodes, dim, scale, seed)
        self.register_buffer("windows", window_of_behaviour(), persistent=False)
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
        if not dim:
            raise ValueError(f"vectors have {vectors.shape[1]} dimension: a scorer starts from two at least")
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
        vectors = self.table.read(tree, share=self.share)
        pooled = self._pool(tree, vectors, x)
        if kernels.fits(vectors.values):
            return DeepContext(vectors, self.of_user(pooled), None)
        products = self._products(tree, vectors.values)
        return DeepContext(vectors, products.of_user(pooled.flatten(0, 1)).view(*pooled.shape[:2], -1), products)

    def _pool(self, tree: Tree, vectors: Vectors, x: Tensor) -> Tensor:
        """The mean of each window of x, lifted to every level [B, H + 1, windows * dim]."""
        shares = self.windows[:, : x.shape[1]] * (x != PAD).unsqueeze(1)  # [B, windows, T]
        shares = shares / shares.sum(-1, keepdim=True).clamp_(min=1)
        leaves = tree.leaf_of_item(x)
        if not self.lift:
            return torch.bmm(shares, vectors.at(leaves)).flatten(1).unsqueeze(1).expand(-1, tree.height + 1, -1)
        lifted = tree.lift(leaves, range(tree.height + 1)).movedim(0, -1)  # [B, T, H + 1]
        rows = vectors.at(lifted).flatten(2)  # [B, T, (H + 1) dim]
        means = torch.bmm(shares, rows).view(*shares.shape[:2], tree.height + 1, -1)
        return means.transpose(1, 2).flatten(2)

    def _products(self, tree: Tree, vectors: Tensor) -> Products:
        """Where nothing is learned they are kept until a weight changes."""
        if torch.is_grad_enabled():
            self._kept = None
            return self._arrange()
        weights = (vectors, *(layer.weight for layer in (self.of_user, self.of_node, *self.layers)))
        state = [(weight._version, weight.data_ptr()) for weight in weights]
        if self._kept is None or self._kept[0] != state:
            products = self._arrange()
            small = range(max(level + 1 for level in range(tree.height + 1) if tree.level(level).stop <= KEPT))
            halves = vectors[: tree.level(small[-1]).stop] @ products.of_node
            self._kept = state, products._replace(halves=halves, small=small)
        return self._kept[1]

    def _arrange(self) -> Products:
        of_node = self.of_node.weight.t().contiguous()
        first, *rest = (layer for layer in self.layers if isinstance(layer, nn.Linear))
        rounded = self.int8 and not torch.is_grad_enabled()
        others = [_rounded(first) if rounded else _product(first), *map(_product, rest)]
        slopes = list(zip(self.slopes, others, strict=True))
        return Products(_product(self.of_user), of_node, slopes, of_node[:0], range(0))

    def forward(self, context: DeepContext, level: int, nodes: Tensor) -> Tensor:
        if context.products is None:
            return self.levels(context, [(level, nodes)])[0]
        user = context.user.select(1, level)  # [B, 128]
        users = max(1, BLOCK // nodes.shape[1])
        if len(user) <= users:
            return self._score(context.vectors, context.products, level, nodes, user)
        of_each = nodes.split(users) if len(nodes) > 1 else repeat(nodes)
        blocks = zip(of_each, user.split(users), strict=False)
        return torch.cat([self._score(context.vectors, context.products, level, *block) for block in blocks])

    def _score(self, vectors: Vectors, products: Products, level: int, nodes: Tensor, user: Tensor) -> Tensor:
        """g(x, n) [B, W] of some users, given their half of the first layer [B, 128]."""
        hidden = self._first(vectors, products, level, nodes, user)  # [BW, 128]
        for slope, product in products.others:
            hidden = product(prelu(hidden, slope))
        return hidden.view(len(user), -1).masked_fill_(nodes < 0, -torch.inf)

    def _first(self, vectors: Vectors, products: Products, level: int, nodes: Tensor, user: Tensor) -> Tensor:
        """The first layer [BW, 128]."""
        if level in products.small:
            hidden = products.halves.index_select(0, nodes.clamp(min=0).view(-1))
        elif len(user) == 1:
            return torch.addmm(user, vectors.at(nodes)[0], products.of_node)
        else:
            hidden = vectors.at(nodes).flatten(0, 1) @ products.of_node  # [BW or W, 128]
        if len(user) == 1:
            return hidden.add_(user)
        hidden, user = hidden.view(*nodes.shape, -1), user.unsqueeze(1)
        return (hidden.add_(user) if len(hidden) == len(user) else hidden + user).flatten(0, 1)

    def quantized(self) -> "DeepScorer":
        """The same for search on a CPU, with the largest layer, 128 to 64, in int8; the weights are shared.

        The others are too small: to round their input costs more than the product saves.
        """
        scorer = copy.copy(self)
        scorer.int8, scorer._kept = True, None
        return scorer

    def made(self, tree: Tree) -> dict[str, Tensor]:
        return {"vectors": self.table.vectors(tree)} if self.share else {}

    def keep_made(self, tree: Tree, made: dict[str, Tensor]) -> None:
        self.table.keep_vectors(tree, made["vectors"])

    def levels(self, context: DeepContext, found: list[tuple[int, Tensor]]) -> list[Tensor]:
        if not found or context.products is not None:
            return super().levels(context, found)
        from beamtree.kernels.score import Layers, score_levels

        w2, b2, w3, b3, w4, b4 = (part for layer in self.layers for part in layer.parameters())
        s1, s2, s3 = self.slopes
        layers = Layers(self.of_node.weight, s1, w2, b2, s2, w3, b3, s3, w4, b4)
        return score_levels(context.vectors, context.user, layers, found)

    def settings(self) -> dict[str, int | float]:
        rows, dim = self.table.weight.shape
        return {"num_nodes": rows, "dim": dim, "scale": self.scale, "share": self.share, "lift": self.lift}

    def check(self, x: Tensor) -> None:
        most = self.windows.shape[1]
        if x.dim() != 2 or x.dtype != torch.int64 or x.shape[1] > most:
            raise ValueError(f"x is {x.dtype} {list(x.shape)}: this scorer takes histories, int64 [B, up to {most}]")


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

"""The deep scorer of the paper's real data (supplement C.3)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beamtree import kernels
from beamtree.data.inputs import POOLING_WINDOWS
from beamtree.data.seeds import mix
from beamtree.data.views import window_matrix
from beamtree.kernels.deep_cpu import Products, make_products, score_level
from beamtree.kernels.search_cpu import CompiledPart, Network
from beamtree.scorers.base import TableScorer, newest
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import PAD, Tree

HIDDEN = (128, 64, 24)
USUAL_SCALE = 0.05  # of the node table where the scorer starts from vectors
SLOPE = 0.25  # of the PReLUs at the start
RANDOM_SHARE = 0.3  # of the random weights, kept beside the product
START_LOGIT = -2.0  # of a history and a node that have nothing in common


class PreparedDeep(NamedTuple):
    """What a search knows of its users."""

    vectors: Vectors  # of every node
    user: Tensor  # the user half of the first layer, for every level [B, H + 1, 128]
    products: Products | None  # where the GPU's kernels do not do them


def window_shares(windows: Tensor, leaves: Tensor) -> Tensor:
    """The share of each event in the mean of its window [B, windows, T]; an item without a leaf has none."""
    shares = windows[:, : leaves.shape[1]] * (leaves != PAD).unsqueeze(1)
    return shares / shares.sum(-1, keepdim=True).clamp_(min=1)


class DeepScorer(TableScorer):
    """g(x, n) = MLP([window means of x(n), row of n]), where x(n) is the history lifted to n's level.

    The first layer is linear in its input, so the part that multiplies the history is computed once per
    user and level and not once per node: the same numbers for less than a third of the work.

    Args:
        num_nodes: rows, one per node of the tree.
        dim: numbers in a row.
        scale: standard deviation of the rows at the start.
        share: whether a node's vector is its own row and the vector of its parent, so that a leaf with few events
            stands near the leaves beside it until it has reason not to.
        lift: whether the history is lifted to the node's level; if not it is read at its leaves, as TDM did before JTM.
        seed: draws the weights; None where they will be loaded.
    """

    reads_items = True
    exportable = True

    def __init__(
        self,
        num_nodes: int,
        dim: int = 24,
        scale: float = USUAL_SCALE,
        *,
        share: bool = True,
        lift: bool = True,
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        self.scale, self.share, self.lift = scale, share, lift
        self.windows: Tensor
        self.table = NodeTable(num_nodes, dim, scale, seed)
        self.register_buffer("windows", window_matrix(), persistent=False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(seed or 0, 3))
            self.of_user = nn.Linear(len(POOLING_WINDOWS) * dim, HIDDEN[0])  # both halves of the first layer
            self.of_node = nn.Linear(dim, HIDDEN[0], bias=False)
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(HIDDEN, (*HIDDEN[1:], 1), strict=True))
        self.slopes = nn.ParameterList(nn.Parameter(torch.full((size,), SLOPE)) for size in HIDDEN)

    def start_from(self, tree: Tree, vectors: Tensor) -> "DeepScorer":
        """Start with vectors of the items [M, ≥ dim] and as their product: near to the history is a high score."""
        dim = self.start_dim(vectors.shape[1])
        with torch.no_grad():
            self.table.weight.mul_(RANDOM_SHARE * USUAL_SCALE / self.scale)
        self.table.add_means(tree, vectors[:, :dim].to(self.table.weight), share=self.share)
        start_as_product(self.of_user, self.of_node, self._linear_layers(), len(POOLING_WINDOWS), dim)
        return self

    def start_dim(self, known: int) -> int:
        """How many of the dimensions of given vectors a start uses: an even number."""
        dim = min(self.table.weight.shape[1], known, HIDDEN[2]) // 2 * 2
        if not dim:
            raise ValueError(f"vectors have {known} dimension: a scorer starts from two at least")
        return dim

    def prepare(self, tree: Tree, x: Tensor) -> PreparedDeep:
        vectors = self.table.read(tree, share=self.share)
        pooled = self._pool(tree, vectors, newest(x, self.history))
        if kernels.fits(vectors.values):
            return PreparedDeep(vectors, self.of_user(pooled), None)
        products = make_products(self.of_user, self.of_node, self._linear_layers(), list(self.slopes))
        return PreparedDeep(vectors, products.of_user(pooled.flatten(0, 1)).view(*pooled.shape[:2], -1), products)

    def _pool(self, tree: Tree, vectors: Vectors, x: Tensor) -> Tensor:
        """The mean of each window of x, lifted to every level [B, H + 1, windows * dim]."""
        leaves = tree.leaf_of_item(x)
        shares = window_shares(self.windows, leaves)
        if not self.lift:
            (places,) = vectors.index([(tree.height, leaves)])
            means = torch.bmm(shares, vectors.at(places))
            return means.flatten(1).unsqueeze(1).expand(-1, tree.height + 1, -1)
        lifted = tree.lift(leaves, range(tree.height + 1))  # [H + 1, B, T]
        places = vectors.index_levels(lifted).movedim(0, -1)  # [B, T, H + 1]
        rows = vectors.at(places).flatten(2)  # [B, T, (H + 1) dim]
        means = torch.bmm(shares, rows).view(*shares.shape[:2], tree.height + 1, -1)
        return means.transpose(1, 2).flatten(2)

    def _linear_layers(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def forward(self, prepared: PreparedDeep, level: int, nodes: Tensor) -> Tensor:
        return self.levels(prepared, [(level, nodes)])[0]

    def levels(self, prepared: PreparedDeep, found: list[tuple[int, Tensor]]) -> list[Tensor]:
        places = prepared.vectors.index(found)
        found = [(level, nodes) for (level, _), nodes in zip(found, places, strict=True)]
        if prepared.products is not None:
            user, layers = prepared.user, prepared.products
            return [score_level(prepared.vectors, layers, nodes, user.select(1, level)) for level, nodes in found]
        if not found:
            return []
        from beamtree.kernels.deep_gpu import Layers, score_levels

        w2, b2, w3, b3, w4, b4 = (part for layer in self.layers for part in layer.parameters())
        s1, s2, s3 = self.slopes
        weights = Layers(self.of_node.weight, s1, w2, b2, s2, w3, b3, s3, w4, b4)
        return score_levels(prepared.vectors, prepared.user, weights, found)

    def compiled_part(self, tree: Tree) -> CompiledPart | None:
        rows = self.table.weight
        if type(self.table) is not NodeTable or rows.dtype != torch.float32 or not rows.is_contiguous():
            return None
        slopes: list[Tensor | None] = [*self.slopes, None]
        layers: list[tuple[Tensor, Tensor | None, Tensor | None]] = [
            (self.of_user.weight, self.of_user.bias, None),
            (self.of_node.weight, None, slopes[0]),
            *((layer.weight, layer.bias, s) for layer, s in zip(self._linear_layers(), slopes[1:], strict=True)),
        ]
        return Network(self.table.read(tree, share=self.share).values, self.windows, self.lift, layers)

    def search_cache(self, tree: Tree) -> Mapping[str, Tensor]:
        return {"vectors": self.table.vectors(tree)} if self.share else {}

    def load_search_cache(self, tree: Tree, parts: dict[str, Tensor]) -> None:
        self.table.cache_vectors(tree, parts["vectors"])

    def settings(self) -> dict[str, Any]:
        dim = self.table.weight.shape[1]
        return {
            "num_nodes": self.table.num_nodes,
            "dim": dim,
            "scale": self.scale,
            "share": self.share,
            "lift": self.lift,
        }


@torch.no_grad()
def start_as_product(of_user: nn.Linear, of_node: nn.Linear, layers: list[nn.Linear], windows: int, dim: int) -> None:
    """Give the layers weights that compute Σ |u + n| - |u - n| over `dim` dimensions.

    A network of these layers learns only slowly to multiply rows. But since
    |u + n| - |u - n| is 2 min(|u|, |n|) where u and n agree in sign and -2 min(|u|, |n|) where they do not,
    and |z| is made of PReLU(z) + PReLU(-z), it can do so from the first step: four units for each dimension of
    the first layer, two of the second, one of the third. The other units stay as they were drawn, but small.
    """
    one = torch.eye(dim, device=of_node.weight.device)
    pairs = one[::2] + one[1::2]  # [dim / 2, dim]
    for layer in (of_user, of_node, *layers):
        layer.weight.mul_(RANDOM_SHARE)
    # u + n, -(u + n), u - n, -(u - n), where u is the mean of the windows
    user_weight = of_user.weight.view(len(of_user.weight), windows, -1)
    user_weight[: 4 * dim] = 0
    user_weight[: 4 * dim, :, :dim] = torch.cat([one, -one, one, -one]).unsqueeze(1) / windows
    of_node.weight[: 4 * dim] = 0
    of_node.weight[: 4 * dim, :dim] = torch.cat([one, -one, -one, one])
    of_user.bias[: 4 * dim] = 0
    # |u + n| - |u - n| of each dimension, and the same with the other sign; then of pairs of them; then of all
    absolute = torch.cat([one, one, -one, -one], dim=1) / (1 - SLOPE)
    joined = torch.cat([pairs, -pairs], dim=1) / (1 + SLOPE)  # z is made of PReLU(z) - PReLU(-z)
    ones = one.new_ones(1, dim // 2)
    total = torch.cat([ones, -ones], dim=1) / (1 + SLOPE)
    for layer, block in zip(layers, (absolute, joined, total), strict=True):
        block = torch.cat([block, -block]) if len(block) > 1 else block
        layer.weight[: len(block)] = 0
        layer.weight[: len(block), : block.shape[1]] = block
        layer.bias[: len(block)] = 0
    layers[-1].bias.fill_(START_LOGIT)

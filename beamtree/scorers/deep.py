"""The deep scorer of the paper's real data (supplement C.3)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, prelu

from beamtree import kernels
from beamtree.data import mix
from beamtree.scorers.base import Scorer
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import PAD, Tree

WINDOWS = (1, 1, 1, 2, 2, 2, 10, 10, 20, 20)  # 69 behaviours, newest first
HIDDEN = (128, 64, 24)
QUIET = 0.3  # what is left of random weights where a scorer starts from vectors
START_LOGIT = -2.0  # and what it says where history and node have nothing to do with each other


class DeepContext(NamedTuple):
    vectors: Vectors  # of every node
    user: Tensor  # the user half of the first layer, for every level [B, H + 1, 128]


class DeepScorer(Scorer):
    """g(x, n) = MLP([window means of x(n), row of n]), where x(n) is the history lifted to n's level.

    The first layer is linear in its input, so the part that multiplies the history is computed once per
    user and level and not once per node: the same numbers for less than a third of the work.

    With `share`, a node's vector is its own row and the vector of its parent, so that a leaf with few events
    stands near the leaves beside it until it has reason not to.
    """

    def __init__(
        self, num_nodes: int, dim: int = 24, scale: float = 0.05, *, share: bool = True, seed: int = 0
    ) -> None:
        super().__init__()
        self.scale, self.share = scale, share
        self.windows: Tensor
        self.table = NodeTable(num_nodes, dim, scale, seed)
        self.register_buffer("windows", _window_of_behaviour(WINDOWS), persistent=False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(seed, 3))
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
        vectors = self.table.read(tree, share=self.share)
        return DeepContext(vectors, self.of_user(self._pool(tree, vectors, x)))

    def _pool(self, tree: Tree, vectors: Vectors, x: Tensor) -> Tensor:
        """The mean of each window of x, lifted to every level [B, H + 1, windows * dim]."""
        lifted = tree.lift(tree.leaf_of_item(x), range(tree.height + 1)).transpose(0, 1)  # [B, H + 1, T]
        shares = self.windows[:, : x.shape[1]] * (x != PAD).unsqueeze(1)  # [B, windows, T]
        shares = shares / shares.sum(-1, keepdim=True).clamp(min=1)
        rows = vectors.at(lifted)  # [B, H + 1, T, dim]
        return (shares.unsqueeze(1) @ rows).flatten(2)

    def forward(self, context: DeepContext, level: int, nodes: Tensor) -> Tensor:
        if kernels.fits(nodes):
            return self.levels(context, [(level, nodes)])[0]
        rows = context.vectors.at(nodes)  # [B or 1, W, dim]
        hidden = linear(rows, self.of_node.weight) + context.user[:, level].unsqueeze(1)  # [B, W, 128]
        shape = hidden.shape[:2]
        hidden = hidden.flatten(0, 1)
        for slope, layer in zip(self.slopes, self.layers, strict=True):
            hidden = layer(prelu(hidden, slope))
        logits: Tensor = hidden.view(shape)
        return logits.masked_fill(nodes == PAD, -torch.inf)

    def levels(self, context: DeepContext, found: list[tuple[int, Tensor]]) -> list[Tensor]:
        if not found or not kernels.fits(found[0][1]):
            return super().levels(context, found)
        from beamtree.kernels.score import Layers, score_levels

        w2, b2, w3, b3, w4, b4 = (part for layer in self.layers for part in layer.parameters())
        s1, s2, s3 = self.slopes
        layers = Layers(self.of_node.weight, s1, w2, b2, s2, w3, b3, s3, w4, b4)
        return score_levels(context.vectors, context.user, layers, found)

    def settings(self) -> dict[str, int | float]:
        rows, dim = self.table.weight.shape
        return {"num_nodes": rows, "dim": dim, "scale": self.scale, "share": self.share}

    def check(self, x: Tensor) -> None:
        most = self.windows.shape[1]
        if x.dim() != 2 or x.dtype != torch.int64 or x.shape[1] > most:
            raise ValueError(f"x is {x.dtype} {list(x.shape)}: this scorer takes histories, int64 [B, up to {most}]")


def _window_of_behaviour(windows: Sequence[int]) -> Tensor:
    """1 where a behaviour belongs to a window [windows, T]."""
    window = torch.repeat_interleave(torch.arange(len(windows)), torch.tensor(windows))
    return (window == torch.arange(len(windows)).unsqueeze(1)).float()

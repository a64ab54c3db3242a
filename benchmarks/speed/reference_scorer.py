"""The deep scorer as published (supplement C.3), to compare ours with."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, prelu

from beamtree import PAD, Tree, kernels
from beamtree.scorers import DeepScorer, Scorer


class PreparedReference(NamedTuple):
    tree: Tree
    x: Tensor  # histories [B, T]
    vectors: Tensor  # of every node [num_nodes, dim]
    first: Tensor  # the first layer [128, 264]


class ReferenceScorer(Scorer):
    """g(x, n) with the weights of a `DeepScorer`, without its optimisations.

    Every level lifts and pools the history anew, the user's ten windows are tiled to every node, and the whole first
    layer multiplies [B, W, 264]. Scores and gradients are those of the scorer whose weights it uses.
    """

    def __init__(self, deep: DeepScorer) -> None:
        super().__init__()
        self.deep = deep

    def prepare(self, tree: Tree, x: Tensor) -> PreparedReference:
        deep = self.deep
        vectors = deep.table.vectors(tree) if deep.share else deep.table.weight
        return PreparedReference(tree, x, vectors, torch.cat([deep.of_user.weight, deep.of_node.weight], dim=1))

    def forward(self, prepared: PreparedReference, level: int, nodes: Tensor) -> Tensor:
        tree, x, vectors, first = prepared
        lifted = tree.ancestor(tree.leaf_of_item(x), level)  # [B, T]
        behaviours = embedding(lifted.clamp(min=0), vectors)  # [B, T, dim]
        windows = self.deep.windows[:, : x.shape[1]] * (lifted != PAD).unsqueeze(1)  # [B, windows, T]
        pooled = (windows @ behaviours) / windows.sum(-1, keepdim=True).clamp(min=1)
        user = pooled.flatten(1).unsqueeze(1).expand(-1, nodes.shape[1], -1)  # [B, W, 240]
        rows = embedding(nodes.clamp(min=0), vectors).expand(len(x), -1, -1)  # [B, W, dim]
        hidden = linear(torch.cat([user, rows], dim=-1), first, self.deep.of_user.bias)  # [B, W, 128]
        shape = hidden.shape[:2]
        hidden = hidden.flatten(0, 1)  # prelu takes its slopes along the second axis
        for slope, layer in zip(self.deep.slopes, self.deep.layers, strict=True):
            hidden = layer(prelu(hidden, slope))
        return hidden.view(shape).masked_fill(nodes == PAD, -torch.inf)

    def settings(self) -> dict[str, int | float]:
        return self.deep.settings()

    def check(self, x: Tensor) -> None:
        self.deep.check(x)


class WithoutKernels:
    """A block in which the kernels of `beamtree.kernels` are not used."""

    def __enter__(self) -> None:
        self.fits = kernels.fits
        kernels.fits = lambda tensor: False

    def __exit__(self, *_: object) -> None:
        kernels.fits = self.fits

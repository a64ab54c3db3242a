"""Scorers of the form ⟨u(x), v_n⟩: what they share beside the way from a history to u(x)."""

from abc import abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from beamtree import kernels
from beamtree.scorers.base import TableScorer
from beamtree.scorers.table import Vectors
from beamtree.tree import PAD, Tree


class DotProductContext(NamedTuple):
    vectors: Vectors  # of every node
    user: Tensor  # u(x) [B, dim]


class DotProductScorer(TableScorer):
    """⟨u(x), v_n⟩: v_n is a row of the table, for an inner node the mean of those of the items below it."""

    reads_items = True

    @abstractmethod
    def encode(self, tree: Tree, vectors: Vectors, x: Tensor) -> Tensor:
        """u(x) [B, dim] of histories x [B, T]."""

    def context(self, tree: Tree, x: Tensor) -> DotProductContext:
        vectors = self.table.read(tree, share=False)
        return DotProductContext(vectors, self.encode(tree, vectors, x))

    def history_vectors(self, tree: Tree, vectors: Vectors, leaves: Tensor) -> Tensor:
        """The vectors of leaves [B, T, dim], any for PAD."""
        (rows,) = vectors.index([(tree.height, leaves)])
        return self.table.reduce(tree.height, gather(vectors, rows))

    def scores(self, context: DotProductContext, level: int, nodes: Tensor) -> Tensor:
        (rows,) = context.vectors.index([(level, nodes)])
        learns = context.user.requires_grad or context.vectors.gradients is not None
        if kernels.fits(context.user) and not learns:
            from beamtree.kernels.dots import dots

            return dots(context.vectors.values, context.user, rows)
        if len(rows) == 1:
            return context.user @ gather(context.vectors, rows[0]).T
        return torch.bmm(gather(context.vectors, rows), context.user.unsqueeze(-1)).squeeze(-1)

    def forward(self, context: DotProductContext, level: int, nodes: Tensor) -> Tensor:
        return self.scores(context, level, nodes).masked_fill(nodes == PAD, -torch.inf)

    def item_vectors(self, tree: Tree) -> Tensor:
        return super().item_vectors(tree).float()


def gather(vectors: Vectors, rows: Tensor) -> Tensor:
    """Rows of the values as float32 [..., dim]; any row for PAD."""
    if rows.is_cuda or vectors.gradients is not None:
        return vectors.at(rows).float()
    # NumPy gathers rows faster, and converts halves in a third of the time.
    gathered = vectors.values.numpy().take(rows.numpy(), axis=0, mode="clip")
    return torch.from_numpy(gathered.astype(np.float32))

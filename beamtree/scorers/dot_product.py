"""Scorers of the form ⟨u(x), v_n⟩: what they share beside the way from a history to u(x)."""

from abc import abstractmethod
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from beamtree import kernels
from beamtree.kernels.search_cpu import CompiledPart, Product
from beamtree.scorers.base import TableScorer
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import PAD, Tree

NODES_AT_ONCE = 2048  # rows that are fitted together
LEAVES_AT_ONCE = 1 << 15  # leaves of the subtrees that are fitted one after another


class PreparedDotProduct(NamedTuple):
    vectors: Vectors  # of every node
    user: Tensor  # u(x) [B, dim]


class DotProductScorer(TableScorer):
    """⟨u(x), v_n⟩: v_n is a row of the table, for an inner node the mean of those of the items below it."""

    reads_items = True
    exportable = True

    @abstractmethod
    def encode(self, tree: Tree, vectors: Vectors, x: Tensor) -> Tensor:
        """u(x) [B, dim] of histories x [B, T]."""

    def prepare(self, tree: Tree, x: Tensor) -> PreparedDotProduct:
        vectors = self.table.read(tree, share=False)
        return PreparedDotProduct(vectors, self.encode(tree, vectors, x))

    def users(self, tree: Tree, x: Tensor) -> Tensor:
        """u(x) [B, dim]."""
        return self.encode(tree, self.table.read(tree, share=False), x)

    def history_vectors(self, tree: Tree, vectors: Vectors, leaves: Tensor) -> Tensor:
        """The vectors of leaves [B, T, dim], any for PAD."""
        (rows,) = vectors.index([(tree.height, leaves)])
        return gather(vectors, rows)

    def scores(self, prepared: PreparedDotProduct, level: int, nodes: Tensor) -> Tensor:
        (rows,) = prepared.vectors.index([(level, nodes)])
        learns = prepared.user.requires_grad or prepared.vectors.gradients is not None
        if kernels.fits(prepared.user) and not learns:
            from beamtree.kernels.dots import dots

            return dots(prepared.vectors.values, prepared.user, rows)
        if kernels.is_one(rows.shape[0]):
            return prepared.user @ gather(prepared.vectors, rows[0]).T
        return torch.bmm(gather(prepared.vectors, rows), prepared.user.unsqueeze(-1)).squeeze(-1)

    def forward(self, prepared: PreparedDotProduct, level: int, nodes: Tensor) -> Tensor:
        return self.scores(prepared, level, nodes).masked_fill(nodes == PAD, -torch.inf)

    def compiled_part(self, tree: Tree) -> CompiledPart | None:
        """Covered where the table holds halves."""
        table = self.table
        rows = table.weight
        if type(table) is not NodeTable or rows.dtype != torch.float16 or not rows.is_contiguous():
            return None
        return Product(rows, partial(self.users, tree), self.columns, self.history)

    def item_vectors(self, tree: Tree) -> Tensor:
        return super().item_vectors(tree).float()


def gather(vectors: Vectors, rows: Tensor) -> Tensor:
    """Rows of the values as float32 [..., dim]; any row for PAD."""
    if rows.is_cuda or vectors.gradients is not None or kernels.is_plain():
        return vectors.at(rows).float()
    # NumPy gathers rows faster, and converts halves in a third of the time.
    gathered = vectors.values.numpy().take(rows.numpy(), axis=0, mode="clip")
    return torch.from_numpy(gathered.astype(np.float32))


@torch.no_grad()
def fit_to_maxima(tree: Tree, rows: Tensor, users: Tensor, *, nearest: int = 64, ridge: float = 0.1) -> None:
    """Fit the rows of inner nodes, in place, so that ⟨u, v_n⟩ is near the highest ⟨u, v⟩ of the leaves below n.

    That is what makes a beam lose nothing (Eq. 12). It matters for users for whom a node is among the best, so each row
    is a ridge regression on the `nearest` of the given users with the highest maxima below the node, around the row as
    it is, such as the mean of the leaves.

    Args:
        tree: T.
        rows: of all nodes [num_nodes, dim].
        users: vectors u(x) of training users [S, dim].
        nearest: users of a node.
        ridge: how near a row stays to what it was, relative to the users' mean square.
    """
    nearest = min(nearest, len(users))
    penalty = ridge * nearest * users.square().mean() * torch.eye(nearest, device=users.device)

    def fit_level(nodes: range, maxima: Tensor) -> None:
        """The rows of some nodes of a level, from the maxima below each [S, nodes]."""
        for start in range(0, len(nodes), NODES_AT_ONCE):
            some = slice(nodes.start + start, min(nodes.start + start + NODES_AT_ONCE, nodes.stop))
            best = maxima[:, start : start + NODES_AT_ONCE].topk(nearest, dim=0)
            u, before = users[best.indices.T], rows[some].float()  # [nodes, nearest, dim], [nodes, dim]
            error = best.values.T.unsqueeze(2) - torch.bmm(u, before.unsqueeze(2))
            error = torch.where(error.isfinite(), error, 0.0)  # no leaf below
            # (UᵀU + λ)⁻¹ Uᵀ = Uᵀ (UUᵀ + λ)⁻¹, where the second has one row for each of a few users.
            factor = torch.linalg.cholesky(torch.baddbmm(penalty, u, u.transpose(1, 2)))
            rows[some] = (before + torch.bmm(u.transpose(1, 2), torch.cholesky_solve(error, factor)).squeeze(2)).to(
                rows
            )

    # Subtrees one after another, then the levels above their roots, so that no [S, M] is needed.
    split, roots = tree.height, []
    while split > 1 and tree.arity ** (tree.height - split + 1) <= LEAVES_AT_ONCE:
        split -= 1
    for root in range(len(tree.level(split))):
        width = tree.arity ** (tree.height - split)
        leaves = slice(root * width, (root + 1) * width)
        vectors = rows[tree.level(tree.height).start :][leaves].float()
        maxima = (users @ vectors.T).masked_fill_(tree.items()[leaves] == PAD, -torch.inf)  # [S, leaves]
        for level in range(tree.height - 1, split - 1, -1):
            maxima = maxima.unflatten(1, (-1, tree.arity)).amax(2)
            first = tree.level(level).start + root * maxima.shape[1]
            fit_level(range(first, first + maxima.shape[1]), maxima)
        roots.append(maxima)
    maxima = torch.cat(roots, dim=1)
    for level in range(split - 1, 0, -1):
        maxima = maxima.unflatten(1, (-1, tree.arity)).amax(2)
        fit_level(tree.level(level), maxima)

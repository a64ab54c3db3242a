"""Folded factors: ⟨u(x), v_n⟩, where u is the fold-in of the history into factors of implicit ALS."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from beamtree import kernels
from beamtree.data.inputs import HISTORY, WHOLE_HISTORY
from beamtree.data.views import recency
from beamtree.kernels import search_cpu
from beamtree.kernels.search_cpu import CompiledPart, Product
from beamtree.scorers.base import Contributions, NewItems, Scorer, newest
from beamtree.scorers.dot_product import DotProductScorer
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import PAD, Tree

COMPARED = 128  # events of a history up to which each is compared with all others; longer ones are sorted


class Factors(NamedTuple):
    """Vectors of the items, rotated so that α₀ΣvvT is diagonal, and what a fold-in needs beside them."""

    items: Tensor  # [M, dim]
    gram_diagonal: Tensor  # of α₀ΣvvT [dim]
    penalty: float  # λ
    unobserved_weight: float  # α₀M

    def normalized(self) -> "Factors":
        """The same with vectors of mean square 1, which half precision can hold; products stay the same.

        A fold-in is divided by what vectors are multiplied by, if gram_diagonal and λ are multiplied by its square.
        """
        square = float(self.unobserved_weight / self.gram_diagonal.sum().clamp(min=1e-30))  # 1 / mean |v|²
        return Factors(
            self.items * square**0.5, self.gram_diagonal * square, self.penalty * square, self.unobserved_weight
        )


def fold_in(factors: Factors, vectors: Tensor, weights: Tensor) -> Tensor:
    """u(x): argmin of Σ w (1 - ⟨u, v⟩)² + α₀ Σ_all ⟨u, v⟩² + λ (Σw + α₀M) |u|² [B, dim].

    `vectors` are those of the history [B, T, dim], `weights` the weight w of each [B, T]. With Y = √w v and a diagonal
    A of what does not depend on the history, u = A⁻¹Yᵀ(1 + YA⁻¹Yᵀ)⁻¹√w: a system as large as the history where that is
    shorter than a vector.
    """
    if vectors.shape[1] <= vectors.shape[2]:
        rows, solution = fold_in_terms(factors, vectors, weights)
        return torch.bmm(rows.transpose(1, 2), solution.unsqueeze(-1)).squeeze(-1)
    root = weights.sqrt()
    rows = vectors * root.unsqueeze(-1)
    system = torch.bmm(rows.transpose(1, 2), rows)
    system.diagonal(dim1=1, dim2=2).add_(_diagonal(factors, weights))
    return solve_positive(system, torch.bmm(rows.transpose(1, 2), root.unsqueeze(-1)).squeeze(-1))


def fold_in_terms(factors: Factors, vectors: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """A vector of each event [B, T, dim] and a number [B, T]: u(x) is the sum of their products.

    The product is A⁻¹ w_t (1 - ⟨u, v_t⟩) v_t: an event that the others explain well adds little.
    """
    root = weights.sqrt()
    rows = vectors * root.unsqueeze(-1)
    shrunk = rows / _diagonal(factors, weights).unsqueeze(1)
    system = torch.bmm(shrunk, rows.transpose(1, 2))
    system.diagonal(dim1=1, dim2=2).add_(1.0)
    return shrunk, solve_positive(system, root)


def _diagonal(factors: Factors, weights: Tensor) -> Tensor:
    """A of `fold_in` [B, dim]."""
    return factors.gram_diagonal + factors.penalty * (weights.sum(1, keepdim=True) + factors.unobserved_weight)


def solve_positive(system: Tensor, right: Tensor) -> Tensor:
    """The solution of positive definite systems [B, n, n] with one right side each [B, n].

    It is not checked: the diagonal is above 0 by construction. On a GPU it takes two steps that a CUDA graph can hold.
    """
    factor: Tensor = torch.linalg.cholesky_ex(system).L
    column = right.unsqueeze(-1)
    if not system.is_cuda:
        return torch.cholesky_solve(column, factor).squeeze(-1)
    half = torch.linalg.solve_triangular(factor, column, upper=False)
    solution: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return solution.squeeze(-1)


def newest_of_each(x: Tensor) -> Tensor:
    """Which entries of histories [B, T], newest first, are the newest event of their item or leaf; PAD is not."""
    if x.shape[1] <= COMPARED:
        repeated = (x.unsqueeze(2) == x.unsqueeze(1)).tril_(-1).any(2)
    else:
        values, order = x.sort(dim=1, stable=True)
        after_equal = torch.zeros_like(x, dtype=torch.bool)
        torch.eq(values[:, 1:], values[:, :-1], out=after_equal[:, 1:])
        repeated = torch.zeros_like(after_equal).scatter_(1, order, after_equal)
    return repeated.logical_not_() & (x != PAD)


class FactorScorer(DotProductScorer):
    """⟨u(x), v_n⟩: v_n is the mean of the vectors of the items below n.

    Args:
        num_nodes: rows, one per node of the tree.
        dim: numbers in a row.
        penalty: λ of the fold-in.
        unobserved_weight: α₀M of the fold-in.
        power: an event t events ago has the weight (1 + t)^-power.
        scale: what a fold-in is multiplied by to give u(x).
        history: events that are read.
        seed: not used; rows come from `from_factors` or from a file.
    """

    spread: Tensor  # `Factors.gram_diagonal`, under its name in saved models
    recency: Tensor

    def __init__(
        self,
        num_nodes: int,
        dim: int,
        penalty: float = 0.005,
        unobserved_weight: float = 1.0,
        power: float = 0.0,
        scale: float = 1.0,
        history: int = WHOLE_HISTORY,
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        self.history = history
        self.penalty, self.unobserved_weight, self.power, self.scale = penalty, unobserved_weight, power, scale
        self.table = NodeTable(num_nodes, dim, seed=None, dtype=torch.float16)  # three digits are enough
        self.table.weight.requires_grad_(False)
        self.register_buffer("spread", torch.zeros(dim))
        self.register_buffer("recency", recency(power, history), persistent=False)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], kinds: Mapping[str, type[Scorer]]) -> Self:
        old = {"everywhere": "unobserved_weight"}  # before 0.3.0
        settings = {old.get(name, name): value for name, value in settings.items()}
        return super().from_settings({"history": HISTORY, **settings}, kinds)

    @classmethod
    def from_factors(cls, tree: Tree, factors: Factors, power: float = 0.0) -> "FactorScorer":
        """The scorer of a tree and factors of its items."""
        table = NodeTable(tree.num_nodes, factors.items.shape[1], seed=None)
        nn.init.zeros_(table.weight)
        table.add_means(tree, factors.items.cpu(), share=False)
        return cls.from_table(table, factors, power)

    @classmethod
    def from_table(
        cls, table: NodeTable, factors: Factors, power: float = 0.0, scale: float = 1.0, history: int = WHOLE_HISTORY
    ) -> "FactorScorer":
        """The scorer of a table that already holds the means of the factors of the items below each node."""
        dim = table.weight.shape[1]
        scorer = cls(1, dim, factors.penalty, factors.unobserved_weight, power, scale, history, seed=None)
        scorer.table = table.half().requires_grad_(False)
        scorer.spread = factors.gram_diagonal.cpu()
        return scorer

    def with_power(self, power: float) -> "FactorScorer":
        """The same with other recency weights, sharing the table."""
        return self._with(self.table, power=power)

    def scaled(self, by: float) -> "FactorScorer":
        """The same with scores multiplied by a number, sharing the table."""
        return self._with(self.table, scale=self.scale * by)

    def on_tree(self, old: Tree, new: Tree) -> "FactorScorer":
        return self._with(self.table.means_on(old, new)).to(self.spread.device)

    def new_vectors(self, old: Tree, items: NewItems) -> Tensor:
        """The factors that were learned, and means for the other items."""
        vectors = super().new_vectors(old, items)
        if items.factors:
            vectors[[*items.factors]] = torch.stack([*items.factors.values()]).to(vectors)
        return vectors

    def _with(self, table: NodeTable, *, power: float | None = None, scale: float | None = None) -> "FactorScorer":
        """The same with another table, power or scale."""
        power, scale = self.power if power is None else power, self.scale if scale is None else scale
        return self.from_table(table, self.fold_in_settings(table.weight[:0]), power, scale, self.history)

    @torch.no_grad()
    def encode(self, tree: Tree, vectors: Vectors, x: Tensor) -> Tensor:
        rows = self.table.weight
        on_cpu = rows.device.type == "cpu" and not kernels.is_plain()
        if type(self.table) is NodeTable and on_cpu and rows.dtype == torch.float16:
            return self._fold_in_on_cpu(tree, x)
        x = newest(x, self.history)
        leaves = tree.leaf_of_item(x)
        history = self.history_vectors(tree, vectors, leaves)
        weights = newest_of_each(leaves) * self.recency[: x.shape[1]]  # items without a leaf have no weight
        return fold_in(self.fold_in_settings(history), history, weights) * self.scale

    def _fold_in_on_cpu(self, tree: Tree, x: Tensor) -> Tensor:
        x, how = newest(x, self.history), (self.penalty, self.unobserved_weight, self.scale)
        return search_cpu.fold_in(tree, self.table.weight, x, self.recency, self.spread, *how)

    def compiled_part(self, tree: Tree) -> CompiledPart | None:
        part = super().compiled_part(tree)
        if not isinstance(part, Product) or part.rows.is_cuda or type(self).encode is not FactorScorer.encode:
            return part
        return part._replace(encode=partial(self._fold_in_on_cpu, tree))

    @torch.no_grad()
    def contributions(self, tree: Tree, x: Tensor, items: Tensor) -> Contributions:
        """Each event gives the product of its term of u(x) and the item's vector.

        Of several events of an item only the newest has a term.
        """
        x = newest(x, self.history)
        vectors, leaves = self.table.read(tree, share=False), tree.leaf_of_item(x)
        history = self.history_vectors(tree, vectors, leaves)
        targets = self.history_vectors(tree, vectors, tree.leaf_of_item(items)).expand(len(x), -1, -1)
        weights = newest_of_each(leaves) * self.recency[: x.shape[1]]
        rows, solution = fold_in_terms(self.fold_in_settings(history), history, weights)
        entries = torch.bmm(targets, rows.transpose(1, 2)) * solution.unsqueeze(1) * self.scale
        return Contributions(entries, torch.zeros_like(entries[:, :, 0]))

    def fold_in_settings(self, vectors: Tensor) -> Factors:
        """Vectors, with what a fold-in needs beside them."""
        return Factors(vectors, self.spread, self.penalty, self.unobserved_weight)

    def settings(self) -> dict[str, Any]:
        return {
            "num_nodes": self.table.num_nodes,
            "dim": self.table.weight.shape[1],
            "penalty": self.penalty,
            "unobserved_weight": self.unobserved_weight,
            "power": self.power,
            "scale": self.scale,
            "history": self.history,
        }

"""Folded factors: ⟨u(x), v_n⟩, where u is the fold-in of the history into factors of implicit ALS."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from beamtree import kernels
from beamtree.closed_form.als import Factors, fold_in
from beamtree.closed_form.cooccurrence import newest_of_each
from beamtree.data.views import HISTORY, recency
from beamtree.distributed.exchange import Dealt, deal, dealt
from beamtree.distributed.partition import Shard, own_shard
from beamtree.distributed.sharded_table import SpreadTable
from beamtree.scorers.base import TableScorer, check_histories
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import PAD, Tree


class FactorContext(NamedTuple):
    vectors: Vectors  # of every node
    user: Tensor  # [B, dim]


class FactorScorer(TableScorer):
    """The product of a user's vector, solved from the history, and a node's: the mean of the items' below it.

    Args:
        num_nodes: rows, one per node of the tree.
        dim: numbers in a row.
        penalty: λ of the fold-in.
        everywhere: α₀M of the fold-in.
        power: how fast an event of the history loses weight.
        seed: not used; rows come from `from_factors` or from a file.
    """

    reads_items = True

    spread: Tensor
    recency: Tensor

    def __init__(
        self,
        num_nodes: int,
        dim: int,
        penalty: float = 0.005,
        everywhere: float = 1.0,
        power: float = 0.0,
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        self.penalty, self.everywhere, self.power = penalty, everywhere, power
        self.table = NodeTable(num_nodes, dim, seed=None, dtype=torch.float16)  # three digits are enough
        self.table.weight.requires_grad_(False)
        self.register_buffer("spread", torch.zeros(dim))
        self.register_buffer("recency", recency(power), persistent=False)

    @classmethod
    def from_factors(cls, tree: Tree, factors: Factors, power: float = 0.0) -> "FactorScorer":
        """Every node's vector is the mean of those of the items below it; over ranks, each has those of its shard.

        The items' may be dealt out over ranks. Where they are not, every rank has all of them.
        """
        dim, shard = factors.items.shape[1], own_shard(tree)
        means = NodeTable(tree.num_nodes, dim, seed=None) if shard is None else SpreadTable(shard, dim, seed=None)
        nn.init.zeros_(means.weight)
        given = factors.items.cpu()
        vectors = deal(given) if len(given) == tree.num_items else Dealt(given, tree.num_items)
        means.start_from(tree, vectors, share=False)
        scorer = cls(1, dim, factors.penalty, factors.everywhere, power, seed=None)
        scorer.table = means.half().requires_grad_(False)
        scorer.spread = factors.spread.cpu()
        return scorer

    def item_vectors(self, tree: Tree) -> Tensor:
        return super().item_vectors(tree).float()

    def on_tree(self, old: Tree, new: Tree) -> "FactorScorer":
        vectors, items = self.table.read(old, share=False), dealt(old.num_items, old.device)
        (leaves,) = vectors.place([(old.height, old.leaf_of_item(items))])
        found = self.from_factors(new.moved(Tensor.cpu), self.folding(vectors.at(leaves).float()), self.power)
        return found.to(self.spread.device)

    @torch.no_grad()
    def context(self, tree: Tree, x: Tensor) -> FactorContext:
        leaves, vectors = tree.leaf_of_item(x), self.table.read(tree, share=False)
        (places,) = vectors.place([(tree.height, leaves)])
        rows = self.table.add_up(tree.height, _rows(vectors, places))
        weights = newest_of_each(x) * self.recency[: x.shape[1]] * (leaves != PAD)  # a removed item says nothing here
        return FactorContext(vectors, fold_in(self.folding(rows), rows, weights))

    def folding(self, rows: Tensor) -> Factors:
        """Vectors of items, with what a fold-in needs beside."""
        return Factors(rows, self.spread, self.penalty, self.everywhere)

    def scores(self, context: FactorContext, level: int, nodes: Tensor) -> Tensor:
        (nodes,) = context.vectors.place([(level, nodes)])
        if kernels.fits(context.user):
            from beamtree.kernels.dots import dots

            return dots(context.vectors.values, context.user, nodes)
        if len(nodes) == 1 and not nodes.is_cuda:
            return context.user @ _rows(context.vectors, nodes[0]).T
        return torch.bmm(_rows(context.vectors, nodes), context.user.unsqueeze(-1)).squeeze(-1)

    def forward(self, context: FactorContext, level: int, nodes: Tensor) -> Tensor:
        return self.scores(context, level, nodes).masked_fill(nodes == PAD, -torch.inf)

    def spread_over(self, shard: Shard) -> None:
        if not self.is_spread:
            self.table = SpreadTable.of(self.table, shard).requires_grad_(False)

    def settings(self) -> dict[str, Any]:
        rows, dim = self.table.num_nodes, self.table.weight.shape[1]
        folding = {"penalty": self.penalty, "everywhere": self.everywhere, "power": self.power}
        return {"num_nodes": rows, "dim": dim, **folding}

    def check(self, x: Tensor) -> None:
        check_histories(x, HISTORY)


def _rows(vectors: Vectors, places: Tensor) -> Tensor:
    """The vectors at places [..., dim], some vector where a node is PAD."""
    if places.is_cuda:
        return vectors.at(places).float()
    # numpy gathers rows in less time, and widens halves in a third of it.
    rows = vectors.values.numpy().take(places.numpy(), axis=0, mode="clip")
    return torch.from_numpy(rows.astype(np.float32))

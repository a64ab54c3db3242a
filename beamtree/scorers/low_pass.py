"""A low-pass: what remains of a history in a few smooth directions of the graph of users and items."""

from typing import Any

import torch
from torch import Tensor

from beamtree.data.inputs import WHOLE_HISTORY
from beamtree.data.views import recency
from beamtree.scorers.base import Contributions, newest
from beamtree.scorers.dot_product import DotProductScorer
from beamtree.scorers.factors import newest_of_each
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import Tree


class LowPassScorer(DotProductScorer):
    """⟨u(x), v_n⟩: v_i = D_i^1/2 V_i, and u(x) is the sum of D_i^-1/2 V_i = v_i / D_i over the items of the history.

    V are singular vectors of a log and D are degrees, from `closed_form.graph`. An item that came later has no share
    in u(x).

    Args:
        num_nodes: rows, one per node of the tree.
        dim: numbers in a row.
        known: items that the log has.
        power: an event t events ago has the weight (1 + t)^-power.
        history: events that are read.
        seed: not used; rows come from `from_vectors` or from a file.
    """

    shares: Tensor  # what v_i is multiplied by in u(x) [known]
    recency: Tensor

    def __init__(
        self,
        num_nodes: int,
        dim: int,
        known: int,
        power: float = 0.0,
        history: int = WHOLE_HISTORY,
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        self.power, self.history = power, history
        self.table = NodeTable(num_nodes, dim, seed=None, dtype=torch.float16)
        self.table.weight.requires_grad_(False)
        self.register_buffer("shares", torch.zeros(known))
        self.register_buffer("recency", recency(power, history), persistent=False)

    @classmethod
    def from_vectors(cls, tree: Tree, vectors: Tensor, degrees: Tensor, power: float = 0.0) -> "LowPassScorer":
        """The scorer of a tree, V [M, dim] and D [M]."""
        table = NodeTable.from_rows(torch.zeros(tree.num_nodes, vectors.shape[1]))
        rows = (vectors * degrees.sqrt().unsqueeze(1)).cpu()
        size = rows.square().mean().clamp(min=1e-30).sqrt()  # half precision holds vectors of mean square 1
        table.add_means(tree, rows / size, share=False)
        shares = (size.square() / degrees.cpu()).masked_fill_(degrees.cpu() == 0, 0.0)
        return cls._of(table.half(), shares, power)

    @classmethod
    def _of(cls, table: NodeTable, shares: Tensor, power: float, history: int = WHOLE_HISTORY) -> "LowPassScorer":
        scorer = cls(1, table.weight.shape[1], 0, power, history, seed=None)
        scorer.table, scorer.shares = table.requires_grad_(False), shares
        return scorer

    def scaled(self, by: float) -> "LowPassScorer":
        """The same with scores multiplied by a number, sharing the table."""
        return self._of(self.table, self.shares * by, self.power, self.history)

    def on_tree(self, old: Tree, new: Tree) -> "LowPassScorer":
        means = self.table.means_on(old, new).to(self.shares.device)
        return self._of(means.half(), self.shares, self.power, self.history).to(self.shares.device)

    @torch.no_grad()
    def encode(self, tree: Tree, vectors: Vectors, x: Tensor) -> Tensor:
        x = newest(x, self.history)
        history = self.history_vectors(tree, vectors, tree.leaf_of_item(x))
        return torch.bmm(self._weights(tree, x).unsqueeze(1), history).squeeze(1)

    def _weights(self, tree: Tree, x: Tensor) -> Tensor:
        """The weight of each event's vector in u(x) [B, T]: 0 for items without a leaf and those that came later."""
        known = (x < len(self.shares)) & newest_of_each(tree.leaf_of_item(x))
        return self.shares[torch.where(known, x, 0)] * self.recency[: x.shape[1]] * known

    @torch.no_grad()
    def contributions(self, tree: Tree, x: Tensor, items: Tensor) -> Contributions:
        """Each event gives the product of its term of u(x) and the item's vector."""
        x = newest(x, self.history)
        vectors = self.table.read(tree, share=False)
        history = self.history_vectors(tree, vectors, tree.leaf_of_item(x))
        targets = self.history_vectors(tree, vectors, tree.leaf_of_item(items)).expand(len(x), -1, -1)
        entries = torch.bmm(targets, history.transpose(1, 2)) * self._weights(tree, x).unsqueeze(1)
        return Contributions(entries, torch.zeros_like(entries[:, :, 0]))

    def settings(self) -> dict[str, Any]:
        return {
            "num_nodes": self.table.num_nodes,
            "dim": self.table.weight.shape[1],
            "known": len(self.shares),
            "power": self.power,
            "history": self.history,
        }

    def check(self, x: Tensor) -> None:
        self.columns.check(x)

"""The context of a request, such as country and hour: g(x, n) = ⟨u(c), v_n⟩, whatever the history is."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from beamtree.data.contexts import ValueIndex, Values
from beamtree.data.inputs import InputColumns
from beamtree.scorers.base import Contributions, Scorer
from beamtree.scorers.dot_product import LEAVES_AT_ONCE, DotProductScorer
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import PAD, Tree

CONTEXT = "context"  # the name of the part


class ContextScorer(DotProductScorer):
    """⟨u(c), v_n⟩: u is the sum of the vectors of the values of a context, each times the weight of its column.

    A value that is missing or unknown adds nothing.

    Args:
        num_nodes: rows, one per node of the tree.
        dim: numbers in a row.
        values: of each column, as text.
        weights: of the columns; 1 unless given.
        seed: not used; vectors come from `from_table` or from a file.
    """

    vectors: Tensor  # of the values of all columns, then zeros for PAD [V + 1, dim]
    weights: Tensor  # [columns]

    def __init__(
        self,
        num_nodes: int,
        dim: int,
        values: Values,
        weights: Sequence[float] | None = None,
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        self.values = {column: list(names) for column, names in values.items()}
        self.index = ValueIndex(self.values)
        self.table = NodeTable(num_nodes, dim, seed=None, dtype=torch.float16)  # three digits are enough
        self.table.weight.requires_grad_(False)
        self.register_buffer("vectors", torch.zeros(sum(map(len, self.values.values())) + 1, dim))
        each = torch.tensor([1.0] * len(self.values) if weights is None else list(weights))
        self.register_buffer("weights", each, persistent=False)

    @classmethod
    def from_table(
        cls, table: NodeTable, values: Values, vectors: Tensor, weights: Sequence[float] | None = None
    ) -> "ContextScorer":
        """The scorer of a table that holds the vectors of all nodes, and of the vectors of the values [V, dim]."""
        scorer = cls(1, vectors.shape[1], values, weights, seed=None)
        scorer.table = table.half().requires_grad_(False)
        scorer.vectors = torch.cat([vectors, torch.zeros_like(vectors[:1])])
        return scorer

    def on_tree(self, old: Tree, new: Tree) -> "ContextScorer":
        scorer = self.from_table(self.table.means_on(old, new), self.values, self.vectors[:-1], self.weights.tolist())
        return scorer.to(self.vectors.device)

    @property
    def context_values(self) -> Values:
        return self.values

    @property
    def columns(self) -> InputColumns:
        return InputColumns(contexts=len(self.values))

    def encode(self, tree: Tree, vectors: Vectors, x: Tensor) -> Tensor:
        return self._by_column(x).sum(1)

    def _by_column(self, x: Tensor) -> Tensor:
        """The vector of the value in each column [B, columns, dim]; no columns where no contexts follow the histories.

        They are times the weights of the columns.
        """
        values = self.columns.split(x).context
        return self.vectors[values] * self.weights[: values.shape[1]].unsqueeze(1)

    @torch.no_grad()
    def contributions(self, tree: Tree, x: Tensor, items: Tensor) -> Contributions:
        """Each value of the context gives the product of its vector and that of the item."""
        vectors = self.table.read(tree, share=False)
        targets = self.history_vectors(tree, vectors, tree.leaf_of_item(items)).expand(len(x), -1, -1)
        entries = targets.new_zeros(*targets.shape[:2], x.shape[1])
        of_values = targets @ self._by_column(x).mT
        entries[:, :, x.shape[1] - of_values.shape[2] :] = of_values
        return Contributions(entries, torch.zeros_like(targets[:, :, 0]))

    @torch.no_grad()
    def item_scores(self, tree: Tree, x: Tensor) -> Tensor:
        """The scores of all items [B, M], 0 for those without a leaf."""
        prepared, leaves = self.prepare(tree, x), tree.leaf_of_item(torch.arange(tree.num_items, device=x.device))
        some = [self.scores(prepared, tree.height, part) for part in leaves.unsqueeze(0).split(LEAVES_AT_ONCE, dim=1)]
        return torch.cat(some, dim=1).masked_fill(leaves == PAD, 0.0)

    def settings(self) -> dict[str, Any]:
        return {
            "num_nodes": self.table.num_nodes,
            "dim": self.table.weight.shape[1],
            "values": self.values,
            "weights": self.weights.tolist(),
        }

    def check(self, x: Tensor) -> None:
        super().check(x)
        if x.device.type == "cpu" and (self.columns.split(x).context >= len(self.vectors) - 1).any():
            raise ValueError(f"x has a context with a value beyond the {len(self.vectors) - 1} of this scorer")


def context_part(scorer: Scorer) -> ContextScorer | None:
    """The part of a scorer that reads contexts, if it has one."""
    return next((part for part in scorer.scorers().values() if isinstance(part, ContextScorer)), None)

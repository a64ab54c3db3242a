"""Popularity: the score of an item is the same for every user."""

from typing import Any

import torch
from torch import Tensor

from beamtree.kernels.search_cpu import CompiledPart, NodeScores
from beamtree.scorers.base import NewItems
from beamtree.scorers.dot_product import DotProductScorer
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import Tree

POPULARITY = "popularity"  # the name of the part


class PopularityScorer(DotProductScorer):
    """The square root of an item's number of events; a node has the score of the most popular item below it.

    Args:
        num_nodes: rows, one per node of the tree.
        scale: what scores are multiplied by.
        seed: not used; rows come from `from_counts` or from a file.
    """

    same_for_all = True

    def __init__(self, num_nodes: int, scale: float = 1.0, seed: int | None = 0) -> None:
        super().__init__()
        self.scale = scale
        self.table = NodeTable(num_nodes, 1, seed=None, dtype=torch.float16)
        self.table.weight.requires_grad_(False)

    @classmethod
    def from_counts(cls, tree: Tree, counts: Tensor) -> "PopularityScorer":
        """The scorer of a tree and the number of events of each item [M]; the most popular has the score 1."""
        return cls._of_items(tree, (counts / counts.max().clamp(min=1)).sqrt().float())

    @classmethod
    def _of_items(cls, tree: Tree, scores: Tensor) -> "PopularityScorer":
        """The scorer of a tree and the scores of its items [M]."""
        scorer = cls(1, seed=None)
        scorer.table = NodeTable.of_maxima(tree, scores.unsqueeze(1))
        return scorer

    def scaled(self, by: float) -> "PopularityScorer":
        """The same with scores multiplied by a number, sharing the table."""
        scorer = type(self)(1, self.scale * by, seed=None)
        scorer.table = self.table
        return scorer

    def on_tree(self, old: Tree, new: Tree) -> "PopularityScorer":
        return self._of_items(new, self.table.of_items(old, share=False).float().squeeze(1)).scaled(self.scale)

    def new_vectors(self, old: Tree, items: NewItems) -> Tensor:
        """0 where factors and partners were learned: they already say how often to show an item."""
        return super().new_vectors(old, items).masked_fill(items.learned.to(old.device).unsqueeze(1), 0.0)

    def encode(self, tree: Tree, vectors: Vectors, x: Tensor) -> Tensor:
        return torch.full((x.shape[0], 1), self.scale, device=x.device)

    def compiled_part(self, tree: Tree) -> CompiledPart | None:
        part = super().compiled_part(tree)
        is_as_defined = type(self).encode is PopularityScorer.encode
        return NodeScores(self.table.weight.view(-1), self.scale) if part is not None and is_as_defined else part

    def settings(self) -> dict[str, Any]:
        return {"num_nodes": self.table.num_nodes, "scale": self.scale}

"""The one door to per-node parameters."""

import torch
from torch import Tensor, nn

from beamtree.data import mix
from beamtree.tree import PAD, Tree


class NodeTable(nn.Module):
    """One row of parameters per node, drawn from N(0, scale²); without a seed, room for rows that will be loaded."""

    def __init__(self, num_nodes: int, dim: int, scale: float = 1.0, seed: int | None = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_nodes, dim))
        if seed is not None:
            # Mixed, so that data made from the same seed do not turn up as weights.
            generator = torch.Generator().manual_seed(mix(seed, 2))
            nn.init.normal_(self.weight, std=scale, generator=generator)
        self._kept: tuple[tuple[object, ...], Tree, Tensor] | None = None

    def rows(self, nodes: Tensor) -> Tensor:
        """The rows of nodes [..., dim]; some row where a node is PAD."""
        return nn.functional.embedding(nodes.clamp(min=0), self.weight)

    def span(self, nodes: range) -> Tensor:
        """The rows of neighbouring nodes, such as a level [len(nodes), dim], without a copy."""
        return self.weight[nodes.start : nodes.stop]

    @torch.no_grad()
    def start_from(self, tree: Tree, vectors: Tensor, *, share: bool) -> None:
        """Add to the rows what makes every node's vector the mean of the items' below it.

        Vectors are [M, ≤ dim]; with `share` a row holds what its node differs by from its parent.
        """
        slots = tree.items()
        real = slots != PAD
        sums = vectors.new_zeros(len(slots), vectors.shape[1])
        sums[real] = vectors[slots[real]]
        count = real.to(vectors.dtype).unsqueeze(1)
        for level in range(tree.height, -1, -1):
            mean = sums / count.clamp(min=1)
            self.span(tree.level(level))[:, : vectors.shape[1]] += mean
            if share and level < tree.height:
                below = self.span(tree.level(level + 1))[:, : vectors.shape[1]]
                below -= mean.repeat_interleave(tree.arity, dim=0)
            if level:
                sums = sums.view(-1, tree.arity, vectors.shape[1]).sum(1)
                count = count.view(-1, tree.arity, 1).sum(1)

    def vectors(self, tree: Tree) -> Tensor:
        """The sum of each node's row and the rows of all above it [num_nodes, dim].

        Where nothing is learned they are kept until a weight or the tree changes.
        """
        if torch.is_grad_enabled():
            self._kept = None
            return self._sum_paths(tree)
        if self._kept is not None and self._kept[0] == self._state() and self._kept[1] is tree:
            return self._kept[2]
        return self.keep_vectors(tree, self._sum_paths(tree))

    def keep_vectors(self, tree: Tree, vectors: Tensor) -> Tensor:
        """Take these for the vectors of the rows as they are now."""
        self._kept = (self._state(), tree, vectors)
        return vectors

    def _state(self) -> tuple[object, ...]:
        return self.weight._version, self.weight.data_ptr(), self.weight.device

    def _sum_paths(self, tree: Tree) -> Tensor:
        levels = [self.span(tree.level(0))]
        for level in range(1, tree.height + 1):
            levels.append(self.span(tree.level(level)) + levels[-1].repeat_interleave(tree.arity, dim=0))
        return torch.cat(levels)

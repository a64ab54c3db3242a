"""The one door to per-node parameters."""

import torch
from torch import Tensor, nn

from beamtree.data import mix
from beamtree.tree import PAD, Tree


class NodeTable(nn.Module):
    """One row of parameters per node, drawn from N(0, scale²)."""

    def __init__(self, num_nodes: int, dim: int, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        # Mixed, so that data made from the same seed do not turn up as weights.
        generator = torch.Generator().manual_seed(mix(seed, 2))
        self.weight = nn.Parameter(torch.randn(num_nodes, dim, generator=generator) * scale)
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
        state = (self.weight._version, self.weight.data_ptr(), self.weight.device)
        if self._kept is None or self._kept[0] != state or self._kept[1] is not tree:
            self._kept = (state, tree, self._sum_paths(tree))
        return self._kept[2]

    def _sum_paths(self, tree: Tree) -> Tensor:
        levels = [self.span(tree.level(0))]
        for level in range(1, tree.height + 1):
            levels.append(self.span(tree.level(level)) + levels[-1].repeat_interleave(tree.arity, dim=0))
        return torch.cat(levels)

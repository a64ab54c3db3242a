"""The one door to per-node parameters."""

import torch
from torch import Tensor, nn

from beamtree.data import mix


class NodeTable(nn.Module):
    """One row of parameters per node, drawn from N(0, scale²)."""

    def __init__(self, num_nodes: int, dim: int, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        # Mixed, so that data made from the same seed do not turn up as weights.
        generator = torch.Generator().manual_seed(mix(seed, 2))
        self.weight = nn.Parameter(torch.randn(num_nodes, dim, generator=generator) * scale)

    def rows(self, nodes: Tensor) -> Tensor:
        """The rows of nodes [..., dim]; some row where a node is PAD."""
        return nn.functional.embedding(nodes.clamp(min=0), self.weight)

    def span(self, nodes: range) -> Tensor:
        """The rows of neighbouring nodes, such as a level [len(nodes), dim], without a copy."""
        return self.weight[nodes.start : nodes.stop]

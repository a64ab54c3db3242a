"""The rows of one rank, for a search in which each rank scores what it has."""

import torch
from torch import Tensor, nn

from beamtree.distributed.partition import Shard
from beamtree.scorers.table import NodeTable, Vectors
from beamtree.tree import PAD, Tree


class OwnTable(NodeTable):
    """The vectors of one shard, and a row of zeros after them, which stands for all nodes of others.

    Args:
        shard: whose they are.
        rows: these vectors, and zeros [shard.num_rows + 1, dim].
    """

    starts: Tensor
    stops: Tensor
    shifts: Tensor

    def __init__(self, shard: Shard, rows: Tensor) -> None:
        super().__init__(0, rows.shape[1], seed=None)
        self.shard, self.weight = shard, nn.Parameter(rows, requires_grad=False)
        spans = [shard.span(level, shard.ranks.rank) for level in shard.below]
        shifts = [shard.offset(level) for level in shard.below]
        known = {"starts": [span.start for span in spans], "stops": [span.stop for span in spans], "shifts": shifts}
        for name, numbers in known.items():  # of each level below the cut
            self.register_buffer(name, torch.tensor(numbers, dtype=torch.int64), persistent=False)

    @property
    def num_nodes(self) -> int:
        return self.shard.num_nodes

    def place(self, level: int, nodes: Tensor) -> Tensor:
        """Rows of nodes of a level, PAD for PAD, and the row of zeros for those of others."""
        if level <= self.shard.cut:
            return nodes
        owned = self.shard.owned(level, nodes)
        places = torch.where(owned, nodes - self.shard.offset(level), self.shard.num_rows)
        return places.masked_fill_(nodes == PAD, PAD)

    def add_up(self, level: int, values: Tensor) -> Tensor:
        return values if level <= self.shard.cut else self.shard.ranks.sum_(values)

    def read(self, tree: Tree, *, share: bool) -> "OwnVectors":
        if share:
            raise ValueError("these are vectors and no rows: they are summed when they are read from a file")
        return OwnVectors(self)


class OwnVectors(Vectors):
    """The vectors of one shard, as a search reads them."""

    def __init__(self, table: OwnTable) -> None:
        super().__init__(table.weight.detach(), table.weight, None)
        self.table, self.shard = table, table.shard

    @property
    def kept(self) -> Tensor:
        return self.values[: self.shard.num_top]

    def place(self, found: list[tuple[int, Tensor]]) -> list[Tensor]:
        return [self.table.place(level, nodes) for level, nodes in found]

    def place_levels(self, nodes: Tensor) -> Tensor:
        first = self.shard.cut + 1
        below, shape = nodes[first:], (-1, *[1] * (nodes.dim() - 1))
        starts, stops, shifts = (each.view(shape) for each in (self.table.starts, self.table.stops, self.table.shifts))
        owned = (below >= starts) & (below < stops)
        return torch.cat([nodes[:first], torch.where(owned, below - shifts, self.shard.num_rows)])

    def add_up(self, sums: Tensor, levels: range) -> Tensor:
        """The top is everybody's, and counted once."""
        top = max(0, self.shard.cut + 1 - levels.start)
        if top >= len(levels):
            return sums
        below = self.shard.ranks.sum_(sums[..., top:, :].contiguous())
        return below if not top else torch.cat([sums[..., :top, :], below], dim=-2)

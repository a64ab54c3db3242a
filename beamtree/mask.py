"""Which nodes may be entered: those with an allowed item below.

Empty slots, filters and removed items are one mechanism: a leaf that is not allowed, and every node without an allowed
leaf below. They are in no beam, no candidate set and no arg max.
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

PAD = -1  # the only sentinel: no item, no node


def level_span(arity: int, level: int) -> range:
    """N_h: the ids of all nodes of one level of a complete b-ary tree, numbered level by level from the root, 0."""
    size = int(arity**level)
    start = (size - 1) // (arity - 1)
    return range(start, start + size)


class NodeMask:
    """Allowed leaves of a complete b-ary tree, and the nodes above them: the only nodes that a beam enters."""

    def __init__(self, slots: Tensor, arity: int) -> None:
        """`slots`: whether each leaf from left to right is allowed, bool [b^H]."""
        levels = [slots]
        while len(levels[-1]) > 1:
            levels.append(levels[-1].view(-1, arity).any(1))
        self.arity, self.height = arity, len(levels) - 1
        self.entered = torch.cat(levels[::-1])  # bool [num_nodes]
        self.entered[0] = False  # the root is never a child: the arithmetic of PAD ends there
        self.is_empty = not bool(slots.any())
        full = [True, *(bool(level.all()) for level in levels[-2::-1])]
        self._full = full
        self.full_to = [*full, False].index(False) - 1  # all nodes of the levels down to this one may be entered
        self._allowed_nodes: dict[int, Tensor | None] = {}

    def map(self, move: Callable[[Tensor], Tensor]) -> "NodeMask":
        """The same mask, its tensor moved by a function."""
        mask = NodeMask.__new__(NodeMask)
        mask.arity, mask.height, mask._full, mask.full_to = self.arity, self.height, self._full, self.full_to
        mask.entered, mask.is_empty = move(self.entered), self.is_empty
        mask._allowed_nodes = {}
        return mask

    @property
    def slots(self) -> Tensor:
        """Whether each leaf is allowed, from left to right [b^H]."""
        return self.entered[level_span(self.arity, self.height).start :]

    def allows(self, nodes: Tensor) -> Tensor:
        """Whether nodes may be entered, in any shape; the root may, PAD may not."""
        return (nodes == 0) | self.entered.take(nodes.clamp(min=0))

    def mask_out(self, nodes: Tensor) -> Tensor:
        """The same nodes, in place, with PAD for those that may not be entered; anything below 0 counts as PAD."""
        nodes.clamp_(min=0)  # so that PAD's arithmetic ends at the root
        return nodes.masked_fill_(self.entered.take(nodes).logical_not_(), PAD)

    def blocked(self, level: int) -> Tensor | None:
        """Which nodes of a level may not be entered [|N_h|] bool; None where all may."""
        if self._full[level]:
            return None
        span = level_span(self.arity, level)
        return ~self.entered[span.start : span.stop]

    def allowed_nodes(self, level: int) -> Tensor | None:
        """The nodes of a level that may be entered, in order; None where all may."""
        if level not in self._allowed_nodes:
            blocked = self.blocked(level)
            nodes = None if blocked is None else (~blocked).nonzero().squeeze(1)
            self._allowed_nodes[level] = nodes if nodes is None else nodes + level_span(self.arity, level).start
        return self._allowed_nodes[level]

    def nodes(self, level: int) -> Tensor:
        """Every node of a level that may be entered."""
        span, nodes = level_span(self.arity, level), self.allowed_nodes(level)
        return torch.arange(span.start, span.stop, device=self.entered.device) if nodes is None else nodes

    def count(self, level: int) -> int:
        """How many nodes of a level may be entered."""
        nodes = self.allowed_nodes(level)
        return len(level_span(self.arity, level)) if nodes is None else len(nodes)

    @property
    def num_slots(self) -> int:
        """b^H."""
        return int(self.arity**self.height)

    @cached_property
    def num_leaves(self) -> int:
        """How many leaves may be entered."""
        return int(self.slots.count_nonzero())

    # Leaves excluded for single users

    @cached_property
    def _allowed_before(self) -> Tensor:
        """How many leaves are allowed before each [b^H + 1]."""
        return torch.nn.functional.pad(self.slots.cumsum(0, dtype=torch.int32), (1, 0))

    def excluded(self, leaves: Tensor) -> Tensor:
        """For `keep_for`: the allowed slots among the leaves [B, E] excluded for each user, sorted, each once."""
        none = self.arity**self.height  # past the last slot
        slots = leaves - level_span(self.arity, self.height).start
        slots = slots.where(self.allows(leaves) & (leaves != PAD), none).sort(dim=1).values
        repeated = torch.zeros_like(slots, dtype=torch.bool)
        repeated[:, 1:] = slots[:, 1:] == slots[:, :-1]
        return slots.masked_fill(repeated, none).sort(dim=1).values

    def keep_for(self, excluded: Tensor, level: int, nodes: Tensor) -> Tensor:
        """Nodes [B or 1, W] of a level, with PAD where all allowed leaves below are excluded for a user [B, W]."""
        nodes = nodes.expand(len(excluded), -1)
        width = self.arity ** (self.height - level)
        first = ((nodes - level_span(self.arity, level).start) * width).clamp_(min=0)
        last = first + width
        allowed = self._allowed_before[last] - self._allowed_before[first]
        hidden = torch.searchsorted(excluded, last) - torch.searchsorted(excluded, first)
        return nodes.masked_fill(hidden >= allowed, PAD)

"""T: a complete b-ary tree whose leaves hold the items (Sec. 3.2)."""

import copy
import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from beamtree.mask import PAD, NodeMask, level_span

__all__ = ["PAD", "Tree", "distinct", "first_of_each", "height_for"]


def height_for(slots: int, arity: int) -> int:
    """H: the fewest levels below the root that give at least `slots` leaves; at least one."""
    if arity < 2:
        raise ValueError(f"arity={arity}: a tree needs at least 2 children per node")
    height, leaves = 1, arity
    while leaves < slots:
        height, leaves = height + 1, leaves * arity
    return height


def first_of_each(rows: Tensor) -> Tensor:
    """Which entries of sorted rows [B, P] are the first of their value: repeats and PAD are not."""
    first = rows != PAD
    first[:, 1:] &= rows[:, 1:] != rows[:, :-1]
    return first


def distinct(rows: Tensor) -> Tensor:
    """The values of rows [B, P] in rising order, with PAD instead of repeats."""
    rows = rows.sort(dim=1).values
    return rows.where(first_of_each(rows), PAD)


class Tree:
    """T and π: which item sits on which leaf of a complete b-ary tree.

    Node ids run level by level from the root, 0, and the children of n are bn+1 … bn+b, so everything
    but the position of the items is arithmetic. Every method maps PAD to PAD.

    `mask` says which nodes may be entered: those with an item below that is not hidden.

    Args:
        items: the leaf slots from left to right, PAD for an empty one; missing slots at the end are empty.
        arity: b.
        admit_empty: whether empty nodes may be entered, as in the authors' code; for the paper's tables only.
        num_items: M, if some items have no leaf: their leaf is PAD.
        hidden: items that keep their leaf, which may not be entered.
    """

    def __init__(
        self,
        items: Tensor | Sequence[int],
        arity: int = 2,
        *,
        admit_empty: bool = False,
        num_items: int | None = None,
        hidden: Tensor | Sequence[int] = (),
    ) -> None:
        items = torch.as_tensor(items, dtype=torch.int64)
        self.arity = arity
        self.height = height_for(len(items), arity)
        self.admit_empty = admit_empty
        slots = torch.full((arity**self.height,), PAD, device=items.device)
        slots[: len(items)] = items
        self._item_of_slot = slots  # [b^H]
        leaves = self._invert(slots, num_items)
        self._leaf_of_item = torch.nn.functional.pad(leaves, (0, 1), value=PAD)  # [M + 1], PAD last
        self._starts = torch.tensor([self.level(h).start for h in range(self.height + 1)], device=items.device)
        self._offsets = torch.arange(1, arity + 1, device=items.device)
        self._set_hidden(torch.as_tensor(hidden, dtype=torch.int64, device=items.device))

    def _set_hidden(self, items: Tensor) -> None:
        """Hide these items and no others; items without a leaf are ignored."""
        self.check_items(items)
        leaves = self._leaf_of_item[items]
        slots = self._item_of_slot
        self._hidden = torch.zeros_like(slots, dtype=torch.bool)  # [b^H]
        self._hidden[leaves[leaves != PAD] - self.level(self.height).start] = True
        filled = torch.ones_like(self._hidden) if self.admit_empty else slots != PAD
        self.mask = NodeMask(filled & ~self._hidden, self.arity)
        self._fingerprint = ""

    def _invert(self, slots: Tensor, num_items: int | None) -> Tensor:
        filled = (slots != PAD).nonzero().squeeze(1)
        if len(filled) == 0 and not num_items:
            raise ValueError("a tree needs at least one item")
        items, count = slots[filled], len(filled) if num_items is None else num_items
        outside = items[(items < 0) | (items >= count)]
        if len(outside):
            first = int(outside.min())
            raise ValueError(f"item {first} is outside 0…{count - 1}: number the items from 0 without gaps")
        leaves = items.new_full((count,), PAD)
        leaves[items] = filled + self.level(self.height).start
        if int((leaves != PAD).sum()) < len(items):
            order = items.sort().values
            repeated = order[1:][order[1:] == order[:-1]]
            raise ValueError(f"item {int(repeated[0])} sits on more than one leaf: place every item once")
        return leaves

    # Shape

    @property
    def num_items(self) -> int:
        """M."""
        return len(self._leaf_of_item) - 1

    @property
    def num_placed(self) -> int:
        """The items that have a leaf."""
        return int((self._leaf_of_item != PAD).sum())

    @property
    def num_visible(self) -> int:
        """The items that have a leaf and are not hidden."""
        return int((self.visible() != PAD).sum())

    @property
    def num_nodes(self) -> int:
        """|N|, empty nodes included."""
        return self.level(self.height).stop

    @property
    def device(self) -> torch.device:
        return self._leaf_of_item.device

    def to(self, device: torch.device | str) -> "Tree":
        """A copy of the tree on another device."""
        return self.map(lambda part: part.to(device))

    def map(self, move: Callable[[Tensor], Tensor]) -> "Tree":
        """A copy of the tree, its tensors moved by a function."""
        tree = copy.copy(self)
        tree._item_of_slot = move(self._item_of_slot)
        tree._leaf_of_item = move(self._leaf_of_item)
        tree._starts = move(self._starts)
        tree._offsets = move(self._offsets)
        tree._hidden = move(self._hidden)
        tree.mask = self.mask.map(move)
        return tree

    def level(self, level: int) -> range:
        """N_h: the ids of all nodes of one level."""
        return level_span(self.arity, level)

    def with_extra_level(self) -> "Tree":
        """The same tree with one more level: every item moves to the first child of its leaf."""
        slots = self._item_of_slot.new_full((len(self._item_of_slot) * self.arity,), PAD)
        slots[:: self.arity] = self._item_of_slot
        return self.with_items(slots, self.num_items)

    def with_items(self, slots: Tensor, num_items: int) -> "Tree":
        """A tree of the same kind with items of 0 … num_items - 1 on these slots; hidden items stay hidden."""
        return Tree(slots, self.arity, admit_empty=self.admit_empty, num_items=num_items, hidden=self.hidden())

    def with_hidden(self, items: Tensor) -> "Tree":
        """The same tree, in which these items are hidden and no others."""
        tree = copy.copy(self)
        tree._set_hidden(items.to(self.device))
        return tree

    # Relatives: any shape in, the same shape (children, path: one more axis) out

    def parent(self, nodes: Tensor) -> Tensor:
        """ρ(n); the root's parent is PAD."""
        return torch.div(nodes - 1, self.arity, rounding_mode="floor")  # -1 stays -1

    def children(self, nodes: Tensor, level: int | None = None, mask: NodeMask | None = None) -> Tensor:
        """C(n) [..., b], PAD for a child that may not be entered. Default mask: that of the tree.

        If all nodes are on one `level`, the mask is not read where it is full down to the level below.
        """
        mask = mask or self.mask
        children = torch.add(self._offsets, nodes.unsqueeze(-1), alpha=self.arity)
        if level is not None and level < mask.full_to:
            return children
        return mask.mask_out(children)

    def level_of(self, nodes: Tensor) -> Tensor:
        """h of each node; PAD for PAD."""
        return torch.bucketize(nodes, self._starts, right=True) - 1

    def ancestor(self, nodes: Tensor, level: int) -> Tensor:
        """ρ^{h'-h}(n): the ancestor on `level` of nodes that lie on that level or below."""
        depth = self.level_of(nodes)
        below = (depth - level).clamp(min=0)
        offset = nodes - self._starts[depth.clamp(min=0)]
        lifted = torch.div(offset, self.arity**below, rounding_mode="floor")
        return torch.where(nodes == PAD, PAD, lifted + self.level(level).start)

    def lift(self, leaves: Tensor, levels: range) -> Tensor:
        """The ancestors of leaves on each of some levels, one after another [len(levels), ...]."""
        up = range(self.height - levels.start, self.height - levels.stop, -1)  # levels to go up
        starts = self._starts[: up.start + 1].flip(0)[: len(up)].view(-1, *[1] * leaves.dim())
        # k times up from n is ⌊(n - start of level k) / b^k⌋, and the start of level k is (b^k - 1) / (b - 1).
        return torch.div(leaves - starts, starts * (self.arity - 1) + 1, rounding_mode="floor")  # -1 stays -1

    def path(self, nodes: Tensor) -> Tensor:
        """Path(n) of nodes of one level, without the root [..., h]: level 1 first, n itself last."""
        steps = [nodes]
        while bool((steps[-1] > self.arity).any()):
            steps.append(self.parent(steps[-1]))
        return torch.stack(steps[::-1], dim=-1)

    def leaves(self, node: int) -> range:
        """L(n): the leaf nodes below one node."""
        span = range(node, node + 1)
        while span.stop <= self.level(self.height).start:
            span = range(span.start * self.arity + 1, span.stop * self.arity + 1)
        return span

    # Items

    def item_of_leaf(self, leaves: Tensor) -> Tensor:
        """π: the item on each leaf node, PAD for an empty one."""
        slots = (leaves - self.level(self.height).start).clamp(min=0)
        return self._item_of_slot.take(slots).where(leaves != PAD, PAD)

    def leaf_of_item(self, items: Tensor) -> Tensor:
        """π⁻¹: the leaf node of each item."""
        return self._leaf_of_item.take(items)  # PAD, -1, takes the last

    def check_items(self, items: Tensor) -> None:
        """Raise a ValueError that names the first item outside the tree."""
        if not items.numel():
            return
        least, most = torch.aminmax(items)
        if int(least) < PAD or int(most) >= self.num_items:
            outside = (items < PAD) | (items >= self.num_items)
            raise ValueError(
                f"item {int(items[outside][0])} is not in the tree, which holds items 0…{self.num_items - 1}"
            )

    def allow(self, items: Tensor) -> NodeMask:
        """The mask of a search for these items only; repeats and PAD are ignored."""
        items = items.flatten().to(self.device)
        self.check_items(items)
        slots = torch.zeros_like(self._item_of_slot, dtype=torch.bool)
        leaves = self._leaf_of_item[items]
        slots[leaves[leaves != PAD] - self.level(self.height).start] = True
        return NodeMask(slots & ~self._hidden, self.arity)

    def hidden(self) -> Tensor:
        """The hidden items."""
        return self._item_of_slot[self._hidden]

    def visible(self) -> Tensor:
        """The leaf slots from left to right, PAD for one that is empty or whose item is hidden [b^H]."""
        return self._item_of_slot.masked_fill(self._hidden, PAD)

    def mask_of(self, allowed: NodeMask | Tensor | None) -> NodeMask:
        """A mask as it is, the mask of some items, or that of the tree."""
        return self.allow(allowed) if isinstance(allowed, Tensor) else allowed or self.mask

    # Draws

    def sample(self, level: int, rows: int, count: int, generator: torch.Generator) -> Tensor:
        """`count` distinct nodes of one level for each row [rows, count], every node equally likely.

        The level is cut into `count` runs of nodes, one is drawn from each, and every row rotates the result
        by its own random step: distinct without sorting, each node drawn uniformly and independently of other
        rows, at a cost that does not grow with the level. A level of at most `count` nodes is returned
        completely, shared by all rows [1, ≤ count].
        """
        nodes = self.mask.allowed_nodes(level)
        span = self.level(level)
        device = generator.device
        if count >= (size := len(span) if nodes is None else len(nodes)):
            return self.mask.nodes(level).unsqueeze(0)
        edges = torch.arange(count + 1, device=device) * size // count
        drawn = torch.rand(count, generator=generator, device=device)
        start = span.start if nodes is None else 0
        picked = start + edges[:-1] + (drawn * edges.diff()).long()
        picked = picked + torch.randint(size, (rows, 1), generator=generator, device=device)
        picked = torch.where(picked < start + size, picked, picked - size)
        return picked if nodes is None else nodes[picked]

    # Identity

    def items(self) -> Tensor:
        """The leaf slots from left to right, PAD for an empty one: the first argument of `Tree` [b^H]."""
        return self._item_of_slot

    def fingerprint(self) -> str:
        """A checksum of the tree: arity, items on leaves, `admit_empty` and hidden items."""
        if not self._fingerprint:
            digest = hashlib.sha256(f"{self.arity},{self.height},{self.admit_empty},".encode())
            digest.update(self._item_of_slot.cpu().numpy().data)
            if bool(self._hidden.any()):
                digest.update(self._hidden.cpu().numpy().data)
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint

    def __repr__(self) -> str:
        return f"Tree(num_items={self.num_items}, arity={self.arity}, height={self.height})"

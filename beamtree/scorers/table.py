"""The one door to per-node parameters."""

import math
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from beamtree.data.seeds import mix
from beamtree.distributed.exchange import Dealt
from beamtree.tree import PAD, Tree


class NodeTable(nn.Module):
    """One row of parameters per node, drawn from N(0, scale²); without a seed, room for rows that will be loaded."""

    def __init__(
        self, num_nodes: int, dim: int, scale: float = 1.0, seed: int | None = 0, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_nodes, dim, dtype=dtype))
        if seed is not None:
            # Mixed, so that data made from the same seed do not turn up as weights.
            generator = torch.Generator().manual_seed(mix(seed, 2))
            nn.init.normal_(self.weight, std=scale, generator=generator)
        self._kept: tuple[tuple[object, ...], Tree, Tensor] | None = None
        self._spare: tuple[Tensor, Tensor] | None = None  # a gradient that is 0 throughout, with its marks
        self.touched: Tensor | None = None  # uint8 [num_nodes]: 1 where the gradient of a step may not be 0

    @property
    def num_nodes(self) -> int:
        """Rows of the whole table."""
        return len(self.weight)

    def rows(self, nodes: Tensor) -> Tensor:
        """The rows of nodes [..., dim]; some row where a node is PAD."""
        return nn.functional.embedding(nodes.clamp(min=0), self.weight)

    def span(self, nodes: range) -> Tensor:
        """The rows of neighbouring nodes, such as a level [len(nodes), dim], without a copy."""
        return self.weight[nodes.start : nodes.stop]

    def place(self, level: int, nodes: Tensor) -> Tensor:
        """Which rows are those of nodes of a level, PAD for PAD: of their own numbers, unless others have a part."""
        return nodes

    def add_up(self, level: int, values: Tensor) -> Tensor:
        """What was read of nodes of a level, on ranks that each have a part of the table and 0 for all others."""
        return values

    @torch.no_grad()
    def start_from(self, tree: Tree, of_items: Dealt, *, share: bool) -> None:
        """Add to the rows what makes every node's vector the mean of the items' below it.

        Vectors are [M, ≤ dim]; with `share` a row holds what its node differs by from its parent.
        """
        vectors = of_items.whole()
        slots = tree.items().to(vectors.device)
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

    @torch.no_grad()
    def of_items(self, tree: Tree, *, share: bool) -> Tensor:
        """The vectors of the items' leaves [M, dim]."""
        return self.read(tree, share=share).at(tree.leaf_of_item(torch.arange(tree.num_items, device=tree.device)))

    @torch.no_grad()
    def on_tree(self, old: Tree, new: Tree, *, share: bool) -> Tensor:
        """Rows for another tree over the same items [num_nodes of the new one, dim]: what was learned follows them.

        A node's vector is the mean, over the items that now lie below it, of the vectors that lay above each of them on
        this level; a leaf's is that of its item's leaf. On the same tree nothing changes. Where nothing lies below, a
        row stays if the trees are of one shape, and is 0 if not.
        """
        vectors = self.read(old, share=share).values
        same = (old.arity, old.height) == (new.arity, new.height)
        rows = vectors.clone() if same else vectors.new_zeros(new.num_nodes, vectors.shape[1])
        leaves = torch.stack([tree.leaf_of_item(torch.arange(new.num_items, device=new.device)) for tree in (old, new)])
        was, now = leaves[:, (leaves != PAD).all(0)]  # of items that both hold
        for level in range(new.height + 1):
            span = new.level(level)
            place = new.ancestor(now, level) - span.start
            count = torch.bincount(place, minlength=len(span)).unsqueeze(1)
            sums = rows.new_zeros(len(span), rows.shape[1])
            sums.index_add_(0, place, vectors[old.ancestor(was, same_depth(new, level, old))])
            rows[span.start : span.stop] = torch.where(count > 0, sums / count, rows[span.start : span.stop])
        if share:
            for level in range(new.height, 0, -1):
                span, above = new.level(level), new.level(level - 1)
                families = rows[span.start : span.stop].view(len(above), new.arity, -1)
                families -= rows[above.start : above.stop].unsqueeze(1)
        return rows

    @torch.no_grad()
    def deeper(self, old: Tree, *, share: bool) -> Tensor:
        """Rows for a tree with a level more, in which new leaves have the vectors of their parents."""
        rows = self.weight[: old.num_nodes]
        last = self.span(old.level(old.height)).repeat_interleave(old.arity, dim=0)
        return torch.cat([rows, torch.zeros_like(last) if share else last])

    def read(self, tree: Tree, *, share: bool) -> "Vectors":
        """Every node's vector for one step: its row, with `share` the sum of the rows on its path."""
        values, learning = self._values(tree, share)
        return Vectors(values, self.weight, _Gathered(self, tree, share) if learning else None)

    def _values(self, tree: Tree, share: bool) -> tuple[Tensor, bool]:
        """What a step reads of the rows that are here, and whether it learns."""
        learning = torch.is_grad_enabled() and self.weight.requires_grad
        if learning:
            self._kept = None
        with torch.no_grad():
            values = self.weight.detach()
            if share:
                values = self._sum_paths(tree) if learning else self.vectors(tree)
        return values, learning

    def blank(self) -> tuple[Tensor, Tensor]:
        """A gradient of 0 [num_nodes, dim] and its marks [num_nodes]: the spare ones, if there are any."""
        if self._spare is None:
            marks = torch.zeros(len(self.weight), dtype=torch.uint8, device=self.weight.device)
            self._spare = torch.zeros_like(self.weight, requires_grad=False), marks
        blank, self._spare = self._spare, None
        return blank

    def keep_blank(self, grad: Tensor, touched: Tensor) -> None:
        """Take back a gradient that is 0 throughout, so that the next step need not write zeros over a whole table."""
        self._spare = grad, touched

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
        if torch.is_grad_enabled() and self.weight.requires_grad:
            levels = [self.span(tree.level(0))]
            for level in range(1, tree.height + 1):
                levels.append(self.span(tree.level(level)) + levels[-1].repeat_interleave(tree.arity, dim=0))
            return torch.cat(levels)
        sums = torch.empty_like(self.weight, requires_grad=False)  # written once: a large table has no room for more
        sums[0] = self.weight[0]
        for level in range(1, tree.height + 1):
            span, above = tree.level(level), tree.level(level - 1)
            families = (len(above), tree.arity, -1)
            parents = sums[above.start : above.stop].unsqueeze(1)
            torch.add(self.span(span).view(families), parents, out=sums[span.start : span.stop].view(families))
        return sums


class Gathers(Protocol):
    """Where the gradients of the vectors of one step gather."""

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Where to add gradients, and where to mark their rows with 1."""
        ...

    def add(self, nodes: Tensor, grads: Tensor) -> None: ...

    def finish(self) -> None: ...


class Vectors:
    """The vectors of nodes as one step reads them, and the one place where their gradients gather.

    The gradient of an ordinary lookup is a table of its own, as long as the tree has nodes. Here every lookup of a step
    adds to one such table, `weight.grad`, and marks the rows it touched, so that an optimiser may pass over the others.
    """

    def __init__(self, values: Tensor, weight: Tensor, gathered: "Gathers | None") -> None:
        self.values = values  # [num_nodes, dim]
        self.gathered = gathered  # None where nothing is learned
        self.link = None if gathered is None else _Link.apply(weight, gathered)  # type: ignore[no-untyped-call]

    @property
    def kept(self) -> Tensor:
        """The vectors of all nodes, or of the first levels, as they stay from step to step until a weight changes."""
        return self.values

    def place(self, found: list[tuple[int, Tensor]]) -> list[Tensor]:
        """Where in `values` nodes of each of some levels are, PAD for PAD: at their own numbers, unless spread."""
        return [nodes for _, nodes in found]

    def place_levels(self, nodes: Tensor) -> Tensor:
        """The same for nodes of all levels, one after another [H + 1, ...]."""
        return nodes

    def add_up(self, sums: Tensor, levels: range) -> Tensor:
        """Sums over vectors of levels [..., len(levels), dim], where each rank adds those that it has."""
        return sums

    def at(self, nodes: Tensor) -> Tensor:
        """The vectors at places [..., dim]; some vector where a node is PAD, whose gradient must then be 0."""
        if self.gathered is None:
            return _look_up(self.values, nodes)
        rows: Tensor = _At.apply(self.link, self.values, self.gathered, nodes)  # type: ignore[no-untyped-call]
        return rows


class _Gathered:
    """The gradient of the vectors of one step."""

    def __init__(self, table: NodeTable, tree: Tree, share: bool) -> None:
        self.table, self.tree, self.share = table, tree, share
        self._found: tuple[Tensor, Tensor] | None = None

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Where to add gradients [num_nodes, dim], and where to mark their rows with 1 [num_nodes]."""
        if self._found is None:
            self._found = self.table.blank()
        return self._found

    def add(self, nodes: Tensor, grads: Tensor) -> None:
        total, touched = self.buffers()
        rows = nodes.clamp(min=0).flatten()
        total.index_add_(0, rows, grads.reshape(-1, total.shape[1]))
        touched.index_fill_(0, rows, 1)

    def finish(self) -> None:
        """Hand the sum to the table's weight: a shared row gets the gradients of all vectors that it is a part of."""
        total, touched = self.buffers()
        self._found = None
        if self.share:
            for level in range(self.tree.height, 0, -1):
                span, above = self.tree.level(level), self.tree.level(level - 1)
                families = total[span.start : span.stop].view(len(above), self.tree.arity, -1)
                total[above.start : above.stop] += families.sum(1)
                marks = touched[span.start : span.stop].view(len(above), self.tree.arity)
                touched[above.start : above.stop] |= marks.amax(1)
        weight = self.table.weight
        if weight.grad is None:
            weight.grad, self.table.touched = total, touched
        else:  # of an earlier backward pass
            weight.grad += total
            if self.table.touched is not None:
                self.table.touched |= touched


class _Link(torch.autograd.Function):
    """Stands in the graph for the table: its turn comes when every lookup has added its gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, gathered: Gathers) -> Tensor:
        ctx.gathered = gathered
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        ctx.gathered.finish()
        return None, None


class _At(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, link: Tensor, values: Tensor, gathered: Gathers, nodes: Tensor) -> Tensor:
        ctx.gathered = gathered
        ctx.save_for_backward(nodes)
        return _look_up(values, nodes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.gathered.add(*ctx.saved_tensors, grads[0])
        return grads[0].new_zeros(()), None, None, None


def same_depth(tree: Tree, level: int, other: Tree) -> int:
    """The level of another tree that has about as many nodes; its leaves for the leaves."""
    if level == tree.height:
        return other.height
    return min(round(level * math.log(tree.arity) / math.log(other.arity)), other.height)


def _look_up(values: Tensor, nodes: Tensor) -> Tensor:
    return values.index_select(0, nodes.clamp(min=0).flatten()).view(*nodes.shape, values.shape[1])

"""The table of per-node parameters, and how the gradients of one step are collected for it."""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from beamtree.data.seeds import mix
from beamtree.tree import PAD, Tree


class NodeTable(nn.Module):
    """One row of parameters per node, drawn from N(0, scale²); without a seed, uninitialised rows to be loaded."""

    capturable = True  # whether a CUDA graph can read it

    def __init__(
        self, num_nodes: int, dim: int, scale: float = 1.0, seed: int | None = 0, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_nodes, dim, dtype=dtype))
        if seed is not None:
            # Mixed, so that data generated from the same seed are not the same numbers.
            generator = torch.Generator().manual_seed(mix(seed, 2))
            nn.init.normal_(self.weight, std=scale, generator=generator)
        self._cached: tuple[tuple[object, ...], Tree, Tensor] | None = None  # path sums, and what they were made from
        self._spare: tuple[Tensor, Tensor] | None = None  # a gradient of zeros, and its marks
        self.touched: Tensor | None = None  # uint8 [num_nodes]: 1 where the gradient of a step may not be 0

    @classmethod
    def from_rows(cls, rows: Tensor) -> "NodeTable":
        """A table of given rows."""
        table = cls(0, rows.shape[1], seed=None, dtype=rows.dtype)
        table.weight = nn.Parameter(rows)
        return table

    @classmethod
    def of_maxima(cls, tree: Tree, values: Tensor) -> "NodeTable":
        """An untrained table of halves: the values of items [M, dim] at leaves, above them the largest below."""
        slots = tree.items()
        best = torch.where((slots != PAD).unsqueeze(1), values.to(slots.device)[slots.clamp(min=0)], 0.0)
        levels = [best]
        for _ in range(tree.height):
            best = best.view(-1, tree.arity, values.shape[1]).amax(1)
            levels.append(best)
        return cls.from_rows(torch.cat(levels[::-1]).half()).requires_grad_(False)

    @property
    def num_nodes(self) -> int:
        return len(self.weight)

    def rows(self, nodes: Tensor) -> Tensor:
        """The rows of nodes [..., dim]; any row where a node is PAD."""
        return nn.functional.embedding(nodes.clamp(min=0), self.weight)

    def span(self, nodes: range) -> Tensor:
        """The rows of consecutive nodes, such as a level [len(nodes), dim], without a copy."""
        return self.weight[nodes.start : nodes.stop]

    @torch.no_grad()
    def add_means(self, tree: Tree, vectors: Tensor, *, share: bool) -> None:
        """Add to the rows what makes the vector of every node the mean of those of the items below it.

        Vectors are [M, ≤ dim]; with `share` a row holds the difference from its parent.
        """
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
    def means_on(self, old: Tree, new: Tree) -> "NodeTable":
        """A table for another tree whose rows are the means of the items' vectors below each node."""
        vectors = self.of_items(old, share=False).float()
        table = NodeTable.from_rows(vectors.new_zeros(new.num_nodes, vectors.shape[1]))
        table.add_means(new, vectors, share=False)
        return table

    @torch.no_grad()
    def on_tree(self, old: Tree, new: Tree, *, share: bool) -> "NodeTable":
        """A table for another tree over the same items: what was learned follows them.

        The vector of a node is the mean, over the items that now lie below it, of the vectors that were above each of
        them on this level; that of a leaf is that of its item's leaf. On the same tree nothing changes. Where nothing
        lies below, a row stays if the trees have one shape, and is 0 if not.
        """
        vectors = self.read(old, share=share).values
        same = (old.arity, old.height) == (new.arity, new.height)
        rows = vectors.clone() if same else vectors.new_zeros(new.num_nodes, vectors.shape[1])
        leaves = torch.stack([tree.leaf_of_item(torch.arange(new.num_items, device=new.device)) for tree in (old, new)])
        before, after = leaves[:, (leaves != PAD).all(0)]  # of items on both trees
        for level in range(new.height + 1):
            span = new.level(level)
            index = new.ancestor(after, level) - span.start
            count = torch.bincount(index, minlength=len(span)).unsqueeze(1)
            sums = rows.new_zeros(len(span), rows.shape[1])
            sums.index_add_(0, index, vectors[old.ancestor(before, same_depth(new, level, old))])
            rows[span.start : span.stop] = torch.where(count > 0, sums / count, rows[span.start : span.stop])
        if share:
            for level in range(new.height, 0, -1):
                span, above = new.level(level), new.level(level - 1)
                siblings = rows[span.start : span.stop].view(len(above), new.arity, -1)
                siblings -= rows[above.start : above.stop].unsqueeze(1)
        return NodeTable.from_rows(rows)

    @torch.no_grad()
    def with_extra_level(self, old: Tree, *, share: bool) -> "NodeTable":
        """A table for a tree with one more level, in which new leaves have the vectors of their parents."""
        rows = self.weight[: old.num_nodes]
        last = self.span(old.level(old.height)).repeat_interleave(old.arity, dim=0)
        table = NodeTable.from_rows(torch.cat([rows, torch.zeros_like(last) if share else last]))
        table.weight.requires_grad_(self.weight.requires_grad)
        return table

    def read(self, tree: Tree, *, share: bool) -> "Vectors":
        """The vectors of all nodes for one step: rows, or with `share` the sums of the rows on their paths."""
        values, learning = self._values(tree, share)
        return Vectors(values, self.weight, _TableGradients(self, tree, share) if learning else None)

    def _values(self, tree: Tree, share: bool) -> tuple[Tensor, bool]:
        """The vectors that a step reads, and whether it learns."""
        learning = torch.is_grad_enabled() and self.weight.requires_grad
        if learning:
            self._cached = None
        with torch.no_grad():
            if not share:
                return self.weight.detach(), learning
            return (self._sum_paths(tree) if learning else self.vectors(tree)), learning

    def zeros(self) -> tuple[Tensor, Tensor]:
        """A gradient of 0 [num_nodes, dim] and its marks [num_nodes]: the spare ones, if there are any."""
        if self._spare is None:
            marks = torch.zeros(len(self.weight), dtype=torch.uint8, device=self.weight.device)
            self._spare = torch.zeros_like(self.weight, requires_grad=False), marks
        spare, self._spare = self._spare, None
        return spare

    def reuse_zeros(self, grad: Tensor, touched: Tensor) -> None:
        """Reuse a gradient that is 0 throughout, so that the next step need not write zeros over the table."""
        self._spare = grad, touched

    def vectors(self, tree: Tree) -> Tensor:
        """The sum of each node's row and the rows of all above it [num_nodes, dim].

        Where nothing is learned they are cached until a weight or the tree changes.
        """
        if torch.is_grad_enabled():
            self._cached = None
            return self._sum_paths(tree)
        cached = self._cached  # read once: another thread may replace it
        if cached is not None and cached[0] == self._state() and cached[1] is tree:
            return cached[2]
        return self.cache_vectors(tree, self._sum_paths(tree))

    def cache_vectors(self, tree: Tree, vectors: Tensor) -> Tensor:
        """Use these as the vectors of the rows as they are now."""
        self._cached = (self._state(), tree, vectors)
        return vectors

    def _state(self) -> tuple[object, ...]:
        return self.weight._version, self.weight.data_ptr(), self.weight.device

    def _sum_paths(self, tree: Tree) -> Tensor:
        if torch.is_grad_enabled() and self.weight.requires_grad:
            levels = [self.span(tree.level(0))]
            for level in range(1, tree.height + 1):
                levels.append(self.span(tree.level(level)) + levels[-1].repeat_interleave(tree.arity, dim=0))
            return torch.cat(levels)
        sums = torch.empty_like(self.weight, requires_grad=False)  # written once: a large table leaves no room for more
        sums[0] = self.weight[0]
        for level in range(1, tree.height + 1):
            span, above = tree.level(level), tree.level(level - 1)
            siblings = (len(above), tree.arity, -1)
            parents = sums[above.start : above.stop].unsqueeze(1)
            torch.add(self.span(span).view(siblings), parents, out=sums[span.start : span.stop].view(siblings))
        return sums


class Gradients(ABC):
    """Collects the gradients of the vectors of one step."""

    @abstractmethod
    def buffers(self) -> tuple[Tensor, Tensor]:
        """The tensor that gradients are added to, and the one that marks their rows with 1."""

    @abstractmethod
    def finish(self) -> None:
        """All gradients of the step are collected."""

    def add(self, rows: Tensor, grads: Tensor) -> None:
        total, touched = self.buffers()
        rows = rows.clamp(min=0).flatten()
        total.index_add_(0, rows, grads.reshape(-1, total.shape[1]))
        touched.index_fill_(0, rows, 1)


class Vectors:
    """The vectors of nodes as one step reads them, and the one place where their gradients are collected.

    The gradient of an ordinary lookup is a table of its own, as long as the tree has nodes. Here every lookup of a step
    adds to one such table, `weight.grad`, and marks the rows it touched, so that an optimiser may skip the others.
    """

    def __init__(self, values: Tensor, weight: Tensor, gradients: Gradients | None) -> None:
        self.values = values  # [num_nodes, dim]
        self.gradients = gradients  # None where nothing is learned
        self.link = None if gradients is None else _Link.apply(weight, gradients)  # type: ignore[no-untyped-call]

    def index(self, levels: list[tuple[int, Tensor]]) -> list[Tensor]:
        """The rows of `values` for nodes of each of some levels, PAD for PAD: here their own numbers."""
        return [nodes for _, nodes in levels]

    def index_levels(self, nodes: Tensor) -> Tensor:
        """The same for nodes of all levels, one after another [H + 1, ...]."""
        return nodes

    def at(self, rows: Tensor) -> Tensor:
        """Rows of `values` [..., dim]; any row for PAD, whose gradient must then be 0."""
        if self.gradients is None:
            return _look_up(self.values, rows)
        vectors: Tensor = _At.apply(self.link, self.values, self.gradients, rows)  # type: ignore[no-untyped-call]
        return vectors


class _TableGradients(Gradients):
    """The gradients of the vectors of one step, for a whole table."""

    def __init__(self, table: NodeTable, tree: Tree, share: bool) -> None:
        self.table, self.tree, self.share = table, tree, share
        self._buffers: tuple[Tensor, Tensor] | None = None

    def buffers(self) -> tuple[Tensor, Tensor]:
        """[num_nodes, dim] and [num_nodes]."""
        if self._buffers is None:
            self._buffers = self.table.zeros()
        return self._buffers

    def finish(self) -> None:
        """Give the sum to the table's weight: a shared row gets the gradients of all vectors that it is a part of."""
        total, touched = self.buffers()
        self._buffers = None
        if self.share:
            for level in range(self.tree.height, 0, -1):
                span, above = self.tree.level(level), self.tree.level(level - 1)
                siblings = total[span.start : span.stop].view(len(above), self.tree.arity, -1)
                total[above.start : above.stop] += siblings.sum(1)
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
    """Stands for the table in the autograd graph: its backward runs when every lookup has added its gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, gradients: Gradients) -> Tensor:
        ctx.gradients = gradients
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        ctx.gradients.finish()
        return None, None


class _At(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, link: Tensor, values: Tensor, gradients: Gradients, nodes: Tensor) -> Tensor:
        ctx.gradients = gradients
        ctx.save_for_backward(nodes)
        return _look_up(values, nodes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.gradients.add(*ctx.saved_tensors, grads[0])
        return grads[0].new_zeros(()), None, None, None


def same_depth(tree: Tree, level: int, other: Tree) -> int:
    """The level of another tree that has about as many nodes; its leaves for the leaves."""
    if level == tree.height:
        return other.height
    return min(round(level * math.log(tree.arity) / math.log(other.arity)), other.height)


def _look_up(values: Tensor, nodes: Tensor) -> Tensor:
    return values.index_select(0, nodes.clamp(min=0).flatten()).view(*nodes.shape, values.shape[1])

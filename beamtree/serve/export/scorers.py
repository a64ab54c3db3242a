"""The scorers in operations that `torch.export` can trace, with the same scores.

The scorers of the package cache tensors and use numpy on a CPU and Triton on a GPU. Here shapes depend on the number of
users only, and every table is a buffer. Nodes are [B, W]; scores at PAD are arbitrary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from beamtree.data.views import HISTORY
from beamtree.scorers import (
    ContextScorer,
    DeepScorer,
    FactorScorer,
    LinearScorer,
    MemoryScorer,
    PopularityScorer,
    RepeatScorer,
    Scorer,
    SequenceScorer,
    SumScorer,
)
from beamtree.scorers.deep import HIDDEN, window_shares
from beamtree.scorers.factors import Factors, fold_in, newest_of_each
from beamtree.scorers.memory import SubtreeMaxScorer
from beamtree.scorers.sequence import oldest_first
from beamtree.tree import PAD, Tree

Context = list[Any]  # private to the scorer that made it


class ExportedScorer(nn.Module, ABC):
    """A scorer that can be exported."""

    reads_context = False  # whether x has the values of contexts after the histories: see `data.contexts`

    @abstractmethod
    def context(self, x: Tensor, leaves: Tensor) -> Context:
        """What depends on the users only: on histories x [B, T] and the leaves of their items."""

    @abstractmethod
    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        """g(x, n) [B, W] of nodes [B, W] of one level."""


def export_scorer(scorer: Scorer, tree: Tree) -> ExportedScorer:
    """The exportable version of a scorer; a ValueError for one from outside the package."""
    make = EXPORTED.get(type(scorer))
    if make is None:
        names = ", ".join(kind.__name__ for kind in EXPORTED)
        raise ValueError(f"{type(scorer).__name__} cannot be exported: only {names} can")
    return make(scorer, tree)


class ExportedLinear(ExportedScorer):
    """`LinearScorer`: x are vectors instead of histories."""

    weight: Tensor

    def __init__(self, scorer: LinearScorer, tree: Tree) -> None:
        super().__init__()
        add_buffer(self, "weight", scorer.table.weight.detach())

    def context(self, x: Tensor, leaves: Tensor) -> Context:
        return [pad(x, (0, 1), value=1.0)]

    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        return torch.bmm(_rows(self.weight, nodes), context[0].unsqueeze(-1)).squeeze(-1)


class ExportedDeep(ExportedScorer):
    """`DeepScorer`."""

    vectors: Tensor
    windows: Tensor
    of_user_weight: Tensor
    of_user_bias: Tensor
    of_node_weight: Tensor

    def __init__(self, scorer: DeepScorer, tree: Tree) -> None:
        super().__init__()
        self.arity, self.height, self.lift = tree.arity, tree.height, scorer.lift
        with torch.no_grad():
            add_buffer(self, "vectors", scorer.table.read(tree, share=scorer.share).values)
        add_buffer(self, "windows", scorer.windows)
        for name, weight in scorer.named_parameters():
            if not name.startswith("table."):
                add_buffer(self, name.replace(".", "_"), weight.detach())

    def context(self, x: Tensor, leaves: Tensor) -> Context:
        shares = window_shares(self.windows, leaves)
        return [self._user(shares, self._ancestors(leaves, level)) for level in range(self.height + 1)]

    def _user(self, shares: Tensor, nodes: Tensor) -> Tensor:
        pooled = torch.bmm(shares, _rows(self.vectors, nodes)).flatten(1)
        return linear(pooled, self.of_user_weight, self.of_user_bias)  # [B, 128]

    def _ancestors(self, leaves: Tensor, level: int) -> Tensor:
        """The ancestors of leaves on a level, PAD for PAD; the leaves themselves where histories are not lifted."""
        width = self.arity ** (self.height - level) if self.lift else 1
        return torch.div(leaves - (width - 1) // (self.arity - 1), width, rounding_mode="floor")

    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        hidden = linear(_rows(self.vectors, nodes), self.of_node_weight)
        hidden = hidden + context[level].unsqueeze(1)  # [B, W, 128]
        for slope, weight, bias in self._layers():
            hidden = linear(torch.where(hidden > 0, hidden, hidden * slope), weight, bias)
        return hidden.squeeze(-1)

    def _layers(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The slopes, weights and biases of the layers after the first."""
        for layer in range(len(HIDDEN)):
            names = f"slopes_{layer}", f"layers_{layer}_weight", f"layers_{layer}_bias"
            slope, weight, bias = (self.get_buffer(name) for name in names)
            yield slope, weight, bias


class ExportedFactors(ExportedScorer):
    """`FactorScorer`."""

    weight: Tensor
    spread: Tensor
    recency: Tensor

    def __init__(self, scorer: FactorScorer, tree: Tree) -> None:
        super().__init__()
        self.penalty, self.everywhere, self.scale = scorer.penalty, scorer.everywhere, scorer.scale
        add_buffer(self, "weight", scorer.table.weight.detach())
        add_buffer(self, "spread", scorer.spread)
        add_buffer(self, "recency", scorer.recency)

    def context(self, x: Tensor, leaves: Tensor) -> Context:
        rows = _rows(self.weight, leaves).float()
        weights = newest_of_each(leaves) * self.recency[: leaves.shape[1]]
        return [fold_in(Factors(rows, self.spread, self.penalty, self.everywhere), rows, weights) * self.scale]

    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        return torch.bmm(_rows(self.weight, nodes).float(), context[0].unsqueeze(-1)).squeeze(-1)


class ExportedPopularity(ExportedScorer):
    """`PopularityScorer`."""

    weight: Tensor

    def __init__(self, scorer: PopularityScorer, tree: Tree) -> None:
        super().__init__()
        self.scale = scorer.scale
        add_buffer(self, "weight", scorer.table.weight.detach())

    def context(self, x: Tensor, leaves: Tensor) -> Context:
        return []

    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        return self.scale * _rows(self.weight, nodes).float().squeeze(-1)


class ExportedSequence(ExportedScorer):
    """`SequenceScorer`."""

    weight: Tensor

    def __init__(self, scorer: SequenceScorer, tree: Tree) -> None:
        super().__init__()
        self.encoder = deepcopy(scorer.encoder).requires_grad_(False)
        add_buffer(self, "weight", scorer.table.weight.detach())

    def context(self, x: Tensor, leaves: Tensor) -> Context:
        leaves, count = oldest_first(leaves)
        history = _rows(self.weight, leaves).float() * (leaves != PAD).unsqueeze(-1)
        return [self.encoder.last(history, count)]

    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        return torch.bmm(_rows(self.weight, nodes).float(), context[0].unsqueeze(-1)).squeeze(-1)


class ExportedContext(ExportedScorer):
    """`ContextScorer`."""

    reads_context = True
    weight: Tensor
    vectors: Tensor
    column_weights: Tensor

    def __init__(self, scorer: ContextScorer, tree: Tree) -> None:
        super().__init__()
        add_buffer(self, "weight", scorer.table.weight.detach())
        add_buffer(self, "vectors", scorer.vectors)
        add_buffer(self, "column_weights", scorer.weights)

    def context(self, x: Tensor, leaves: Tensor) -> Context:
        values = x[:, HISTORY:]
        rows = torch.where(values == PAD, len(self.vectors) - 1, values)  # the last one is zeros
        return [(self.vectors[rows] * self.column_weights.unsqueeze(1)).sum(1)]

    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        return torch.bmm(_rows(self.weight, nodes).float(), context[0].unsqueeze(-1)).squeeze(-1)


class RepeatScores(nn.Module):
    """The entries of `RepeatScorer`, leaves and scores [B, E]: every event scores its own item."""

    recency: Tensor

    def __init__(self, scorer: RepeatScorer, tree: Tree) -> None:
        super().__init__()
        add_buffer(self, "recency", scorer.recency)

    def forward(self, x: Tensor, leaves: Tensor) -> tuple[Tensor, Tensor]:
        return leaves, self.recency[: x.shape[1]].expand(x.shape[0], -1)


class MemoryScores(nn.Module):
    """The entries of `MemoryScorer`, leaves and scores [B, E]: every event scores the partners of its item."""

    offsets: Tensor
    leaves: Tensor
    weights: Tensor
    columns: Tensor
    shift: Tensor
    discounts: Tensor
    positions: Tensor

    def __init__(self, scorer: MemoryScorer, tree: Tree) -> None:
        super().__init__()
        table, columns = (scorer.recency != 0).nonzero(as_tuple=True)
        longest = int(scorer.offsets.diff().max()) if len(scorer.partners) else 0
        add_buffer(self, "offsets", scorer.offsets)
        add_buffer(self, "leaves", pad(tree.leaf_of_item(scorer.partners.long()), (0, 1), value=PAD))
        add_buffer(self, "weights", pad(scorer.weights, (0, 1)))
        add_buffer(self, "columns", columns)
        add_buffer(self, "shift", table * scorer.num_items)
        add_buffer(self, "discounts", scorer.recency[table, columns].unsqueeze(-1))
        add_buffer(self, "positions", torch.arange(longest, device=columns.device))

    def forward(self, x: Tensor, leaves: Tensor) -> tuple[Tensor, Tensor]:
        past = x.index_select(1, self.columns)  # [B, C]
        row = (past + self.shift).clamp(min=0)
        start = self.offsets[row]
        counts = (self.offsets[row + 1] - start).masked_fill(past == PAD, 0)
        index = start.unsqueeze(-1) + self.positions  # [B, C, longest]
        index = torch.where(self.positions < counts.unsqueeze(-1), index, len(self.leaves) - 1)  # the last one is PAD
        return self.leaves[index].flatten(1), (self.weights[index] * self.discounts).flatten(1)


class ExportedSubtreeMax(ExportedScorer):
    """Sparse scores of items, where a node has the maximum of its subtree, and at least 0.

    The leaves of each user are sorted once, and the scores of equal leaves are added. On a level the leaves below one
    node are adjacent, so that the maximum of a node is that of a run.
    """

    def __init__(self, parts: list[tuple[float, SubtreeMaxScorer]], tree: Tree) -> None:
        super().__init__()
        kinds = {MemoryScorer: MemoryScores, RepeatScorer: RepeatScores}
        for _, part in parts:
            if type(part) not in kinds:
                raise ValueError(f"{type(part).__name__} cannot be exported")
        self.part_weights = [weight for weight, _ in parts]
        self.entries = nn.ModuleList(kinds[type(part)](part, tree) for _, part in parts)
        self.arity, self.height, self.no_leaf = tree.arity, tree.height, tree.num_nodes  # sorts last

    def context(self, x: Tensor, leaves: Tensor) -> Context:
        entries = [part(x, leaves) for part in self.entries]
        keys = torch.cat([part_leaves for part_leaves, _ in entries], dim=1)
        keys = pad(keys, (0, 1), value=PAD)  # an entry at least, also where no item has partners
        weighted = zip(entries, self.part_weights, strict=True)
        scores = pad(torch.cat([part_scores * weight for (_, part_scores), weight in weighted], dim=1), (0, 1))
        keys, order = torch.where(keys == PAD, self.no_leaf, keys).sort(dim=1)
        scores = scores.gather(1, order).masked_fill(keys == self.no_leaf, 0.0)
        runs = _run_numbers(keys)
        sums = torch.zeros_like(scores).scatter_add(1, runs, scores)
        return [torch.full_like(keys, self.no_leaf).scatter(1, runs, keys), sums]

    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        keys, maxima = context
        if level < self.height:
            width = self.arity ** (self.height - level)
            above = torch.div(keys - (width - 1) // (self.arity - 1), width, rounding_mode="floor")
            above = torch.where(keys == self.no_leaf, self.no_leaf, above)
            runs = _run_numbers(above)
            maxima = torch.zeros_like(maxima).scatter_reduce(1, runs, maxima, "amax")
            keys = torch.full_like(keys, self.no_leaf).scatter(1, runs, above)
        index = torch.searchsorted(keys, nodes).clamp(max=keys.shape[1] - 1)
        return torch.where(keys.gather(1, index) == nodes, maxima.gather(1, index), 0.0)


class ExportedSum(ExportedScorer):
    """`SumScorer`: sparse parts with the same weight on every level are added before the maximum is taken."""

    def __init__(self, scorer: SumScorer, tree: Tree) -> None:
        super().__init__()
        single, lifted = scorer.active_parts()
        parts = [(weights, export_scorer(part, tree)) for weights, part in single]
        if lifted:
            parts.append(([1.0] * (tree.height + 1), ExportedSubtreeMax(lifted, tree)))
        self.level_weights = [weights for weights, _ in parts]
        self.parts = nn.ModuleList(part for _, part in parts)
        self.reads_context = scorer.reads_context

    def context(self, x: Tensor, leaves: Tensor) -> Context:
        histories = x[:, :HISTORY] if self.reads_context else x
        return [part.context(x if part.reads_context else histories, leaves) for part in self._parts()]

    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        terms = [
            weights[level] * part.scores(part_context, level, nodes)
            for part, part_context, weights in zip(self._parts(), context, self.level_weights, strict=True)
        ]
        return torch.stack(terms).sum(0)

    def _parts(self) -> list[ExportedScorer]:
        return [part for part in self.parts if isinstance(part, ExportedScorer)]


def add_buffer(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Register a tensor as a buffer; a view is copied, because an archive would store all of its storage."""
    owns_storage = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    module.register_buffer(name, tensor if owns_storage else tensor.clone())


def _run_numbers(keys: Tensor) -> Tensor:
    """Numbers runs of equal values in sorted rows, from 0 [B, E]."""
    return pad((keys[:, 1:] != keys[:, :-1]).long(), (1, 0)).cumsum(1)


def _rows(table: Tensor, nodes: Tensor) -> Tensor:
    """The rows of nodes [..., dim]; any row at PAD."""
    return nn.functional.embedding(nodes.clamp(min=0), table)


def _export_subtree_max(scorer: SubtreeMaxScorer, tree: Tree) -> ExportedScorer:
    return ExportedSubtreeMax([(1.0, scorer)], tree)


EXPORTED: dict[type[Scorer], Callable[..., ExportedScorer]] = {
    ContextScorer: ExportedContext,
    DeepScorer: ExportedDeep,
    LinearScorer: ExportedLinear,
    FactorScorer: ExportedFactors,
    MemoryScorer: _export_subtree_max,
    PopularityScorer: ExportedPopularity,
    RepeatScorer: _export_subtree_max,
    SequenceScorer: ExportedSequence,
    SumScorer: ExportedSum,
}

"""The scorers in plain tensors: the same numbers as theirs, in operations that `torch.export` can write down.

Elsewhere a scorer keeps what it made, asks numpy on a CPU and Triton on a GPU. Here shapes depend on nothing but the
number of users, and every table is a buffer. Nodes are [B, W]; at PAD any number may come out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from beamtree.closed_form.als import Factors, fold_in
from beamtree.closed_form.cooccurrence import newest_of_each
from beamtree.scorers import (
    DeepScorer,
    FactorScorer,
    LinearScorer,
    MemoryScorer,
    RepeatScorer,
    Scorer,
    SumScorer,
)
from beamtree.scorers.deep import HIDDEN
from beamtree.scorers.memory import LiftedScorer
from beamtree.tree import PAD, Tree

Context = list[Any]  # only the scorer that made it looks inside


class Plain(nn.Module, ABC):
    """A scorer as `forward` of an artefact calls it."""

    @abstractmethod
    def context(self, x: Tensor, leaves: Tensor) -> Context:
        """What is known of the users: of their histories x [B, T], and of the leaves of these items."""

    @abstractmethod
    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        """g(x, n) [B, W] of nodes [B, W] of one level."""


def plain(scorer: Scorer, tree: Tree) -> Plain:
    """A scorer in plain tensors; a ValueError for one from outside the package."""
    make = MADE.get(type(scorer))
    if make is None:
        known = ", ".join(kind.__name__ for kind in MADE)
        raise ValueError(f"{type(scorer).__name__} cannot be exported: only {known} can")
    return make(scorer, tree)


class PlainLinear(Plain):
    """`LinearScorer`: x are vectors, and no histories."""

    weight: Tensor

    def __init__(self, scorer: LinearScorer, tree: Tree) -> None:
        super().__init__()
        keep(self, "weight", scorer.table.weight.detach())

    def context(self, x: Tensor, leaves: Tensor) -> Context:
        return [pad(x, (0, 1), value=1.0)]

    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        return torch.bmm(_rows(self.weight, nodes), context[0].unsqueeze(-1)).squeeze(-1)


class PlainDeep(Plain):
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
            keep(self, "vectors", scorer.table.read(tree, share=scorer.share).values)
        keep(self, "windows", scorer.windows)
        for name, weight in scorer.named_parameters():
            if not name.startswith("table."):
                keep(self, name.replace(".", "_"), weight.detach())

    def context(self, x: Tensor, leaves: Tensor) -> Context:
        shares = self.windows[:, : x.shape[1]] * (x != PAD).unsqueeze(1)  # [B, windows, T]
        shares = shares / shares.sum(-1, keepdim=True).clamp(min=1)
        return [self._user(shares, self._lifted(leaves, level)) for level in range(self.height + 1)]

    def _user(self, shares: Tensor, nodes: Tensor) -> Tensor:
        pooled = torch.bmm(shares, _rows(self.vectors, nodes)).flatten(1)
        return linear(pooled, self.of_user_weight, self.of_user_bias)  # [B, 128]

    def _lifted(self, leaves: Tensor, level: int) -> Tensor:
        """The ancestors of leaves on a level, PAD for PAD; the leaves where histories are not lifted."""
        width = self.arity ** (self.height - level) if self.lift else 1
        return torch.div(leaves - (width - 1) // (self.arity - 1), width, rounding_mode="floor")

    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        hidden = linear(_rows(self.vectors, nodes), self.of_node_weight)
        hidden = hidden + context[level].unsqueeze(1)  # [B, W, 128]
        for slope, weight, bias in self._layers():
            hidden = linear(torch.where(hidden > 0, hidden, hidden * slope), weight, bias)
        return hidden.squeeze(-1)

    def _layers(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The slopes before each layer after the first, and its weights."""
        for place in range(len(HIDDEN)):
            names = f"slopes_{place}", f"layers_{place}_weight", f"layers_{place}_bias"
            slope, weight, bias = (self.get_buffer(name) for name in names)
            yield slope, weight, bias


class PlainFactors(Plain):
    """`FactorScorer`."""

    weight: Tensor
    spread: Tensor
    recency: Tensor

    def __init__(self, scorer: FactorScorer, tree: Tree) -> None:
        super().__init__()
        self.penalty, self.everywhere = scorer.penalty, scorer.everywhere
        keep(self, "weight", scorer.table.weight.detach())
        keep(self, "spread", scorer.spread)
        keep(self, "recency", scorer.recency)

    def context(self, x: Tensor, leaves: Tensor) -> Context:
        rows = _rows(self.weight, leaves).float()
        weights = newest_of_each(x) * self.recency[: x.shape[1]]
        return [fold_in(Factors(rows, self.spread, self.penalty, self.everywhere), rows, weights)]

    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        return torch.bmm(_rows(self.weight, nodes).float(), context[0].unsqueeze(-1)).squeeze(-1)


class Entries(nn.Module, ABC):
    """What a `LiftedScorer` says of a few items: their leaves [B, E], and the scores [B, E]."""

    @abstractmethod
    def forward(self, x: Tensor, leaves: Tensor) -> tuple[Tensor, Tensor]: ...


class RepeatEntries(Entries):
    """`RepeatScorer`: every event speaks for its item."""

    recency: Tensor

    def __init__(self, scorer: RepeatScorer, tree: Tree) -> None:
        super().__init__()
        keep(self, "recency", scorer.recency)

    def forward(self, x: Tensor, leaves: Tensor) -> tuple[Tensor, Tensor]:
        return leaves, self.recency[: x.shape[1]].expand(x.shape[0], -1)


class MemoryEntries(Entries):
    """`MemoryScorer`: every event speaks for the partners of its item."""

    offsets: Tensor
    leaves: Tensor
    weights: Tensor
    columns: Tensor
    shift: Tensor
    counts: Tensor
    place: Tensor

    def __init__(self, scorer: MemoryScorer, tree: Tree) -> None:
        super().__init__()
        number, columns = (scorer.recency != 0).nonzero(as_tuple=True)
        held = scorer.offsets.diff()
        longest = int(held.max()) if len(scorer.partners) else 0
        keep(self, "offsets", scorer.offsets)
        keep(self, "leaves", pad(tree.leaf_of_item(scorer.partners.long()), (0, 1), value=PAD))
        keep(self, "weights", pad(scorer.weights, (0, 1)))
        keep(self, "columns", columns)
        keep(self, "shift", number * scorer.num_items)
        keep(self, "counts", scorer.recency[number, columns].unsqueeze(-1))
        keep(self, "place", torch.arange(longest, device=columns.device))

    def forward(self, x: Tensor, leaves: Tensor) -> tuple[Tensor, Tensor]:
        past = x.index_select(1, self.columns)  # [B, C]
        row = (past + self.shift).clamp(min=0)
        start = self.offsets[row]
        held = (self.offsets[row + 1] - start).masked_fill(past == PAD, 0)
        at = start.unsqueeze(-1) + self.place  # [B, C, longest]
        at = torch.where(self.place < held.unsqueeze(-1), at, len(self.leaves) - 1)  # the last stands for none
        return self.leaves[at].flatten(1), (self.weights[at] * self.counts).flatten(1)


class PlainLifted(Plain):
    """Scores of a few items, lifted to every node by the maximum, and at least 0: see `scorers.lifted`.

    The leaves of each user are sorted once and each kept once, with the sum of its scores. On a level, those below one
    node are neighbours: the maximum of each run is kept at the place of its node among those that have any.
    """

    def __init__(self, parts: list[tuple[float, LiftedScorer]], tree: Tree) -> None:
        super().__init__()
        made = {MemoryScorer: MemoryEntries, RepeatScorer: RepeatEntries}
        for _, part in parts:
            if type(part) not in made:
                raise ValueError(f"{type(part).__name__} cannot be exported")
        self.counts = [count for count, _ in parts]
        self.entries = nn.ModuleList(made[type(part)](part, tree) for _, part in parts)
        self.arity, self.height, self.after = tree.arity, tree.height, tree.num_nodes  # a leaf that stands for none

    def context(self, x: Tensor, leaves: Tensor) -> Context:
        found = [entries(x, leaves) for entries in self.entries]
        keys = torch.cat([part for part, _ in found], dim=1)
        said = torch.cat([said * count for (_, said), count in zip(found, self.counts, strict=True)], dim=1)
        keys, order = torch.where(keys == PAD, self.after, keys).sort(dim=1)
        said = said.gather(1, order).masked_fill(keys == self.after, 0.0)
        place = _runs(keys)
        sums = torch.zeros_like(said).scatter_add(1, place, said)
        return [torch.full_like(keys, self.after).scatter(1, place, keys), sums]

    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        keys, maxima = context
        if level < self.height:
            width = self.arity ** (self.height - level)
            above = torch.div(keys - (width - 1) // (self.arity - 1), width, rounding_mode="floor")
            above = torch.where(keys == self.after, self.after, above)
            place = _runs(above)
            maxima = torch.zeros_like(maxima).scatter_reduce(1, place, maxima, "amax")
            keys = torch.full_like(keys, self.after).scatter(1, place, above)
        at = torch.searchsorted(keys, nodes).clamp(max=keys.shape[1] - 1)
        return torch.where(keys.gather(1, at) == nodes, maxima.gather(1, at), 0.0)


class PlainSum(Plain):
    """`SumScorer`: lifted parts that count the same on every level are added before they are lifted."""

    def __init__(self, scorer: SumScorer, tree: Tree) -> None:
        super().__init__()
        single, lifted = scorer.counting()
        parts = [(counts, plain(part, tree)) for counts, part in single]
        if lifted:
            parts.append(([1.0] * (tree.height + 1), PlainLifted(lifted, tree)))
        self.counts = [counts for counts, _ in parts]
        self.parts = nn.ModuleList(part for _, part in parts)

    def context(self, x: Tensor, leaves: Tensor) -> Context:
        return [part.context(x, leaves) for part in self._parts()]

    def scores(self, context: Context, level: int, nodes: Tensor) -> Tensor:
        of_parts = zip(self._parts(), context, self.counts, strict=True)
        return torch.stack([counts[level] * part.scores(each, level, nodes) for part, each, counts in of_parts]).sum(0)

    def _parts(self) -> list[Plain]:
        return [part for part in self.parts if isinstance(part, Plain)]


def keep(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Make a tensor a buffer of a module: one that has its memory to itself, as an archive needs it."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    module.register_buffer(name, tensor if whole else tensor.clone())


def _runs(keys: Tensor) -> Tensor:
    """The number of the run of equals, counted from 0, that each of sorted keys belongs to [B, E]."""
    return pad((keys[:, 1:] != keys[:, :-1]).long(), (1, 0)).cumsum(1)


def _rows(table: Tensor, nodes: Tensor) -> Tensor:
    """The rows of nodes [..., dim]; some row at PAD."""
    return nn.functional.embedding(nodes.clamp(min=0), table)


def _alone(scorer: LiftedScorer, tree: Tree) -> Plain:
    return PlainLifted([(1.0, scorer)], tree)


MADE: dict[type[Scorer], Callable[..., Plain]] = {
    DeepScorer: PlainDeep,
    LinearScorer: PlainLinear,
    FactorScorer: PlainFactors,
    MemoryScorer: _alone,
    RepeatScorer: _alone,
    SumScorer: PlainSum,
}

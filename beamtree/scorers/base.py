"""g(x, n): what every node-wise scorer offers, and what those with rows of nodes offer beside."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from beamtree.data import BeforeAfter, Data
from beamtree.data.contexts import Values
from beamtree.data.csr import CSR
from beamtree.data.inputs import HISTORY, NO_TIME, InputColumns
from beamtree.kernels.search_cpu import CompiledPart, WeightedParts
from beamtree.scorers.table import NodeTable
from beamtree.tree import PAD, Tree

SCORE = "score"  # the name of the only part of a score that is no sum
AT_ONCE = 1024  # users that are scored together, each without one entry
RENAMED = {  # in 0.3.0, which a scorer from outside the package may not know
    "context": "prepare",
    "learner": "trainable_part",
    "changing": "trainable_state",
    "deeper": "with_extra_level",
    "for_search": "search_cache",
    "use_for_search": "load_search_cache",
}
ROUNDING = 1e-6  # relative: smaller differences between two scores are rounding


class Contributions(NamedTuple):
    """What gives items their scores: each entry of x, and what no entry gives. Their sum is the score."""

    entries: Tensor  # [B, W, X]
    rest: Tensor  # [B, W]


class NewItems(NamedTuple):
    """Items that a tree did not have, and what is known of each."""

    numbers: Tensor  # [n]
    like: CSR  # the items that each is like, with shares
    learned: Tensor  # whether partners of each were learned, bool [n]
    factors: Mapping[int, Tensor]  # those that were learned, by the place among these items


class LaterEvents(NamedTuple):
    """Events that come after a fit."""

    users: Sequence[str]  # [n]
    items: Tensor  # [n]
    times: Tensor  # in seconds since 1970 [n]
    waiting: Tensor  # times of events of items that the tree does not have; they come again when it has them
    since: int = NO_TIME  # events before, of these and of all earlier ones, count no longer


class Scorer(nn.Module, ABC):
    """g(x, n) in two steps, so that work that depends on the user alone is done once.

    Implement `prepare`, `forward` and `settings`; everything else has a default. The constructor takes what `settings`
    returns, and `seed`: weights are drawn from it, or left to be loaded if it is None. A scorer holds weights; the tree
    belongs to the model and is passed in, so that a scorer can outlive a change of the tree.
    """

    reads_items = False  # whether x are histories: numbers of items, which must be those of the tree
    reads_clock = False  # whether x has times: see `data.inputs`
    same_for_all = False  # whether every user gets the same scores
    history = HISTORY  # events that are read of a user, at most
    exportable = False  # whether it scores by operations of torch alone inside `kernels.plain_operations`
    newest_event: int | None = None  # its time, in seconds since 1970, where later ones count: see `with_events`
    cheap_levels = False  # whether scoring a whole level costs little beside gathering some of its nodes
    hyperparameters: Mapping[str, Any] = MappingProxyType({})  # of a sum: how its parts were fitted

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for old, new in RENAMED.items():
            if old in vars(cls) and new not in vars(cls):
                raise TypeError(f"{cls.__name__}.{old} is called `{new}` since beamtree 0.3.0: rename the method")

    @property
    def kind(self) -> str:
        """The name of its class in saved models."""
        return type(self).__name__

    @property
    def capturable(self) -> bool:
        """Whether searches and steps can be recorded as CUDA graphs: they always run the same kernels."""
        return True

    @abstractmethod
    def prepare(self, tree: Tree, x: Tensor) -> Any:
        """All that depends on the users x [B, ...] and a level, for all levels at once; only `forward` looks inside."""

    @abstractmethod
    def forward(self, prepared: Any, level: int, nodes: Tensor) -> Tensor:
        """g(x, n) [B, W] of nodes of one level: finite, and -inf where a node is PAD.

        Nodes are [B, W], or [1, W] where all users share them.
        """

    def scores(self, prepared: Any, level: int, nodes: Tensor) -> Tensor:
        """The same, and anything where a node is PAD: for a sum of scorers, which looks there itself."""
        logits: Tensor = self(prepared, level, nodes)
        return logits

    def calibrated(self, level: int, logits: Tensor) -> Tensor:
        """Logits of probabilities in the order of those given; the same, unless a scorer gives something else."""
        return logits

    def levels(self, prepared: Any, found: list[tuple[int, Tensor]]) -> list[Tensor]:
        """g(x, n) of nodes of several levels, each as `forward` gives it, on any device."""
        return [self(prepared, level, nodes) for level, nodes in found]

    def whole_level(self, prepared: Any, tree: Tree, level: int) -> Tensor:
        """g(x, n) of every node of a level [B, |N_h|]; a scorer for which that is cheap says how."""
        span = tree.level(level)
        nodes = torch.arange(span.start, span.stop, device=tree.device)
        logits: Tensor = self(prepared, level, nodes.unsqueeze(0))
        return logits

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but for the seed, as a checkpoint records them."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], kinds: "Mapping[str, type[Scorer]]") -> Self:
        """A scorer whose weights will be loaded; `kinds` are the classes that parts of it may be of, by name."""
        make: Any = cls
        scorer: Self = make(**settings, seed=None)
        return scorer

    # Trees with more nodes and items, and events that come later; this one does not depend on them

    def with_extra_level(self, old: Tree, new: Tree) -> "Scorer":
        """A scorer for `old.with_extra_level()`."""
        if "num_nodes" in self.settings():
            raise ValueError(f"the tree is full, and {type(self).__name__} cannot be extended by a level")
        return self

    def with_items(self, old: Tree, new: Tree, items: NewItems) -> "Scorer":
        """A scorer for a tree with new items, whose rows may be written in place: searches read only the old ones."""
        return self

    def with_events(self, tree: Tree, events: LaterEvents, *, in_place: bool = False) -> "Scorer":
        """The scorer after events; it may change itself if `in_place`."""
        return self

    # What a sum of scorers has; any other has no parts

    @property
    def names(self) -> list[str]:
        """The parts of a sum, in the order of their weights; none of any other scorer."""
        return []

    def weight_of(self, name: str) -> float:
        """The weight of a part on the leaves; 0 for one that there is not."""
        return 0.0

    def drop_zero_parts(self) -> "Scorer":
        """The sum of the parts whose weights are not 0."""
        return self

    def tables(self) -> "Mapping[str, TableScorer]":
        """The parts that have rows of nodes, by name; the scorer itself, if it is no sum and has them."""
        return {}

    def trainable_part(self) -> "Scorer":
        """What gradients train: all of it, unless a scorer says otherwise."""
        return self

    def trainable_state(self) -> dict[str, Tensor]:
        """The weights that training changes, by their names in `state_dict`."""
        return dict(self.state_dict())

    def scorers(self) -> Mapping[str, "Scorer"]:
        """The parts of a sum by name; a scorer that is no sum is the only one."""
        return {SCORE: self}

    def with_parts(self, changed: Mapping[str, "Scorer"]) -> "Scorer":
        """The scorer with some of these replaced."""
        return changed.get(SCORE, self)

    @property
    def context_values(self) -> Values:
        """The columns of the contexts that it reads, and the values of each; none where it reads no contexts."""
        return {}

    @property
    def columns(self) -> InputColumns:
        """Those of x, beside the histories."""
        return InputColumns(self.reads_clock)

    def histories(self, x: Tensor) -> Tensor:
        """The histories alone, where x may have times and contexts after them."""
        return self.columns.items(x)

    def compiled_part(self, tree: Tree) -> CompiledPart | None:
        """What the compiled search on a CPU takes from this scorer; None where it is not compiled.

        A large tensor in it is that of the scorer, and not made for the search, which looks where it is.
        """
        return None

    def compiled_parts(self, tree: Tree) -> WeightedParts | None:
        """The same for each part of a sum, with its weights by level; None where one is not compiled."""
        part = self.compiled_part(tree) if says_last(type(self), "compiled_part") else None
        return None if part is None else [([1.0] * (tree.height + 1), part)]

    @torch.no_grad()
    def contributions(self, tree: Tree, x: Tensor, items: Tensor) -> Contributions:
        """What each entry of x gives to the scores of items [B or 1, W] that have leaves.

        Here what is lost without it; the rest is what the entries give together. A scorer whose score is a sum over the
        entries says what each of them adds. A time is no entry.
        """

        def score(users: Tensor, leaves: Tensor) -> Tensor:
            logits: Tensor = self(self.prepare(tree, users), tree.height, leaves)
            return logits

        if self.same_for_all:  # no entry gives anything
            scores = score(x, tree.leaf_of_item(items))
            return Contributions(scores.new_zeros(*scores.shape, x.shape[1]), scores)
        entries = torch.ones(x.shape[1], dtype=torch.bool, device=x.device)
        if self.reads_clock:
            count = self.histories(x).shape[1]
            entries[count : x.shape[1] - self.columns.contexts] = False
        return leave_one_out(score, x, tree.leaf_of_item(items), entries)

    def contributions_by_part(self, tree: Tree, x: Tensor, items: Tensor) -> dict[str, Contributions]:
        """The same for each part of the score, times its weight."""
        return {SCORE: self.contributions(tree, x, items)}

    def check(self, x: Tensor) -> None:
        """Raise a ValueError in one line where x cannot be scored."""
        if self.reads_items:
            self.columns.check(x)
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            row = int((~torch.isfinite(x)).flatten(1).any(1).nonzero()[0])
            raise ValueError(f"x has NaN or infinity in row {row}: clean it before scoring")


def with_inputs(scorer: Scorer, users: Data) -> Data:
    """Users as a scorer reads them: histories as long as it reads, and times and contexts where their log has them.

    The time of a request and its context are those of what a user chose next.
    """
    if not isinstance(users, BeforeAfter) or not scorer.reads_items:
        return users
    users = replace(users, history=max(HISTORY, scorer.history), clock=False, context_values=None)
    users = users.with_times() if scorer.reads_clock else users
    values = scorer.context_values
    return users.with_contexts(values) if values else users


@cache
def says_last(kind: type[Scorer], method: str) -> bool:
    """Whether no class derived from the one that has this method scores in another way than that."""
    of_each = (vars(each) for each in kind.__mro__)
    return method in next(own for own in of_each if own.keys() & {method, "prepare", "forward", "scores"})


def leave_one_out(
    score: Callable[[Tensor, Tensor], Tensor], x: Tensor, leaves: Tensor, entries: Tensor | None = None
) -> Contributions:
    """What is lost of the scores of leaves [B or 1, W] where an entry of x [B, X] is left out.

    `score` takes users [N, X] and the leaves of each [N, W]; `entries` says which columns may be left out [X].
    """
    missing = 0 if x.is_floating_point() else PAD
    leaves = leaves.expand(len(x), -1)
    whole = score(x, leaves)
    may_miss = x != missing if entries is None else (x != missing) & entries
    entries = whole.new_zeros(*whole.shape, x.shape[1])
    user, entry = may_miss.nonzero(as_tuple=True)
    for some in torch.arange(len(user), device=x.device).split(AT_ONCE):
        rows, left_out = user[some], x[user[some]]
        left_out[torch.arange(len(rows), device=x.device), entry[some]] = missing
        lost = whole[rows] - score(left_out, leaves[rows])
        entries[rows, :, entry[some]] = lost.masked_fill(lost.abs() <= ROUNDING * whole[rows].abs(), 0.0)
    return Contributions(entries, whole - entries.sum(-1))


class TableScorer(Scorer):
    """A scorer with a row of parameters per node: what was learned can follow the items to another tree."""

    table: NodeTable
    share = False  # whether a node's vector is the sum of the rows on its path

    @property
    def capturable(self) -> bool:
        return self.table.capturable

    def tables(self) -> "Mapping[str, TableScorer]":
        return {SCORE: self}

    def item_vectors(self, tree: Tree) -> Tensor:
        """What the leaves of the items are known by [M, dim]."""
        return self.table.of_items(tree, share=self.share)

    def on_tree(self, old: Tree, new: Tree) -> "TableScorer":
        """A scorer for another tree over the same items: what was learned of an item follows it to its new leaf."""
        return self._with_table(self.table.on_tree(old, new, share=self.share))

    def with_extra_level(self, old: Tree, new: Tree) -> "TableScorer":
        """A scorer for `old.with_extra_level()`: nodes keep their vectors, and new leaves have that of their parent."""
        return self._with_table(self.table.with_extra_level(old, share=self.share))

    def with_items(self, old: Tree, new: Tree, items: NewItems) -> "TableScorer":
        self.put_vectors(new, new.leaf_of_item(items.numbers.to(new.device)), self.new_vectors(old, items))
        return self

    def new_vectors(self, old: Tree, items: NewItems) -> Tensor:
        """What new items are known by: the means of the vectors of the items that each is like [n, dim]."""
        like, vectors = items.like, self.table.read(old, share=self.share)
        assert like.values is not None
        shares, row = like.values.to(old.device), like.row_of_entry().to(old.device)
        total = torch.zeros(len(like), device=old.device).index_add_(0, row, shares).clamp(min=1e-9)
        similar = vectors.at(old.leaf_of_item(like.columns.to(old.device)))
        weighted = similar.float() * (shares / total[row]).unsqueeze(1)
        return torch.zeros(len(like), weighted.shape[1], device=old.device).index_add_(0, row, weighted)

    def _with_table(self, table: NodeTable) -> "TableScorer":
        """A copy of this scorer with another table."""
        scorer = type(self)(**{**self.settings(), "num_nodes": 1}, seed=None).to(self.table.weight.device)
        state = {name: value.clone() for name, value in self.state_dict().items() if name != "table.weight"}
        scorer.load_state_dict(state, strict=False, assign=True)
        for name, buffer in self.named_buffers(recurse=False):  # also those that are not saved, in their dtype
            setattr(scorer, name, buffer)
        scorer.table = table
        return scorer

    @torch.no_grad()
    def put_vectors(self, tree: Tree, leaves: Tensor, vectors: Tensor) -> None:
        """Let leaves [n] be known by vectors [n, dim]."""
        if self.share:
            vectors = vectors - self.table.read(tree, share=True).at(tree.parent(leaves))
        self.table.weight[leaves] = vectors.to(self.table.weight)

    def search_cache(self, tree: Tree) -> Mapping[str, Tensor]:
        """Large tensors that a search computes from the weights before it begins: saved with a finished model."""
        return {}

    def load_search_cache(self, tree: Tree, parts: dict[str, Tensor]) -> None:
        """Use what `search_cache` gave for the same weights instead of computing it again."""


def newest(x: Tensor, count: int) -> Tensor:
    """The newest events of histories [B, up to count]."""
    return x if x.shape[1] <= count else x[:, :count]

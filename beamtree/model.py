"""M(T, g): a tree, a scorer, and p_g(z_n = 1 | x) direct or chained (Sec. 3.2.1)."""

from collections.abc import Callable, Mapping
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from beamtree.data import Ids
from beamtree.scorers import DotProductScorer, FactorScorer, Scorer, TableScorer
from beamtree.scorers.base import SCORE, Contributions, leave_one_out
from beamtree.tree import Tree

State = tuple[Tensor, ...]  # of each node of a beam; nodes are ordered by the first part


class TreeModel(nn.Module):
    """M(T, g). Direct: p_g is the node's own sigmoid (TDM, OTM). Chained: the product down the path (PLT).

    Levels above `first_level` are neither trained nor searched: a beam starts from all nodes just above it. A model
    keeps the ids of the items it was trained on, and how often each was chosen; they are saved and loaded with it.

    Args:
        tree: T, with the items on its leaves.
        scorer: g, made for as many nodes as the tree has.
        chained: whether p_g is the product down the path.
        first_level: the first level that is trained and searched.
        ids: of the items, if they have any.
    """

    def __init__(
        self, tree: Tree, scorer: Scorer, *, chained: bool = False, first_level: int = 1, ids: Ids | None = None
    ) -> None:
        super().__init__()
        if not 1 <= first_level <= tree.height:
            raise ValueError(f"first_level={first_level}: the tree has levels 1 … {tree.height} below the root")
        settings = scorer.settings()
        if (rows := settings.get("num_nodes", tree.num_nodes)) < tree.num_nodes:
            raise ValueError(f"the scorer knows {rows} nodes and the tree has {tree.num_nodes}: make it for this tree")
        if (items := settings.get("num_items", tree.num_items)) != tree.num_items:
            raise ValueError(f"the scorer is for {items} items and the tree has {tree.num_items}: build it again")
        self.tree = tree
        self.scorer = scorer
        self.chained = chained
        self.first_level = first_level
        self.ids = ids
        self.popularity: Tensor | None = None  # events of each item in training [M]
        self.trained_on_beams = False
        self.search_times: dict[Any, Any] = {}  # of a beam and of a scan: see `beamtree.search.choice`

    def __repr__(self) -> str:
        scorer, levels = type(self.scorer).__name__, f"levels {self.first_level} to {self.tree.height}"
        return f"TreeModel({self.tree!r}, {scorer}, {levels}{', chained' if self.chained else ''})"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TreeModel":
        """Called by `.to(device)`: the tree moves with the weights."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.tree = self.tree.map(fn)
        return self

    def on_tree(self, tree: Tree) -> "TreeModel":
        """The same model on another tree over the same items: the rows of nodes follow the items."""
        if tree.num_items != self.tree.num_items:
            raise ValueError(f"the new tree holds {tree.num_items} items and the old one {self.tree.num_items}")
        tree = tree.to(self.tree.device)
        min_width = len(self.tree.level(self.first_level))
        first_level = next((h for h in range(1, tree.height) if len(tree.level(h)) >= min_width), tree.height)
        scorer = self._table_scorer().on_tree(self.tree, tree)
        return TreeModel(tree, scorer, chained=self.chained, first_level=first_level).with_items_of(self)

    def with_scorer(self, scorer: Scorer, tree: Tree | None = None) -> "TreeModel":
        """The model with another scorer, and optionally on another tree, over the same items."""
        model = TreeModel(tree or self.tree, scorer, chained=self.chained, first_level=self.first_level)
        return model.with_items_of(self)

    def with_items_of(self, other: "TreeModel") -> "TreeModel":
        """The same model with the ids and popularity of another one over the same items."""
        self.ids, self.popularity, self.trained_on_beams = other.ids, other.popularity, other.trained_on_beams
        self.search_times = other.search_times
        return self

    def item_vectors(self) -> Tensor:
        """The scorer's vectors of the items [M, dim], to cluster them again."""
        return self._table_scorer().item_vectors(self.tree)

    def vector_part(self) -> TableScorer:
        """The part of the scorer that has vectors of items: the factors if there are any."""
        parts = list(self._table_scorer().tables().values())
        kinds = (FactorScorer, DotProductScorer, TableScorer)
        part = next((part for kind in kinds for part in parts if isinstance(part, kind)), None)
        if part is None:
            raise ValueError("no part of this model's scorer has vectors of items")
        return part

    @torch.no_grad()
    def vectors_of(self, items: Tensor) -> Tensor:
        """The vectors of some items in that part [..., dim], on the CPU; any for items without a leaf."""
        part = self.vector_part()
        vectors = part.table.read(self.tree, share=part.share)
        leaves = self.tree.leaf_of_item(items.to(self.tree.device))
        (rows,) = vectors.index([(self.tree.height, leaves)])
        return vectors.at(rows).float().cpu()

    def _table_scorer(self) -> TableScorer:
        if not isinstance(self.scorer, TableScorer):
            raise ValueError(f"{type(self.scorer).__name__} has no rows of nodes that could follow their items")
        return self.scorer

    def query(self, x: Tensor, part: "BatchPart | None" = None) -> "Query":
        """Query this model for a batch of users x, or for those of a part of a batch."""
        return Query(self, x, part)

    def expand(self, logits: Tensor, parents: State) -> State:
        """The scores of children [B, nb] under their parents [B or 1, n].

        A direct model compares logits: they order as p_g does, and never saturate.
        """
        if not self.chained:
            return (logits,)
        log_p = logsigmoid(logits).unflatten(1, (parents[0].shape[1], -1))
        return ((parents[0].unsqueeze(-1) + log_p).flatten(1),)

    def scores_to_log_prob(self, scores: Tensor) -> Tensor:
        """log p_g(z_n = 1 | x) of leaves from the scores of `expand`."""
        return scores if self.chained else logsigmoid(self.scorer.calibrated(self.tree.height, scores))

    def log_prob(self, x: Tensor, level: int, nodes: Tensor) -> Tensor:
        """log p_g(z_n = 1 | x) of nodes [B, W] of one level."""
        return self.query(x).log_prob(level, nodes)

    @torch.no_grad()
    def contributions(self, x: Tensor, items: Tensor) -> dict[str, Contributions]:
        """What each entry of x gives to the scores of items [B or 1, W] that have leaves, for each part of the score.

        The score of a chained model is log p_g, which has no parts.
        """
        if not self.chained:
            return self.scorer.contributions_by_part(self.tree, x, items)

        def score(users: Tensor, leaves: Tensor) -> Tensor:
            return self.log_prob(users, self.tree.height, leaves)

        return {SCORE: leave_one_out(score, x, self.tree.leaf_of_item(items))}


class ModelState:
    """The weights and the tree of a model at one time, for what was made from them.

    It looks into the dictionaries of the modules: to ask a model for its parameters takes as long as a search. Numbers
    that are no tensors are taken to stay as they are, and so are modules without weights or parts.
    """

    def __init__(self, model: TreeModel) -> None:
        modules = [module for module in model.modules() if module is not model]
        self._tree, self._scorer = model.tree, model.scorer
        dicts = [(module._modules, module._parameters, module._buffers) for module in modules]
        self._dicts: list[Mapping[str, object]] = [each for of_module in dicts for each in of_module if each]
        self._values = self._read()  # kept, so that no other tensors can be allocated at their addresses
        self._versions = self._read_versions(self._values)

    def _read(self) -> list[object]:
        return [value for each in self._dicts for value in each.values()]

    def _read_versions(self, values: list[object]) -> list[tuple[int, int]]:
        return [(value.data_ptr(), value._version) for value in values if isinstance(value, Tensor)]

    def is_of(self, model: TreeModel) -> bool:
        """Whether the model has these still."""
        if self._tree is not model.tree or self._scorer is not model.scorer:
            return False
        values = self._read()
        is_same = len(values) == len(self._values) and all(map(is_, values, self._values))
        return is_same and self._versions == self._read_versions(values)


class BatchPart(NamedTuple):
    """Consecutive rows of a batch: their part of the loss, and of the random draws, is that of the whole batch.

    An empty part takes the first row, with a loss of 0, so that its process still takes part in every step.
    """

    start: int
    stop: int
    total: int

    @property
    def is_empty(self) -> bool:
        return self.start == self.stop

    def of(self, rows: Tensor) -> Tensor:
        """This part of the rows of a batch."""
        return rows[:1] if self.is_empty else rows[self.start : self.stop]


class Query:
    """A batch of users x: search, targets and loss share what the scorer prepared.

    It has gradients if they were enabled when the query was made: a search without gradients may
    come before the loss.
    """

    def __init__(self, model: TreeModel, x: Tensor, part: BatchPart | None = None) -> None:
        self.model = model
        self.tree = model.tree
        self.x = x
        self.part = BatchPart(0, x.shape[0], x.shape[0]) if part is None else part
        self.levels = range(model.first_level, model.tree.height + 1)  # that are trained and searched
        self.prepared = model.scorer.prepare(model.tree, x)

    def drawn(self, draw: Callable[[int], Tensor]) -> Tensor:
        """The rows of these users, out of those drawn for the whole batch."""
        rows = draw(self.part.total)
        return self.part.of(rows) if len(rows) == self.part.total else rows

    def logits(self, level: int, nodes: Tensor) -> Tensor:
        """g(x, n) [B, W] of nodes [B or 1, W] of one level, -inf where a node is PAD."""
        logits: Tensor = self.model.scorer(self.prepared, level, nodes)
        return logits

    def logits_of(self, levels: list[tuple[int, Tensor]]) -> list[Tensor]:
        """g(x, n) [B, W] of nodes [B or 1, W] of each of some levels."""
        return self.model.scorer.levels(self.prepared, levels)

    def log_prob(self, level: int, nodes: Tensor) -> Tensor:
        """log p_g(z_n = 1 | x) [B, W] of nodes [B or 1, W] of one level."""
        if not self.model.chained:
            return logsigmoid(self.model.scorer.calibrated(level, self.logits(level, nodes)))
        above = [self.logits(h, self.tree.ancestor(nodes, h)) for h in self.levels if h <= level]
        return logsigmoid(torch.stack(above)).sum(0)

    def whole_level(self, level: int) -> Tensor:
        """g(x, n) of every node of a level [B, |N_h|], -inf where nothing lies below the node."""
        logits = self.model.scorer.whole_level(self.prepared, self.tree, level)
        blocked = self.tree.mask.blocked(level)
        return logits if blocked is None else logits.masked_fill(blocked, -torch.inf)

"""The items that a filter allows and that rules apply to, as masks that are kept for the next requests."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from beamtree.data import Ids
from beamtree.data.ages import AGE
from beamtree.data.catalogue import Catalogue
from beamtree.kernels.threads import ChangeLock
from beamtree.mask import NodeMask
from beamtree.model import TreeModel
from beamtree.query.request import Filter
from beamtree.query.rules import Boost, Rules
from beamtree.query.selection import AppliedRules, Groups, Values, Where, values_of, where_of
from beamtree.tree import PAD

K = TypeVar("K")
V = TypeVar("V")
CACHED_MASKS = 32
CACHED_RULES = 8


def allowed_items(filter: Filter, ids: Ids, catalogue: Catalogue | None = None, where: Where | None = None) -> Tensor:
    """The numbers of the items that pass a filter; unknown ids are ignored. `where` evaluates its expression."""
    passes = torch.full((len(ids),), filter.allowed is None)
    if filter.allowed is not None:
        passes[ids.find_known(filter.allowed)] = True
    if filter.category is not None:
        in_category = torch.zeros_like(passes)
        in_category[[] if catalogue is None else catalogue.in_category(filter.category)] = True
        passes &= in_category
    if filter.where is not None:
        passes &= torch.from_numpy(np.array((where or where_of(catalogue, filter.time))(filter.where)))
    passes[ids.find_known(filter.exclude)] = False
    return passes.nonzero().squeeze(1)


def columns_of(
    catalogue: Catalogue | None, filter: Filter | None, boosts: Iterable[Boost] = (), limits: Iterable[str] = ()
) -> list[str]:
    """The columns that a filter, boosts and limits read."""
    expressions = [*(boost.where for boost in boosts), None if filter is None else filter.where]
    names = list(limits) if filter is None or filter.category is None else [*limits, "category"]
    for where in expressions:
        if catalogue is not None and where is not None:
            names += catalogue.columns_read(where)
    return names


class Recent(Generic[K, V]):
    """The most recently used of values that are made when they are asked for, and again when a column changed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[K, tuple[V, dict[str, object]]] = OrderedDict()

    def get(
        self, key: K, make: Callable[[], V], catalogue: Catalogue | None, columns: Callable[[], Iterable[str]]
    ) -> V:
        """The value of a key, which is made from columns of a catalogue."""

        def column(name: str) -> object:
            return None if catalogue is None else catalogue.column(name)

        entry = self._entries.get(key)
        if entry is None or any(column(name) is not before for name, before in entry[1].items()):
            entry = self._entries[key] = make(), {name: column(name) for name in columns()}
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)
        self._entries.move_to_end(key)
        return entry[0]

    def clear(self) -> None:
        """Forget all values."""
        self._entries.clear()


class MaskCache:
    """The masks of the most recently used filters and rules, for one model at a time.

    They stay while the columns that they read are the same. What takes longest is kept apart: what expressions and
    columns say about the items stays where only the model changes, as when an item is hidden, and the groups of boosted
    items where a request has other pins or limits.
    """

    def __init__(self) -> None:
        self._lock = ChangeLock()
        self._model: TreeModel | None = None
        self._where: Recent[tuple[str, int, int | None], np.ndarray] = Recent(CACHED_MASKS)
        self._values: Recent[tuple[str, int], np.ndarray] = Recent(CACHED_RULES)
        self._masks: Recent[Filter, tuple[NodeMask, int]] = Recent(CACHED_MASKS)
        self._groups: Recent[tuple[Filter | None, tuple[Boost, ...], float | None], Groups] = Recent(CACHED_RULES)
        self._rules: Recent[tuple[Filter | None, Rules], AppliedRules] = Recent(CACHED_RULES)

    def get(
        self, filter: Filter, model: TreeModel, ids: Ids, catalogue: Catalogue | None = None
    ) -> tuple[NodeMask, int]:
        """The mask of a filter, and how many items it allows."""

        def make() -> tuple[NodeMask, int]:
            mask = model.tree.allow(allowed_items(filter, ids, catalogue, self._where_of(catalogue, filter.time)))
            return mask, int((mask.slots & (model.tree.items() != PAD)).sum())

        with self._lock:
            self._begin(model)
            return self._masks.get(filter, make, catalogue, lambda: columns_of(catalogue, filter))

    def apply(
        self, rules: Rules, filter: Filter | None, model: TreeModel, ids: Ids, catalogue: Catalogue | None = None
    ) -> AppliedRules:
        """Rules for the items that a filter allows."""
        tree, boosts, time = model.tree, rules.boosts, None if filter is None else filter.time
        days, fresh = (None, []) if rules.fresh is None else (rules.fresh.days, [AGE])

        def make_groups() -> Groups:
            mask = None if filter is None else self.get(filter, model, ids, catalogue)[0]
            return Groups.of(boosts, tree, ids, mask, self._where_of(catalogue, time), rules.fresh)

        def make() -> AppliedRules:
            groups = self._groups.get(
                (filter, boosts, days), make_groups, catalogue, lambda: columns_of(catalogue, filter, boosts, fresh)
            )
            return AppliedRules.in_groups(groups, rules, tree, ids, self._values_of(catalogue))

        def columns() -> list[str]:
            return columns_of(catalogue, filter, boosts, [*fresh, *(column for column, _ in rules.at_most)])

        with self._lock:
            self._begin(model)
            return self._rules.get((filter, rules), make, catalogue, columns)

    def _where_of(self, catalogue: Catalogue | None, time: int | None) -> Where:
        if catalogue is None:
            return where_of(None)
        return lambda expression: self._where.get(
            (expression, len(catalogue.ids), time),
            lambda: catalogue.passes(expression, time),
            catalogue,
            lambda: catalogue.columns_read(expression),
        )

    def _values_of(self, catalogue: Catalogue | None) -> Values:
        if catalogue is None:
            return values_of(None)
        return lambda column: self._values.get(
            (column, len(catalogue.ids)), lambda: catalogue.values(column), catalogue, lambda: [column]
        )

    def _begin(self, model: TreeModel) -> None:
        if model is not self._model:
            self._model = model
            self._masks.clear()
            self._groups.clear()
            self._rules.clear()

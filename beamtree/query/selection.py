"""The items of an answer under rules: candidates from the beam, and more where the rules need them.

`beamtree.query.rules` defines the answer. Items with the same product of boosts are a group: inside it the order of the
scores is that of the probabilities, so a beam search for its items alone finds its best. A group has a bound: no item
that was not found yet, and that the rules still admit, has a score above it. A place can be filled when enough
candidates are above all bounds. Otherwise the group with the highest bound is searched again, without the items that
are known and without those that `at_most` excludes by now. So the answer is exact but for what the beam loses, and it
never has fewer items than are possible.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch

from beamtree.data import Ids
from beamtree.data.ages import AGE, NO_AGES
from beamtree.data.catalogue import NO_ATTRIBUTES, Catalogue
from beamtree.mask import NodeMask
from beamtree.query.max_flow import Flow, Kind
from beamtree.query.rules import POOL, Boost, Fresh, Rules
from beamtree.tree import Tree

NONE_LEFT = -1.0  # a bound below all scores


class Group(NamedTuple):
    """Items with the same product of boosts."""

    factor: float
    mask: NodeMask
    is_new: bool = False  # as `fresh` says


Where = Callable[[str], np.ndarray]  # whether an expression is true for each item [M]
Values = Callable[[str], np.ndarray]  # of a column: a number for each item, the same for the same value, -1 for none


def where_of(catalogue: Catalogue | None, time: int | None = None) -> Where:
    """The expressions of a catalogue at a time; a ValueError for the first one where there is none."""
    return _no_attributes if catalogue is None else lambda expression: catalogue.passes(expression, time)


def values_of(catalogue: Catalogue | None) -> Values:
    """The columns of a catalogue, likewise."""
    return _no_attributes if catalogue is None else catalogue.values


def _no_attributes(asked: str) -> Any:
    raise ValueError(NO_AGES if AGE in asked else NO_ATTRIBUTES)


class Groups(NamedTuple):
    """The allowed items of one model by their products of boosts, and by whether they are new where that matters."""

    boosts: np.ndarray  # bit i: whether boost i applies to an item; the bit after the last: whether it is new [M]
    groups: tuple[Group, ...]
    group_of: np.ndarray  # the group of each item, -1 for one that is not allowed [M]

    @classmethod
    def of(
        cls,
        boosts: Sequence[Boost],
        tree: Tree,
        ids: Ids,
        mask: NodeMask | None,
        where: Where,
        fresh: Fresh | None = None,
    ) -> "Groups":
        """The groups of the items that a filter allows; unknown ids are ignored."""
        bits = np.zeros(len(ids), np.uint8)
        for index, boost in enumerate(boosts):
            bits[ids.find_known(boost.items) if boost.where is None else where(boost.where)] |= 1 << index
        if fresh is not None:
            bits[where(fresh.where)] |= 1 << len(boosts)
        leaves = tree.leaf_of_item(torch.arange(len(ids), device=tree.device))
        allowed = (mask or tree.mask).allows(leaves).cpu().numpy()
        counts = np.bincount(bits[allowed], minlength=2 << len(boosts))
        keys = {
            combination: (
                float(np.prod([boost.factor for index, boost in enumerate(boosts) if combination >> index & 1])),
                bool(combination >> len(boosts)),
            )
            for combination in counts.nonzero()[0].tolist()
        }
        different = sorted(set(keys.values()))
        group_of_bits = np.full(len(counts), -1, np.int8)
        for combination, key in keys.items():
            group_of_bits[combination] = different.index(key)
        group_of = np.where(allowed, group_of_bits[bits], np.int8(-1))
        masks = [tree.allow(torch.from_numpy((group_of == group).nonzero()[0])) for group in range(len(different))]
        groups = (Group(factor, mask, is_new) for (factor, is_new), mask in zip(different, masks, strict=True))
        return cls(bits, tuple(groups), group_of)


@dataclass(frozen=True, eq=False)
class AppliedRules:
    """Rules for the items of one model and one filter."""

    rules: Rules
    boosts: np.ndarray  # as in `Groups`, like the next two
    groups: tuple[Group, ...]
    group_of: np.ndarray
    values: tuple[np.ndarray, ...]  # of each column of `at_most`: a number for each item, -1 for none [M]
    pins: tuple[tuple[int, int], ...]  # (place, item) of allowed items, by place
    pin_mask: NodeMask

    @classmethod
    def of(
        cls,
        rules: Rules,
        tree: Tree,
        ids: Ids,
        catalogue: Catalogue | None,
        mask: NodeMask | None,
        time: int | None = None,
    ) -> "AppliedRules":
        """Apply rules to the items that a filter allows. Unknown ids are ignored."""
        groups = Groups.of(rules.boosts, tree, ids, mask, where_of(catalogue, time), rules.fresh)
        return cls.in_groups(groups, rules, tree, ids, values_of(catalogue))

    @classmethod
    def in_groups(cls, groups: Groups, rules: Rules, tree: Tree, ids: Ids, values: Values) -> "AppliedRules":
        """The same where the groups of the boosts are known."""
        numbers = ids.find([item for _, item in rules.pins])
        pins = tuple(
            (place, number)
            for (place, _), number in zip(rules.pins, numbers, strict=True)
            if number is not None and groups.group_of[number] >= 0
        )
        pin_mask = tree.allow(torch.tensor([item for _, item in pins], dtype=torch.int64))
        limited = tuple(values(column) for column, _ in rules.at_most)
        return cls(rules, *groups, limited, pins, pin_mask)

    def is_new(self, items: Sequence[int] | np.ndarray) -> np.ndarray:
        """Which items are new, as `fresh` says; none without it [n]."""
        result: np.ndarray = self.boosts[np.asarray(items, np.int64)] >> len(self.rules.boosts) > 0
        return result

    def kinds(self, items: Sequence[int] | np.ndarray) -> np.ndarray:
        """The values of items that `at_most` limits [n, columns]."""
        rows = np.asarray(items, np.int64)
        return np.stack([values[rows] for values in self.values], 1) if self.values else np.empty((len(rows), 0), int)

    def factors(self, items: Sequence[int]) -> np.ndarray:
        """The products of the boosts of allowed items [n]."""
        of_group = np.array([group.factor for group in self.groups])
        factors: np.ndarray = of_group[self.group_of[np.asarray(items, np.int64)]]
        return factors

    def boosts_of(self, item: int) -> list[str]:
        """The boosts that apply to an item, in words."""
        bits = int(self.boosts[item])
        return [str(boost) for index, boost in enumerate(self.rules.boosts) if bits >> index & 1]

    def left_out(self, item: int, answer: Sequence[int]) -> list[str]:
        """The rules that apply to an item that is not in an answer: its boosts, and the limits that it would exceed."""
        if self.group_of[item] < 0:
            return ["not allowed"]
        reasons = self.boosts_of(item)
        for (column, limit), values in zip(self.rules.at_most, self.values, strict=True):
            if values[item] >= 0 and int((values[list(answer)] == values[item]).sum()) >= limit:
                reasons.append(f"at most {limit} per {column}")
        fresh = self.rules.fresh
        if fresh is not None and not self.is_new([item])[0] and int(self.is_new(answer).sum()) <= fresh.least:
            reasons.append(str(fresh))
        return reasons


class SearchHits(NamedTuple):
    """Items that a search found, and their probabilities, best first."""

    items: Sequence[int]
    scores: Sequence[float]


Find = Callable[[np.ndarray, Sequence[int]], SearchHits]
Vectors = Callable[[Sequence[int]], np.ndarray]


class SelectedItem(NamedTuple):
    """An item of an answer."""

    item: int
    score: float
    rules: list[str]  # that decided that it is here, in words


class Selection:
    """Chooses the items of one answer.

    Args:
        applied: the rules.
        m: how many items.
        find: finds the best of some items, bool [M], without excluded ones.
        first: what it finds in each group.
        count: how many items it finds, fewer only if there are no more.
        pinned: the pinned items that may be in this answer, and their probabilities.
        vectors: the vectors of some items [n, dim].
    """

    def __init__(
        self,
        applied: AppliedRules,
        m: int,
        *,
        find: Find,
        first: Sequence[SearchHits],
        count: int,
        pinned: dict[int, float],
        vectors: Vectors,
    ) -> None:
        self._applied, self._rules, self._m, self._find, self._count = applied, applied.rules, m, find, count
        self._counts = [Counter[int]() for _ in self._rules.at_most]  # items of each value that are placed or pinned
        self._full = [set[int]() for _ in self._rules.at_most]  # values that no more items may have
        self._used: set[int] = set()  # items that are placed or pinned
        self._refused: set[Kind] = set()  # kinds that would leave room for too few items
        self._scores: dict[int, float] = {}  # of all candidates that are known
        self._add(first)
        self._bounds = [self._bound(index, found) for index, found in enumerate(first)]
        self._pins: list[tuple[int, int]] = []  # those that hold
        self._pin_scores: dict[int, float] = {}
        places = [(place, item) for place, item in applied.pins if place <= m and item in pinned]
        for (place, item), factor in zip(places, applied.factors([item for _, item in places]), strict=True):
            if self._has_room(self._kind(item)):
                self._pins.append((place, item))
                self._pin_scores[item] = pinned[item] * float(factor)
                self._use(item)
        unused = self._order[~self._is_used]
        self._best = self._scores[int(unused[0])] if len(unused) else 0.0
        self._vectors = vectors
        self._row_of: dict[int, int] = {}  # of an item in the next
        self._units = np.empty((0, 0))  # vectors of length 1

    def fill(self) -> list[SelectedItem]:
        """The items of the answer, in order."""
        start, fresh = self._state(), self._rules.fresh
        two_columns = len(self._rules.at_most) == 2
        # An answer of m items that does not look ahead is the right one: each of its items left room for the others.
        # With diversity it may not be: items that leave too little room are no candidates to choose from.
        answer = [] if two_columns and self._rules.diversity else self._fill(None)
        if len(answer) < self._m and two_columns:
            self._return_to(start)
            size = len(self._pins) + self._most(self._m - len(self._pins))
            if size > len(answer):  # an item took the room of two others
                answer = self._fill(size)
        items = [placed.item for placed in answer]
        # An answer with enough new items is the right one; but diversity would choose among other candidates.
        enough = fresh is None or int(self._applied.is_new(items).sum()) >= fresh.least
        if fresh is not None and (self._rules.diversity or not enough):
            self._return_to(start)
            answer = self._fill(len(items) if two_columns else None, reserve_in=len(items))
        return answer

    def _state(self) -> tuple[list[float], list[Counter[int]], list[set[int]], set[int]]:
        """What changes while places are filled."""
        counts, full = [counter.copy() for counter in self._counts], [values.copy() for values in self._full]
        return self._bounds.copy(), counts, full, self._used.copy()

    def _return_to(self, state: tuple[list[float], list[Counter[int]], list[set[int]], set[int]]) -> None:
        """Begin again; the candidates that were found stay."""
        self._bounds, self._counts, self._full, self._used = state
        self._bounds, self._counts, self._full, self._used = self._state()  # copies: it may be returned to again
        self._refused.clear()
        self._mark()

    def _is_reserved(self, answer: Sequence[SelectedItem], pins: Sequence[tuple[int, int]], size: int) -> bool:
        """Whether the next place without a pin of an answer of so many items is for a new item."""
        if self._rules.fresh is None:
            return False
        taken = {*(placed.item for placed in answer), *(item for _, item in pins)}
        missing: int = self._rules.fresh.least - int(self._applied.is_new([*taken]).sum())
        return missing > 0 and size - len(taken) <= missing

    def _fill(self, size: int | None, reserve_in: int | None = None) -> list[SelectedItem]:
        """Fill the places; if a size is given, with items that leave room for so many.

        Where the number of items is given of which some must be new, places are reserved for these.
        """
        answer: list[SelectedItem] = []
        pins = deque(self._pins)
        while len(answer) < self._m:
            pool, is_reserved = list[int](), False
            if not pins or pins[0][0] > len(answer) + 1:
                is_reserved = reserve_in is not None and self._is_reserved(answer, pins, reserve_in)
                pool = (self._pool(size, only_new=True) if is_reserved else []) or self._pool(size)
            if not pool and not pins:
                break
            if not pool:
                place, item = pins.popleft()
                reasons = [f"pin at {place}", *self._applied.boosts_of(item)]
                answer.append(SelectedItem(item, self._pin_scores[item], reasons))
                continue
            item = self._most_different(pool, [placed.item for placed in answer])
            answer.append(SelectedItem(item, self._scores[item], self._reasons(item, pool[0], is_reserved)))
            self._use(item)
        return answer

    # Candidates

    def _add(self, results: Iterable[SearchHits]) -> None:
        """Add items to the candidates."""
        for found in results:
            scores = np.array(found.scores, np.float64) * self._applied.factors(found.items)
            self._scores.update(zip(found.items, scores.tolist(), strict=True))
        count = len(self._scores)
        items, scores = (
            np.fromiter(each, kind, count)
            for each, kind in ((self._scores, np.int64), (self._scores.values(), np.float64))
        )
        self._order = items[np.lexsort((items, -scores))]  # the candidates, best first [n]
        self._kinds = self._applied.kinds(self._order)  # [n, columns]
        self._mark()

    def _mark(self) -> None:
        """Note which of the candidates are placed or pinned, and which of the others have a value that is full."""
        self._is_used = np.isin(self._order, list(self._used))
        self._is_open = ~self._is_used
        for values, full in zip(self._kinds.T, self._full, strict=True):
            self._is_open &= ~np.isin(values, list(full))

    def _kind(self, item: int) -> Kind:
        return tuple(int(values[item]) for values in self._applied.values)

    def _bound(self, group: int, found: SearchHits) -> float:
        """The highest score that an item of a group may have which the last search did not find."""
        return NONE_LEFT if len(found.items) < self._count else found.scores[-1] * self._applied.groups[group].factor

    def _find_in_group(self, group: int, admitted: np.ndarray) -> SearchHits:
        """Search a group for new candidates among the admitted items [M]."""
        of_group = self._applied.group_of == group
        return self._find(of_group & admitted, self._order[of_group[self._order]].tolist())

    def _pool(self, size: int | None, only_new: bool = False) -> list[int]:
        """The best candidates for the next place, or new ones; more than one only for diversity to choose from."""
        if size is not None and len(self._used) >= size:
            return []
        wanted, accepted = POOL if self._rules.diversity else 1, set[Kind]()
        need = 0 if size is None else size - len(self._used) - 1  # items after the next
        # An item takes the room of two others at most.
        every_kind = size is None or self._some_items(need + 2) == need + 2
        if not every_kind:
            flow = self._flow(need + 2)
            every_kind = flow.number == need + 2
            accepted = flow.exchangeable()

        def fits(kind: Kind) -> bool:
            if kind in self._refused:
                return False
            if not every_kind and kind not in accepted:
                if self._most(need, kind) < need:
                    self._refused.add(kind)
                    return False
                accepted.add(kind)
            return True

        while True:
            order = self._order
            is_open = self._is_open & self._applied.is_new(order) if only_new else self._is_open
            rows = is_open.nonzero()[0]
            if not every_kind or self._refused:
                kinds = self._kinds
                fitting = (row for row in rows.tolist() if fits(tuple(kinds[row].tolist())))
                rows = np.array(list(islice(fitting, wanted)), np.int64)
            pool: list[int] = order[rows[:wanted]].tolist()
            if order is not self._order:  # `fits` found more candidates
                continue
            worst = self._scores[pool[-1]] if len(pool) == wanted else NONE_LEFT
            groups = (index for index, each in enumerate(self._applied.groups) if each.is_new or not only_new)
            group = max(groups, key=self._bounds.__getitem__, default=None)
            if group is None or self._bounds[group] <= worst:
                return pool
            admitted = self._open_items(self._full)
            for kind in self._refused:
                admitted &= ~np.all(
                    [column == value for column, value in zip(self._applied.values, kind, strict=True)], 0
                )
            found = self._find_in_group(group, admitted)
            self._bounds[group] = self._bound(group, found)
            self._add([found])

    # At most n of one kind

    def _use(self, item: int) -> None:
        self._used.add(item)
        self._is_used |= self._order == item
        self._is_open &= self._order != item
        for column, value in enumerate(self._kind(item)):
            self._counts[column][value] += 1
            if value >= 0 and self._counts[column][value] >= self._rules.at_most[column][1]:
                self._full[column].add(value)
                self._is_open &= self._kinds[:, column] != value

    def _has_room(self, kind: Kind) -> bool:
        return not any(value in full for value, full in zip(kind, self._full, strict=True))

    def _open_items(self, closed: Sequence[set[int]]) -> np.ndarray:
        """Which items have no closed value in any column [M]."""
        result = np.ones(len(self._applied.group_of), bool)
        for values, numbers in zip(self._applied.values, closed, strict=True):
            if numbers:
                result &= ~np.isin(values, list(numbers))
        return result

    def _some_items(self, enough: int) -> int:
        """How many more items an answer can have at least, up to `enough`: those that are taken one by one."""
        counts, number = [counter.copy() for counter in self._counts], 0
        limits = [limit for _, limit in self._rules.at_most]
        for row in self._is_open.nonzero()[0]:
            if number == enough:
                break
            kind = self._kinds[row].tolist()
            if all(
                value < 0 or counter[value] < limit for counter, value, limit in zip(counts, kind, limits, strict=True)
            ):
                number += 1
                for counter, value in zip(counts, kind, strict=True):
                    counter[value] += 1
        return number

    def _most(self, enough: int, taken: Kind | None = None) -> int:
        """How many more items an answer can have, beside one of a kind that is `taken`: `enough`, or all there can be.

        Where the candidates are too few, a minimum cut names the values by which they are limited. Every item without
        these would help, so they are searched for; if there are none, the number is the largest for all items.
        """
        if taken is None and self._some_items(enough) == enough:
            return enough
        while (flow := self._flow(enough, taken)).number < enough:
            admitted = self._open_items([closed | full for closed, full in zip(flow.cut(), self._full, strict=True)])
            results = [self._find_in_group(group, admitted) for group in range(len(self._applied.groups))]
            if not any(found.items for found in results):
                break
            self._add(results)
        return flow.number

    def _flow(self, enough: int, taken: Kind | None = None) -> Flow:
        """The largest selection of candidates, up to `enough`, beside one of a kind that is `taken`."""
        available = Counter(map(tuple, self._kinds[~self._is_used].tolist()))
        if taken is not None:
            available[taken] -= 1
        limits = [limit for _, limit in self._rules.at_most]
        room = [
            {value: limit - count - (taken is not None and taken[column] == value) for value, count in counter.items()}
            for column, (counter, limit) in enumerate(zip(self._counts, limits, strict=True))
        ]
        if taken is not None:
            room = [{value: limit - 1} | left for value, limit, left in zip(taken, limits, room, strict=True)]
        return Flow(available, room, limits, enough)

    # Diversity

    def _most_different(self, pool: list[int], placed: list[int]) -> int:
        """Of some candidates, best first, the one with the highest marginal relevance after the items placed."""
        weight = self._rules.diversity
        if len(pool) == 1 or not placed:
            return pool[0]
        new = [item for item in (*pool, *placed) if item not in self._row_of]
        if new:  # and those that may be in the next pools
            likely = self._order[self._is_open][: 2 * POOL].tolist()
            new = list(dict.fromkeys([*new, *(item for item in likely if item not in self._row_of)]))
            vectors = self._vectors(new).astype(np.float64)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            units = vectors / np.where(lengths > 0, lengths, 1.0)
            self._units = np.concatenate([self._units, units]) if self._row_of else units
            self._row_of.update(zip(new, range(len(self._row_of), len(self._units)), strict=True))
        units, before = (self._units[[self._row_of[item] for item in items]] for items in (pool, placed))
        relevance = np.array([self._scores[item] for item in pool]) / (self._best or 1.0)
        return pool[int(((1 - weight) * relevance - weight * (units @ before.T).max(1)).argmax())]

    # Reasons

    def _reasons(self, item: int, best: int, is_reserved: bool = False) -> list[str]:
        """The rules that brought an item to the next place, of which `best` is the best candidate."""
        reasons = self._applied.boosts_of(item)
        highest = int(self._order[(~self._is_used).argmax()])
        if is_reserved and self._applied.is_new([best])[0] and not self._applied.is_new([highest])[0]:
            reasons.append(str(self._rules.fresh))
        elif highest != best:  # it has the highest score, and is not a candidate
            kind = self._kind(highest)
            full = [column for column, value in enumerate(kind) if value in self._full[column]]
            limits = [self._rules.at_most[column] for column in full or range(len(kind))]
            reasons += [f"at most {limit} per {column}" for column, limit in limits]
        if item != best:
            reasons.append(f"diversity {self._rules.diversity:g}")
        return reasons

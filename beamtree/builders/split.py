"""Groups of items cut into equal parts, level by level, until every item has a leaf of its own.

Over ranks the items are held in runs of their numbers. The levels of few groups are cut by all ranks together: sums go
from rank to rank, never vectors. Then every rank gets whole groups, and cuts these by itself.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.builders.matching import rank_in
from beamtree.builders.select import parts_over_ranks
from beamtree.data.seeds import draw_rows
from beamtree.distributed.exchange import joined, send
from beamtree.distributed.group import Ranks, ranks
from beamtree.tree import PAD, Tree, height_for

TURNS = 10  # of power iteration per split
MEANS = 5  # of balanced k-means after it
SHARED = 2  # of moving items to where what they are chosen with is
EACH = 4  # groups per rank from which each goes on by itself
ALONE = Ranks()


class Chosen(NamedTuple):
    """Which row, a user or a run of events, holds which item: every pair once."""

    row: Tensor  # [E]
    item: Tensor  # [E]


def split_tree(vectors: Tensor, chosen: Chosen | None = None, *, arity: int = 2, seed: int = 0) -> Tree:
    """Cut every group of a level into b equal parts, all groups at once.

    The first cut is along the group's first principal direction; balanced k-means then moves it between the means of
    the parts. With `chosen`, items last go to the part where more of what they are chosen with is.
    """
    share = ranks().share(len(vectors))
    if chosen is not None and ranks().size > 1:
        rows = ranks().share(int(chosen.row.max()) + 1 if len(chosen.row) else 0)
        own = (chosen.row >= rows.start) & (chosen.row < rows.stop)
        chosen = Chosen(chosen.row[own], chosen.item[own])
    return split_rows(vectors[share.start : share.stop], len(vectors), chosen, arity=arity, seed=seed)


def split_rows(own: Tensor, count: int, chosen: Chosen | None = None, *, arity: int = 2, seed: int = 0) -> Tree:
    """The same from the vectors of this rank's share of `count` items, and from rows of `chosen` that it alone has.

    Args:
        own: vectors of the items of `ranks().share(count)` [n, dim].
        count: M.
        chosen: rows, each with all of its items.
        arity: b.
        seed: same seed, same tree.
    """
    start = ranks().share(count).start
    with ranks().agreed():
        check_vectors(own, start)
    height, device = height_for(count, arity), own.device
    generator = torch.Generator(device).manual_seed(seed)
    items = torch.arange(start, start + len(own), device=device)  # group by group
    group = torch.zeros(len(own), dtype=torch.int64, device=device)
    groups = Groups(own, items, group, range(1), count, None, ranks())
    together = next(level for level in range(height + 1) if level == height or arity**level >= _enough())
    for level in range(height):
        if level == together:
            groups, chosen = groups.handed_out(chosen)
        groups, chosen = groups.cut(chosen, arity, arity**level, generator)
    if together == height:
        groups, chosen = groups.handed_out(chosen)
    slots = torch.full((len(groups.numbers),), PAD, device=device)
    slots[groups.group] = groups.items if groups.names is None else groups.names[groups.items]
    return Tree(joined(slots), arity)


def _enough() -> int:
    """Groups from which each rank goes on by itself."""
    return 1 if ranks().size == 1 else EACH * ranks().size


def check_vectors(vectors: Tensor, start: int = 0) -> None:
    """Raise a ValueError where a vector is not finite; the first is that of item `start`."""
    if not bool(torch.isfinite(vectors).all()):
        row = start + int((~torch.isfinite(vectors)).any(1).nonzero()[0])
        raise ValueError(f"the vector of item {row} holds NaN or infinity: clean it before building a tree")


@dataclass(frozen=True)
class Groups:
    """Items in groups on some level, group by group, and in a group in the order of their numbers.

    Args:
        vectors: of the items that are here [n, dim].
        items: their numbers [n].
        group: of each, counted from the first that is here [n].
        numbers: the groups that are here, of all groups of the level.
        count: how many items `items` counts from 0, wherever they are.
        names: the numbers that they have in the end, where `items` are others [count].
        over: those who have items of these groups.
    """

    vectors: Tensor
    items: Tensor
    group: Tensor
    numbers: range
    count: int
    names: Tensor | None
    over: Ranks

    def cut(
        self, chosen: Chosen | None, arity: int, level_size: int, generator: torch.Generator
    ) -> "tuple[Groups, Chosen | None]":
        """The groups of the next level, and the rows that still hold two items of a group."""
        along = self._principal(self._drawn(level_size, generator))
        for _ in range(MEANS):
            along = self._between_means(self._parts(along, arity), arity)
        if chosen is not None:
            chosen, along = self._toward_shared(chosen, along, arity)
        group = self._parts(along, arity)
        order = group.argsort(stable=True)
        numbers = range(self.numbers.start * arity, self.numbers.stop * arity)
        found = replace(self, vectors=self.vectors[order], items=self.items[order], group=group[order], numbers=numbers)
        return found, chosen

    def handed_out(self, chosen: Chosen | None) -> "tuple[Groups, Chosen | None]":
        """Whole groups for every rank, with what was chosen of their items."""
        if self.over.size == 1:
            return self, chosen
        size, share = self.over.size, self.over.share(len(self.numbers))
        ends = torch.tensor([share.total * rank // size for rank in range(1, size)], device=self.items.device)

        def owner(group: Tensor) -> Tensor:
            return torch.bucketize(group, ends, right=True)

        if chosen is not None:
            group_of = self._of_items(self.group)
            chosen = Chosen(*send(owner(group_of[chosen.item]), *chosen))
        items, group, vectors = send(owner(self.group), self.items, self.group, self.vectors)
        names = items.sort().values
        if chosen is not None:
            chosen = Chosen(chosen.row, torch.searchsorted(names, chosen.item))
        order = (group * self.count + items).argsort()
        found = Groups(
            vectors[order],
            torch.searchsorted(names, items[order]),
            group[order] - share.start,
            range(share.start, share.stop),
            len(names),
            names,
            ALONE,
        )
        return found, chosen

    def _parts(self, along: Tensor, arity: int) -> Tensor:
        """The part of each item [n], as a group of the next level: equally many items each, in the order of `along`."""
        size = self.over.sum_(torch.bincount(self.group, minlength=len(self.numbers)))
        if self.over.size == 1:
            return self.group * arity + rank_in(self.group, -along) * arity // size[self.group]
        return self.group * arity + parts_over_ranks(along, self.group, size, arity, self.over)

    def _principal(self, direction: Tensor) -> Tensor:
        """Where each vector lies along its group's first principal direction [n], by power iteration."""
        vectors = self.vectors - self._means(self.group, len(self.numbers))[self.group]
        along = (vectors * direction[self.group]).sum(1)
        for _ in range(TURNS):
            sums = self._sums(vectors * along.unsqueeze(1), self.group, len(self.numbers))
            direction = torch.nn.functional.normalize(sums)
            along = (vectors * direction[self.group]).sum(1)
        return along

    def _drawn(self, level_size: int, generator: torch.Generator) -> Tensor:
        """A direction for every group that is here, of those drawn for the whole level."""
        first, last = self.numbers.start, self.numbers.stop
        drawn = draw_rows(level_size, self.vectors.shape[1], generator)
        return torch.cat([piece[max(0, first - start) : max(0, last - start)] for start, piece in drawn])

    def _between_means(self, part: Tensor, arity: int) -> Tensor:
        """Where each vector lies between the means of its group's first and last part [n]."""
        means = self._means(part, len(self.numbers) * arity).view(len(self.numbers), arity, -1)
        direction = means[:, -1] - means[:, 0]
        return (self.vectors * direction[self.group]).sum(1)

    def _toward_shared(self, chosen: Chosen, along: Tensor, arity: int) -> tuple[Chosen, Tensor]:
        """The rows that still hold two items of a group, and on which side most of what each is chosen with lies."""
        group_of = self._of_items(self.group)
        rows = int(chosen.row.max()) + 1 if len(chosen.row) else 1
        _, row = torch.unique(group_of[chosen.item] * rows + chosen.row, return_inverse=True)
        size = torch.bincount(row, minlength=1)
        kept = size[row] > 1
        chosen, row = Chosen(chosen.row[kept], chosen.item[kept]), row[kept]
        times = self.over.sum_(torch.bincount(chosen.item, minlength=self.count))
        for _ in range(SHARED):
            side = self._of_items((self._parts(along, arity) % arity).to(along.dtype) / (arity - 1) - 0.5)
            of_row = along.new_zeros(len(size)).index_add_(0, row, side[chosen.item]) / size
            of_item = along.new_zeros(self.count).index_add_(0, chosen.item, of_row[row])
            of_item = self.over.sum_(of_item) / times.clamp(min=1)
            along = of_item[self.items] + 1e-3 * torch.tanh(along)  # what shares nothing stays where it was
        return chosen, along

    def _of_items(self, values: Tensor) -> Tensor:
        """A value for every item, in the order of their numbers, from those of the items that are here."""
        found = values.new_zeros(self.count)
        found[self.items] = values
        return self.over.sum_(found)

    def _means(self, group: Tensor, groups: int) -> Tensor:
        size = self.over.sum_(torch.bincount(group, minlength=groups)).clamp(min=1).unsqueeze(1)
        return self._sums(self.vectors, group, groups) / size

    def _sums(self, vectors: Tensor, group: Tensor, groups: int) -> Tensor:
        return self.over.sum_(sums(vectors, group, groups))


def sums(vectors: Tensor, group: Tensor, groups: int) -> Tensor:
    """The sum of each group's vectors [groups, dim]."""
    return vectors.new_zeros(groups, vectors.shape[1]).index_add_(0, group, vectors)

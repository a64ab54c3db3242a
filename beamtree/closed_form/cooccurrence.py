"""How often two items are chosen by the same user: a sparse matrix over items."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from beamtree.data.csr import CSR, entries_of_rows, group_rows, offsets_of, sum_duplicates
from beamtree.data.events import Events
from beamtree.data.factors import weighted_pairs
from beamtree.kernels import sparse
from beamtree.kernels.threads import one_thread

PAIRS_AT_ONCE = 1 << 22  # pairs that are listed at once
DENSE = 1 << 26  # cells up to which a matrix is summed dense
PENDING = 1 << 24  # pairs that are collected before they are summed
POPULAR = 6144  # items among which a matrix is kept dense
LONGEST = 300  # events of a user that are paired with each other; longer histories are cut into runs

Entries = tuple[Tensor, Tensor, Tensor]  # row, column and value [n]


@dataclass(frozen=True)
class ItemMatrix(CSR):
    """A sparse matrix over items [M, M]; the columns of a row rise."""

    values: Tensor

    @property
    def is_local(self) -> bool:
        """Whether all of it is in the memory that a CPU reads, so that compiled functions can."""
        return type(self) is ItemMatrix and self.values.device.type == "cpu"

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor]:
        """Offsets, columns and values."""
        return self.offsets, self.columns, self.values

    def rows(self, which: Tensor, among: Tensor | None = None) -> Entries:
        """The entries of some rows: index in `which`, column and value.

        The caller only needs columns of `among`, which rise; a matrix for which that saves work leaves out others.
        """
        index, entries = entries_of_rows(self.offsets, which)
        return index, self.columns[entries], self.values[entries]

    def row_sums(self) -> Tensor:
        """[M]."""
        return self.values.new_zeros(len(self)).index_add_(0, self.row_of_entry(), self.values)

    def diagonal(self) -> Tensor:
        """[M]."""
        row = self.row_of_entry()
        on_diagonal = row == self.columns
        return self.values.new_zeros(len(self)).index_add_(0, row[on_diagonal], self.values[on_diagonal])

    def dense(self, items: Tensor) -> Tensor:
        """The block of some items [n, n]."""
        if self.is_local:
            return sparse.dense(self.arrays, items, items)
        index_of = torch.full((len(self),), -1, dtype=torch.int64, device=items.device)
        index_of[items] = torch.arange(len(items), device=items.device)
        block = self.values.new_zeros(len(items), len(items))
        for part in items.split(256):
            row, column, value = ItemMatrix.rows(self, part)
            inside = index_of[column] >= 0
            block[index_of[part][row[inside]], index_of[column[inside]]] = value[inside]
        return block

    @cached_property
    def blocks(self) -> "DenseBlocks":
        """Dense blocks of a symmetric matrix."""
        return DenseBlocks(self)

    @cached_property
    def whole(self) -> Tensor:
        """All of a small matrix [M, M]."""
        return self.dense(torch.arange(len(self), device=self.offsets.device))


class DenseBlocks:
    """Dense blocks of a symmetric sparse matrix.

    The rows of popular items are long, and popular items predict every block: among these the matrix is kept dense,
    and what they share with other items is read from the others' rows.
    """

    @one_thread()
    def __init__(self, gram: ItemMatrix) -> None:
        self.gram = gram
        count = gram.counts()
        self.popular = count.topk(min(POPULAR, len(count))).indices.sort().values
        self._index = torch.full((len(gram),), -1, dtype=torch.int64, device=count.device)
        self._rank = self._index.clone()  # among the popular
        self._rank[self.popular] = torch.arange(len(self.popular), device=count.device)
        self._dense = gram.dense(self.popular)

    @one_thread()
    def of(self, items: Tensor) -> Tensor:
        """The block of items in rising order [S, S]."""
        if len(items) == len(self.popular) == len(self.gram):
            return self._dense.clone()
        if self.gram.is_local:
            return sparse.dense_block(self.gram.arrays, items, self._rank, self._dense)
        rank = self._rank[items]
        block = self.gram.values.new_zeros(len(items), len(items))
        popular, others = (rank >= 0).nonzero().squeeze(1), (rank < 0).nonzero().squeeze(1)
        block[popular.unsqueeze(1), popular] = self._dense[rank[popular].unsqueeze(1), rank[popular]]
        if len(self.popular) == len(self.gram):
            return block
        self._index[items] = torch.arange(len(items), device=items.device)
        row, column, value = self.gram.rows(items[others], items)
        at = self._index[column]
        inside = at >= 0
        row, at, value = others[row[inside]], at[inside], value[inside]
        block[row, at] = value
        block[at, row] = value
        self._index[items] = -1
        return block


def matrix_of(key: Tensor, values: Tensor, num_items: int) -> ItemMatrix:
    """The matrix of entries with distinct keys row * M + column, in rising order."""
    offsets = offsets_of(torch.bincount(key // num_items, minlength=num_items))
    return ItemMatrix(offsets, key % num_items, values)


def sum_cells(entries: Iterable[Entries], num_items: int, device: torch.device) -> Tensor:
    """The sum of entries in every cell of a dense matrix, row by row [M²]."""
    cells = torch.zeros(num_items**2, device=device)
    for row, column, value in entries:
        cells.index_add_(0, row * num_items + column, value)
    return cells


def matrix_of_cells(cells: Tensor, num_items: int) -> ItemMatrix:
    """The sparse matrix of the cells that are not 0."""
    key = cells.nonzero().squeeze(1)
    return matrix_of(key, cells[key], num_items)


def sum_entries(entries: Iterable[Entries], num_items: int, device: torch.device) -> ItemMatrix:
    """The matrix that adds up entries (row, column, value), in which pairs repeat."""
    if num_items**2 <= DENSE:
        return matrix_of_cells(sum_cells(entries, num_items, device), num_items)
    keys, values = [torch.empty(0, dtype=torch.int64, device=device)], [torch.empty(0, device=device)]
    pending = 0
    for row, column, value in entries:
        keys.append(row * num_items + column)
        values.append(value)
        pending += len(row)
        if pending > max(PENDING, len(keys[0])):
            key, total = sum_duplicates(torch.cat(keys), torch.cat(values))
            keys, values, pending = [key], [total], 0
    return matrix_of(*sum_duplicates(torch.cat(keys), torch.cat(values)), num_items)


def sum_products(first: CSR, second: CSR, num_items: int) -> ItemMatrix:
    """AᵀB of two matrices with the same rows, on a CPU."""
    assert first.values is not None
    assert second.values is not None
    a, b = (first.offsets, first.columns, first.values), (second.offsets, second.columns, second.values)
    return ItemMatrix(*sparse.sum_products(a, b, num_items))


def cooccurrence(events: Events, num_items: int, power: float = 0.0) -> ItemMatrix:
    """XᵀX: how many users, or runs of users with many events, chose both of two items.

    Where events have weights, X has their square roots. With a power a, a user or run of n items counts n⁻ᵃ.
    """
    if events.offsets.device.type == "cpu":
        runs = items_of_runs(events, num_items, power)
        values = torch.ones(len(runs.columns)) if runs.values is None else runs.values
        chosen = CSR(runs.offsets, runs.columns.int(), values)
        return sum_products(chosen, chosen, num_items)
    with one_thread():
        return sum_entries(cooccurring_pairs(events, num_items, power), num_items, events.offsets.device)


def items_of_runs(events: Events, num_items: int, power: float = 0.0) -> CSR:
    """The distinct items of each user, or of each run of at most LONGEST events, with the roots of their weights.

    With a power a, the weights in a row of n items are multiplied by n⁻ᵃ.
    """
    count = events.counts()
    runs = -(-count // LONGEST)
    user = torch.repeat_interleave(runs)
    run = torch.arange(len(user), device=user.device) - (runs.cumsum(0) - runs)[user]
    starts = events.offsets[:-1][user] + run * count[user] // runs[user]
    in_runs = replace(events, offsets=torch.cat([starts, events.offsets[-1:]]))
    row, item, weight = weighted_pairs(in_runs, num_items)
    if power:
        share = torch.bincount(row).float()[row] ** -power
        weight = share if weight is None else share * weight
    return group_rows(row, item, int(row.max()) + 1 if len(row) else 0, None if weight is None else weight.sqrt())


def cooccurring_pairs(events: Events, num_items: int, power: float = 0.0) -> Iterator[Entries]:
    """Every pair of items of each user, or of each run of at most LONGEST events."""
    runs = items_of_runs(events, num_items, power)
    for rows, items, real in runs.pairs(PAIRS_AT_ONCE):
        roots = runs.padded_values(rows, items.shape[1])
        first, second = (part.expand_as(real)[real] for part in (items.unsqueeze(2), items.unsqueeze(1)))
        yield first, second, (roots.unsqueeze(2) * roots.unsqueeze(1))[real]

"""Compressed rows: lists of different lengths in one array, such as the items of each user."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.kernels import sparse

SORTED_AT_ONCE = 1 << 25  # entries: sorting needs several times their own memory


@dataclass(frozen=True)
class CSR:
    """Row i has columns[offsets[i]:offsets[i + 1]], with one value each where it has values."""

    offsets: Tensor  # int64 [n + 1]
    columns: Tensor  # [E]
    values: Tensor | None = None  # [E]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.offsets) - 1

    def counts(self) -> Tensor:
        """The length of each row [n]."""
        return self.offsets.diff()

    def row_of_entry(self) -> Tensor:
        """The row of each entry [E]."""
        return torch.repeat_interleave(self.counts())

    def take(self, rows: Tensor) -> Self:
        """Some rows, in the order given."""
        _, entries = entries_of_rows(self.offsets, rows)
        offsets = offsets_of(self.offsets[rows + 1] - self.offsets[rows])
        return self._with_entries(offsets, entries)

    def filter(self, mask: Tensor) -> Self:
        """The same rows with the entries of a mask [E]."""
        return self._with_entries(offsets_of(mask)[self.offsets], mask)

    def head(self, most: int) -> Self:
        """The first `most` entries of each row."""
        index = torch.arange(len(self.columns), device=self.offsets.device)
        return self.filter(index - self.offsets[:-1].repeat_interleave(self.counts()) < most)

    def scaled(self, by: float) -> Self:
        """The same with values multiplied by a number."""
        assert self.values is not None
        return replace(self, values=self.values * by)

    def cpu(self) -> Self:
        """The same on the CPU."""
        values = None if self.values is None else self.values.cpu()
        return replace(self, offsets=self.offsets.cpu(), columns=self.columns.cpu(), values=values)

    def _with_entries(self, offsets: Tensor, entries: Tensor) -> Self:
        values = None if self.values is None else self.values[entries]
        return replace(self, offsets=offsets, columns=self.columns[entries], values=values)

    def padded(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """The first `width` columns of some rows [B, width], and which of them are real."""
        index, real = self._padded_index(rows, width)
        return self.columns[index], real

    def padded_values(self, rows: Tensor, width: int) -> Tensor:
        """The values of these columns, 1 where it has no values; 0 where they are not real [B, width]."""
        index, real = self._padded_index(rows, width)
        return real.float() if self.values is None else self.values[index] * real

    def _padded_index(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        start, count = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        index = torch.arange(width, device=rows.device)
        real = index < count.unsqueeze(1)
        return torch.where(real, start.unsqueeze(1) + index, 0), real

    def batches(self, room: int, most: int = 4096, above: int = 0) -> Iterator[tuple[Tensor, int]]:
        """Rows of more than `above` entries, short ones first: (rows, longest), at most `room` cells each."""
        counts, order = self.counts().cpu().sort()
        start = int(torch.searchsorted(counts, above + 1))
        while start < len(order):
            # The longest of a batch is its last, so its size is known from its end.
            sizes = torch.arange(1, len(order) - start + 1)
            stop = start + max(1, int((sizes[:most] * counts[start : start + most] <= room).sum()))
            yield order[start:stop].to(self.offsets.device), int(counts[stop - 1])
            start = stop

    def pairs(self, room: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Some rows, their columns [B, W], and which pairs of these are real [B, W, W], at most `room` at once."""
        for batch, width in self.batches(room):
            for rows in batch.split(max(1, room // width**2)):
                columns, real = self.padded(rows, width)
                yield rows, columns, real.unsqueeze(2) & real.unsqueeze(1)


def offsets_of(counts: Tensor) -> Tensor:
    """Where rows of these lengths [n] begin, and the end [n + 1]."""
    return pad(counts.cumsum(0), (1, 0))


def entries_of_rows(offsets: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The entries of some rows: the index in `rows` that each belongs to, and its own index."""
    count = offsets[rows + 1] - offsets[rows]
    index = torch.repeat_interleave(count)
    first = count.cumsum(0) - count
    return index, torch.arange(len(index), device=index.device) - first[index] + offsets[rows][index]


def group_rows(row: Tensor, columns: Tensor, num_rows: int, values: Tensor | None = None) -> CSR:
    """Rows of entries [E] in any order; entries of a row keep theirs."""
    order = row.argsort(stable=True)
    offsets = offsets_of(torch.bincount(row, minlength=num_rows))
    return CSR(offsets, columns[order], None if values is None else values[order])


def concatenate(parts: list[CSR]) -> CSR:
    """The rows of several, one after the other."""
    ends = torch.tensor([0, *(len(part.columns) for part in parts)]).cumsum(0).tolist()
    offsets = [part.offsets[:-1] + end for part, end in zip(parts, ends, strict=False)]
    values = [part.values for part in parts if part.values is not None]
    return CSR(
        torch.cat([*offsets, parts[-1].offsets.new_tensor(ends[-1:])]),
        torch.cat([part.columns for part in parts]),
        torch.cat(values) if values else None,
    )


def strongest(row: Tensor, column: Tensor, value: Tensor, num_rows: int, most: int = 100) -> CSR:
    """The `most` entries of each row with the largest absolute values, strongest first; each pair occurs once."""
    if row.device.type == "cpu":
        return CSR(*sparse.strongest(row, column, value, num_rows, most))
    order = value.abs().argsort(descending=True)
    order = order[row[order].argsort(stable=True)]
    row, column, value = row[order], column[order], value[order]
    start = offsets_of(torch.bincount(row, minlength=num_rows))
    keep = (torch.arange(len(row), device=row.device) - start[row] < most) & (value != 0)
    offsets = offsets_of(torch.bincount(row[keep], minlength=num_rows))
    return CSR(offsets, column[keep].int(), value[keep].float())


def strongest_in_rounds(row: Tensor, column: Tensor, value: Tensor, num_rows: int, most: int) -> CSR:
    """`strongest` for so many entries that they are sorted a range of rows at a time."""
    rounds = -(-len(row) // SORTED_AT_ONCE) or 1
    parts = []
    for i in range(rounds):
        first, last = num_rows * i // rounds, num_rows * (i + 1) // rounds
        mask = ((row >= first) & (row < last)).nonzero().squeeze(1) if rounds > 1 else slice(None)
        parts.append(strongest(row[mask].long() - first, column[mask].long(), value[mask], last - first, most))
    return concatenate(parts)


def sum_duplicates(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct keys in rising order, and the sum of the values of each."""
    key, order = key.sort()
    distinct, index = torch.unique_consecutive(key, return_inverse=True)
    total = torch.zeros(len(distinct), dtype=value.dtype, device=value.device)
    return distinct, total.index_add_(0, index, value[order])

"""Rows on their way between ranks: each to the rank that it belongs to, and answers back the same way.

A table that is divided by rows is interleaved: of W ranks, rank r has the rows r, r + W, r + 2W, … Items are numbered
by popularity, so every rank gets as many rows as any other, and as much work.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.data.csr import CSR, entries_of_rows, offsets_of
from beamtree.distributed.group import ranks

PULL_AT_ONCE = 1 << 19  # rows that a rank requests at once, unless one list is longer


class Route:
    """Where rows are sent, and where received rows come from. All ranks make it, and use it, together.

    Args:
        to: the rank that each row goes to [n].
    """

    def __init__(self, to: Tensor) -> None:
        self._order = to.argsort(stable=True)
        self._sent = torch.bincount(to, minlength=ranks().size).tolist()
        self._received = ranks().counts(self._sent)

    def send(self, rows: Tensor) -> Tensor:
        """Send rows [n, ...] to their ranks; returns those received, rank by rank and in the order of each."""
        return ranks().exchange(rows[self._order], self._sent, self._received)

    def reply(self, rows: Tensor) -> Tensor:
        """Send an answer for each received row; returns the answers to the rows that were sent, in their order."""
        answers = ranks().exchange(rows, self._received, self._sent)
        result = torch.empty_like(answers)
        result[self._order] = answers
        return result

    def reply_lists(self, lists: CSR) -> CSR:
        """The same with a list for each received row."""
        lengths = lists.counts()
        theirs = ranks().exchange(lengths, self._received, self._sent)
        given = [int(part.sum()) for part in lengths.split(self._received)]
        taken = [int(part.sum()) for part in theirs.split(self._sent)]
        _, entries = entries_of_rows(offsets_of(theirs), self._order.argsort())
        counts = torch.empty_like(theirs)
        counts[self._order] = theirs
        columns = ranks().exchange(lists.columns, given, taken)[entries]
        values = None if lists.values is None else ranks().exchange(lists.values, given, taken)[entries]
        return CSR(offsets_of(counts), columns, values)

    def sender(self, device: torch.device) -> Tensor:
        """The rank that each received row came from."""
        return torch.arange(ranks().size, device=device).repeat_interleave(torch.tensor(self._received, device=device))


def send(to: Tensor, *columns: Tensor) -> tuple[Tensor, ...]:
    """Send rows to the ranks `to` [n], column by column; returns the rows received, rank by rank."""
    if ranks().size == 1:
        return columns
    route = Route(to)
    return tuple(route.send(column) for column in columns)


def send_to_first(*columns: Tensor) -> tuple[Tensor, ...]:
    """The rows of all ranks on the first one, rank by rank; none on the others."""
    return send(torch.zeros(len(columns[0]), dtype=torch.int64, device=columns[0].device), *columns)


def own_rows(total: int, device: torch.device | None = None) -> Tensor:
    """The numbers of the rows of an interleaved table that this rank has."""
    return torch.arange(min(ranks().rank, total), total, ranks().size, device=device)  # none with too many ranks


class InterleavedTable(NamedTuple):
    """A table divided by rows over the ranks."""

    part: Tensor  # this rank's rows
    total: int

    @classmethod
    def of(cls, table: Tensor) -> "InterleavedTable":
        """This rank's part of a table that every rank has."""
        return cls(table[ranks().rank :: ranks().size].contiguous(), len(table))

    def at(self, rows: Tensor) -> Tensor:
        """Some rows, from the ranks that have them; all ranks must ask."""
        if ranks().size == 1:
            return self.part[rows]
        route = Route(rows % ranks().size)
        return route.reply(self.part[route.send(rows) // ranks().size])

    def whole(self) -> Tensor:
        """All rows, on every rank."""
        size = ranks().size
        if size == 1:
            return self.part
        table = self.part.new_empty(self.total, *self.part.shape[1:])
        for rank in range(size):
            mine = rank == ranks().rank
            rows = self.part.contiguous() if mine else self.part.new_empty(len(table[rank::size]), *self.part.shape[1:])
            table[rank::size] = ranks().broadcast_(rows, rank)
        return table


def concatenate_all(part: Tensor) -> Tensor:
    """The parts of all ranks, one after the other, on every rank."""
    if ranks().size == 1:
        return part
    lengths = ranks().gather(len(part))
    result = part.new_empty(sum(lengths), *part.shape[1:])
    for rank, theirs in enumerate(result.split(lengths)):
        if rank == ranks().rank:
            theirs.copy_(part)
        ranks().broadcast_(theirs, rank)
    return result


def lockstep(count: int) -> Iterator[int | None]:
    """0 … count - 1, then None until all ranks have had theirs."""
    for index in range(max(ranks().gather(count))):
        yield index if index < count else None

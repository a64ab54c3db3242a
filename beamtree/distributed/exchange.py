"""Rows on their way between ranks: each to the rank that it belongs to, and answers the same way back.

A table of which each rank has a part is dealt out in turn: of W ranks, rank r has the rows r, r + W, r + 2W, … The
items of a log are numbered by popularity, so every rank gets as many rows as any other, and as much work.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.data.seeds import draw_rows
from beamtree.distributed.group import ranks

PULLED = 1 << 19  # rows that a rank pulls at once, unless one list is longer


class Route:
    """Where some rows go, and where those that come here are from.

    All ranks make it together, and use it together.

    Args:
        to: the rank that each row goes to [n].
    """

    def __init__(self, to: Tensor) -> None:
        self._order = to.argsort(stable=True)
        self._sent = torch.bincount(to, minlength=ranks().size).tolist()
        self._received = ranks().counts(self._sent)

    def there(self, rows: Tensor) -> Tensor:
        """The rows [n, ...] to their ranks; what comes here, rank by rank and in the order of each."""
        return ranks().exchange(rows[self._order], self._sent, self._received)

    def back(self, rows: Tensor) -> Tensor:
        """An answer for each row that came here; the answers to those that went out, in the order of these."""
        answers = ranks().exchange(rows, self._received, self._sent)
        found = torch.empty_like(answers)
        found[self._order] = answers
        return found

    def back_lists(self, lengths: Tensor, *columns: Tensor) -> tuple[Tensor, ...]:
        """A list for each row that came here, one after the other, so long each; those for the rows that went out.

        They come as they are given: lengths first, then the columns, in the order of the rows that went out.
        """
        theirs = ranks().exchange(lengths, self._received, self._sent)
        given = [int(part.sum()) for part in lengths.split(self._received)]
        taken = [int(part.sum()) for part in theirs.split(self._sent)]
        _, at = entries_in(pad(theirs.cumsum(0), (1, 0)), self._order.argsort())
        found = torch.empty_like(theirs)
        found[self._order] = theirs
        return found, *(ranks().exchange(column, given, taken)[at] for column in columns)

    def sender(self, device: torch.device) -> Tensor:
        """The rank that each row that comes here is from."""
        return torch.arange(ranks().size, device=device).repeat_interleave(torch.tensor(self._received, device=device))


def send(to: Tensor, *columns: Tensor) -> tuple[Tensor, ...]:
    """Rows to the ranks that `to` says [n], column by column; what comes here, rank by rank."""
    if ranks().size == 1:
        return columns
    route = Route(to)
    return tuple(route.there(column) for column in columns)


def dealt(total: int, device: torch.device | None = None, rank: int | None = None) -> Tensor:
    """The rows of a table that are this rank's, or another's."""
    first = ranks().rank if rank is None else rank
    return torch.arange(min(first, total), total, ranks().size, device=device)  # none where there are more ranks


def turn(start: int) -> int:
    """How far from a row the next one is that is this rank's."""
    return (ranks().rank - start) % ranks().size


def drawn(total: int, dim: int, generator: torch.Generator) -> Tensor:
    """The rows of a table from N(0, 1) that are this rank's [n, dim]: each draws all of it, a piece at a time."""
    found, place = torch.empty(len(dealt(total)), dim, device=generator.device), 0
    for start, piece in draw_rows(total, dim, generator):
        own = piece[turn(start) :: ranks().size]
        found[place : place + len(own)] = own  # and no view of the piece is kept
        place += len(own)
    return found


def pull(part: Tensor, rows: Tensor) -> Tensor:
    """Some rows of a table that is dealt out, of which `part` is here; all ranks must ask."""
    if ranks().size == 1:
        return part[rows]
    route = Route(rows % ranks().size)
    return route.back(part[route.there(rows) // ranks().size])


def whole(part: Tensor, total: int) -> Tensor:
    """All rows of a table that is dealt out, on every rank."""
    size = ranks().size
    if size == 1:
        return part
    found = part.new_empty(total, *part.shape[1:])
    for rank in range(size):
        theirs = part.contiguous() if rank == ranks().rank else part.new_empty(len(found[rank::size]), *part.shape[1:])
        found[rank::size] = ranks().broadcast_(theirs, rank)
    return found


class Dealt(NamedTuple):
    """A table that is dealt out, of which `part` is here: all of it where one rank works alone."""

    part: Tensor
    total: int

    def at(self, rows: Tensor) -> Tensor:
        """Some rows, whoever has them; all ranks must ask."""
        return pull(self.part, rows)

    def whole(self) -> Tensor:
        """All rows, on every rank."""
        return whole(self.part, self.total)


class Pieces(NamedTuple):
    """A tensor of which every rank has a part, for the first rank to write: its rows in order, a piece at a time.

    They are gone through once. The other ranks get nothing, but must go through them as well.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: Iterator[Tensor]


def to_first(*columns: Tensor) -> tuple[Tensor, ...]:
    """The rows of all ranks on the first one, rank by rank; none on the others."""
    return send(torch.zeros(len(columns[0]), dtype=torch.int64, device=columns[0].device), *columns)


def deal(table: Tensor) -> Dealt:
    """Keep the rows that are dealt to this rank, of a table that every rank has."""
    return Dealt(table[ranks().rank :: ranks().size].contiguous(), len(table))


def joined(part: Tensor) -> Tensor:
    """The parts of all ranks, one after the other, on every rank."""
    if ranks().size == 1:
        return part
    lengths = ranks().gather(len(part))
    found = part.new_empty(sum(lengths), *part.shape[1:])
    for rank, theirs in enumerate(found.split(lengths)):
        if rank == ranks().rank:
            theirs.copy_(part)
        ranks().broadcast_(theirs, rank)
    return found


def in_step(count: int) -> Iterator[int | None]:
    """0 … count - 1, then None as often as it takes until all ranks have had theirs."""
    for place in range(max(ranks().gather(count))):
        yield place if place < count else None


def entries_in(offsets: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The entries of some rows of what is kept by rows: the place of each one's row in `rows`, and its own place."""
    count = offsets[rows + 1] - offsets[rows]
    place = torch.repeat_interleave(count)
    first = count.cumsum(0) - count
    return place, torch.arange(len(place), device=place.device) - first[place] + offsets[rows][place]

"""Lists of partners of which each rank has those of the items dealt to it.

A batch of histories names a few thousand items: their lists are asked of whoever has them, and read as if they were all
there is. The whole goes to a file through the first rank, some items at a time.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.distributed.exchange import Pieces, Route, dealt, entries_in, to_first
from beamtree.distributed.group import Ranks, ranks

SENT = 1 << 16  # items whose lists are sent at once


class Kept(NamedTuple):
    """Several lists for each of n items, list by list and item by item."""

    offsets: Tensor  # int64 [lists * n + 1]
    partners: Tensor  # int32 [E]
    weights: Tensor  # float16 [E]


def of_rows(kept: Kept, rows: Tensor) -> Kept:
    """Some of the lists, in another order."""
    _, at = entries_in(kept.offsets, rows)
    held = kept.offsets[rows + 1] - kept.offsets[rows]
    return Kept(pad(held.cumsum(0), (1, 0)), kept.partners[at], kept.weights[at])


def of_entries(kept: Kept, wanted: Tensor) -> Kept:
    """The same lists with some of their entries alone [E]."""
    before = pad(wanted.cumsum(0), (1, 0))
    return Kept(before[kept.offsets], kept.partners[wanted], kept.weights[wanted])


def dealt_lists(whole: Kept, lists: int) -> Kept:
    """The lists of the items that are dealt to this rank, out of those of all items."""
    rows = torch.arange(len(whole.offsets) - 1, device=whole.offsets.device).view(lists, -1)
    return of_rows(whole, rows[:, ranks().rank :: ranks().size].flatten())


def merged_lists(parts: Iterable[Kept], lists: int, came_from: int, over: Ranks) -> Kept:
    """The lists of one of `over`, out of those that each of `came_from` ranks had, in turn."""
    found, keys = [], []
    for rank, part in enumerate(parts):
        count = (len(part.offsets) - 1) // lists
        item = rank + came_from * torch.arange(count)
        own = (item % over.size == over.rank).nonzero().squeeze(1)
        found.append(of_rows(part, (own + count * torch.arange(lists).unsqueeze(1)).flatten()))
        keys += [torch.stack([torch.full_like(own, each), item[own]]) for each in range(lists)]
    ends = torch.tensor([0, *(len(part.partners) for part in found)]).cumsum(0).tolist()
    starts = [part.offsets[:-1] + end for part, end in zip(found, ends, strict=False)]
    every = Kept(
        torch.cat([*starts, torch.tensor(ends[-1:])]),
        torch.cat([part.partners for part in found]),
        torch.cat([part.weights for part in found]),
    )
    which, item = torch.cat(keys, dim=1)
    by_item = item.argsort(stable=True)
    return of_rows(every, by_item[which[by_item].argsort(stable=True)])


def pulled_lists(own: Kept, lists: int, items: Tensor) -> Kept:
    """The lists of some items [n], each from the rank that has it; all ranks must ask."""
    size, count = ranks().size, (len(own.offsets) - 1) // lists
    which = torch.arange(lists, device=items.device).repeat_interleave(len(items))
    route = Route(items.repeat(lists) % size)
    row = route.there(which) * count + route.there(items.repeat(lists)) // size
    asked = of_rows(own, row)
    held, partners, weights = route.back_lists(asked.offsets.diff(), asked.partners, asked.weights)
    return Kept(pad(held.cumsum(0), (1, 0)), partners, weights)


def whole_lists(own: Kept, lists: int, num_items: int, entries: int) -> dict[str, Pieces]:
    """The lists of all items, as one rank would keep them, in pieces; there are so many entries in all."""
    count = (len(own.offsets) - 1) // lists

    def some() -> Iterator[tuple[Tensor, Tensor]]:
        """Items of this rank, and the rows of their lists here: equally many rounds on all ranks."""
        items = dealt(num_items, own.offsets.device)
        for each in range(lists):
            for start in range(0, num_items, SENT):
                first, last = torch.searchsorted(items, torch.tensor([start, start + SENT], device=items.device))
                yield items[first:last], each * count + torch.arange(int(first), int(last), device=items.device)

    def offsets() -> Iterator[Tensor]:
        end = own.offsets.new_zeros(1 if ranks().is_first else 0)
        yield end
        for items, rows in some():
            item, held = to_first(items, own.offsets[rows + 1] - own.offsets[rows])
            ends = end.sum() + held[item.argsort()].cumsum(0)
            yield ends
            end = ends[-1:]

    def column(values: Tensor) -> Iterator[Tensor]:
        for items, rows in some():
            place, at = entries_in(own.offsets, rows)
            item, value = to_first(items[place], values[at])
            yield value[item.argsort(stable=True)]

    return {
        "offsets": Pieces((lists * num_items + 1,), torch.int64, offsets()),
        "partners": Pieces((entries,), own.partners.dtype, column(own.partners)),
        "weights": Pieces((entries,), own.weights.dtype, column(own.weights)),
    }

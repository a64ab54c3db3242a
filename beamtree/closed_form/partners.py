"""Partners: for each item the few others that it speaks for, and how strongly."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.distributed.exchange import dealt, entries_in, joined, send, whole
from beamtree.distributed.group import ranks
from beamtree.threads import one_thread

PARTNERS = 100  # N: that an item has at most
SORTED = 1 << 25  # entries that are sorted at once: more would need several times their own memory


@dataclass(frozen=True)
class Partners:
    """The partners of item i are items[offsets[i]] … items[offsets[i + 1] - 1], the strongest first.

    With `total`, these are the lists of those of so many items alone that are dealt to this rank.
    """

    offsets: Tensor  # int64 [M + 1]
    items: Tensor  # int32 [E]
    weights: Tensor  # [E]
    total: int | None = None

    def __len__(self) -> int:
        """How many items there are, wherever their lists are."""
        return len(self.offsets) - 1 if self.total is None else self.total

    def cut(self, most: int) -> "Partners":
        """The same with at most so many of the strongest partners for each item."""
        held = self.offsets.diff()
        place = torch.arange(len(self.items), device=held.device) - self.offsets[:-1].repeat_interleave(held)
        kept = place < most
        offsets = pad(held.clamp(max=most).cumsum(0), (1, 0))
        return replace(self, offsets=offsets, items=self.items[kept], weights=self.weights[kept])

    def whole(self) -> "Partners":
        """The partners of all items, on every rank."""
        if self.total is None:
            return self
        held = whole(self.offsets.diff(), self.total)
        offsets = pad(held.cumsum(0), (1, 0))
        items, weights = joined(self.items), joined(self.weights)  # rank by rank
        rows = torch.cat([dealt(self.total, held.device, rank) for rank in range(ranks().size)])
        _, at = entries_in(offsets, rows)
        found = Partners(offsets, torch.empty_like(items), torch.empty_like(weights))
        found.items[at], found.weights[at] = items, weights
        return found


def dealt_partners(own: Partners, num_items: int) -> Partners:
    """Lists of the items that are dealt to this rank, known as such; of all items where it works alone."""
    return own if ranks().size == 1 else replace(own, total=num_items)


def strongest(source: Tensor, target: Tensor, weight: Tensor, num_items: int, most: int = PARTNERS) -> Partners:
    """Each source's targets of the largest absolute weight, at most so many; each pair occurs once."""
    order = weight.abs().argsort(descending=True)
    order = order[source[order].argsort(stable=True)]
    source, target, weight = source[order], target[order], weight[order]
    offsets = pad(torch.bincount(source, minlength=num_items).cumsum(0), (1, 0))
    place = torch.arange(len(source), device=source.device) - offsets[source]
    kept = (place < most) & (weight != 0)
    counts = torch.bincount(source[kept], minlength=num_items)
    return Partners(pad(counts.cumsum(0), (1, 0)), target[kept].int(), weight[kept].float())


class Collected:
    """Entries that are found one after the other, at most so many: which source says how much of which target."""

    def __init__(self, most: int, device: torch.device) -> None:
        self.source, self.target = (torch.empty(most, dtype=torch.int32, device=device) for _ in range(2))
        self.weight, self.count = torch.empty(most, device=device), 0

    def add(self, source: Tensor, target: Tensor, weight: Tensor) -> None:
        """Some more [n] each."""
        span = slice(self.count, self.count + len(weight))
        self.source[span], self.target[span], self.weight[span] = source, target, weight
        self.count = span.stop

    def strongest(self, num_items: int, most: int) -> Partners:
        """Each source's strongest targets, of the entries of all ranks: each looks at the sources dealt to it."""
        source, target, weight = (part[: self.count] for part in (self.source, self.target, self.weight))
        if ranks().size > 1:
            source, target, weight = send(source % ranks().size, source // ranks().size, target, weight)
        own = _strongest_in_rounds(source, target, weight, len(dealt(num_items)), most)
        return dealt_partners(own, num_items)


@one_thread()
def _strongest_in_rounds(source: Tensor, target: Tensor, weight: Tensor, num_items: int, most: int) -> Partners:
    """The same as `strongest`, for some sources after the other."""
    rounds = -(-len(source) // SORTED) or 1
    parts = []
    for each in range(rounds):
        first, last = num_items * each // rounds, num_items * (each + 1) // rounds
        some = ((source >= first) & (source < last)).nonzero().squeeze(1) if rounds > 1 else slice(None)
        parts.append(strongest(source[some].long() - first, target[some].long(), weight[some], last - first, most))
    ends = [0, *torch.tensor([len(part.items) for part in parts]).cumsum(0).tolist()]
    offsets = [part.offsets[:-1] + end for part, end in zip(parts, ends, strict=False)]
    return Partners(
        torch.cat([*offsets, parts[-1].offsets[-1:] + ends[-2]]),
        torch.cat([part.items for part in parts]),
        torch.cat([part.weights for part in parts]),
    )


def summed(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct keys in rising order, and the sum of the values of each."""
    key, order = key.sort()
    new = torch.ones_like(key, dtype=torch.bool)
    new[1:] = key[1:] != key[:-1]
    place = new.cumsum(0) - 1
    total = torch.zeros(int(new.sum()), dtype=value.dtype, device=value.device)
    return key[new], total.index_add_(0, place, value[order])

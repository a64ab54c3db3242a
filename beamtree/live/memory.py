"""What is remembered of items that came later: a list of partners of its own, beside the one that was fitted."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.closed_form.partners import PARTNERS, Partners, summed
from beamtree.distributed.exchange import entries_in
from beamtree.scorers import MemoryScorer, SumScorer
from beamtree.scorers.memory import fading

ADDED, MEMORY = "added", "memory"  # the names of both in a sum
FADING = fading(0.5)  # how events of a history lose weight, of what is said of new items
SOURCES = 2 * PARTNERS  # items that speak for a new one at most


class Entries(NamedTuple):
    """Which item says how much of which other [E] each."""

    source: Tensor
    target: Tensor
    weight: Tensor

    def of(self, kept: Tensor) -> "Entries":
        """Some of them."""
        return Entries(self.source[kept], self.target[kept], self.weight[kept])


def joined(parts: list[Entries]) -> Entries:
    """All entries of several."""
    return Entries(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def entries_of(memory: MemoryScorer) -> Entries:
    """What a memory of one list holds."""
    source = torch.repeat_interleave(memory.offsets.diff())
    return Entries(source.cpu(), memory.partners.long().cpu(), memory.weights.float().cpu())


def as_memory(entries: Entries, num_items: int) -> MemoryScorer:
    """A memory of these entries; what is said twice of the same is added."""
    key, weight = summed(entries.source * num_items + entries.target, entries.weight)
    offsets = pad(torch.bincount(key // num_items, minlength=num_items).cumsum(0), (1, 0))
    return MemoryScorer.from_partners([Partners(offsets, (key % num_items).int(), weight)], [FADING])


def speak_for(memory: MemoryScorer, like: Tensor, shares: Tensor, item: int) -> Entries:
    """What is said of a new item that is like others [n] by so much [n].

    Who speaks for one of them speaks for it, and those themselves as loudly as the loudest of these.
    """
    like, shares = (part.to(memory.offsets.device) for part in (like, shares))
    place, source, weight = memory.sources(like)
    loudest = torch.zeros_like(shares).scatter_reduce_(0, place, weight, "amax")
    sources = torch.cat([source, like])
    said = Entries(sources, torch.full_like(sources, item), torch.cat([weight * shares[place], loudest * shares]))
    return _strongest(said, SOURCES)


def speaks(memory: MemoryScorer, like: Tensor, shares: Tensor, item: int) -> Entries:
    """What a new item says of others: what those say that it is like [n] by so much [n]."""
    like, shares = (part.to(memory.offsets.device) for part in (like, shares))
    rows = torch.arange(memory.lists, device=like.device).unsqueeze(1) * memory.num_items + like  # [lists, n]
    place, entry = entries_in(memory.offsets, rows.flatten())
    counts = memory.recency.amax(1).repeat_interleave(len(like)) * shares.repeat(memory.lists)
    says = Entries(
        torch.full_like(entry, item), memory.partners[entry].long(), memory.weights[entry].float() * counts[place]
    )
    return _strongest(says, PARTNERS)


def _strongest(entries: Entries, most: int) -> Entries:
    """The pairs that are said most of, at most so many; what is said twice of the same is added."""
    base = int(torch.cat([entries.source, entries.target]).max()) + 1 if len(entries.source) else 1
    key, weight = summed(entries.source * base + entries.target, entries.weight)
    best = weight.abs().topk(min(most, len(key))).indices
    return Entries((key[best] // base).cpu(), (key[best] % base).cpu(), weight[best].cpu())


def with_entries(scorer: SumScorer, new: Entries, renewed: Tensor, num_items: int) -> SumScorer:
    """A sum that remembers more; of `renewed` items what was added before is forgotten."""
    changed = {}
    if MEMORY in scorer.names:
        memory = scorer.part(MEMORY)
        assert isinstance(memory, MemoryScorer)
        changed[MEMORY] = memory.grown(num_items) if memory.num_items < num_items else memory
    if ADDED in scorer.names:
        before = scorer.part(ADDED)
        assert isinstance(before, MemoryScorer)
        old = entries_of(before)
        again = torch.isin(old.source, renewed) | torch.isin(old.target, renewed)
        new = joined([old.of(~again), new])
    changed[ADDED] = as_memory(new, num_items).to(scorer.weights.device)
    return scorer.with_parts(changed)

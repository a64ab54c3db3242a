"""How popular a new item will be, as far as the histories of its first users can tell.

Who chooses what few know has chosen such things before. How much that says differs from log to log, so it is learned:
items of the log are looked at as if they were new, by as many histories as the new one comes with.
"""

import torch
from torch import Tensor

from beamtree.data import HISTORY, Events
from beamtree.tree import PAD

ITEMS = 500  # of the log that are looked at
MOST = 10  # histories of each
READ = 20_000_000  # events in which they are looked for


class Renown:
    """What the histories of those who chose an item say of how many will.

    Args:
        events: the log.
        num_items: M.
        generator: chooses items and histories.
    """

    def __init__(self, events: Events, num_items: int, generator: torch.Generator) -> None:
        counts = events.popularity(num_items)
        self.known = (counts + 1.0).log()  # [M]
        there = counts.nonzero().squeeze(1)
        items = there[torch.randperm(len(there), generator=generator)[:ITEMS]].sort().values
        log = events.item_numbers()[:READ].long()
        place = torch.isin(log, items).nonzero().squeeze(1)
        place = place[torch.randperm(len(place), generator=generator)]
        item, order = torch.searchsorted(items, log[place]).sort(stable=True)
        place, column = place[order], torch.arange(len(item)) - torch.searchsorted(item, item)
        first = column < MOST
        item, column, place = item[first], column[first], place[first] + events.offsets[0]
        start = events.offsets[torch.searchsorted(events.offsets, place, right=True) - 1]
        self._levels = torch.full((len(items), MOST), torch.nan)
        self._levels[item, column] = self._level(events.before(start, place, HISTORY))
        self._counts = self.known[items]

    def _level(self, x: Tensor) -> Tensor:
        """How popular what each history holds is, in the mean of logarithms [B]; nan for an empty one."""
        real = (x != PAD) & (x < len(self.known))
        return (self.known[x * real] * real).sum(1) / real.sum(1)

    def times(self, x: Tensor) -> float:
        """How many times as popular as others an item will be that was chosen after histories x [B, T]."""
        level = self._level(x).nanmean()
        seen = self._levels[:, : max(1, min(len(x), MOST))].nanmean(1)
        told = ~seen.isnan()
        if not bool(told.any()) or bool(level.isnan()):
            return 1.0
        seen, counts = seen[told], self._counts[told]
        apart = seen - seen.mean()
        slope = (apart * counts).sum() / apart.square().sum().clamp(min=1e-6)
        return float((slope * level).exp() / (slope * seen).exp().mean())

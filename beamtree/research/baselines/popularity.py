"""The same items for everybody: those with the most events."""

import torch
from torch import Tensor

from beamtree.data import Events
from beamtree.tree import PAD


class Popularity:
    """Items in the order of their events, the lower number first where they are equal."""

    def __init__(self, counts: Tensor) -> None:
        self._scores, self._items = counts.float().sort(descending=True, stable=True)  # [M]

    @property
    def num_bytes(self) -> int:
        """What it keeps."""
        return int(self._scores.nbytes + self._items.nbytes)

    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m most popular items and their events, for each history [B, m]; PAD and -inf where there are fewer."""
        spare = (0, max(0, m - len(self._items)))
        items = torch.nn.functional.pad(self._items[:m], spare, value=PAD).to(x.device)
        scores = torch.nn.functional.pad(self._scores[:m], spare, value=-torch.inf).to(x.device)
        return items.expand(len(x), m), scores.expand(len(x), m)


def popularity(events: Events, num_items: int) -> Popularity:
    """Count the events of the training users."""
    return Popularity(events.popularity(num_items))

"""Plain rows to beat: what needs no tree."""

from typing import Protocol

from torch import Tensor

from beamtree.baselines.item_cf import ItemCF, item_cf, item_cf_nearest
from beamtree.baselines.popularity import Popularity, popularity


class Baseline(Protocol):
    """Something that ranks items for histories."""

    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m best items of each history x [B, T] and their scores, best first [B, m]; PAD and -inf where fewer."""
        ...


__all__ = ["Baseline", "ItemCF", "Popularity", "item_cf", "item_cf_nearest", "popularity"]

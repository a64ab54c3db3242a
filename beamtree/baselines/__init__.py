"""Plain rows to beat: what needs no tree."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from beamtree.baselines.als import ALS, als
from beamtree.baselines.item_cf import ItemCF, item_cf, item_cf_nearest
from beamtree.baselines.popularity import Popularity, popularity
from beamtree.data import Log


class Baseline(Protocol):
    """Something that ranks items for histories."""

    @property
    def num_bytes(self) -> int:
        """What it keeps to do so."""
        ...

    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m best items of each history x [B, T] and their scores, best first [B, m]; PAD and -inf where fewer."""
        ...


# Name -> the row, made from a log and the number of items.
BASELINES: dict[str, Callable[[Log, int], Baseline]] = {
    "item-cf": item_cf,
    "item-cf-nearest": item_cf_nearest,
    "popularity": popularity,
    "als": als,
}

__all__ = ["ALS", "BASELINES", "Baseline", "ItemCF", "Popularity", "als", "item_cf", "item_cf_nearest", "popularity"]

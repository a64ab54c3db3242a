"""Plain rows to beat: what needs no tree. What a row needs beside torch is imported only for it."""

from collections.abc import Callable
from importlib import import_module
from typing import Protocol, cast

from torch import Tensor

from beamtree.data import BeforeAfter, Events
from beamtree.errors import requires
from beamtree.research.baselines.popularity import Popularity, popularity


class Baseline(Protocol):
    """Something that ranks items for histories."""

    @property
    def num_bytes(self) -> int:
        """What it keeps to do so."""
        ...

    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m best items of each history x [B, T] and their scores, best first [B, m]; PAD and -inf where fewer."""
        ...


# Name -> the module and the function that makes the row from events and the number of items.
BASELINES = {
    "item-cf": ("item_cf", "item_cf"),
    "item-cf-nearest": ("item_cf", "item_cf_nearest"),
    "popularity": ("popularity", "popularity"),
    "als": ("als", "als"),
}
# The same for rows that choose their settings by validation users, whom they take as well.
PEERS = {
    "ease": ("ease", "ease"),
    "ials": ("ials", "ials"),
    "user-knn": ("user_knn", "user_knn"),
    "rules": ("rules", "rules"),
}
PLAIN = {**BASELINES, **PEERS}


def build(name: str, events: Events, num_items: int, val: BeforeAfter | None = None) -> Baseline:
    """A plain row, made from what training users chose; a peer takes its settings from validation users."""
    module, function = PLAIN[name]
    with requires("compare", f"row {name}"):
        make = cast(Callable[..., Baseline], getattr(import_module(f"beamtree.research.baselines.{module}"), function))
        return make(events, num_items, val) if name in PEERS else make(events, num_items)


__all__ = ["BASELINES", "PEERS", "PLAIN", "Baseline", "Popularity", "build", "popularity"]

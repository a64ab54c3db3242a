"""Data: what training and evaluation ask of anything they read."""

from typing import Protocol, Self

import torch
from torch import Tensor

from beamtree.data.ids import Ids


class Data(Protocol):
    """Instances that are read in batches: an observation x and the relevant items y.

    A new kind of x is one file with a class of these members, and a scorer whose `check` accepts its batches.
    """

    @property
    def ids(self) -> Ids | None:
        """The ids of the items, where they have any; a model that is trained on them keeps them."""
        ...

    @property
    def varies(self) -> bool:
        """Whether every reading draws other instances, by the generator it is given."""
        ...

    def __len__(self) -> int:
        """How many instances there are."""
        ...

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """x [B, ...] and y [B, P] of some instances, PAD where y has fewer."""
        ...

    def seen(self, rows: Tensor) -> Tensor:
        """All items that came before the targets of some instances [B, S], PAD where fewer."""
        ...

    def observations(self) -> Tensor:
        """What a scorer should look at before it is trained on these instances."""
        ...

    def item_numbers(self) -> Tensor:
        """Every item that occurs, in any shape."""
        ...

    def fingerprint(self) -> str:
        """A short name for these very instances."""
        ...

    def to(self, device: torch.device | str) -> Self:
        """The same instances on another device."""
        ...

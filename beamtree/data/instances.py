"""Data: what training and evaluation read, and its simplest form, instances (x, I_x) in memory."""

import hashlib
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from beamtree.data.ids import Ids
from beamtree.tree import PAD


class Data(Protocol):
    """Instances that are read in batches: an observation x and the relevant items y.

    A new kind of x needs a class with these members, and a scorer whose `check` accepts its batches.
    """

    @property
    def ids(self) -> Ids | None:
        """The ids of the items, if they have any; a model that is trained on them keeps them."""
        ...

    @property
    def varies(self) -> bool:
        """Whether every read draws different instances, with the generator it is given."""
        ...

    def __len__(self) -> int:
        """The number of instances."""
        ...

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """x [B, ...] and y [B, P] of some instances, y padded with PAD."""
        ...

    def seen(self, rows: Tensor) -> Tensor:
        """All items before the targets of some instances [B, S], padded with PAD."""
        ...

    def observations(self) -> Tensor:
        """Observations by which a scorer sets its shapes before training."""
        ...

    def item_numbers(self) -> Tensor:
        """Every item that occurs, in any shape."""
        ...

    def fingerprint(self) -> str:
        """A short name that identifies these instances."""
        ...

    def to(self, device: torch.device | str) -> Self:
        """The same instances on another device."""
        ...


@dataclass(frozen=True)
class Instances:
    """N pairs of an observation and its relevant items."""

    x: Tensor  # float [N, d], or int64 [N, T] histories, newest first, padded with PAD
    y: Tensor  # int64 [N, P], padded with PAD
    ids: Ids | None = None  # of the items
    varies = False

    def __post_init__(self) -> None:
        if self.y.dim() != 2 or self.y.dtype != torch.int64:
            raise ValueError(f"y is {self.y.dtype} {list(self.y.shape)}: give int64 [N, P], PAD where there are fewer")
        if len(self.x) != len(self.y):
            raise ValueError(f"{len(self.x)} observations with {len(self.y)} sets of targets")
        if len(self.x) == 0:
            raise ValueError("there are no instances")
        empty = (self.y == PAD).all(1)
        if bool(empty.any()):
            raise ValueError(f"y of instance {int(empty.nonzero()[0])} is empty: every instance needs a relevant item")

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"Instances({len(self):,}: x {self.x.dtype} {list(self.x.shape)}, y {list(self.y.shape)})"

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """x and y of some instances."""
        return self.x[rows], self.y[rows]

    def seen(self, rows: Tensor) -> Tensor:
        raise ValueError("instances in memory do not have the items seen before: only events do")

    def observations(self) -> Tensor:
        return self.x

    def item_numbers(self) -> Tensor:
        return self.y

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for part in (self.x, self.y):
            digest.update(f"{part.dtype} {tuple(part.shape)} ".encode())
            digest.update(part.contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def to(self, device: torch.device | str) -> "Instances":
        return Instances(self.x.to(device), self.y.to(device), self.ids)

"""Instances (x, I_x) in memory."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from beamtree.data.ids import Ids
from beamtree.tree import PAD


@dataclass(frozen=True)
class Instances:
    """N pairs of an observation and its relevant items."""

    x: Tensor  # float [N, d], or int64 [N, T] history, newest first, PAD where shorter
    y: Tensor  # int64 [N, P], PAD where there are fewer
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
        raise ValueError("what was seen is known of events alone, not of instances in memory")

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

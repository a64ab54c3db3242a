"""Instances (x, I_x) in memory, and the order in which training reads them."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from beamtree.tree import PAD


@dataclass(frozen=True)
class Instances:
    """N pairs of an observation and its relevant items."""

    x: Tensor  # float [N, d], or int64 [N, T] history, newest first, PAD where shorter
    y: Tensor  # int64 [N, P], PAD where there are fewer

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

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """x and y of some instances."""
        return self.x[rows], self.y[rows]

    def observations(self) -> Tensor:
        """What a scorer should look at before it is trained on these instances."""
        return self.x

    def item_numbers(self) -> Tensor:
        """Every item that occurs, in any shape."""
        return self.y

    def fingerprint(self) -> str:
        """A short name for these very instances."""
        digest = hashlib.sha256()
        for part in (self.x, self.y):
            digest.update(f"{part.dtype} {tuple(part.shape)} ".encode())
            digest.update(part.contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def to(self, device: torch.device | str) -> "Instances":
        return Instances(self.x.to(device), self.y.to(device))


def epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    """The order of instances in one epoch [N]: a function of seed and epoch alone, so that a resumed run repeats it."""
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    return torch.randperm(count, generator=generator)


def mix(seed: int, index: int) -> int:
    """One seed from two numbers, well spread (splitmix64)."""
    z = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1B54A32D192ED03) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) % 2**63

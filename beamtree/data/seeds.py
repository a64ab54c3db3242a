"""Randomness as a function of a seed: the same seed gives the same result."""

from collections.abc import Iterator

import torch
from torch import Tensor

DRAWN = 1 << 18  # rows drawn at once: a multiple of 16, since torch draws 16 numbers at a time on a CPU


def mix(seed: int, index: int) -> int:
    """One seed from two numbers, well distributed (splitmix64)."""
    z = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1B54A32D192ED03) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) % 2**63


def epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    """The order of instances in one epoch [N]: a function of seed and epoch alone, so that a resumed run repeats it."""
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    return torch.randperm(count, generator=generator)


def draw_rows(count: int, dim: int, generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
    """Rows from N(0, 1) on the generator's device, in parts: the first row of a part, and the part [≤ DRAWN, dim].

    On a CPU they equal those of one `torch.randn(count, dim)`.
    """
    starts = list(range(0, count, DRAWN))
    if len(starts) > 1 and (count - starts[-1]) * dim < 16:  # torch draws fewer than 16 numbers differently
        starts.pop()
    for start, stop in zip(starts, [*starts[1:], count], strict=True):
        yield start, torch.randn(stop - start, dim, generator=generator, device=generator.device)

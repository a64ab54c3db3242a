"""Randomness that is a function of a seed: the same seed gives the same result."""

import torch
from torch import Tensor


def mix(seed: int, index: int) -> int:
    """One seed from two numbers, well spread (splitmix64)."""
    z = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1B54A32D192ED03) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) % 2**63


def epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    """The order of instances in one epoch [N]: a function of seed and epoch alone, so that a resumed run repeats it."""
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    return torch.randperm(count, generator=generator)

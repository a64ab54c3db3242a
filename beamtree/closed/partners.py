"""Partners: for each item the few others that it speaks for, and how strongly."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

PARTNERS = 100  # N: that an item has at most


@dataclass(frozen=True)
class Partners:
    """The partners of item i are items[offsets[i]] … items[offsets[i + 1] - 1], the strongest first."""

    offsets: Tensor  # int64 [M + 1]
    items: Tensor  # int32 [E]
    weights: Tensor  # [E]

    def __len__(self) -> int:
        """How many items there are."""
        return len(self.offsets) - 1

    def cut(self, most: int) -> "Partners":
        """The same with at most so many of the strongest partners for each item."""
        held = self.offsets.diff()
        place = torch.arange(len(self.items), device=held.device) - self.offsets[:-1].repeat_interleave(held)
        kept = place < most
        offsets = pad(held.clamp(max=most).cumsum(0), (1, 0))
        return Partners(offsets, self.items[kept], self.weights[kept])


def strongest(source: Tensor, target: Tensor, weight: Tensor, num_items: int, most: int = PARTNERS) -> Partners:
    """Each source's targets of the largest absolute weight, at most so many; each pair occurs once."""
    order = weight.abs().argsort(descending=True)
    order = order[source[order].argsort(stable=True)]
    source, target, weight = source[order], target[order], weight[order]
    offsets = pad(torch.bincount(source, minlength=num_items).cumsum(0), (1, 0))
    place = torch.arange(len(source), device=source.device) - offsets[source]
    kept = (place < most) & (weight != 0)
    counts = torch.bincount(source[kept], minlength=num_items)
    return Partners(pad(counts.cumsum(0), (1, 0)), target[kept].int(), weight[kept].float())


def summed(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct keys in rising order, and the sum of the values of each."""
    key, order = key.sort()
    new = torch.ones_like(key, dtype=torch.bool)
    new[1:] = key[1:] != key[:-1]
    place = new.cumsum(0) - 1
    total = torch.zeros(int(new.sum()), dtype=value.dtype, device=value.device)
    return key[new], total.index_add_(0, place, value[order])

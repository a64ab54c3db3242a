"""Who is where in a sorted order that nobody has whole: exact, with counts alone going from rank to rank."""

import torch
from torch import Tensor

from beamtree.distributed.group import Ranks

DIGIT = 8  # bits that are decided at once


def parts_over_ranks(values: Tensor, group: Tensor, size: Tensor, parts: int, over: Ranks) -> Tensor:
    """The part of each entry [n]: every group cut into parts of equally many, in rising order of values.

    Entries of a group are on several ranks. Of equal ones those of the first ranks go first, and on a rank those that
    stand first. `size` says how many each group has in all.

    Args:
        values: finite [n].
        group: of each [n].
        size: of the groups [G].
        parts: of a group.
        over: those who have entries.
    """
    key, bits = _keys(values)
    found = torch.zeros_like(group)
    for part in range(1, parts):
        found += _at_or_after(key, bits, group, size, -(-part * size // parts), over)
    return found


def _keys(values: Tensor) -> tuple[Tensor, int]:
    """Whole numbers in the order of floating-point numbers, and how many bits they have."""
    kind, bits = (torch.int64, 64) if values.dtype == torch.float64 else (torch.int32, 32)
    plain = values.double() if bits == 64 else values.float()
    raw = (plain + 0.0).view(kind)  # 0 and -0 are one number
    return torch.where(raw < 0, raw ^ torch.iinfo(kind).max, raw).long(), bits


def _at_or_after(key: Tensor, bits: int, group: Tensor, size: Tensor, place: Tensor, over: Ranks) -> Tensor:
    """Which entries stand at a place of their group's order, or after it [n]; `place` says which, for each group [G].

    The key that stands there is found digit by digit, by counting.
    """
    groups, base = len(size), 1 << DIGIT
    lead, left = torch.zeros_like(size), place.clone()  # the digits so far, and how many with these stand before
    for shift in range(bits - DIGIT, -1, -DIGIT):
        first = shift == bits - DIGIT
        digit = (key >> shift) + base // 2 if first else (key >> shift) & (base - 1)  # the first has the sign
        alike = torch.ones_like(key, dtype=torch.bool) if first else key >> (shift + DIGIT) == lead[group]
        count = over.sum_(torch.bincount((group * base + digit)[alike], minlength=groups * base)).view(groups, base)
        ends = count.cumsum(1)
        here = (ends <= left.unsqueeze(1)).sum(1, keepdim=True).clamp_(max=base - 1)
        left -= (ends - count).gather(1, here).squeeze(1)
        lead = lead * base + here.squeeze(1) - (base // 2 if first else 0)
    equal = key == lead[group]
    return ((key > lead[group]) | (equal & (_place_among(equal, group, groups, over) >= left[group]))) & (place < size)[
        group
    ]


def _place_among(some: Tensor, group: Tensor, groups: int, over: Ranks) -> Tensor:
    """The place of each of some entries among those of its group, on the ranks before this one and here [n]."""
    counts = torch.bincount(group[some], minlength=groups)
    before = torch.stack(over.gather(counts.cpu())[: over.rank + 1]).sum(0).to(counts.device) - counts
    at = some.nonzero().squeeze(1)
    order = group[at].argsort(stable=True)
    start = counts.cumsum(0) - counts
    found = torch.zeros_like(group)
    found[at[order]] = torch.arange(len(at), device=at.device) - start[group[at[order]]]
    return found + before[group]

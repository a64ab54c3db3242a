"""The step down on a GPU: keep the best k of a beam's candidates and list their children."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from beamtree.kernels import rows_apart


@triton.jit
def select_rows(
    candidates,
    rows_apart,
    scores,
    width,
    k,
    occupied,
    beam,
    index,
    children,
    ARITY: constexpr,
    PADDED: constexpr,
    EXPAND: constexpr,
    ADMIT_EMPTY: constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    inside = column < width
    bits = tl.load(scores + row * width + column, mask=inside, other=0.0).to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # integers in the order of the numbers
    # The k-th highest key, one bit after another: the highest number that at least k keys reach.
    lowest = -2147483648
    threshold = tl.where(tl.sum((inside & (key >= 0)).to(tl.int32), axis=0) >= k, 0, lowest)
    for bit in tl.static_range(30, -1, -1):
        higher = threshold + (1 << bit)
        enough = tl.sum((inside & (key >= higher)).to(tl.int32), axis=0) >= k
        threshold = tl.where(enough, higher, threshold)
    above = inside & (key > threshold)
    level = inside & (key == threshold)
    missing = k - tl.sum(above.to(tl.int32), axis=0)
    kept = above | (level & (tl.cumsum(level.to(tl.int32), axis=0) <= missing))
    position = row * k + tl.cumsum(kept.to(tl.int32), axis=0) - 1
    node = tl.load(candidates + row * rows_apart + column, mask=inside, other=-1)
    tl.store(beam + position, node, mask=kept)
    tl.store(index + position, column.to(tl.int64), mask=kept)
    if EXPAND:
        for j in tl.static_range(ARITY):
            child = node * ARITY + 1 + j
            real = kept & (node >= 0)
            if not ADMIT_EMPTY:
                real = real & (tl.load(occupied + child, mask=real, other=0) != 0)
            tl.store(children + position * ARITY + j, tl.where(real, child, -1), mask=kept)


def select(
    candidates: Tensor, scores: Tensor, k: int, arity: int, occupied: Tensor | None, expand: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The best k of candidates [B or 1, W] by scores [B, W], their columns [B, k], and their children [B, kb].

    `occupied` says which nodes may be children; None: all. Without `expand` there are none, as below the leaves.
    """
    batch, width = scores.shape
    scores = scores.contiguous()
    candidates, apart = rows_apart(candidates)
    beam = torch.empty(batch, k, dtype=torch.int64, device=scores.device)
    index = torch.empty_like(beam)
    children = torch.empty(batch, k * arity if expand else 0, dtype=torch.int64, device=scores.device)
    padded = triton.next_power_of_2(width)
    select_rows[(batch,)](
        candidates, apart, scores, width, k,
        scores if occupied is None else occupied.view(torch.uint8), beam, index, children,
        ARITY=arity, PADDED=padded, EXPAND=expand, ADMIT_EMPTY=occupied is None,
        num_warps=4 if padded <= 2048 else 8,
    )  # fmt: skip
    return beam, index, children

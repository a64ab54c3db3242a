"""The highest score below nodes on a GPU: two binary searches in sorted keys and two reads of maxima of runs."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from beamtree.kernels import rows_apart

BLOCK = 64


@triton.jit
def look_up(
    keys,
    scores,
    runs,
    nodes,
    out,
    rows_apart,
    columns,
    start,
    size,
    width,
    count,
    run_length,
    STEPS: constexpr,
    LEAVES: constexpr,
    BLOCK: constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    node = tl.load(nodes + row * rows_apart + column, mask=inside, other=-1)
    real = node >= 0
    first = tl.where(real, (row * size + node - start) * width, 0).to(tl.int32)
    begin = tl.zeros([BLOCK], tl.int32)  # of the first key that is no less than `first`
    end = tl.zeros([BLOCK], tl.int32)  # and of the first past the node
    for step in tl.static_range(STEPS - 1, -1, -1):
        further = begin + (1 << step)
        less = (further <= count) & (tl.load(keys + tl.minimum(further, count) - 1) < first)
        begin = tl.where(less, further, begin)
        if not LEAVES:
            further = end + (1 << step)
            less = (further <= count) & (tl.load(keys + tl.minimum(further, count) - 1) < first + width)
            end = tl.where(less, further, end)
    if LEAVES:
        present = real & (begin < count)
        same = tl.load(keys + begin, mask=present, other=-1) == first
        value = tl.load(scores + begin, mask=present & same, other=0.0)
    else:
        length = end - begin
        present = real & (length > 0)
        power = (length.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127  # ⌊log₂⌋, from the exponent
        power = tl.where(present, power, 0)
        at = runs + power.to(tl.int64) * run_length
        value = tl.maximum(
            tl.load(at + begin, mask=present, other=0.0), tl.load(at + (end - (1 << power)), mask=present, other=0.0)
        )
    tl.store(out + row * columns + column, value, mask=inside)


def maxima(keys: Tensor, scores: Tensor, runs: Tensor, nodes: Tensor, span: range, width: int, rows: int) -> Tensor:
    """The highest score [rows, W] below each of nodes [rows or 1, W], but at least 0; a leaf's own as it is.

    `keys` are int32 in rising order, the slots of leaves for one user after another, `runs[j]` the maxima of 2^j scores
    from each on; `span` is the level of the nodes, `width` how many leaves are below one.
    """
    nodes, apart = rows_apart(nodes)
    columns = nodes.shape[1]
    out = torch.empty(rows, columns, device=scores.device)
    look_up[(rows, triton.cdiv(columns, BLOCK))](
        keys, scores, runs, nodes, out, apart, columns, span.start, len(span), width, len(keys), runs.shape[1],
        STEPS=len(keys).bit_length(), LEAVES=width == 1, BLOCK=BLOCK, num_warps=2,
    )  # fmt: skip
    return out

"""Adam on the rows that a step touched, on a GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from beamtree.kernels import programs

LISTED = 2048  # marks that one program looks at
ROWS = 32  # rows that it moves at a time


@triton.jit
def list_rows(touched, num_rows, rows, count, BLOCK: constexpr):
    """The rows whose mark is 1, in no order; marks are 0 thereafter."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    marked = tl.load(touched + row, mask=row < num_rows, other=0) != 0
    number = tl.sum(marked.to(tl.int32), axis=0)
    if number > 0:
        start = tl.atomic_add(count, number, sem="relaxed")
        tl.store(rows + start + tl.cumsum(marked.to(tl.int32), axis=0) - 1, row, mask=marked)
        tl.store(touched + row, tl.zeros([BLOCK], tl.int8), mask=marked)


@triton.jit
def adam_rows(
    weight,
    grad,
    first,
    second,
    rows,
    count,
    lr,
    step,
    beta1,
    beta2,
    eps,
    DIM: constexpr,
    D: constexpr,
    BLOCK: constexpr,
):
    t = tl.load(step)
    by = tl.load(lr) / (1 - tl.exp2(t * tl.log2(beta1)))
    correction = tl.sqrt(1 - tl.exp2(t * tl.log2(beta2)))
    d = tl.arange(0, D)
    total = tl.load(count)
    for start in range(tl.program_id(0) * BLOCK, total, tl.num_programs(0) * BLOCK):
        index = start + tl.arange(0, BLOCK)
        row = tl.load(rows + index, mask=index < total, other=0).to(tl.int64)
        at = row[:, None] * DIM + d[None, :]
        inside = (index < total)[:, None] & (d[None, :] < DIM)
        g = tl.load(grad + at, mask=inside, other=0.0)
        m = tl.load(first + at, mask=inside, other=0.0)
        v = tl.load(second + at, mask=inside, other=0.0)
        w = tl.load(weight + at, mask=inside, other=0.0)
        m += (1 - beta1) * (g - m)
        v += (1 - beta2) * (g * g - v)
        tl.store(weight + at, w - by * m / (tl.sqrt(v) / correction + eps), mask=inside)
        tl.store(first + at, m, mask=inside)
        tl.store(second + at, v, mask=inside)
        tl.store(grad + at, tl.zeros([BLOCK, D], tl.float32), mask=inside)


def adam(
    weight: Tensor,
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    touched: Tensor,
    lr: Tensor,
    step: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """One step of Adam for rows where `touched` is 1, in index; their gradients and marks are 0 thereafter.

    `lr` and `step`, the number of this step from 1, are scalars in memory, so that a recorded step can be run again.
    """
    num_rows, dim = weight.shape
    rows = torch.empty(num_rows, dtype=torch.int32, device=weight.device)
    count = torch.zeros((), dtype=torch.int32, device=weight.device)
    list_rows[(triton.cdiv(num_rows, LISTED),)](touched, num_rows, rows, count, BLOCK=LISTED, num_warps=4)
    adam_rows[(programs(weight.device, 8),)](
        weight, grad, first, second, rows, count, lr, step, beta1, beta2, eps,
        DIM=dim, D=triton.next_power_of_2(dim), BLOCK=ROWS, num_warps=4,
    )  # fmt: skip

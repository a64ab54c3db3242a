"""Dot products of user vectors with rows of nodes on a GPU, without gathering the rows in memory."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from beamtree.kernels import rows_apart

BLOCK = 16


@triton.jit
def multiply(rows, user, nodes, out, rows_apart, columns, DIM: constexpr, D: constexpr, BLOCK: constexpr):
    blocks = tl.cdiv(columns, BLOCK)  # of a row; the second axis of a grid would end at 65,535
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, D)
    node = tl.load(nodes + row * rows_apart + column, mask=column < columns, other=-1).to(tl.int64)
    u = tl.load(user + row * DIM + d, mask=d < DIM, other=0.0)
    inside = (node >= 0)[:, None] & (d < DIM)[None, :]
    v = tl.load(rows + node[:, None] * DIM + d[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * columns + column, tl.sum(v * u[None, :], axis=1), mask=column < columns)


def dots(rows: Tensor, user: Tensor, nodes: Tensor) -> Tensor:
    """⟨u, v_n⟩ [B, W] of users [B, dim] and the rows [num_nodes, dim] of nodes [B or 1, W]; 0 at PAD."""
    nodes, apart = rows_apart(nodes)
    columns, dim = nodes.shape[1], rows.shape[1]
    out = torch.empty(len(user), columns, device=user.device)
    multiply[(len(user) * triton.cdiv(columns, BLOCK),)](
        rows.contiguous(), user.contiguous(), nodes, out, apart, columns,
        DIM=dim, D=triton.next_power_of_2(dim), BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return out

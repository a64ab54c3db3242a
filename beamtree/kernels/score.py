"""The deep scorer on a GPU: launches of its kernels, and its autograd function."""

from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from beamtree.kernels import programs, rows_apart
from beamtree.kernels.tiles import backward_to_layers, backward_to_rows, score_tiles


class Launch(NamedTuple):
    """How a kernel is launched: nodes per tile, warps per program, programs per multiprocessor."""

    block: int
    warps: int
    each: int
    stages: int = 2


FORWARD = Launch(64, 4, 2)
TO_ROWS = Launch(64, 4, 2, 1)
TO_LAYERS = Launch(64, 4, 2, 1)
GRADIENT_RANGE = 256.0  # the highest gradient is scaled to this, so that small ones do not underflow in float16


class Layers(NamedTuple):
    """The weights after the user half: of the node half, and of the second, third and last layer."""

    wn: Tensor  # [A, DIM]
    s1: Tensor  # slopes of PReLU [A]
    w2: Tensor  # [B, A]
    b2: Tensor  # [B]
    s2: Tensor  # [B]
    w3: Tensor  # [C, B]
    b3: Tensor  # [C]
    s3: Tensor  # [C]
    w4: Tensor  # [1, C]
    b4: Tensor  # [1]


class Runs(NamedTuple):
    """Which columns belong to which level."""

    tiles: Tensor  # start, stop and level of each tile, int32 [T, 3]
    width: int  # columns in all


@cache
def runs(levels: tuple[tuple[int, int], ...], block: int, device: torch.device) -> Runs:
    """The tiles of columns that lie side by side: (level, how many columns) for each level."""
    tiles, start = [], 0
    for level, width in levels:
        stop = start + width
        tiles += [(first, min(first + block, stop), level) for first in range(start, stop, block)]
        start = stop
    return Runs(torch.tensor(tiles, dtype=torch.int32, device=device), start)


def _sizes(layers: Layers, block: int) -> dict[str, int]:
    a, dim = layers.wn.shape
    c, b = layers.w3.shape
    pad = triton.next_power_of_2
    return {"DIM": dim, "D": max(16, pad(dim)), "A": a, "B": b, "C": c, "PAD_C": max(16, pad(c)), "BLOCK": block}


def score(vectors: Tensor, user: Tensor, layers: Layers, levels: tuple[tuple[int, int], ...], nodes: Tensor) -> Tensor:
    """g(x, n) [B, W] of nodes [B or 1, W] whose columns belong to `levels`, one after another; -inf at PAD.

    `vectors` is [num_nodes, DIM], `user` the user half of the first layer [B, levels of the tree, A].
    """
    where = runs(levels, FORWARD.block, nodes.device)
    user = user.contiguous()
    nodes, apart = rows_apart(nodes)
    batch = len(user)
    out = torch.empty(batch, where.width, device=nodes.device)
    if batch:
        score_tiles[(min(programs(nodes.device, FORWARD.each), batch * len(where.tiles)),)](
            nodes, apart, where.tiles, len(where.tiles), batch,
            vectors, user, user.stride(0), *layers, out, where.width,
            **_sizes(layers, FORWARD.block), num_warps=FORWARD.warps,
        )  # fmt: skip
    return out


def score_backward(
    vectors: Tensor,
    user: Tensor,
    layers: Layers,
    levels: tuple[tuple[int, int], ...],
    nodes: Tensor,
    grad: Tensor,
    vectors_grad: Tensor,
    touched: Tensor,
) -> tuple[Tensor, Layers]:
    """The gradients of `user` and `layers`; those of vectors are added to `vectors_grad`, and `touched` is 1 there."""
    user, grad = user.contiguous(), grad.contiguous()
    nodes, apart = rows_apart(nodes)
    scale = GRADIENT_RANGE / grad.abs().amax().clamp(min=1e-30)
    half = tl.float16 if nodes.is_cuda else tl.float32  # Triton's interpreter gains nothing by float16
    user_grad = torch.zeros_like(user)
    dim, a, b, c = (_sizes(layers, 0)[name] for name in ("DIM", "A", "B", "C"))

    def run(kernel: Any, how: Launch, parts: list[int], *gradients: Tensor) -> tuple[Tensor, ...]:
        where = runs(levels, how.block, nodes.device)
        count = min(programs(nodes.device, how.each), max(1, len(user) * len(where.tiles)))
        partial = torch.zeros(count, sum(parts), device=nodes.device)
        kernel[(count,)](
            nodes, apart, where.tiles, len(where.tiles), len(user),
            vectors, user, user.stride(0), *layers[:-1], grad, where.width, scale, *gradients, partial,
            **_sizes(layers, how.block), HALF=half, num_warps=how.warps, num_stages=how.stages,
        )  # fmt: skip
        shares: tuple[Tensor, ...] = (partial.sum(0) / scale).split(parts)
        return shares

    wn, s1 = run(backward_to_rows, TO_ROWS, [dim * a, a], vectors_grad, touched, user_grad)
    w2, b2, s2, w3, b3, s3, w4, b4 = run(backward_to_layers, TO_LAYERS, [a * b, b, b, b * c, c, c, c, 1])
    return user_grad, Layers(wn.view(dim, a).T, s1, w2.view(a, b).T, b2, s2, w3.view(b, c).T, b3, s3, w4.view(1, c), b4)


class Rows(Protocol):
    """Vectors of nodes, and where their gradients are collected: see `scorers.table.Vectors`."""

    values: Tensor
    link: Tensor | None
    gradients: Any


def score_levels(rows: Rows, user: Tensor, layers: Layers, nodes_of: list[tuple[int, Tensor]]) -> list[Tensor]:
    """g(x, n) [B, W] of nodes [B or 1, W] of each of some levels, with gradients if `rows` collects them."""
    widths = [nodes.shape[1] for _, nodes in nodes_of]
    levels = tuple((level, width) for (level, _), width in zip(nodes_of, widths, strict=True))
    nodes = nodes_of[0][1]
    if len(nodes_of) > 1:
        nodes = torch.cat([nodes.expand(len(user), -1) for _, nodes in nodes_of], dim=1)
    if rows.gradients is None or not torch.is_grad_enabled():
        logits = score(rows.values, user, layers, levels, nodes)
    else:
        logits = _Score.apply(rows.link, user, *layers, rows.values, rows.gradients, levels, nodes)
    return list(logits.split(widths, dim=1))


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, link: Tensor, user: Tensor, *rest: Any) -> Tensor:
        *layers, values, gradients, levels, nodes = rest
        ctx.gradients, ctx.levels = gradients, levels
        ctx.save_for_backward(user, *layers, values, nodes)
        return score(values, user, Layers(*layers), levels, nodes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        user, *layers, values, nodes = ctx.saved_tensors
        user_grad, layer_grads = score_backward(
            values, user, Layers(*layers), ctx.levels, nodes, grads[0], *ctx.gradients.buffers()
        )
        return grads[0].new_zeros(()), user_grad, *layer_grads, None, None, None, None

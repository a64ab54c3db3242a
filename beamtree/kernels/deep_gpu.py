"""The deep scorer on a GPU: its kernels, their launches, and its autograd function.

Rows in, logits out, and hidden layers stay on the chip. A tile is a run of nodes of one user and one level, so that the
user half of the first layer is one vector for the whole tile. Programs take tiles in turn. The backward pass recomputes
tiles in two kernels, because the sums of one would not fit into its registers. Matrices are multiplied as tf32, in the
backward pass as float16, which has the same number of digits: gradients are scaled to its range. Sums are float32.
"""

from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from beamtree.kernels import programs, rows_apart

# Kernels


@triton.jit
def _prelu(z, slope):
    return tl.where(z > 0, z, z * slope[None, :])


@triton.jit
def _round(z, HALF: constexpr):
    return tl.clamp(z, -60000.0, 60000.0).to(HALF)  # what float16 can hold


@triton.jit
def _locate(tile, nodes, rows_apart, tiles, num_tiles, BLOCK: constexpr):
    """A tile's user and level, its columns, which of them it has, and its nodes."""
    row, index = (tile // num_tiles).to(tl.int64), tile % num_tiles
    start, stop, level = tl.load(tiles + index * 3), tl.load(tiles + index * 3 + 1), tl.load(tiles + index * 3 + 2)
    column = start + tl.arange(0, BLOCK)
    inside = column < stop
    node = tl.load(nodes + row * rows_apart + column, mask=inside, other=-1)
    return row, level, column, inside, node


@triton.jit
def _matrix(weight, i, j, apart_i, apart_j, size_i, size_j):
    """[i, j] of a matrix, 0 where it has no such entry."""
    there = (i[:, None] < size_i) & (j[None, :] < size_j)
    return tl.load(weight + i[:, None] * apart_i + j[None, :] * apart_j, mask=there, other=0.0)


@triton.jit
def _vectors(table, node, d, DIM: constexpr):
    there = (node >= 0)[:, None] & (d[None, :] < DIM)
    return tl.load(table + node[:, None] * DIM + d[None, :], mask=there, other=0.0)


@triton.jit
def score_tiles(
    nodes, rows_apart, tiles, num_tiles, batch,
    table, user, user_apart,
    wn, s1, w2, b2, s2, w3, b3, s3, w4, b4,
    out, width,
    DIM: constexpr, D: constexpr, A: constexpr, B: constexpr, C: constexpr, PAD_C: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """out [batch, width] = g(x, n), -inf where a node is PAD."""
    d, a, b, c = tl.arange(0, D), tl.arange(0, A), tl.arange(0, B), tl.arange(0, PAD_C)
    node_half = _matrix(wn, d, a, 1, DIM, DIM, A)
    second = _matrix(w2, a, b, 1, A, A, B)
    third = _matrix(w3, b, c, 1, B, B, C)
    slope1, slope2, bias2 = tl.load(s1 + a), tl.load(s2 + b), tl.load(b2 + b)
    slope3, bias3 = tl.load(s3 + c, mask=c < C, other=0.0), tl.load(b3 + c, mask=c < C, other=0.0)
    last = tl.load(w4 + c, mask=c < C, other=0.0)
    bias4 = tl.load(b4)
    for tile in range(tl.program_id(0), num_tiles * batch, tl.num_programs(0)):
        row, level, column, inside, node = _locate(tile, nodes, rows_apart, tiles, num_tiles, BLOCK)
        half = tl.load(user + row * user_apart + level * A + a)
        h1 = _prelu(tl.dot(_vectors(table, node, d, DIM), node_half) + half[None, :], slope1)
        h2 = _prelu(tl.dot(h1, second) + bias2[None, :], slope2)
        h3 = _prelu(tl.dot(h2, third) + bias3[None, :], slope3)
        logit = tl.sum(h3 * last[None, :], axis=1) + bias4
        tl.store(out + row * width + column, tl.where(node >= 0, logit, float("-inf")), mask=inside)


@triton.jit
def backward_to_rows(
    nodes, rows_apart, tiles, num_tiles, batch,
    table, user, user_apart,
    wn, s1, w2, b2, s2, w3, b3, s3, w4,
    grad, width, scale, table_grad, touched, user_grad, partial,
    DIM: constexpr, D: constexpr, A: constexpr, B: constexpr, C: constexpr, PAD_C: constexpr, BLOCK: constexpr,
    HALF: constexpr,
):  # fmt: skip
    """The gradients of the first layer, vectors and users. A program's share of `partial` is wn [DIM, A], s1 [A]."""
    d, a, b, c = tl.arange(0, D), tl.arange(0, A), tl.arange(0, B), tl.arange(0, PAD_C)
    node_half, node_half_t = _matrix(wn, d, a, 1, DIM, DIM, A).to(HALF), _matrix(wn, a, d, DIM, 1, A, DIM).to(HALF)
    second, second_t = _matrix(w2, a, b, 1, A, A, B).to(HALF), _matrix(w2, b, a, A, 1, B, A).to(HALF)
    third, third_t = _matrix(w3, b, c, 1, B, B, C).to(HALF), _matrix(w3, c, b, B, 1, C, B).to(HALF)
    by = tl.load(scale)
    share = partial + tl.program_id(0).to(tl.int64) * (DIM * A + A)
    to_wn = tl.zeros([A, D], tl.float32)
    for tile in range(tl.program_id(0), num_tiles * batch, tl.num_programs(0)):
        row, level, column, _, node = _locate(tile, nodes, rows_apart, tiles, num_tiles, BLOCK)
        slope1, slope2, bias2 = tl.load(s1 + a), tl.load(s2 + b), tl.load(b2 + b)
        slope3, bias3 = tl.load(s3 + c, mask=c < C, other=0.0), tl.load(b3 + c, mask=c < C, other=0.0)
        half = tl.load(user + row * user_apart + level * A + a)
        g = tl.load(grad + row * width + column, mask=node >= 0, other=0.0) * by

        vector = _round(_vectors(table, node, d, DIM), HALF)
        z = tl.dot(vector, node_half) + half[None, :]
        below = _round(tl.minimum(z, 0.0), HALF)
        z2 = tl.dot(_round(_prelu(z, slope1), HALF), second) + bias2[None, :]
        z3 = tl.dot(_round(_prelu(z2, slope2), HALF), third) + bias3[None, :]

        g3 = g[:, None] * tl.load(w4 + c, mask=c < C, other=0.0)[None, :]
        g3 = tl.where(z3 > 0, g3, g3 * slope3[None, :])
        g2 = tl.dot(_round(g3, HALF), third_t)
        g2 = tl.where(z2 > 0, g2, g2 * slope2[None, :])
        g1 = tl.dot(_round(g2, HALF), second_t)
        under = below.to(tl.float32)
        tl.atomic_add(share + DIM * A + a, tl.sum(g1 * under, axis=0), sem="relaxed")
        g1 = tl.where(under < 0, g1 * slope1[None, :], g1)
        tl.atomic_add(user_grad + row * user_apart + level * A + a, tl.sum(g1, axis=0) / by, sem="relaxed")
        low = _round(g1, HALF)
        to_wn = tl.dot(tl.trans(low), vector, acc=to_wn)
        there = (node >= 0)[:, None] & (d[None, :] < DIM)
        g0 = tl.dot(low, node_half_t) / by
        tl.atomic_add(table_grad + node[:, None] * DIM + d[None, :], g0, mask=there, sem="relaxed")
        tl.store(touched + node, tl.full([BLOCK], 1, tl.int8), mask=node >= 0)
    tl.store(share + d[None, :] * A + a[:, None], to_wn, mask=d[None, :] < DIM)


@triton.jit
def backward_to_layers(
    nodes, rows_apart, tiles, num_tiles, batch,
    table, user, user_apart,
    wn, s1, w2, b2, s2, w3, b3, s3, w4,
    grad, width, scale, partial,
    DIM: constexpr, D: constexpr, A: constexpr, B: constexpr, C: constexpr, PAD_C: constexpr, BLOCK: constexpr,
    HALF: constexpr,
):  # fmt: skip
    """Gradients of the other layers. `partial` is w2 [A, B], b2, s2 [B], w3 [B, C], b3, s3, w4 [C], b4 [1]."""
    d, a, b, c = tl.arange(0, D), tl.arange(0, A), tl.arange(0, B), tl.arange(0, PAD_C)
    node_half = _matrix(wn, d, a, 1, DIM, DIM, A).to(HALF)
    second = _matrix(w2, a, b, 1, A, A, B).to(HALF)
    third, third_t = _matrix(w3, b, c, 1, B, B, C).to(HALF), _matrix(w3, c, b, B, 1, C, B).to(HALF)
    by = tl.load(scale)
    share = partial + tl.program_id(0).to(tl.int64) * (A * B + 2 * B + B * C + 3 * C + 1)
    to_b2, to_s2 = share + A * B, share + A * B + B
    to_b3 = to_s2 + B + B * C
    to_s3, to_w4, to_b4 = to_b3 + C, to_b3 + 2 * C, to_b3 + 3 * C
    to_w2 = tl.zeros([A, B], tl.float32)
    to_w3 = tl.zeros([B, PAD_C], tl.float32)
    for tile in range(tl.program_id(0), num_tiles * batch, tl.num_programs(0)):
        row, level, column, _, node = _locate(tile, nodes, rows_apart, tiles, num_tiles, BLOCK)
        slope1, slope2, bias2 = tl.load(s1 + a), tl.load(s2 + b), tl.load(b2 + b)
        slope3, bias3 = tl.load(s3 + c, mask=c < C, other=0.0), tl.load(b3 + c, mask=c < C, other=0.0)
        half = tl.load(user + row * user_apart + level * A + a)
        g = tl.load(grad + row * width + column, mask=node >= 0, other=0.0) * by

        vector = _round(_vectors(table, node, d, DIM), HALF)
        h1 = _round(_prelu(tl.dot(vector, node_half) + half[None, :], slope1), HALF)
        z2 = tl.dot(h1, second) + bias2[None, :]
        h2 = _round(_prelu(z2, slope2), HALF)
        z3 = tl.dot(h2, third) + bias3[None, :]

        tl.atomic_add(to_w4 + c, tl.sum(g[:, None] * _prelu(z3, slope3), axis=0), mask=c < C, sem="relaxed")
        tl.atomic_add(to_b4, tl.sum(g, axis=0), sem="relaxed")
        g3 = g[:, None] * tl.load(w4 + c, mask=c < C, other=0.0)[None, :]
        tl.atomic_add(to_s3 + c, tl.sum(g3 * tl.minimum(z3, 0.0), axis=0), mask=c < C, sem="relaxed")
        g3 = tl.where(z3 > 0, g3, g3 * slope3[None, :])
        tl.atomic_add(to_b3 + c, tl.sum(g3, axis=0), mask=c < C, sem="relaxed")
        low3 = _round(g3, HALF)
        to_w3 = tl.dot(tl.trans(h2), low3, acc=to_w3)
        g2 = tl.dot(low3, third_t)
        tl.atomic_add(to_s2 + b, tl.sum(g2 * tl.minimum(z2, 0.0), axis=0), sem="relaxed")
        g2 = tl.where(z2 > 0, g2, g2 * slope2[None, :])
        tl.atomic_add(to_b2 + b, tl.sum(g2, axis=0), sem="relaxed")
        to_w2 = tl.dot(tl.trans(h1), _round(g2, HALF), acc=to_w2)
    tl.store(share + a[:, None] * B + b[None, :], to_w2)
    tl.store(to_s2 + B + b[:, None] * C + c[None, :], to_w3, mask=c[None, :] < C)


# Launches


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


class GradientRows(Protocol):
    """Vectors of nodes, and where their gradients are collected: see `scorers.table.Vectors`."""

    values: Tensor
    link: Tensor | None
    gradients: Any


def score_levels(rows: GradientRows, user: Tensor, layers: Layers, nodes_of: list[tuple[int, Tensor]]) -> list[Tensor]:
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

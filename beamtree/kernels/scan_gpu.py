"""The products of a scan on a GPU: rows are read once, for all users, and the highest score of each group is kept."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from beamtree.kernels.search_cpu import MAX_PRODUCTS

LEAVES = 128  # of a program: a multiple of every group
CHUNK = 64  # numbers of a row that are multiplied at once


@triton.jit
def product(
    rows,
    users,
    leaf,
    user,
    num_leaves,
    num_users,
    DIM: constexpr,
    CHUNK: constexpr,
    LEAVES: constexpr,
    USERS: constexpr,
):
    """⟨u, v⟩ of halves v and numbers u, which are two halves each, so that nothing is lost [LEAVES, USERS]."""
    d = tl.arange(0, CHUNK)
    largest = tl.zeros([USERS], tl.float32)
    for start in tl.static_range(0, DIM, CHUNK):
        known = ((start + d) < DIM)[:, None] & (user < num_users)[None, :]
        u = tl.load(users + user[None, :] * DIM + (start + d)[:, None], mask=known, other=0.0)
        largest = tl.maximum(largest, tl.max(tl.abs(u), axis=0))
    scale = tl.where(largest > 0, largest, 1.0)
    total = tl.zeros([LEAVES, USERS], tl.float32)
    for start in tl.static_range(0, DIM, CHUNK):
        inside = (leaf < num_leaves)[:, None] & ((start + d) < DIM)[None, :]
        v = tl.load(rows + leaf.to(tl.int64)[:, None] * DIM + (start + d)[None, :], mask=inside, other=0.0)
        known = ((start + d) < DIM)[:, None] & (user < num_users)[None, :]
        u = tl.load(users + user[None, :] * DIM + (start + d)[:, None], mask=known, other=0.0) / scale[None, :]
        high = u.to(tl.float16)
        low = (u - high.to(tl.float32)).to(tl.float16)
        total = tl.dot(v, high, total)
        total = tl.dot(v, low, total)
    return total * scale[None, :]


@triton.jit
def add(
    total,
    highest,
    shared,
    blocked,
    num_leaves,
    num_users,
    rows_0,
    users_0,
    weight_0,
    rows_1,
    users_1,
    weight_1,
    rows_2,
    users_2,
    weight_2,
    rows_3,
    users_3,
    weight_3,
    DIM_0: constexpr,
    DIM_1: constexpr,
    DIM_2: constexpr,
    DIM_3: constexpr,
    CHUNK_0: constexpr,
    CHUNK_1: constexpr,
    CHUNK_2: constexpr,
    CHUNK_3: constexpr,
    SHARED: constexpr,
    BLOCKED: constexpr,
    GROUP: constexpr,
    LEAVES: constexpr,
    USERS: constexpr,
):
    leaf = tl.program_id(0) * LEAVES + tl.arange(0, LEAVES)
    user = tl.program_id(1) * USERS + tl.arange(0, USERS)
    inside = (leaf < num_leaves)[:, None] & (user < num_users)[None, :]
    at = total + user.to(tl.int64)[None, :] * num_leaves + leaf[:, None]
    value = tl.load(at, mask=inside, other=0.0)
    if DIM_0 > 0:
        added = product(rows_0, users_0, leaf, user, num_leaves, num_users, DIM_0, CHUNK_0, LEAVES, USERS)
        value += weight_0 * added
    if DIM_1 > 0:
        added = product(rows_1, users_1, leaf, user, num_leaves, num_users, DIM_1, CHUNK_1, LEAVES, USERS)
        value += weight_1 * added
    if DIM_2 > 0:
        added = product(rows_2, users_2, leaf, user, num_leaves, num_users, DIM_2, CHUNK_2, LEAVES, USERS)
        value += weight_2 * added
    if DIM_3 > 0:
        added = product(rows_3, users_3, leaf, user, num_leaves, num_users, DIM_3, CHUNK_3, LEAVES, USERS)
        value += weight_3 * added
    if SHARED:
        value += tl.load(shared + leaf, mask=leaf < num_leaves, other=0.0)[:, None]
    if BLOCKED:
        is_blocked = tl.load(blocked + leaf, mask=leaf < num_leaves, other=1) != 0
        value = tl.where(is_blocked[:, None], float("-inf"), value)
    tl.store(at, value, mask=inside)
    if GROUP > 1:
        value = tl.where(inside, value, float("-inf"))
        best = tl.max(tl.reshape(value, [LEAVES // GROUP, GROUP, USERS]), axis=1)
        groups = num_leaves // GROUP
        group = tl.program_id(0) * (LEAVES // GROUP) + tl.arange(0, LEAVES // GROUP)
        at = highest + user.to(tl.int64)[None, :] * groups + group[:, None]
        tl.store(at, best, mask=(group < groups)[:, None] & (user < num_users)[None, :])


def add_tables(total: Tensor, tables: Any, shared: Tensor | None, blocked: Tensor | None, group: int) -> Tensor:
    """Add products to the scores of leaves [B, b^H] in place: see `scan.add_tables`."""
    num_users, num_leaves = total.shape
    highest = torch.empty(num_users, num_leaves // group, device=total.device) if group > 1 else total
    arguments, dims, chunks = list[Any](), list[int](), list[int]()
    for rows, weight, users in tables:
        arguments += [rows.contiguous(), users.float().contiguous(), weight]
        dims.append(rows.shape[1])
        chunks.append(min(CHUNK, max(16, triton.next_power_of_2(rows.shape[1]))))
    for _ in range(MAX_PRODUCTS - len(tables)):
        arguments += [total, total, 0.0]
        dims.append(0)
        chunks.append(16)
    users_at_once = min(64, max(16, triton.next_power_of_2(num_users)))
    add[(triton.cdiv(num_leaves, LEAVES), triton.cdiv(num_users, users_at_once))](
        total, highest, total if shared is None else shared, total if blocked is None else blocked.view(torch.uint8),
        num_leaves, num_users, *arguments, *dims, *chunks,
        SHARED=shared is not None, BLOCKED=blocked is not None, GROUP=group, LEAVES=LEAVES, USERS=users_at_once,
        num_warps=8 if users_at_once > 16 else 4,
    )  # fmt: skip
    return highest

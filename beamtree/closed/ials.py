"""Implicit ALS (Hu et al. 2008) as Rendle et al. tuned it in 2021: every pair counts a little, chosen pairs count 1.

The loss is Σ_chosen (1 - ⟨u, v⟩)² + α₀ Σ_all ⟨u, v⟩² + Σ_u λ (n_u + α₀M) |u|² + Σ_i λ (n_i + α₀U) |v_i|².
"""

from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.closed.lists import Lists, chosen
from beamtree.data.events import Events

ROOM = 1 << 18  # entries that are solved for at once
DIM, ROUNDS = 192, 4
STRENGTHS = ((0.005, 0.003), (0.015, 0.01), (0.015, 0.1))  # λ and α₀ that are worth a try


class Factors(NamedTuple):
    """Vectors of the items, turned so that α₀ΣvvT is diagonal, and what a fold-in needs beside them."""

    items: Tensor  # [M, dim]
    spread: Tensor  # the diagonal of α₀ΣvvT [dim]
    penalty: float  # λ
    everywhere: float  # α₀M, or α₀U for the other side


def ials(
    events: Events,
    num_items: int,
    *,
    dim: int = DIM,
    penalty: float = 0.005,
    everywhere: float = 0.003,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Factors:
    """Factorise which users chose which items, on the device of the events.

    Args:
        events: of the training users.
        num_items: M.
        dim: numbers per item.
        penalty: λ.
        everywhere: α₀, the weight of a pair that was not chosen.
        rounds: over users and items.
        seed: of the start.
    """
    device, dim = events.offsets.device, min(dim, num_items)
    users, items = chosen(events, num_items)
    generator = torch.Generator(device).manual_seed(seed)
    vectors = torch.randn(num_items, dim, generator=generator, device=device) * 0.1 / dim**0.5
    for _ in range(rounds):
        of_items = turned(vectors, penalty, everywhere)
        of_users = turned(_solve(of_items, users), penalty, everywhere)
        vectors = _solve(of_users, items)
    return turned(vectors, penalty, everywhere)


def turned(vectors: Tensor, penalty: float, everywhere: float) -> Factors:
    """The same vectors turned to the axes of their spread: products stay, and a ridge needs no matrix of its own."""
    spread, axes = torch.linalg.eigh(everywhere * (vectors.T @ vectors))
    return Factors(vectors @ axes, spread.clamp(min=0), penalty, everywhere * len(vectors))


def fold_in(factors: Factors, vectors: Tensor, weights: Tensor) -> Tensor:
    """u(x): argmin of Σ w (1 - ⟨u, v⟩)² + α₀ Σ_all ⟨u, v⟩² + λ (Σw + α₀M) |u|² [B, dim].

    `vectors` are those of the history [B, T, dim], `weights` w how much each counts [B, T], 0 for none at all. With
    Y = √w v and a diagonal A of what does not depend on the history, u = A⁻¹Yᵀ(1 + YA⁻¹Yᵀ)⁻¹√w: a system as large as
    the history where that is shorter than a vector.
    """
    root = weights.sqrt()
    rows = vectors * root.unsqueeze(-1)
    diagonal = factors.spread + factors.penalty * (weights.sum(1, keepdim=True) + factors.everywhere)  # [B, dim]
    length, dim = rows.shape[1:]
    if length <= dim:
        shrunk = rows / diagonal.unsqueeze(1)
        system = torch.bmm(shrunk, rows.transpose(1, 2))
        system.diagonal(dim1=1, dim2=2).add_(1.0)
        found = solve_positive(system, root)
        return torch.bmm(shrunk.transpose(1, 2), found.unsqueeze(-1)).squeeze(-1)
    system = torch.bmm(rows.transpose(1, 2), rows)
    system.diagonal(dim1=1, dim2=2).add_(diagonal)
    return solve_positive(system, torch.bmm(rows.transpose(1, 2), root.unsqueeze(-1)).squeeze(-1))


def solve_positive(system: Tensor, right: Tensor) -> Tensor:
    """The solution of a positive definite system [B, n, n] for one right side each [B, n].

    Without a check, and on a GPU in two steps that a recording can hold: the diagonal is above 0 by construction.
    """
    factor: Tensor = torch.linalg.cholesky_ex(system).L
    column = right.unsqueeze(-1)
    if not system.is_cuda:
        return torch.cholesky_solve(column, factor).squeeze(-1)
    half = torch.linalg.solve_triangular(factor, column, upper=False)
    whole: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return whole.squeeze(-1)


def _solve(other: Factors, lists: Lists) -> Tensor:
    """The vectors of one side, given those of the other [n, dim]; 0 for whoever chose nothing."""
    dim = other.items.shape[1]
    found = other.items.new_zeros(len(lists), dim)
    for which, width in lists.batches(ROOM):
        entries, real = lists.read(which, width)
        found[which] = fold_in(other, other.items[entries], real.to(found.dtype))
    return found

"""Implicit ALS (Hu et al. 2008) as Rendle et al. tuned it in 2021: every pair counts a little, chosen pairs count 1.

The loss is Σ_chosen (1 - ⟨u, v⟩)² + α₀ Σ_all ⟨u, v⟩² + Σ_u λ (n_u + α₀M) |u|² + Σ_i λ (n_i + α₀U) |v_i|².
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.closed_form.lists import Lists, chosen
from beamtree.data.events import Events
from beamtree.distributed.exchange import PULLED, drawn, in_step, pull, whole
from beamtree.distributed.group import ranks
from beamtree.threads import in_threads

ROOM = 1 << 18  # entries that are solved for at once
PIECE = 1 << 13  # and of these by one thread of a CPU: their vectors fit into its cache
DIM, ROUNDS = 192, 4
STRENGTHS = ((0.005, 0.003), (0.015, 0.01), (0.015, 0.1))  # λ and α₀ that are worth a try


class Factors(NamedTuple):
    """Vectors of the items, turned so that α₀ΣvvT is diagonal, and what a fold-in needs beside them."""

    items: Tensor  # [M, dim]; of `ials_by_rows` those that are dealt to this rank
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
    found = ials_by_rows(events, num_items, dim=dim, penalty=penalty, everywhere=everywhere, rounds=rounds, seed=seed)
    return found._replace(items=whole(found.items, num_items))


def ials_by_rows(
    events: Events,
    num_items: int,
    *,
    penalty: float,
    everywhere: float,
    dim: int = DIM,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Factors:
    """The same, with the vectors of those items alone that are dealt to this rank: for more than one rank can hold.

    A rank solves for its users and its items. What these need of the other side it pulls, some lists at a time.
    """
    dim = min(dim, num_items)
    users, items = chosen(events, num_items)
    generator = torch.Generator(events.offsets.device).manual_seed(seed)
    vectors = drawn(num_items, dim, generator) * 0.1 / dim**0.5
    for _ in range(rounds):
        of_items = turned(vectors, penalty, everywhere, num_items)
        of_users = turned(_solve(of_items, users, num_items), penalty, everywhere, len(events))
        vectors = _solve(of_users, items, len(events))
    return turned(vectors, penalty, everywhere, num_items)


def turned(vectors: Tensor, penalty: float, everywhere: float, count: int | None = None) -> Factors:
    """The same vectors turned to the axes of their spread: products stay, and a ridge needs no matrix of its own.

    Of `count` vectors that are dealt out, `vectors` are this rank's; all of them unless given.
    """
    total = len(vectors) if count is None else count
    spread, axes = torch.linalg.eigh(everywhere * ranks().sum_(vectors.T @ vectors))
    ranks().broadcast_(spread)
    ranks().broadcast_(axes)
    return Factors(vectors @ axes, spread.clamp(min=0), penalty, everywhere * total)


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


def _solve(other: Factors, lists: Lists, count: int) -> Tensor:
    """The vectors of one side, given those of the `count` others [n, dim]; 0 for whoever chose nothing."""
    found = other.items.new_zeros(len(lists), other.items.shape[1])
    for which, entries, real, rows in _with_rows(other.items, lists, count):

        def solve(some: Tensor | slice, entries: Tensor = entries, real: Tensor = real, rows: Tensor = rows) -> Tensor:
            return fold_in(other, rows[entries[some]], real[some].to(rows.dtype))

        if entries.is_cuda:
            found[which] = solve(slice(None))
        else:
            pieces = torch.arange(len(which)).split(max(1, PIECE // entries.shape[1]))
            found[which] = torch.cat(in_threads(solve, pieces))
    return found


def _with_rows(part: Tensor, lists: Lists, count: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Lists in batches: which, their entries [B, W] as places in some rows, which of these are real, and the rows.

    They are rows of the table that is dealt out, of which `part` is here: all of them where that is no more than a rank
    pulls at once, else those of a run of batches.
    """
    batches = list(lists.batches(ROOM))
    if ranks().size == 1 or count <= PULLED:
        rows = whole(part, count)
        for which, width in batches:
            yield which, *lists.read(which, width), rows
        return
    runs = _runs(batches)
    for place in in_step(len(runs)):
        read = [lists.read(*batch) for batch in runs[place]] if place is not None else []
        ids = torch.unique(torch.cat([part.new_empty(0, dtype=torch.int64), *(each[real] for each, real in read)]))
        rows = pull(part, ids)
        for (which, _), (entries, real) in zip(runs[place or 0], read, strict=False):
            yield which, torch.searchsorted(ids, entries).clamp_(max=len(ids) - 1), real, rows


def _runs(batches: list[tuple[Tensor, int]]) -> list[list[tuple[Tensor, int]]]:
    """Batches one after the other, in runs of no more entries than a rank pulls at once."""
    found: list[list[tuple[Tensor, int]]] = []
    room = 0
    for which, width in batches:
        room -= len(which) * width
        if room < 0:
            found.append([])
            room = PULLED - len(which) * width
        found[-1].append((which, width))
    return found

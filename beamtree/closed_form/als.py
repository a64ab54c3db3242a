"""Implicit ALS (Hu et al. 2008) with the settings of Rendle et al. (2021): all pairs count a little, chosen ones 1.

The loss is Σ_chosen w (1 - ⟨u, v⟩)² + α₀ Σ_all ⟨u, v⟩² + Σ_u λ (n_u + α₀M) |u|² + Σ_i λ (n_i + α₀U) |v_i|², where w
is the weight of the events of a pair, 1 unless events have weights, and n is the sum of the w of a user or an item.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from beamtree.data.csr import CSR, group_rows
from beamtree.data.events import Events
from beamtree.data.factors import weighted_pairs
from beamtree.data.seeds import draw_rows
from beamtree.kernels import sparse
from beamtree.kernels.threads import parallel_map
from beamtree.scorers.factors import Factors, fold_in

CELLS = 1 << 18  # entries that are solved for in one batch
CELLS_PER_THREAD = 1 << 13  # and in one thread of a CPU: their vectors fit into its cache
DIM, ROUNDS = 192, 8
COMPILED_DIM = 1024  # numbers of a vector up to which short rows are solved by compiled code
STRENGTHS = ((0.005, 0.003), (0.015, 0.01), (0.015, 0.1), (0.005, 0.03))  # λ and α₀ to try first
WEAKEST, STRONGEST = 1e-6, 10.0  # λ at which a search for a better one ends


def implicit_als(
    events: Events,
    num_items: int,
    *,
    dim: int = DIM,
    penalty: float = 0.005,
    unobserved_weight: float = 0.003,
    rounds: int = ROUNDS,
    seed: int = 0,
    start: Tensor | None = None,
) -> Factors:
    """Factorise which users chose which items, on the device of the events.

    Args:
        events: of the training users.
        num_items: M.
        dim: numbers per item.
        penalty: λ.
        unobserved_weight: α₀, the weight of a pair that was not chosen.
        rounds: over users and items.
        seed: of the first vectors.
        start: the first vectors [M, dim], such as those of nearly the same events. Default: small random ones.
    """
    user, item, weight = weighted_pairs(events, num_items)
    items_of_users = group_rows(user, item, len(events), weight)
    users_of_items = group_rows(item, user, num_items, weight)
    vectors = start
    if vectors is None:
        vectors = initial_vectors(num_items, min(dim, num_items), seed, events.offsets.device)
    for _ in range(rounds):
        items = rotate(vectors, penalty, unobserved_weight)
        users = rotate(_solve(items, items_of_users), penalty, unobserved_weight)
        vectors = _solve(users, users_of_items)
    return rotate(vectors, penalty, unobserved_weight).normalized()


def choose_strengths(quality: Callable[[tuple[float, float]], float]) -> tuple[float, float]:
    """λ and α₀ of the highest quality: the best of STRENGTHS, and from there smaller or larger λ while it rises.

    The quality is -inf where factors vanish. This happens in sparse logs: above some λ, which depends on α₀, all
    vectors of the solution are 0.
    """
    tried = {pair: quality(pair) for pair in STRENGTHS}
    best = max(STRENGTHS, key=tried.__getitem__)
    for factor in (0.5, 2.0):
        first = best
        while WEAKEST < best[0] < STRONGEST:
            pair = best[0] * factor, best[1]
            tried[pair] = quality(pair)
            if tried[pair] <= tried[best] > -torch.inf:
                break
            best = pair
        if best != first:
            break
    return best


def initial_vectors(count: int, dim: int, seed: int, device: torch.device) -> Tensor:
    """Small random vectors [count, dim]."""
    generator = torch.Generator(device).manual_seed(seed)
    vectors: Tensor = torch.cat([piece for _, piece in draw_rows(count, dim, generator)]) * 0.1 / dim**0.5
    return vectors


def rotate(vectors: Tensor, penalty: float, unobserved_weight: float) -> Factors:
    """Vectors of users or items rotated so that their Gram matrix is diagonal, which a fold-in relies on.

    Products stay the same.
    """
    diagonal, axes = principal_axes(vectors.T @ vectors)
    return Factors(vectors @ axes, unobserved_weight * diagonal, penalty, unobserved_weight * len(vectors))


def principal_axes(gram: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvalues and eigenvectors of a Gram matrix [dim], [dim, dim].

    In double precision and of unit scale, since the matrix of vectors that nearly vanished has eigenvalues that single
    precision cannot tell apart.
    """
    scale = gram.diagonal().sum().double().clamp(min=1e-300)
    values, axes = torch.linalg.eigh(gram.double() / scale)
    return (values.clamp(min=0) * scale).to(gram), axes.to(gram)


def _solve(other: Factors, chosen: CSR) -> Tensor:
    """The vectors of one side, given those of the other [n, dim]; 0 for an empty row."""
    dim = other.items.shape[1]
    vectors = other.items.new_zeros(len(chosen), dim)
    counts = chosen.counts()
    compiled = not vectors.is_cuda and dim <= COMPILED_DIM
    if compiled:  # of short rows
        rows = ((counts > 0) & (counts <= dim)).nonzero().squeeze(1)
        items, diagonal = other.items.contiguous(), other.gram_diagonal
        entries = chosen.offsets, chosen.columns, chosen.values
        sparse.fold_in_rows(rows, *entries, items, diagonal, other.penalty, other.unobserved_weight, vectors)
    for rows, width in chosen.batches(CELLS, above=dim if compiled else 0):
        weights = chosen.padded_values(rows, width)
        vectors[rows] = solve_batch(other, other.items, chosen.padded(rows, width)[0], weights)
    return vectors


def solve_batch(other: Factors, vectors: Tensor, entries: Tensor, weights: Tensor) -> Tensor:
    """Fold in entries [B, W], which index into `vectors`, with their weights, 0 where there is none [B, dim]."""

    def solve(rows: Tensor | slice) -> Tensor:
        return fold_in(other, vectors[entries[rows]], weights[rows].to(vectors.dtype))

    if entries.is_cuda:
        return solve(slice(None))
    pieces = torch.arange(len(entries)).split(max(1, CELLS_PER_THREAD // entries.shape[1]))
    return torch.cat(parallel_map(solve, pieces))

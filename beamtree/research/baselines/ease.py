"""EASE (Steck 2019): every item explained by all others at once, by ridge regression with a zero diagonal.

With P = (XᵀX + λ)⁻¹, item i adds -P_ij / P_jj to the score of item j. P is inverted where there are fewer items than
users. Where there are fewer users, P = (1 - Xᵀ(XXᵀ + λ)⁻¹X) / λ, and the inverse is over users. Both are exact. Where
both are more than LARGEST, items are solved for in blocks of items that are alike, each over the items that say most
about it, and every item keeps its strongest partners: that is no longer exact.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from torch import Tensor

from beamtree.closed_form.cooccurrence import together
from beamtree.closed_form.lists import Lists
from beamtree.closed_form.ridge import BLOCK, PENALTIES, climb, ridge_partners
from beamtree.data import BeforeAfter, Events, factors
from beamtree.data.views import recency
from beamtree.research.baselines.item_cf import matrix_bytes, user_items
from beamtree.research.baselines.ranking import (
    Log,
    Peer,
    Score,
    Trial,
    as_matrix,
    best_of,
    once,
    renumbered,
    try_repeats,
    weighted,
)

# λ: PENALTIES of `closed.ridge`
POWERS = (0.0, 0.3, 0.6)  # p: of the history's recency
REPEATS = (-torch.inf, 0.0, 0.03, 0.1, 0.3, 1.0)  # w: of the history itself
DEFAULTS = {"penalty": 300.0, "recency": 0.3, "repeats": 0.0}
PAIRS = 1 << 22  # of users who have the same item, that are summed at once
LARGEST = 20_000  # users or items that are solved for at once
PARTNERS = 200  # that an item keeps where there are more


class Solved(Protocol):
    """The weights of all pairs of items for one λ."""

    num_bytes: int

    def scores(self, history: csr_matrix) -> Tensor:
        """Every item's score for weighted histories [B, M]."""
        ...


class OverItems:
    """The weights themselves [M, M]."""

    def __init__(self, gram: Tensor, penalty: float) -> None:
        inverse = _inverse(gram, penalty)
        # in the order of rows: scipy would copy all of it for every batch otherwise
        self._weights = inverse.div_(-inverse.diagonal()).fill_diagonal_(0.0).contiguous()
        self.num_bytes = int(self._weights.nbytes)

    def scores(self, history: csr_matrix) -> Tensor:
        return torch.from_numpy(history @ self._weights.numpy())


class OverUsers:
    """K = (XXᵀ + λ)⁻¹ [U, U]: with c = hXᵀKX and q_j = x_jᵀKx_j, item j scores (c_j - q_j h_j) / (1 - q_j)."""

    def __init__(self, matrix: csr_matrix, gram: Tensor, penalty: float) -> None:
        self._items = matrix.T.tocsr()
        self._inverse = _inverse(gram, penalty)
        users = Lists(torch.from_numpy(self._items.indptr).long(), torch.from_numpy(self._items.indices).long())
        self._own = sums_within(self._inverse, users)  # q [M]
        self.num_bytes = int(self._inverse.nbytes + self._own.nbytes + 12 * matrix.nnz)

    def scores(self, history: csr_matrix) -> Tensor:
        near = torch.from_numpy((history @ self._items).toarray()) @ self._inverse  # [B, U]
        found = torch.from_numpy(self._items @ near.numpy().T).T.contiguous()
        known = torch.from_numpy(history.toarray())
        return found.sub_(known.mul_(self._own)).div_(1 - self._own)


class OverBlocks:
    """The strongest weights of each item."""

    def __init__(self, matrix: csr_matrix) -> None:
        self._weights = matrix
        self.num_bytes = matrix_bytes(matrix)

    def scores(self, history: csr_matrix) -> Tensor:
        return torch.from_numpy((history @ self._weights).toarray())


def products(rows: csr_matrix) -> Tensor:
    """RRᵀ, dense: the same for every λ."""
    columns, size = rows.T.tocsr(), rows.shape[0]
    system = torch.empty(size, size)
    for start in range(0, size, 1024):  # the sparse product can be larger than the dense one
        system[start : start + 1024] = torch.from_numpy((rows[start : start + 1024] @ columns).toarray())
    return system


def _inverse(gram: Tensor, penalty: float) -> Tensor:
    """(G + λ)⁻¹."""
    system = gram.clone()
    system.diagonal().add_(penalty)
    return torch.cholesky_inverse(torch.linalg.cholesky(system))


def sums_within(matrix: Tensor, lists: Lists) -> Tensor:
    """The sum of a matrix over all pairs of each list's entries [n]."""
    found = torch.zeros(len(lists))
    for some, entries, both in lists.pairs(PAIRS):
        block = matrix[entries.unsqueeze(2), entries.unsqueeze(1)]  # [b, width, width]
        found[some] = block.mul_(both).sum((1, 2))
    return found


def solver(log: Log, largest: int = LARGEST) -> Callable[[float], Solved]:
    """What solves for one λ, in the way that fits the log."""
    matrix = user_items(log.events, log.num_items)
    if min(matrix.shape) <= largest:
        if matrix.shape[0] < log.num_items:
            over_users = products(matrix)
            return lambda penalty: OverUsers(matrix, over_users, penalty)
        over_items = products(matrix.T.tocsr())
        return lambda penalty: OverItems(over_items, penalty)
    gram = together(log.events, log.num_items)
    order = alike(factors(log.events, log.num_items))

    def solve(penalty: float) -> OverBlocks:
        return OverBlocks(as_matrix(ridge_partners(gram, order, penalty, PARTNERS)))

    return solve


def alike(vectors: Tensor) -> Tensor:
    """The items such that neighbours are alike [M]: halved along the longest axis again and again, down to a block."""
    vectors = torch.nn.functional.normalize(vectors)
    parts = [torch.arange(len(vectors))]
    while len(parts) * BLOCK < len(vectors):
        parts = [half for part in parts for half in _along(vectors[part], part).tensor_split(2)]
    return torch.cat(parts)


def _along(vectors: Tensor, items: Tensor) -> Tensor:
    """Items in the order of their vectors along the longest axis of these."""
    vectors = vectors - vectors.mean(0)
    axis = torch.linalg.eigh(vectors.T @ vectors).eigenvectors[:, -1]
    return items[(vectors @ axis).argsort()]


def ease(events: Events, num_items: int, val: BeforeAfter | None = None) -> Peer:
    """Solve for which training users have which items, with the λ, p and w that find most for validation users."""
    log = renumbered(events, num_items, val)
    solve = solver(log)
    if not len(log.x):
        model = solve(DEFAULTS["penalty"])
        return Peer(log, score_of(log, model, DEFAULTS["recency"]), DEFAULTS, model.num_bytes)
    trials, kept = list[Trial](), dict[float, Solved]()

    def attempt(penalty: float) -> bool:
        """Whether this λ is the best so far, with its best p and w; if so its weights are kept."""
        model = solve(penalty)
        for power in POWERS:
            settings = {"penalty": penalty, "recency": power}
            trials.extend(try_repeats(log, score_of(log, model, power), settings, REPEATS))
        if best_of(trials)["penalty"] != penalty:
            return False
        kept.clear()
        kept[penalty] = model
        return True

    climb(PENALTIES, attempt)
    best = best_of(trials)
    model = kept.get(best["penalty"]) or solve(best["penalty"])  # a later trial can bring an earlier λ back
    return Peer(log, score_of(log, model, best["recency"]), best, model.num_bytes)


def score_of(log: Log, model: Solved, power: float) -> Score:
    """Scores of histories whose events count (1 + t)^-p, of a repeated item the newest."""
    return lambda x: model.scores(weighted(once(x), recency(power, x.shape[1]), log.num_items))

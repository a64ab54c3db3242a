"""EASE (Steck 2019): ridge regression of every item on all others, with a zero diagonal.

With P = (XᵀX + λ)⁻¹, item i adds -P_ij / P_jj to the score of item j. If there are fewer items than users, the inverse
is over items. If there are fewer users, P = (1 - Xᵀ(XXᵀ + λ)⁻¹X) / λ, and the inverse is over users. Both are exact. If
both exceed LARGEST, blocks of similar items are solved on their most related items, and every item keeps its strongest
partners: an approximation.
"""

from collections.abc import Callable

import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from torch import Tensor

from beamtree.closed_form.cooccurrence import cooccurrence
from beamtree.closed_form.ridge import BLOCK, PENALTIES, climb, ridge_partners
from beamtree.data import BeforeAfter, Events, factors
from beamtree.data.csr import CSR
from beamtree.data.views import recency
from beamtree.research.baselines import tuned
from beamtree.research.baselines.sparse import history_weights, matrix_bytes, partner_matrix, user_items
from beamtree.research.baselines.tuned import HALF_LIFE, Score, Settings, ShuffledLog, Trial, TunedBaseline

# λ: PENALTIES of `closed_form.ridge`
POWERS = (0.0, 0.3, 0.6)  # p: recency of the history
REPEATS = (-torch.inf, 0.0, 0.03, 0.1, 0.3, 1.0)  # w: the weight of the history itself
DEFAULTS = {"penalty": 300.0, "recency": 0.3, "repeats": 0.0}
PAIRS = 1 << 22  # pairs of users of the same item that are summed at once
LARGEST = 20_000  # users or items of an exact solution
MAX_PARTNERS = 200  # per item in an approximate solution


class ItemWeights:
    """The inverse over items: the weights themselves [M, M]."""

    def __init__(self, gram: Tensor, penalty: float) -> None:
        inverse = _inverse(gram, penalty)
        # row-major: otherwise scipy would copy it for every batch
        self._weights = inverse.div_(-inverse.diagonal()).fill_diagonal_(0.0).contiguous()
        self.num_bytes = int(self._weights.nbytes)

    def scores(self, history: csr_matrix) -> Tensor:
        """Every item's score for weighted histories [B, M]."""
        return torch.from_numpy(history @ self._weights.numpy())


class UserWeights:
    """The inverse over users, K = (XXᵀ + λ)⁻¹ [U, U]: with c = hXᵀKX and q_j = x_jᵀKx_j, item j has the
    score (c_j - q_j h_j) / (1 - q_j).
    """

    def __init__(self, matrix: csr_matrix, gram: Tensor, penalty: float) -> None:
        self._items = matrix.T.tocsr()
        self._inverse = _inverse(gram, penalty)
        offsets, columns = (torch.from_numpy(part).long() for part in (self._items.indptr, self._items.indices))
        self._q = pair_sums(self._inverse, CSR(offsets, columns, torch.from_numpy(self._items.data)))  # [M]
        self.num_bytes = int(self._inverse.nbytes + self._q.nbytes + 12 * matrix.nnz)

    def scores(self, history: csr_matrix) -> Tensor:
        near = torch.from_numpy((history @ self._items).toarray()) @ self._inverse  # [B, U]
        c = torch.from_numpy(self._items @ near.numpy().T).T.contiguous()
        h = torch.from_numpy(history.toarray())
        return c.sub_(h.mul_(self._q)).div_(1 - self._q)


class BlockWeights:
    """The approximation: the strongest weights of each item [M, M], sparse."""

    def __init__(self, matrix: csr_matrix) -> None:
        self._weights = matrix
        self.num_bytes = matrix_bytes(matrix)

    def scores(self, history: csr_matrix) -> Tensor:
        return torch.from_numpy((history @ self._weights).toarray())


EaseWeights = ItemWeights | UserWeights | BlockWeights  # of all pairs of items, for one λ


def gram_matrix(rows: csr_matrix) -> Tensor:
    """RRᵀ, dense; the same for every λ."""
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


def pair_sums(matrix: Tensor, lists: CSR) -> Tensor:
    """The sum of a matrix over all pairs of each list's entries, times the values of both [n]."""
    sums = torch.zeros(len(lists))
    for rows, entries, _ in lists.pairs(PAIRS):
        block = matrix[entries.unsqueeze(2), entries.unsqueeze(1)]  # [b, width, width]
        values = lists.padded_values(rows, entries.shape[1])
        sums[rows] = block.mul_(values.unsqueeze(2)).mul_(values.unsqueeze(1)).sum((1, 2))
    return sums


def solver(log: ShuffledLog, largest: int = LARGEST) -> Callable[[float], EaseWeights]:
    """A function from λ to weights, by the method that fits the size of the log.

    Where events have weights, X has their square roots.
    """
    matrix = user_items(log.events, log.num_items).sqrt()
    if min(matrix.shape) <= largest:
        if matrix.shape[0] < log.num_items:
            over_users = gram_matrix(matrix)
            return lambda penalty: UserWeights(matrix, over_users, penalty)
        over_items = gram_matrix(matrix.T.tocsr())
        return lambda penalty: ItemWeights(over_items, penalty)
    gram = cooccurrence(log.events, log.num_items)
    order = order_by_similarity(factors(log.events, log.num_items))

    def solve(penalty: float) -> BlockWeights:
        return BlockWeights(partner_matrix(ridge_partners(gram, order, penalty, MAX_PARTNERS)))

    return solve


def order_by_similarity(vectors: Tensor) -> Tensor:
    """An order of the items with similar ones adjacent [M]: split in halves along the main axis, down to a block."""
    vectors = torch.nn.functional.normalize(vectors)
    parts = [torch.arange(len(vectors))]
    while len(parts) * BLOCK < len(vectors):
        halves = list[Tensor]()
        for part in parts:
            centred = vectors[part] - vectors[part].mean(0)
            axis = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -1]
            halves += part[(centred @ axis).argsort()].tensor_split(2)
        parts = halves
    return torch.cat(parts)


def ease(events: Events, num_items: int, val: BeforeAfter | None = None) -> TunedBaseline:
    """EASE on training users, with the λ, half-life, p and w of the highest recall on validation users."""
    log = tuned.shuffle_items(events, num_items, val)
    solve = solver(log)
    if not len(log.x):
        model = solve(DEFAULTS["penalty"])
        return TunedBaseline(log, score_of(log, model, DEFAULTS["recency"]), DEFAULTS, model.num_bytes)
    trials, best_weights = list[Trial](), dict[float, EaseWeights]()

    def try_histories(model: EaseWeights, settings: Settings) -> list[Trial]:
        """Every p and w with the same weights."""
        return [
            trial
            for power in POWERS
            for trial in tuned.try_repeats(log, score_of(log, model, power), {**settings, "recency": power}, REPEATS)
        ]

    def attempt(penalty: float) -> bool:
        """Whether this λ is the best so far, with its best p and w; if so, store its weights."""
        model = solve(penalty)
        trials.extend(try_histories(model, {"penalty": penalty}))
        if tuned.best_settings(trials)["penalty"] != penalty:
            return False
        best_weights.clear()
        best_weights[penalty] = model
        return True

    climb(PENALTIES, attempt)
    best = tuned.settings_with_half_life(
        log, trials, lambda aged, tried: try_histories(solver(aged)(tried["penalty"]), tried)
    )
    if best.get(HALF_LIFE):
        model = solver(log.aged(best))(best["penalty"])
    else:  # a later trial can bring an earlier λ back
        model = best_weights.get(best["penalty"]) or solve(best["penalty"])
    return TunedBaseline(log, score_of(log, model, best["recency"]), best, model.num_bytes)


def score_of(log: ShuffledLog, model: EaseWeights, power: float) -> Score:
    """Scores of histories whose events are weighted (1 + t)^-p, repeats dropped."""
    return lambda x: model.scores(history_weights(tuned.drop_repeats(x), recency(power, x.shape[1]), log.num_items))

"""Baselines from neighbours: item-CF (similar items), user-kNN (similar users) and rules (what came next)."""

import numpy as np
import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from torch import Tensor

from beamtree.closed_form.transitions import next_partners
from beamtree.data import BeforeAfter, Events
from beamtree.research.baselines import tuned
from beamtree.research.baselines.sparse import (
    history_items,
    history_weights,
    matrix_bytes,
    partner_matrix,
    user_items,
)
from beamtree.research.baselines.tuned import Score, Settings, ShuffledLog, Trial, TunedBaseline
from beamtree.tree import PAD

MAX_SCORES = 20_000_000  # that are in memory at once, if dense: 80 MB

KNN_NEIGHBOURS = (50, 100, 200, 400)  # K
KNN_POPULAR = (0.0, 0.2, 0.4)  # scores are divided by an item's number of users to this power
KNN_REPEATS = (-torch.inf, 0.0, 0.03, 0.1, 0.3, 1.0)  # w: the weight of the history itself
KNN_DEFAULTS = {"neighbours": 200.0, "popular": 0.0, "recency": 0.0, "repeats": 0.0}

RULES_BACKWARD = (0.0, 0.3, 0.6)  # the weight of a pair in reverse order
RULES_DECAYS = (0.6, 0.8, 0.9)  # of the history, from event to event
RULES_REPEATS = (-torch.inf, 0.0, 0.1, 1.0)  # w: the weight of the history itself
RULES_DEFAULTS = {"backward": 0.3, "decay": 0.8, "recency": 0.3, "repeats": 0.0}


class ItemCF:
    """Item-CF over an item-item similarity [M, M], stored as the sparse factors whose product it is."""

    def __init__(self, *factors: csr_matrix) -> None:
        self._num_items = factors[0].shape[0]
        self._rows = max(1, MAX_SCORES // max(factors[0].shape))  # of a batch at once
        # Ties must not be broken by number: lower numbers are more popular, among test users too.
        self._order = torch.randperm(self._num_items, generator=torch.Generator().manual_seed(0))
        self._factors = (*factors[:-1], factors[-1][:, self._order.numpy()])

    @property
    def num_bytes(self) -> int:
        return sum(map(matrix_bytes, self._factors))

    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m items most similar to the distinct items of each history x [B, T], and their scores [B, m].

        Items of the history itself are not left out. PAD and -inf where fewer items have any similarity.
        """
        items = torch.full((len(x), m), PAD)
        scores = torch.full((len(x), m), -torch.inf)
        width = min(m, self._num_items)
        for start in range(0, len(x), self._rows):
            part = slice(start, start + self._rows)
            products = history_items(x[part], self._num_items)
            for factor in self._factors:
                products = products @ factor
            values, indices = torch.from_numpy(products.toarray()).topk(width)  # items in random order
            items[part, :width] = self._order[indices].where(values > 0, PAD)
            scores[part, :width] = values.where(values > 0, -torch.inf)
        return items.to(x.device), scores.to(x.device)


def item_cf(events: Events, num_items: int) -> ItemCF:
    """The cosines of all pairs of items, as two sparse products: from items to users and back."""
    cosine = _normalised_columns(events, num_items)
    return ItemCF(cosine.T.tocsr(), cosine)


def item_cf_nearest(events: Events, num_items: int, neighbours: int = 100) -> ItemCF:
    """Only each item's nearest neighbours, found by the implicit library: fast where users have many events."""
    from implicit.nearest_neighbours import ItemItemRecommender  # type: ignore[import-untyped]

    model = ItemItemRecommender(K=min(neighbours, num_items))
    # Its CosineRecommender does the same, but warns that it is given the matrix it made itself.
    model.fit(_normalised_columns(events, num_items).astype(np.float64), show_progress=False)
    return ItemCF(model.similarity.astype(np.float32))


def _normalised_columns(events: Events, num_items: int) -> csr_matrix:
    """Which users have which items [U, M], each column of length 1: products of columns are cosines."""
    matrix = user_items(events, num_items)
    squares = np.bincount(matrix.indices, matrix.data**2, minlength=num_items)  # [M]
    matrix.data /= np.sqrt(squares).astype(np.float32)[matrix.indices]
    return matrix


class UserKNN:
    """Which training users have which items [U, M], and how long each user's row is."""

    def __init__(self, matrix: csr_matrix) -> None:
        self._matrix, self._items = matrix, matrix.T.tocsr()
        squares = np.asarray(matrix.multiply(matrix).sum(1)).squeeze(1)
        self._sizes = np.sqrt(np.where(squares > 0, squares, 1)).astype(np.float32)  # [U]
        self._users = torch.from_numpy(np.diff(self._items.indptr)).clamp(min=1).float()  # [M]
        self.num_bytes = int(12 * matrix.nnz + self._sizes.nbytes + self._users.nbytes)

    def nearest(self, x: Tensor, neighbours: int) -> csr_matrix:
        """The cosine of each history x [B, T] with its nearest users [B, U], rows normalised to sum 1."""
        history = history_weights(tuned.drop_repeats(x), torch.ones(x.shape[1]), self._matrix.shape[1])
        cosines = torch.from_numpy((history @ self._items).toarray() / self._sizes)
        best = cosines.topk(min(neighbours, cosines.shape[1]))
        share = best.values / best.values.sum(1, keepdim=True).clamp(min=1e-9)  # the history's own size cancels
        offsets = np.arange(len(x) + 1) * share.shape[1]
        return csr_matrix((share.flatten().numpy(), best.indices.flatten().numpy(), offsets), cosines.shape)

    def score(self, neighbours: int, popular: float) -> Score:
        """The share of the nearest users that have an item, weighted by cosine, over its users^popular."""
        return lambda x: torch.from_numpy((self.nearest(x, neighbours) @ self._matrix).toarray()).div_(
            self._users**popular
        )


def user_knn(events: Events, num_items: int, val: BeforeAfter | None = None) -> TunedBaseline:
    """User-kNN with the K, power and w of the highest recall on validation users."""
    log = tuned.shuffle_items(events, num_items, val)
    model = UserKNN(user_items(log.events, num_items))
    settings = KNN_DEFAULTS
    if len(log.x):
        trials: list[Trial] = []
        for neighbours in KNN_NEIGHBOURS:
            for popular in KNN_POPULAR:
                tried = {**KNN_DEFAULTS, "neighbours": float(neighbours), "popular": popular}
                trials += tuned.try_repeats(log, model.score(neighbours, popular), tried, KNN_REPEATS)
        settings = tuned.best_settings(trials)
    score = model.score(int(settings["neighbours"]), settings["popular"])
    return TunedBaseline(log, score, settings, model.num_bytes)


def rule_weights(log: ShuffledLog, backward: float) -> csr_matrix:
    """All pairs within ten events, 1/gap each, over popularity^0.3 [M, M]."""
    return partner_matrix(next_partners(log.events, log.num_items, backward=backward, most=log.num_items))


def rule_score(pairs: csr_matrix, decay: float) -> Score:
    """Sums the pairs of each item with the events of the history; the t-th newest is weighted decay^t."""

    def score(x: Tensor) -> Tensor:
        weights = decay ** torch.arange(x.shape[1])
        return torch.from_numpy((history_weights(x, weights, pairs.shape[0]) @ pairs).toarray())

    return score


def rules(events: Events, num_items: int, val: BeforeAfter | None = None) -> TunedBaseline:
    """Pairs of training users' events, with the settings of the highest recall on validation users."""
    log = tuned.shuffle_items(events, num_items, val)
    settings = RULES_DEFAULTS
    if len(log.x):

        def attempt(log: ShuffledLog, settings: Settings) -> list[Trial]:
            """Every decay and w."""
            pairs = rule_weights(log, settings["backward"])
            return [
                trial
                for decay in RULES_DECAYS
                for trial in tuned.try_repeats(
                    log, rule_score(pairs, decay), {**settings, "decay": decay}, RULES_REPEATS
                )
            ]

        trials = [trial for each in RULES_BACKWARD for trial in attempt(log, {**RULES_DEFAULTS, "backward": each})]
        settings = tuned.settings_with_half_life(log, trials, attempt)
    pairs = rule_weights(log.aged(settings), settings["backward"])
    return TunedBaseline(log, rule_score(pairs, settings["decay"]), settings, matrix_bytes(pairs))

"""User-kNN: what the training users have whose items are most like the history."""

import numpy as np
import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from torch import Tensor

from beamtree.data import BeforeAfter, Events
from beamtree.research.baselines.item_cf import user_items
from beamtree.research.baselines.ranking import Peer, Score, Trial, best_of, once, renumbered, try_repeats, weighted

NEIGHBOURS = (50, 100, 200, 400)  # K
POPULAR = (0.0, 0.2, 0.4)  # the power of an item's users that its score is divided by
REPEATS = (-torch.inf, 0.0, 0.03, 0.1, 0.3, 1.0)  # w: of the history itself
DEFAULTS = {"neighbours": 200.0, "popular": 0.0, "recency": 0.0, "repeats": 0.0}


class UserKNN:
    """Which training users have which items [U, M], and how many items a user has."""

    def __init__(self, matrix: csr_matrix) -> None:
        self._matrix, self._items = matrix, matrix.T.tocsr()
        self._sizes = np.sqrt(np.diff(matrix.indptr).clip(1), dtype=np.float32)  # [U]
        self._users = torch.from_numpy(np.diff(self._items.indptr)).clamp(min=1).float()  # [M]
        self.num_bytes = int(12 * matrix.nnz + self._sizes.nbytes + self._users.nbytes)

    def nearest(self, x: Tensor, neighbours: int) -> csr_matrix:
        """The cosine of each history x [B, T] with its nearest users [B, U], each row of sum 1."""
        history = weighted(once(x), torch.ones(x.shape[1]), self._matrix.shape[1])
        near = torch.from_numpy((history @ self._items).toarray() / self._sizes)
        best = near.topk(min(neighbours, near.shape[1]))
        share = best.values / best.values.sum(1, keepdim=True).clamp(min=1e-9)  # the history's own size cancels
        ends = np.arange(len(x) + 1) * share.shape[1]
        return csr_matrix((share.flatten().numpy(), best.indices.flatten().numpy(), ends), near.shape)

    def score_of(self, neighbours: int, popular: float) -> Score:
        """The share of the nearest users that have an item, by their cosines, over its users^popular."""
        return lambda x: torch.from_numpy((self.nearest(x, neighbours) @ self._matrix).toarray()).div_(
            self._users**popular
        )


def user_knn(events: Events, num_items: int, val: BeforeAfter | None = None) -> Peer:
    """The training users as they are, with the K, the power and the w that find most for validation users."""
    log = renumbered(events, num_items, val)
    model = UserKNN(user_items(log.events, num_items))
    settings = DEFAULTS
    if len(log.x):
        trials: list[Trial] = []
        for neighbours in NEIGHBOURS:
            for popular in POPULAR:
                tried = {**DEFAULTS, "neighbours": float(neighbours), "popular": popular}
                trials += try_repeats(log, model.score_of(neighbours, popular), tried, REPEATS)
        settings = best_of(trials)
    score = model.score_of(int(settings["neighbours"]), settings["popular"])
    return Peer(log, score, settings, model.num_bytes)

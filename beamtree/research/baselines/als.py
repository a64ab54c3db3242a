"""Matrix factorisation by alternating least squares (Hu et al. 2008), as the implicit library does it."""

import numpy as np
import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from beamtree.data import Events
from beamtree.research.baselines.item_cf import histories, user_items
from beamtree.tree import PAD

FACTORS, ROUNDS, REGULARISATION, ALPHA = 64, 15, 0.05, 10.0


class ALS:
    """Factors of the items; a user who was not there in training is folded in from the history."""

    def __init__(self, matrix: csr_matrix, seed: int = 0) -> None:
        from implicit.als import AlternatingLeastSquares  # type: ignore[import-untyped]

        self._num_items = matrix.shape[1]
        with threadpool_limits(1, "blas"):  # it has threads of its own
            self._model = AlternatingLeastSquares(
                factors=FACTORS,
                iterations=ROUNDS,
                regularization=REGULARISATION,
                alpha=ALPHA,
                use_gpu=False,
                random_state=seed,
            )
            self._model.fit(matrix, show_progress=False)

    @property
    def num_bytes(self) -> int:
        """What it keeps of the items."""
        return int(self._model.item_factors.nbytes)

    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m items of the highest product with each folded-in history x [B, T], and the products [B, m]."""
        chosen, width = histories(x, self._num_items), min(m, self._num_items)
        with threadpool_limits(1, "blas"):
            found, scores = self._model.recommend(
                np.arange(len(x)), chosen, N=width, filter_already_liked_items=False, recalculate_user=True
            )
        spare = (0, m - width)
        items = torch.nn.functional.pad(torch.from_numpy(found).long(), spare, value=PAD)
        return items, torch.nn.functional.pad(torch.from_numpy(scores), spare, value=-torch.inf)


def als(events: Events, num_items: int) -> ALS:
    """Factorise which training users chose which items."""
    return ALS(user_items(events, num_items))

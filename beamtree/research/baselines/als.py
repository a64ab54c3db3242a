"""Matrix factorisation by alternating least squares.

`als` is that of the implicit library (Hu et al. 2008) with fixed settings. `ials` is ours, tuned on validation users
(Rendle et al. 2021). Both fold new users in from their history.
"""

import numpy as np
import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from beamtree.closed_form.als import DIM, choose_strengths, implicit_als
from beamtree.data import BeforeAfter, Events
from beamtree.data.views import recency
from beamtree.research.baselines import pad_results, tuned
from beamtree.research.baselines.sparse import history_items, user_items
from beamtree.research.baselines.tuned import Score, Settings, ShuffledLog, Trial, TunedBaseline
from beamtree.scorers.factors import Factors, fold_in
from beamtree.tree import PAD

FACTORS, ITERATIONS, REGULARISATION, ALPHA = 64, 15, 0.05, 10.0  # of `als`

TRIAL_DIM = 48  # factors with which λ and α₀ are tried, as in the closed form
POWERS = (0.0, 0.3, 0.6, 1.0)  # p: recency of the history
REPEATS = (-torch.inf, 0.0, 0.03, 0.1, 0.3, 1.0)  # w: the weight of the history itself
DEFAULTS = {"penalty": 0.015, "unobserved_weight": 0.01, "recency": 0.3, "repeats": 0.0}


class ALS:
    """Item factors of the implicit library."""

    def __init__(self, matrix: csr_matrix, seed: int = 0) -> None:
        from implicit.als import AlternatingLeastSquares  # type: ignore[import-untyped]

        self._num_items = matrix.shape[1]
        with threadpool_limits(1, "blas"):  # implicit has threads of its own
            self._model = AlternatingLeastSquares(
                factors=FACTORS,
                iterations=ITERATIONS,
                regularization=REGULARISATION,
                alpha=ALPHA,
                use_gpu=False,
                random_state=seed,
            )
            self._model.fit(matrix, show_progress=False)

    @property
    def num_bytes(self) -> int:
        return int(self._model.item_factors.nbytes)

    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m items of the highest product with each folded-in history x [B, T], and the products [B, m]."""
        history, width = history_items(x, self._num_items), min(m, self._num_items)
        with threadpool_limits(1, "blas"):
            items, scores = self._model.recommend(
                np.arange(len(x)), history, N=width, filter_already_liked_items=False, recalculate_user=True
            )
        return pad_results(torch.from_numpy(items).long(), torch.from_numpy(scores), m)


def als(events: Events, num_items: int) -> ALS:
    """Factorise which training users chose which items."""
    return ALS(user_items(events, num_items))


def ials(events: Events, num_items: int, val: BeforeAfter | None = None) -> TunedBaseline:
    """Factorise which training users have which items, with the settings of the highest recall on validation users.

    λ, α₀ and the half-life are chosen with short vectors, p and w again with the final ones.
    """
    log = tuned.shuffle_items(events, num_items, val)
    settings = DEFAULTS
    if len(log.x):
        trials: list[Trial] = []

        def quality(pair: tuple[float, float]) -> float:
            strength = dict(zip(("penalty", "unobserved_weight"), pair, strict=True))
            found = _trials(log, _factors(log, strength, TRIAL_DIM), strength)
            trials.extend(found)
            return max(float(recalls.mean()) for _, recalls in found)

        choose_strengths(quality)
        settings = tuned.settings_with_half_life(
            log, trials, lambda aged, tried: _trials(aged, _factors(aged, tried, TRIAL_DIM), tried)
        )
        log = log.aged(settings)
    factors = _factors(log, settings, DIM)
    if len(log.x):
        settings = tuned.best_settings(_trials(log, factors, settings))
    return TunedBaseline(log, fold_in_score(factors, settings["recency"]), settings, int(factors.items.nbytes))


def _factors(log: ShuffledLog, settings: Settings, dim: int) -> Factors:
    return implicit_als(
        log.events, log.num_items, dim=dim, penalty=settings["penalty"], unobserved_weight=settings["unobserved_weight"]
    )


def _trials(log: ShuffledLog, factors: Factors, settings: Settings) -> list[Trial]:
    """Every p and w with the same factors."""
    return [
        trial
        for power in POWERS
        for trial in tuned.try_repeats(log, fold_in_score(factors, power), {**settings, "recency": power}, REPEATS)
    ]


def fold_in_score(factors: Factors, power: float) -> Score:
    """Products of all items with folded-in histories, whose events are weighted (1 + t)^-p, repeats dropped."""

    def score(x: Tensor) -> Tensor:
        x = tuned.drop_repeats(x)
        weights = recency(power, x.shape[1]) * (x != PAD)
        return fold_in(factors, factors.items[x.clamp(min=0)], weights) @ factors.items.T

    return score

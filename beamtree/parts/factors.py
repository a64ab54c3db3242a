"""The factors part: implicit ALS, whose penalties and recency validation users choose."""

from typing import Any, ClassVar

import torch

from beamtree.closed_form.als import STRENGTHS, choose_strengths
from beamtree.closed_form.part_weights import BATCH, scores_at_leaves
from beamtree.model import TreeModel
from beamtree.parts.base import NOTHING_FITTED, ClosedFormPart, FittedCandidates
from beamtree.parts.closed_form import POWERS, ClosedForm
from beamtree.scorers import FactorScorer, Scorer, with_inputs
from beamtree.tree import PAD

TRIAL = {"dim": 48, "rounds": 2}  # size of the factors that λ and α₀ are chosen with
MORE_ROUNDS = 1  # of ALS from the vectors of an earlier fit
VANISHED = 0.01  # factors that explain less of the histories than this are not used


class FactorsPart(ClosedFormPart):
    """Folded factors of implicit ALS."""

    name = "factors"
    stages: ClassVar = {"factors": 30}

    def fit_candidates(self, form: ClosedForm) -> FittedCandidates:
        if not form.is_used(self.name):
            return NOTHING_FITTED
        form.stages.begin(self.name, len(STRENGTHS) + 2 * len(POWERS))  # the last fit takes as long as a few trials

        def fitted(pair: tuple[float, float], **more: Any) -> FactorScorer:
            penalty, unobserved_weight = pair
            return form.factor_scorer(
                form.fit_als(penalty=penalty, unobserved_weight=unobserved_weight, seed=form.seed, **more)
            )

        def quality(pair: tuple[float, float]) -> float:
            scorer = fitted(pair, **TRIAL)
            return form.quality(scorer) if explains_histories(scorer, form) else -torch.inf

        chosen = form.chosen("factors, λ and α₀", lambda: list(choose_strengths(quality)), list(STRENGTHS[0]))
        scorer = fitted((chosen[0], chosen[1]), **earlier_factors(form, chosen[0]))
        form.hyperparameters["vanished"] = form.validates and not explains_histories(scorer, form)
        scorer = scorer.with_power(form.power(self.name, scorer.with_power))
        return FittedCandidates({self.name: scorer}, lambda others: scorer.scaled(form.scale(self.name)))

    def report(self, scorer: Scorer) -> list[str]:
        vanished = scorer.hyperparameters.get("vanished")
        line = "Factors are left out: the log is too sparse for them, and they would rank by popularity alone."
        return [line] * bool(vanished)


def earlier_factors(form: ClosedForm, penalty: float) -> dict[str, Any]:
    """Where ALS goes on, at the scale that its vectors had before they were normalized."""
    factors = None if form.start is None else form.start.scorers().get(FactorsPart.name)
    if not isinstance(factors, FactorScorer):
        return {}
    scale = (penalty / factors.penalty) ** 0.5
    return {"start": (factors.item_vectors(form.tree) * scale).to(form.device), "rounds": MORE_ROUNDS}


def explains_histories(factors: FactorScorer, form: ClosedForm) -> bool:
    """Whether folded-in histories of validation users have a product above 0 with the items they were made from.

    It is 1 for factors that explain a history completely. Where penalties are too high for a sparse log it is near 0:
    all that remains of the vectors is one direction, and the order of its products is nearly that of popularity.
    """
    model = TreeModel(form.tree, factors, first_level=form.first_level).to(form.device)
    x = with_inputs(factors, form.users).batch(torch.arange(min(BATCH, len(form.users))))[0].to(form.device)
    products = scores_at_leaves(model, x, x)
    return bool(form.processes.broadcast(float(products.sum() / (x != PAD).sum().clamp(min=1))) >= VANISHED)

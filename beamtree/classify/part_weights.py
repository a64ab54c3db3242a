"""How much memory, names and encoder count beside the linear part: chosen on validation documents."""

from dataclasses import replace
from typing import Any

from beamtree.classify.encoder import no_encoder
from beamtree.classify.matrix import Matrix
from beamtree.classify.metrics import PRECISIONS, precisions
from beamtree.classify.model import LabelModel, Weights

MEMORY = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)  # weights that are tried, as are the next three
NAMES = (0.0, 0.05, 0.1, 0.2, 0.4)
ENCODER = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
POWERS = (1.0, 2.0, 4.0)
BUDGETS = (10_000, 40_000, 160_000)
WORTH = 0.002  # that the encoder, and reading more of the memory, must bring, since they take time
MAX_LARGE_BUDGET_DOCUMENTS = 50_000  # documents up to which weights are chosen with the largest budget


def choose_weights(
    model: LabelModel, features: Matrix, labels: Matrix, beam_size: int, *, memory: bool = True
) -> tuple[LabelModel, dict[str, float]]:
    """The weights of memory, names and encoder with the best mean of P@1, P@3 and P@5 on validation documents.

    Without `memory` its weight is 0.
    """
    if not features.rows:
        weights = Weights(names=0.1 if len(model.names.rows) else 0.0, groups=model.weights.groups)
        weights = weights if memory else weights._replace(memory=0.0)
        return replace(model, weights=weights, encoder=no_encoder()), {}

    def quality(weights: Weights) -> float:
        return mean_precision(replace(model, weights=weights), features, labels, beam_size)

    budget = BUDGETS[-1 if model.labels.rows <= MAX_LARGE_BUDGET_DOCUMENTS else 0]
    best = Weights(0.0, 0.0, budget=budget, groups=model.weights.groups)
    alone = score = quality(best)
    tried = {best: score}
    fields: list[tuple[str, tuple[float, ...]]] = [("memory", MEMORY), ("power", POWERS)] if memory else []
    fields += [("names", NAMES)] if len(model.names.rows) else []
    fields += [("encoder", ENCODER)] if len(model.encoder.biases) else []
    for _ in range(2):
        for field, values in fields:
            for value in values if best.memory or field != "power" else ():
                changed: dict[str, Any] = {field: value}
                weights = best._replace(**changed)
                if weights not in tried:
                    tried[weights] = quality(weights)
                if tried[weights] > score:
                    best, score = weights, tried[weights]
    without = max((each for each in tried if not each.encoder), key=lambda each: tried[each])
    if tried[without] + WORTH > score:
        best, score, model = without, tried[without], replace(model, encoder=no_encoder())
    if best.memory:
        budgets = [best._replace(budget=budget) for budget in BUDGETS]
        tried |= {weights: quality(weights) for weights in budgets if weights not in tried}
        best = next(each for each in budgets if tried[each] + WORTH >= max(tried[other] for other in budgets))
        score = tried[best]
    results = {"all parts": score, "linear alone": alone}
    if best.memory:
        results["without memory"] = tried.get(best._replace(memory=0.0)) or quality(best._replace(memory=0.0))
    if best.names:
        results["without names"] = tried.get(best._replace(names=0.0)) or quality(best._replace(names=0.0))
    if best.encoder:
        results["without encoder"] = tried[without]
    return replace(model, weights=best), results


def mean_precision(model: LabelModel, features: Matrix, labels: Matrix, beam_size: int) -> float:
    """The mean of P@1, P@3 and P@5 over documents."""
    found, _ = model.search(features, max(PRECISIONS), beam_size=beam_size)
    return float(precisions(found, labels).mean())

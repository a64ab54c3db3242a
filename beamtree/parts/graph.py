"""The low-pass part: taste in a few hundred smooth directions of the graph of users and items.

The nearest items on that graph are a list of the memory: see `parts.memory.near_items`.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch

from beamtree.closed_form.graph import DIM, low_pass
from beamtree.model import TreeModel
from beamtree.parts.base import ClosedFormPart, FittedCandidates
from beamtree.parts.closed_form import ClosedForm
from beamtree.parts.sequence import user_vectors
from beamtree.scorers import LowPassScorer, Scorer
from beamtree.scorers.dot_product import fit_to_maxima

DIRECTION_PER = 8  # users or items, in a small log


class LowPassPart(ClosedFormPart):
    """A linear low-pass, which reads a history with the recency of the factors. It is left out over ranks."""

    name = "low-pass"
    stages: ClassVar = {"low-pass": 6}

    def fit_candidates(self, form: ClosedForm) -> FittedCandidates:
        if not form.is_used(self.name) or not form.processes.is_single:
            return FittedCandidates({}, lambda others: None)
        form.stages.begin(self.name, 1)
        dim = min(DIM, -(-min(form.data.num_items, len(form.log)) // DIRECTION_PER))
        vectors, degrees = low_pass(form.log, form.data.num_items, dim, form.seed)
        power = float(form.hyperparameters.get("factors, recency", 0.0))
        scorer = LowPassScorer.from_vectors(form.tree, vectors, degrees, power)

        def combine(others: Mapping[str, Scorer]) -> LowPassScorer | None:
            if not form.weight(self.name):
                return None
            fit_inner_nodes(scorer, form)
            return scorer.scaled(form.scale(self.name))

        return FittedCandidates({self.name: scorer}, combine)


@torch.no_grad()
def fit_inner_nodes(scorer: LowPassScorer, form: ClosedForm) -> None:
    """Fit the vectors of inner nodes, until now means, to the best items below them for histories of training users."""
    model = TreeModel(form.tree, scorer).to(form.device)
    fit_to_maxima(model.tree, scorer.table.weight, user_vectors(scorer, model.tree, form.data.train, form.seed))
    scorer.cpu()

"""The repeats part: users come back to what they have, or never do."""

from beamtree.parts.base import ClosedFormPart, FittedCandidates
from beamtree.parts.closed_form import ClosedForm
from beamtree.scorers import RepeatScorer


class RepeatsPart(ClosedFormPart):
    """The items of the history, with a weight below 0 where nobody chooses an item twice."""

    name = "repeats"

    def fit_candidates(self, form: ClosedForm) -> FittedCandidates:
        scorer = RepeatScorer()
        return FittedCandidates({self.name: scorer}, lambda others: scorer)

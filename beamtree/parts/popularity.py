"""The popularity part: what most users choose, for logs and users that nothing else explains.

Where the other parts favour popular items too much, its weight is below 0.
"""

from beamtree.parts.base import ClosedFormPart, FittedCandidates
from beamtree.parts.closed_form import ClosedForm
from beamtree.scorers import Scorer
from beamtree.scorers.popularity import POPULARITY


class PopularityPart(ClosedFormPart):
    """The number of events of an item."""

    name = POPULARITY

    def fit_candidates(self, form: ClosedForm) -> FittedCandidates:
        if not form.is_used(self.name):
            return FittedCandidates({}, lambda others: None)
        counts = form.log.popularity(form.data.num_items)

        def combine(others: object) -> Scorer | None:
            weight = form.weight(self.name)
            return form.popularity_scorer(counts, least=weight < 0).scaled(form.scale(self.name)) if weight else None

        return FittedCandidates({self.name: form.popularity_scorer(counts)}, combine)

    def report(self, scorer: Scorer) -> list[str]:
        alone = scorer.drop_zero_parts().names == [POPULARITY]
        return ["The score is popularity alone: validation users do not find more with any other part."] * alone

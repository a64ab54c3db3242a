"""The popularity part: what most users choose, for logs and users that nothing else explains."""

from beamtree.parts.base import NOTHING_FITTED, ClosedFormPart, FittedCandidates
from beamtree.parts.closed_form import ClosedForm
from beamtree.scorers import Scorer
from beamtree.scorers.popularity import POPULARITY


class PopularityPart(ClosedFormPart):
    """The number of events of an item."""

    name = POPULARITY

    def fit_candidates(self, form: ClosedForm) -> FittedCandidates:
        if not form.is_used(self.name):
            return NOTHING_FITTED
        scorer = form.popularity_scorer(form.log.popularity(form.data.num_items))
        return FittedCandidates(
            {self.name: scorer},
            lambda others: scorer.scaled(form.scale(self.name)) if form.weight(self.name) else None,
        )

    def report(self, scorer: Scorer) -> list[str]:
        alone = scorer.drop_zero_parts().names == [POPULARITY]
        return ["The score is popularity alone: validation users do not find more with any other part."] * alone

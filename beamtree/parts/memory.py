"""The memory part: lists of partners of every item, from four ways to count which items go together."""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import ClassVar, NamedTuple

from torch import Tensor

from beamtree.closed_form.cooccurrence import LONGEST
from beamtree.closed_form.part_weights import CUTS
from beamtree.closed_form.ridge import FEATURES, PENALTIES, SMALL_CATALOGUE
from beamtree.data.csr import CSR
from beamtree.data.inputs import HISTORY
from beamtree.parts.base import ClosedFormPart, FittedCandidates
from beamtree.parts.closed_form import POWERS, ClosedForm
from beamtree.progress import log
from beamtree.scorers import MemoryScorer, Scorer
from beamtree.scorers.memory import PARTNERS, recency_weights

MEMORY = "memory"  # the name of the part
FIRST_CUTS = (10, 50)  # cuts at which λ of co-occurrence is chosen: factors dominate at larger m
USER_POWER = "together, users"  # a, where a user of n items counts n⁻ᵃ among those that chose items together
USER_POWERS = (0.0, 0.25, 0.5)
FOLLOW = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 1e4)  # λ of transitions
FOLLOW_POWER = 0.5  # of recency weights of transitions
ENTRIES = 1_500_000  # total partners in a small catalogue, where that is more than PARTNERS per item
NEWEST = 20  # events of a history that sequential rules use
ACCEPTED_LOSS = 1e-3  # relative loss of recall that is accepted for half the partners
PAIRS = 40_000_000  # pairs of past events sampled for transitions


class PartnerList(NamedTuple):
    """The partners of every item, and the weights of the events of a history."""

    partners: CSR
    recency: Tensor

    def weighed(self, scale: float, weight: float) -> "PartnerList":
        """The same with scaled partners, and its weight in those of the events."""
        return PartnerList(self.partners.scaled(scale), self.recency * weight)


class MemoryPart(ClosedFormPart):
    """One memory of up to four lists; each is weighed as a candidate of its own."""

    name = MEMORY
    stages: ClassVar = {"together": 40, "graph": 4, "next": 8, "follows": 17}
    last_stages: ClassVar = {"partners": 3}
    combined_last = True  # the number of partners is chosen with all other parts in the sum

    def fit_candidates(self, form: ClosedForm) -> FittedCandidates:
        fits = {"together": cooccurring_items, "graph": near_items, "next": next_items}
        if form.ordered:
            fits["follows"] = later_items
        lists = {name: fit(form) for name, fit in fits.items() if form.is_used(name)}
        scorers = {name: form.memory([each.partners], [each.recency]) for name, each in lists.items()}
        return FittedCandidates(scorers, lambda others: self._join(lists, form, others))

    def _join(
        self, lists: Mapping[str, PartnerList], form: ClosedForm, others: Mapping[str, Scorer]
    ) -> MemoryScorer | None:
        """One memory of the lists that have a weight; with half of the partners, if recall is nearly the same."""
        used = [each.weighed(form.scale(name), form.weight(name)) for name, each in lists.items() if form.weight(name)]
        if not used:
            return None

        def with_partners(most: int) -> MemoryScorer:
            return form.memory([each.partners.head(most) for each in used], [each.recency for each in used])

        def recalls(most: int) -> dict[int, float]:
            return form.recalls(form.sum_of({**others, self.name: with_partners(most)}), CUTS)

        return with_partners(num_partners(form, max_partners(form), recalls))


def num_partners(form: ClosedForm, most: int, recalls: Callable[[int], dict[int, float]]) -> int:
    """N: half of the fitted partners, if recall is nearly the same at every cut."""
    form.stages.begin("partners", 1)
    if "partners" not in form.hyperparameters:
        form.hyperparameters["partners"] = most
        if form.validates:
            half, full = recalls(most // 2), recalls(most)
            if all(half[cut] >= (1 - ACCEPTED_LOSS) * full[cut] for cut in full):
                form.hyperparameters["partners"] = most // 2
        log.debug("partners of an item: %s", form.hyperparameters["partners"])
    number: int = form.hyperparameters["partners"]
    return number


def max_partners(form: ClosedForm) -> int:
    """N, before it may be halved."""
    return max(PARTNERS, ENTRIES // form.tree.num_items)


def cooccurring_items(form: ClosedForm) -> PartnerList:
    """Items that are chosen by the same users."""
    form.stages.begin("together", len(PENALTIES) + len(USER_POWERS) + len(POWERS))
    most = max_partners(form)
    counts = form.log.counts().clamp(min=1, max=LONGEST).double()
    count_pairs = lru_cache(1)(form.count_pairs)  # one matrix at a time: it is large
    if "weights" in form.hyperparameters:
        form.hyperparameters.setdefault(USER_POWER, 0.0)  # of an earlier fit that had none

    def fitted(penalty: float, user_power: float, order: Tensor, number: int, features: int = FEATURES) -> CSR:
        share = float((counts ** (1 - user_power)).sum() / counts.sum())  # what the diagonal of the matrix is of XᵀX
        return form.fit_ridge(count_pairs(user_power), order, penalty * share, number, features)

    @cache
    def whole(penalty: float, user_power: float) -> CSR:
        return fitted(penalty, user_power, form.order, most)

    @lru_cache(4)  # the best λ is tried again beside the weights of users
    def trial(penalty: float, user_power: float) -> Scorer:
        if len(form.order) <= SMALL_CATALOGUE:  # a trial would take as long
            partners = whole(penalty, user_power).head(PARTNERS)
        else:
            partners = fitted(penalty, user_power, form.trial_items, PARTNERS, FEATURES // 2)
        return form.memory([partners], [recency_weights(0.0)])

    penalty = form.hill_climb("together, λ", PENALTIES, lambda each: trial(each, 0.0), FIRST_CUTS)
    user_power = form.hill_climb(USER_POWER, USER_POWERS, lambda each: trial(penalty, each), FIRST_CUTS, 0.0, first=0)
    partners = whole(penalty, user_power)
    power = form.power("together", lambda each: form.memory([partners], [recency_weights(each)]))
    return PartnerList(partners, recency_weights(power))


def near_items(form: ClosedForm) -> PartnerList:
    """Items two steps away on the graph of users and items, read like those of `cooccurring_items`."""
    form.stages.begin("graph", 1)
    partners = form.fit_graph(max_partners(form))
    power = form.power("together", lambda each: form.memory([partners], [recency_weights(each)]))
    return PartnerList(partners, recency_weights(power))


def next_items(form: ClosedForm) -> PartnerList:
    """Items within the next few events: sequential rules."""
    form.stages.begin("next", len(POWERS))
    partners = form.fit_rules(max_partners(form))
    power = form.power("next", lambda each: form.memory([partners], [recency_weights(each, NEWEST)]))
    return PartnerList(partners, recency_weights(power, NEWEST))


def later_items(form: ClosedForm) -> PartnerList:
    """Items anywhere in the future of a history: a ridge regression."""
    form.stages.begin("follows", len(FOLLOW))
    recency = recency_weights(FOLLOW_POWER)
    train = form.data.train.events  # also where all users are fitted, so that these are read as often
    mean = float(train.counts().clamp(max=2 * HISTORY).double().mean()) / 2
    readings = min(max(int(PAIRS / max(1.0, len(train) * mean**2)), 1), 32)
    past, future = form.count_transitions(recency.to(form.device), readings)

    @cache
    def fitted(penalty: float, targets: int) -> CSR:
        order = form.order if targets == len(form.order) else form.trial_items
        return form.fit_regression(past, future, order, penalty, max_partners(form))

    penalty = form.hill_climb(
        "follows, λ", FOLLOW, lambda each: form.memory([fitted(each, len(form.trial_items))], [recency])
    )
    return PartnerList(fitted(penalty, len(form.order)), recency)

"""The closed-form model: parts fitted without a gradient, with penalties and weights chosen on validation users."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from beamtree.beam import default_beam_size
from beamtree.closed_form.als import STRENGTHS, choose_strengths, implicit_als
from beamtree.closed_form.cooccurrence import ItemMatrix, cooccurrence
from beamtree.closed_form.part_weights import (
    BATCH,
    CUTS,
    USERS,
    Candidates,
    choose_weights,
    for_each_batch,
    scores_at_leaves,
)
from beamtree.closed_form.ridge import FEATURES, PENALTIES, WHOLE, climb, follow_partners, ridge_partners
from beamtree.closed_form.transitions import next_partners, past_and_future
from beamtree.data import BeforeAfter, Events, Prepared
from beamtree.data.csr import CSR
from beamtree.data.views import HISTORY, ORDERED
from beamtree.evaluate import Find, measure, search_function
from beamtree.metrics import default_m, hits
from beamtree.model import TreeModel
from beamtree.progress import OnProgress, Stages, log, no_progress
from beamtree.scorers import FactorScorer, MemoryScorer, PopularityScorer, RepeatScorer, Scorer, SumScorer
from beamtree.scorers.factors import Factors
from beamtree.scorers.memory import PARTNERS, recency_weights
from beamtree.scorers.popularity import POPULARITY
from beamtree.tree import PAD, Tree

T = TypeVar("T")
PartnerList = tuple[CSR, Tensor]  # the partners of every item, and the weights of the events of a history

LEARNED = "deep"  # the part that gradients train

# The grids of λ and of powers are climbed from the middle, which is also used where there are no validation users.
TRIAL = {"dim": 48, "rounds": 2}  # size of the factors that λ and α₀ of implicit ALS are chosen with
MORE_ROUNDS = 1  # of ALS from the vectors of an earlier fit
VANISHED = 0.01  # factors that explain less of the histories than this are not used
FIRST_CUTS = (10, 50)  # cuts at which λ of co-occurrence is chosen: factors dominate at larger m
TRIAL_ITEMS = 1 << 17  # in a trial of λ, only the most popular items are solved for
FOLLOW = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 1e4)  # λ of transitions
POWERS = (0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0)  # of recency weights
USUAL_POWER = 0.3  # without validation users
FOLLOW_POWER = 0.5  # of recency weights of transitions
ENTRIES = 1_500_000  # total partners in a small catalogue, where that is more than PARTNERS per item
NEWEST = 20  # events of a history that sequential rules use
LOSS = 1e-3  # relative loss of recall that is accepted for half the partners
RARELY = 0.005  # share of repeats among targets below which a history is excluded
PAIRS = 40_000_000  # pairs of past events sampled for transitions
DEFAULTS = {"factors": 1.0, "together": 0.5, "next": 1.0, "repeats": 0.5}
STAGE_SHARES = {"factors": 30, "together": 35, "next": 8, "follows": 17, "weights": 7, "partners": 3}  # of the time
SAME_ITEMS = 10  # items of a list, where it is seen whether all users get the same
EARLIER_GRIDS: dict[str, Sequence[Any]] = {  # models of beamtree 0.2 record a place in one of these
    "factors, λ and α₀": STRENGTHS,
    "together, λ": (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0),
    "follows, λ": (3.0, 10.0, 30.0),
    **{f"{part}, recency": (0.3, 0.0, 0.6, 1.0) for part in ("factors", "together", "next")},
}


@dataclass
class ClosedFormBuilder:
    """Fits the closed-form parts of a model to a log.

    Args:
        tree: T.
        data: the log.
        seed: of everything random.
        device: where parts are fitted.
        first_level: of the search.
        on_progress: called with the progress.
        events: the events to fit. Default: those of the training users.
        hyperparameters: of an earlier fit, to be used again: λ, α₀, powers, scales and weights.
        start: the factors of an earlier fit to most of the events, from which ALS goes on. Default: it begins anew.
    """

    tree: Tree
    data: Prepared
    seed: int
    device: str
    first_level: int
    on_progress: OnProgress = no_progress
    events: Events | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    start: FactorScorer | None = None

    def __post_init__(self) -> None:
        self.stages = Stages("Fitting the closed form", STAGE_SHARES, self.on_progress)
        self.log: Events = (self.events or self.data.train.events).to(self.device)
        slots = self.tree.items()
        self.order = slots[slots >= 0].to(self.device)
        self.users = self.data.val.sample(USERS)
        self.validates = len(self.users) > 0
        self.come_back = not self.validates or self._share_of_repeats() > RARELY
        self.ordered = self.data.train.events.order_strength > ORDERED
        self.most = max(PARTNERS, ENTRIES // self.tree.num_items)  # N
        popular = self.log.popularity(self.data.num_items)[self.order]
        self.trial_items = self.order[popular.topk(min(TRIAL_ITEMS, len(popular))).indices.sort().values]

    def _share_of_repeats(self) -> float:
        """The share of the validation users' targets that are in their history."""
        x, y = self.users.batch(torch.arange(len(self.users)))
        return float(hits(y, x).sum() / (y != PAD).sum().clamp(min=1))

    def all_parts(self) -> SumScorer:
        """The sum of all parts, with the weights of the highest recall on the validation users."""
        factors = {"factors": self.factors()} if self.is_used("factors") else {}
        lists, repeats, others = self.partner_lists(), RepeatScorer(), self.popularity()
        memories = {name: self.memory([partners], [recency]) for name, (partners, recency) in lists.items()}
        weights = self.weights({**factors, **memories, "repeats": repeats, **others})
        # From here on all parts have one scale: the best items of a user differ by about 1 in each.
        scales: dict[str, float] = self.hyperparameters.get("scales", {})
        factors = {name: part.scaled(scales.get(name, 1.0)) for name, part in factors.items()}
        others = {name: part.scaled(scales[name]) for name, part in others.items() if weights.get(name)}
        active = [
            (partners.scaled(scales.get(name, 1.0)), recency * weights[name])
            for name, (partners, recency) in lists.items()
            if weights[name]
        ]

        def with_partners(most: int) -> SumScorer:
            parts: dict[str, Scorer] = {**factors, "repeats": repeats, **others}
            if active:
                parts["memory"] = self.memory(
                    [partners.head(most) for partners, _ in active], [recency for _, recency in active]
                )
            scorer = SumScorer(parts, self.tree.height, hyperparameters=self.hyperparameters)
            scorer.calibration = torch.tensor(self.hyperparameters["calibration"])
            return scorer.set_weights(**{name: weights[name] for name in parts if name in weights})

        scorer = with_partners(self.num_partners(with_partners) if active else self.most)
        if self.validates and "same" not in self.hyperparameters:
            self.hyperparameters["same"] = scorer.hyperparameters["same"] = self.agree(self.share_of_same_items(scorer))
        self.stages.end()
        return scorer

    def is_used(self, name: str) -> bool:
        """Whether a part has to be fitted: not where an earlier fit gave it no weight."""
        weights = self.hyperparameters.get("weights")
        return weights is None or bool(weights.get(name))

    # The parts

    def factors(self) -> FactorScorer:
        """Folded factors of implicit ALS."""
        self.stages.begin("factors", len(STRENGTHS) + 2 * len(POWERS))  # the last fit takes as long as a few trials

        def fitted(pair: tuple[float, float], **more: Any) -> FactorScorer:
            penalty, everywhere = pair
            return self.factor_scorer(self.fit_als(penalty=penalty, everywhere=everywhere, seed=self.seed, **more))

        def quality(pair: tuple[float, float]) -> float:
            scorer = fitted(pair, **TRIAL)
            return self.quality(scorer) if self.explains_histories(scorer) else -torch.inf

        chosen = self._choose("factors, λ and α₀", lambda: list(choose_strengths(quality)), list(STRENGTHS[0]))
        scorer = fitted((chosen[0], chosen[1]), **self._found_before(chosen[0]))
        self.hyperparameters["vanished"] = self.validates and not self.explains_histories(scorer)
        return scorer.with_power(self.power("factors", scorer.with_power))

    def _found_before(self, penalty: float) -> dict[str, Any]:
        """Where ALS goes on, at the scale that its vectors had before they were normalized."""
        if self.start is None:
            return {}
        scale = (penalty / self.start.penalty) ** 0.5
        return {"start": (self.start.item_vectors(self.tree) * scale).to(self.device), "rounds": MORE_ROUNDS}

    def explains_histories(self, factors: FactorScorer) -> bool:
        """Whether folded-in histories of validation users have a product above 0 with the items they were made from.

        It is 1 for factors that explain a history completely. Where penalties are too high for a sparse log it is near
        0: all that remains of the vectors is one direction, and the order of its products is nearly that of popularity.
        """
        model = TreeModel(self.tree, factors, first_level=self.first_level).to(self.device)
        x = self.users.batch(torch.arange(min(BATCH, len(self.users))))[0].to(self.device)
        products = scores_at_leaves(model, x, x)
        return bool(self.agree(float(products.sum() / (x != PAD).sum().clamp(min=1))) >= VANISHED)

    def popularity(self) -> dict[str, PopularityScorer]:
        """Popularity by the name of its part; none where it is not used."""
        if not self.is_used(POPULARITY):
            return {}
        counts = self.log.popularity(self.data.num_items)
        return {POPULARITY: PopularityScorer.from_counts(self.tree, counts.to(self.tree.device))}

    def cooccurring_items(self) -> PartnerList:
        """Items that are chosen by the same users."""
        self.stages.begin("together", len(PENALTIES) + len(POWERS))
        gram = self.count_pairs()

        @cache
        def whole(penalty: float) -> CSR:
            return self.fit_ridge(gram, self.order, penalty, self.most)

        def trial(penalty: float) -> Scorer:
            if len(self.order) <= WHOLE:  # a trial would take as long
                partners = whole(penalty).head(PARTNERS)
            else:
                partners = self.fit_ridge(gram, self.trial_items, penalty, PARTNERS, features=FEATURES // 2)
            return self.memory([partners], [recency_weights(0.0)])

        partners = whole(self.hill_climb("together, λ", PENALTIES, trial, FIRST_CUTS))
        power = self.power("together", lambda each: self.memory([partners], [recency_weights(each)]))
        return partners, recency_weights(power)

    def next_items(self) -> PartnerList:
        """Items within the next few events: sequential rules."""
        self.stages.begin("next", len(POWERS))
        partners = self.fit_rules(self.most)
        power = self.power("next", lambda each: self.memory([partners], [recency_weights(each, NEWEST)]))
        return partners, recency_weights(power, NEWEST)

    def later_items(self) -> PartnerList:
        """Items anywhere in the future of a history: a ridge regression."""
        self.stages.begin("follows", len(FOLLOW))
        recency = recency_weights(FOLLOW_POWER)
        train = self.data.train.events  # also where all users are fitted, so that these are read as often
        mean = float(train.counts().clamp(max=2 * HISTORY).double().mean()) / 2
        readings = min(max(int(PAIRS / max(1.0, len(train) * mean**2)), 1), 32)
        past, future = self.count_transitions(recency.to(self.device), readings)

        @cache
        def fitted(penalty: float, targets: int) -> CSR:
            order = self.order if targets == len(self.order) else self.trial_items
            return self.fit_regression(past, future, order, penalty, self.most)

        penalty = self.hill_climb(
            "follows, λ", FOLLOW, lambda each: self.memory([fitted(each, len(self.trial_items))], [recency])
        )
        return fitted(penalty, len(self.order)), recency

    def partner_lists(self) -> dict[str, PartnerList]:
        """Lists of partners by name; those with an earlier weight of 0 are not fitted."""
        fits = {"together": self.cooccurring_items, "next": self.next_items}
        if self.ordered:
            fits["follows"] = self.later_items
        return {name: fit() for name, fit in fits.items() if self.is_used(name)}

    def num_partners(self, with_partners: Callable[[int], SumScorer]) -> int:
        """N: half of the fitted partners, if recall is nearly the same at every cut."""
        self.stages.begin("partners", 1)
        if "partners" not in self.hyperparameters:
            self.hyperparameters["partners"] = self.most
            if self.validates:
                half = self.recalls(with_partners(self.most // 2), CUTS)
                full = self.recalls(with_partners(self.most), CUTS)
                if all(half[cut] >= (1 - LOSS) * full[cut] for cut in full):
                    self.hyperparameters["partners"] = self.most // 2
            log.debug("partners of an item: %s", self.hyperparameters["partners"])
        number: int = self.hyperparameters["partners"]
        return number

    def weights(self, parts: dict[str, Scorer]) -> dict[str, float]:
        """The weight of each part, after its scale; scales and the calibration of their sum are recorded, too.

        Factors that vanished get none.
        """
        self.stages.begin("weights", 1)
        if "weights" in self.hyperparameters:
            earlier: dict[str, float] = self.hyperparameters["weights"]
            return earlier
        users = self.users if self.validates else self.data.train.sample(USERS)
        used = {name: part for name, part in parts.items() if name != "factors" or not self.hyperparameters["vanished"]}
        candidates = self.candidates(used, users)
        units = dict(zip(candidates.names, candidates.units.tolist(), strict=True))
        if self.validates:
            total = choose_weights(candidates)
        else:
            log.debug("no validation users: penalties, recency and weights are defaults")
            total = {name: DEFAULTS.get(name, 0.0) * unit for name, unit in units.items()}
        calibration = candidates.calibration(total).tolist()
        scales = self.agree({name: units.get(name, 1.0) for name in parts if name != "repeats"})
        weights = self.agree({name: total.get(name, 0.0) / scales.get(name, 1.0) for name in parts})
        log.debug("weights: %s", ", ".join(f"{name} {weight:.3g}" for name, weight in weights.items()))
        self.hyperparameters |= {"scales": scales, "weights": weights, "calibration": self.agree(calibration)}
        return weights

    def share_of_same_items(self, scorer: SumScorer) -> float:
        """The share of validation users' lists that the most frequent items make up: 1 if everybody gets the same."""
        model = TreeModel(self.tree, scorer, first_level=self.first_level).to(self.device)
        m = min(SAME_ITEMS, self.tree.num_items)
        rows = torch.arange(len(self.users)).split(BATCH)
        find = search_function(model, default_beam_size(m), m)
        items = torch.cat(
            [find(x, x[:, :0]).cpu() for x in (self.users.batch(some)[0].to(self.device) for some in rows)]
        )
        counts = torch.bincount(items[items != PAD], minlength=self.tree.num_items)
        return float(counts.topk(m).values.sum() / counts.sum().clamp(min=1))

    # The grid

    def recalls(self, part: Scorer, cuts: Sequence[int]) -> dict[int, float]:
        """The recall of a part alone for the validation users, by cut.

        If users hardly ever choose an item twice, their history is excluded, as the weight of repeats will do later.
        """
        model = TreeModel(self.tree, part, first_level=self.first_level).to(self.device)
        most = default_m(self.tree.num_items)
        cuts = sorted({min(cut, most) for cut in cuts})
        find, users_at_once = self.parallel(search_function(model, default_beam_size(most), cuts[-1]))
        exclude = not self.come_back
        result = measure(find, self.users, m=cuts, metrics=("recall",), exclude_seen=exclude, batch_size=users_at_once)
        return self.agree({cut: float(result["recall", cut]) for cut in cuts})

    def quality(self, part: Scorer, cuts: Sequence[int] = (10, 50, 200)) -> float:
        """One number: the sum of recall at several cuts, each divided by the square root of the cut."""
        total = float(sum(recall / cut**0.5 for cut, recall in self.recalls(part, cuts).items()))
        self.stages.tick()
        return total

    def hill_climb(
        self,
        what: str,
        values: Sequence[float],
        make: Callable[[float], Scorer],
        cuts: Sequence[int] = (10, 50, 200),
        default: float | None = None,
    ) -> float:
        """The value of the highest quality, tried from the middle up and down while the quality rises.

        Without validation users it is the default, or the middle.
        """

        def choose() -> float:
            qualities: dict[float, float] = {}

            def attempt(value: float) -> bool:
                qualities[value] = self.quality(make(value), cuts)
                return qualities[value] == max(qualities.values())

            climb(values, attempt)
            return max(qualities, key=qualities.__getitem__)

        return self._choose(what, choose, values[len(values) // 2] if default is None else default)

    def _choose(self, what: str, choose: Callable[[], T], default: T) -> T:
        """The value of an earlier fit, or the one to choose with validation users, or the default."""
        if what not in self.hyperparameters:
            self.hyperparameters[what] = choose() if self.validates else default
            if self.validates:
                log.debug("%s: %s", what, self.hyperparameters[what])
        value: T | int = self.hyperparameters[what]
        return EARLIER_GRIDS[what][value] if isinstance(value, int) else value

    def power(self, what: str, make: Callable[[float], Scorer]) -> float:
        """The power of the recency weights of a part: 0 where a log has no order."""
        return self.hill_climb(f"{what}, recency", POWERS, make, default=USUAL_POWER) if self.ordered else 0.0

    # Steps that a subclass may do in another way

    def fit_als(self, **options: Any) -> Factors:
        return implicit_als(self.log, self.data.num_items, **options)

    def factor_scorer(self, factors: Factors) -> FactorScorer:
        return FactorScorer.from_factors(self.tree, factors)

    def count_pairs(self) -> ItemMatrix:
        return cooccurrence(self.log, self.data.num_items)

    def fit_ridge(self, gram: ItemMatrix, order: Tensor, penalty: float, most: int, features: int = FEATURES) -> CSR:
        return ridge_partners(gram, order, penalty, most, features=features)

    def fit_rules(self, most: int) -> CSR:
        return next_partners(self.log, self.data.num_items, most=most)

    def count_transitions(self, recency: Tensor, readings: int) -> tuple[ItemMatrix, ItemMatrix]:
        return past_and_future(self.log, self.data.num_items, recency, readings=readings, seed=self.seed)

    def fit_regression(self, past: ItemMatrix, future: ItemMatrix, order: Tensor, penalty: float, most: int) -> CSR:
        return follow_partners(past, future, order, penalty, most)

    def memory(self, lists: Sequence[CSR], recency: Sequence[Tensor]) -> MemoryScorer:
        return MemoryScorer.from_partners(lists, recency)

    def candidates(self, parts: dict[str, Scorer], users: BeforeAfter) -> Candidates:
        return Candidates(self.tree, parts, users, self.first_level, self.device)

    def parallel(self, find: Find) -> tuple[Find, int]:
        """A search for several batches of users at once, and for how many users to call it."""

        def find_all(x: Tensor, exclude: Tensor) -> Tensor:
            batches = zip(x.split(BATCH), exclude.split(BATCH), strict=True)
            return torch.cat(for_each_batch(lambda users: find(*users), batches, self.device))

        return find_all, BATCH * torch.get_num_threads()

    def agree(self, value: T) -> T:
        """A choice that everything after it depends on."""
        return value

"""The closed form: parts fitted without a gradient, with penalties and weights chosen on validation users together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from beamtree.beam import DEFAULT_BEAM_SIZE, default_beam_size
from beamtree.closed_form.als import STRENGTHS, implicit_als
from beamtree.closed_form.cooccurrence import ItemMatrix, cooccurrence
from beamtree.closed_form.graph import graph_partners
from beamtree.closed_form.part_weights import BATCH, USERS, WEIGHT_USERS, choose_weights, for_each_batch
from beamtree.closed_form.ridge import FEATURES, climb, follow_partners, ridge_partners
from beamtree.closed_form.transitions import next_partners, past_and_future
from beamtree.data import Events
from beamtree.data.csr import CSR
from beamtree.data.inputs import HISTORY, WHOLE_HISTORY
from beamtree.data.times import DAY
from beamtree.data.views import ORDERED
from beamtree.evaluate import Find, measure, search_function
from beamtree.evaluate.metrics import default_m, hits
from beamtree.model import TreeModel
from beamtree.parts.base import ClosedFormPart, Fitting
from beamtree.progress import Stages, log
from beamtree.scorers import (
    FactorScorer,
    MemoryScorer,
    PopularityScorer,
    Scorer,
    SumScorer,
    TrendScorer,
    with_inputs,
)
from beamtree.scorers.factors import Factors
from beamtree.scorers.memory import PARTNERS, recency_weights
from beamtree.tree import PAD

T = TypeVar("T")

# Grids are climbed from the middle, which is also used where there are no validation users.
POWERS = (0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0)  # of recency weights
USUAL_POWER = 0.3  # without validation users
TRIAL_ITEMS = 1 << 17  # in a trial of λ, only the most popular items are solved for
MIN_REPEAT_SHARE = 0.005  # share of repeats among targets below which a history is excluded
DEFAULTS = {"factors": 1.0, "together": 0.5, "next": 1.0, "repeats": 0.5}  # weights without validation users
HALF_LIFE = "half-life"  # of events, in seconds: what it is recorded as, and the stage in which it is chosen
LOG_SHARES = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64)  # half-lives that are tried, as shares of the log's length
HALF_LIFE_TIME = 3  # the share of the time
MISSES = 2  # half-lives in a row that are no better, after which no shorter one is tried
LEAST_GAIN = 0.01  # of quality, that a shorter half-life must bring
WEIGHTS = "weights"  # the stage in which they are chosen, and its share of the time
WEIGHTS_TIME = 7
SAME_ITEMS = 10  # items of a list, where it is seen whether all users get the same
EARLIER_GRIDS: dict[str, Sequence[Any]] = {  # models of beamtree 0.2 record a place in one of these
    "factors, λ and α₀": STRENGTHS,
    "together, λ": (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0),
    "follows, λ": (3.0, 10.0, 30.0),
    **{f"{part}, recency": (0.3, 0.0, 0.6, 1.0) for part in ("factors", "together", "next")},
}


@dataclass
class ClosedForm(Fitting):
    """Fits the closed-form parts of a model to a log, and chooses what they leave open."""

    def __post_init__(self) -> None:
        self.own = [part for part in self.parts if isinstance(part, ClosedFormPart)]
        shares = {HALF_LIFE: HALF_LIFE_TIME} if self.fitted_events.span_of_time() else {}
        shares |= {name: share for part in self.own for name, share in part.stages.items()} | {WEIGHTS: WEIGHTS_TIME}
        shares |= {name: share for part in self.own for name, share in part.last_stages.items()}
        self.stages = Stages("Fitting the closed form", shares, self.on_progress)
        self.log: Events = self.fitted_events.to(self.device)
        slots = self.tree.items()
        self.order = slots[slots >= 0].to(self.device)
        self.users = self.validation_users()
        self.validates = len(self.users) > 0
        self.users_repeat = not self.validates or self._share_of_repeats() > MIN_REPEAT_SHARE
        self.ordered = self.data.train.events.order_strength > ORDERED
        popular = self.log.popularity(self.data.num_items)[self.order]
        self.trial_items = self.order[popular.topk(min(TRIAL_ITEMS, len(popular))).indices.sort().values]

    def _share_of_repeats(self) -> float:
        """The share of the validation users' targets that are in their history."""
        x, y = replace(self.users, history=HISTORY, clock=False).batch(torch.arange(len(self.users)))
        return float(hits(y, x).sum() / (y != PAD).sum().clamp(min=1))

    def fit(self) -> SumScorer:
        """The sum of the closed-form parts, with the weights of the highest recall on the validation users."""
        first = {part.name: part.fit_candidates(self) for part in self.own if part.fades}
        self.choose_half_life({name: scorer for each in first.values() for name, scorer in each.scorers.items()})
        fitted = [(part, first.get(part.name) or part.fit_candidates(self)) for part in self.own]
        self.choose({name: scorer for _, candidates in fitted for name, scorer in candidates.scorers.items()})
        parts: dict[str, Scorer] = {}
        for part, candidates in sorted(fitted, key=lambda each: each[0].combined_last):
            combined = candidates.combine(parts)
            if combined is not None:
                parts[part.name] = combined
        scorer = self.sum_of(parts)
        if self.validates and "same" not in self.hyperparameters:
            same = self.processes.broadcast(self.share_of_same_items(scorer))
            self.hyperparameters["same"] = scorer.hyperparameters["same"] = same
        self.stages.end()
        return scorer

    def choose_half_life(self, fading: Mapping[str, Scorer]) -> None:
        """Let events count less the older they are, where that finds more beside scorers that fade by themselves.

        Shares of the log's length are tried from the longest on while the quality rises. A refit has the same
        half-life in seconds, from the new end of the log on.
        """
        span = self.log.span_of_time()
        if not span:
            return
        self.stages.begin(HALF_LIFE, 1 + len(LOG_SHARES))
        if HALF_LIFE not in self.hyperparameters:
            earlier = "weights" in self.hyperparameters  # of a fit that had none
            self.hyperparameters[HALF_LIFE] = (
                self._best_half_life(span, fading) if self.validates and not earlier else 0.0
            )
        half_life = float(self.hyperparameters[HALF_LIFE])
        if half_life:
            self.log = self.log.decayed(half_life)

    def _best_half_life(self, span: int, fading: Mapping[str, Scorer]) -> float:
        """The half-life with which sequential rules, which take seconds to fit, find the most; 0 for none.

        They are tried beside what fades: what that knows of the present needs no half-life.
        """
        whole = self.log

        def quality(half_life: float) -> float:
            self.log = whole.decayed(half_life) if half_life else whole
            rules = self.memory([self.fit_rules(PARTNERS)], [recency_weights(USUAL_POWER)])
            tried = {"next": rules, **fading}
            candidates = self.processes.candidates(self.tree, tried, self.users, self.first_level, self.device)
            recalls = candidates.user_recalls(choose_weights(candidates)).mean(0).tolist()
            total = sum(recall / cut**0.5 for cut, recall in zip(candidates.cuts, recalls, strict=True))
            self.stages.tick()
            return self.processes.broadcast(float(total))

        chosen, best, missed = 0.0, quality(0.0), 0
        for share in LOG_SHARES:
            found, missed = quality(share * span), missed + 1
            if found >= best * (1 + LEAST_GAIN):
                chosen, best, missed = share * span, found, 0
            if missed == MISSES:
                break
        self.log = whole
        log.debug("half-life of events: %s", f"{chosen / DAY:.3g} days" if chosen else "none")
        return chosen

    def is_used(self, name: str) -> bool:
        """Whether a candidate has to be fitted: not where an earlier fit gave it no weight."""
        weights = self.hyperparameters.get("weights")
        return weights is None or bool(weights.get(name))

    def weight(self, name: str) -> float:
        """The chosen weight of a candidate, after its scale."""
        return float(self.hyperparameters["weights"].get(name, 0.0))

    def scale(self, name: str) -> float:
        """What the scores of a candidate are multiplied by, so that the best items of a user differ by about 1."""
        return float(self.hyperparameters.get("scales", {}).get(name, 1.0))

    def sum_of(self, parts: Mapping[str, Scorer]) -> SumScorer:
        """The sum of finished parts with the chosen weights; a part that joins several candidates has the weight 1."""
        scorer = SumScorer(parts, self.tree.height, hyperparameters=self.hyperparameters)
        scorer.calibration = torch.tensor(self.hyperparameters["calibration"])
        weights = self.hyperparameters["weights"]
        return scorer.set_weights(**{name: weights[name] for name in parts if name in weights})

    def choose(self, candidates: Mapping[str, Scorer]) -> None:
        """Choose and record the scale and the weight of each candidate, and the calibration of their sum.

        Factors that vanished get no weight.
        """
        self.stages.begin(WEIGHTS, 1)
        if "weights" in self.hyperparameters:
            return
        users = replace(self.data.train.sample(USERS), history=WHOLE_HISTORY)
        if self.validates:
            users = self.validation_users(WEIGHT_USERS)
        vanished = self.hyperparameters.get("vanished")
        used = {name: part for name, part in candidates.items() if name != "factors" or not vanished}
        measured = self.processes.candidates(self.tree, used, users, self.first_level, self.device)
        units = dict(zip(measured.names, measured.units.tolist(), strict=True))
        if self.validates:
            total = choose_weights(measured)
        else:
            log.debug("no validation users: penalties, recency and weights are defaults")
            total = {name: DEFAULTS.get(name, 0.0) * unit for name, unit in units.items()}
        scales = {name: units.get(name, 1.0) for name in candidates if name != "repeats"}
        weights = {name: total.get(name, 0.0) / scales.get(name, 1.0) for name in candidates}
        chosen = {"scales": scales, "weights": weights, "calibration": measured.calibration(total).tolist()}
        self.hyperparameters |= self.processes.broadcast(chosen)
        log.debug("weights: %s", ", ".join(f"{name} {self.weight(name):.3g}" for name in candidates))

    def share_of_same_items(self, scorer: SumScorer) -> float:
        """The share of validation users' lists that the most frequent items make up: 1 if everybody gets the same."""
        model = TreeModel(self.tree, scorer, first_level=self.first_level).to(self.device)
        m = min(SAME_ITEMS, self.tree.num_items)
        users = with_inputs(scorer, self.users)
        rows = torch.arange(len(users)).split(BATCH)
        find = search_function(model, DEFAULT_BEAM_SIZE, m)
        items = torch.cat([find(x, x[:, :0]).cpu() for x in (users.batch(some)[0].to(self.device) for some in rows)])
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
        exclude = not self.users_repeat
        users = with_inputs(part, self.users)
        result = measure(find, users, m=cuts, metrics=("recall",), exclude_seen=exclude, batch_size=users_at_once)
        return self.processes.broadcast({cut: float(result["recall", cut]) for cut in cuts})

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
        first: int | None = None,
    ) -> float:
        """The value of the highest quality, tried from the middle, or `first`, up and down while the quality rises.

        Without validation users it is the default, or the middle.
        """

        def choose() -> float:
            qualities: dict[float, float] = {}

            def attempt(value: float) -> bool:
                qualities[value] = self.quality(make(value), cuts)
                return qualities[value] == max(qualities.values())

            climb(values, attempt, first)
            return max(qualities, key=qualities.__getitem__)

        return self.chosen(what, choose, values[len(values) // 2] if default is None else default)

    def chosen(self, what: str, choose: Callable[[], T], default: T) -> T:
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

    def popularity_scorer(self, counts: Tensor) -> PopularityScorer:
        return PopularityScorer.from_counts(self.tree, counts.to(self.tree.device))

    def trend_scorer(
        self, counts: Tensor, half_lives: Sequence[float], weights: Sequence[float], end: int
    ) -> TrendScorer:
        return TrendScorer.from_counts(self.tree, counts.to(self.tree.device), half_lives, weights, end)

    def count_pairs(self, power: float = 0.0) -> ItemMatrix:
        return cooccurrence(self.log, self.data.num_items, power)

    def fit_ridge(self, gram: ItemMatrix, order: Tensor, penalty: float, most: int, features: int = FEATURES) -> CSR:
        return ridge_partners(gram, order, penalty, most, features=features)

    def fit_graph(self, most: int) -> CSR:
        items = torch.arange(self.data.num_items, device=self.device)
        return graph_partners(self.count_pairs(power=1.0), items, most)

    def fit_rules(self, most: int) -> CSR:
        return next_partners(self.log, self.data.num_items, most=most)

    def count_transitions(self, recency: Tensor, readings: int) -> tuple[ItemMatrix, ItemMatrix]:
        return past_and_future(self.log, self.data.num_items, recency, readings=readings, seed=self.seed)

    def fit_regression(self, past: ItemMatrix, future: ItemMatrix, order: Tensor, penalty: float, most: int) -> CSR:
        return follow_partners(past, future, order, penalty, most)

    def memory(self, lists: Sequence[CSR], recency: Sequence[Tensor]) -> MemoryScorer:
        return MemoryScorer.from_partners(lists, recency)

    def parallel(self, find: Find) -> tuple[Find, int]:
        """A search for several batches of users at once, and for how many users to call it."""

        def find_all(x: Tensor, exclude: Tensor) -> Tensor:
            batches = zip(x.split(BATCH), exclude.split(BATCH), strict=True)
            return torch.cat(for_each_batch(lambda users: find(*users), batches, self.device))

        return find_all, BATCH * torch.get_num_threads()

"""A start in closed form: parts made without a gradient, and their weights, chosen by validation users."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from beamtree.beam import retrieve
from beamtree.closed_form import Factors, Partners, follow_partners, next_partners, ridge_partners
from beamtree.closed_form.als import STRENGTHS, ials_by_rows
from beamtree.closed_form.cooccurrence import followed, together
from beamtree.closed_form.part_weights import BATCH, CUTS, USERS, Candidates, choose_weights, for_each_batch
from beamtree.closed_form.partners import PARTNERS
from beamtree.closed_form.ridge import FEATURES as EXPLAINING
from beamtree.closed_form.ridge import PENALTIES, climb
from beamtree.data import BeforeAfter, Events, Prepared
from beamtree.data.views import HISTORY, ORDERED
from beamtree.distributed.group import ranks
from beamtree.evaluate import measure
from beamtree.metrics import hits, usual_m
from beamtree.model import TreeModel
from beamtree.progress import OnProgress, Stages, log, no_progress
from beamtree.scorers import FactorScorer, MemoryScorer, RepeatScorer, Scorer, SumScorer
from beamtree.scorers.memory import fading
from beamtree.tree import PAD, Tree

T = TypeVar("T")
Weighed = tuple[Partners, Tensor]  # what items say of others, and what an event counts by its age

LEARNED = "deep"  # the part that gradients train

# The grid. The first of each is taken where nobody can be asked, of λ of what goes together the middle.
FACTORS = STRENGTHS  # λ and α₀ of implicit ALS
TRIAL = {"dim": 48, "rounds": 2}  # with which these are tried
# PENALTIES of `closed.ridge`: λ of what goes together
FIRST = (10, 50)  # cuts at which that is judged: what comes later factors know better
TRIED = 1 << 17  # items, the most popular, that a trial of λ solves for: it decides between items
FOLLOW = (3.0, 10.0, 30.0)  # λ of what follows
POWERS = (0.3, 0.0, 0.6, 1.0)  # how fast an event loses weight
FADING = 0.5  # of what follows, in fitting and in asking
ENTRIES = 1_500_000  # partners of all items that a small catalogue may have, if that is more than N each
NEWEST = 20  # events that rules look at
LOSS = 1e-3  # of what is found, that half the partners may cost
RARELY = 0.005  # of what users choose next, that they had before
READINGS = 40_000_000  # pairs of past and past that are drawn for what follows
DEFAULTS = {"factors": 1.0, "together": 0.5, "next": 1.0, "repeats": 0.5}
SHARES = {"factors": 30, "together": 35, "next": 8, "follows": 17, "weights": 7, "partners": 3}  # of the time, about


@dataclass
class Start:
    """What is made of a log on the way to a sum of parts.

    Args:
        tree: T.
        data: the log.
        seed: of all that is drawn.
        device: where it is made.
        first_level: of the search.
        on_progress: hears how much is done.
        events: that the parts are made from; those of the training users unless given.
        made: what was chosen before, and is not chosen again: places in the grid, and weights.
    """

    tree: Tree
    data: Prepared
    seed: int
    device: str
    first_level: int
    on_progress: OnProgress = no_progress
    events: Events | None = None
    made: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stages = Stages("Fitting the closed form", SHARES, self.on_progress)
        self.log: Events = (self.events or self.data.train.events).to(self.device)
        slots = self.tree.items()
        self.order = slots[slots >= 0].to(self.device)
        self.users = self.data.val.few(USERS)
        self.asks = len(self.users) > 0
        self.come_back = not self.asks or _repeated(self.users) > RARELY
        self.ordered = self.data.train.events.order_strength > ORDERED
        self.most = max(PARTNERS, ENTRIES // self.tree.num_items)  # N
        self.tried = self.order[_popular(self.log.popularity(self.data.num_items)[self.order], TRIED)]

    def recalls(self, part: Scorer, cuts: Sequence[int]) -> dict[int, float]:
        """What a part alone finds for validation users, by cut.

        Where users hardly ever come back, what they have is left out, as a weight of repeats will do in the end.
        """
        model = TreeModel(self.tree, part, first_level=self.first_level).to(self.device)
        most = usual_m(self.tree.num_items)
        cuts = sorted({min(cut, most) for cut in cuts})

        def search(users: tuple[Tensor, Tensor]) -> Tensor:
            x, exclude = (part.to(self.device) for part in users)
            return retrieve(model, x, beam_size=max(400, most), m=cuts[-1], exclude=exclude)[0]

        def find(x: Tensor, exclude: Tensor) -> Tensor:
            batches = zip(x.split(BATCH), exclude.split(BATCH), strict=True)
            return torch.cat(for_each_batch(search, batches, self.device))

        found = measure(
            ranks().shared_out(find),
            self.users,
            m=cuts,
            metrics=("recall",),
            exclude_seen=not self.come_back,
            batch_size=BATCH * (ranks().size if ranks().size > 1 else torch.get_num_threads()),
        )
        # All ranks go on with the numbers of the first: what is tried next follows from them.
        return ranks().gather({cut: float(found["recall", cut]) for cut in cuts})[0]

    def quality(self, part: Scorer, cuts: Sequence[int] = (10, 50, 200)) -> float:
        """The same in one number: recall at several cuts, each over the root of its cut, so that all count."""
        found = float(sum(recall / cut**0.5 for cut, recall in self.recalls(part, cuts).items()))
        self.stages.tick()
        return found

    def best(self, what: str, values: Sequence[T], make: Callable[[T], Scorer]) -> T:
        """The value whose scorer finds most; the first where there is nobody to ask."""

        def place() -> int:
            return max(range(len(values)), key=lambda each: self.quality(make(values[each])))

        return self._chosen(what, values, place, 0)

    def climbed(self, what: str, values: Sequence[T], make: Callable[[T], Scorer], cuts: Sequence[int]) -> T:
        """The same for values in order, tried from the middle up and down as long as more is found."""

        def place() -> int:
            found: dict[int, float] = {}

            def attempt(each: int) -> bool:
                found[each] = self.quality(make(values[each]), cuts)
                return found[each] == max(found.values())

            climb(range(len(values)), attempt)
            return max(found, key=found.__getitem__)

        return self._chosen(what, values, place, len(values) // 2)

    def _chosen(self, what: str, values: Sequence[T], place: Callable[[], int], usual: int) -> T:
        if what not in self.made:
            self.made[what] = place() if self.asks and len(values) > 1 else usual
            if self.asks:
                log.debug("%s: %s", what, values[self.made[what]])
        found: T = values[self.made[what]]
        return found

    def power(self, what: str, make: Callable[[float], Scorer]) -> float:
        """How fast events lose weight for a part: not at all where a log has no order."""
        return self.best(f"{what}, recency", POWERS, make) if self.ordered else 0.0

    # The parts

    def factors(self) -> FactorScorer:
        """Folded factors."""
        self.stages.begin("factors", len(FACTORS) + 2 * len(POWERS))  # the last fit takes as long as a few trials

        def fitted(pair: tuple[float, float], **size: int) -> Factors:
            penalty, everywhere = pair
            known = {"num_items": self.data.num_items, "seed": self.seed, **size}
            return ials_by_rows(self.log, penalty=penalty, everywhere=everywhere, **known)

        def made(factors: Factors, power: float = 0.0) -> FactorScorer:
            return FactorScorer.from_factors(self.tree, factors, power)

        factors = fitted(self.best("factors, λ and α₀", FACTORS, lambda pair: made(fitted(pair, **TRIAL))))
        return made(factors, self.power("factors", lambda power: made(factors, power)))

    def together(self) -> Weighed:
        """What goes together."""
        self.stages.begin("together", len(PENALTIES) + len(POWERS))
        gram = together(self.log, self.data.num_items, self.order)

        def trial(penalty: float) -> Scorer:
            return memory(ridge_partners(gram, self.tried, penalty, features=EXPLAINING // 2), fading(0.0))

        penalty = self.climbed("together, λ", PENALTIES, trial, FIRST)
        found = ridge_partners(gram, self.order, penalty, self.most)
        return found, fading(self.power("together", lambda power: memory(found, fading(power))))

    def soon(self) -> Weighed:
        """What comes within a few events: rules."""
        self.stages.begin("next", len(POWERS))
        found = next_partners(self.log, self.data.num_items, most=self.most)
        return found, fading(self.power("next", lambda power: memory(found, fading(power, NEWEST))), NEWEST)

    def following(self) -> Weighed:
        """What follows, sooner or later."""
        self.stages.begin("follows", len(FOLLOW))
        recency = fading(FADING)
        mean = float(self.data.train.events.counts().clamp(max=2 * HISTORY).double().mean()) / 2
        readings = int(READINGS / max(1.0, len(self.log) * mean**2))
        past, future = followed(
            self.log,
            self.data.num_items,
            recency.to(self.device),
            readings=min(max(readings, 1), 32),
            seed=self.seed,
            order=self.order,
        )

        @cache
        def fitted(penalty: float, targets: int) -> Partners:
            order = self.order if targets == len(self.order) else self.tried
            return follow_partners(past, future, order, penalty, self.most)

        penalty = self.best("follows, λ", FOLLOW, lambda each: memory(fitted(each, len(self.tried)), recency))
        return fitted(penalty, len(self.order)), recency

    def lists(self) -> dict[str, Weighed]:
        """What items say of others, by name; what is known to count nothing is not made."""
        makers = {"together": self.together, "next": self.soon}
        if self.ordered:
            makers["follows"] = self.following
        known = self.made.get("weights")
        return {name: make() for name, make in makers.items() if known is None or known[name]}

    def all_parts(self) -> SumScorer:
        """All parts with the weights that find most for the validation users."""
        factors, lists, repeats = self.factors(), self.lists(), RepeatScorer()
        parts = {name: memory(*weighed) for name, weighed in lists.items()}
        weights = self.weights({"factors": factors, **parts, "repeats": repeats})
        kept = [(partners, recency * weights[name]) for name, (partners, recency) in lists.items() if weights[name]]

        def whole(most: int) -> SumScorer:
            made: dict[str, Scorer] = {"factors": factors, "repeats": repeats}
            if kept:
                made["memory"] = MemoryScorer.from_partners(
                    [partners.cut(most) for partners, _ in kept], [recency for _, recency in kept]
                )
            found = SumScorer(made, self.tree.height, made=self.made)
            found.calibration = torch.tensor(self.made["calibration"])
            return found.weigh(factors=weights["factors"], repeats=weights["repeats"])

        found = whole(self.how_many(whole) if kept else self.most)
        self.stages.end()
        return found

    def how_many(self, whole: Callable[[int], SumScorer]) -> int:
        """N, partners of an item: half of what was made where the sum finds as much with them at every cut."""
        self.stages.begin("partners", 1)
        if "partners" not in self.made:
            few = self.most // 2
            self.made["partners"] = few if self.asks and self._is_enough(whole, few) else self.most
            log.debug("partners of an item: %s", self.made["partners"])
        found: int = self.made["partners"]
        return found

    def _is_enough(self, whole: Callable[[int], SumScorer], few: int) -> bool:
        less, more = self.recalls(whole(few), CUTS), self.recalls(whole(self.most), CUTS)
        return all(less[cut] >= (1 - LOSS) * more[cut] for cut in more)

    def weights(self, parts: dict[str, Scorer]) -> dict[str, float]:
        """What each part counts; and what makes the sum a probability is kept."""
        self.stages.begin("weights", 1)
        if "weights" in self.made:
            known: dict[str, float] = self.made["weights"]
            return known
        users = self.users if self.asks else self.data.train.few(USERS)
        candidates = Candidates(self.tree, parts, users, self.first_level, self.device)
        if self.asks:
            found = choose_weights(candidates)
        else:
            log.debug("no validation users: penalties, recency and weights are defaults")
            units = dict(zip(candidates.names, candidates.units.tolist(), strict=True))
            found = {name: DEFAULTS.get(name, 0.0) * unit for name, unit in units.items()}
        found = ranks().gather(found)[0]
        log.debug("weights: %s", ", ".join(f"{name} {weight:.3g}" for name, weight in found.items()))
        self.made |= {"weights": found, "calibration": ranks().gather(candidates.calibration(found).tolist())[0]}
        return found


def refit(model: TreeModel, data: Prepared, seed: int) -> None:
    """Make the parts in closed form again, from the events of training and validation users together.

    All that was chosen stays: λ, α₀, recency, weights. Numbers on validation users mean nothing from here on.
    """
    scorer = model.scorer
    if not isinstance(scorer, SumScorer) or not scorer.made:
        raise ValueError("only a model with parts in closed form can be refitted: train with the recipe beamtree")
    device, made = str(model.tree.device), dict(scorer.made)
    events = data.with_validation()
    parts = Start(model.tree, data, seed, device, model.first_level, events=events, made=made).all_parts()
    for name in parts.names:
        scorer.put(name, parts.part(name).to(device))


def _repeated(users: BeforeAfter) -> float:
    """The share of targets that are in the history."""
    x, y = users.batch(torch.arange(len(users)))
    return float(hits(y, x).sum() / (y != PAD).sum().clamp(min=1))


def _popular(counts: Tensor, most: int) -> Tensor:
    """The places of the largest of some numbers, in rising order; of all where there are no more."""
    return counts.topk(min(most, len(counts))).indices.sort().values


def memory(partners: Partners, recency: Tensor) -> MemoryScorer:
    """A memory of one list."""
    return MemoryScorer.from_partners([partners], [recency])

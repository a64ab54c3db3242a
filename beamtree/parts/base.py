"""What a part of the score is: its name, how it is fitted to a log, when it is used, and what a report says of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from beamtree.closed_form.part_weights import USERS
from beamtree.data import BeforeAfter, Events, Prepared
from beamtree.data.inputs import WHOLE_HISTORY
from beamtree.parts.acceptance import Acceptance
from beamtree.parts.processes import ALONE, Processes
from beamtree.progress import OnProgress, no_progress
from beamtree.scorers import Scorer, SumScorer
from beamtree.tree import Tree

if TYPE_CHECKING:
    from beamtree.data.catalogue import Catalogue
    from beamtree.parts.closed_form import ClosedForm


@dataclass
class Fitting:
    """What parts are fitted to.

    Args:
        tree: T.
        data: the log.
        seed: of everything random.
        device: where parts are fitted.
        first_level: of the search.
        on_progress: called with the progress.
        events: the events to fit. Default: those of the training users.
        hyperparameters: of an earlier fit, to be used again: λ, α₀, powers, scales and weights.
        start: an earlier fit to most of the events, from whose factors ALS goes on. Default: it begins anew.
        again: whether trained parts are trained again too, for the steps that were chosen. Default: they stay.
        goes_on: whether these events are those of the earlier fit and more, so that such training may go on from it.
        parts: those of the sum, in the order in which they are tried; the closed form fits those that are its own.
        catalogue: the table of the items, where there is one.
        processes: those that fit together.
    """

    tree: Tree
    data: Prepared
    seed: int = 0
    device: str = "cpu"
    first_level: int = 1
    on_progress: OnProgress = no_progress
    events: Events | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    start: Scorer | None = None
    again: bool = False
    goes_on: bool = False
    parts: "tuple[Part, ...]" = ()
    catalogue: "Catalogue | None" = None
    processes: Processes = ALONE

    @property
    def fitted_events(self) -> Events:
        """The events to fit."""
        return self.data.train.events if self.events is None else self.events

    def validation_users(self, most: int = USERS) -> BeforeAfter:
        """Validation users with whole histories, and with times where they are a clock."""
        users = replace(self.data.val.sample(most), history=WHOLE_HISTORY)
        return users if users.events.clock is None else users.with_times()

    def acceptance(self, parts: SumScorer, contexts: Mapping[str, Sequence[str]] | None = None) -> Acceptance:
        """What decides on one more part of a sum, which may read these columns of contexts and their values."""
        users = self.validation_users()
        if values := contexts or parts.context_values:
            users = users.with_contexts(values)
        return Acceptance(self.tree, parts, users, self.first_level, self.device, processes=self.processes)


class Part(ABC):
    """One part of the score. A part has no state: what is fitted is its scorer, which the sum holds by the same name.

    A part from outside the package implements `fit`. The sum takes its scorer where validation users find more with it.
    """

    name: str

    def obstacle(self, data: Prepared) -> str | None:
        """What is missing to fit this part to a log, as text after "needs"; None where nothing is."""
        return None if len(data.val) else "validation users: prepare with `val_users`"

    def fit(self, fitting: Fitting) -> Scorer:
        """The scorer of this part, fitted to `fitting.fitted_events`."""
        raise NotImplementedError

    def add(self, parts: SumScorer, fitting: Fitting) -> SumScorer:
        """The sum with this part; the sum as it was where validation users do not find more with it."""
        acceptance = fitting.acceptance(parts)
        scorer = self.fit(fitting)
        return acceptance.result(self.name, scorer, acceptance.measure({self.name: scorer}))

    def refit(self, scorer: SumScorer, fitted: Mapping[str, Scorer], fitting: Fitting) -> Mapping[str, Scorer]:
        """What changes in a sum that is fitted to more events with the same weights, as scorers by name.

        Args:
            scorer: the sum as it was.
            fitted: the closed-form parts, fitted again.
            fitting: the events.
        """
        return {self.name: self.fit(fitting).to(fitting.tree.device)} if self.name in scorer.names else {}

    def report(self, scorer: Scorer) -> list[str]:
        """Lines about this part of a sum that was just fitted: what it brought, or why it was left out."""
        record = scorer.hyperparameters.get(self.name)
        if not isinstance(record, dict) or "users" not in record:
            return []
        gain, users = record.get("gain"), record["users"]
        if gain:
            percent = f"{100 * gain:.1f} %"
            return [f"The {self.name} part raises recall on {users:,} validation users by {percent} of what it was."]
        return [f"The {self.name} part was left out: {users:,} validation users do not find more with it."]


class FittedCandidates(NamedTuple):
    """What a closed-form part is weighed by, and the scorer that it becomes when the weights are known."""

    scorers: Mapping[str, Scorer]  # by the names of their weights; none where an earlier fit gave them no weight
    combine: Callable[[Mapping[str, Scorer]], Scorer | None]  # of the parts before it; None to leave this one out


NOTHING_FITTED = FittedCandidates({}, lambda others: None)


class ClosedFormPart(Part):
    """A part of the closed form: all of these are fitted first, and their weights are chosen together."""

    stages: ClassVar[Mapping[str, int]] = {}  # of its fit, and their shares of the time
    last_stages: ClassVar[Mapping[str, int]] = {}  # of its fit after the weights were chosen
    combined_last = False  # whether it needs all other parts when it is combined
    fades = False  # whether older events count less in it, whatever the half-life of the others is

    def obstacle(self, data: Prepared) -> str | None:
        return None

    @abstractmethod
    def fit_candidates(self, form: "ClosedForm") -> FittedCandidates:
        """What this part can be, before weights are chosen."""

    def refit(self, scorer: SumScorer, fitted: Mapping[str, Scorer], fitting: Fitting) -> Mapping[str, Scorer]:
        """Fitted again together with the others; a part whose weight was 0 was not saved."""
        return {self.name: fitted[self.name]} if self.name in fitted and self.name in scorer.names else {}

    def report(self, scorer: Scorer) -> list[str]:
        return []

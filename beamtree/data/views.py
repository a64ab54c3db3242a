"""Views of events as instances: a history x, and the items y that followed it and are to be predicted.

- `BeforeAfter`: one instance per user, cut at a fixed position. For validation and testing, and training as published.
- `RandomCrops`: a random part of a user's events, drawn at every read. For training.
- `SlidingWindows`: one target at a time, with the events before it. For methods with a single target.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.data.contexts import Values, value_numbers
from beamtree.data.csr import offsets_of
from beamtree.data.events import Events
from beamtree.data.ids import Ids
from beamtree.data.inputs import HISTORY, POOLING_WINDOWS, InputColumns, history_width
from beamtree.tree import PAD

MAX_HISTORY = 400  # most events before the cut
MIN_HISTORY = 5  # fewest events before the cut, unless the order is strong
MIN_TARGETS = 5  # fewest events after the cut
ORDERED, RECENT = 1.1, 2.0  # order strength from which a log has an order, and a strong one
FIRST_TARGET = 7  # a sliding window's first target is a user's eighth event


def window_matrix() -> Tensor:
    """1 where an event of the history belongs to a window [windows, HISTORY]."""
    window = [index for index, size in enumerate(POOLING_WINDOWS) for _ in range(size)]
    return torch.eye(len(POOLING_WINDOWS), device="cpu")[:, window]


def recency(power: float, length: int = HISTORY) -> Tensor:
    """Recency weights of the events of a history, newest first: (1 + t)^-power [length]."""
    return (1.0 + torch.arange(length, device="cpu")) ** -power


class View:
    """What all views of events have in common."""

    events: Events
    history: int

    @property
    def ids(self) -> Ids | None:
        return self.events.ids

    def __len__(self) -> int:
        return len(self.events)

    def item_numbers(self) -> Tensor:
        return self.events.item_numbers()

    def observations(self) -> Tensor:
        """One history: all have the same shape."""
        return BeforeAfter(self.events, history=self.history).batch(torch.arange(1))[0]


@dataclass(frozen=True)
class BeforeAfter(View):
    """Each user's events cut in two: x is the newest `history` before the cut, y everything after it."""

    events: Events
    cuts: Tensor | None = None  # number of events before the cut of each user [U]; None: half of them
    history: int = HISTORY  # events of x, at most
    context_values: Tensor | None = None  # numbers of the values of each context [N, columns], where x has them
    clock: bool = False  # whether x has times
    user_ids: Ids | None = None  # of these and other users; None where they are not known
    user_rows: Sequence[int] = ()  # where the users are in them
    varies = False

    def __repr__(self) -> str:
        events = int(self.events.offsets[-1] - self.events.offsets[0])
        where = "the first half is history" if self.cuts is None else "a cut for each user"
        return f"BeforeAfter({len(self):,} users, {events:,} events, {where})"

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """x, newest events first, and y [B, P], of some users, padded with PAD.

        The time of the request and its context are those of the first event that is to be predicted.
        """
        start, cut, stop = self._bounds(rows)
        width = self.history
        if width > HISTORY and len(rows):
            width = history_width(int((cut - start).max()), width)
        events = self.events
        index = events.index_before(start, cut, width)
        x, y = [events.before(start, cut, width)], events.targets(cut, stop)
        if self.columns != InputColumns():
            first = pad(events.target_index(cut, stop), (0, 1), value=PAD)[:, :1]
            if self.clock:
                x += [events.seconds(index), events.seconds(first)]
            if self.context_values is not None and events.contexts is not None:
                values = self.context_values[events.contexts.number[first[:, 0].clamp(min=0).cpu()].long()]
                x.append(values.to(first.device).masked_fill(first == PAD, PAD))
        return torch.cat(x, dim=1) if len(x) > 1 else x[0], y

    @property
    def columns(self) -> InputColumns:
        """Those of x."""
        return InputColumns(self.clock, 0 if self.context_values is None else self.context_values.shape[1])

    def with_contexts(self, values: Values) -> "BeforeAfter":
        """The same users with the contexts of what is to be predicted; the same where they are not known."""
        if self.events.contexts is None:
            return self
        return replace(self, context_values=value_numbers(values, self.events.contexts.contexts))

    def with_times(self) -> "BeforeAfter":
        """The same users with times, which are NO_TIME where they are no clock."""
        return replace(self, clock=True)

    def target_index(self, rows: Tensor) -> Tensor:
        """Where the targets y of some users are in the arrays of the events [B, P], padded with PAD."""
        _, cut, stop = self._bounds(rows)
        return self.events.target_index(cut, stop)

    def history_lengths(self, rows: Tensor) -> Tensor:
        """How many events each of some users has before the cut [B]."""
        start, cut, _ = self._bounds(rows)
        return cut - start

    def seen(self, rows: Tensor) -> Tensor:
        """All events before each user's cut [B, S], padded with PAD."""
        start, cut, _ = self._bounds(rows)
        return self.events.after(start, cut)

    def _bounds(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        offsets = self.events.offsets
        rows = rows.to(offsets.device)
        start, stop = offsets[rows], offsets[rows + 1]
        return start, start + ((stop - start) // 2 if self.cuts is None else self.cuts[rows]), stop

    def user_names(self) -> list[str] | None:
        """The ids of the users, in order; None where they are not known."""
        return None if self.user_ids is None else [self.user_ids.names[row] for row in self.user_rows]

    def fingerprint(self) -> str:
        if self.cuts is None:
            return f"{self.events.name} history={self.history}"
        digest = hashlib.sha256(self.cuts.cpu().numpy().tobytes()).hexdigest()[:16]
        return f"{self.events.name} history={self.history} cuts={digest}"

    def to(self, device: torch.device | str) -> "BeforeAfter":
        cuts = None if self.cuts is None else self.cuts.to(device)
        return replace(self, events=self.events.to(device), cuts=cuts)

    def sample(self, count: int) -> "BeforeAfter":
        """At most this many of the users, at even distances."""
        if len(self) <= count:
            return self
        rows = torch.linspace(0, len(self) - 1, count, device=self.events.offsets.device).long()
        events = self.events.of(rows, f"{self.events.name}, {count} users")
        user_rows = [self.user_rows[row] for row in rows.tolist()] if self.user_rows else ()
        cuts = None if self.cuts is None else self.cuts[rows]
        return replace(self, events=events, cuts=cuts, user_rows=user_rows)

    def random_crops(self) -> "RandomCrops":
        """The same users for training: different instances at every read."""
        return random_crops(self.events)

    def sliding_windows(self) -> "SlidingWindows":
        """The same users for training with a single target."""
        return SlidingWindows(self.events)


@dataclass(frozen=True)
class OtherUsers(BeforeAfter):
    """Users of another log: items that the model does not have are numbered from `num_items` on."""

    num_items: int = 0

    def item_numbers(self) -> Tensor:
        numbers = super().item_numbers()
        return numbers[numbers < self.num_items]


class KnownUsers(OtherUsers):
    """Users whom a model knows, with items of theirs that it was not fitted to, to be found from the others."""


def random_crops(
    events: Events, *, item_dropout: float = 0.1, targets: int = 100, max_history: int | None = MAX_HISTORY
) -> "RandomCrops":
    """Crops that fit the log: full histories if it has no order, and short ones from one event if it is strong.

    Users with a single event are left out.

    Args:
        events: the log.
        item_dropout: the share of a history that is left out at random.
        targets: items of y, at most.
        max_history: events before the cut, at most; None for full histories.
    """
    counts = events.counts()
    users = None if bool((counts > 1).all()) else (counts > 1).nonzero().squeeze(1)
    strength = events.order_strength if max_history is not None else 1.0
    if strength <= ORDERED:
        max_history = None
    min_history = 1 if strength > RECENT else MIN_HISTORY
    return RandomCrops(
        events,
        item_dropout=item_dropout,
        targets=targets,
        max_history=max_history,
        min_history=min_history,
        users=users,
    )


@dataclass(frozen=True)
class RandomCrops(View):
    """Every read draws a cut and a length, which limits events before and after it, and drops some of the history.

    The length is log-uniform, 5 to 10 events as often as 50 to 100, so that users with many events also train the model
    for short histories. `random_crops` chooses the lengths for a log.
    """

    events: Events
    history: int = HISTORY
    item_dropout: float = 0.1  # the share of a history that is left out at random
    targets: int = 100  # items of y, at most
    max_history: int | None = MAX_HISTORY  # events before the cut, at most; None: all events before and after it
    min_history: int = MIN_HISTORY  # events before the cut, at least
    users: Tensor | None = None  # rows of the events that are read [n]; all unless given
    varies = True

    def __len__(self) -> int:
        return len(self.events) if self.users is None else len(self.users)

    def __repr__(self) -> str:
        lengths = "full" if self.max_history is None else f"{self.min_history} to {self.max_history} events long"
        return f"RandomCrops({self.events!r}, {lengths})"

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """x [B, history] newest first, and y [B, P], of some users; without a generator they are cut in halves."""
        x, y = self.read(*self.drawn(rows, generator))
        if self.item_dropout and generator is not None:
            x = x.masked_fill(torch.rand(x.shape, generator=generator, device=x.device) < self.item_dropout, PAD)
        return x, y

    def drawn(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The start, cut and end of crops of some users [B] each."""
        offsets, rows = self.events.offsets, self._rows(rows)
        start, stop = offsets[rows], offsets[rows + 1]
        if generator is None:
            return start, start + (stop - start) // 2, stop
        # At least one event is history and not all are, unless there is only one.
        count = stop - start
        share = torch.rand(len(count), generator=generator, device=count.device)
        cut = start + 1 + (share * (count - 1)).long().clamp(max=count - 2)
        if self.max_history is not None:
            longest = (cut - start).clamp(max=self.max_history)
            shortest = longest.clamp(min=1, max=self.min_history)
            share = torch.rand(len(longest), generator=generator, device=longest.device)
            length = (shortest * (longest / shortest).pow(share)).long().minimum(longest)
            start, stop = cut - length, torch.minimum(stop, cut + length.clamp(min=MIN_TARGETS))
        return start, cut, stop

    def read(self, start: Tensor, cut: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
        """x and y of such crops, without dropping any of the history."""
        return self.events.before(start, cut, self.history), self.events.targets(cut, stop, self.targets)

    def _rows(self, rows: Tensor) -> Tensor:
        """The rows of the events behind some instances."""
        rows = rows.to(self.events.offsets.device)
        return rows if self.users is None else self.users[rows]

    def seen(self, rows: Tensor) -> Tensor:
        return BeforeAfter(self.events).seen(self._rows(rows))

    def fingerprint(self) -> str:
        # The words are those of 0.2, whose runs can be resumed.
        reach = self.max_history and f"{self.min_history}-{self.max_history}"
        drawn = f"forget={self.item_dropout} targets={self.targets} reach={reach}"
        return f"stretches of {self.events.name} history={self.history} {drawn}"

    def to(self, device: torch.device | str) -> "RandomCrops":
        users = None if self.users is None else self.users.to(device)
        return replace(self, events=self.events.to(device), users=users)


@dataclass(frozen=True)
class SlidingWindows(View):
    """A window that slides over every user's events: one target, and the `history` events before it."""

    events: Events
    history: int = HISTORY
    firsts: Tensor = field(init=False)  # the first window of each user, and the number of all [U + 1]
    varies = False

    def __post_init__(self) -> None:
        counts = (self.events.counts() - FIRST_TARGET).clamp(min=0)
        object.__setattr__(self, "firsts", offsets_of(counts))

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def __repr__(self) -> str:
        return f"SlidingWindows({len(self):,} over {self.events!r})"

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """x [B, history] and y [B, 1] of some windows."""
        start, target = self._bounds(rows)
        return self.events.before(start, target, self.history), self.events.after(target, target + 1)

    def seen(self, rows: Tensor) -> Tensor:
        return self.events.after(*self._bounds(rows))

    def _bounds(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = rows.to(self.firsts.device)
        user = torch.searchsorted(self.firsts, rows, right=True) - 1
        start = self.events.offsets[user]
        return start, start + FIRST_TARGET + rows - self.firsts[user]

    def fingerprint(self) -> str:
        return f"windows of {self.events.name} history={self.history}"

    def to(self, device: torch.device | str) -> "SlidingWindows":
        return replace(self, events=self.events.to(device))

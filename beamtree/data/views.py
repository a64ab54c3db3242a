"""How instances are read from events: a history x, and the items that followed it, y.

- `BeforeAfter`: one instance per user, cut at a fixed place. Validation and test read it, and training as published.
- `Stretches`: a stretch of a user's events drawn anew at every reading. Training reads it.
- `Windows`: one target at a time, with what came before it. Methods with a single target read it.
"""

import hashlib
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from beamtree.data.events import Events
from beamtree.data.ids import Ids
from beamtree.tree import PAD

WINDOWS = (1, 1, 1, 2, 2, 2, 10, 10, 20, 20)  # of the history, newest first: each is averaged (supplement C.3)
HISTORY = sum(WINDOWS)  # behaviours that a user is known by
REACH = 400  # events that a stretch looks back from its cut, at most
LEAST = 5  # events that it looks ahead at least, and back unless the newest event alone says much
ORDERED, RECENT = 1.1, 2.0  # order strength from which order says something, and the newest event alone says much
FIRST_TARGET = 7  # a sliding window's first target is a user's eighth event


def window_of_behaviour() -> Tensor:
    """1 where a behaviour belongs to a window [windows, HISTORY]."""
    window = [place for place, size in enumerate(WINDOWS) for _ in range(size)]
    return torch.eye(len(WINDOWS), device="cpu")[:, window]


def recency(power: float, length: int = HISTORY) -> Tensor:
    """What the events of a history count, newest first: (1 + t)^-power for the one t events ago [length]."""
    return (1.0 + torch.arange(length, device="cpu")) ** -power


class View:
    """What the ways of reading events have in common."""

    events: Events

    @property
    def ids(self) -> Ids | None:
        return self.events.ids

    def __len__(self) -> int:
        return len(self.events)

    def item_numbers(self) -> Tensor:
        return self.events.item_numbers()


@dataclass(frozen=True)
class BeforeAfter(View):
    """Each user's events cut in two: x is the newest `history` before the cut, y everything after it."""

    events: Events
    cuts: Tensor | None = None  # events before the cut of each user [U]; None: half of them
    history: int = HISTORY
    varies = False

    def __repr__(self) -> str:
        events = int(self.events.offsets[-1] - self.events.offsets[0])
        where = "the first half is history" if self.cuts is None else "each user cut at a place of its own"
        return f"BeforeAfter({len(self):,} users, {events:,} events, {where})"

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """x [B, history] newest first, and y [B, P], of some users; PAD where there are fewer."""
        start, cut, stop = self._places(rows)
        return self.events.before(start, cut, self.history), self.events.after(cut, stop)

    def seen(self, rows: Tensor) -> Tensor:
        """All events before each user's cut [B, S], PAD where there are fewer."""
        start, cut, _ = self._places(rows)
        return self.events.after(start, cut)

    def _places(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        offsets = self.events.offsets
        rows = rows.to(offsets.device)
        start, stop = offsets[rows], offsets[rows + 1]
        return start, start + ((stop - start) // 2 if self.cuts is None else self.cuts[rows]), stop

    def observations(self) -> Tensor:
        """One history is like another."""
        return self.batch(torch.arange(1))[0]

    def fingerprint(self) -> str:
        if self.cuts is None:
            return f"{self.events.name} history={self.history}"
        digest = hashlib.sha256(self.cuts.cpu().numpy().tobytes()).hexdigest()[:16]
        return f"{self.events.name} history={self.history} cuts={digest}"

    def to(self, device: torch.device | str) -> "BeforeAfter":
        cuts = None if self.cuts is None else self.cuts.to(device)
        return replace(self, events=self.events.to(device), cuts=cuts)

    def few(self, most: int) -> "BeforeAfter":
        """At most so many of these users, evenly spread: to ask often."""
        if len(self) <= most:
            return self
        rows = torch.linspace(0, len(self) - 1, most, device=self.events.offsets.device).long()
        events = self.events.of(rows, f"{self.events.name}, {most} users")
        return replace(self, events=events, cuts=None if self.cuts is None else self.cuts[rows])

    def stretches(self) -> "Stretches":
        """The same users for training: other instances at every reading."""
        return stretches(self.events)

    def windows(self) -> "Windows":
        """The same users for training with a single target."""
        return Windows(self.events)


@dataclass(frozen=True)
class OtherUsers(BeforeAfter):
    """Users of another log: items that the model does not know have numbers from `num_items` on, and are not found."""

    num_items: int = 0

    def item_numbers(self) -> Tensor:
        numbers = super().item_numbers()
        return numbers[numbers < self.num_items]


def stretches(events: Events, *, forget: float = 0.1, targets: int = 100, reach: int | None = REACH) -> "Stretches":
    """Stretches that fit the log: whole pasts where order says nothing, shortest from one event where it says much.

    Users of one event have no stretch: nothing comes before it, or nothing after.
    """
    counts = events.counts()
    users = None if bool((counts > 1).all()) else (counts > 1).nonzero().squeeze(1)
    strength = events.order_strength if reach is not None else 1.0
    if strength <= ORDERED:
        reach = None
    least = 1 if strength > RECENT else LEAST
    return Stretches(events, forget=forget, targets=targets, reach=reach, least=least, users=users)


@dataclass(frozen=True)
class Stretches(View):
    """Every reading draws a cut, how far to look back from it and as far ahead, and forgets some of the history.

    The way back is log-uniform, 5 to 10 events as often as 50 to 100, so that users of many events also teach what one
    of few will do next. `stretches` chooses the lengths for a log.
    """

    events: Events
    history: int = HISTORY
    forget: float = 0.1  # this share of a history is left out at random
    targets: int = 100  # that follow, at most
    reach: int | None = REACH  # how far back it looks at most; None: to the first event, and ahead to the last
    least: int = LEAST  # and how far at least
    users: Tensor | None = None  # whose events are read, by row [n]; everybody's unless given
    varies = True

    def __len__(self) -> int:
        return len(self.events) if self.users is None else len(self.users)

    def __repr__(self) -> str:
        how = "whole" if self.reach is None else f"{self.least} to {self.reach} events long"
        return f"Stretches({self.events!r}, {how})"

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """x [B, history] newest first, and y [B, P], of some users; without randomness they are cut in halves."""
        x, y = self.read(*self.drawn(rows, generator))
        if self.forget and generator is not None:
            x = x.masked_fill(torch.rand(x.shape, generator=generator, device=x.device) < self.forget, PAD)
        return x, y

    def drawn(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Where the stretches of some users begin, are cut and end [B] each."""
        offsets, rows = self.events.offsets, self._rows(rows)
        start, stop = offsets[rows], offsets[rows + 1]
        if generator is None:
            return start, start + (stop - start) // 2, stop
        cut = start + _draw_cut(stop - start, generator)
        if self.reach is not None:
            back = self._draw_length(cut - start, generator)
            start, stop = cut - back, torch.minimum(stop, cut + back.clamp(min=LEAST))
        return start, cut, stop

    def read(self, start: Tensor, cut: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
        """x and y of such stretches, whole."""
        return self.events.before(start, cut, self.history), self.events.after(cut, stop, self.targets)

    def _draw_length(self, most: Tensor, generator: torch.Generator) -> Tensor:
        """How many of `most` events to look back: log-uniform."""
        share = torch.rand(len(most), generator=generator, device=most.device)
        most = most.clamp(max=self.reach)
        least = most.clamp(min=1, max=self.least)
        return (least * (most / least).pow(share)).long().minimum(most)

    def _rows(self, rows: Tensor) -> Tensor:
        """The rows of the events behind some instances."""
        rows = rows.to(self.events.offsets.device)
        return rows if self.users is None else self.users[rows]

    def seen(self, rows: Tensor) -> Tensor:
        return BeforeAfter(self.events).seen(self._rows(rows))

    def observations(self) -> Tensor:
        return BeforeAfter(self.events, history=self.history).observations()

    def fingerprint(self) -> str:
        reach = self.reach and f"{self.least}-{self.reach}"
        drawn = f"forget={self.forget} targets={self.targets} reach={reach}"
        return f"stretches of {self.events.name} history={self.history} {drawn}"

    def to(self, device: torch.device | str) -> "Stretches":
        users = None if self.users is None else self.users.to(device)
        return replace(self, events=self.events.to(device), users=users)


def _draw_cut(count: Tensor, generator: torch.Generator) -> Tensor:
    """How many of `count` events are history: at least one and not all, unless there is only one."""
    share = torch.rand(len(count), generator=generator, device=count.device)
    return 1 + (share * (count - 1)).long().clamp(max=count - 2)


@dataclass(frozen=True)
class Windows(View):
    """A window that slides over every user's events: one target, and the `history` events before it."""

    events: Events
    history: int = HISTORY
    firsts: Tensor = field(init=False)  # the first window of each user, and the number of all [U + 1]
    varies = False

    def __post_init__(self) -> None:
        counts = (self.events.counts() - FIRST_TARGET).clamp(min=0)
        object.__setattr__(self, "firsts", torch.nn.functional.pad(counts.cumsum(0), (1, 0)))

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def __repr__(self) -> str:
        return f"Windows({len(self):,} over {self.events!r})"

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """x [B, history] and y [B, 1] of some windows."""
        start, target = self._places(rows)
        return self.events.before(start, target, self.history), self.events.after(target, target + 1)

    def seen(self, rows: Tensor) -> Tensor:
        return self.events.after(*self._places(rows))

    def _places(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = rows.to(self.firsts.device)
        user = torch.searchsorted(self.firsts, rows, right=True) - 1
        start = self.events.offsets[user]
        return start, start + FIRST_TARGET + rows - self.firsts[user]

    def observations(self) -> Tensor:
        return BeforeAfter(self.events, history=self.history).observations()

    def fingerprint(self) -> str:
        return f"windows of {self.events.name} history={self.history}"

    def to(self, device: torch.device | str) -> "Windows":
        return replace(self, events=self.events.to(device))

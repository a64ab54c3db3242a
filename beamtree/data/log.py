"""Users' events as training and testing read them: a history x and the items that followed it, y."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from beamtree.tree import PAD

WINDOWS = (1, 1, 1, 2, 2, 2, 10, 10, 20, 20)  # of the history, newest first: each is averaged (supplement C.3)
HISTORY = sum(WINDOWS)  # behaviours that a user is known by
REACH = 400  # events that a drawn instance looks back from its split point, at most
LEAST = 5  # events that it looks ahead, at least, where there are so many; and back, unless the past fades fast
APART, ASKED = 10, 1 << 22  # how `fading` asks: events so far apart, of so many events
ORDERED, FADING = 1.1, 2.0  # the order of a log says something from here on; the last event alone says much
FIRST_TARGET = 7  # a sliding window's first target is a user's eighth event


def window_of_behaviour() -> Tensor:
    """1 where a behaviour belongs to a window [windows, HISTORY]."""
    window = [place for place, size in enumerate(WINDOWS) for _ in range(size)]
    return torch.eye(len(WINDOWS), device="cpu")[:, window]


@dataclass(frozen=True)
class Log:
    """Every user's events, oldest first; row u of the log is events offsets[u] … offsets[u + 1].

    A row is one instance: x is the newest `history` events before a split point, y the events from there on. The split
    is each user's half. A log that is `drawn` gives other instances of the same users every time.
    """

    offsets: Tensor  # int64 [U + 1]
    events: Tensor  # int32 or int64 item numbers [E]; may be mapped from a file
    name: str  # tells these very events from any others
    history: int = HISTORY
    random: bool = False  # whether split points are drawn
    forget: float = 0.0  # this share of a history is left out at random
    targets: int | None = None  # at most so many events follow
    reach: int | None = None  # how far back a drawn instance looks at most; None: to the first event, and to the last
    least: int = 1  # and how far at least

    def drawn(self, *, forget: float = 0.1, targets: int = 100, reach: int | None = REACH) -> "Log":
        """The same users for training: every reading draws a split point and forgets some of the history.

        Where the order of events says something, it also draws how far it looks back from there, up to `reach` events,
        5 to 10 as often as 50 to 100, and looks as far ahead. So users of many events also teach what one of few will
        do next. The shortest way back is one event where the past fades fast, and five otherwise.
        """
        fading = self.fading() if reach is not None else 1.0
        if fading <= ORDERED:
            reach = None
        least = 1 if fading > FADING else LEAST
        return replace(self, random=True, forget=forget, targets=targets, reach=reach, least=least)

    def fading(self) -> float:
        """How many times as often as two items ten events apart two neighbours are a pair that occurs again.

        In a log without order it is 1; so it is where no user has enough events to tell.
        """
        users = int(torch.searchsorted(self.offsets, self.offsets[0] + ASKED))
        user = torch.repeat_interleave(self.offsets[: users + 1].diff())
        items = self.item_numbers()[: len(user)].long()
        place = (user[APART:] == user[:-APART]).nonzero().squeeze(1)
        near, far = (_repeats(items[place], items[place + apart]) for apart in (1, APART))
        return near / max(far, 1e-9) if near else 1.0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """x [B, history] newest first, and y [B, P], of some users; PAD where there are fewer."""
        rows = rows.to(self.offsets.device)
        start, stop = self.offsets[rows], self.offsets[rows + 1]
        split = start + self._first_part(stop - start, generator)
        if generator is not None and self.random and self.reach is not None:
            back = self._far(split - start, generator)
            start, stop = split - back, torch.minimum(stop, split + back.clamp(min=LEAST))
        x, y = self._before(start, split), self._from(split, stop, self.targets)
        if generator is not None and self.forget:
            x = x.masked_fill(torch.rand(x.shape, generator=generator, device=x.device) < self.forget, PAD)
        return x, y

    def _first_part(self, count: Tensor, generator: torch.Generator | None) -> Tensor:
        """How many of `count` events are history: at least one and not all, unless there is only one."""
        if not self.random or generator is None:
            return count // 2
        share = torch.rand(len(count), generator=generator, device=count.device)
        return 1 + (share * (count - 1)).long().clamp(max=count - 2)

    def _far(self, most: Tensor, generator: torch.Generator) -> Tensor:
        """How many of `most` events to look back: log-uniform."""
        share = torch.rand(len(most), generator=generator, device=most.device)
        most = most.clamp(max=self.reach)
        least = most.clamp(min=1, max=self.least)
        return (least * (most / least).pow(share)).long().minimum(most)

    def _before(self, start: Tensor, split: Tensor) -> Tensor:
        place = split.unsqueeze(1) - 1 - torch.arange(self.history, device=split.device)
        return self._read(place, place >= start.unsqueeze(1))

    def _from(self, split: Tensor, stop: Tensor, most: int | None = None) -> Tensor:
        """The first `most` events from split to stop; on a GPU as wide as that, so as not to wait for its answer."""
        if most is None or not split.is_cuda:
            most = min(int((stop - split).max()), most or len(self.events))
        place = split.unsqueeze(1) + torch.arange(most, device=split.device)
        return self._read(place, place < stop.unsqueeze(1))

    def _read(self, place: Tensor, real: Tensor) -> Tensor:
        return torch.where(real, self.events[torch.where(real, place, 0)].long(), PAD)

    def observations(self) -> Tensor:
        """What a scorer should look at before it is trained on these instances: one history is like another."""
        return self.batch(torch.arange(1))[0]

    def item_numbers(self) -> Tensor:
        """Every item that occurs, in any shape."""
        return self.events[int(self.offsets[0]) : int(self.offsets[-1])]

    def past(self, rows: Tensor) -> Tensor:
        """All events before each user's half [B, S], PAD where there are fewer."""
        rows = rows.to(self.offsets.device)
        start, stop = self.offsets[rows], self.offsets[rows + 1]
        return self._from(start, start + self._first_part(stop - start, None))

    def popularity(self, num_items: int) -> Tensor:
        """How many events each item has [M]."""
        return torch.bincount(self.item_numbers(), minlength=num_items)

    def windows(self) -> "Windows":
        """The same events as single-target instances."""
        return Windows(self)

    def fingerprint(self) -> str:
        if not self.random:
            return f"{self.name} history={self.history}"
        reach = self.reach and f"{self.least}-{self.reach}"
        return f"{self.name} history={self.history} random forget={self.forget} targets={self.targets} reach={reach}"

    def to(self, device: torch.device | str) -> "Log":
        return replace(self, offsets=self.offsets.to(device), events=self.events.to(device))


def _repeats(first: Tensor, second: Tensor) -> float:
    """The share of pairs that occurred before; an item is no pair with itself."""
    if not len(first):
        return 0.0
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    pair = (low * (high.max() + 1) + high)[low != high]
    return 1 - len(torch.unique(pair)) / max(1, len(pair))


@dataclass(frozen=True)
class Windows:
    """A window that slides over every user's events: one target, and the `history` events before it."""

    log: Log
    firsts: Tensor = field(init=False)  # the first window of each user, and the number of all [U + 1]

    def __post_init__(self) -> None:
        counts = (self.log.offsets.diff() - FIRST_TARGET).clamp(min=0)
        object.__setattr__(self, "firsts", torch.nn.functional.pad(counts.cumsum(0), (1, 0)))

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """x [B, history] and y [B, 1] of some windows."""
        rows = rows.to(self.firsts.device)
        user = torch.searchsorted(self.firsts, rows, right=True) - 1
        start = self.log.offsets[user]
        target = start + FIRST_TARGET + rows - self.firsts[user]
        return self.log._before(start, target), self.log._from(target, target + 1)

    def observations(self) -> Tensor:
        return self.log.observations()

    def item_numbers(self) -> Tensor:
        return self.log.item_numbers()

    def fingerprint(self) -> str:
        return f"windows of {self.log.fingerprint()}"

    def to(self, device: torch.device | str) -> "Windows":
        return Windows(self.log.to(device))

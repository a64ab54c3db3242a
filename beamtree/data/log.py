"""Users' events as training and testing read them: a history x and the items that followed it, y."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from beamtree.tree import PAD

HISTORY = 69  # behaviours that a user is known by
FIRST_TARGET = 7  # a sliding window's first target is a user's eighth event


@dataclass(frozen=True)
class Log:
    """Every user's events, oldest first; row u of the log is events offsets[u] … offsets[u + 1].

    A row is one instance: x is the newest `history` events before a split point, y all events from there on. The split
    is each user's half, or, with `random_split`, drawn anew whenever a batch is.
    """

    offsets: Tensor  # int64 [U + 1]
    events: Tensor  # int32 or int64 item numbers [E]; may be mapped from a file
    name: str  # tells these very events from any others
    history: int = HISTORY
    random_split: bool = False

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """x [B, history] newest first, and y [B, P], of some users; PAD where there are fewer."""
        rows = rows.to(self.offsets.device)
        start, stop = self.offsets[rows], self.offsets[rows + 1]
        split = start + self._first_part(stop - start, generator)
        return self._before(start, split), self._from(split, stop)

    def _first_part(self, count: Tensor, generator: torch.Generator | None) -> Tensor:
        """How many of `count` events are history: at least one, and one is left."""
        if not self.random_split or generator is None:
            return (count // 2).clamp(min=1)
        share = torch.rand(len(count), generator=generator, device=count.device)
        return 1 + (share * (count - 1)).long().clamp(max=count - 2)

    def _before(self, start: Tensor, split: Tensor) -> Tensor:
        place = split.unsqueeze(1) - 1 - torch.arange(self.history, device=split.device)
        return self._read(place, place >= start.unsqueeze(1))

    def _from(self, split: Tensor, stop: Tensor) -> Tensor:
        width = int((stop - split).max())
        place = split.unsqueeze(1) + torch.arange(width, device=split.device)
        return self._read(place, place < stop.unsqueeze(1))

    def _read(self, place: Tensor, real: Tensor) -> Tensor:
        return torch.where(real, self.events[torch.where(real, place, 0)].long(), PAD)

    def popularity(self, num_items: int) -> Tensor:
        """How many events each item has [M]."""
        span = self.events[int(self.offsets[0]) : int(self.offsets[-1])]
        return torch.bincount(span, minlength=num_items)

    def windows(self) -> "Windows":
        """The same events as single-target instances."""
        return Windows(self)

    def fingerprint(self) -> str:
        return f"{self.name} history={self.history} random_split={self.random_split}"

    def to(self, device: torch.device | str) -> "Log":
        return replace(self, offsets=self.offsets.to(device), events=self.events.to(device))


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

    def fingerprint(self) -> str:
        return f"windows of {self.log.fingerprint()}"

    def to(self, device: torch.device | str) -> "Windows":
        return Windows(self.log.to(device))

"""Events: which users chose which items, in which order. How instances are read from them is in `views`."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from beamtree.data.contexts import EventContexts
from beamtree.data.csr import entries_of_rows
from beamtree.data.ids import Ids
from beamtree.tree import PAD

FAR_GAP = 10  # events between the distant pairs of `order_strength`
MAX_EVENTS = 1 << 22  # that `order_strength` reads


@dataclass(frozen=True)
class Events:
    """Every user's events, oldest first: those of user u are items[offsets[u]] … items[offsets[u + 1] - 1]."""

    offsets: Tensor  # int64 [U + 1]
    items: Tensor  # int32 or int64 item numbers [E]; may be mapped from a file
    name: str  # identifies these events
    ids: Ids | None = None  # of the items
    weights: Tensor | None = None  # of the events, float32 [E], below 0 if one is not to be predicted; None: all 1
    times: Tensor | None = None  # of the events, int64 [E], always on the CPU; None where they are not known
    contexts: EventContexts | None = None  # of the events; None where they are not known
    clock: int | None = None  # units of `times` per second; None where they are only an order

    def __len__(self) -> int:
        """How many users there are."""
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"Events({int(self.offsets[-1] - self.offsets[0]):,} of {len(self):,} users)"

    def counts(self) -> Tensor:
        """How many events each user has [U]."""
        return self.offsets.diff()

    def span(self) -> slice:
        """Where the events of these users are in `items`, `weights` and `times`."""
        return slice(int(self.offsets[0]), int(self.offsets[-1]))

    def item_numbers(self) -> Tensor:
        """The item of every event, user by user [E]."""
        return self.items[self.span()]

    def own_weights(self) -> Tensor | None:
        """The weight of every event, user by user [E]; None where all are 1."""
        return None if self.weights is None else self.weights[self.span()]

    def confidence(self) -> Tensor | None:
        """The same, above 0 also for events that are not to be predicted."""
        weights = self.own_weights()
        return None if weights is None else weights.abs()

    def of(self, users: Tensor, name: str) -> "Events":
        """The events of some users, in their order."""
        _, index = entries_of_rows(self.offsets, users)
        ends = (self.offsets[users + 1] - self.offsets[users]).cumsum(0)
        weights = None if self.weights is None else self.weights[index]
        times = None if self.times is None else self.times[index.cpu()]
        contexts = None if self.contexts is None else self.contexts.of(index.cpu())
        offsets, items = torch.nn.functional.pad(ends, (1, 0)), self.items[index]
        return replace(self, offsets=offsets, items=items, name=name, weights=weights, times=times, contexts=contexts)

    def popularity(self, num_items: int) -> Tensor:
        """How many events each item has [M]."""
        return torch.bincount(self.item_numbers(), minlength=num_items)

    @cached_property
    def order_strength(self) -> float:
        """Order strength: how much more often neighbours repeat as a pair than items ten events apart.

        It is 1 in a log without order, and where no user has enough events to tell.
        """
        (near, pairs), (far, far_pairs) = self.repeats
        return (near / pairs) / max(far / far_pairs, 1e-9) if near else 1.0

    @cached_property
    def repeats(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """How many pairs of neighbours occurred before, and of items ten events apart; each with how many there are."""
        users = int(torch.searchsorted(self.offsets, self.offsets[0] + MAX_EVENTS))
        user = torch.repeat_interleave(self.offsets[: users + 1].diff())
        items = self.item_numbers()[: len(user)].long()
        first = (user[FAR_GAP:] == user[:-FAR_GAP]).nonzero().squeeze(1)
        near, far = (_repeats(items[first], items[first + gap]) for gap in (1, FAR_GAP))
        return near, far

    def seconds(self, index: Tensor) -> Tensor:
        """The times of events by their index, in seconds since 1970; PAD for PAD, and where there is no clock."""
        if self.times is None or self.clock is None:
            return torch.full_like(index, PAD)
        seconds = self.times[index.cpu().clamp(min=0)] // self.clock
        return torch.where(index == PAD, PAD, seconds.to(index.device))

    def span_of_time(self) -> int:
        """The seconds from the oldest to the newest of these events; 0 where there is no clock."""
        times = None if self.times is None else self.times[self.span()]
        if times is None or self.clock is None or not len(times):
            return 0
        return int(times.max() - times.min()) // self.clock

    def decayed(self, half_life: float) -> "Events":
        """The same events with weights times 2^(-age / half_life), in seconds before the newest of them; 1 on average.

        So penalties mean the same as without. The sign of a weight stays: it says what is to be predicted.
        """
        span = self.span()
        assert self.times is not None
        assert self.clock is not None
        age = (self.times[span].max() - self.times).double() / self.clock
        weights = torch.exp2(-age / half_life).float().to(self.items.device)
        weights = weights if self.weights is None else weights * self.weights
        return replace(self, weights=weights / weights[span].abs().mean())

    def starts(self, num_items: int) -> Tensor:
        """The time of the first event of each item in the log that these users are from, in seconds; NO_TIME for none.

        Items with higher numbers than those of the model are left out [M].
        """
        result = torch.full((num_items,), torch.iinfo(torch.int64).max)
        if self.times is not None and self.clock is not None:
            items = self.items.cpu().long()
            known = items < num_items
            if not bool(known.all()):
                items = items[known]
            seconds = self.times if len(items) == len(self.times) else self.times[known]
            result.scatter_reduce_(0, items, seconds // self.clock, "amin")
        return result.masked_fill_(result == torch.iinfo(torch.int64).max, PAD)

    def before(self, start: Tensor, cut: Tensor, length: int) -> Tensor:
        """The newest `length` events from start [B] up to cut [B], newest first [B, length], padded with PAD."""
        index = self.index_before(start, cut, length)
        return self._read(index, index != PAD)

    def index_before(self, start: Tensor, cut: Tensor, length: int) -> Tensor:
        """Where these are in `items`, `weights` and `times` [B, length], padded with PAD."""
        index = cut.unsqueeze(1) - 1 - torch.arange(length, device=cut.device)
        return index.masked_fill(index < start.unsqueeze(1), PAD)

    def after(self, start: Tensor, stop: Tensor, most: int | None = None) -> Tensor:
        """The first `most` events from start to stop [B], oldest first, padded with PAD.

        On a GPU the result is always `most` wide, which saves a synchronization.
        """
        index = self._range(start, stop, most)
        return self._read(index, index < stop.unsqueeze(1))

    def targets(self, start: Tensor, stop: Tensor, most: int | None = None) -> Tensor:
        """Those of the first `most` events from start to stop [B] that are to be predicted, as `after` returns them."""
        if self.weights is None:
            return self.after(start, stop, most)
        index = self.target_index(start, stop, most)
        return self._read(index, index != PAD)

    def target_index(self, start: Tensor, stop: Tensor, most: int | None = None) -> Tensor:
        """Where these are in `items`, `weights` and `times` [B, P], padded with PAD."""
        index = self._range(start, stop, most)
        index = index.masked_fill((index >= stop.unsqueeze(1)) | ~self.is_target(index), PAD)
        return index.gather(1, (index == PAD).int().argsort(dim=1, stable=True))

    def is_target(self, index: Tensor) -> Tensor:
        """Which events are to be predicted, by their index; any value for an index past the end."""
        if self.weights is None:
            return torch.ones_like(index, dtype=torch.bool)
        return self.weights[index.clamp(max=len(self.weights) - 1)] > 0

    def _range(self, start: Tensor, stop: Tensor, most: int | None) -> Tensor:
        """The indices from start on, as many as the longest row needs [B, P]."""
        if most is None or not start.is_cuda:
            most = min(int((stop - start).max()), most or len(self.items))
        return start.unsqueeze(1) + torch.arange(most, device=start.device)

    def _read(self, index: Tensor, real: Tensor) -> Tensor:
        return torch.where(real, self.items[torch.where(real, index, 0)].long(), PAD)

    def to(self, device: torch.device | str) -> "Events":
        weights = None if self.weights is None else self.weights.to(device)
        return replace(self, offsets=self.offsets.to(device), items=self.items.to(device), weights=weights)


def _repeats(first: Tensor, second: Tensor) -> tuple[int, int]:
    """How many pairs occurred before, of how many, at least 1; an item is no pair with itself."""
    if not len(first):
        return 0, 1
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    pair = (low * (high.max() + 1) + high)[low != high]
    return len(pair) - len(torch.unique(pair)), max(1, len(pair))

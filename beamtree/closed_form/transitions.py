"""Rules: what comes next, counted in pairs of events that are near each other."""

from collections.abc import Iterator

import torch
from torch import Tensor

from beamtree.closed_form.cooccurrence import sum_pairs
from beamtree.closed_form.partners import PARTNERS, Partners, dealt_partners, strongest
from beamtree.data.events import Events
from beamtree.distributed.exchange import dealt
from beamtree.distributed.group import ranks
from beamtree.threads import one_thread

WINDOW = 10  # events that a pair is apart at most
BACKWARD = 0.3  # what a pair counts the other way round
POPULAR = 0.3  # the power of an item's events that its rules are divided by


@one_thread()
def next_partners(
    events: Events,
    num_items: int,
    *,
    window: int = WINDOW,
    backward: float = BACKWARD,
    popular: float = POPULAR,
    most: int = PARTNERS,
) -> Partners:
    """For each item those that follow it: 1/gap for each pair, less backward, divided by popularity^0.3.

    Args:
        events: of the training users.
        num_items: M.
        window: how many events apart two of a pair are at most.
        backward: what a pair counts the other way round.
        popular: the power of popularity that divides.
        most: partners of an item.
    """
    events = events.own()
    found = sum_pairs(_near(events, window, backward), num_items, events.offsets.device)
    popularity = ranks().sum_(events.popularity(num_items))
    place, column, value = found.rows(dealt(num_items, events.offsets.device))
    weight = value / popularity.clamp(min=1)[column] ** popular
    own = strongest(place, column, weight, len(dealt(num_items)), most)
    return dealt_partners(own, num_items)


def _near(events: Events, window: int, backward: float) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    user, items = torch.repeat_interleave(events.counts()), events.item_numbers().long()
    for gap in range(1, window + 1):
        same = (user[gap:] == user[:-gap]).nonzero().squeeze(1)
        first, second = items[same], items[same + gap]
        yield first, second, torch.full((len(same),), 1 / gap, device=items.device)
        if backward:
            yield second, first, torch.full((len(same),), backward / gap, device=items.device)

"""A new item learned from histories of users who chose it: a ridge regression against histories of anybody.

What the regression reads are the events of a history, recent ones counting more, and the user's factors. It tells the
item's users from others; how loudly it may speak is set so that anybody would be shown the item about as often as an
item that is as popular as this one will be, by what `Renown` makes of the histories.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from beamtree.answers.answer import as_users
from beamtree.beam import walk
from beamtree.data import HISTORY, Prepared
from beamtree.live.likeness import NEAREST, Likeness
from beamtree.live.memory import FADING, SOURCES
from beamtree.live.popularity_prior import Renown
from beamtree.model import TreeModel
from beamtree.scorers import FactorScorer, SumScorer
from beamtree.tree import PAD

ANYBODY = 2000  # histories of anybody
SHOWN = 100  # items that somebody is shown, where it is counted how often
OFTEN = 1.3  # times as often as an item on average that is as popular
RIDGE = 0.1, 1.0  # λ of events and of factors, both scaled to a spread of 1 and shared by their number
BEAM, TOGETHER, QUIET = 200, 200, 0.05


class Anybody:
    """Histories of anybody, cut at random places, and what they would have to be outbid by."""

    def __init__(self, model: TreeModel, data: Prepared, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        events = data.train.events
        users = torch.randperm(len(events), generator=generator)[:ANYBODY]
        start, stop = events.offsets[users], events.offsets[users + 1]
        cut = start + 1 + (torch.rand(len(users), generator=generator) * (stop - start - 1)).long()
        self.x = events.before(start, cut, HISTORY).to(model.tree.device)
        self.shown = min(SHOWN, max(1, model.tree.num_placed // 10))
        with torch.no_grad():
            parts = self.x.split(TOGETHER)
            self.lowest = torch.cat([_lowest(model, part, self.shown) for part in parts]).cpu()
            self.users = torch.cat([_factors(model, part) for part in parts])
        self.x = self.x.cpu()
        self.renown = Renown(events, model.tree.num_items, generator)


def _lowest(model: TreeModel, x: Tensor, shown: int) -> Tensor:
    """The score of the last item that each would be shown [B]."""
    *_, last = walk(model.query(x), max(BEAM, shown), choices=not model.chained)
    return last.rank.topk(min(shown, last.rank.shape[1])).values[:, -1]


def _factors(model: TreeModel, x: Tensor) -> Tensor:
    """The factors of users [B, dim], 0 wide where the model has none that count."""
    part = factors_of(model)
    return torch.empty(len(x), 0) if part is None else part.context(model.tree, x).user.cpu()


def factors_of(model: TreeModel) -> FactorScorer | None:
    """The factors of a sum, if they count."""
    scorer = model.scorer
    if not isinstance(scorer, SumScorer) or "factors" not in scorer.names or not scorer.weight_of("factors"):
        return None
    part = scorer.part("factors")
    assert isinstance(part, FactorScorer)
    return part


@torch.no_grad()
def learned(model: TreeModel, histories: Sequence[Sequence[int]], anybody: Anybody) -> Likeness:
    """What an item is like that users with these histories chose: who speaks for it, and its factors."""
    x = as_users(histories)
    items = torch.unique(x[x != PAD])
    users = torch.cat([_factors(model, x.to(model.tree.device)), anybody.users])
    events = torch.cat([_events(x, items), _events(anybody.x, items)])
    scale = torch.cat([events[len(x) :].std(0) + QUIET, users[len(x) :].std(0) + 1e-3])
    count = torch.cat([torch.full((len(items),), float(len(items))), torch.full((users.shape[1],), users.shape[1])])
    scale = scale * count.sqrt()
    read = torch.cat([events, users], dim=1) / scale
    weights = _regressed(read, len(x), len(items))
    said = read[len(x) :] @ weights
    loud = (anybody.lowest / said.clamp(min=1e-6)).sort().values
    often = OFTEN * anybody.renown.times(x)
    place = int(often * anybody.shown / model.tree.num_placed * len(loud))
    weights = weights / scale * loud[min(place, len(loud) - 1)].clamp(min=0)
    of_events, of_factors = weights[: len(items)], weights[len(items) :]
    near, strong = (of_events.topk(min(most, len(items))).indices for most in (NEAREST, SOURCES))
    found = Likeness(items[near], torch.full((len(near),), 1 / len(near)), items[strong], of_events[strong])
    if not users.shape[1]:
        return found
    scorer = model.scorer
    assert isinstance(scorer, SumScorer)
    return found._replace(factors=of_factors / scorer.weight_of("factors"))


def _events(x: Tensor, items: Tensor) -> Tensor:
    """How much of some items, in rising order, each history has [B, n]."""
    place = torch.searchsorted(items, x).clamp(max=len(items) - 1)
    real = (items[place] == x) & (x != PAD)
    found = torch.zeros(len(x), len(items))
    row = torch.arange(len(x)).unsqueeze(1).expand_as(x)
    return found.index_put_((row[real], place[real]), FADING[: x.shape[1]].expand_as(x)[real], accumulate=True)


def _regressed(read: Tensor, count: int, events: int) -> Tensor:
    """The ridge regression of 1 for the first `count` rows and 0 for the others, both halves counting the same."""
    centred = read - read[count:].mean(0)
    weight = torch.cat([torch.full((count,), 1 / count), torch.full((len(read) - count,), 1 / (len(read) - count))])
    system = (centred * weight.unsqueeze(1)).T @ centred
    ridge = torch.full((read.shape[1],), RIDGE[1])
    ridge[:events] = RIDGE[0]
    found: Tensor = torch.linalg.solve(system + torch.diag(ridge), centred[:count].mean(0))
    return found

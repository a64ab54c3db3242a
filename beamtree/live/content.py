"""Placement of new items by what they are: the columns of the table of items, such as title, category and price.

A new item is like the items with the most similar features, and its partners and factors are weighted means of theirs.
Averaging shrinks the scores, so they are rescaled: the item is shown about as often as an item of the popularity that a
ridge regression expects from its features.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from beamtree.closed_form.content import FeatureMatrix
from beamtree.data.catalogue import Catalogue
from beamtree.data.csr import CSR
from beamtree.kernels import sparse
from beamtree.live.edits import incoming, mean_partners
from beamtree.live.placement import EXPOSURE_RATIO, RECENCY, BackgroundUsers, Placement
from beamtree.model import TreeModel
from beamtree.parts.content import KnownItems

CANDIDATES = 100  # items with the most similar features, of which the similar ones are chosen
NEAREST = 10  # similar items of a new one
FACTOR_SIMILARITY_WEIGHT = 3.0  # how much more than the features the factors say about which items are similar
FACTOR_SIMILARITY_DIM = 48  # directions of the factors that are predicted, at most
POWER = 6  # similar items count by their similarity to this power
CONFIDENT = 100  # events from which on all items count the same in the regression of factors
MAX_SOURCES = 40  # incoming partners of a new item: with more, its scores differ less between users
EXPOSURE_RATIOS = EXPOSURE_RATIO, 2.0  # at most; the second is that of being among the first
PREFERENCE = 1.5  # power of the expected popularity: places pay more where it is high
PENALTY = 3.0  # λ of the regressions on features
MOST_POPULAR = 10.0  # an item is expected to be at most this much more popular than the average
MOST_SCALED = 20.0  # and means of partners and factors are multiplied by at most this
AT_ONCE = 256  # new items that are scored for the background users together


class Content:
    """The features of the items of a catalogue, for placing new ones.

    Args:
        catalogue: with a table of the items.
        model: of these items.
    """

    def __init__(self, catalogue: Catalogue, model: TreeModel) -> None:
        tree = model.tree
        self._known = KnownItems(catalogue, tree)
        self._items = self._known.items
        events = torch.zeros(tree.num_items) if model.popularity is None else model.popularity.cpu().double()
        events = events[self._items]
        self._has_events = events > 0 if bool((events > 0).any()) else torch.ones(len(events), dtype=torch.bool)
        logs, counted = (events + 1).log(), self._has_events.float()
        target = (logs - (logs * counted).sum() / counted.sum()).float().unsqueeze(1)
        self._popularity = self._known.matrix.regression(target, counted, PENALTY)
        expected = (PREFERENCE * self._known.matrix.predict(self._popularity)).exp()
        self._usual = float(expected[self._has_events].mean()) if len(logs) else 1.0
        scorer = model.scorer
        self._factors: tuple[Tensor, Tensor] | None = None  # of the items, and what features say about them
        if scorer.weight_of("factors") and len(logs):
            factors, confidence = model.vectors_of(self._items), counted * events.clamp(1, CONFIDENT).float()
            confidence /= confidence.mean()
            factors = factors[:, factors.var(0).topk(min(FACTOR_SIMILARITY_DIM, factors.shape[1])).indices]
            factors -= (factors * confidence.unsqueeze(1)).mean(0)
            self._factors = normalize(factors), self._known.matrix.regression(factors, confidence, PENALTY)

    def _similar(self, new: FeatureMatrix) -> tuple[Tensor, Tensor]:
        """The items with events that new ones are like, and shares, whose sum is 1, or 0 without any [n, NEAREST] each.

        Of the items with the most similar features, those whose factors are most similar to the predicted ones.
        """
        nearest, similarity = self._known.matrix.nearest(new, CANDIDATES)
        similarity *= self._has_events[nearest]
        if self._factors is not None:
            known, weights = self._factors
            batches = zip(nearest.split(AT_ONCE), normalize(new.predict(weights)).split(AT_ONCE), strict=True)
            alike = [torch.einsum("nd,nkd->nk", predicted, known[items]) for items, predicted in batches]
            similarity = (similarity + FACTOR_SIMILARITY_WEIGHT * torch.cat(alike).clamp(min=0)) * (similarity > 0)
        best = similarity.topk(min(NEAREST, similarity.shape[1]))
        shares = best.values**POWER
        shares /= shares.sum(1, keepdim=True).clamp(min=1e-30)
        return self._items[nearest.gather(1, best.indices)], shares

    def placements(self, model: TreeModel, rows: Any, background: BackgroundUsers | None) -> list[Placement]:
        """Where new items go, given their rows of the table; without background users nothing is scaled.

        An item that has no feature in common with others is like none of them.
        """
        new = FeatureMatrix(self._known.features.transform(rows), self._known.width)
        (similar, shares), scorer = self._similar(new), model.scorer
        real = shares > 0
        rows_of = (part[real].split(real.sum(1).tolist()) for part in (similar, shares))
        like = [Placement(items, share) for items, share in zip(*rows_of, strict=True)]
        if background is None or not scorer.names:
            return like
        offsets = torch.arange(len(similar) + 1) * similar.shape[1]
        alike = CSR(offsets, similar.flatten(), shares.flatten())
        partners = mean_partners(scorer, incoming, alike, MAX_SOURCES)
        factors = mean_factors(model, similar, shares) if background.factors.shape[1] else None
        expected = (PREFERENCE * new.predict(self._popularity).squeeze(1)).exp()
        rates = (expected / self._usual).clamp(max=MOST_POPULAR)
        scale = needed_scale(model, partners, factors, rates, background)
        counts = partners.counts()
        assert partners.values is not None
        values = partners.values * scale.repeat_interleave(counts)
        sources, weights = (part.split(counts.tolist()) for part in (partners.columns.long(), values))
        vectors = [None] * len(like) if factors is None else list(factors * scale.unsqueeze(1))
        return [
            Placement(*each[:2], *learned) if len(each.items) else each
            for each, *learned in zip(like, sources, weights, vectors, strict=True)
        ]


def added_report(count: int) -> list[str]:
    """A line about items that were added by their features; none where there were none."""
    return [f"Added {count:,} items that have no events in training, by their features."] * bool(count)


def mean_factors(model: TreeModel, similar: Tensor, shares: Tensor) -> Tensor:
    """The means of the factors of similar items [n, dim]."""
    batches = zip(similar.split(AT_ONCE), shares.split(AT_ONCE), strict=True)
    return torch.cat([torch.einsum("nk,nkd->nd", share, model.vectors_of(items)) for items, share in batches])


def needed_scale(
    model: TreeModel, partners: CSR, factors: Tensor | None, rates: Tensor, background: BackgroundUsers
) -> Tensor:
    """What to multiply partners and factors of new items with, so that each is shown to its share of users [n].

    It is shown neither more often among all items, nor among the first.

    Args:
        model: that they are added to.
        partners: to the new items, by source.
        factors: of the new items.
        rates: the popularity that is expected of each, relative to the average item [n].
        background: users, and the score that an item needs to be shown to them.
    """
    x = background.x
    ends = torch.arange(1, len(x) + 1) * x.shape[1]
    history = sparse.distinct_spans(
        x.flatten(), ends - x.shape[1], ends, RECENCY[: x.shape[1]].contiguous(), newest_first=False
    )
    weight = model.scorer.weight_of("factors") if factors is not None else 0.0
    share = rates / model.tree.num_placed
    thresholds = (background.shown, background.threshold), (background.first, background.first_threshold)
    limits = [
        (more * shown * len(x), threshold.where(threshold > 0, torch.inf).unsqueeze(1))  # without: nothing is known
        for more, (shown, threshold) in zip(EXPOSURE_RATIOS, thresholds, strict=True)
    ]
    scales = []
    for rows in torch.arange(len(rates)).split(AT_ONCE):
        some = partners.take(rows)
        assert some.values is not None
        dense = torch.zeros(model.tree.num_items, len(rows))
        dense[some.columns.long(), some.row_of_entry()] = some.values
        scores = sparse.multiply(history, dense)
        if factors is not None:
            scores += weight * background.factors @ factors[rows].T
        most = torch.full((len(rows),), MOST_SCALED)
        for shown, threshold in limits:
            rank = (share[rows] * shown).long().clamp(max=len(x) - 1)
            needed = (threshold / scores.clamp(min=1e-6)).topk(int(rank.max()) + 1, dim=0, largest=False).values
            most = most.minimum(needed.gather(0, rank.unsqueeze(0)).squeeze(0))
        scales.append(most.clamp(min=0))
    return torch.cat(scales) if scales else torch.empty(0)

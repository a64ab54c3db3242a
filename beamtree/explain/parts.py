"""What each part of a score says of two nodes: the one that was pruned and the last one that was kept."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from beamtree.model import Query
from beamtree.scorers import SumScorer
from beamtree.scorers.memory import LiftedScorer

CLOSE = 1e-6  # of what was said: sums that differ by less are the same


class Part(NamedTuple):
    """What one part adds to the scores of two nodes."""

    name: str
    item: float  # to that of the item's ancestor
    kept: float  # to that of the last node that was kept

    @property
    def difference(self) -> float:
        """Below 0 where it spoke for the node that was kept."""
        return self.item - self.kept

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "difference": self.difference}


def contributions(query: Query, level: int, nodes: Tensor, above: Tensor) -> tuple[tuple[Part, ...], Part | None]:
    """The parts of the scores of two nodes [2] of a level, `above` the ranks of their parents [2].

    A sum of scorers has a part for each that counts, w_hp · g_p. A chained model has two: the levels above, and this
    one. Other models have none. Parts that are sparse over items are lifted together in a search, and alone here. What
    they say together is no more than the sum of what each says alone, and is given too where it is less.
    """
    if query.model.chained:
        here = logsigmoid(query.logits(level, nodes.unsqueeze(0)))[0]
        return (_part("levels above", above), _part(f"level {level}", here)), None
    scorer = query.model.scorer
    if not isinstance(scorer, SumScorer):
        return (), None
    parts = {}
    for name, column in zip(scorer.names, scorer.weights.T, strict=True):
        if bool(column.any()):
            part = scorer.part(name)
            said = part.scores(part.context(query.tree, query.x), level, nodes.unsqueeze(0))[0]
            parts[name] = said * column[level]
    found = tuple(_part(name, said) for name, said in parts.items())
    return found, _together(query, scorer, level, nodes, parts)


def _together(query: Query, scorer: SumScorer, level: int, nodes: Tensor, parts: dict[str, Tensor]) -> Part | None:
    """What the parts that are lifted together say of two nodes, where that differs from the sum of what each says."""
    lifted: list[LiftedScorer] = [part for _, part in scorer.counting()[1]]
    names = [name for name in parts if any(scorer.part(name) is part for part in lifted)]
    if len(names) < 2:
        return None
    exact = query.context.lifted.at(level, nodes.unsqueeze(0))[0]
    alone = torch.stack([parts[name] for name in names]).sum(0)
    if bool(((alone - exact).abs() <= CLOSE * alone.abs()).all()):
        return None
    return _part(", ".join(names), exact)


def _part(name: str, said: Tensor) -> Part:
    item, kept = said.tolist()
    return Part(name, item, kept)

"""What each part of a score says of two nodes: the one that was pruned and the last one that was kept."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from beamtree.model import Query, TreeModel
from beamtree.scorers import SumScorer

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


def without_part(model: TreeModel, name: str) -> TreeModel:
    """The same model without one part of its score, to see what that part does; it shares the weights."""
    known = parts_of(model)
    if name not in known or len(known) < 2 or not isinstance(model.scorer, SumScorer):
        parts = ", ".join(known) or "no parts"
        raise ValueError(f"there is no part {name[:80]!r} to leave out: the score of this model is the sum of {parts}")
    return model.with_scorer(model.scorer.lean().without(name)).eval()


def parts_of(model: TreeModel) -> list[str]:
    """The names of the parts of a score that count."""
    return model.scorer.lean().names if isinstance(model.scorer, SumScorer) else []


class Parts:
    """The parts of the scores of one user.

    A sum of scorers has a part for each that counts, w_hp · g_p. A chained model has two: the levels above, and this
    one. Other models have none. Parts that are sparse over items are lifted together in a search, and alone here. What
    they say together is no more than the sum of what each says alone, and is given too where it is less.
    """

    def __init__(self, query: Query) -> None:
        self.query = query
        scorer = query.model.scorer
        self.sum = scorer if isinstance(scorer, SumScorer) and not query.model.chained else None
        self._contexts: dict[str, Any] = {}  # made when they are first asked for

    def of(self, level: int, nodes: Tensor, above: Tensor) -> tuple[tuple[Part, ...], Part | None]:
        """Of two nodes [2] of a level, `above` the ranks of their parents [2]."""
        if self.query.model.chained:
            here = logsigmoid(self.query.logits(level, nodes.unsqueeze(0)))[0]
            return (_part("levels above", above), _part(f"level {level}", here)), None
        if self.sum is None:
            return (), None
        said = {}
        for name, column in zip(self.sum.names, self.sum.weights.T, strict=True):
            if bool(column.any()):
                part = self.sum.part(name)
                if name not in self._contexts:
                    self._contexts[name] = part.context(self.query.tree, self.query.x)
                said[name] = part.scores(self._contexts[name], level, nodes.unsqueeze(0))[0] * column[level]
        return tuple(_part(name, each) for name, each in said.items()), self._together(level, nodes, said)

    def _together(self, level: int, nodes: Tensor, said: dict[str, Tensor]) -> Part | None:
        """What the parts that are lifted together say of two nodes, where that differs from the sum of each."""
        assert self.sum is not None
        lifted = [part for _, part in self.sum.counting()[1]]
        names = [name for name in said if any(self.sum.part(name) is part for part in lifted)]
        if len(names) < 2:
            return None
        exact = self.query.context.lifted.at(level, nodes.unsqueeze(0))[0]
        alone = torch.stack([said[name] for name in names]).sum(0)
        if bool(((alone - exact).abs() <= CLOSE * alone.abs()).all()):
            return None
        return _part(", ".join(names), exact)


def _part(name: str, said: Tensor) -> Part:
    item, kept = said.tolist()
    return Part(name, item, kept)

"""Memory: what the partners of the items in the history say."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.closed.partners import Partners
from beamtree.data.views import HISTORY, recency
from beamtree.scorers.base import Scorer, check_histories
from beamtree.scorers.lifted import Lifted
from beamtree.tree import PAD, Tree


def fading(power: float, newest: int = HISTORY) -> Tensor:
    """What events of a history count, newest first: (1 + t)^-power for the `newest`, 0 before [HISTORY]."""
    return recency(power) * (torch.arange(HISTORY, device="cpu") < newest)


class LiftedContext(NamedTuple):
    lifted: Lifted
    rows: int


class LiftedScorer(Scorer):
    """A scorer of few items per user: a node scores what the best item below it scores."""

    def entries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Items [B, E], PAD for none, and what is said of each [B, E]."""
        raise NotImplementedError

    @torch.no_grad()
    def context(self, tree: Tree, x: Tensor) -> LiftedContext:
        items, scores = self.entries(x)
        return LiftedContext(Lifted(tree, tree.leaf_of_item(items), scores), len(x))

    def scores(self, context: LiftedContext, level: int, nodes: Tensor) -> Tensor:
        return context.lifted.at(level, nodes, context.rows)

    def forward(self, context: LiftedContext, level: int, nodes: Tensor) -> Tensor:
        return self.scores(context, level, nodes).masked_fill(nodes == PAD, -torch.inf)

    def check(self, x: Tensor) -> None:
        check_histories(x, HISTORY)


class MemoryScorer(LiftedScorer):
    """Each item of the history names its partners; what is said of an item is added, recent events counting more.

    Several lists of partners can be kept, such as what goes together and what comes next, each with a recency of its
    own: what all of them say is added before it is lifted.

    Args:
        num_items: M.
        entries: partners of all items in all lists.
        lists: of partners per item.
        seed: not used; weights come from `from_partners` or from a file.
    """

    offsets: Tensor
    partners: Tensor
    weights: Tensor
    recency: Tensor

    def __init__(self, num_items: int, entries: int, lists: int = 1, seed: int | None = 0) -> None:
        super().__init__()
        self.num_items, self.lists = num_items, lists
        self.register_buffer("offsets", torch.zeros(lists * num_items + 1, dtype=torch.int64))
        self.register_buffer("partners", torch.zeros(entries, dtype=torch.int32))
        self.register_buffer("weights", torch.zeros(entries, dtype=torch.float16))
        self.register_buffer("recency", torch.zeros(lists, HISTORY))
        self._longest: int | None = None
        self._newest: list[int] | None = None

    @classmethod
    def from_partners(cls, lists: Sequence[Partners], recency: Sequence[Tensor]) -> "MemoryScorer":
        """A memory of lists of partners and, for each, what the events of a history count [HISTORY]."""
        memory = cls(len(lists[0]), sum(len(each.items) for each in lists), len(lists))
        ends = torch.tensor([0, *(len(each.items) for each in lists)]).cumsum(0).tolist()
        starts = [each.offsets[:-1].cpu() + end for each, end in zip(lists, ends, strict=False)]
        memory.offsets = torch.cat([*starts, torch.tensor(ends[-1:])])
        memory.partners = torch.cat([each.items for each in lists]).cpu()
        memory.weights = torch.cat([each.weights for each in lists]).cpu().half()
        memory.recency = torch.stack([each.cpu() for each in recency])
        return memory

    @property
    def longest(self) -> int:
        """Partners that an item has at most."""
        if self._longest is None:
            self._longest = int(self.offsets.diff().max()) if len(self.offsets) > 1 else 0
        return self._longest

    def entries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        items, scores = [x[:, :0]], [x[:, :0].float()]
        for number, counts in enumerate(self.recency):
            read = min(x.shape[1], self.newest[number])
            row = x[:, :read].clamp(min=0) + number * self.num_items
            start, stop = self.offsets[row], self.offsets[row + 1]
            at = start.unsqueeze(-1) + torch.arange(self.longest, device=x.device)
            real = (at < stop.unsqueeze(-1)) & (x[:, :read] != PAD).unsqueeze(-1)
            at = torch.where(real, at, 0)
            items.append(torch.where(real, self.partners[at].long(), PAD).flatten(1))
            scores.append((self.weights[at] * counts[:read].unsqueeze(-1)).flatten(1))
        return torch.cat(items, dim=1), torch.cat(scores, dim=1)

    @property
    def newest(self) -> list[int]:
        """How many events of a history each list looks at."""
        if self._newest is None:
            self._newest = [int(row.nonzero().max()) + 1 if bool(row.any()) else 0 for row in self.recency]
        return self._newest

    def settings(self) -> dict[str, Any]:
        return {"num_items": self.num_items, "entries": len(self.partners), "lists": self.lists}

"""Memory: what the partners of the items in the history say."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from beamtree.closed_form.partners import Partners
from beamtree.data.views import HISTORY, recency
from beamtree.distributed.exchange import Pieces
from beamtree.distributed.group import ranks
from beamtree.distributed.partition import Shard
from beamtree.distributed.sharded_lists import Kept, dealt_lists, pulled_lists, whole_lists
from beamtree.scorers.base import Scorer, check_histories
from beamtree.scorers.subtree_max import Lifted, lifted
from beamtree.tree import PAD, Tree


def fading(power: float, newest: int = HISTORY) -> Tensor:
    """What events of a history count, newest first: (1 + t)^-power for the `newest`, 0 before [HISTORY]."""
    return recency(power) * (torch.arange(HISTORY, device="cpu") < newest)


class LiftedScorer(Scorer):
    """A scorer of few items per user: a node scores what the best item below it scores."""

    reads_items = True
    shard: Shard | None = None  # the subtrees that are lifted to, where other ranks do the rest

    def entries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Items [B, E], PAD for none, and what is said of each [B, E]; of one that is named twice the sum."""
        raise NotImplementedError

    @torch.no_grad()
    def context(self, tree: Tree, x: Tensor) -> Lifted:
        items, scores = self.entries(x)
        return lifted(tree, tree.leaf_of_item(items), scores, self.shard)

    def scores(self, context: Lifted, level: int, nodes: Tensor) -> Tensor:
        return context.at(level, nodes)

    def forward(self, context: Lifted, level: int, nodes: Tensor) -> Tensor:
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
        self.dealt: int | None = None  # entries of all ranks, where this one has the lists of items dealt to it
        self.register_buffer("offsets", torch.zeros(lists * num_items + 1, dtype=torch.int64))
        self.register_buffer("partners", torch.zeros(entries, dtype=torch.int32))
        self.register_buffer("weights", torch.zeros(entries, dtype=torch.float16))
        self.register_buffer("recency", torch.zeros(lists, HISTORY))
        self._read: tuple[object, tuple[Tensor, ...]] = None, ()

    @classmethod
    def from_partners(cls, lists: Sequence[Partners], recency: Sequence[Tensor]) -> "MemoryScorer":
        """A memory of lists of partners and, for each, what the events of a history count [HISTORY].

        Lists of items that are dealt over ranks stay where they are.
        """
        memory = cls(len(lists[0]), 0, len(lists))
        ends = torch.tensor([0, *(len(each.items) for each in lists)]).cumsum(0).tolist()
        starts = [each.offsets[:-1].cpu() + end for each, end in zip(lists, ends, strict=False)]
        memory.offsets = torch.cat([*starts, torch.tensor(ends[-1:])])
        memory.partners = torch.cat([each.items for each in lists]).cpu()
        memory.weights = torch.cat([each.weights for each in lists]).cpu().half()
        memory.recency = torch.stack([each.cpu() for each in recency])
        if lists[0].total is not None:
            memory.dealt = int(ranks().sum_(torch.tensor(len(memory.partners))))
        return memory

    def grown(self, num_items: int) -> "MemoryScorer":
        """The same memory of more items, of which the new ones say nothing; what is large is shared."""
        more = num_items - self.num_items
        starts = self.offsets[:-1].view(self.lists, -1)
        ends = torch.cat([starts[1:, 0], self.offsets[-1:]]).unsqueeze(1).expand(-1, more)  # of each list
        offsets = torch.cat([torch.cat([starts, ends], dim=1).flatten(), self.offsets[-1:]])
        return self._of(num_items, Kept(offsets, self.partners, self.weights))

    def _of(self, num_items: int, kept: Kept) -> "MemoryScorer":
        """A memory of other items that reads its lists as this one does."""
        found = MemoryScorer(num_items, 0, self.lists).to(self.offsets.device)
        found.recency = self.recency
        found.keep(kept)
        return found

    def sources(self, items: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Who names items [n], in any list: the place in `items`, the source, and the weight at its newest event."""
        place = torch.full((self.num_items,), -1, device=items.device)
        place[items] = torch.arange(len(items), device=items.device)
        named = place[self.partners.long()]
        entry = (named >= 0).nonzero().squeeze(1)
        row = torch.searchsorted(self.offsets, entry, right=True) - 1
        counts = self.recency.amax(1)[row // self.num_items]
        return named[entry], row % self.num_items, self.weights[entry].float() * counts

    def entries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.is_spread:
            items = torch.unique(torch.cat([x.flatten(), x.new_zeros(1)]).clamp_(min=0))
            place = torch.searchsorted(items, x.contiguous()).masked_fill_(x == PAD, PAD)
            return self._of(len(items), pulled_lists(self.kept, self.lists, items)).entries(place)
        columns, shift, counts, place = self._reading(x)
        past = x.index_select(1, columns)
        row = (past + shift).clamp_(min=0)
        start = self.offsets.take(row)
        held = (self.offsets.take(row + 1) - start).masked_fill_(past == PAD, 0)
        at = (start.unsqueeze(-1) + place).clamp_(max=len(self.partners) - 1)
        said = self.weights.take(at) * counts
        said.masked_fill_(place >= held.unsqueeze(-1), 0.0)  # past the end of a list: some item, nothing said
        return self.partners.take(at).flatten(1).long(), said.flatten(1)

    def _reading(self, x: Tensor) -> tuple[Tensor, ...]:
        """How histories as long as x are read, for all lists at once: which events, where the rows of their list begin,
        what each counts, and the places in a list.
        """
        state = x.shape[1], x.device, self.recency.data_ptr(), self.recency._version
        if self._read[0] != state:
            read = self.recency[:, : x.shape[1]].cpu() != 0
            number, columns = read.nonzero(as_tuple=True)
            longest = int(self.offsets.diff().max()) if len(self.partners) else 0
            counts = self.recency.cpu()[number, columns].unsqueeze(-1)
            parts = columns, number * self.num_items, counts, torch.arange(longest)
            self._read = state, tuple(part.to(x.device) for part in parts)
        return self._read[1]

    def settings(self) -> dict[str, Any]:
        entries = len(self.partners) if self.dealt is None else self.dealt
        return {"num_items": self.num_items, "entries": entries, "lists": self.lists}

    # Over ranks: each has the lists of the items dealt to it, for users that differ from rank to rank

    @property
    def is_spread(self) -> bool:
        return self.dealt is not None

    def spread_over(self, shard: Shard) -> None:
        if not self.is_spread:
            self.dealt = len(self.partners)
            self.keep(dealt_lists(self.kept, self.lists))

    @property
    def kept(self) -> Kept:
        """The lists that are here."""
        return Kept(self.offsets, self.partners, self.weights)

    def keep(self, kept: Kept, dealt: int | None = None) -> None:
        """Take these for the lists that are here; with `dealt`, of so many entries of all ranks, where it is spread."""
        self.dealt = self.dealt if self.dealt is None or dealt is None else dealt
        self.offsets, self.partners, self.weights = (each.to(self.recency.device) for each in kept)
        self._read = None, ()

    def pieces(self) -> dict[str, Pieces]:
        return {} if self.dealt is None else whole_lists(self.kept, self.lists, self.num_items, self.dealt)

"""Item memory: the items of the history name their partners, each with a weight."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from beamtree.data.csr import CSR, concatenate
from beamtree.data.inputs import HISTORY, WHOLE_HISTORY
from beamtree.data.views import recency
from beamtree.kernels.search_cpu import CompiledPart, Entries, Memory
from beamtree.scorers.base import Contributions, NewItems, Scorer, newest
from beamtree.scorers.subtree_max import SubtreeMax
from beamtree.tree import PAD, Tree

PARTNERS = 100  # N: of an item, at most


def recency_weights(power: float, newest: int = WHOLE_HISTORY) -> Tensor:
    """The weights of the events of a history, newest first: (1 + t)^-power for the `newest` [newest]."""
    return recency(power, newest)


class SubtreeMaxScorer(Scorer):
    """A scorer of few items per user: a node has the score of the best item below it."""

    reads_items = True
    exportable = True

    def entries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Items [B, E], PAD for none, and a score for each [B, E]; scores of a repeated item are added."""
        raise NotImplementedError

    @torch.no_grad()
    def item_scores(self, x: Tensor, num_items: int) -> Tensor:
        """The scores of all items of a small catalogue [B, M]."""
        items, scores = self.entries(x)
        total = scores.new_zeros(len(x), num_items + 1)  # the last stands for PAD
        return total.scatter_add_(1, items.masked_fill(items == PAD, num_items), scores)[:, :num_items]

    @torch.no_grad()
    def prepare(self, tree: Tree, x: Tensor) -> SubtreeMax:
        items, scores = self.entries(x)
        return SubtreeMax(tree, tree.leaf_of_item(items), scores)

    def scores(self, prepared: SubtreeMax, level: int, nodes: Tensor) -> Tensor:
        return prepared.at(level, nodes)

    def forward(self, prepared: SubtreeMax, level: int, nodes: Tensor) -> Tensor:
        return self.scores(prepared, level, nodes).masked_fill(nodes == PAD, -torch.inf)

    def compiled_part(self, tree: Tree) -> CompiledPart | None:
        return Entries(self.entries, self.columns, self.history)


class MemoryScorer(SubtreeMaxScorer):
    """Sums the partner weights of the items of the history, discounted by age.

    It can hold several lists of partners per item, such as what is chosen together and what comes next, each with
    recency weights of its own. All are added before the maximum of each subtree is taken.

    Args:
        num_items: M.
        entries: partners of all items in all lists.
        lists: of partners per item.
        history: events that are read.
        seed: not used; weights come from `from_partners` or from a file.
    """

    offsets: Tensor
    partners: Tensor
    weights: Tensor
    recency: Tensor

    def __init__(
        self, num_items: int, entries: int, lists: int = 1, history: int = HISTORY, seed: int | None = 0
    ) -> None:
        super().__init__()
        self.num_items, self.lists = num_items, lists
        self.register_buffer("offsets", torch.zeros(lists * num_items + 1, dtype=torch.int64))
        self.register_buffer("partners", torch.zeros(entries, dtype=torch.int32))
        self.register_buffer("weights", torch.zeros(entries, dtype=torch.float16))
        self.register_buffer("recency", torch.zeros(lists, history))
        self._plans: dict[object, tuple[Tensor, ...]] = {}

    @classmethod
    def from_partners(cls, lists: Sequence[CSR], recency: Sequence[Tensor]) -> "MemoryScorer":
        """A memory of lists of partners and, for each, the weights of the newest events of a history."""
        memory = cls(len(lists[0]), 0, len(lists))
        memory.rows = concatenate([each.cpu() for each in lists])
        memory.recency = pad_sequence([each.cpu() for each in recency], batch_first=True)
        return memory

    @property
    def history(self) -> int:  # type: ignore[override]
        """As many as have weights."""
        return self.recency.shape[1]

    @property
    def rows(self) -> CSR:
        """The partners of every item: those of the first list for all items, then those of the next."""
        return CSR(self.offsets, self.partners, self.weights)

    @rows.setter
    def rows(self, rows: CSR) -> None:
        assert rows.values is not None
        device = self.recency.device
        self.offsets, self.partners = rows.offsets.to(device), rows.columns.to(device)
        self.weights = rows.values.half().to(device)
        self._plans = {}

    def with_rows(self, num_items: int, rows: CSR) -> "MemoryScorer":
        """A memory of other items with the same recency weights."""
        memory = MemoryScorer(num_items, 0, self.lists).to(self.offsets.device)
        memory.recency = self.recency
        memory.rows = rows
        return memory

    def with_items(self, old: Tree, new: Tree, items: NewItems) -> "MemoryScorer":
        """New items have no partners; large tensors are shared."""
        more = new.num_items - self.num_items
        if more <= 0:
            return self
        starts = self.offsets[:-1].view(self.lists, -1)
        ends = torch.cat([starts[1:, 0], self.offsets[-1:]]).unsqueeze(1).expand(-1, more)  # of each list
        offsets = torch.cat([torch.cat([starts, ends], dim=1).flatten(), self.offsets[-1:]])
        return self.with_rows(new.num_items, CSR(offsets, self.partners, self.weights))

    def with_list(self, partners: CSR, recency: Tensor) -> "MemoryScorer":
        """A memory with one more list of partners."""
        memory = MemoryScorer(self.num_items, 0, self.lists + 1).to(self.offsets.device)
        memory.recency = pad_sequence([*self.recency, recency.to(self.recency)], batch_first=True)
        memory.rows = concatenate([self.rows.cpu(), partners.cpu()])
        return memory

    def last_list(self) -> tuple[CSR, Tensor]:
        """Its last list of partners, and the recency weights of that."""
        rows = torch.arange(len(self.rows) - self.num_items, len(self.rows), device=self.offsets.device)
        return self.rows.take(rows), self.recency[-1]

    def sources(self, items: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The items that have `items` [n] as partners: index in `items`, source, and weight at its newest event."""
        index_of = torch.full((self.num_items,), -1, device=items.device)
        index_of[items] = torch.arange(len(items), device=items.device)
        index = index_of[self.partners.long()]
        entry = (index >= 0).nonzero().squeeze(1)
        row = torch.searchsorted(self.offsets, entry, right=True) - 1
        newest = self.recency.amax(1)[row // self.num_items]
        return index[entry], row % self.num_items, self.weights[entry].float() * newest

    def entries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = newest(x, self.history)
        columns, first_row, discount, position = self._read_plan(x)
        past = x.index_select(1, columns)
        row = (past + first_row).clamp_(min=0)
        start = self.offsets.take(row)
        count = (self.offsets.take(row + 1) - start).masked_fill_(past == PAD, 0)
        entry = (start.unsqueeze(-1) + position).clamp_(max=len(self.partners) - 1)
        scores = self.weights.take(entry) * discount
        scores.masked_fill_(position >= count.unsqueeze(-1), 0.0)  # past the end of a list: any item, with score 0
        return self.partners.take(entry).flatten(1).long(), scores.flatten(1)

    def compiled_part(self, tree: Tree) -> CompiledPart | None:
        if type(self).entries is not MemoryScorer.entries:
            return super().compiled_part(tree)
        named = Entries(self.entries, self.columns, self.history)
        return Memory(self.offsets, self.partners, self.weights, self.recency, named)

    @torch.no_grad()
    def contributions(self, tree: Tree, x: Tensor, items: Tensor) -> Contributions:
        """The weights with which each event names the items as its partners."""
        columns, _, _, position = self._read_plan(newest(x, self.history))
        partners, scores = (each.unflatten(1, (len(columns), len(position))) for each in self.entries(x))
        named = [(scores * (partners == item.view(-1, 1, 1))).sum(2) for item in items.expand(len(x), -1).unbind(1)]
        entries = scores.new_zeros(len(x), len(named), x.shape[1])
        entries.index_add_(2, columns, torch.stack(named, dim=1))  # an event has partners in several lists
        return Contributions(entries, torch.zeros_like(entries[:, :, 0]))

    def _read_plan(self, x: Tensor) -> tuple[Tensor, ...]:
        """How histories as long as x are read, for all lists at once.

        Which events, the first row of their list, the discount of each, and the positions within a row. Those of all
        widths are kept: CUDA graphs that were recorded with them read them again.
        """
        state = x.shape[1], x.device, self.recency.data_ptr(), self.recency._version
        if state not in self._plans:
            used = self.recency[:, : x.shape[1]].cpu() != 0
            number, columns = used.nonzero(as_tuple=True)
            longest = int(self.offsets.diff().max()) if len(self.partners) else 0
            discount = self.recency.cpu()[number, columns].unsqueeze(-1)
            plan = columns, number * self.num_items, discount, torch.arange(longest)
            self._plans[state] = tuple(part.to(x.device) for part in plan)
        return self._plans[state]

    def settings(self) -> dict[str, Any]:
        how = {"num_items": self.num_items, "entries": len(self.partners), "lists": self.lists}
        return how if self.history == HISTORY else how | {"history": self.history}

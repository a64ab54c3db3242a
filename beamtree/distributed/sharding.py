"""Models that are divided over ranks: `shard_model` divides one, and `whole_model` puts it together again."""

from typing import Any

import torch
from torch import Tensor

from beamtree.data.csr import CSR, offsets_of
from beamtree.distributed.exchange import Route, own_rows, send_to_first
from beamtree.distributed.group import ranks
from beamtree.distributed.partition import Shard
from beamtree.distributed.sharded_table import ShardedTable
from beamtree.model import TreeModel
from beamtree.scorers import SCORERS, DeepScorer, DotProductScorer, MemoryScorer, Scorer, SumScorer
from beamtree.storage.sharded_files import MEMORY_TENSORS, memories_of, memory_names, merge_parts
from beamtree.tree import PAD


class ShardedMemoryScorer(MemoryScorer):
    """A memory of which each rank has the lists of some items, for users that differ between ranks.

    A batch of histories names a few thousand items. Their lists are requested from the ranks that have them.
    """

    total = 0  # entries of all ranks

    @property
    def kind(self) -> str:
        return MemoryScorer.__name__

    @classmethod
    def from_part(cls, num_items: int, lists: int, part: CSR, recency: Tensor) -> "ShardedMemoryScorer":
        """A memory of which this rank has these lists of its items, list by list."""
        scorer = cls(num_items, 0, lists).to(recency.device)
        scorer.recency = recency
        scorer.set_part(part)
        return scorer

    def set_part(self, part: CSR) -> None:
        """Use these as this rank's lists; all ranks must call it."""
        self.rows = part
        self.total = int(ranks().sum_(torch.tensor(len(part.columns))))

    def entries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        items = torch.unique(torch.cat([x.flatten(), x.new_zeros(1)]).clamp_(min=0))
        index = torch.searchsorted(items, x.contiguous()).masked_fill_(x == PAD, PAD)
        return self.with_rows(len(items), self._request(items)).entries(index)

    def _request(self, items: Tensor) -> CSR:
        """The lists of some items, list by list; all ranks must ask."""
        size, count = ranks().size, len(self.rows) // self.lists
        number = torch.arange(self.lists, device=items.device).repeat_interleave(len(items))
        route = Route(items.repeat(self.lists) % size)
        rows = route.send(number) * count + route.send(items.repeat(self.lists)) // size
        return route.reply_lists(self.rows.take(rows))

    def whole(self) -> MemoryScorer | None:
        """All of it on the CPU of the first rank; None on the others."""
        sizes = ranks().gather((len(self.rows), len(self.partners)))
        counts, columns, values = (
            part for each in (self.rows.counts(), self.partners, self.weights) for part in send_to_first(each)
        )
        if not ranks().is_first:
            return None
        lengths, entries = ([size[i] for size in sizes] for i in (0, 1))
        parts = [
            CSR(offsets_of(count).cpu(), column.cpu(), value.cpu())
            for count, column, value in zip(
                counts.split(lengths), columns.split(entries), values.split(entries), strict=True
            )
        ]
        memory = MemoryScorer(self.num_items, 0, self.lists)
        memory.recency = self.recency.cpu()
        memory.rows = merge_parts(parts, self.lists, len(parts), torch.arange(self.num_items))
        return memory

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "entries": self.total}


def own_lists(rows: CSR, lists: int) -> CSR:
    """This rank's rows of the lists of all items, list by list."""
    num_items = len(rows) // lists
    number = torch.arange(lists, device=rows.offsets.device).unsqueeze(1)
    return rows.take((number * num_items + own_rows(num_items, rows.offsets.device)).flatten())


def is_sharded(model: TreeModel) -> bool:
    """Whether each rank has a part of the model."""
    return any(isinstance(module, ShardedTable | ShardedMemoryScorer) for module in model.modules())


def shard_model(model: TreeModel, shard: Shard | None = None) -> TreeModel:
    """Keep this rank's part of a model, in place; parts that are sharded already stay as they are."""
    shard = Shard.of(model.tree, ranks()) if shard is None else shard
    for module in list(model.modules()):
        if isinstance(module, DeepScorer | DotProductScorer) and not isinstance(module.table, ShardedTable):
            module.table = ShardedTable.of(module.table, shard)
        if isinstance(module, SumScorer):
            for name in module.names:
                module.put(name, _shard_memory(module.part(name)))
    model.scorer = _shard_memory(model.scorer)
    return model


def _shard_memory(scorer: Scorer) -> Scorer:
    if isinstance(scorer, ShardedMemoryScorer) or not isinstance(scorer, MemoryScorer):
        return scorer
    part = own_lists(scorer.rows, scorer.lists)
    return ShardedMemoryScorer.from_part(scorer.num_items, scorer.lists, part, scorer.recency)


def sharded_names(model: TreeModel) -> dict[str, ShardedTable]:
    """The sharded tables of a model by the names of their weights in `state_dict`."""
    modules = model.scorer.named_modules()
    return {f"{name}.weight".lstrip("."): each for name, each in modules if isinstance(each, ShardedTable)}


def sharded_memories(model: TreeModel) -> dict[str, ShardedMemoryScorer]:
    """The sharded memories of a model by the prefix of their names in `state_dict`."""
    memories = memories_of(model).items()
    return {prefix: memory for prefix, memory in memories if isinstance(memory, ShardedMemoryScorer)}


def divided_names(model: TreeModel) -> set[str]:
    """The names in `state_dict` of all tensors of which each rank has a part."""
    return {*sharded_names(model), *memory_names(sharded_memories(model))}


def whole_model(model: TreeModel) -> TreeModel | None:
    """The whole model on the CPU of the first rank; None on the others. All ranks must call it."""
    tables = {name: table.whole() for name, table in sharded_names(model).items()}
    memories = {prefix: memory.whole() for prefix, memory in sharded_memories(model).items()}
    if not ranks().is_first:
        return None
    state = {name: value.detach().cpu() for name, value in model.scorer.state_dict().items()}
    for name, table in tables.items():
        assert table is not None
        state[name] = table
    for prefix, memory in memories.items():
        assert memory is not None
        state |= {f"{prefix}{name}": getattr(memory, name) for name in MEMORY_TENSORS}
    by_name = {kind.__name__: kind for kind in (*SCORERS, type(model.scorer))}
    scorer = by_name[model.scorer.kind].from_settings(model.scorer.settings(), by_name)
    scorer.load_state_dict(state, assign=True)
    return model.with_scorer(scorer, model.tree.to("cpu")).eval()

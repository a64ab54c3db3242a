"""Edits of a model's items: copies of a model with items added, hidden or removed. The given model does not change."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.data.csr import CSR, entries_of_rows, sum_duplicates
from beamtree.data.ids import Ids
from beamtree.live.placement import MAX_SOURCES, RECENCY, FreeSlots, Placement
from beamtree.model import TreeModel
from beamtree.scorers import FactorScorer, MemoryScorer, Scorer, SumScorer, TableScorer
from beamtree.scorers.memory import PARTNERS
from beamtree.tree import PAD, Tree

ADDED, MEMORY = "added", "memory"  # parts of a sum: partners of items added later, and those that were fitted


def with_items(
    model: TreeModel, new: Mapping[str, Placement], reserved: Sequence[int] = (), *, partners: bool = True
) -> TreeModel:
    """The model with new items, each on a free slot near the items it is like; full trees get another level.

    The rows and partners of a new item are weighted means of those of the items it is like. Rows of free slots are
    written in place: no search reads them before the tree has an item there. `reserved` slots had an item in an older
    model in which searches may still run. Without `partners` new items get none: for parts that are fitted afterwards.
    """
    if model.ids is None:
        raise ValueError("the items of this model have no ids: items are added by id")
    names = list(new)
    unknown = [name for name, number in zip(names, model.ids.find(names), strict=True) if number is None]
    ids = model.ids.extended(unknown) if unknown else model.ids
    numbers = ids.find_known(names)
    tree, scorer = model.tree, model.scorer
    while int((tree.items() == PAD).sum()) < len(names) + len(reserved):
        deeper = tree.deeper()
        if not isinstance(scorer, TableScorer):
            raise ValueError(f"the tree is full, and {type(scorer).__name__} cannot be extended by a level")
        tree, scorer = deeper, scorer.deeper(tree, deeper)
    if tree is not model.tree:  # its tables are new, and no search reads them yet
        reserved = ()
    slots, first = FreeSlots(tree, reserved), tree.level(tree.height).start
    for number, placement in zip(numbers, new.values(), strict=True):
        near = tree.leaf_of_item(placement.items.to(tree.device)).cpu()
        placed = near != PAD
        slots.take(slots.best(near[placed] - first, placement.shares[placed]), number)
    grown = tree.with_items(slots.tensor().to(tree.device), len(ids))
    tables = scorer.tables().values() if isinstance(scorer, SumScorer) else [scorer]
    for table in tables:
        if isinstance(table, TableScorer):
            _write_rows(table, tree, grown, numbers, list(new.values()))
    if isinstance(scorer, SumScorer) and partners:
        scorer = _with_edges(scorer, _new_edges(scorer, numbers, new), torch.tensor(numbers), len(ids))
    elif isinstance(scorer, SumScorer):
        memories = {name: part for name in scorer.names if isinstance(part := scorer.part(name), MemoryScorer)}
        scorer = scorer.with_parts({name: memory.grown(len(ids)) for name, memory in memories.items()})
    return _copy_with(model, grown, scorer, ids)


def with_hidden(model: TreeModel, numbers: Sequence[int]) -> TreeModel:
    """The model in which exactly these items are hidden: they keep their slots and rows, but no search returns them."""
    tree = model.tree.hiding(torch.tensor(list(numbers), dtype=torch.int64))
    return _copy_with(model, tree, model.scorer, model.ids)


def without_items(model: TreeModel, numbers: Sequence[int]) -> TreeModel:
    """The model without some items, whose slots become free. Their numbers are not used again."""
    tree = model.tree
    slots = tree.items().clone()
    leaves = tree.leaf_of_item(torch.tensor(list(numbers), dtype=torch.int64, device=tree.device))
    slots[leaves[leaves != PAD] - tree.level(tree.height).start] = PAD
    return _copy_with(model, tree.with_items(slots, tree.num_items), model.scorer, model.ids)


def _copy_with(model: TreeModel, tree: Tree, scorer: Scorer, ids: Ids | None) -> TreeModel:
    """The same kind of model with another tree and scorer."""
    result = model.with_scorer(scorer, tree)
    result.ids = ids
    if model.popularity is not None and len(model.popularity) < tree.num_items:
        result.popularity = pad(model.popularity, (0, tree.num_items - len(model.popularity)))
    return result.eval()


def _write_rows(table: TableScorer, old: Tree, new: Tree, numbers: list[int], placements: list[Placement]) -> None:
    """Write the rows of new items: learned factors, or the mean of the rows of similar items."""
    leaves = new.leaf_of_item(torch.tensor(numbers, device=new.device))
    vectors, rows = table.table.read(old, share=table.share), []
    for placement in placements:
        if placement.factors is not None and isinstance(table, FactorScorer):
            rows.append(placement.factors.to(new.device))
            continue
        near = old.leaf_of_item(placement.items.to(old.device))
        shares = placement.shares.to(old.device) * (near != PAD)
        rows.append((vectors.at(near).float() * shares.unsqueeze(1)).sum(0) / shares.sum().clamp(min=1e-9))
    table.put_vectors(new, leaves, torch.stack(rows))


# Partners of new items


class PartnerEdges(NamedTuple):
    """Partners as edges from item to item [E] each."""

    source: Tensor
    target: Tensor
    weight: Tensor

    def select(self, mask: Tensor) -> "PartnerEdges":
        """The edges of a mask [E]."""
        return PartnerEdges(self.source[mask], self.target[mask], self.weight[mask])


def edges_of(memory: MemoryScorer) -> PartnerEdges:
    """The edges of a memory with a single list."""
    source = torch.repeat_interleave(memory.offsets.diff())
    return PartnerEdges(source.cpu(), memory.partners.long().cpu(), memory.weights.float().cpu())


def memory_of(edges: PartnerEdges, num_items: int) -> MemoryScorer:
    """A memory of these edges; the weights of equal pairs are summed."""
    key, weight = sum_duplicates(edges.source * num_items + edges.target, edges.weight)
    offsets = pad(torch.bincount(key // num_items, minlength=num_items).cumsum(0), (1, 0))
    return MemoryScorer.from_partners([CSR(offsets, (key % num_items).int(), weight)], [RECENCY])


def incoming_partners(memory: MemoryScorer, similar: Tensor, shares: Tensor, item: int) -> PartnerEdges:
    """Edges to a new item that resembles others [n] with shares [n]: those to the similar items.

    The similar items themselves become partners, each with the largest weight of an edge to it.
    """
    similar, shares = (part.to(memory.offsets.device) for part in (similar, shares))
    index, source, weight = memory.sources(similar)
    largest = torch.zeros_like(shares).scatter_reduce_(0, index, weight, "amax")
    sources = torch.cat([source, similar])
    weights = torch.cat([weight * shares[index], largest * shares])
    return _strongest(PartnerEdges(sources, torch.full_like(sources, item), weights), MAX_SOURCES)


def outgoing_partners(memory: MemoryScorer, similar: Tensor, shares: Tensor, item: int) -> PartnerEdges:
    """Edges from a new item that resembles others [n] with shares [n]: those from the similar items."""
    similar, shares = (part.to(memory.offsets.device) for part in (similar, shares))
    rows = torch.arange(memory.lists, device=similar.device).unsqueeze(1) * memory.num_items + similar  # [lists, n]
    index, entry = entries_of_rows(memory.offsets, rows.flatten())
    scale = memory.recency.amax(1).repeat_interleave(len(similar)) * shares.repeat(memory.lists)
    weights = memory.weights[entry].float() * scale[index]
    return _strongest(PartnerEdges(torch.full_like(entry, item), memory.partners[entry].long(), weights), PARTNERS)


def _strongest(edges: PartnerEdges, limit: int) -> PartnerEdges:
    """The `limit` pairs with the largest absolute weights; the weights of equal pairs are summed."""
    base = int(torch.cat([edges.source, edges.target]).max()) + 1 if len(edges.source) else 1
    key, weight = sum_duplicates(edges.source * base + edges.target, edges.weight)
    best = weight.abs().topk(min(limit, len(key))).indices
    return PartnerEdges((key[best] // base).cpu(), (key[best] % base).cpu(), weight[best].cpu())


def _new_edges(scorer: SumScorer, numbers: list[int], new: Mapping[str, Placement]) -> PartnerEdges:
    """Edges of new items: the learned ones, or else those of the items they are like."""
    empty = torch.empty(0, dtype=torch.int64)
    parts = [PartnerEdges(empty, empty, empty.float())]
    memory = scorer.part(MEMORY) if MEMORY in scorer.names else None
    for number, placement in zip(numbers, new.values(), strict=True):
        if placement.sources is not None and placement.weights is not None:
            target = torch.full_like(placement.sources, number)
            parts.append(PartnerEdges(placement.sources, target, placement.weights))
        if isinstance(memory, MemoryScorer):
            fitted = placement.items < memory.num_items
            similar = placement.items[fitted], placement.shares[fitted]
            if placement.sources is None:
                parts.append(incoming_partners(memory, *similar, number))
            parts.append(outgoing_partners(memory, *similar, number))
    return _concatenate(parts)


def _concatenate(parts: list[PartnerEdges]) -> PartnerEdges:
    return PartnerEdges(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _with_edges(scorer: SumScorer, edges: PartnerEdges, replaced: Tensor, num_items: int) -> SumScorer:
    """The sum with more partner edges; earlier edges of the `replaced` items are dropped."""
    changed = {}
    if MEMORY in scorer.names:
        memory = scorer.part(MEMORY)
        assert isinstance(memory, MemoryScorer)
        changed[MEMORY] = memory.grown(num_items) if memory.num_items < num_items else memory
    if ADDED in scorer.names:
        added = scorer.part(ADDED)
        assert isinstance(added, MemoryScorer)
        old = edges_of(added)
        dropped = torch.isin(old.source, replaced) | torch.isin(old.target, replaced)
        edges = _concatenate([old.select(~dropped), edges])
    changed[ADDED] = memory_of(edges, num_items).to(scorer.weights.device)
    return scorer.with_parts(changed)

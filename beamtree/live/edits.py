"""Edits of a model's items: copies of a model with items added, hidden or removed. The given model does not change."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.closed_form.cooccurrence import sum_products
from beamtree.data.csr import CSR, entries_of_rows, group_rows, strongest, sum_duplicates
from beamtree.data.ids import Ids
from beamtree.live.placement import MAX_SOURCES, RECENCY, FreeSlots, Placement
from beamtree.model import TreeModel
from beamtree.parts.memory import MemoryPart
from beamtree.scorers import (
    FactorScorer,
    MemoryScorer,
    PopularityScorer,
    Scorer,
    SumScorer,
    TableScorer,
    TrendScorer,
    as_sum,
)
from beamtree.scorers.memory import PARTNERS
from beamtree.tree import PAD, Tree

ADDED = "added"  # a part of a sum: partners of items added later
MEMORY = MemoryPart.name


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
        deeper = tree.with_extra_level()
        if not isinstance(scorer, TableScorer):
            raise ValueError(f"the tree is full, and {type(scorer).__name__} cannot be extended by a level")
        tree, scorer = deeper, scorer.with_extra_level(tree, deeper)
    if tree is not model.tree:  # its tables are new, and no search reads them yet
        reserved = ()
    like = _similar_items(tree, list(new.values()))
    slots, ends = FreeSlots(tree, reserved), like.offsets.tolist()
    near = (tree.leaf_of_item(like.columns.to(tree.device)).cpu() - tree.level(tree.height).start).tolist()
    assert like.values is not None
    shares = like.values.tolist()
    for number, (start, stop) in zip(numbers, pairwise(ends), strict=True):
        slots.take(slots.best(near[start:stop], shares[start:stop]), number)
    grown = tree.with_items(slots.tensor().to(tree.device), len(ids))
    trends = {name: part.grown(len(ids)) for name, part in scorer.tables().items() if isinstance(part, TrendScorer)}
    for name, table in scorer.tables().items():
        if name in trends:
            trends[name].put_items(grown, torch.tensor(numbers))
        else:
            _write_rows(table, tree, grown, numbers, like, list(new.values()))
    parts = as_sum(scorer)
    if parts is not None and trends:
        scorer = parts = parts.with_parts(trends)
    if parts is not None and partners:
        edges = _new_edges(parts, numbers, like, list(new.values()))
        scorer = _with_edges(parts, edges, torch.tensor(numbers), len(ids))
    elif parts is not None:
        memories = {name: part for name in parts.names if isinstance(part := parts.part(name), MemoryScorer)}
        scorer = parts.with_parts({name: memory.grown(len(ids)) for name, memory in memories.items()})
    return _copy_with(model, grown, scorer, ids)


def with_hidden(model: TreeModel, numbers: Sequence[int]) -> TreeModel:
    """The model in which exactly these items are hidden: they keep their slots and rows, but no search returns them."""
    tree = model.tree.with_hidden(torch.tensor(list(numbers), dtype=torch.int64))
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


def _similar_items(tree: Tree, placements: Sequence[Placement]) -> CSR:
    """The items with a leaf that each new item is like, with their shares."""
    counts = torch.tensor([len(placement.items) for placement in placements], dtype=torch.int64)
    items = torch.cat([torch.empty(0, dtype=torch.int64), *(placement.items for placement in placements)])
    shares = torch.cat([torch.empty(0), *(placement.shares for placement in placements)])
    like = CSR(pad(counts.cumsum(0), (1, 0)), items, shares)
    return like.filter(tree.leaf_of_item(items.to(tree.device)).cpu() != PAD)


def _write_rows(
    table: TableScorer, old: Tree, new: Tree, numbers: list[int], like: CSR, placements: Sequence[Placement]
) -> None:
    """Write the rows of new items: learned factors, or the mean of the rows of similar items."""
    leaves = new.leaf_of_item(torch.tensor(numbers, device=new.device))
    vectors, similar = table.table.read(old, share=table.share), old.leaf_of_item(like.columns.to(old.device))
    assert like.values is not None
    shares, row = like.values.to(old.device), like.row_of_entry().to(old.device)
    total = torch.zeros(len(like), device=old.device).index_add_(0, row, shares).clamp(min=1e-9)
    weighted = vectors.at(similar).float() * (shares / total[row]).unsqueeze(1)
    rows = torch.zeros(len(like), weighted.shape[1], device=old.device).index_add_(0, row, weighted)
    learned = [index for index, placement in enumerate(placements) if placement.factors is not None]
    if learned and isinstance(table, FactorScorer):
        factors = [placement.factors for placement in placements if placement.factors is not None]
        rows[torch.tensor(learned, device=old.device)] = torch.stack(factors).to(old.device)
    if isinstance(table, PopularityScorer):  # factors and partners that were learned already say how often to show it
        rows[torch.tensor([placement.sources is not None for placement in placements], device=old.device)] = 0
    table.put_vectors(new, leaves, rows)


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


Entries = tuple[Tensor, Tensor, Tensor]  # index of one of some items, its partner or source, and the weight [E] each


def incoming(memory: MemoryScorer, items: Tensor) -> Entries:
    """Partners to items [n]: their sources, and each item itself with the largest weight of a partner to it."""
    index, source, weight = memory.sources(items)
    largest = torch.zeros(len(items), device=items.device).scatter_reduce_(0, index, weight, "amax")
    own = torch.arange(len(items), device=items.device)
    return torch.cat([index, own]), torch.cat([source, items]), torch.cat([weight, largest])


def outgoing(memory: MemoryScorer, items: Tensor) -> Entries:
    """Partners of items [n], with their weights at a newest event."""
    rows = torch.arange(memory.lists, device=items.device).unsqueeze(1) * memory.num_items + items  # [lists, n]
    row, entry = entries_of_rows(memory.offsets, rows.flatten())
    weight = memory.weights[entry].float() * memory.recency.amax(1).repeat_interleave(len(items))[row]
    return row % max(1, len(items)), memory.partners[entry].long(), weight


def mean_partners(scorer: Scorer, partners_of: Callable[[MemoryScorer, Tensor], Entries], like: CSR, most: int) -> CSR:
    """The strongest partners of new items: sums of those of the items that each is like, multiplied by the shares."""
    memory = scorer.scorers().get(MEMORY)
    like = like.filter(like.columns < (memory.num_items if isinstance(memory, MemoryScorer) else 0))
    assert like.values is not None
    if not isinstance(memory, MemoryScorer) or not len(like.columns):
        return like
    items, index = torch.unique(like.columns, return_inverse=True)
    row, partner, weight = (part.cpu() for part in partners_of(memory, items.to(memory.offsets.device)))
    partners, column = torch.unique(partner, return_inverse=True)
    new_items = group_rows(index, like.row_of_entry().int(), len(items), like.values)
    of_similar = group_rows(row, column.int(), len(items), weight)
    sums = sum_products(new_items, of_similar, max(len(like), len(partners)))
    return strongest(sums.row_of_entry(), partners[sums.columns.long()], sums.values, len(like), most)


def _new_edges(scorer: SumScorer, numbers: list[int], like: CSR, placements: Sequence[Placement]) -> PartnerEdges:
    """Edges of new items: the learned ones, or else those of the items they are like."""
    empty, new = torch.empty(0, dtype=torch.int64), torch.tensor(numbers)
    parts = [PartnerEdges(empty, empty, empty.float())]
    for number, placement in zip(numbers, placements, strict=True):
        if placement.sources is not None and placement.weights is not None:
            target = torch.full_like(placement.sources, number)
            parts.append(PartnerEdges(placement.sources, target, placement.weights))
    others = torch.tensor([placement.sources is None for placement in placements]).nonzero().squeeze(1)
    sources = mean_partners(scorer, incoming, like.take(others), MAX_SOURCES)
    partners = mean_partners(scorer, outgoing, like, PARTNERS)
    assert sources.values is not None
    assert partners.values is not None
    parts.append(PartnerEdges(sources.columns.long(), new[others][sources.row_of_entry()], sources.values))
    parts.append(PartnerEdges(new[partners.row_of_entry()], partners.columns.long(), partners.values))
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

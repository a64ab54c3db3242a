"""Edits of a model's items: copies of a model with items added, hidden or removed. The given model does not change."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.closed_form.cooccurrence import Entries, sum_products
from beamtree.data.csr import CSR, entries_of_rows, group_rows, offsets_of, strongest, sum_duplicates
from beamtree.data.ids import Ids
from beamtree.live.placement import MAX_SOURCES, RECENCY, FreeSlots, Placement
from beamtree.model import TreeModel
from beamtree.parts.memory import MEMORY
from beamtree.scorers import MemoryScorer, NewItems, Scorer, SumScorer, as_sum
from beamtree.scorers.memory import PARTNERS
from beamtree.tree import PAD, Tree

ADDED = "added"  # a part of a sum: partners of items added later


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
    names, placements = list(new), list(new.values())
    unknown = [name for name, number in zip(names, model.ids.find(names), strict=True) if number is None]
    ids = model.ids.extended(unknown) if unknown else model.ids
    numbers = ids.find_known(names)
    tree, scorer = model.tree, model.scorer
    while int((tree.items() == PAD).sum()) < len(names) + len(reserved):
        deeper = tree.with_extra_level()
        tree, scorer = deeper, scorer.with_extra_level(tree, deeper)
    if tree is not model.tree:  # its tables are new, and no search reads them yet
        reserved = ()
    counts = torch.tensor([len(placement.items) for placement in placements], dtype=torch.int64)
    similar = torch.cat([torch.empty(0, dtype=torch.int64), *(placement.items for placement in placements)])
    all_shares = torch.cat([torch.empty(0), *(placement.shares for placement in placements)])
    leaves = tree.leaf_of_item(similar.to(tree.device)).cpu()
    like = CSR(offsets_of(counts), similar, all_shares).filter(leaves != PAD)
    slots, ends = FreeSlots(tree, reserved), like.offsets.tolist()
    near = (leaves[leaves != PAD] - tree.level(tree.height).start).tolist()
    shares = all_shares[leaves != PAD].tolist()
    for number, (start, stop) in zip(numbers, pairwise(ends), strict=True):
        slots.take(slots.best(near[start:stop], shares[start:stop]), number)
    grown = tree.with_items(slots.tensor().to(tree.device), len(ids))
    learned = torch.tensor([placement.sources is not None for placement in placements], dtype=torch.bool)
    factors = {i: placement.factors for i, placement in enumerate(placements) if placement.factors is not None}
    items = NewItems(torch.tensor(numbers), like, learned, factors)
    scorer = scorer.with_items(tree, grown, items)
    if partners and (parts := as_sum(scorer)) is not None:
        scorer = _with_partners(parts, items, placements, len(ids))
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


# Partners of new items


class PartnerEdges(NamedTuple):
    """Partners as edges from item to item [E] each."""

    source: Tensor
    target: Tensor
    weight: Tensor

    def select(self, mask: Tensor) -> "PartnerEdges":
        """The edges of a mask [E]."""
        return PartnerEdges(self.source[mask], self.target[mask], self.weight[mask])


def _memory(scorer: Scorer, name: str) -> MemoryScorer:
    """A part of a sum that holds partners; one without any where there is none."""
    part = scorer.scorers().get(name)
    return part if isinstance(part, MemoryScorer) else MemoryScorer(0, 0)


def added_edges(scorer: Scorer) -> PartnerEdges:
    """The partners of items that were added later."""
    memory = _memory(scorer, ADDED)
    source = torch.repeat_interleave(memory.offsets.diff())
    return PartnerEdges(source.cpu(), memory.partners.long().cpu(), memory.weights.float().cpu())


def memory_of(edges: PartnerEdges, num_items: int) -> MemoryScorer:
    """A memory of these edges; the weights of equal pairs are summed."""
    key, weight = sum_duplicates(edges.source * num_items + edges.target, edges.weight)
    offsets = offsets_of(torch.bincount(key // num_items, minlength=num_items))
    return MemoryScorer.from_partners([CSR(offsets, (key % num_items).int(), weight)], [RECENCY])


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
    memory = _memory(scorer, MEMORY)
    like = like.filter(like.columns < memory.num_items)
    assert like.values is not None
    if not len(like.columns):
        return like
    items, index = torch.unique(like.columns, return_inverse=True)
    row, partner, weight = (part.cpu() for part in partners_of(memory, items.to(memory.offsets.device)))
    partners, column = torch.unique(partner, return_inverse=True)
    new_items = group_rows(index, like.row_of_entry().int(), len(items), like.values)
    of_similar = group_rows(row, column.int(), len(items), weight)
    sums = sum_products(new_items, of_similar, max(len(like), len(partners)))
    return strongest(sums.row_of_entry(), partners[sums.columns.long()], sums.values, len(like), most)


def _with_partners(scorer: SumScorer, items: NewItems, placements: Sequence[Placement], num_items: int) -> SumScorer:
    """The sum with partners of new items, in a part of their own: learned ones, or else those of similar items.

    Earlier partners of these items are dropped.
    """
    new, old = items.numbers, added_edges(scorer)
    parts = [old.select(~(torch.isin(old.source, new) | torch.isin(old.target, new)))]
    for number, placement in zip(new.tolist(), placements, strict=True):
        if placement.sources is not None and placement.weights is not None:
            target = torch.full_like(placement.sources, number)
            parts.append(PartnerEdges(placement.sources, target, placement.weights))
    others = (~items.learned).nonzero().squeeze(1)
    sources = mean_partners(scorer, incoming, items.like.take(others), MAX_SOURCES)
    partners = mean_partners(scorer, outgoing, items.like, PARTNERS)
    assert sources.values is not None
    assert partners.values is not None
    parts.append(PartnerEdges(sources.columns.long(), new[others][sources.row_of_entry()], sources.values))
    parts.append(PartnerEdges(new[partners.row_of_entry()], partners.columns.long(), partners.values))
    edges = PartnerEdges(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
    return scorer.with_parts({ADDED: memory_of(edges, num_items).to(scorer.weights.device)})

"""Items that come and go without training: a model with more of them, or fewer."""

from collections.abc import Mapping, Sequence

import torch

from beamtree.data.ids import Ids, MoreIds
from beamtree.live.likeness import Likeness
from beamtree.live.memory import MEMORY, Entries, joined, speak_for, speaks, with_entries
from beamtree.live.slots import Slots
from beamtree.model import TreeModel
from beamtree.scorers import FactorScorer, MemoryScorer, Scorer, SumScorer, TableScorer
from beamtree.tree import PAD, Tree


def with_items(model: TreeModel, new: Mapping[str, Likeness], resting: Sequence[int] = ()) -> TreeModel:
    """The model with new items, each on a free slot beside what it is like; a level is added where there is none.

    Its rows are those of the items that it is like, by their shares, and so is what is remembered. Rows of free slots
    are written in place: no search enters them before the tree does. The model that was given goes on as it was. Where
    searches in an older one may still run, `resting` are slots that had an item there.
    """
    if model.ids is None:
        raise ValueError("the items of this model have numbers and no ids: items are added by id")
    names = list(new)
    unknown = [name for name, number in zip(names, model.ids.find(names), strict=True) if number is None]
    ids = MoreIds(model.ids, unknown) if unknown else model.ids
    numbers = ids.known(names)
    tree, scorer = _with_room(model.tree, model.scorer, len(names) + len(resting))
    if tree is not model.tree:  # rows of its own, in which nobody searches yet
        resting = ()
    slots, first = Slots(tree, resting), tree.level(tree.height).start
    for number, like in zip(numbers, new.values(), strict=True):
        near = tree.leaf_of_item(like.items.to(tree.device)).cpu()
        there = near != PAD
        slots.take(slots.best(near[there] - first, like.shares[there]), number)
    grown = tree.with_items(slots.tensor().to(tree.device), len(ids))
    for table in _tables(scorer):
        _put_rows(table, tree, grown, numbers, list(new.values()))
    if isinstance(scorer, SumScorer):
        scorer = with_entries(scorer, _entries(scorer, numbers, new), torch.tensor(numbers), len(ids))
    return _model(model, grown, scorer, ids)


def hiding(model: TreeModel, numbers: Sequence[int]) -> TreeModel:
    """The model in which these items are hidden and no others: they keep their slots and rows, and nothing finds them.

    Shown again they are found as before.
    """
    return _model(model, model.tree.hiding(torch.tensor(list(numbers), dtype=torch.int64)), model.scorer, model.ids)


def without_items(model: TreeModel, numbers: Sequence[int]) -> TreeModel:
    """The model without some items: nothing finds them, and their slots are free. Their numbers stay theirs."""
    tree = model.tree
    slots = tree.items().clone()
    leaves = tree.leaf_of_item(torch.tensor(list(numbers), dtype=torch.int64, device=tree.device))
    slots[leaves[leaves != PAD] - tree.level(tree.height).start] = PAD
    return _model(model, tree.with_items(slots, tree.num_items), model.scorer, model.ids)


def _with_room(tree: Tree, scorer: Scorer, count: int) -> tuple[Tree, Scorer]:
    """The tree and its scorer, with levels added until so many slots are free."""
    while int((tree.items() == PAD).sum()) < count:
        deeper = tree.deeper()
        if not isinstance(scorer, TableScorer):
            raise ValueError(f"the tree is full, and {type(scorer).__name__} cannot be given another level")
        tree, scorer = deeper, scorer.deeper(tree, deeper)
    return tree, scorer


def _tables(scorer: Scorer) -> list[TableScorer]:
    if isinstance(scorer, SumScorer):
        return list(scorer.tables().values())
    return [scorer] if isinstance(scorer, TableScorer) else []


def _put_rows(table: TableScorer, old: Tree, new: Tree, numbers: list[int], likes: list[Likeness]) -> None:
    """Let the leaves of new items be known by what they are like."""
    leaves = new.leaf_of_item(torch.tensor(numbers, device=new.device))
    known, rows = table.table.read(old, share=table.share), []
    for like in likes:
        if like.factors is not None and isinstance(table, FactorScorer):
            rows.append(like.factors.to(new.device))
            continue
        near = old.leaf_of_item(like.items.to(old.device))
        shares = like.shares.to(old.device) * (near != PAD)
        rows.append((known.at(near).float() * shares.unsqueeze(1)).sum(0) / shares.sum().clamp(min=1e-9))
    table.put_vectors(new, leaves, torch.stack(rows))


def _entries(scorer: SumScorer, numbers: list[int], new: Mapping[str, Likeness]) -> Entries:
    """What is remembered of new items: what was learned of each, or else what is said of those that it is like."""
    nothing = torch.empty(0, dtype=torch.int64)
    found = [Entries(nothing, nothing, nothing.float())]
    memory = scorer.part(MEMORY) if MEMORY in scorer.names else None
    for number, like in zip(numbers, new.values(), strict=True):
        if like.sources is not None and like.weights is not None:
            found.append(Entries(like.sources, torch.full_like(like.sources, number), like.weights))
        if isinstance(memory, MemoryScorer):
            fitted = like.items < memory.num_items
            known = like.items[fitted], like.shares[fitted]
            if like.sources is None:
                found.append(speak_for(memory, *known, number))
            found.append(speaks(memory, *known, number))
    return joined(found)


def _model(model: TreeModel, tree: Tree, scorer: Scorer, ids: Ids | None) -> TreeModel:
    """A model of the same kind with another tree."""
    found = model.with_scorer(scorer, tree)
    found.ids = ids
    if model.popularity is not None and len(model.popularity) < tree.num_items:
        more = tree.num_items - len(model.popularity)
        found.popularity = torch.nn.functional.pad(model.popularity, (0, more))
    return found.eval()

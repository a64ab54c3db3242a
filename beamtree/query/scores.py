"""Scores of given items and vectors of users, for any number of histories.

Histories come in batches, which are searched or scored together. Nothing is done item by item in Python but for
reading and writing ids.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beamtree.data.ids import as_given
from beamtree.model import TreeModel
from beamtree.query.history import History, id_list, model_input, pad_rows
from beamtree.query.response import repeated
from beamtree.query.search import Searcher, popularity_in, shares_of_events
from beamtree.scorers import DotProductScorer
from beamtree.tree import PAD

ITEMS_AT_ONCE = 1 << 14  # that are scored together for each history
PAIRS_AT_ONCE = 1 << 18  # of a history and an item


def score_columns(
    searcher: Searcher,
    key: str,
    names: Sequence[Any] | np.ndarray,
    batches: Iterable[list[History]],
    items: Any,
    *,
    of_users: bool = False,
) -> dict[str, Any]:
    """The scores of given ids as columns: the key, item as it was given, and score, None where an item has none.

    Args:
        searcher: of a model.
        key: the name of the column that tells the histories apart, empty for none.
        names: the values of that column, one for each history.
        batches: the histories.
        items: ids for all histories, or a list of lists with one for each.
        of_users: whether these are those of users: then a last column `popular` says whose scores are those of popular
            items, because nothing is known of the user.
    """
    lists = id_list(items)
    if any(not isinstance(row, str) and isinstance(row, Iterable) for row in lists):
        lists = [id_list(row) for row in lists]
        if len(lists) != len(names):
            found = f"{len(lists):,} lists of items for {len(names):,} histories"
            raise ValueError(f"{found}: give one list for each history, or one for all")
    else:
        lists = [lists]
    numbers = [[PAD if number is None else number for number in searcher.ids.find(row)] for row in lists]
    is_shared, scores, popular, start = len(lists) == 1, list[float](), list[bool](), 0
    for batch in batches:
        popular += [searcher.is_popular(history.items) for history in batch]
        rows = numbers if is_shared else numbers[start : start + len(batch)]
        padded = pad_rows(rows, max(map(len, rows)))
        real = (torch.arange(padded.shape[1]) < torch.tensor(list(map(len, rows))).unsqueeze(1)).expand(len(batch), -1)
        at_once = max(1, PAIRS_AT_ONCE // max(1, padded.shape[1]))
        for first in range(0, len(batch), at_once):
            some = slice(first, first + at_once)
            values = score_items(searcher, batch[some], padded if is_shared else padded[some])
            scores += values.double().cpu()[real[some]].tolist()
        start += len(batch)
    lists = lists * len(names) if is_shared else lists
    counts = list(map(len, lists))
    columns: dict[str, Any] = {key: repeated(names, counts)} if key else {}
    columns["item"] = as_given([item for row in lists for item in row], integer=searcher.ids.integer)
    columns["score"] = [None if score != score else score for score in scores]  # NaN is not itself
    if of_users:
        columns["popular"] = np.repeat(np.array(popular, bool), counts)
    return columns


@torch.no_grad()
def score_items(searcher: Searcher, histories: list[History], items: Tensor) -> Tensor:
    """The scores of given items [B or 1, W] for each history, as `Searcher.search` gives them [B, W].

    Every item is scored by itself, whether a beam would find it or not. NaN for PAD and for hidden items.
    """
    model, tree = searcher.model, searcher.model.tree
    items = items.to(tree.device)
    leaves = tree.leaf_of_item(items)
    query = model.query(model_input(model, histories))
    scores = torch.cat([query.log_prob(tree.height, some) for some in leaves.split(ITEMS_AT_ONCE, dim=1)], dim=1).exp()
    popular = torch.tensor([searcher.is_popular(history.items) for history in histories], device=tree.device)
    if bool(popular.any()):
        known = items.clamp(min=0)
        counts = popularity_in(model)
        shares = shares_of_events(counts)[known].to(scores).expand_as(scores)
        scores = torch.where(popular.unsqueeze(1), shares, scores)
        for row in (row for row in popular.nonzero().squeeze(1).tolist() if histories[row].context):
            shares = shares_of_events(popularity_in(model, histories[row].context))
            scores[row] = shares[known[min(row, len(known) - 1)]]
    return scores.masked_fill(~tree.mask.allows(leaves), torch.nan)


def item_vectors(searcher: Searcher) -> dict[str, Any]:
    """The vectors of the items that are not hidden, as columns: see `TreeModel.vectors_of`."""
    slots = searcher.model.tree.visible().cpu()
    visible = slots[slots != PAD].sort().values
    return {"item": searcher.ids.column(visible.numpy()), "vector": searcher.model.vectors_of(visible).numpy()}


@torch.no_grad()
def user_vectors(model: TreeModel, batches: Iterable[list[History]]) -> Tensor:
    """u(x) of each history in the part of `TreeModel.vector_part` [N, dim]."""
    part = model.vector_part()
    if not isinstance(part, DotProductScorer):
        raise ValueError(f"a {type(part).__name__} has no vectors of users: only factors and sequences have")
    columns = model.scorer.columns
    rows = (columns.narrowed(model_input(model, batch), part.columns, part.history) for batch in batches)
    vectors = [part.prepare(model.tree, x).user.float().cpu() for x in rows]
    return torch.cat(vectors) if vectors else torch.empty(0, part.table.weight.shape[1])

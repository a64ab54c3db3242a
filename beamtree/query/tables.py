"""Answers for any number of histories as columns: ranked items, scores of given items, and vectors.

Histories come in batches, which are searched or scored together. Nothing is done item by item in Python but for
reading and writing ids.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beamtree.beam import DEFAULT_BEAM_SIZE
from beamtree.data.ids import as_given
from beamtree.model import TreeModel
from beamtree.progress import Reporter
from beamtree.query.history import History, model_input, pad_histories, pad_rows
from beamtree.query.searcher import Recommendation, RecommendRequest, Searcher, popularity_in, shares_of_events
from beamtree.scorers import DotProductScorer
from beamtree.tree import PAD

PROGRESS_SECONDS = 3.0  # after which a terminal shows progress
ITEMS_AT_ONCE = 1 << 14  # that are scored together for each history
PAIRS_AT_ONCE = 1 << 18  # of a history and an item


def ranked_columns(
    searcher: Searcher,
    request: RecommendRequest,
    key: str,
    names: Sequence[Any] | np.ndarray,
    batches: Iterable[list[History]],
    *,
    of_users: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """The best items of each history as columns: the key, rank, item and score; best first.

    Args:
        searcher: of a model.
        request: m, beam size and filters; its histories are not read.
        key: the name of the column that tells the histories apart, empty for none.
        names: the values of that column, one for each history.
        batches: the histories.
        of_users: whether these are those of users: then a last column `popular` says whether items are popular ones,
            because nothing is known of the user.

    Also returns an unknown id of each history without a known item. A terminal shows progress if it takes long.
    """
    mask, _ = searcher.mask_of(request.filter)
    beam_size = max(DEFAULT_BEAM_SIZE, request.m) if request.beam_size is None else request.beam_size
    answers: list[Recommendation] = []  # by rules
    all_items, all_scores = [np.empty((0, request.m), np.int64)], [np.empty((0, request.m), np.float32)]
    unknown, popular, done = [], list[bool](), 0
    with Reporter(sys.stderr.isatty(), PROGRESS_SECONDS) as report:
        report.progress("Recommending", 0, len(names))
        for batch in batches:
            if request.rules is not None:
                answers += searcher.select(batch, beam_size, [request.m] * len(batch), request)
            else:
                items, scores = searcher.search(batch, beam_size, request.m, request.exclude_seen, mask)
                all_items.append(items.cpu().numpy())
                all_scores.append(scores.cpu().numpy())
            unknown += [history.unknown[0] for history in batch if history.unknown and not history.items]
            popular += [searcher.is_popular(history.items) for history in batch]
            done += len(batch)
            report.progress("Recommending", done, len(names))
    columns: dict[str, Any] = {}
    if request.rules is not None:
        counts = np.array([len(answer.items) for answer in answers], np.int64)
        columns["rank"] = [rank for answer in answers for rank in range(1, len(answer.items) + 1)]
        ids = searcher.ids.as_logged(item for answer in answers for item in answer.items)
        columns["item"] = as_given(ids, integer=searcher.ids.integer)
        columns["score"] = [score for answer in answers for score in answer.scores]
        columns["rules"] = ["; ".join(decided) for answer in answers for decided in answer.rules or ()]
    else:
        found = np.concatenate(all_items)
        real = found != PAD
        counts = real.sum(1)
        columns["rank"] = np.broadcast_to(np.arange(1, request.m + 1), real.shape)[real]
        columns["item"] = searcher.ids.column(found[real])
        columns["score"] = np.concatenate(all_scores)[real].astype(np.float64)
    if of_users:
        columns["popular"] = np.repeat(np.array(popular, bool), counts)
    return ({key: repeated(names, counts)} if key else {}) | columns, unknown


def repeated(names: Sequence[Any] | np.ndarray, counts: np.ndarray | list[int]) -> Any:
    """Each of some values as often as `counts` says, as a column."""
    if isinstance(names, np.ndarray):
        return np.repeat(names, counts)
    return np.repeat(np.array(names, object), counts).tolist()


def score_columns(
    searcher: Searcher,
    key: str,
    names: Sequence[Any] | np.ndarray,
    batches: Iterable[list[History]],
    items: Sequence[Sequence[object]],
    *,
    of_users: bool = False,
) -> dict[str, Any]:
    """The scores of given ids as columns: the key, item as it was given, and score, None where an item has none.

    Args:
        searcher: of a model.
        key: the name of the column that tells the histories apart, empty for none.
        names: the values of that column, one for each history.
        batches: the histories.
        items: ids: one list for each history, or a single one for all.
        of_users: as in `ranked_columns`.
    """
    numbers = [[PAD if number is None else number for number in searcher.ids.find(row)] for row in items]
    is_shared, scores, popular, start = len(items) == 1, list[float](), list[bool](), 0
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
    lists = [*items] * len(names) if is_shared else items
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


@torch.no_grad()
def user_vectors(model: TreeModel, batches: Iterable[list[History]]) -> Tensor:
    """u(x) of each history in the part of `TreeModel.vector_part` [N, dim]."""
    part = model.vector_part()
    if not isinstance(part, DotProductScorer):
        raise ValueError(f"a {type(part).__name__} has no vectors of users: only factors and sequences have")
    rows = (pad_histories([history.items for history in batch]).to(model.tree.device) for batch in batches)
    vectors = [part.context(model.tree, x).user.float().cpu() for x in rows]
    return torch.cat(vectors) if vectors else torch.empty(0, part.table.weight.shape[1])

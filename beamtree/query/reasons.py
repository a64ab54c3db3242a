"""Why an item has its score for a history: what each event gives, by each part of the score."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from beamtree.data.ids import as_id
from beamtree.query.history import History, model_input
from beamtree.query.response import repeated
from beamtree.query.search import Searcher, popularity_in, shares_of_events
from beamtree.scorers.context import CONTEXT
from beamtree.scorers.popularity import POPULARITY
from beamtree.tree import PAD


class Reason(NamedTuple):
    """What an event of a history gives to the score of an item by one part; without an event, what no event gives."""

    event: int | None  # the number of its item
    place: int | None  # 1 for the newest event
    part: str
    column: str | None  # of the context
    contribution: float  # in the units of the sum of the parts, before it becomes a probability
    total: float  # what the event gives by all parts; without an event, what no event gives


@torch.no_grad()
def reasons(searcher: Searcher, histories: Sequence[History], items: Sequence[int]) -> list[list[list[Reason]]]:
    """The reasons for the score of each of some items that have leaves, for each history. Their sum is the score.

    Events that raise it come first, that which gives most before all others. Then comes what no event gives, and last
    the events that lower it. Without a known item in the history, items are scored by how popular they are.
    """
    popular = [searcher.is_popular(history.items) for history in histories]
    others = [history for history, is_popular in zip(histories, popular, strict=True) if not is_popular]
    by_model = iter(_of_model(searcher, others, items) if others and items else [[]] * len(others))
    return [
        _of_popularity(searcher, history, items) if is_popular else next(by_model)
        for history, is_popular in zip(histories, popular, strict=True)
    ]


def _of_model(searcher: Searcher, histories: Sequence[History], items: Sequence[int]) -> list[list[list[Reason]]]:
    model = searcher.model
    x, columns = model_input(model, histories), list(model.scorer.context_values)
    found = model.contributions(x, torch.tensor([list(items)], dtype=torch.int64, device=x.device))
    names, parts = list(found), [torch.cat([part.entries, part.rest.unsqueeze(2)], dim=2) for part in found.values()]
    given = torch.stack(parts, dim=2)  # by events, values of the context, and none of them [B, W, parts, X + 1]
    by_event = given.sum(2)
    count, first_value = model.scorer.histories(x).shape[1], x.shape[1] - len(columns)
    by_none = by_event[:, :, count:].sum(2).tolist()
    index = given.nonzero()
    rows: list[list[list[Reason]]] = [[[] for _ in items] for _ in histories]
    totals, values = by_event[index[:, 0], index[:, 1], index[:, 3]].tolist(), given[tuple(index.T)].tolist()
    for (user, item, part, entry), value, total in zip(index.tolist(), values, totals, strict=True):
        if entry < count:
            reason = Reason(histories[user].items[-1 - entry], entry + 1, names[part], None, value, total)
        else:
            column = columns[entry - first_value] if first_value <= entry < x.shape[1] else None
            reason = Reason(None, None, names[part], column, value, by_none[user][item])
        rows[user][item].append(reason)
    return [[sorted(of_item, key=_order) for of_item in of_user] for of_user in rows]


def _order(reason: Reason) -> tuple[int, float, int, float]:
    """Events that raise a score, what no event gives, and events that lower it."""
    group = 1 if reason.place is None else 0 if reason.total > 0 else 2
    return group, -reason.total, reason.place or 0, -reason.contribution


def _of_popularity(searcher: Searcher, history: History, items: Sequence[int]) -> list[list[Reason]]:
    """The shares of all events, and how much more or less they are in the context."""
    shares: list[list[float]] = []
    for context in ((), history.context):
        counts = popularity_in(searcher.model, context)
        shares.append(shares_of_events(counts)[list(items)].tolist())
    return [
        [
            Reason(None, None, part, None, value, score)
            for part, value in ((POPULARITY, share), (CONTEXT, score - share))
            if value
        ]
        for share, score in zip(*shares, strict=True)
    ]


def reason_columns(searcher: Searcher, rows: Sequence[Reason]) -> dict[str, list[Any]]:
    """Reasons as columns, with ids as text and titles; `column` where the model reads contexts."""
    names, titles = searcher.ids.names, None if searcher.catalogue is None else searcher.catalogue.titles
    with_contexts = bool(searcher.model.scorer.context_values)
    return {
        "event": [None if row.event is None else names[row.event] for row in rows],
        "event_title": [None if row.event is None or titles is None else titles[row.event] for row in rows],
        "place": [row.place for row in rows],
        "part": [row.part for row in rows],
        **({"column": [row.column for row in rows]} if with_contexts else {}),
        "contribution": [row.contribution for row in rows],
        "total": [row.total for row in rows],
    }


def explained_items(searcher: Searcher, items: Sequence[object]) -> list[int]:
    """The numbers of items to explain; a ValueError for one that is unknown or has no score."""
    if not items:
        raise ValueError("there is nothing to explain: give the ids of items")
    numbers, tree = searcher.ids.find(items), searcher.model.tree
    for item, number in zip(items, numbers, strict=True):
        if number is None:
            raise ValueError(f"there is no item {as_id(item)[:80]!r}")
        if int(tree.leaf_of_item(torch.tensor(number, device=tree.device))) == PAD:
            raise ValueError(f"item {as_id(item)[:80]!r} was forgotten, so it has no score: add it again")
    return [number for number in numbers if number is not None]


def explain_columns(
    searcher: Searcher,
    key: str,
    names: Sequence[Any] | np.ndarray,
    batches: Iterable[list[History]],
    items: Sequence[int],
) -> tuple[dict[str, Any], list[str]]:
    """The reasons for the scores of items for each history as columns, best first.

    Args:
        searcher: of a model.
        key: the name of the column that tells the histories apart, empty for none.
        names: the values of that column, one for each history.
        batches: the histories.
        items: numbers of items that have leaves.

    Also returns an unknown id of each history without a known item.
    """
    rows, unknown = list[tuple[int, Reason]](), list[str]()
    counts = []  # of the rows of each history
    for batch in batches:
        unknown += [history.unknown[0] for history in batch if history.unknown and not history.items]
        for of_user in reasons(searcher, batch, items):
            found = [(item, row) for item, of_item in zip(items, of_user, strict=True) for row in of_item]
            counts.append(len(found))
            rows += found
    titles = None if searcher.catalogue is None else searcher.catalogue.titles
    columns: dict[str, Any] = {key: repeated(names, counts)} if key else {}
    columns["item"] = searcher.ids.column(np.array([item for item, _ in rows], np.int64))
    columns["title"] = [None if titles is None else titles[item] for item, _ in rows]
    columns |= reason_columns(searcher, [row for _, row in rows])
    columns["event"] = [None if row.event is None else searcher.ids[row.event] for _, row in rows]
    return columns, unknown

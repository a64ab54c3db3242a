"""The answer to a request: arrays of items and scores, from which frames, JSON and files are made."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from beamtree.beam import BeamSize
from beamtree.data import Ids
from beamtree.data.catalogue import Catalogue
from beamtree.query.request import Names
from beamtree.tree import PAD


class Recommendation(NamedTuple):
    """The items for one history, best first."""

    items: list[str]  # ids; fewer than m where fewer are available
    scores: list[float]  # p_g(z_n = 1 | x); for popular items, their share of all events; both times the boosts
    num_known: int  # items of the history that the model knows
    unknown: Sequence[str]  # ids of the history that it does not know
    is_popular: bool = False  # whether these are the most popular items, because no item of the history is known
    rules: Sequence[Sequence[str]] | None = None  # for each item the rules that decided its place; None without rules


@dataclass(eq=False)
class RecommendResponse:
    """The items for each of the N histories or users of a request, in order."""

    items: np.ndarray  # numbers of items, best first, PAD where fewer than m are available [N, m]
    scores: np.ndarray  # as in `Recommendation`, anything at PAD [N, m]
    rules: list[list[list[str]]] | None  # as in `Recommendation`
    num_known: list[int]
    unknown: list[Sequence[str]]
    is_popular: list[bool]
    ids: Ids
    beam_size: BeamSize  # that was searched with
    _: KW_ONLY
    version: str = ""  # of the model
    catalogue: Catalogue | None = None  # titles and categories
    num_allowed: int | None = None  # items that pass the filter; None without a filter
    short: int = 0  # results with fewer than m items although more were available
    unknown_users: Sequence[str] = ()
    narrowed_from: BeamSize | None = None  # the requested beam size, where the service narrowed it under load
    queue_seconds: float = 0.0
    search_seconds: float = 0.0
    batch_size: int = 1  # histories that were searched together

    @cached_property
    def results(self) -> list[Recommendation]:
        """One result for each history or user, with ids as text."""
        name, results = self.ids.name, []
        rules = [None] * len(self.items) if self.rules is None else self.rules
        columns = self.items.tolist(), self.scores.tolist(), self.num_known, self.unknown, self.is_popular, rules
        for items, scores, *facts in zip(*columns, strict=True):
            if items[-1] == PAD:
                items = items[: items.index(PAD)]
            results.append(Recommendation(list(map(name, items)), scores[: len(items)], *facts))
        return results

    @property
    def without_known(self) -> list[str]:
        """An unknown id of each history that has unknown items alone."""
        return [
            unknown[0] for unknown, known in zip(self.unknown, self.num_known, strict=True) if unknown and not known
        ]

    def columns(self, key: str, names: Names, *, popular: bool = False) -> dict[str, Any]:
        """All results as columns of a table: the key, rank, item, score, and `rules` where there were some; best first.

        Args:
            key: the name of the column that tells the histories apart, empty for none.
            names: the values of that column, one for each history.
            popular: whether a last column `popular` says whether items are popular ones.
        """
        is_item = self.items != PAD
        counts = is_item.sum(1)
        columns: dict[str, Any] = {key: repeated(names, counts)} if key else {}
        columns["rank"] = np.broadcast_to(np.arange(1, is_item.shape[1] + 1), is_item.shape)[is_item]
        columns["item"] = self.ids.column(self.items[is_item])
        columns["score"] = self.scores[is_item].astype(np.float64)
        if self.rules is not None:
            columns["rules"] = ["; ".join(of_item) for answer in self.rules for of_item in answer]
        if popular:
            columns["popular"] = np.repeat(np.array(self.is_popular, bool), counts)
        return columns


def joined(parts: Sequence[RecommendResponse]) -> RecommendResponse:
    """The responses to `RecommendRequest.batches` as one."""
    first, *others = parts
    if not others:
        return first
    return replace(
        first,
        items=np.concatenate([part.items for part in parts]),
        scores=np.concatenate([part.scores for part in parts]),
        rules=None if first.rules is None else [row for part in parts for row in part.rules or ()],
        num_known=[count for part in parts for count in part.num_known],
        unknown=[ids for part in parts for ids in part.unknown],
        is_popular=[is_popular for part in parts for is_popular in part.is_popular],
        short=sum(part.short for part in parts),
        unknown_users=[user for part in parts for user in part.unknown_users],
    )


def column_types(columns: Mapping[str, Any]) -> dict[str, type] | None:
    """The types of the columns of an answer, which empty ones do not show; None where one has no fixed type."""
    types: dict[str, type] = {"history": int, "rank": int, "score": float, "rules": str, "popular": bool}
    types |= {"title": str, "event_title": str, "place": int, "part": str, "column": str}
    types |= {"contribution": float, "total": float}
    ids = (name for name in ("user", "similar_to", "item") if name in columns)
    types |= {name: int if isinstance(columns[name], np.ndarray) else str for name in ids}
    types["event"] = types.get("item", str)  # with gaps, so that it is no array
    return types if all(name in types for name in columns) else None


def repeated(names: Names, counts: np.ndarray | list[int]) -> Any:
    """Each of some values as often as `counts` says, as a column."""
    if isinstance(names, np.ndarray):
        return np.repeat(names, counts)
    return np.repeat(np.array(names, object), counts).tolist()

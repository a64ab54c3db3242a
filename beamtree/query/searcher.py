"""The search behind every recommendation: `RecommendRequest` in, `RecommendResponse` out.

The HTTP service, `Recommender` and the batch command all build a `RecommendRequest` and hand it to a `Searcher`, which
encodes the histories, calls `beamtree.beam.retrieve` and translates the items back to ids.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.beam import DEFAULT_BEAM_SIZE, BeamSize, retrieve, retrieve_each, widths
from beamtree.data import Ids
from beamtree.data.catalogue import Catalogue
from beamtree.data.contexts import Context
from beamtree.data.ids import as_id
from beamtree.mask import NodeMask
from beamtree.model import TreeModel
from beamtree.query.history import (
    UNKNOWN_USER,
    History,
    encode_history,
    id_list,
    in_context,
    model_input,
    pad_rows,
)
from beamtree.query.rules import POOL, Boost, Rules
from beamtree.query.selection import AppliedRules, Found, Groups, Selection, Values, Where, values_of, where_of
from beamtree.scorers import context_part
from beamtree.threads import ChangeLock, one_thread
from beamtree.tree import PAD

K = TypeVar("K")
V = TypeVar("V")
CACHED_MASKS = 32
CACHED_RULES = 8


class Filter(NamedTuple):
    """Which items may be recommended: those that meet all of these conditions."""

    allowed: tuple[str, ...] | None = None  # ids; all items if None
    exclude: tuple[str, ...] = ()  # ids
    category: str | None = None  # or below it
    where: str | None = None  # an expression over attributes, see `Catalogue.where`


class RecommendRequest(NamedTuple):
    """A request for the m best items for each history, or for each user."""

    histories: Sequence[Sequence[object]] = ()  # ids, oldest first
    users: Sequence[str] | None = None  # instead of histories
    m: int = 10
    beam_size: BeamSize | None = None  # k, or one width per level; DEFAULT_BEAM_SIZE (or m) if None
    exclude_seen: bool = False  # whether to leave out the items of the history, as dislikes of a user always are
    filter: Filter | None = None
    rules: Rules | None = None
    context: Context | None = None  # of all histories

    @property
    def rows(self) -> int:
        """The number of histories or users."""
        return len(self.histories if self.users is None else self.users)

    @property
    def needs_attributes(self) -> bool:
        """Whether an answer depends on attributes of the items."""
        by_filter = self.filter is not None and self.filter.where is not None
        return by_filter or (self.rules is not None and self.rules.needs_attributes)


class Recommendation(NamedTuple):
    """The items for one history, best first."""

    items: list[str]  # ids; fewer than m where fewer are available
    scores: list[float]  # p_g(z_n = 1 | x); for popular items, their share of all events; both times the boosts
    num_known: int  # items of the history that the model knows
    unknown: Sequence[str]  # ids of the history that it does not know
    is_popular: bool = False  # whether these are the most popular items, because no item of the history is known
    rules: Sequence[Sequence[str]] | None = None  # for each item the rules that decided its place; None without rules


class RecommendResponse(NamedTuple):
    """One result per history or user of a request, in order."""

    results: list[Recommendation]
    beam_size: BeamSize  # that was searched with
    version: str = ""  # of the model
    catalogue: Catalogue | None = None  # titles and categories
    num_allowed: int | None = None  # items that pass the filter; None without a filter
    short: int = 0  # results with fewer than m items although more were available
    unknown_users: Sequence[str] = ()
    narrowed_from: BeamSize | None = None  # the requested beam size, where the service narrowed it under load
    queue_seconds: float = 0.0
    search_seconds: float = 0.0
    batch_size: int = 1  # histories that were searched together


def make_filter(
    allowed: Iterable[object] | None = None,
    exclude: Iterable[object] | None = None,
    category: str | None = None,
    where: str | None = None,
) -> Filter | None:
    """The filter for ids of any type; None where it would allow all items."""
    if allowed is None and exclude is None and category is None and where is None:
        return None
    if where is not None and not isinstance(where, str):
        raise ValueError(f"where is a {type(where).__name__}: give text such as \"category == 'lamps' and price < 50\"")

    def names(values: Iterable[object]) -> tuple[str, ...]:
        return tuple(value if type(value) is str else as_id(value) for value in id_list(values))

    return Filter(
        None if allowed is None else names(allowed), () if exclude is None else names(exclude), category, where
    )


def similar_request(ids: Ids, items: Sequence[object], m: int) -> tuple[RecommendRequest, list[str]]:
    """The request for items similar to each of some items: the recommendations after a single event of that item.

    Unknown items are left out and returned; a ValueError if all are unknown.
    """
    found = list(zip(items, ids.find(items), strict=True))
    known = [[item] for item, number in found if number is not None]
    unknown = [as_id(item) for item, number in found if number is None]
    if unknown and not known:
        raise ValueError(f"there is no item {unknown[0][:80]!r}")
    return RecommendRequest(known, m=m, exclude_seen=True), unknown


def allowed_items(filter: Filter, ids: Ids, catalogue: Catalogue | None = None, where: Where | None = None) -> Tensor:
    """The numbers of the items that pass a filter; unknown ids are ignored. `where` evaluates its expression."""
    passes = torch.full((len(ids),), filter.allowed is None)
    if filter.allowed is not None:
        passes[ids.find_known(filter.allowed)] = True
    if filter.category is not None:
        in_category = torch.zeros_like(passes)
        in_category[[] if catalogue is None else catalogue.in_category(filter.category)] = True
        passes &= in_category
    if filter.where is not None:
        passes &= torch.from_numpy(np.array((where or where_of(catalogue))(filter.where)))
    passes[ids.find_known(filter.exclude)] = False
    return passes.nonzero().squeeze(1)


def columns_of(
    catalogue: Catalogue | None, filter: Filter | None, boosts: Iterable[Boost] = (), limits: Iterable[str] = ()
) -> list[str]:
    """The columns that a filter, boosts and limits read."""
    expressions = [*(boost.where for boost in boosts), None if filter is None else filter.where]
    names = list(limits) if filter is None or filter.category is None else [*limits, "category"]
    for where in expressions:
        if catalogue is not None and where is not None:
            names += catalogue.columns_read(where)
    return names


class Recent(Generic[K, V]):
    """The most recently used of values that are made when they are asked for, and again when a column changed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[K, tuple[V, dict[str, object]]] = OrderedDict()

    def get(
        self, key: K, make: Callable[[], V], catalogue: Catalogue | None, columns: Callable[[], Iterable[str]]
    ) -> V:
        """The value of a key, which is made from columns of a catalogue."""

        def column(name: str) -> object:
            return None if catalogue is None else catalogue.column(name)

        entry = self._entries.get(key)
        if entry is None or any(column(name) is not before for name, before in entry[1].items()):
            entry = self._entries[key] = make(), {name: column(name) for name in columns()}
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)
        self._entries.move_to_end(key)
        return entry[0]

    def clear(self) -> None:
        """Forget all values."""
        self._entries.clear()


class MaskCache:
    """The masks of the most recently used filters and rules, for one model at a time.

    They stay while the columns that they read are the same. What takes longest is kept apart: what expressions and
    columns say about the items stays where only the model changes, as when an item is hidden, and the groups of boosted
    items where a request has other pins or limits.
    """

    def __init__(self) -> None:
        self._lock = ChangeLock()
        self._model: TreeModel | None = None
        self._where: Recent[tuple[str, int], np.ndarray] = Recent(CACHED_MASKS)
        self._values: Recent[tuple[str, int], np.ndarray] = Recent(CACHED_RULES)
        self._masks: Recent[Filter, tuple[NodeMask, int]] = Recent(CACHED_MASKS)
        self._groups: Recent[tuple[Filter | None, tuple[Boost, ...]], Groups] = Recent(CACHED_RULES)
        self._rules: Recent[tuple[Filter | None, Rules], AppliedRules] = Recent(CACHED_RULES)

    def get(
        self, filter: Filter, model: TreeModel, ids: Ids, catalogue: Catalogue | None = None
    ) -> tuple[NodeMask, int]:
        """The mask of a filter, and how many items it allows."""

        def make() -> tuple[NodeMask, int]:
            mask = model.tree.allow(allowed_items(filter, ids, catalogue, self._where_of(catalogue)))
            return mask, int((mask.slots & (model.tree.items() != PAD)).sum())

        with self._lock:
            self._begin(model)
            return self._masks.get(filter, make, catalogue, lambda: columns_of(catalogue, filter))

    def apply(
        self, rules: Rules, filter: Filter | None, model: TreeModel, ids: Ids, catalogue: Catalogue | None = None
    ) -> AppliedRules:
        """Rules for the items that a filter allows."""
        tree, boosts = model.tree, rules.boosts

        def make_groups() -> Groups:
            mask = None if filter is None else self.get(filter, model, ids, catalogue)[0]
            return Groups.of(boosts, tree, ids, mask, self._where_of(catalogue))

        def make() -> AppliedRules:
            groups = self._groups.get(
                (filter, boosts), make_groups, catalogue, lambda: columns_of(catalogue, filter, boosts)
            )
            return AppliedRules.in_groups(groups, rules, tree, ids, self._values_of(catalogue))

        def columns() -> list[str]:
            return columns_of(catalogue, filter, boosts, (column for column, _ in rules.at_most))

        with self._lock:
            self._begin(model)
            return self._rules.get((filter, rules), make, catalogue, columns)

    def _where_of(self, catalogue: Catalogue | None) -> Where:
        if catalogue is None:
            return where_of(None)
        return lambda expression: self._where.get(
            (expression, len(catalogue.ids)),
            lambda: catalogue.passes(expression),
            catalogue,
            lambda: catalogue.columns_read(expression),
        )

    def _values_of(self, catalogue: Catalogue | None) -> Values:
        if catalogue is None:
            return values_of(None)
        return lambda column: self._values.get(
            (column, len(catalogue.ids)), lambda: catalogue.values(column), catalogue, lambda: [column]
        )

    def _begin(self, model: TreeModel) -> None:
        if model is not self._model:
            self._model = model
            self._masks.clear()
            self._groups.clear()
            self._rules.clear()


@dataclass(eq=False)
class Searcher:
    """Answers requests from one state of a model."""

    model: TreeModel
    ids: Ids
    _: KW_ONLY
    catalogue: Catalogue | None = None  # titles and categories, for filters by category
    user_history: Callable[[str], History] = lambda user: UNKNOWN_USER
    version: str = ""  # of the model
    masks: MaskCache = field(default_factory=MaskCache)  # may outlive this object
    # Whether to round the size of batches and m up to powers of two: a GPU replays a search of a shape seen before.
    round_shapes: bool = False

    def __post_init__(self) -> None:
        if len(self.ids) != self.model.tree.num_items:
            counts = f"{len(self.ids):,} ids for a tree of {self.model.tree.num_items:,} items"
            raise ValueError(f"{counts}: they do not belong to the same run")

    def recommend(self, request: RecommendRequest) -> RecommendResponse:
        """Answer one request."""
        return self.recommend_batch([request])[0]

    def recommend_batch(self, requests: Sequence[RecommendRequest]) -> list[RecommendResponse]:
        """Answer requests that have the same beam_size, exclude_seen, filter and rules, with one search."""
        first, m = requests[0], max(request.m for request in requests)
        beam_size = max(DEFAULT_BEAM_SIZE, m) if first.beam_size is None else first.beam_size
        mask, num_allowed = self.mask_of(first.filter)
        encoded = [self.encode(request) for request in requests]
        histories = [history for rows, _ in encoded for history in rows]
        results: Iterator[Recommendation] = iter(())
        if histories and first.rules is not None:
            sizes = [request.m for request, (rows, _) in zip(requests, encoded, strict=True) for _ in rows]
            results = iter(self.select(histories, beam_size, sizes, first))
        elif histories:
            found = self.search(histories, beam_size, m, first.exclude_seen, mask)
            results = iter(self._recommendations(histories, *found))
        responses = []
        for request, (rows, unknown_users) in zip(requests, encoded, strict=True):
            request_results = [_truncate(next(results), request.m) for _ in rows]
            short = 0 if request.rules else self._count_short(request, request_results, rows, mask, num_allowed)
            responses.append(
                RecommendResponse(
                    request_results, beam_size, self.version, self.catalogue, num_allowed, short, unknown_users
                )
            )
        return responses

    def encode(self, request: RecommendRequest) -> tuple[list[History], list[str]]:
        """The histories of a request as item numbers, and its unknown users, whose histories have no items."""
        if request.users is None:
            histories = [encode_history(self.ids, history) for history in request.histories]
            return in_context(self.model, histories, request.context), []
        rows = [(user, self.user_history(user)) for user in request.users]
        histories = in_context(self.model, [history for _, history in rows], request.context)
        return histories, [user for user, history in rows if not history.is_known]

    def mask_of(self, filter: Filter | None) -> tuple[NodeMask | None, int | None]:
        """The mask of a filter, and how many items it allows."""
        return (None, None) if filter is None else self.masks.get(filter, self.model, self.ids, self.catalogue)

    def apply(self, rules: Rules, filter: Filter | None) -> AppliedRules:
        """Rules for the items that a filter allows."""
        return self.masks.apply(rules, filter, self.model, self.ids, self.catalogue)

    def search(
        self, histories: list[History], beam_size: BeamSize, m: int, exclude_seen: bool, mask: NodeMask | None
    ) -> tuple[Tensor, Tensor]:
        """The m best items for each history, best first, and their scores [B, m]; PAD where there are fewer.

        A history without a known item gets popular items, and their shares of all events.
        """
        rows, search_m = histories, m
        hidden = [hidden_items(history, exclude_seen) for history in histories]
        if self.round_shapes:
            missing = _next_power_of_two(len(rows)) - len(rows)
            rows, hidden = rows + rows[-1:] * missing, hidden + hidden[-1:] * missing
            last_width = beam_size if isinstance(beam_size, int) else list(beam_size)[-1]
            search_m = max(m, min(_next_power_of_two(m), last_width))
        x = model_input(self.model, rows)
        exclude = pad_rows(hidden, max(map(len, hidden))).to(x.device) if exclude_seen or any(hidden) else None
        items, log_p = retrieve(self.model, x, beam_size=beam_size, m=search_m, allowed=mask, exclude=exclude)
        scores = probabilities(log_p)
        use_popular = [self.is_popular(row.items) for row in rows]
        if any(use_popular):
            items[use_popular], scores[use_popular] = popular_items(self.model, search_m, mask)
            for row in (row for row, popular in enumerate(use_popular) if popular):
                if hidden[row] or rows[row].context:  # dislikes
                    items[row], scores[row] = popular_items(self.model, search_m, mask, hidden[row], rows[row].context)
        return items[: len(histories), :m], scores[: len(histories), :m]

    def is_popular(self, row: Sequence[int]) -> bool:
        """Whether popular items are recommended for a history of these known items."""
        return not row and self.model.popularity is not None

    def _recommendations(self, histories: list[History], items: Tensor, scores: Tensor) -> list[Recommendation]:
        """The results of `search`, with ids."""
        counts, names = (items != PAD).sum(1).tolist(), self.ids.names
        columns = zip(histories, items.tolist(), scores.tolist(), counts, strict=True)
        return [
            Recommendation(  # PAD comes last
                [names[item] for item in row[:count]],
                row_scores[:count],
                len(history.items),
                history.unknown,
                self.is_popular(history.items),
            )
            for history, row, row_scores, count in columns
        ]

    def select(
        self, histories: list[History], beam_size: BeamSize, sizes: list[int], request: RecommendRequest
    ) -> list[Recommendation]:
        """As many items as `sizes` says for each history, by the rules and the filter of a request.

        A history without a known item gets popular items.
        """
        assert request.rules is not None
        model, names, exclude_seen = self.model, self.ids.names, request.exclude_seen
        applied = self.apply(request.rules, request.filter)
        least = max(*sizes, len(applied.pins)) + (POOL if applied.rules.diversity else 0)
        each = [max(width, least) for width in widths(model, beam_size, max(sizes))]
        count = each[-1]  # candidates of a search
        beam = count if len(set(each)) == 1 else each  # one number need not be checked for every level again
        hidden = [hidden_items(history, exclude_seen) for history in histories]
        x = model_input(model, histories)
        use_popular = [self.is_popular(history.items) for history in histories]

        def search(rows: Sequence[int], masks: Sequence[NodeMask], known: Sequence[int] = ()) -> list[list[Found]]:
            """For each mask, the best items that it allows for some histories, without those that are known."""
            exclude = [[*hidden[row], *known] for row in rows]
            excluded = pad_rows(exclude, max(map(len, exclude))).to(x.device)
            results = []
            for mask, (items, log_p) in zip(
                masks, retrieve_each(model, x[rows], masks, beam_size=beam, m=count, exclude=excluded), strict=True
            ):
                scores = probabilities(log_p)
                for index, row in enumerate(rows):
                    if use_popular[row]:
                        items[index], scores[index] = popular_items(
                            model, count, mask, exclude[index], histories[row].context
                        )
                counts = (items != PAD).sum(1).tolist()  # PAD comes last
                lists = zip(items.tolist(), scores.tolist(), counts, strict=True)
                results.append([Found(row[:number], row_scores[:number]) for row, row_scores, number in lists])
            return results

        def find(row: int, items: np.ndarray, known: Sequence[int]) -> Found:
            return search([row], [model.tree.allow(torch.from_numpy(items.nonzero()[0]))], known)[0][0]

        def vectors(items: Sequence[int]) -> np.ndarray:
            with one_thread():
                result: np.ndarray = model.vectors_of(torch.tensor(items)).numpy()
                return result

        every = list(range(len(histories)))
        by_group = search(
            every, [*(group.mask for group in applied.groups), *([applied.pin_mask] if applied.pins else [])]
        )
        pinned = by_group.pop() if applied.pins else [Found((), ())] * len(every)
        results = []
        for row, history in enumerate(histories):
            answer = Selection(
                applied,
                sizes[row],
                find=partial(find, row),
                first=[found[row] for found in by_group],
                count=count,
                pinned=dict(zip(*pinned[row], strict=True)),
                vectors=vectors,
            ).fill()
            items, scores = [names[placed.item] for placed in answer], [placed.score for placed in answer]
            known, rules = len(history.items), [placed.rules for placed in answer]
            results.append(Recommendation(items, scores, known, history.unknown, use_popular[row], rules))
        return results

    def _count_short(
        self,
        request: RecommendRequest,
        results: list[Recommendation],
        histories: list[History],
        mask: NodeMask | None,
        num_allowed: int | None,
    ) -> int:
        """How many results have fewer than m items although more were available."""
        if all(len(result.items) >= request.m for result in results):
            return 0
        tree, short = self.model.tree, 0
        total = tree.num_visible if num_allowed is None else num_allowed
        for result, history in zip(results, histories, strict=True):
            if len(result.items) < request.m:
                hidden = sorted(set(hidden_items(history, request.exclude_seen)))
                leaves = tree.leaf_of_item(torch.tensor(hidden, dtype=torch.int64, device=tree.device))
                available = total - int((mask or tree.mask).allows(leaves).sum())
                short += len(result.items) < min(request.m, available)
        return short


def probabilities(log_p: Tensor) -> Tensor:
    """The probabilities of `retrieve`."""
    with one_thread():  # few numbers, as in `retrieve`
        return log_p.exp()


def popularity_in(model: TreeModel, context: Sequence[int] = ()) -> Tensor:
    """How many events each item has in training [M]; with a context, times how much more often it is chosen there."""
    if model.popularity is None:
        raise ValueError("the popularity of this model's items is unknown: it was not trained on a log")
    counts, part = model.popularity.to(model.tree.device), context_part(model.scorer)
    if part is None or not context:
        return counts
    ratios = part.item_scores(model.tree, model_input(model, [History([], context=context)]))
    return counts * ratios[0].double().exp()


def shares_of_events(counts: Tensor) -> Tensor:
    """The shares of all events, by how many events each item has [M]; an item without events counts as half of one."""
    return counts.clamp(min=0.5) / counts.sum().clamp(min=1)


def popular_items(
    model: TreeModel,
    m: int,
    allowed: NodeMask | None = None,
    exclude: Sequence[int] = (),
    context: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """The m allowed items with the most events in training, or in a context, and their shares of events [m] each."""
    counts = popularity_in(model, context)
    items = torch.arange(len(counts), device=counts.device)
    mask = allowed or model.tree.mask
    order = counts.double() * len(items) - items  # the lower number first where counts are equal
    order = order.masked_fill(~mask.allows(model.tree.leaf_of_item(items)), -torch.inf)
    order[torch.tensor(exclude, dtype=torch.int64, device=order.device)] = -torch.inf
    best = order.topk(min(m, len(items)))
    top = best.indices.where(best.values > -torch.inf, PAD)
    shares = shares_of_events(counts)[best.indices].masked_fill(top == PAD, -torch.inf)
    missing = (0, m - len(top))
    return pad(top, missing, value=PAD), pad(shares, missing, value=-torch.inf)


def hidden_items(history: History, exclude_seen: bool) -> Sequence[int]:
    """The items that are not recommended for a history: dislikes, and with `exclude_seen` all that the user chose."""
    if not exclude_seen:
        return history.dislikes
    return [*history.items, *history.seen, *history.dislikes] if history.seen or history.dislikes else history.items


def _next_power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def _truncate(result: Recommendation, m: int) -> Recommendation:
    """The first m items: requests in one search get as many as the largest m among them."""
    return result if len(result.items) <= m else result._replace(items=result.items[:m], scores=result.scores[:m])

"""One path for every request: `Searcher.answer` turns histories into arrays of items.

`Recommender`, the HTTP service and files build a `RecommendRequest`, and make frames, JSON and tables of the
`RecommendResponse`. In between, histories become item numbers, `beamtree.beam.retrieve` searches for them together, and
rules choose among what it finds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.beam import BeamSize, default_beam_size, retrieve, retrieve_each, widths
from beamtree.data import Ids
from beamtree.data.catalogue import Catalogue
from beamtree.data.ids import as_id
from beamtree.data.inputs import WIDTHS
from beamtree.kernels.threads import one_thread
from beamtree.mask import NodeMask
from beamtree.model import TreeModel
from beamtree.progress import OnProgress, no_progress
from beamtree.query.history import (
    UNKNOWN_USER,
    History,
    check_context,
    encode_history,
    in_context,
    model_input,
    pad_rows,
)
from beamtree.query.masks import MaskCache
from beamtree.query.request import Filter, Names, RecommendRequest
from beamtree.query.response import RecommendResponse, joined
from beamtree.query.rules import POOL, Rules
from beamtree.query.selection import AppliedRules, SearchHits, SelectedItem, Selection
from beamtree.query.times import Now, check_past, check_time, no_time, request_times
from beamtree.scorers import context_part
from beamtree.search.choice import BEAM, SCAN, known_times, resolve_search
from beamtree.tree import PAD

BATCH = 256  # histories of one request that are searched together
UserHistories = Callable[[Names], list[History]]  # those of unknown users say so


def no_users(users: Names) -> list[History]:
    """The histories of users where nobody is known."""
    return [UNKNOWN_USER] * len(users)


@dataclass(eq=False)
class Searcher:
    """Answers requests from one state of a model."""

    model: TreeModel
    ids: Ids
    _: KW_ONLY
    catalogue: Catalogue | None = None  # titles and categories, for filters by category
    user_histories: UserHistories = no_users
    version: str = ""  # of the model
    end: Now = no_time  # when the log and the events after it end: the time of requests for users that have none
    masks: MaskCache = field(default_factory=MaskCache)  # may outlive this object
    # Whether the size of batches, m and the width of `exclude` are rounded up: a GPU replays searches of known shapes.
    round_shapes: bool = field(init=False)

    def __post_init__(self) -> None:
        self.round_shapes = self.model.tree.device.type == "cuda"
        if len(self.ids) != self.model.tree.num_items:
            counts = f"{len(self.ids):,} ids for a tree of {self.model.tree.num_items:,} items"
            raise ValueError(f"{counts}: they do not belong to the same run")

    def recommend(self, request: RecommendRequest, on_progress: OnProgress = no_progress) -> RecommendResponse:
        """Answer one request of any size."""
        check_context(self.model, request.context, request.rows)
        check_time(request.time, request.rows)
        request = request.measured_at(self.end)
        parts, done = list[RecommendResponse](), 0
        on_progress("Recommending", 0, request.rows)
        for batch in request.batches(BATCH):
            parts += self.answer([batch])
            done += batch.rows
            on_progress("Recommending", done, request.rows)
        return joined(parts)

    def answer(self, requests: Sequence[RecommendRequest]) -> list[RecommendResponse]:
        """Answer requests that have the same beam_size, search, exclude_seen, filter and rules, with one search."""
        first, m = requests[0], max(request.m for request in requests)
        search = resolve_search(first.search, first.beam_size)
        beam_size = default_beam_size(m) if first.beam_size is None else first.beam_size
        mask, num_allowed = self.mask_of(first.filter)
        encoded = [self.encode(request) for request in requests]
        histories = [history for rows, _ in encoded for history in rows]
        rules: list[list[list[str]]] | None = None
        if not histories:
            items, scores = np.empty((0, m), np.int64), np.empty((0, m), np.float32)
            rules = None if first.rules is None else []
        elif first.rules is None:
            items, scores = (
                found.cpu().numpy() for found in self.search(histories, beam_size, m, first.exclude_seen, mask, search)
            )
        else:
            sizes = [request.m for request, (rows, _) in zip(requests, encoded, strict=True) for _ in rows]
            items, scores, rules = self.select(histories, beam_size, sizes, first, search)
        is_short = rules is None and bool((items[:, -1:] == PAD).any())
        responses, start = [], 0
        for request, (rows, unknown_users) in zip(requests, encoded, strict=True):
            some = slice(start, start + len(rows))
            found = items[some, : request.m]
            responses.append(
                RecommendResponse(
                    found,
                    scores[some, : request.m],
                    None if rules is None else rules[some],
                    [len(history.items) for history in rows],
                    [history.unknown for history in rows],
                    [self.is_popular(history.items) for history in rows],
                    self.ids,
                    beam_size,
                    version=self.version,
                    catalogue=self.catalogue,
                    num_allowed=num_allowed,
                    short=self._count_short(found, rows, first.exclude_seen, mask, num_allowed) if is_short else 0,
                    unknown_users=unknown_users,
                )
            )
            start = some.stop
        return responses

    def encode(self, request: RecommendRequest) -> tuple[list[History], list[str]]:
        """The histories of a request as item numbers, and its unknown users, whose histories have no items."""
        unknown_users = list[str]()
        if request.users is None:
            times: Sequence[Sequence[int]] = request.times or [()] * len(request.histories)
            check_past(times, self.end)
            rows = zip(request.histories, times, strict=True)
            histories = [encode_history(self.ids, history, of_events) for history, of_events in rows]
        else:
            histories = self.user_histories(request.users)
            named = zip(request.users, histories, strict=True)
            unknown_users = [as_id(user) for user, history in named if not history.is_known]
        if self.model.scorer.reads_clock:
            end = None if request.users is None else self.end()
            times_of_requests = request_times(request.time, [history.times for history in histories], end, self.end)
            pairs = zip(histories, times_of_requests, strict=True)
            histories = [history._replace(time=time) for history, time in pairs]
        return in_context(self.model, histories, request.context), unknown_users

    def histories_of(self, request: RecommendRequest, unknown_users: list[str]) -> Iterator[list[History]]:
        """The histories of a request, BATCH at a time; unknown users are added to a list."""
        check_context(self.model, request.context, request.rows)
        for batch in request.batches(BATCH) if request.rows else ():
            histories, unknown = self.encode(batch)
            unknown_users += unknown
            yield histories

    def mask_of(self, filter: Filter | None) -> tuple[NodeMask | None, int | None]:
        """The mask of a filter, and how many items it allows."""
        return (None, None) if filter is None else self.masks.get(filter, self.model, self.ids, self.catalogue)

    def apply(self, rules: Rules, filter: Filter | None) -> AppliedRules:
        """Rules for the items that a filter allows."""
        return self.masks.apply(rules, filter, self.model, self.ids, self.catalogue)

    def search(
        self,
        histories: list[History],
        beam_size: BeamSize,
        m: int,
        exclude_seen: bool,
        mask: NodeMask | None,
        search: str = BEAM,
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
        exclude = self.excluded(hidden) if exclude_seen or any(hidden) else None
        beam = beam_size if search == BEAM else None
        how: dict[str, Any] = {"beam_size": beam, "m": search_m, "exclude": exclude, "search": search}
        items, log_p = retrieve(self.model, x, allowed=mask, **how)
        scores = probabilities(log_p)
        use_popular = [self.is_popular(row.items) for row in rows]
        if any(use_popular):
            items[use_popular], scores[use_popular] = popular_items(self.model, search_m, mask)
            for row in (row for row, popular in enumerate(use_popular) if popular):
                if hidden[row] or rows[row].context:  # dislikes
                    items[row], scores[row] = popular_items(self.model, search_m, mask, hidden[row], rows[row].context)
        return items[: len(histories), :m], scores[: len(histories), :m]

    def excluded(self, hidden: Sequence[Sequence[int]]) -> Tensor:
        """The items that are hidden from each user, as `retrieve` takes them [B, E]."""
        width = max(map(len, hidden))
        if self.round_shapes and width:
            width = next((each for each in WIDTHS if each >= width), _next_power_of_two(width))
        return pad_rows(hidden, width).to(self.model.tree.device)

    def scans(self, users: int) -> bool:
        """Whether so many users are known to be searched for by a scan, where a request leaves that open."""
        times = known_times(self.model, users)
        return times is not None and times.chosen == SCAN

    def is_popular(self, row: Sequence[int]) -> bool:
        """Whether popular items are recommended for a history of these known items."""
        return not row and self.model.popularity is not None

    def select(
        self, histories: list[History], beam_size: BeamSize, sizes: list[int], request: RecommendRequest, search: str
    ) -> tuple[np.ndarray, np.ndarray, list[list[list[str]]]]:
        """As many items as `sizes` says for each history, by the rules and the filter of a request [B, m].

        Also their scores [B, m], and the rules that decided the place of each. A history without a known item gets
        popular items.
        """
        assert request.rules is not None
        model, exclude_seen = self.model, request.exclude_seen
        applied = self.apply(request.rules, request.filter)
        least = max(*sizes, len(applied.pins)) + (POOL if applied.rules.diversity else 0)
        each = [max(width, least) for width in widths(model, beam_size, max(sizes))]
        count = each[-1]  # candidates of a search
        beam = count if len(set(each)) == 1 else each  # one number need not be checked for every level again
        hidden = [hidden_items(history, exclude_seen) for history in histories]
        x = model_input(model, histories)
        use_popular = [self.is_popular(history.items) for history in histories]
        how: dict[str, Any] = {"beam_size": beam, "m": count, "search": search}

        def find_each(
            rows: Sequence[int], masks: Sequence[NodeMask], known: Sequence[int] = ()
        ) -> list[list[SearchHits]]:
            """For each mask, the best items that it allows for some histories, without those that are known."""
            exclude = [[*hidden[row], *known] for row in rows]
            excluded = self.excluded(exclude)
            results = []
            for mask, (items, log_p) in zip(
                masks, retrieve_each(model, x[rows], masks, exclude=excluded, **how), strict=True
            ):
                scores = probabilities(log_p)
                for index, row in enumerate(rows):
                    if use_popular[row]:
                        items[index], scores[index] = popular_items(
                            model, count, mask, exclude[index], histories[row].context
                        )
                counts = (items != PAD).sum(1).tolist()  # PAD comes last
                lists = zip(items.tolist(), scores.tolist(), counts, strict=True)
                results.append([SearchHits(row[:number], row_scores[:number]) for row, row_scores, number in lists])
            return results

        def find(row: int, items: np.ndarray, known: Sequence[int]) -> SearchHits:
            return find_each([row], [model.tree.allow(torch.from_numpy(items.nonzero()[0]))], known)[0][0]

        def vectors(items: Sequence[int]) -> np.ndarray:
            with one_thread():
                result: np.ndarray = model.vectors_of(torch.tensor(items)).numpy()
                return result

        every = list(range(len(histories)))
        by_group = find_each(
            every, [*(group.mask for group in applied.groups), *([applied.pin_mask] if applied.pins else [])]
        )
        pinned = by_group.pop() if applied.pins else [SearchHits((), ())] * len(every)
        items, scores = np.full((len(histories), max(sizes)), PAD), np.full((len(histories), max(sizes)), -np.inf)
        rules = []
        for row in every:
            answer: list[SelectedItem] = Selection(
                applied,
                sizes[row],
                find=partial(find, row),
                first=[found[row] for found in by_group],
                count=count,
                pinned=dict(zip(*pinned[row], strict=True)),
                vectors=vectors,
            ).fill()
            items[row, : len(answer)] = [selected.item for selected in answer]
            scores[row, : len(answer)] = [selected.score for selected in answer]
            rules.append([selected.rules for selected in answer])
        return items, scores, rules

    def _count_short(
        self,
        items: np.ndarray,
        histories: list[History],
        exclude_seen: bool,
        mask: NodeMask | None,
        num_allowed: int | None,
    ) -> int:
        """How many results have fewer than m items although more were available."""
        counts, m, tree = (items != PAD).sum(1), items.shape[1], self.model.tree
        total = tree.num_visible if num_allowed is None else num_allowed
        (rows,) = (counts < min(m, total)).nonzero()
        if not len(rows):
            return 0
        excluded = [sorted(set(hidden_items(histories[row], exclude_seen))) for row in rows]
        leaves = tree.leaf_of_item(pad_rows(excluded, max(map(len, excluded))).to(tree.device))
        available = total - (mask or tree.mask).allows(leaves).sum(1).cpu().numpy()
        return int((counts[rows] < np.minimum(m, available)).sum())


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

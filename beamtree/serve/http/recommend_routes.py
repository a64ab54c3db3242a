"""Routes that search the model: recommend, similar, explain."""

import math
import time
from dataclasses import replace
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Query
from pydantic import Field
from pydantic_core import PydanticSerializationError, to_json
from starlette.responses import Response

from beamtree.beam import default_beam_size
from beamtree.data.catalogue import ROLES
from beamtree.data.ids import as_id
from beamtree.diagnose.explain import explain, without_part
from beamtree.query import (
    History,
    MaskCache,
    Recommendation,
    RecommendRequest,
    RecommendResponse,
    Searcher,
    hidden_items,
    make_filter,
    model_input,
    parse_rules,
    similar_request,
)
from beamtree.query.reasons import reason_columns, reasons
from beamtree.query.times import in_order, read_time
from beamtree.serve.http.errors import SCHEMA_HINT, ApiError, check_limit, json_response
from beamtree.serve.http.plain_route import PlainRoute
from beamtree.serve.http.schemas import WHOLE_NUMBER, ExplainBody, ExplainResponse, Recommendations, RecommendBody
from beamtree.serve.http.service import Service, present
from beamtree.tree import PAD

MAX_EXPLAINED = 100  # items whose path one request may follow
MAX_UNKNOWN = 100  # unknown ids that a result lists


async def recommend_response(
    service: Service, request: RecommendRequest, start: float, timeout_ms: int | None = None
) -> Response:
    """The answer to a request that arrived at `start`."""
    response = await service.recommend(request, timeout_ms)
    content = recommend_json(service.loaded.name, request, response, start)
    try:
        return Response(to_json(content, inf_nan_mode="null"), media_type="application/json")
    except PydanticSerializationError:  # the name of a folder that is not UTF-8
        return json_response(content)


def recommend_route(service: Service) -> PlainRoute:
    """POST /v1/recommend."""

    async def recommend(body: RecommendBody) -> Response:
        """The best next items for one or many histories or users."""
        start = time.perf_counter()
        return await recommend_response(service, parse_request(body), start, body.timeout_ms)

    return PlainRoute(recommend, Recommendations)


def recommend_routes(service: Service) -> APIRouter:
    """Similar items, and explanations."""
    router = APIRouter()

    @router.get("/v1/similar/{item:path}", responses={200: {"model": Recommendations}})
    async def similar(item: str, m: Annotated[int, Field(ge=1), WHOLE_NUMBER, Query()] = 10) -> Response:
        """The recommendations after a single event of this item."""
        start = time.perf_counter()
        try:
            request, _ = similar_request(service.loaded.ids, [item], m)
        except ValueError:
            raise ApiError(404, "there is no such item", "search with /v1/items?query=…") from None
        return await recommend_response(service, request, start)

    @router.post("/v1/explain", responses={200: {"model": ExplainResponse}})
    async def explain_search(body: ExplainBody) -> Response:
        """The beam level by level; for each of `items` what gives it its score, and where and why it was lost."""
        start = time.perf_counter()
        check_limit("items", len(body.items), MAX_EXPLAINED, "ids")
        request = present(parse_request(body))
        service.check_limits(request)
        if request.beam_size is None:
            request = request._replace(beam_size=default_beam_size(request.m, service.engine.beam_size))
        explanation = await service.read(
            lambda searcher: explain_json(searcher, request, body.items, body.without, body.reasons), body.timeout_ms
        )
        return json_response({"model": service.loaded.name, "milliseconds": _milliseconds(start), **explanation})

    return router


def parse_request(body: RecommendBody | ExplainBody) -> RecommendRequest:
    """The request of a body, with ids as text; a 422 where it does not have exactly one of its kinds of input."""
    histories, users = getattr(body, "histories", None), getattr(body, "users", None)
    count = sum(value is not None for value in (body.history, body.user, histories, users))
    if count != 1:
        names = "history or user" if isinstance(body, ExplainBody) else "history, histories, user or users"
        raise ApiError(422, f"give one of {names}, not {count}", "see /docs for examples")
    users = [body.user] if body.user is not None else users
    histories = [body.history] if body.history is not None else histories or []
    try:
        rules = parse_rules(None if body.rules is None else body.rules.model_dump())
        times = None
        if body.times is not None:
            histories, times = timed_histories(body, histories if users is None else None)
        at = read_time(body.time)
    except ValueError as error:
        raise ApiError(422, str(error), SCHEMA_HINT) from error
    return RecommendRequest(
        histories,
        None if users is None else [as_id(user) for user in users],
        m=body.m,
        beam_size=tuple(body.beam_size) if isinstance(body.beam_size, list) else body.beam_size,
        search=body.search,
        exclude_seen=body.exclude_seen,
        filter=make_filter(body.allowed, body.exclude or None, body.category, body.where),
        rules=rules,
        context=body.context,
        times=times,
        time=at,
    )


def timed_histories(
    body: RecommendBody | ExplainBody, histories: list[list[Any]] | None
) -> tuple[list[list[Any]], list[list[int]]]:
    """The histories of a body in the order of their times, and these in seconds since 1970."""
    if histories is None:
        raise ValueError("times: give them with history; those of users are known")
    given: list[Any] = [body.times] if body.history is not None else list(body.times or ())
    if len(given) != len(histories) or any(not isinstance(row, list) for row in given):
        raise ValueError(f"times: give a list for each of the {len(histories):,} histories")
    if body.history is not None and any(isinstance(time, list) for time in given[0]):
        raise ValueError("times: give one list for history, and a list of lists for histories")
    pairs = zip(histories, given, strict=True)
    rows = [in_order(row, times) if times else (row, []) for row, times in pairs]
    return [row for row, _ in rows], [times for _, times in rows]


def recommend_json(
    model_name: str, request: RecommendRequest, response: RecommendResponse, start: float
) -> dict[str, Any]:
    """A response as JSON; `start` is when its request arrived."""
    users = [None] * len(response.results) if request.users is None else request.users
    degraded = {"beam_size": response.beam_size, "reason": "load"}
    return {
        "model": model_name,
        "version": response.version,
        "degraded": None if response.narrowed_from is None else degraded,
        "milliseconds": _milliseconds(start),
        "results": [_result_json(response, *pair) for pair in zip(response.results, users, strict=True)],
    }


def _result_json(response: RecommendResponse, result: Recommendation, user: str | None) -> dict[str, Any]:
    notes = []
    if user is not None and user in response.unknown_users:
        notes.append("this user is unknown")
    if result.unknown:
        notes.append(f"{len(result.unknown)} ids of the history are unknown and were ignored")
    if result.is_popular:
        notes.append("no item of the history is known: these are popular items")
    if not result.items:
        reason = "the filter leaves no known item" if response.num_allowed == 0 else "no item is left to recommend"
        notes.append(f"{reason}, so the result is empty")
    content: dict[str, Any] = {
        "items": result.items,
        "scores": result.scores,
        "ranks": list(range(1, len(result.items) + 1)),
        "unknown": list(result.unknown[:MAX_UNKNOWN]),
        "popular": result.is_popular,
        "notes": notes,
    }
    if response.catalogue is not None and response.catalogue.has_titles:
        catalogue, numbers = response.catalogue, response.catalogue.ids.find(result.items)
        content["titles"] = [None if number is None else catalogue.text("title", number) for number in numbers]
    if result.rules is not None:
        content["rules"] = result.rules
    if user is not None:
        content["user"] = user
    return content


def explain_json(
    searcher: Searcher, request: RecommendRequest, items: list[Any], without: str | None, with_reasons: bool
) -> dict[str, Any]:
    """The explanation of the search for one history, as JSON; unknown ids are listed."""
    (history,), unknown_users = searcher.encode(request)
    mask = searcher.mask_of(request.filter)[0]
    if without is not None:
        try:
            model = without_part(searcher.model, without)
        except ValueError as error:
            raise ValueError(f"without: {error}") from error
        searcher = replace(searcher, model=model, masks=MaskCache())
    model, numbers, catalogue = searcher.model, searcher.ids.find(items), searcher.catalogue
    assert catalogue is not None
    device, hidden = model.tree.device, hidden_items(history, request.exclude_seen)
    explanation = explain(
        model,
        model_input(model, [history]),
        beam_size=request.beam_size or request.m,
        m=request.m,
        items=[number for number in numbers if number is not None],
        allowed=mask,
        exclude=torch.tensor([hidden], dtype=torch.int64, device=device) if hidden else None,
    )

    def describe(item: int) -> dict[str, Any]:
        texts = {role: catalogue.text(role, item) for role in ROLES}
        return {"item": searcher.ids.name(item), **texts}

    unknown_items = [str(item) for item, number in zip(items, numbers, strict=True) if number is None]
    unknown = [*unknown_users, *history.unknown, *unknown_items][:MAX_UNKNOWN]
    content = _finite(explanation.as_dict(describe))
    content["popular"] = searcher.is_popular(history.items)
    if with_reasons:
        found = reasons_json(searcher, history, [path.item for path in explanation.items])
        content["items"] = [{**path, **more} for path, more in zip(content["items"], found, strict=True)]
    if request.rules is not None:
        (answer,) = searcher.recommend(request).results
        placed = searcher.ids.find_known(answer.items)
        rows = enumerate(zip(placed, answer.scores, answer.rules or (), strict=True), 1)
        content["answer"] = [
            {"rank": rank, "item": describe(number), "score": score, "rules": names}
            for rank, (number, score, names) in rows
        ]
        applied = searcher.apply(request.rules, request.filter)
        content["left_out"] = [
            {
                "item": describe(number),
                "rules": ["not allowed"] if number in hidden else applied.left_out(number, placed),
            }
            for number in dict.fromkeys(numbers)
            if number is not None and number not in placed
        ]
    return {"version": searcher.version, "unknown": unknown, "explanation": content}


def reasons_json(searcher: Searcher, history: History, items: list[int]) -> list[dict[str, Any]]:
    """What gives items their scores for a history: by part, and by event; nothing where an item has no leaf."""
    tree = searcher.model.tree
    leaves = tree.leaf_of_item(torch.tensor(items, dtype=torch.int64, device=tree.device)).tolist()
    placed = [item for item, leaf in zip(items, leaves, strict=True) if leaf != PAD]
    (found,) = reasons(searcher, [history], placed)
    rows_of = dict(zip(placed, found, strict=True))
    result = []
    for item in items:
        rows, parts = rows_of.get(item, []), dict[str, float]()
        for row in rows:
            parts[row.part] = parts.get(row.part, 0.0) + row.contribution
        columns = reason_columns(searcher, rows)
        records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        result.append({"parts": parts, "reasons": records})
    return result


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _milliseconds(start: float) -> float:
    return round((time.perf_counter() - start) * 1000, 3)

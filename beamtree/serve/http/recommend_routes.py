"""Routes that ask the model: recommend, explain, similar."""

import math
import time
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Query
from starlette.responses import Response

from beamtree.answers import as_users
from beamtree.diagnose.explain import explain, without_part
from beamtree.serve.engine.search import Ask, View
from beamtree.serve.engine.service import Service
from beamtree.serve.http.answers import NAMED, beam_of, filter_of, recommended, rows_of
from beamtree.serve.http.errors import RefusedError, as_json
from beamtree.serve.http.schemas import Explain, Explained, Recommend, Recommended

MOST = 100  # items whose path is followed at a time


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()

    @router.post("/v1/recommend", responses={200: {"model": Recommended}})
    async def recommend(asked: Recommend) -> Response:
        """The items that come next, for one or many histories or users."""
        start = time.perf_counter()
        histories, users = rows_of(asked, service.limits)
        reply = await service.recommend(
            histories,
            users,
            m=asked.m,
            beam=beam_of(asked),
            exclude_seen=asked.exclude_seen,
            only=filter_of(asked, service.limits),
            timeout_ms=asked.timeout_ms,
        )
        return as_json(recommended(service.loaded, reply, users, time.perf_counter() - start))

    @router.get("/v1/similar/{item:path}", responses={200: {"model": Recommended}})
    async def similar(item: str, m: Annotated[int, Query(ge=1)] = 10) -> Response:
        """What the model recommends to someone who chose this one item."""
        start = time.perf_counter()
        if service.loaded.ids.find([item])[0] is None:
            raise RefusedError(404, "there is no such item", "look for it with /v1/items?query=…")
        reply = await service.recommend([[item]], m=m, exclude_seen=True)
        return as_json(recommended(service.loaded, reply, None, time.perf_counter() - start))

    @router.post("/v1/explain", responses={200: {"model": Explained}})
    async def explain_search(asked: Explain) -> Response:
        """The beam level by level, and where items were lost, by how much, to whom and why."""
        start = time.perf_counter()
        if len(asked.items) > MOST:
            raise RefusedError(422, f"items has {len(asked.items)} ids, over the limit of {MOST}", "ask for fewer")
        histories, users = rows_of(asked, service.limits)
        beam, only = beam_of(asked), filter_of(asked, service.limits)
        service.check_size(asked.m, beam)
        ask = Ask(print, math.inf, histories, users, asked.m, beam, asked.exclude_seen, only)
        ask.beam = ask.beam or max(service.engine.beam_size, asked.m)
        found = await service.read(lambda view: explained(view, ask, asked.items, asked.without), asked.timeout_ms)
        seconds = time.perf_counter() - start
        about = {"model": service.loaded.name, "milliseconds": round(seconds * 1000, 3)}
        return as_json({**about, **found})

    return router


def explained(view: View, ask: Ask, items: list[Any], without: str | None) -> dict[str, Any]:
    """One search as it goes, as JSON; ids that are not known are named."""
    ((history,), nobody), ids = view.read(ask), view.catalogue.ids
    model = view.model if without is None else without_part(view.model, without)
    numbers = ids.find(items)
    unknown = [str(name) for name, number in zip(items, numbers, strict=True) if number is None]
    mask = None if ask.only is None else view.masks.of(ask.only, view.model, view.catalogue)[0]
    device = model.tree.device
    seen = torch.tensor([history.items], dtype=torch.int64, device=device) if ask.exclude_seen else None
    found = explain(
        model,
        as_users([history.items]).to(device),
        beam_size=ask.beam or ask.m,
        m=ask.m,
        items=[number for number in numbers if number is not None],
        allowed=mask,
        exclude=seen,
    )

    def name(number: int) -> dict[str, Any]:
        known = view.catalogue
        return {"item": ids[number], "title": known.title(number), "category": known.category(number)}

    named = [*nobody, *history.unknown, *unknown][:NAMED]
    return {"version": view.version, "unknown": named, "explanation": finite(found.as_dict(name))}


def finite(value: Any) -> Any:
    """The same with null for numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

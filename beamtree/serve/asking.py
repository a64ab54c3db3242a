"""Routes that ask the model: recommend, explain, similar."""

import math
import time
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Query
from starlette.responses import Response

from beamtree.answers import as_users
from beamtree.data.catalogue import Catalogue
from beamtree.explain import explain, without_part
from beamtree.serve.answers import NAMED, beam_of, filter_of, recommended, rows_of
from beamtree.serve.errors import RefusedError, as_json
from beamtree.serve.schemas import Explain, Explained, Recommend, Recommended
from beamtree.serve.search import Ask, View
from beamtree.serve.service import Service

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
        found = await service.read(lambda view: explained(view, ask, asked, service.engine.beam_size))
        seconds = time.perf_counter() - start
        about = {"model": service.loaded.name, "milliseconds": round(seconds * 1000, 3)}
        return as_json({**about, **found})

    return router


def explained(view: View, ask: Ask, asked: Explain, beam_size: int) -> dict[str, Any]:
    """One search as it goes, as JSON; ids that are not known are named."""
    ((history,), nobody), ids = view.read(ask), view.catalogue.ids
    numbers = ids.find(asked.items)
    unknown = [str(name) for name, number in zip(asked.items, numbers, strict=True) if number is None]
    mask = None if ask.only is None else view.masks.of(ask.only, view.model, view.catalogue)[0]
    device = view.model.tree.device
    seen = torch.tensor([history.items], dtype=torch.int64, device=device) if ask.exclude_seen else None
    found = explain(
        view.model if asked.without is None else without_part(view.model, asked.without),
        as_users([history.items]).to(device),
        beam_size=max(beam_size, ask.m) if ask.beam is None else ask.beam,
        m=ask.m,
        items=[number for number in numbers if number is not None],
        allowed=mask,
        exclude=seen,
    )
    named = [*nobody, *history.unknown, *unknown][:NAMED]
    return {
        "version": view.version,
        "unknown": named,
        "explanation": finite(found.as_dict(lambda number: known_as(view.catalogue, number))),
    }


def known_as(catalogue: Catalogue, number: int) -> dict[str, Any]:
    """An item as people know it."""
    facts = {"title": catalogue.title(number), "category": catalogue.category(number)}
    return {"item": catalogue.ids[number], **facts}


def finite(value: Any) -> Any:
    """The same with null for numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

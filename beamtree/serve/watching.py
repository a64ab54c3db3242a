"""Routes of the page on which one watches the model search: the page itself, and what it asks beside the others."""

import threading
from functools import cache
from typing import Any

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from beamtree.explore import catalogue_map, page
from beamtree.serve.asking import known_as
from beamtree.serve.errors import RefusedError, as_json
from beamtree.serve.schemas import Map, Past
from beamtree.serve.search import View
from beamtree.serve.service import Service

NEWEST = 150  # events of a user that are told
live_page = cache(lambda: page(live=True))


def routes(service: Service) -> APIRouter:
    """The routes of one service."""
    router = APIRouter()
    maps = Maps(service)

    @router.get("/", response_class=HTMLResponse)
    def show_page() -> Response:
        """The page."""
        return HTMLResponse(live_page())

    @router.get("/v1/map", responses={200: {"model": Map}})
    def show_map() -> Response:
        """The map of the catalogue: how many items lie below each node of the upper levels, and what it is called."""
        return as_json(maps.now())

    @router.get("/v1/users/{user:path}", responses={200: {"model": Past}})
    async def show_user(user: str) -> Response:
        """What a user did, as far as that is known."""
        told = await service.read(lambda view: past_of(view, user))
        if told is None:
            raise RefusedError(404, "there is no such user", "look for one with /v1/users?query=…")
        return as_json(told)

    return router


def past_of(view: View, user: str) -> dict[str, Any] | None:
    """The newest events of a user, oldest first."""
    history = view.loaded.source.history(user)
    if history is None:
        return None
    return {"user": user, "history": [known_as(view.catalogue, number) for number in history.items[-NEWEST:]]}


class Maps:
    """The map of what is served, made once for each version: it takes seconds for millions of items."""

    def __init__(self, service: Service) -> None:
        self._service, self._lock = service, threading.Lock()
        self._kept: tuple[str, dict[str, Any]] | None = None

    def now(self) -> dict[str, Any]:
        loaded = self._service.loaded
        with self._lock:
            if self._kept is None or self._kept[0] != loaded.version:
                self._kept = loaded.version, catalogue_map(loaded.source.model, loaded.source.catalogue)
            return self._kept[1]

"""Routes for items, users and events."""

from typing import Annotated, Any

import torch
from fastapi import APIRouter, Body, Query
from pydantic import Field
from starlette.responses import Response

from beamtree.data.catalogue import Catalogue, search_texts
from beamtree.data.ids import as_id
from beamtree.data.times import Time, as_time
from beamtree.live.live_model import UnknownItemError
from beamtree.model import TreeModel
from beamtree.query import Searcher
from beamtree.serve.http.errors import SCHEMA_HINT, ApiError, check_limit, json_response
from beamtree.serve.http.schemas import (
    MAX_ID_LENGTH,
    WHOLE_NUMBER,
    CatalogueItem,
    ChangeResult,
    EventsOfUser,
    EventsRequest,
    Item,
    Items,
    ItemsRequest,
    User,
    Users,
)
from beamtree.serve.http.service import Service

NO_ITEM = "there is no such item"
MAX_EVENTS = 1000  # of a user that are shown, the newest
SearchText = Annotated[str, Query(max_length=200, description="Any part of an id or a title.")]
Limit = Annotated[int, Field(ge=1, le=100), WHOLE_NUMBER, Query()]
Forget = Annotated[bool, Query(description="Whether to delete the item, so that a later PUT adds it as a new one.")]
Before = Annotated[str, Query(max_length=100, description="A number or a date, like the times of events.")]


def item_routes(service: Service) -> APIRouter:
    """Routes that read and change items, users and events."""
    router = APIRouter()

    # Routes that scan lists are plain functions, so that they run in a thread and do not block the event loop.

    @router.get("/v1/items", responses={200: {"model": Items}})
    def find_items(query: SearchText = "", limit: Limit = 20) -> Response:
        """Find items by a part of their id or title."""
        _, model, catalogue = service.loaded.live.snapshot
        numbers = catalogue.search(query, limit)
        return json_response({"items": [item_json(model, catalogue, number) for number in numbers]})

    @router.get("/v1/items/{item:path}", responses={200: {"model": CatalogueItem}})
    def get_item(item: str) -> Response:
        """An item's title, category, attributes and number of events."""
        _, model, catalogue = service.loaded.live.snapshot
        (number,) = catalogue.ids.find([item])
        if number is None:
            raise ApiError(404, NO_ITEM, "search with /v1/items?query=…")
        table = catalogue.table
        attributes = {} if table is None else {"attributes": table.described(number)}
        return json_response({**item_json(model, catalogue, number), **attributes})

    @router.put("/v1/items/{item:path}", responses={200: {"model": ChangeResult}})
    async def put_item(item: str, new: Annotated[Item | None, Body()] = None) -> Response:
        """Add an item, or change its fields and show it where it was removed; idempotent."""
        items = {parse_item_id(item): item_fields(new or Item(), service)}
        counts, version = await service.change("put_item", lambda live: live.update_items(items, show=True))
        return json_response({"changed": counts.total > 0, "version": version})

    @router.patch("/v1/items/{item:path}", responses={200: {"model": ChangeResult}})
    async def patch_item(item: str, changes: Item) -> Response:
        """Change fields of an item that there is; a removed one stays so. Idempotent."""
        items = {parse_item_id(item): item_fields(changes, service)}
        try:
            counts, version = await service.change("patch_item", lambda live: live.update_items(items, add=False))
        except UnknownItemError as error:
            raise ApiError(404, NO_ITEM, "add it with PUT") from error
        return json_response({"changed": counts.total > 0, "version": version})

    @router.post("/v1/items", responses={200: {"model": ChangeResult}})
    async def put_items(body: ItemsRequest) -> Response:
        """Add items and change others, all or none of them; a removed one is shown if it comes without fields."""
        check_limit("items", len(body.items), service.limits.changes, "items")
        items = {parse_item_id(as_id(entry.item)): item_fields(entry, service) for entry in body.items}
        if len(items) < len(body.items):
            raise ApiError(422, "items: an id occurs twice", "list every item once")
        counts, version = await service.change("put_item", lambda live: live.update_items(items), len(items))
        numbers = {"count": counts.total, "added": counts.new}
        return json_response({"changed": counts.total > 0, "version": version, **numbers})

    @router.delete("/v1/items/{item:path}", responses={200: {"model": ChangeResult}})
    async def delete_item(item: str, forget: Forget = False) -> Response:
        """Hide an item until it is put again, or delete it with `forget`; idempotent."""
        name = parse_item_id(item)
        count, version = await service.change(
            "delete_item", lambda live: live.forget_items([name]) if forget else live.remove_items([name])
        )
        return json_response({"changed": count > 0, "version": version})

    @router.get("/v1/users", responses={200: {"model": Users}})
    def find_users(query: SearchText = "", limit: Limit = 20) -> Response:
        """Find users of the log and of later events by a part of their id; of the log where it is available."""
        users = service.loaded.live.users.ids()
        rows = search_texts(((name.casefold(), "") for name in users.names), query, limit)
        return json_response({"users": [users.name(row) for row in rows]})

    @router.get("/v1/users/{user:path}", responses={200: {"model": User}})
    async def get_user(user: str) -> Response:
        """A user's history, oldest first, without unknown items."""

        def read_history(searcher: Searcher) -> list[dict[str, Any]] | None:
            (history,) = searcher.user_histories([as_id(user)])
            if not history.is_known:
                return None
            assert searcher.catalogue is not None
            return [item_json(searcher.model, searcher.catalogue, item) for item in history.items[-MAX_EVENTS:]]

        history = await service.read(read_history)
        if history is None:
            raise ApiError(404, "there is no such user", "search with /v1/users?query=…")
        return json_response({"user": as_id(user), "history": history})

    @router.post("/v1/events", responses={200: {"model": ChangeResult}})
    async def post_events(body: EventsRequest) -> Response:
        """Record events of users, for their next recommendations; idempotent with an id or with times."""
        events = parse_events(body, service)
        count, version = await service.change("events", lambda live: live.record_events(events, body.id), len(events))
        return json_response({"changed": count > 0, "version": version, "known": count})

    @router.delete("/v1/events", responses={200: {"model": ChangeResult}})
    async def delete_events(before: Before) -> Response:
        """Drop all events before a time, also those that arrive later."""
        time = parse_time(before, "before")
        count, version = await service.change("retire", lambda live: live.retire_events(time))
        return json_response({"changed": count > 0, "version": version, "count": count})

    return router


def item_json(model: TreeModel, catalogue: Catalogue, number: int) -> dict[str, Any]:
    """An item as JSON."""
    popularity, tree = model.popularity, model.tree
    in_tree = number < tree.num_items
    return {
        "item": catalogue.ids.name(number),
        "title": catalogue.text("title", number),
        "category": catalogue.text("category", number),
        "events": None if popularity is None or number >= len(popularity) else int(popularity[number]),
        "hidden": in_tree and not bool(tree.mask.allows(tree.leaf_of_item(torch.tensor([number], device=tree.device)))),
    }


def parse_item_id(item: str, field: str = "item") -> str:
    """An id that can be stored: one line, not empty, not too long."""
    name = as_id(item)
    if not name or len(name) > MAX_ID_LENGTH or not name.isprintable():
        raise ApiError(422, f"{field}: this is not a valid id", f"use one line of 1 to {MAX_ID_LENGTH} characters")
    return name


def item_fields(item: Item, service: Service) -> dict[str, Any]:
    """The fields of an item that were sent."""
    limits, histories = service.limits, item.histories or []
    check_limit("like", len(item.like or ()), limits.history, "ids")
    check_limit("vector", len(item.vector or ()), limits.history, "numbers")
    check_limit("histories", len(histories), limits.histories, "histories")
    check_limit("histories", max(map(len, histories), default=0), limits.history, "ids in one")
    fields = item.model_dump(include=item.model_fields_set - {"item"})
    return {**fields, **(item.model_extra or {})}


def parse_events(body: EventsRequest, service: Service) -> list[tuple[str, list[str], Time | None]]:
    """User, items and time of every entry of a request."""
    if (body.events is None) == (body.user is None) or (body.user is None) != (body.items is None):
        raise ApiError(422, "give user and items, or events", SCHEMA_HINT)
    if body.events is not None and body.time is not None:
        raise ApiError(422, "time: give every event its own time", SCHEMA_HINT)
    entries = body.events or [EventsOfUser(user=body.user or "", items=body.items or [], time=body.time)]
    check_limit("events", len(entries), service.limits.changes, "events")
    check_limit("items", max(len(entry.items) for entry in entries), service.limits.history, "ids")
    return [
        (
            as_id(entry.user),
            [as_id(item) for item in entry.items],
            None if entry.time is None else parse_time(entry.time),
        )
        for entry in entries
    ]


def parse_time(value: object, field: str = "time") -> Time:
    """The time of an event."""
    try:
        return as_time(value)
    except ValueError as error:
        raise ApiError(422, f"{field}: {error}", SCHEMA_HINT) from error

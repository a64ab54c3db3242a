"""Routes about items, users and their events."""

from typing import Annotated, Any

import torch
from fastapi import APIRouter, Body, Query
from starlette.responses import Response

from beamtree.data import Ids
from beamtree.data.catalogue import Catalogue, matches
from beamtree.data.ids import as_id
from beamtree.live import NewItem
from beamtree.live.events import Time, as_time
from beamtree.serve.engine.search import View
from beamtree.serve.engine.service import Service
from beamtree.serve.engine.source import Loaded
from beamtree.serve.http.answers import check_size
from beamtree.serve.http.errors import SCHEMA, RefusedError, as_json
from beamtree.serve.http.schemas import (
    LONGEST,
    Changed,
    EventsRequest,
    Item,
    Items,
    ItemsRequest,
    Known,
    User,
    UserEvents,
    Users,
)

Text = Annotated[str, Query(max_length=200, description="Any part of an id or a title.")]
MOST = 1000  # events of a user that are shown, the newest
Limit = Annotated[int, Query(ge=1, le=100)]
Forget = Annotated[bool, Query(description="Whether an item that is put again is to come as a new one.")]
Before = Annotated[str, Query(max_length=100, description="A number or a date, as the times of events.")]


def routes(service: Service) -> APIRouter:
    """What is known of items and users."""
    router = APIRouter()

    # These look through lists, so they run beside the loop that answers the others.

    @router.get("/v1/items", responses={200: {"model": Items}})
    def find_items(query: Text = "", limit: Limit = 20) -> Response:
        """Items by a part of their id or title."""
        catalogue = service.loaded.source.catalogue
        return as_json({"items": [known(service.loaded, catalogue, n) for n in catalogue.search(query, limit)]})

    @router.get("/v1/items/{item:path}", responses={200: {"model": Known}})
    def show_item(item: str) -> Response:
        """What is known of an item."""
        catalogue = service.loaded.source.catalogue
        (number,) = catalogue.ids.find([item])
        if number is None:
            raise RefusedError(404, "there is no such item", "look for it with /v1/items?query=…")
        return as_json(known(service.loaded, catalogue, number))

    @router.get("/v1/users", responses={200: {"model": Users}})
    def find_users(query: Text = "", limit: Limit = 20) -> Response:
        """Users of the log by a part of their id; none where the log is not here."""
        data = service.loaded.data
        return as_json({"users": [] if data is None else search_ids(data.users, query, limit)})

    @router.get("/v1/users/{user:path}", responses={200: {"model": User}})
    async def show_user(user: str) -> Response:
        """What a user did, oldest first, as far as the items are known."""

        def history(view: View) -> list[dict[str, Any]] | None:
            found = view.loaded.source.history(as_id(user))
            return found and [known(view.loaded, view.catalogue, number) for number in found.items[-MOST:]]

        found = await service.read(history)
        if found is None:
            raise RefusedError(404, "there is no such user", "look for one with /v1/users?query=…")
        return as_json({"user": as_id(user), "history": found})

    return router


def changes(service: Service) -> APIRouter:
    """What changes items and events."""
    router = APIRouter()

    @router.put("/v1/items/{item:path}", responses={200: {"model": Changed}})
    async def put_item(item: str, new: Annotated[Item | None, Body()] = None) -> Response:
        """Add an item, show one that was removed as it was, or change what is known of it; idempotent."""
        items = {checked(item): facts_of(new or Item(), service)}
        count, version = await service.change("put_item", lambda source: source.add_items(items))
        return as_json({"changed": count > 0, "version": version})

    @router.post("/v1/items", responses={200: {"model": Changed}})
    async def put_items(asked: ItemsRequest) -> Response:
        """The same for many items, all or none of them."""
        check_size("items", len(asked.items), service.limits.changes, "items")
        items = {checked(as_id(each.item)): facts_of(each, service) for each in asked.items}
        if len(items) < len(asked.items):
            raise RefusedError(422, "items: an id stands there twice", "name every item once")
        count, version = await service.change("put_item", lambda source: source.add_items(items), len(items))
        return as_json({"changed": count > 0, "version": version, "count": count})

    @router.delete("/v1/items/{item:path}", responses={200: {"model": Changed}})
    async def delete_item(item: str, forget: Forget = False) -> Response:
        """Remove an item: it is hidden until it is put again, or forgotten; idempotent."""
        name = checked(item)
        count, version = await service.change(
            "delete_item", lambda source: source.forget_items([name]) if forget else source.remove_items([name])
        )
        return as_json({"changed": count > 0, "version": version})

    @router.post("/v1/events", responses={200: {"model": Changed}})
    async def record(asked: EventsRequest) -> Response:
        """What users chose just now: the next answer to them knows it. With an id or times, it is idempotent."""
        chosen = events_of(asked, service)
        count, version = await service.change(
            "events", lambda source: source.record_events(chosen, asked.id), len(chosen)
        )
        return as_json({"changed": count > 0, "version": version, "known": count})

    @router.delete("/v1/events", responses={200: {"model": Changed}})
    async def retire(before: Before) -> Response:
        """Leave out all events of before a time, those that are sent later too."""
        time = moment(before)
        count, version = await service.change("retire", lambda source: source.retire_events(time))
        return as_json({"changed": count > 0, "version": version, "count": count})

    return router


def known(loaded: Loaded, catalogue: Catalogue, number: int) -> dict[str, Any]:
    """An item as JSON."""
    popularity = loaded.source.model.popularity
    events = None if popularity is None or number >= len(popularity) else int(popularity[number])
    facts = {"title": catalogue.title(number), "category": catalogue.category(number), "events": events}
    tree = loaded.source.model.tree
    is_hidden = number < tree.num_items and not bool(
        tree.mask.allows(tree.leaf_of_item(torch.tensor([number], device=tree.device)))
    )
    return {"item": catalogue.ids[number], **facts, "hidden": is_hidden}


def search_ids(ids: Ids, text: str, limit: int) -> list[str]:
    """The first few ids with this text in them; those that begin with it come first."""
    found = matches(((name.casefold(), "") for name in ids.names), text, limit)
    return list(dict.fromkeys(ids[place] for place in found))  # a user may be in several parts of a log


def checked(item: str) -> str:
    """An id that can be kept: one line, not empty and not too long."""
    name = as_id(item)
    if not name or len(name) > LONGEST or not name.isprintable():
        raise RefusedError(422, "this is no id", f"give one line of 1 to {LONGEST} characters")
    return name


def facts_of(sent: Item, service: Service) -> dict[str, Any]:
    """What is told of an item."""
    limits, histories = service.limits, sent.histories or []
    longest = max((len(each) for each in (sent.like or (), sent.vector or (), *histories)), default=0)
    if longest > limits.history or len(histories) > limits.histories:
        most = f"{limits.histories} histories of {limits.history} ids are the limit"
        raise RefusedError(422, f"the item comes with too much: {most}", "send less")
    return sent.model_dump(include=sent.model_fields_set & set(NewItem._fields))


def events_of(asked: EventsRequest, service: Service) -> list[tuple[str, list[str], Time | None]]:
    """Who chose what, and when."""
    if (asked.events is None) == (asked.user is None) or (asked.user is None) != (asked.items is None):
        raise RefusedError(422, "give user and items, or events", SCHEMA)
    if asked.events is not None and asked.time is not None:
        raise RefusedError(422, "time: give each of the events its own", SCHEMA)
    rows = asked.events or [UserEvents(user=asked.user or "", items=asked.items or [], time=asked.time)]
    check_size("events", len(rows), service.limits.changes, "events")
    check_size("items", max(len(each.items) for each in rows), service.limits.history, "ids")
    return [
        (as_id(each.user), [as_id(item) for item in each.items], None if each.time is None else moment(each.time))
        for each in rows
    ]


def moment(text: object) -> Time:
    """A time that was sent."""
    try:
        return as_time(text)
    except ValueError as error:
        raise RefusedError(422, f"time: {error}", SCHEMA) from error

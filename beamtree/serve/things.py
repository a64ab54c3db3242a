"""Routes about items, users and their events."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from starlette.responses import Response

from beamtree.data import Ids
from beamtree.data.catalogue import Catalogue, matches
from beamtree.data.ids import as_id
from beamtree.live import NewItem
from beamtree.serve.errors import RefusedError, as_json
from beamtree.serve.schemas import LONGEST, Changed, Happened, Item, Items, Known, User, Users
from beamtree.serve.search import View
from beamtree.serve.service import Service
from beamtree.serve.source import Loaded

Text = Annotated[str, Query(max_length=200, description="Any part of an id or a title.")]
MOST = 1000  # events of a user that are shown, the newest
Limit = Annotated[int, Query(ge=1, le=100)]


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
        """Add an item, or change what is known of it; a second time changes nothing."""
        name = checked(item)
        facts = new_item(new or Item(), service)
        changed, version = await service.change("put_item", lambda source: source.add(name, facts))
        return as_json({"changed": changed, "version": version})

    @router.delete("/v1/items/{item:path}", responses={200: {"model": Changed}})
    async def delete_item(item: str) -> Response:
        """Remove an item; a second time changes nothing."""
        name = checked(item)
        changed, version = await service.change("delete_item", lambda source: source.remove(name))
        return as_json({"changed": changed, "version": version})

    @router.post("/v1/events", responses={200: {"model": Changed}})
    async def record(happened: Happened) -> Response:
        """What a user chose just now: the next answer to this user knows it."""
        if len(happened.items) > service.limits.history:
            limit = service.limits.history
            raise RefusedError(422, f"items has {len(happened.items)} ids, over the limit of {limit}", "send fewer")
        user, items = as_id(happened.user), [as_id(item) for item in happened.items]
        count, version = await service.change("events", lambda source: source.record(user, items))
        return as_json({"changed": count > 0, "version": version, "known": count})

    return router


def known(loaded: Loaded, catalogue: Catalogue, number: int) -> dict[str, Any]:
    """An item as JSON."""
    popularity = loaded.source.model.popularity
    events = None if popularity is None or number >= len(popularity) else int(popularity[number])
    facts = {"title": catalogue.title(number), "category": catalogue.category(number), "events": events}
    return {"item": catalogue.ids[number], **facts}


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


def new_item(sent: Item, service: Service) -> NewItem:
    """What is known of an item, as it is applied."""
    limits, vector = service.limits, sent.vector
    longest = max((len(each) for each in (sent.like, vector or (), *sent.histories)), default=0)
    if longest > limits.history or len(sent.histories) > limits.histories:
        most = f"{limits.histories} histories of {limits.history} ids are the limit"
        raise RefusedError(422, f"the item comes with too much: {most}", "send less")
    histories = tuple(tuple(map(as_id, each)) for each in sent.histories)
    like = tuple(map(as_id, sent.like))
    numbers = None if vector is None else tuple(map(float, vector))
    return NewItem(sent.title, sent.category, like, histories, numbers)

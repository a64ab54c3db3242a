"""Documented routes that are answered around the layers of FastAPI, which take as long as a search."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, get_type_hints

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from beamtree.serve.http.errors import ApiError, internal_error, invalid_body, response_of

log = logging.getLogger("beamtree")
Endpoint = Callable[[Any], Awaitable[Response]]  # of the argument `body`, a model of pydantic


class PlainRoute(NamedTuple):
    """A POST route."""

    endpoint: Endpoint
    response: type[BaseModel]  # what the JSON of its response has


def add_plain_routes(app: FastAPI, plain: Mapping[str, PlainRoute]) -> ASGIApp:
    """An application with more POST routes, by path, which stand in the OpenAPI document like all others."""
    routes = {}
    for path, (endpoint, response) in plain.items():
        app.add_api_route(path, endpoint, methods=["POST"], responses={200: {"model": response}})
        routes[path] = route = app.routes[-1]
        assert isinstance(route, APIRoute)
        route.app = plain_app(route, endpoint, app)

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        route = routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await app(scope, receive, send)
        else:
            scope["route"] = route  # for metrics
            await route.app(scope, receive, send)  # type: ignore[attr-defined]

    return dispatch


def plain_app(route: APIRoute, endpoint: Endpoint, app: FastAPI) -> ASGIApp:
    """Read the body, call an endpoint and send its response; errors are those of other routes."""
    model: type[BaseModel] = get_type_hints(endpoint)["body"]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        content = b""
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                content += message.get("body", b"")
                if not message.get("more_body", False):
                    break
            response = await endpoint(read_body(model, content))
        except RequestValidationError as error:
            response = invalid_body(error, route, app)
        except (ApiError, HTTPException) as error:
            response = response_of(error)
        except Exception:
            log.exception("a request failed")
            response = internal_error()
        await response(scope, receive, send)

    return answer


def read_body(model: type[BaseModel], content: bytes) -> BaseModel:
    """The JSON of a body as a model; if it is not valid, a RequestValidationError or HTTPException as FastAPI's."""
    try:
        return model.model_validate_json(content)
    except ValueError:  # its errors are another parser's than those of other routes
        body = None
    try:
        body = json.loads(content) if content else None
    except json.JSONDecodeError as error:
        raise RequestValidationError([{"type": "json_invalid", "loc": ("body", error.pos)}]) from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(400) from error
    if body is None:
        raise RequestValidationError([{"type": "missing", "loc": ("body",)}])
    try:
        return model.model_validate(body)
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        raise RequestValidationError(errors, body=body) from error

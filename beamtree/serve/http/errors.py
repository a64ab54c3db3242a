"""Errors over HTTP: every one is JSON with `error` (what is wrong) and `hint` (what to do)."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from beamtree.errors import DISK_FULL, short_message
from beamtree.serve.http.metrics import Metrics
from beamtree.serve.http.schemas import Problem
from beamtree.serve.http.validation import describe

log = logging.getLogger("beamtree")
HINTS = {
    400: "send JSON as /docs describes it",
    404: "see /docs for the paths",
    405: "see /docs for the methods of this path",
    408: "send the body faster",
    413: "send less at once",
    415: "send the header Content-Type: application/json (curl: --json instead of -d)",
}
SCHEMA_HINT = "see /docs for the fields and examples"
UNREADABLE = "the body cannot be read: it is nested too deeply, or has a number with thousands of digits"

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        400: "Invalid JSON",
        401: "A token is required",
        403: "Changes are not allowed",
        404: "Not found",
        405: "Method not allowed",
        408: "The body arrived too slowly",
        409: "This service is read-only, or follows the changes of another",
        410: "These changes were replaced: read them from the start",
        413: "Payload too large",
        415: "Unsupported media type",
        422: "Invalid request",
        429: "Too many requests; retry after Retry-After seconds",
        503: "Service unavailable; retry after Retry-After seconds",
        504: "Deadline exceeded",
        507: "The change was not stored: the disk is full",
    }.items()
}


class ApiError(Exception):
    """An error response."""

    def __init__(self, status: int, error: str, hint: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.hint, self.headers = status, error, hint, dict(headers or {})


def check_limit(name: str, size: int, limit: int, unit: str) -> None:
    """Raise a 422 where a list is too long."""
    if size > limit:
        raise ApiError(422, f"{name} has {size} {unit}, over the limit of {limit}", f"send at most {limit}")


def read_only_error() -> ApiError:
    """The error of a service that was started without changes."""
    return ApiError(409, "this service is read-only", "start it with --changes FOLDER to store changes")


@contextmanager
def storing(metrics: Metrics) -> Iterator[None]:
    """Around a change, which is not made where this raises; the log has a line of one that could not be stored."""
    try:
        yield
    except ValueError as error:
        raise ApiError(422, str(error), SCHEMA_HINT) from error
    except OSError as error:
        metrics.rejected.labels("storage").inc()
        log.warning("a change was not stored: %s", short_message(error))
        reply = ApiError(503, "the change was not stored: the disk fails", "send it again later", {"Retry-After": "1"})
        if error.errno in DISK_FULL:
            reply = ApiError(507, "the change was not stored: the disk is full", "free some space, then send it again")
        raise reply from error


def json_response(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response, without another validation of its schema."""
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")
    return Response(body, status, dict(headers or {}), "application/json")


def error_response(status: int, error: str, hint: str, headers: Mapping[str, str] | None = None) -> Response:
    """The JSON of an error."""
    return json_response({"error": error, "hint": hint}, status, headers)


def response_of(error: "ApiError | HTTPException") -> Response:
    """The JSON of an error of ours, or of Starlette."""
    if isinstance(error, ApiError):
        return error_response(error.status, error.error, error.hint, error.headers)
    hint = HINTS.get(error.status_code, SCHEMA_HINT)
    text = UNREADABLE if error.status_code == 400 else str(error.detail).lower()
    return error_response(error.status_code, text, hint, error.headers)


def invalid_body(error: RequestValidationError, route: APIRoute, app: FastAPI) -> Response:
    """The JSON of what is wrong with the body or the parameters of a request."""
    return error_response(422, *describe(error.errors(), error.body, route, app.openapi()))


def internal_error() -> Response:
    """The JSON of an error of the service itself."""
    return error_response(500, "internal error", "see the log of the service")


def add_error_handlers(app: FastAPI) -> None:
    """Return all errors of an application as `error_response`."""

    @app.exception_handler(ApiError)
    async def handle_api_error(_: Request, error: ApiError) -> Response:
        return response_of(error)

    @app.exception_handler(HTTPException)
    async def handle_http_error(_: Request, error: HTTPException) -> Response:
        return response_of(error)

    @app.exception_handler(RequestValidationError)
    async def handle_validation_error(request: Request, error: RequestValidationError) -> Response:
        return invalid_body(error, request.scope["route"], app)

    @app.exception_handler(Exception)
    async def handle_unexpected_error(_: Request, error: Exception) -> Response:
        return internal_error()

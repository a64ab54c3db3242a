"""Errors as the service tells them: a status, and JSON with what is wrong and what to do."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

HINTS = {
    400: "send JSON as /openapi.json describes it",
    404: "see /openapi.json for what there is",
    405: "see /openapi.json for the methods of this path",
    408: "send the body faster",
    413: "send less at once",
    415: "send the header Content-Type: application/json (curl: --json instead of -d)",
}
SCHEMA = "see /openapi.json for what may be sent"


class RefusedError(Exception):
    """A request that is not answered."""

    def __init__(self, status: int, error: str, hint: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.hint, self.headers = status, error, hint, dict(headers or {})


def as_json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer, made once: nothing is checked twice."""
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")
    return Response(body, status, dict(headers or {}), "application/json")


def refusal(status: int, error: str, hint: str, headers: Mapping[str, str] | None = None) -> Response:
    """What is wrong and what to do."""
    return as_json({"error": error, "hint": hint}, status, headers)


def first_error(errors: Any) -> str:
    """The first thing that is wrong with a request; what was sent is not repeated."""
    found = errors[0] if errors else {}
    place = [str(part)[:80] for part in found.get("loc", ()) if part not in ("body", "query", "path")]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    message = str(found.get("msg", "not valid")).removeprefix("Value error, ")
    return f"{'.'.join(place[:4])}{': ' if place else ''}{message[:300]}{more}"


def add_handlers(app: FastAPI) -> None:
    """Have every error told in one shape."""

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedError)
        return refusal(error.status, error.error, error.hint, error.headers)

    async def of_http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        hint = HINTS.get(error.status_code, SCHEMA)
        return refusal(error.status_code, str(error.detail).lower(), hint, error.headers)

    async def of_schema(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return refusal(422, first_error(error.errors()), SCHEMA)

    async def unforeseen(_: Request, error: Exception) -> Response:
        return refusal(500, "the service failed at this request", "its log says why")

    app.add_exception_handler(RefusedError, refused)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(RequestValidationError, of_schema)
    app.add_exception_handler(Exception, unforeseen)

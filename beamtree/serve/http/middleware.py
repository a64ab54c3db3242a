"""Middleware around every route: metrics, access control, and limits on request bodies."""

import asyncio
import time
from contextlib import suppress
from typing import Protocol

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from beamtree.serve.http.access import Access, Limits, is_read_only
from beamtree.serve.http.errors import HINTS, error_response
from beamtree.serve.http.metrics import Metrics

SEND_SECONDS = 30.0  # in which a client must accept a part of the response
LINGER_BYTES, LINGER_SECONDS = 64 << 20, 10.0  # of the rest of a body that are dropped after an early answer
LINGER_IDLE_SECONDS = 2.0  # without a byte of it
METHODS_WITH_BODY = {"POST", "PUT", "PATCH", "DELETE"}
CLOSE = {"Connection": "close"}
GONE = 499  # is counted where a client left before the response began
READ_HEADERS = {b"authorization", b"content-type", b"content-length"}


class GuardedService(Protocol):
    """What the guard needs to know of a service."""

    access: Access
    limits: Limits
    metrics: Metrics
    stopping: bool


class RequestGuard:
    """Counts requests, checks tokens, and rejects bodies that are too large or too slow.

    A client that is still sending when its request is answered loses the answer if the connection is closed: its system
    is told that nobody reads. So the rest of the body is read and dropped first, up to a limit.
    """

    def __init__(self, app: ASGIApp, service: GuardedService) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, end = time.perf_counter(), GONE, None
        waits = any(name == b"expect" for name, _ in scope["headers"])  # to send the body until it is asked for
        complete = scope["method"] not in METHODS_WITH_BODY or waits

        async def watched_receive() -> Message:
            nonlocal complete
            message = await receive()
            complete = not message.get("more_body", False)  # also where the client has left
            return message

        async def counting_send(message: Message) -> None:
            nonlocal status, end
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.service.stopping:  # so that the next request goes to another server
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
                await send(message)  # with the first part of the body
                return
            is_last = not message.get("more_body", False)
            async with asyncio.timeout(SEND_SECONDS):
                await send({**message, "more_body": True} if is_last and not complete else message)
            end = time.perf_counter()
            if is_last and not complete:
                await self._drop_rest(watched_receive)
                await send({"type": "http.response.body"})

        try:
            await self._handle(scope, watched_receive, counting_send)
        except Exception:
            status = 500 if status == GONE else status
            raise
        finally:
            route = getattr(scope.get("route"), "path", None) or "other"
            self.service.metrics.requests.labels(route, str(status)).inc()
            self.service.metrics.duration.labels(route).observe((end or time.perf_counter()) - start)

    async def _drop_rest(self, receive: Receive) -> None:
        """Read and drop what follows of a body, for a while."""
        dropped = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while dropped < LINGER_BYTES and not self.service.stopping:
                    async with asyncio.timeout(LINGER_IDLE_SECONDS):
                        message = await receive()
                    if not message.get("more_body", False):
                        return
                    dropped += len(message["body"])

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, headers = self.service, dict[bytes, str]()
        for name, value in scope["headers"]:
            if name in READ_HEADERS:
                headers.setdefault(name, value.decode("latin-1"))
        denied = service.access.check(scope["method"], scope["path"], headers.get(b"authorization", ""))
        if denied is not None:
            service.metrics.rejected.labels("unauthorized").inc()
            status, error, hint = denied
            challenge = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
            await error_response(status, error, hint, challenge)(scope, receive, send)
            return
        if scope["method"] not in METHODS_WITH_BODY:
            await self.app(scope, receive, send)
            return
        if not is_json(headers.get(b"content-type", "")):
            # A browser posts other types to other sites without a preflight request: such a change is rejected.
            if scope["method"] == "POST" and not is_read_only(scope["method"], scope["path"]):
                error = "the header Content-Type: application/json is missing"
                await error_response(415, error, HINTS[415], CLOSE)(scope, receive, send)
                return
            MutableHeaders(scope=scope)["content-type"] = "application/json"
        length = headers.get(b"content-length", "0")
        if length.isascii() and length.isdigit() and int(length[:20]) > service.limits.body:
            service.metrics.rejected.labels("too_large").inc()
            error = f"the body has {length[:20]} bytes, over the limit of {service.limits.body}"
            await error_response(413, error, HINTS[413], CLOSE)(scope, receive, send)
            return
        await self.app(scope, self._limited(receive), send)

    def _limited(self, receive: Receive) -> Receive:
        """Receive the body within the limits of size and time."""
        limits, size, complete = self.service.limits, 0, False
        deadline = asyncio.get_running_loop().time() + limits.seconds_of_body

        async def limited_receive() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError as error:
                raise HTTPException(408, "the body did not arrive in time", CLOSE) from error
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if size > limits.body:
                self.service.metrics.rejected.labels("too_large").inc()
                raise HTTPException(413, f"the body has more than {limits.body} bytes", CLOSE)
            return message

        return limited_receive


def is_json(content_type: str) -> bool:
    """Whether a Content-Type is JSON."""
    name = content_type.partition(";")[0].strip().lower()
    return name == "application/json" or (name.startswith("application/") and name.endswith("+json"))

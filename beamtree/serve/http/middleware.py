"""Around every route: who may ask, how much may be sent, and what is counted."""

import asyncio
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from beamtree.serve.engine.limits import reads
from beamtree.serve.engine.service import Service
from beamtree.serve.http.errors import HINTS, refusal

READING = 30.0  # seconds in which a client must take what it is sent
WITH_BODY = {"POST", "PUT", "PATCH", "DELETE"}


class Guard:
    """Counts requests, asks for tokens, and takes no body that is too large or too slow."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.service.stopping:  # so that the next request goes elsewhere
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            async with asyncio.timeout(READING):
                await send(message)

        try:
            await self._guarded(scope, receive, counted)
        finally:
            route = getattr(scope.get("route"), "path", None) or "other"
            self.service.metrics.requests.labels(route, str(status)).inc()
            self.service.metrics.duration.labels(route).observe(time.perf_counter() - start)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, service = Headers(scope=scope), self.service
        refused = service.access.refuses(scope["method"], scope["path"], headers.get("authorization", ""))
        if refused is not None:
            service.metrics.rejected.labels("unauthorized").inc()
            status, error, hint = refused
            words = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
            await refusal(status, error, hint, words)(scope, receive, send)
            return
        if scope["method"] not in WITH_BODY:
            await self.app(scope, receive, send)
            return
        if not is_json(headers.get("content-type", "")):
            # Other sites can have a browser post what is no JSON without asking: such a change is refused.
            if scope["method"] == "POST" and not reads(scope["method"], scope["path"]):
                error = "the header Content-Type: application/json is missing"
                await refusal(415, error, HINTS[415], {"Connection": "close"})(scope, receive, send)
                return
            MutableHeaders(scope=scope)["content-type"] = "application/json"
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length[:20]) > service.limits.body:
            service.metrics.rejected.labels("too_large").inc()
            error = f"the body has {length[:20]} bytes, and {service.limits.body} are the limit"
            await refusal(413, error, HINTS[413], {"Connection": "close"})(scope, receive, send)
            return
        await self.app(scope, self._bounded(receive), send)

    def _bounded(self, receive: Receive) -> Receive:
        """The body, as far as it is not too large and comes in time."""
        limits, taken, whole = self.service.limits, 0, False
        end = asyncio.get_running_loop().time() + limits.seconds_of_body

        async def bounded() -> Message:
            nonlocal taken, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError as error:
                raise HTTPException(408, "the body did not come in time", {"Connection": "close"}) from error
            taken += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if taken > limits.body:
                self.service.metrics.rejected.labels("too_large").inc()
                raise HTTPException(413, f"the body has more than {limits.body} bytes", {"Connection": "close"})
            return message

        return bounded


def is_json(kind: str) -> bool:
    """Whether a Content-Type is one of JSON."""
    name = kind.partition(";")[0].strip().lower()
    return name == "application/json" or (name.startswith("application/") and name.endswith("+json"))

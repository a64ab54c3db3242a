"""The server process: Uvicorn with header timeouts and graceful shutdown."""

import asyncio
import json
import logging
import signal
import socket
import threading
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from beamtree.serve.http.middleware import GuardedService

HEADER_SECONDS, HEADER_BYTES = 10.0, 1 << 16  # limits for the path and the headers of a request
KEEP_ALIVE_SECONDS = 75  # longer than most load balancers keep idle connections
MAX_CONNECTIONS = 4096
SHUTDOWN_SECONDS = 30  # for requests in flight


class HeaderTimeoutProtocol(HttpToolsProtocol):
    """HTTP that closes connections whose headers are too slow or too large; the second after a 431.

    A client may send several requests at once and leave. Uvicorn then tells only the last of them.
    """

    _timer: asyncio.TimerHandle | None = None  # stays while requests come and go: they are many, and few are slow
    _heads = 0  # that have begun
    _header_bytes = 0  # of the path and the headers that are complete
    _later_bytes = 0  # received since headers began, without the chunk they began in: that may have other requests
    _begun: float | None = None  # when the headers that are not complete began
    _cycles: tuple[RequestResponseCycle, ...] = ()  # of requests that are not answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        heads = self._heads
        super().data_received(data)
        if self._begun is not None and self._heads == heads:
            self._later_bytes += len(data)
            if self._later_bytes > HEADER_BYTES and not self.transport.is_closing():
                self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin_headers()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value) + 4)  # a colon, a space and the end of the line

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > HEADER_BYTES:
            raise ValueError("the headers are too large")  # ends the parser, which leads to `send_400_response`

    def on_headers_complete(self) -> None:
        self._begun = None
        super().on_headers_complete()
        if self.cycle is not None:
            self._cycles = (*(cycle for cycle in self._cycles if not cycle.response_complete), self.cycle)

    def send_400_response(self, msg: str) -> None:
        status, error, hint = "400 Bad Request", "not a valid HTTP request", "send HTTP/1.1"
        if max(self._header_bytes, self._later_bytes) > HEADER_BYTES:
            status, error = "431 Request Header Fields Too Large", "the path and the headers are too large"
            hint = f"send at most {HEADER_BYTES} bytes of them"
        body = json.dumps({"error": error, "hint": hint})
        headers = f"content-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}"
        self.transport.write(f"HTTP/1.1 {status}\r\n{headers}\r\n\r\n{body}".encode())
        self.transport.close()

    def _begin_headers(self) -> None:
        self._heads, self._header_bytes, self._later_bytes, self._begun = self._heads + 1, 0, 0, self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self._check_headers)

    def _check_headers(self) -> None:
        self._timer = None
        if self._begun is not None:
            left = self._begun + HEADER_SECONDS - self.loop.time()
            if left > 0:
                self._timer = self.loop.call_later(left, self._check_headers)
            elif not self.transport.is_closing():
                self.transport.close()


class Server(uvicorn.Server):
    """Stops on a signal with exit code 0: reports not ready for `drain` seconds, then finishes requests in flight."""

    def __init__(self, config: uvicorn.Config, service: GuardedService, drain: float) -> None:
        super().__init__(config)
        self._service, self._drain = service, drain

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        elif self._service.stopping or self._drain <= 0:  # a second signal skips the drain
            self.should_exit = True
        else:
            timer = threading.Timer(self._drain, setattr, (self, "should_exit", True))
            timer.daemon = True
            timer.start()
        self._service.stopping = True


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; a ValueError in one line on failure."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise ValueError(f"cannot listen at {host}:{port}, {error}: choose another `host` or `port`") from error


def url_of(listening: socket.socket, for_others: bool = False) -> str:
    """The address of a listening socket; `for_others`, that of this machine where it listens at all of them."""
    host, port = listening.getsockname()[:2]
    if for_others and host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://{'[' + host + ']' if ':' in host else host}:{port}"


def make_server(app: ASGIApp, service: GuardedService, drain: float = 1.0) -> Server:
    """A server for the application of a service; `drain` as in `Server`."""
    config = uvicorn.Config(
        app,
        http=HeaderTimeoutProtocol,
        access_log=False,  # a line per request costs more than some responses, and would contain ids
        log_level=logging.ERROR,  # invalid requests must not fill the log
        ws="none",
        server_header=False,
        proxy_headers=False,  # no response depends on the address of a client
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        limit_concurrency=MAX_CONNECTIONS,
        lifespan="on",
    )
    return Server(config, service, drain)

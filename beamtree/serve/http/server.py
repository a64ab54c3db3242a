"""The service in a process: it listens, is patient with no one for long, and stops when it is told to."""

import asyncio
import logging
import signal
import socket
import threading
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from beamtree.serve.engine.service import Service
from beamtree.serve.http.app import make_app

HEAD_SECONDS, HEAD_BYTES = 10.0, 1 << 16  # in which the head of a request must have come
IDLE_SECONDS = 75  # that a connection is kept without a request: longer than most load balancers do
CONNECTIONS = 4096
FINISH_SECONDS = 30  # for what is in flight at the end


class Patient(HttpToolsProtocol):
    """HTTP for clients who may be slow, though not forever: heads of requests are bounded in time and size."""

    _timer: asyncio.TimerHandle | None = None
    _head = 0  # bytes of a head that has not ended
    _in_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head += len(data)
        if self._in_head and self._head > HEAD_BYTES:
            self._drop()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin()

    def on_headers_complete(self) -> None:
        self._end()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        body = b'{"error":"this is no HTTP request","hint":"send HTTP/1.1"}'
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
        self.transport.close()

    def _begin(self) -> None:
        self._end()
        self._head, self._in_head = 0, True
        self._timer = self.loop.call_later(HEAD_SECONDS, self._drop)

    def _end(self) -> None:
        self._in_head = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """Ends with code 0 when told to stop: not ready first, then nothing new, then what is in flight is finished."""

    def __init__(self, config: uvicorn.Config, service: Service, drain: float) -> None:
        super().__init__(config)
        self._service, self._drain = service, drain

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        elif self._service.stopping or self._drain <= 0:  # told again, or no time to wait
            self.should_exit = True
        else:
            timer = threading.Timer(self._drain, setattr, (self, "should_exit", True))
            timer.daemon = True
            timer.start()
        self._service.stopping = True


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; a ValueError in one line where that cannot be."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise ValueError(f"{host}:{port} cannot be listened to, {error}: choose another `host` or `port`") from error


def make_server(service: Service, drain: float = 1.0) -> Server:
    """What serves until a signal says to stop, and for `drain` seconds more, in which it says that it is not ready."""
    config = uvicorn.Config(
        make_app(service),
        http=Patient,
        access_log=False,  # a line per request costs more than some answers, and would name what people look for
        log_level=logging.ERROR,  # whoever sends nonsense must not fill the log
        ws="none",
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=FINISH_SECONDS,
        limit_concurrency=CONNECTIONS,
        lifespan="on",
    )
    return Server(config, service, drain)

"""Just enough of HTTP/1.1 for a load test, which shares the machine with what it measures; connections are kept."""

import asyncio
import json
import re
import ssl
from urllib.parse import urlsplit

CONNECTIONS = 512  # at most; who finds all of them taken waits
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.I)
CLOSING = re.compile(rb"\r\nconnection: *close", re.I)


class Client:
    """HTTP/1.1 to one service, over as many connections as there are requests at a time."""

    def __init__(self, url: str, token: str | None = None, timeout: float = 10.0) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ValueError(f"{url!r} is no address of a service: give http://HOST:PORT")
        self.host, self.path, self.timeout = parts.hostname, parts.path.rstrip("/"), timeout
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.port = port or (443 if self.tls else 80)
        self._head = f"Host: {parts.netloc.rpartition('@')[2]}\r\n"
        if token:
            self._head += f"Authorization: Bearer {token}\r\n"
        self._idle: list[_Connection] = []
        self._room = asyncio.Semaphore(CONNECTIONS)

    def request(self, method: str, path: str, body: object = None) -> bytes:
        """A request as it goes over the wire."""
        content = b"" if body is None else json.dumps(body).encode()
        kind = "Content-Type: application/json\r\n" if content else ""
        head = f"{method} {self.path}{path} HTTP/1.1\r\n{self._head}{kind}Content-Length: {len(content)}\r\n\r\n"
        return head.encode("latin-1") + content

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer; an OSError where there is none, a TimeoutError where it is late."""
        async with asyncio.timeout(self.timeout), self._room:
            while self._idle:
                try:
                    return await self._send(self._idle.pop(), request)
                except _StaleError:  # the service closed it while it was idle
                    continue
            connect = asyncio.get_running_loop().create_connection(_Connection, self.host, self.port, ssl=self.tls)
            return await self._send((await connect)[1], request)

    async def _send(self, connection: "_Connection", request: bytes) -> tuple[int, bytes]:
        try:
            status, body = await connection.send(request)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        return status, body

    def close(self) -> None:
        """Close the connections that are idle."""
        while self._idle:
            self._idle.pop().close()


class _StaleError(ConnectionError):
    """A connection that had served before was closed without a byte of an answer."""


class _Connection(asyncio.Protocol):
    """One connection: a request, its answer, and the next request."""

    def __init__(self) -> None:
        self.is_open, self._served = False, 0
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.is_open = transport, True

    def send(self, request: bytes) -> "asyncio.Future[tuple[int, bytes]]":
        self._answer = asyncio.get_running_loop().create_future()
        self._read, self._body, self._length = bytearray(), -1, -1  # what came, and of its body the start and length
        if self.is_open:
            self._transport.write(request)
        else:
            self._answer.set_exception(_StaleError())
        return self._answer

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            return
        self._read += data
        if self._body < 0:
            end = self._read.find(b"\r\n\r\n")
            if end < 0:
                return
            self._body, length = end + 4, LENGTH.search(self._read, 0, end)
            self._length = int(length[1]) if length else -1
            self._chunked = CHUNKED.search(self._read, 0, end) is not None
            if CLOSING.search(self._read, 0, end):
                self.is_open = False
        if self._chunked:
            if self._read.endswith(b"0\r\n\r\n") and len(self._read) > self._body:
                self._finish()
        elif 0 <= self._length <= len(self._read) - self._body:
            self._finish()

    def _finish(self) -> None:
        assert self._answer is not None
        if not self._read.startswith(b"HTTP/1.") or not self._read[9:12].isdigit():
            self._answer.set_exception(ConnectionError("what answers there does not speak HTTP"))
            return
        self._served += 1
        body = bytes(self._read[self._body :])
        self._answer.set_result((int(self._read[9:12]), _joined(body) if self._chunked else body))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._answer is None or self._answer.done():
            return
        if self._body >= 0 and self._length < 0 and not self._chunked:  # the end is the end of the body
            self._finish()
        else:
            stale = self._served and not self._read
            self._answer.set_exception(_StaleError() if stale else ConnectionError("the connection was closed"))

    def close(self) -> None:
        self.is_open = False
        self._transport.close()


def _joined(body: bytes) -> bytes:
    """A body that came in chunks, each after its length."""
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size.partition(b";")[0] or b"0", 16)
        found, body = found + body[:length], body[length + 2 :]
    return found

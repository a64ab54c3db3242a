"""Where readers of a journal find its changes: in the folder of the writer, or at its HTTP address.

A reader asks for what follows a position, and gets complete lines and the position after them. A position names the
file, the byte, and the last line that was read: it is not valid any more if that line is gone, because it was refused
and cut off, or because the file was compacted before it was read to its end. Reading takes no lock and writes nothing.

The writer touches a small file every second, by which readers of the folder know that it is there. Its lock would tell
too, but to ask for a lock is to take it: a writer that starts in that moment would be refused.
"""

import http.client
import json
import logging
import os
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

from beamtree.errors import short_message
from beamtree.files.atomic import write_concurrently
from beamtree.live.journal import AFTER, CHANGES, HEAD, decode_line, file_id

log = logging.getLogger("beamtree")
START = ""  # the position before the first change
WRITER = "writer.json"  # beside the changes: the address of the writer, touched while it is there
BEAT_SECONDS = 1.0  # between two touches
POLL_SECONDS = 0.2  # between two looks at a folder
MOST_BYTES = 1 << 20  # that are read at once, but at least a line
TIMEOUT_SECONDS = 3.0  # for an answer over HTTP, beyond the time that was asked to wait
ROUTE = "/v1/changes"
POSITION = "Beamtree-Position"  # the header of an answer


class Lines(NamedTuple):
    """What follows a position."""

    content: bytes  # complete lines
    position: str | None  # after them; None if the one that was asked about is not valid any more
    has_writer: bool  # whether there was a sign that the writer is there


class Changes(Protocol):
    """The changes of another process."""

    @property
    def writer(self) -> str:
        """Where the writer is: its address, or the folder if that is not known."""
        ...

    def read(self, position: str, wait: float = 0.0) -> Lines:
        """What follows a position; if there is nothing, wait for it for some seconds.

        An OSError if it cannot be read now, and a ValueError if it will not be without help.
        """
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


def decode_lines(content: bytes) -> list[dict[str, Any]]:
    """The entries of complete lines; a ValueError where one is damaged."""
    entries: list[dict[str, Any]] = []
    for line in content.splitlines():
        decoded = decode_line(line)
        if decoded is None:
            raise ValueError("the changes are damaged: restore a copy of them at the writer")
        entries += decoded
    return entries


def open_changes(source: str, token: str | None = None) -> Changes:
    """The changes at an address or in a folder."""
    return UrlChanges(source, token) if "://" in source else FolderChanges(Path(source))


# A folder


class Position(NamedTuple):
    """A place in a file of changes, and the line before it."""

    file: str
    offset: int
    length: int = 0  # of the last line that was read
    checksum: int = 0

    @classmethod
    def parse(cls, text: str) -> "Position":
        """A position from its text; a ValueError for anything else."""
        try:
            file, *numbers = text.split(":")
            offset, length, checksum = (int(number, 16) for number in numbers)
        except ValueError as error:
            raise ValueError(f"{text[:80]!r} is not a position: give one that was returned") from error
        return cls(file, offset, length, checksum)

    def __str__(self) -> str:
        return f"{self.file}:{self.offset:x}:{self.length:x}:{self.checksum:x}"


class FolderChanges:
    """The changes in a folder that another process writes to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: tuple[str, FileIO] | None = None  # as it was last found
        self._replaced: tuple[str, FileIO] | None = None  # the file before it
        self._checked: object = None  # what the last line was last compared in
        self._beat: int | None = None
        self._address: str | None = None

    @property
    def writer(self) -> str:
        """The address of the writer, or the folder."""
        if self._address is None:
            with suppress(OSError, ValueError, KeyError, TypeError):
                self._address = str(json.loads((self._folder / WRITER).read_bytes())["url"])
        return self._address or str(self._folder)

    def read(self, position: str, wait: float = 0.0) -> Lines:
        """As in `Changes`."""
        end, has_writer = time.monotonic() + wait, False
        while True:
            content, after = self._read(position)
            has_writer |= self._has_beaten()
            left = end - time.monotonic()
            if content or after is None or left <= 0:
                return Lines(content, after, has_writer)
            time.sleep(min(POLL_SECONDS, left))

    def _has_beaten(self) -> bool:
        """Whether the writer has touched its file since this was last asked."""
        before, self._beat = self._beat, None
        with suppress(OSError), (self._folder / WRITER).open("rb") as file:  # opened, since NFS then asks the server
            self._beat = os.fstat(file.fileno()).st_mtime_ns
        if before not in (None, self._beat):
            self._address = None  # it may be another one
        return before is not None and self._beat is not None and before != self._beat

    def _read(self, text: str) -> tuple[bytes, str | None]:
        """Complete lines after a position, and the position after them."""
        position = Position.parse(text) if text else None
        try:
            name, file = self._open()
        except FileNotFoundError:
            if not self._folder.is_dir():
                raise ValueError(f"{self._folder} is not a folder: start the writer with it first") from None
            if position is not None:
                raise
            return b"", START  # the writer has not begun
        if position is None:
            return _lines(Position(name, 0), file)
        if position.file == name:
            return _lines(position, file) if self._has_line(file, position) else (b"", None)
        first = _first_entry(file)
        before = first.get(AFTER, {"file": None})
        if before["file"] != position.file:
            return b"", None
        if position.offset == before["size"]:
            return _lines(Position(name, first["length"] + before["rest"]), file)
        if self._replaced is None or self._replaced[0] != position.file:
            return b"", None
        file = self._replaced[1]
        return _lines(position, file) if self._has_line(file, position) else (b"", None)

    def close(self) -> None:
        """Close the files."""
        for each in (self._file, self._replaced):
            if each is not None:
                each[1].close()

    def _open(self) -> tuple[str, FileIO]:
        """The present file. The one before it stays open, to be read to its end."""
        file = (self._folder / CHANGES).open("rb", buffering=0)
        found, obsolete = (file_id(file), file), self._file
        if obsolete is not None and obsolete[0] != found[0]:
            obsolete, self._replaced = self._replaced, obsolete
        if obsolete is not None:
            obsolete[1].close()
        self._file = found
        return found

    def _has_line(self, file: FileIO, position: Position) -> bool:
        """Whether the last line that was read is still before a position."""
        status = os.fstat(file.fileno())
        state = position, status.st_ino, status.st_size, status.st_mtime_ns
        if state == self._checked:
            return True
        if status.st_size < position.offset:
            return False
        line = _read_bytes(file, position.offset - position.length, position.length)
        if zlib.crc32(line) != position.checksum:
            return False
        self._checked = state
        return True


def _lines(position: Position, file: FileIO) -> tuple[bytes, str]:
    """Complete lines after a position, and the position after them."""
    content = _read_bytes(file, position.offset, MOST_BYTES)
    while content and b"\n" not in content:  # a longer line
        more = _read_bytes(file, position.offset + len(content), MOST_BYTES)
        if not more:
            break
        content += more
    content = content[: content.rfind(b"\n") + 1]
    if not content:
        return content, str(position) if position.offset else START
    last = content[content.rfind(b"\n", 0, -1) + 1 :]
    return content, str(Position(position.file, position.offset + len(content), len(last), zlib.crc32(last)))


def _read_bytes(file: FileIO, start: int, count: int) -> bytes:
    """Up to `count` bytes of a file from `start` on."""
    file.seek(start)
    parts = []
    while count and (part := file.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _first_entry(file: FileIO) -> dict[str, Any]:
    """The first entry of a compacted file, with the `length` of its line; empty for another file."""
    line, end, _ = _read_bytes(file, 0, HEAD).partition(b"\n")
    entries = (decode_line(line) if end else None) or [{}]
    return {**entries[0], "length": len(line) + 1}


class Heartbeat:
    """Shows the readers of a folder that its writer is there, and at which address."""

    def __init__(self, folder: Path, url: str) -> None:
        self._path, self._text = folder / WRITER, json.dumps({"url": url}) + "\n"
        self._is_written = False
        self._stop = threading.Event()
        self._beat()
        self._thread = threading.Thread(target=self._run, name="beamtree-heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        try:
            if not self._is_written:
                write_concurrently(self._path, lambda draft: draft.write_text(self._text, encoding="utf-8"))
                self._is_written = True
            os.utime(self._path)
        except OSError:  # a full disk, for now; or somebody removed the file
            self._is_written = False

    def _run(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            self._beat()

    def close(self) -> None:
        """Stop: the readers will take the writer for gone."""
        self._stop.set()
        self._thread.join()


# An address


class UrlChanges:
    """The changes of a writer at its HTTP address."""

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        more = parts.username or parts.password or parts.query or parts.fragment
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or more:
            raise ValueError(f"{url[:200]!r} is not the address of a writer: give http://HOST:PORT, or a folder")
        self.writer = url.rstrip("/")
        self._host, self._port, self._path = parts.hostname, port, parts.path.rstrip("/")
        self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection: http.client.HTTPConnection | None = None

    def read(self, position: str, wait: float = 0.0) -> Lines:
        """As in `Changes`."""
        try:
            status, headers, content = self._get(f"{self._path}{ROUTE}?position={quote(position)}&wait={wait}", wait)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise OSError(f"{self.writer} does not answer: {short_message(error) or type(error).__name__}") from error
        if status == 410:
            return Lines(b"", None, True)
        after = next((value for name, value in headers.items() if name.lower() == POSITION.lower()), None)
        if status == 200 and after is not None:
            return Lines(content, after, True)
        self.close()
        if status >= 500:
            raise OSError(f"{self.writer} answers with status {status}")
        raise ValueError(f"{self.writer} gives no changes to follow: {_reason(status, content)}")

    def _get(self, path: str, wait: float) -> tuple[int, Mapping[str, str], bytes]:
        """The answer to a request; the connection is kept for the next one."""
        connection = self._connection or self._connect(self._host, self._port, timeout=TIMEOUT_SECONDS)
        self._connection = connection
        if connection.sock is None:  # it is new, or the other side has closed it
            connection.connect()
        connection.sock.settimeout(wait + TIMEOUT_SECONDS)
        connection.request("GET", path, headers=self._headers)
        with connection.getresponse() as response:
            return response.status, dict(response.headers), response.read()

    def close(self) -> None:
        """Close the connection; the next question opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _reason(status: int, content: bytes) -> str:
    """What a service says about an error, or its status."""
    if status in (401, 403):
        return "set BEAMTREE_CHANGE_TOKEN to the same token on both"
    with suppress(ValueError, KeyError, TypeError):
        error = json.loads(content)
        return f"{error['error']}; {error['hint']}"
    return f"status {status}"

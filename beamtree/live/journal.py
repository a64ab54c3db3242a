"""The log of changes: written ahead, flushed before anybody is told, and replayed after a crash.

A line is a checksum and a JSON object. The last line may be cut short by a crash: then nobody was told of it, and it is
dropped. A damaged line before others was told of, so it is an error.
"""

import json
import os
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from beamtree.files.drafts import held
from beamtree.files.small import flush

CHANGES = "changes.log"


class Journal:
    """The changes in a folder, oldest first. One process writes to it; another is told so."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / CHANGES
        self._held = ExitStack()
        self._held.enter_context(held(folder))
        try:
            self.entries, whole = read_entries(self.path)
            with self.path.open("ab") as file:
                file.truncate(whole)
            flush(self.path)
            flush(folder)
            self._file = self.path.open("ab")
        except BaseException:
            self._held.close()
            raise

    def append(self, entry: dict[str, Any]) -> None:
        """Write an entry; when this returns it is on the disk."""
        self._file.write(as_line(entry))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.entries.append(entry)

    def close(self) -> None:
        """Let others write."""
        self._file.close()
        self._held.close()


def as_line(entry: dict[str, Any]) -> bytes:
    """An entry with its checksum."""
    text = json.dumps(entry, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def read_entries(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The entries of a file, and how many bytes of it hold them."""
    if not path.exists():
        return [], 0
    content = path.read_bytes()
    entries, place = [], 0
    while place < len(content):
        end = content.find(b"\n", place)
        entry = None if end < 0 else _entry(content[place:end])
        if entry is None:
            if content.find(b"\n", place if end < 0 else end + 1) >= 0:
                raise ValueError(f"{path} is damaged at byte {place:,}: put back a copy, or remove what follows there")
            break
        entries.append(entry)
        place = end + 1
    return entries, place


def _entry(line: bytes) -> dict[str, Any] | None:
    """The entry of a line; None where it is damaged."""
    checksum, _, text = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None

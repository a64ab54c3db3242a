"""The log of changes: written ahead, flushed before anybody is told, and replayed after a crash.

A line is a checksum and a JSON object. The last line may be cut short by a crash: then nobody was told of it, and it is
dropped. A damaged line before others was told of, so it is an error.

Changes that later ones have made void are left out now and then, so that a log grows with what is there, not with time.
"""

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from beamtree.files.drafts import held
from beamtree.files.small import flush

CHANGES = "changes.log"
LONG = 10_000  # entries from which on a log is looked through, again when it is twice as long


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
            self._long = LONG
            if len(self.entries) >= LONG:
                self._shorten()
        except BaseException:
            self._held.close()
            raise

    def append(self, entry: dict[str, Any]) -> None:
        """Write an entry; when this returns it is on the disk."""
        self._file.write(as_line(entry))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.entries.append(entry)
        if len(self.entries) >= self._long:
            self._shorten()

    def _shorten(self) -> None:
        """Leave out what is void, in one move: whoever is killed leaves the old log or the new one."""
        left, new = in_short(self.entries), self.path.with_name(CHANGES + ".new")
        self._long = max(LONG, 2 * len(left))
        try:
            new.write_bytes(b"".join(map(as_line, left)))
            flush(new)
            os.replace(new, self.path)
        except OSError:  # on a full disk: the long one is as good
            new.unlink(missing_ok=True)
            self._long = 2 * len(self.entries)
            return
        flush(self.path.parent)
        self._file.close()
        self._file, self.entries = self.path.open("ab"), left

    def close(self) -> None:
        """Let others write."""
        self._file.close()
        self._held.close()


def count(entries: Sequence[Mapping[str, Any]]) -> int:
    """How many changes entries stand for."""
    return sum(entry["changes"] if entry["kind"] == "before" else 1 for entry in entries)


def in_short(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Fewer entries that lead to the same: the first says how many changes all of them stand for.

    Of an item the last word counts, and that it was removed before it came back; an earlier word only where an item
    that came later is said to be like it. One that was removed is still known where a user chose it. Of users all
    events are kept, in one entry each, and of runs the last.
    """
    left: list[dict[str, Any]] = []
    said: dict[str, str] = {}  # of each item, what the next entry that is kept says
    named: set[str] = set()  # by items that came later
    chosen = {item for entry in entries if entry["kind"] == "events" for item in entry["items"]}
    users: dict[str, list[str]] = {}
    run: list[dict[str, Any]] = []
    for entry in reversed(entries):
        kind, item = entry["kind"], entry.get("item", "")
        if kind == "events":
            users.setdefault(entry["user"], []).extend(reversed(entry["items"]))
        elif kind == "run":
            run = run or [dict(entry)]
        elif kind in ("add", "remove"):
            wanted = item not in said or item in named or item in chosen
            if wanted if kind == "add" else said.get(item) != "remove":
                left.append(dict(entry))
                said[item] = kind
                named.update(entry.get("like", ()), *entry.get("histories", ()))
                chosen -= {item} if kind == "add" else set()  # once is enough
        elif kind != "before":
            raise ValueError(unknown_kind(kind))
    events = [{"kind": "events", "user": user, "items": items[::-1]} for user, items in reversed(users.items())]
    found = [*reversed(left), *events, *run]
    return [{"kind": "before", "changes": count(entries) - len(found)}, *found]


def unknown_kind(kind: object) -> str:
    """What is said of a change that this version does not know."""
    return f"a change {str(kind)[:40]!r} is not known: read it with a newer beamtree"


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

"""The log of changes: written ahead, flushed before anybody is told, and replayed after a crash.

A line is a checksum and a JSON object, or a list of those that were sent together. The last line may be cut short by a
crash: then nobody was told of it, and it is dropped. A damaged line before others was told of, so it is an error.

Changes that later ones have made void are left out now and then, so that a log grows with what is there, not with time.
"""

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from beamtree.files.atomic import fsync
from beamtree.files.staging import folder_lock
from beamtree.live.known import Event
from beamtree.live.times import Time

CHANGES = "changes.log"
LONG = 10_000  # entries from which on a log is looked through, again when it is twice as long


class Journal:
    """The changes in a folder, oldest first. One process writes to it; another is told so."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / CHANGES
        self._held = ExitStack()
        self._held.enter_context(folder_lock(folder))
        try:
            self.entries, whole = read_entries(self.path)
            with self.path.open("ab") as file:
                file.truncate(whole)
            fsync(self.path)
            fsync(folder)
            self._file = self.path.open("ab")
            self._long = LONG
            if len(self.entries) >= LONG:
                self._shorten()
        except BaseException:
            self._held.close()
            raise

    def append(self, *entries: dict[str, Any]) -> None:
        """Write entries, all or none of them; when this returns they are on the disk."""
        self._file.write(as_line(*entries))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.entries.extend(entries)
        if len(self.entries) >= self._long:
            self._shorten()

    def _shorten(self) -> None:
        """Leave out what is void, in one move: whoever is killed leaves the old log or the new one."""
        left, new = in_short(self.entries), self.path.with_name(CHANGES + ".new")
        self._long = max(LONG, 2 * len(left))
        try:
            new.write_bytes(b"".join(map(as_line, left)))
            fsync(new)
            os.replace(new, self.path)
        except OSError:  # on a full disk: the long one is as good
            new.unlink(missing_ok=True)
            self._long = 2 * len(self.entries)
            return
        fsync(self.path.parent)
        self._file.close()
        self._file, self.entries = self.path.open("ab"), left

    def close(self) -> None:
        """Let others write."""
        self._file.close()
        self._held.close()


def count(entries: Sequence[Mapping[str, Any]]) -> int:
    """How many changes entries stand for."""
    return sum(entry["changes"] if entry["kind"] == "before" else entry["kind"] != "requests" for entry in entries)


def in_short(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Fewer entries that lead to the same: the first says how many changes all of them stand for.

    Of an item the last word on each of its facts counts, and whether it was removed last; all earlier words count where
    an item that came later is said to be like it. What was said before it was forgotten counts only there, and where a
    user chose it. Of users all events are kept that were not retired, in one entry for each run, and of runs the last.
    """
    found = [*_items_in_short(entries), *_events_in_short(entries)]
    found += [dict(entry) for entry in entries if entry["kind"] == "run"][-1:]
    return [{"kind": "before", "changes": count(entries) - count(found)}, *found]


def _items_in_short(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    left: list[dict[str, Any]] = []
    said: dict[str, str] = {}  # of each item, the kind of the next entry that is kept
    told: dict[str, set[str]] = {}  # the facts that later entries tell, since it was last forgotten
    forgotten: set[str] = set()  # by a later entry
    named: set[str] = set()  # by items that came later
    chosen = {item for entry in entries if entry["kind"] == "events" for item in entry["items"]}
    for entry in reversed(entries):
        kind, item = entry["kind"], entry.get("item", "")
        kept = dict(entry)
        if kind == "add" and item in forgotten and item not in named:
            wanted = item in chosen
            chosen.discard(item)  # once is enough
        elif kind == "add":
            facts = entry.keys() - {"kind", "item"}
            if item not in named:
                kept = {key: value for key, value in kept.items() if key not in told.get(item, ())}
            wanted = item not in told or item in named or kept.keys() > {"kind", "item"}
            told.setdefault(item, set()).update(facts)
        elif kind == "remove":
            wanted = item not in said
        elif kind == "forget":
            wanted = said.get(item) != "forget"
            forgotten.add(item)
            told.pop(item, None)
        elif kind in ("events", "retire", "requests", "run", "before"):
            continue
        else:
            raise ValueError(unknown_kind(kind))
        if wanted:
            left.append(kept)
            said[item] = kind
            named.update(kept.get("like") or (), *(kept.get("histories") or ()))
    return left[::-1]


def _events_in_short(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    before = max((entry["before"] for entry in entries if entry["kind"] == "retire"), default=None)
    users: dict[str, list[tuple[str, list[Event]]]] = {}  # by user, and by what was served
    requests: dict[str, int] = {}
    for entry in entries:
        if entry["kind"] == "events":
            events, model = [each for each in events_of(entry) if not is_before(each, before)], entry.get("model", "")
            runs = users.setdefault(entry["user"], [])
            if events and (not runs or runs[-1][0] != model):
                runs.append((model, []))
            if events:
                runs[-1][1].extend(events)
        if entry["kind"] in ("events", "requests"):
            requests |= requests_of(entry, before)
    found = [events_entry(user, events, model) for user, runs in users.items() for model, events in runs]
    found += [{"kind": "requests", "ids": requests}] if requests else []
    return found + ([{"kind": "retire", "before": before}] if before is not None else [])


def events_entry(user: str, events: Sequence[Event], model: str = "", request: str | None = None) -> dict[str, Any]:
    """What a user chose, as an entry; `model` is what was served then."""
    columns: dict[str, list[Any]] = {name: [getattr(each, name) for each in events] for name in ("time", "received")}
    told = {name: values for name, values in columns.items() if any(value is not None for value in values)}
    named = {**({"model": model} if model else {}), **({"id": request} if request is not None else {})}
    return {"kind": "events", "user": user, "items": [each.item for each in events], **told, **named}


def events_of(entry: Mapping[str, Any]) -> list[Event]:
    """The events of an entry."""
    nothing = [None] * len(entry["items"])
    columns = (entry["items"], entry.get("time", nothing), entry.get("received", nothing))
    return [Event(*each) for each in zip(*columns, strict=True)]


def requests_of(entry: Mapping[str, Any], before: Time | None = None) -> dict[str, int]:
    """The requests that entries came from, and when they were received, less those of before a time."""
    found = entry.get("ids", {})
    if "id" in entry:
        found = {entry["id"]: next((each.received or 0 for each in events_of(entry)), 0)}
    return {name: received for name, received in found.items() if before is None or received >= before}


def is_before(event: Event, before: Time | None) -> bool:
    """Whether an event is older than a time: by its own, or else by when it was received."""
    when = event.received if event.time is None else event.time
    return before is not None and (when is None or when < before)


def unknown_kind(kind: object) -> str:
    """What is said of a change that this version does not know."""
    return f"a change {str(kind)[:40]!r} is not known: read it with a newer beamtree"


def as_line(*entries: dict[str, Any]) -> bytes:
    """An entry with its checksum; several that stand or fall together are one list."""
    text = json.dumps(entries[0] if len(entries) == 1 else entries, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def read_entries(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The entries of a file, and how many bytes of it hold them."""
    if not path.exists():
        return [], 0
    content = path.read_bytes()
    entries: list[dict[str, Any]] = []
    place = 0
    while place < len(content):
        end = content.find(b"\n", place)
        entry = None if end < 0 else _entry(content[place:end])
        if entry is None:
            if content.find(b"\n", place if end < 0 else end + 1) >= 0:
                raise ValueError(f"{path} is damaged at byte {place:,}: put back a copy, or remove what follows there")
            break
        entries += entry
        place = end + 1
    return entries, place


def _entry(line: bytes) -> list[dict[str, Any]] | None:
    """The entries of a line; None where it is damaged."""
    checksum, _, text = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        found = json.loads(text)
    except ValueError:
        return None
    listed = found if isinstance(found, list) else [found]
    return listed if all(isinstance(each, dict) for each in listed) else None

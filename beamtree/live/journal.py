"""The journal of changes: a write-ahead log, flushed before a change is acknowledged and replayed after a restart.

A line is a checksum and a JSON object, or a list of objects that were sent together. A last line without its end was
cut short by a crash: it was never acknowledged, and is dropped. Any other line with a wrong checksum is an error.

The journal is compacted from time to time: entries made obsolete by later ones are removed. The first line of the new
file says which file it replaced, so that a reader that had read that one to its end need not read the new one.
"""

import json
import logging
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from beamtree.data.catalogue import ROLES
from beamtree.files.atomic import fsync
from beamtree.files.staging import folder_lock
from beamtree.live.events import Event, entry_events, entry_requests, events_entry, is_before

log = logging.getLogger("beamtree")
CHANGES = "changes.log"
AFTER = "after"  # in the first entry of a compacted file: the file before it, its size, and bytes after that entry
HEAD = 512  # bytes at the beginning of a file that identify it, or its first line if that is shorter
COMPACT_FROM = 10_000  # changes from which a journal is compacted, again when it is twice as long
ROLES_OR_VALUES = {"kind", "item", "values", *ROLES}  # keys of an entry of one item that are not fields of their own
SET_TOGETHER = 10_000  # items whose values are in one entry, at most


class Journal:
    """The changes in a folder, oldest first. Only one process can write to it.

    An append that fails leaves the file as it was, and can be repeated. Until what it wrote can be removed, the journal
    takes no other entry.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / CHANGES
        self._lock = ExitStack()
        self._lock.enter_context(folder_lock(folder))
        try:
            self.entries, self._size = read_entries(self.path)
            self._file = open_unbuffered(self.path)
            self._is_sound = False  # whether the file has these entries only, and they are on disk
            self._restore()
            self._weight, self._compact_at = weight(self.entries), COMPACT_FROM
            if self._weight >= COMPACT_FROM:
                self._compact()
        except BaseException:
            self._lock.close()
            raise

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def append(self, *entries: dict[str, Any]) -> None:
        """Write entries, all or none of them; when this returns they are on disk. On an OSError none of them is."""
        line = encode_line(*entries)
        self._restore()
        self._is_sound = False
        try:
            write_all(self._file, line)
            os.fsync(self._file.fileno())
        except BaseException:
            with suppress(OSError):  # then it is tried again before the next append
                self._restore()
            raise
        self._size += len(line)
        self._is_sound = True
        self.entries.extend(entries)
        self._weight += weight(entries)
        if self._weight >= self._compact_at:
            self._compact()

    def _restore(self) -> None:
        """Cut off what is not one of the entries: an entry that was refused must not appear after a restart."""
        if not self._is_sound:
            cut_off(self._file, self._size)
            fsync(self.path.parent)
            self._is_sound = True

    def _compact(self) -> None:
        """Replace the file by a compacted one in one rename: a crash leaves the old file or the new one."""
        entries, new = compact(self.entries), self.path.with_name(CHANGES + ".new")
        content = b"".join(map(encode_line, entries[1:]))
        self._compact_at = max(COMPACT_FROM, 2 * weight(entries))
        try:
            with self.path.open("rb") as replaced:
                entries[0][AFTER] = {"file": file_id(replaced), "size": self._size, "rest": len(content)}
            content = encode_line(entries[0]) + content
            new.unlink(missing_ok=True)
            with ExitStack() as stack:
                file = stack.enter_context(open_unbuffered(new))
                write_all(file, content)
                os.fsync(file.fileno())
                os.replace(new, self.path)
                stack.pop_all()
        except OSError:  # on a full disk: keep the long file
            with suppress(OSError):
                new.unlink(missing_ok=True)
            self._compact_at = 2 * self._weight
            return
        old, self._file, self._size, self.entries = self._file, file, len(content), entries
        self._weight = weight(entries)
        self._is_sound = False
        with suppress(OSError):  # the entries are on disk; the name of their file is before the next append
            old.close()
            self._restore()

    def close(self) -> None:
        """Release the lock."""
        with suppress(OSError):
            self._restore()
        self._file.close()
        self._lock.close()


def open_unbuffered(path: Path) -> FileIO:
    """A file to append to; without a buffer nothing of a failed write can appear later."""
    return path.open("ab", buffering=0)


def file_id(file: BinaryIO) -> str:
    """Identifies a file of changes, as long as it has the same complete first line."""
    file.seek(0)
    head = file.read(HEAD).partition(b"\n")[0]
    return f"{os.fstat(file.fileno()).st_ino:x}-{zlib.crc32(head):08x}"


def write_all(file: FileIO, content: bytes) -> None:
    """Write all bytes: the system may take only some of them at once."""
    while content:
        content = content[file.write(content) :]


def cut_off(file: FileIO, size: int) -> None:
    """Shorten a file, also on disk."""
    file.truncate(size)
    os.fsync(file.fileno())


def count_changes(entries: Sequence[Mapping[str, Any]]) -> int:
    """How many changes the entries stand for."""
    return sum(map(_changes_of, entries))


def _changes_of(entry: Mapping[str, Any]) -> int:
    if entry["kind"] == "before":
        changes: int = entry["changes"]
        return changes
    return len(entry["items"]) if entry["kind"] == "set" else int(entry["kind"] != "requests")


def weight(entries: Sequence[Mapping[str, Any]]) -> int:
    """How long a journal is: one for each entry, and for each value that an entry sets."""
    return sum(len(entry["items"]) * len(entry["values"]) if entry["kind"] == "set" else 1 for entry in entries)


def set_entries(items: Sequence[str], values: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Entries that set attributes of items that there are; `values` are by field, one for each item."""
    for start in range(0, len(items), SET_TOGETHER):
        some = slice(start, start + SET_TOGETHER)
        columns = {field: list(column[some]) for field, column in values.items()}
        yield {"kind": "set", "items": list(items[some]), "values": columns}


def added_values(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes in an entry of one item; older ones have its title and category as fields of their own."""
    values: dict[str, Any] = entry.get("values", {})
    return {role: entry[role] for role in ROLES if role in entry} | values


def unknown_kind(kind: object) -> ValueError:
    """The error for an entry of a kind that this version cannot read."""
    return ValueError(f"unknown kind of change {str(kind)[:40]!r}: read the journal with a newer beamtree")


def compact(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Fewer entries with the same result; the first one counts the changes that were removed.

    For an item, the last value of each field and the last removal are kept; earlier values too where an item added
    later refers to it. What was set before an item was forgotten is kept only there, and where a user chose the item.
    For users, all events that are not retired are kept, in one entry per model served; for runs and for each label of a
    classifier, the last one.
    """
    labels = {entry["label"]: dict(entry) for entry in entries if entry["kind"] == "label"}
    result = [*_compact_items(entries), *_compact_events(entries), *labels.values()]
    result += [dict(entry) for entry in entries if entry["kind"] == "run"][-1:]
    return [{"kind": "before", "changes": count_changes(entries) - count_changes(result)}, *result]


def _compact_items(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The entries about items that are still needed, found from the last to the first."""
    values = _last_values(entries)
    result: list[dict[str, Any]] = []
    next_kind: dict[str, str] = {}  # the kind of an item's next kept entry
    set_later: dict[str, set[str]] = {}  # what later entries of an item alone set, since it was last forgotten
    forgotten: set[str] = set()  # items forgotten by a later entry
    referenced: set[str] = set()  # items that kept entries refer to
    chosen = {item for entry in entries if entry["kind"] == "events" for item in entry["items"]}
    for entry in reversed(entries):
        kind, item = entry["kind"], entry.get("item", "")
        remaining = dict(entry)
        if kind == "add" and item in forgotten and item not in referenced:
            needed = item in chosen
            chosen.discard(item)  # one entry is enough
        elif kind == "add":
            later = set_later.get(item, set())
            if item not in referenced:
                remaining = _without(entry, later | {f"values.{field}" for field in values if item in values[field]})
            needed = item not in set_later or item in referenced or remaining.keys() > {"kind", "item"}
            fields = {f"values.{field}" for field in added_values(entry)} | (entry.keys() - ROLES_OR_VALUES)
            set_later[item] = later | fields
        elif kind == "remove":
            needed = item not in next_kind
        elif kind == "forget":
            needed = next_kind.get(item) != "forget"
            forgotten.add(item)
            set_later.pop(item, None)
        elif kind in ("set", "events", "retire", "requests", "run", "label", "before"):
            continue
        else:
            raise unknown_kind(kind)
        if needed:
            result.append(remaining)
            next_kind[item] = kind
            referenced.update(remaining.get("like") or (), *(remaining.get("histories") or ()))
    fields_of: dict[str, tuple[str, ...]] = {}  # of each item
    for field in sorted(values):
        for item in values[field]:
            fields_of[item] = (*fields_of.get(item, ()), field)
    groups: dict[tuple[str, ...], list[str]] = {}
    for item, names in fields_of.items():
        groups.setdefault(names, []).append(item)
    last = (
        (items, {name: [values[name][item] for item in items] for name in names}) for names, items in groups.items()
    )
    return [*result[::-1], *(entry for each in last for entry in set_entries(*each))]


def _last_values(entries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By field and item: what entries of several items have set that no later entry sets or forgets."""
    values: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry["kind"] == "set":
            for field, column in entry["values"].items():
                values.setdefault(field, {}).update(zip(entry["items"], column, strict=True))
        elif entry["kind"] in ("add", "forget"):
            for field in values if entry["kind"] == "forget" else values.keys() & added_values(entry).keys():
                values[field].pop(entry["item"], None)
    return values


def _without(entry: Mapping[str, Any], obsolete: set[str]) -> dict[str, Any]:
    """An entry of one item without some of its fields, attributes as `values.price`."""
    values = {field: value for field, value in entry.get("values", {}).items() if f"values.{field}" not in obsolete}
    rest = {
        field: value
        for field, value in entry.items()
        if field != "values" and (f"values.{field}" if field in ROLES else field) not in obsolete
    }
    return rest | ({"values": values} if values else {})


def _compact_events(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    before = max((entry["before"] for entry in entries if entry["kind"] == "retire"), default=None)
    users: dict[str, list[tuple[str, list[Event]]]] = {}  # by user, then by the model served
    requests: dict[str, int] = {}
    for entry in entries:
        if entry["kind"] == "events":
            events = [event for event in entry_events(entry) if not is_before(event, before)]
            model, by_model = entry.get("model", ""), users.setdefault(entry["user"], [])
            if events and (not by_model or by_model[-1][0] != model):
                by_model.append((model, []))
            if events:
                by_model[-1][1].extend(events)
        if entry["kind"] in ("events", "requests"):
            requests |= entry_requests(entry, before)
    result = [events_entry(user, events, model) for user, by_model in users.items() for model, events in by_model]
    result += [{"kind": "requests", "ids": requests}] if requests else []
    return result + ([{"kind": "retire", "before": before}] if before is not None else [])


def encode_line(*entries: dict[str, Any]) -> bytes:
    """A line of the journal: a checksum, then one entry, or a list of entries that are valid only together."""
    text = json.dumps(entries[0] if len(entries) == 1 else entries, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def read_entries(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The entries of a journal, and the number of bytes they take."""
    if not path.exists():
        return [], 0
    content = path.read_bytes()
    entries: list[dict[str, Any]] = []
    start = 0
    while start < len(content):
        end = content.find(b"\n", start)
        line = content[start:] if end < 0 else content[start:end]
        decoded = None if end < 0 else decode_line(line)
        if end < 0 and decode_line(line[:-1]) is None:  # else its end is there, but damaged
            log.warning("%s: the last change was cut short by a crash before it was acknowledged: dropped", path)
            break
        if decoded is None:
            raise ValueError(f"{path} is damaged at byte {start:,}: restore a copy, or remove the rest from there")
        entries += decoded
        start = end + 1
    return entries, start


def decode_line(line: bytes) -> list[dict[str, Any]] | None:
    """The entries of a line; None if it is damaged."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        decoded = json.loads(text)
    except ValueError:
        return None
    entries = decoded if isinstance(decoded, list) else [decoded]
    return entries if all(isinstance(entry, dict) for entry in entries) else None

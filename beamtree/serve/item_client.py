"""Changes of items sent to a running service: a table in batches, each of which is made as a whole.

A batch that was sent twice changes nothing, so requests that got no answer are repeated, and so can be all of it.
"""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from beamtree.data.values import json_values, type_of, typed_column
from beamtree.errors import short_message
from beamtree.ingest.item_tables import check_items, read_listed, vector_column

TOKEN = "BEAMTREE_CHANGE_TOKEN"
ATTEMPTS = 6  # of a request; the time between two of them doubles
TIMEOUT = 600.0  # seconds for an answer
BUSY = {429, 503}


def is_url(target: str) -> bool:
    """Whether this is the address of a service, and not a folder."""
    return target.startswith(("http://", "https://"))


class ItemClient:
    """Adds and changes the items of a table in a service. The token for changes is read from the environment.

    Args:
        url: of the service.
        table: a file with a column of ids, and of columns that the service has.
    """

    def __init__(self, url: str, table: Path) -> None:
        self._url = url.rstrip("/")
        about = _request(f"{self._url}/v1/model", None)
        self._columns = _columns(table, about.get("columns", {}), bool(about.get("vectors")))
        self._limits = about["limits"]
        self.total = len(self._columns["item"])

    def send(self, on_sent: Callable[[int], None]) -> tuple[int, int]:
        """How many items were added, and how many changed; `on_sent` is called with the number of each batch."""
        sent = added = changed = 0
        rows = (dict(zip(self._columns, row, strict=True)) for row in zip(*self._columns.values(), strict=True))
        for batch in _batches(rows, self._limits["changes"], self._limits["body"]):
            try:
                answer = _request(f"{self._url}/v1/items", batch)
            except ValueError as error:
                done = f"after {sent:,} of {self.total:,} items: " if sent else ""
                raise ValueError(f"{done}{error}; the command can be repeated") from error
            sent, added = sent + len(batch), added + answer["added"]
            changed += answer["count"] - answer["added"]
            on_sent(len(batch))
        return added, changed


def _columns(table: Path, kinds: dict[str, str], has_vectors: bool) -> dict[str, list[Any]]:
    """The items of a table and their fields, each as JSON has them [n]."""
    listed = read_listed(table)
    check_items(listed)
    items = listed.ids.to_list()
    columns, vectors = {"item": items}, vector_column(listed) if has_vectors else None
    for name in listed.columns.columns:
        column = listed.columns[name]
        if name == vectors and name not in kinds:
            columns["vector"] = json_values(column)
        elif name != listed.item:
            if name not in kinds:
                known = short_message(", ".join(kinds), 200)
                raise ValueError(f"{table}: the service has no column {name[:80]!r} of its items, but {known}")
            columns[name] = json_values(typed_column(name, type_of(kinds[name]), column, items, is_text=listed.is_text))
    return columns


def _batches(rows: Iterable[dict[str, Any]], most: int, most_bytes: int) -> Iterator[list[dict[str, Any]]]:
    """Rows in batches of so many items and bytes at most."""
    batch, size = list[dict[str, Any]](), 0
    for row in rows:
        length = len(json.dumps(row)) + 2
        if batch and (len(batch) == most or size + length + 20 > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += length
    if batch:
        yield batch


def _request(url: str, items: list[dict[str, Any]] | None) -> Any:
    """The answer of a service; a ValueError in one line where it refuses the request or does not answer."""
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get(TOKEN):
        headers["Authorization"] = f"Bearer {token}"
    body = None if items is None else json.dumps({"items": items}).encode()
    for attempt in range(ATTEMPTS):
        is_last = attempt == ATTEMPTS - 1
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=TIMEOUT) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code not in BUSY or is_last:
                raise ValueError(_message(url, error)) from error
        except (OSError, ValueError) as error:
            if is_last or not isinstance(error, OSError):
                raise ValueError(f"{url} does not answer: {short_message(error)}") from error
        time.sleep(0.25 * 2**attempt)
    raise AssertionError


def _message(url: str, error: urllib.error.HTTPError) -> str:
    """What a service says about a request that it refuses."""
    try:
        content = json.load(error)
        message, hint = content["error"], content["hint"]
    except (OSError, ValueError, TypeError, KeyError):
        return f"{url} answers {error.code}: is it a service of beamtree?"
    if error.code in (401, 403):
        hint = f"set {TOKEN} to the token for changes"
    return f"{url}: {short_message(message)}: {short_message(hint)}"

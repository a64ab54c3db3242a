"""What a run's folder has for a live model: titles and categories, vectors of the items, and saved changes."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from beamtree.data import Ids, Prepared
from beamtree.data.catalogue import Catalogue
from beamtree.errors import requires, short_message
from beamtree.files.checksums import read_checked_json, write_checked_json
from beamtree.live.events import Event
from beamtree.live.live_model import LiveModel, SavedChanges, with_saved_texts, with_starts
from beamtree.live.placement import new_item
from beamtree.live.users import Users
from beamtree.storage.runs import read_run, table_file

log = logging.getLogger("beamtree")
LIVE = "live.json"  # in a run's folder: changes since the training log ended
FORMATS = 1, None  # of live.json; older ones have neither a format nor a checksum
HINT = "remove it, or save the recommender again"


def read_items(items: Any, run: Mapping[str, Any], folder: Path | None, ids: Ids) -> Catalogue | None:
    """The catalogue from a table that is given, as a path or a frame, or that a run names and that still exists."""
    table = items if items is not None else table_file(folder or Path(), "items", run)
    if table is None:
        return None
    with requires("", "reading what is known of the items"):
        from beamtree.ingest.item_tables import read_catalogue  # Polars is slow to import
    try:
        return read_catalogue(Path(table) if isinstance(table, str) else table, ids)
    except ValueError as error:
        if items is not None:
            raise
        log.warning("titles and categories are not used: %s", short_message(error))
        return None


def read_run_catalogue(folder: Path, ids: Ids, data: Prepared | None = None) -> Catalogue | None:
    """The catalogue of a run's table and its log, with the changes saved since; None where there is none of these."""
    catalogue, saved = read_items(None, read_run(folder), folder, ids), load_changes(folder)
    if data is not None:
        catalogue = (catalogue or Catalogue.of_ids(ids)).with_starts(data.starts)
    if saved is None:
        return catalogue
    return with_starts(with_saved_texts(catalogue or Catalogue.of_ids(ids), saved), saved.since)


def read_vectors(vectors: Any, run: Mapping[str, Any], folder: Path | None, ids: Ids) -> Tensor | None:
    """The vectors that are given, as a path or a frame, or that a run names and that still exist."""
    table = vectors if vectors is not None else table_file(folder or Path(), "vectors", run)
    if table is None:
        return None
    from beamtree.ingest.item_tables import read_vectors as read  # Polars is slow to import

    try:
        return read(Path(table) if isinstance(table, str) else table, ids)
    except ValueError as error:
        log.warning("vectors are not used: %s", short_message(error))
        return None


# Changes in a run's folder


def users_of_run(folder: Path, data: Prepared) -> Users:
    """The users of a run's log, and those of the changes saved since."""
    saved = load_changes(folder)
    return Users(data, {}, {}) if saved is None else Users(data, saved.events, saved.dislikes)


def save_changes(folder: Path, live: LiveModel | None) -> None:
    """Write the changes of a live model into a run's folder."""
    saved = SavedChanges({}, (), {}) if live is None else live.saved_changes()
    if not any(saved):
        (folder / LIVE).unlink(missing_ok=True)
        return
    items = {
        name: {key: value for key, value in item._asdict().items() if value not in (None, ())}
        for name, item in saved.items.items()
    }
    dislikes = {"dislikes": saved.dislikes} if saved.dislikes else {}
    since = {"since": saved.since} if saved.since else {}
    content = {"items": items, "added": list(saved.added), "events": saved.events, **dislikes, **since}
    write_checked_json(folder / LIVE, content, FORMATS[0])


def load_changes(folder: Path) -> SavedChanges | None:
    """The changes saved in a run's folder; a ValueError if the file is damaged."""
    path = folder / LIVE
    if not os.path.lexists(path):
        return None
    content = read_checked_json(path, FORMATS, HINT)
    try:
        items = {str(name): new_item(fields) for name, fields in content["items"].items()}
        events = {str(user): [Event(*event) for event in row] for user, row in content["events"].items()}
        dislikes = {str(user): [str(item) for item in row] for user, row in content.get("dislikes", {}).items()}
        since = {str(name): int(at) for name, at in content.get("since", {}).items()}
        return SavedChanges(items, [str(name) for name in content["added"]], events, dislikes, since)
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {HINT}") from error

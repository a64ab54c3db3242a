"""What a run knows besides its model, opened in the same way for an object and for a service.

These are the titles and categories of its items, the vectors that its tree was made from, and what was changed before
it was saved.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from beamtree.data import Ids, Prepared
from beamtree.data.catalogue import Catalogue
from beamtree.errors import short_message
from beamtree.files.atomic import read_json, write_json
from beamtree.live.known import Event
from beamtree.live.likeness import new_item
from beamtree.live.live import Live, Saved
from beamtree.model import TreeModel
from beamtree.train.runs import table_file

log = logging.getLogger("beamtree")
LIVE = "live.json"  # in a run's folder: what was changed since the log ended
EVENTS = "events.json"  # what was written before, of events alone
AGAIN = "remove it, or save the recommender again"


def open_live(
    model: TreeModel,
    run: Mapping[str, Any],
    folder: Path | None = None,
    *,
    data: Prepared | None = None,
    items: Any = None,
    vectors: Any = None,
    kind: type[Live] = Live,
    **how: Any,
) -> Live:
    """A model as one that changes, with all that is known of its items.

    Args:
        model: with ids.
        run: what run.json says; tables that it names are read where they are still there.
        folder: the run's, where it was saved.
        data: the log, where it is there.
        items: a table of titles and categories, instead of the one that the run names.
        vectors: of the items, instead of those that the run names.
        kind: of `Live`.
        how: what else it takes.
    """
    assert model.ids is not None
    known = model.ids if data is None else data.items  # the items that the run was trained on
    catalogue = Catalogue.plain(model.ids) if (found := read_items(items, run, folder, model.ids)) is None else found
    return kind(model, catalogue=catalogue, data=data, vectors=read_vectors(vectors, run, folder, known), **how)


def read_items(items: Any, run: Mapping[str, Any], folder: Path | None, ids: Ids) -> Catalogue | None:
    """The catalogue of a table that was given, as a path or a frame, or that a run names and that is still there."""
    place = items if items is not None else table_file(folder or Path(), "items", run)
    if place is None:
        return None
    from beamtree.ingest.catalogue import read_catalogue  # polars takes a moment

    try:
        return read_catalogue(Path(place) if isinstance(place, str) else place, ids)
    except ValueError as error:
        if items is not None:
            raise
        log.warning("titles and categories are not used: %s", short_message(error))
        return None


def read_vectors(vectors: Any, run: Mapping[str, Any], folder: Path | None, ids: Ids) -> Tensor | None:
    """The vectors that were given, as a path or a frame, or that a run names and that are still there."""
    place = vectors if vectors is not None else table_file(folder or Path(), "vectors", run)
    if place is None:
        return None
    from beamtree.ingest.items import read_vectors as read  # polars takes a moment

    try:
        return read(Path(place) if isinstance(place, str) else place, ids)
    except ValueError as error:
        log.warning("vectors are not used: %s", short_message(error))
        return None


# What was changed before a run was saved


def save_live(folder: Path, live: Live | None) -> None:
    """Write what was changed, into a run's folder."""
    (folder / EVENTS).unlink(missing_ok=True)
    saved = Saved({}, (), {}) if live is None else live.saved()
    if not any(saved):
        (folder / LIVE).unlink(missing_ok=True)
        return
    items = {
        name: {key: value for key, value in facts._asdict().items() if value not in (None, ())}
        for name, facts in saved.facts.items()
    }
    write_json(folder / LIVE, {"items": items, "added": list(saved.added), "events": saved.events})


def read_live(folder: Path) -> Saved | None:
    """What was changed before a run was saved; a ValueError where that is damaged."""
    path = next((folder / name for name in (LIVE, EVENTS) if (folder / name).exists()), None)
    if path is None:
        return None
    found = read_json(path, AGAIN)
    try:
        if path.name == EVENTS:
            found = {
                "items": {},
                "added": [],
                "events": {user: [[item] for item in row] for user, row in found.items()},
            }
        facts = {str(name): new_item(told) for name, told in found["items"].items()}
        events = {str(user): [Event(*each) for each in row] for user, row in found["events"].items()}
        return Saved(facts, [str(name) for name in found["added"]], events)
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {AGAIN}") from error

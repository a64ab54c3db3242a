"""How a run is opened whose items come and go: with a log of changes that outlives runs and crashes."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from beamtree.data import Ids, Prepared
from beamtree.data.catalogue import Catalogue
from beamtree.files.small import one_line
from beamtree.live import Journal, Live
from beamtree.model import TreeModel
from beamtree.serve.source import OpenRun, opening
from beamtree.train.runs import table_file

log = logging.getLogger("beamtree")
REST = 60.0  # seconds for which the slot of a removed item is not used again: longer than any search


class Served(Live):
    """A live model that makes itself ready for items with histories while it is served already."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._thread = threading.Thread(target=self.make_ready, name="beamtree-ready", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nothing reads the model any more."""
        self._thread.join()


@contextmanager
def journal_of(changes: Path | None) -> Iterator[Journal | None]:
    """The log of changes in a folder; none where nothing can change."""
    journal = None if changes is None else Journal(changes)
    try:
        yield journal
    finally:
        if journal is not None:
            journal.close()


def open_live(name: str, device: str, journal: Journal, items: Path | None = None, data: Path | None = None) -> OpenRun:
    """How a run is opened to which the changes of a journal are applied, and which can change.

    Args:
        name: what it is called.
        device: where it is searched.
        journal: the changes so far; those to come are written to it.
        items: a table of titles and categories.
        data: the prepared log, where it is not where it was.
    """

    def live(run: Path, model: TreeModel, titles: Catalogue, log: Prepared | None) -> Live:
        vectors = vectors_of(run, titles.ids)
        return Served(model, catalogue=titles, data=log, vectors=vectors, journal=journal, rest=REST)

    return opening(name, device, items, data, live)


def vectors_of(run: Path, ids: Ids) -> Tensor | None:
    """The vectors that the tree of a run was made from, where they are still there."""
    place = table_file(run, "vectors")
    if place is None:
        return None
    from beamtree.ingest.items import read_vectors  # polars takes a moment

    try:
        return read_vectors(place, ids)
    except ValueError as error:
        log.warning("vectors are not used: %s", one_line(error))
        return None


def last_chosen(run: Path, journal: Journal) -> Path:
    """The run that was served last, beside the one that is named, where it is still there."""
    chosen = [entry["run"] for entry in journal.entries if entry.get("kind") == "run"]
    place = run.absolute().parent / chosen[-1] if chosen else run
    return place if place.is_dir() else run

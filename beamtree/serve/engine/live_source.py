"""How a run is opened whose items come and go: with a log of changes that outlives runs and crashes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from beamtree.data import Prepared
from beamtree.live import Journal, LiveModel
from beamtree.live.opening import load_changes, open_live
from beamtree.model import TreeModel
from beamtree.serve.engine.source import OpenRun, opening
from beamtree.storage.settings import fingerprint
from beamtree.train.runs import read_run

REST = 60.0  # seconds for which the slot of a forgotten item is not used again: longer than any search


class Served(LiveModel):
    """A live model that makes itself ready for items with histories while it is served already."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._thread = threading.Thread(target=self.warm_up, name="beamtree-ready", daemon=True)
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


def open_changing(
    name: str, device: str, journal: Journal, items: Path | None = None, data: Path | None = None
) -> OpenRun:
    """How a run is opened to which the changes of a journal are applied, and which can change.

    Args:
        name: what it is called.
        device: where it is searched.
        journal: the changes so far; those to come are written to it.
        items: a table of titles and categories; the one that the run names unless given.
        data: the prepared log, where it is not where it was.
    """

    def live(run: Path, model: TreeModel, items: Path | None, log: Prepared | None) -> LiveModel:
        how = {"saved": load_changes(run), "journal": journal, "digest": fingerprint(run), "slot_cooldown": REST}
        return open_live(model, read_run(run), run, data=log, items=items, cls=Served, **how)

    return opening(name, device, items, data, live)


def last_chosen(run: Path, journal: Journal) -> Path:
    """The run that was served last, beside the one that is named, where it is still there."""
    chosen = [entry["run"] for entry in journal.entries if entry.get("kind") == "run"]
    place = run.absolute().parent / chosen[-1] if chosen else run
    return place if place.is_dir() else run

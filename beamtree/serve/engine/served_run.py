"""A run in service: its model, catalogue and users, read-only or with a journal of changes."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from beamtree.beam import BeamSize, retrieve, widths
from beamtree.data import Ids, Prepared
from beamtree.live import Journal, LiveModel
from beamtree.live.saved import LIVE, load_changes, read_items, read_vectors
from beamtree.model import TreeModel
from beamtree.query import MaskCache, Searcher
from beamtree.storage.runs import CHECKSUMS, ids_of, open_data, open_model, read_run
from beamtree.storage.settings import fingerprint
from beamtree.storage.tuned import TUNE, load_tuned_beam

log = logging.getLogger("beamtree")
SLOT_COOLDOWN_SECONDS = 60.0  # before the slot of a forgotten item is used again: longer than any search


@dataclass(frozen=True)
class LoadedRun:
    """A run that is being served."""

    live: LiveModel
    name: str
    digest: str  # identifies the model
    state: object = None  # of its folder: changes with the model, and with what is known about the items
    run: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # of run.json
    data: Prepared | None = None  # the log, where it is available
    tuned_beam: BeamSize | None = None  # by `beamtree tune`
    read_only: bool = True  # whether changes are rejected
    since: float = field(default_factory=time.time)

    @property
    def version(self) -> str:
        """The digest, and after a dot the number of changes applied."""
        return self._version_after(self.live.version)

    def _version_after(self, changes: int) -> str:
        return f"{self.digest}.{changes}" if changes else self.digest

    @property
    def fitting_tuned_beam(self) -> BeamSize | None:
        """The tuned beam if it fits the tree: after a new level was added it does not."""
        return self.tuned_beam_of(self.live.model)

    def tuned_beam_of(self, model: TreeModel) -> BeamSize | None:
        """The tuned beam if it fits one state of the model."""
        tuned = self.tuned_beam
        fits = isinstance(tuned, int) or len(tuned or ()) == model.tree.height + 1 - model.first_level
        return tuned if fits else None

    @property
    def ids(self) -> Ids:
        """The ids of the items."""
        return self.live.catalogue.ids

    def searcher(self, masks: MaskCache | None = None) -> Searcher:
        """A searcher of the present state of the model: later changes do not affect it."""
        version, model, catalogue = self.live.snapshot
        return Searcher(
            model,
            catalogue.ids,
            catalogue=catalogue,
            user_histories=lambda users: [self.live.history(user, catalogue.ids) for user in users],
            version=self._version_after(version),
            end=lambda: self.live.users.end,
            masks=masks or MaskCache(),
        )


OpenRun = Callable[[Path], LoadedRun]


def open_run(
    run: Path,
    *,
    name: str,
    device: str = "cpu",
    items: Path | None = None,
    data: Path | None = None,
    journal: Journal | None = None,
    follows: bool = False,
) -> LoadedRun:
    """Open a run, read-only or with a journal of changes.

    Args:
        run: its folder.
        name: of the model in the service.
        device: to search on.
        items: a table of titles and categories; the one that the run names unless given.
        data: the prepared log, where it was moved.
        journal: changes to apply, and to append to; read-only unless given.
        follows: whether changes of another process will be applied to it.
    """
    digest, state = fingerprint(run), run_state(run)
    model = open_model(run, device).eval()
    ids, training_log, settings = ids_of(run, model), open_log(run, model, data), read_run(run)
    ids.find(["warm up"])  # builds the index of ids, so that no request has to wait for it
    if model.scorer.reads_items:  # and loads compiled code, or compiles it
        retrieve(model, torch.zeros(1, 1, dtype=torch.int64, device=model.tree.device), beam_size=1, m=1)
    vectors = None
    if journal is not None or follows:  # for the placement of new items
        vectors = read_vectors(None, settings, run, ids if training_log is None else training_log.items)
    live = LiveModel(
        model,
        catalogue=read_items(items, settings, run, ids),
        data=training_log,
        vectors=vectors,
        saved=load_changes(run),
        journal=journal,
        digest=digest,
        slot_cooldown=SLOT_COOLDOWN_SECONDS,
    )
    if journal is not None:  # prepare for new items, while the model is served already; nothing waits for it
        threading.Thread(target=live.warm_up, name="beamtree-warm-up", daemon=True).start()
    return LoadedRun(
        live,
        name,
        digest,
        state,
        run=run,
        settings=settings,
        data=training_log,
        tuned_beam=read_tuned_beam(run, model),
        read_only=journal is None,
    )


def run_state(run: Path) -> object:
    """What is served of a run's folder: the model, the tables, and the changes that are saved with it."""
    live = run / LIVE
    return fingerprint(run), read_run(run).get(CHECKSUMS), live.read_bytes() if live.is_file() else b""


def open_log(run: Path, model: TreeModel, data: Path | None) -> Prepared | None:
    """The prepared log of a run; None where no folder was given and the usual one is missing."""
    if data is not None:
        return open_data(run, model, data)
    try:
        return open_data(run, model)
    except (ValueError, OSError):
        return None


def read_tuned_beam(run: Path, model: TreeModel) -> BeamSize | None:
    """The beam that `beamtree tune` found for this model; None where there is none."""
    if not (run / TUNE).exists():
        return None
    try:
        return widths(model, load_tuned_beam(run))
    except ValueError as error:
        log.warning("the tuned beam is not used: %s", error)
        return None


def last_run(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The last entry of a journal that names a run; None where there is none."""
    named = [entry for entry in entries if entry.get("kind") == "run"]
    return dict(named[-1]) if named else None


def beside(run: Path, entry: Mapping[str, Any] | None) -> Path | None:
    """The folder beside a run that an entry of a journal names; None where it is missing."""
    name = "" if entry is None else str(entry["run"])
    folder = run.absolute().parent / name
    return folder if name and Path(name).name == name and folder.is_dir() else None


def last_served_run(run: Path, journal: Journal) -> Path:
    """The run that was served last, according to the journal: a folder beside `run`, or `run` itself."""
    return beside(run, last_run(journal.entries)) or run

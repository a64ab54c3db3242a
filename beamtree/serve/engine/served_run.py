"""A run in service: its model, catalogue and users, either read-only or with changes from a journal."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from beamtree.beam import widths
from beamtree.data import Ids, Prepared
from beamtree.data.catalogue import Catalogue
from beamtree.live import ItemFields, Journal, LiveModel, NewItem, Snapshot
from beamtree.live.events import Time
from beamtree.live.opening import load_changes, open_live, read_items
from beamtree.model import TreeModel
from beamtree.query import History, MaskCache, Searcher, history_of_user
from beamtree.serve.engine.load_control import Beam
from beamtree.storage.settings import fingerprint
from beamtree.storage.tuned import TUNE, load_tuned_beam
from beamtree.train.runs import ids_of, open_data, open_model, read_run

log = logging.getLogger("beamtree")
SLOT_COOLDOWN_SECONDS = 60.0  # before the slot of a forgotten item is used again: longer than any search


class ModelSource(Protocol):
    """A model that may change while it is searched; `beamtree.live.LiveModel` is one, `StaticSource` another."""

    @property
    def snapshot(self) -> Snapshot:
        """The model, its catalogue and its version, consistent with each other: replaced by changes, never mutated."""

    @property
    def model(self) -> TreeModel:
        """The model in its present state."""

    @property
    def version(self) -> int:
        """The number of changes applied."""

    @property
    def catalogue(self) -> Catalogue:
        """Titles and categories."""

    def add_items(self, items: Mapping[str, NewItem | ItemFields]) -> int:
        """Add, show or update items, all or none; returns how many changed."""

    def remove_items(self, items: Iterable[str]) -> int:
        """Hide items; returns how many were visible."""

    def forget_items(self, items: Iterable[str]) -> int:
        """Delete items; returns how many existed."""

    def record_events(
        self, events: Iterable[tuple[str, Sequence[str], Time | None]], request: str | None = None
    ) -> int:
        """Record events of users; returns how many were of known items."""

    def retire_events(self, before: Time) -> int:
        """Drop all events before a time; returns how many."""

    def history(self, user: str) -> History | None:
        """The history of a user, None for an unknown one."""

    def record_run(self, run: str) -> None:
        """Record which run is served from now on."""

    def close(self) -> None:
        """Release files and threads."""


class ReadOnlyError(ValueError):
    """A change was requested of a read-only model."""


class StaticSource:
    """A read-only model.

    Args:
        model: with ids.
        catalogue: titles and categories; ids only unless given.
        data: the log, whose users are known.
        live: the same model with the events recorded between the end of the log and the day the model was saved.
    """

    version = 0

    def __init__(
        self,
        model: TreeModel,
        catalogue: Catalogue | None = None,
        data: Prepared | None = None,
        live: LiveModel | None = None,
    ) -> None:
        if model.ids is None:
            raise ValueError("the items of this model have numbers and no ids")
        self.model, self.catalogue = model, catalogue or Catalogue.of_ids(model.ids)
        self._data, self._live = data, live

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.version, self.model, self.catalogue)

    def history(self, user: str) -> History | None:
        if self._live is not None:
            return self._live.history(user)
        try:
            return None if self._data is None else history_of_user(self._data, user)
        except ValueError:  # not in the log
            return None

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise ReadOnlyError("this service is read-only")

    add_items = remove_items = forget_items = record_events = retire_events = _refuse

    def record_run(self, run: str) -> None:
        pass

    def close(self) -> None:
        pass


class LiveSource(LiveModel):
    """A live model that prepares for items with histories in the background, while it is served already."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._thread = threading.Thread(target=self.warm_up, name="beamtree-ready", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the background work."""
        self._thread.join()


@dataclass(frozen=True)
class LoadedRun:
    """A run that is being served."""

    source: ModelSource
    name: str
    digest: str  # identifies the model
    run: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # of run.json
    data: Prepared | None = None  # the log, where it is available
    tuned_beam: Beam | None = None  # by `beamtree tune`
    since: float = field(default_factory=time.time)

    @property
    def version(self) -> str:
        """The digest, and after a dot the number of changes applied."""
        return self._version_after(self.source.version)

    def _version_after(self, changes: int) -> str:
        return f"{self.digest}.{changes}" if changes else self.digest

    @property
    def fitting_tuned_beam(self) -> Beam | None:
        """The tuned beam if it fits the tree: after a new level was added it does not."""
        model, tuned = self.source.model, self.tuned_beam
        fits = isinstance(tuned, int) or len(tuned or ()) == model.tree.height + 1 - model.first_level
        return tuned if fits else None

    @property
    def ids(self) -> Ids:
        """The ids of the items."""
        return self.source.catalogue.ids

    def searcher(self, masks: MaskCache | None = None) -> Searcher:
        """A searcher of the present state of the model: later changes do not affect it."""
        version, model, catalogue = self.source.snapshot
        return Searcher(
            model,
            catalogue.ids,
            catalogue=catalogue,
            user_history=self.source.history,
            version=self._version_after(version),
            masks=masks,
            round_shapes=model.tree.device.type == "cuda",
        )


OpenRun = Callable[[Path], LoadedRun]
LoadModel = Callable[[Path], TreeModel]


def static_opener(
    name: str, device: str, items: Path | None = None, data: Path | None = None, load_model: LoadModel | None = None
) -> OpenRun:
    """A function that opens runs read-only.

    Args:
        name: of the model in the service.
        device: to search on.
        items: a table of titles and categories; the one that the run names unless given.
        data: the prepared log, where it was moved.
        load_model: loads the model of a run's folder, where other ranks hold parts of it.
    """

    def make_source(run: Path, model: TreeModel, log: Prepared | None) -> StaticSource:
        settings, saved = read_run(run), load_changes(run)
        if saved is None:
            return StaticSource(model, read_items(items, settings, run, ids_of(run, model)), log)
        live = open_live(model, settings, run, data=log, items=items, saved=saved)
        return StaticSource(model, live.catalogue, log, live)

    return _opener(name, load_model or (lambda run: open_model(run, device)), data, make_source)


def live_opener(
    name: str, device: str, journal: Journal, items: Path | None = None, data: Path | None = None
) -> OpenRun:
    """A function that opens runs with the changes of a journal, to which further changes are appended.

    Args:
        name: of the model in the service.
        device: to search on.
        journal: the changes so far.
        items: a table of titles and categories; the one that the run names unless given.
        data: the prepared log, where it was moved.
    """

    def make_source(run: Path, model: TreeModel, log: Prepared | None) -> LiveModel:
        return open_live(
            model,
            read_run(run),
            run,
            data=log,
            items=items,
            cls=LiveSource,
            saved=load_changes(run),
            journal=journal,
            digest=fingerprint(run),
            slot_cooldown=SLOT_COOLDOWN_SECONDS,
        )

    return _opener(name, lambda run: open_model(run, device), data, make_source)


def _opener(
    name: str,
    load_model: LoadModel,
    data: Path | None,
    make_source: Callable[[Path, TreeModel, Prepared | None], ModelSource],
) -> OpenRun:
    def open_run(run: Path) -> LoadedRun:
        digest = fingerprint(run)
        model = load_model(run).eval()
        ids, log = ids_of(run, model), open_log(run, model, data)
        ids.find(["warm up"])  # builds the index of ids, so that no request has to wait for it
        return LoadedRun(
            make_source(run, model, log), name, digest, run, read_run(run), log, read_tuned_beam(run, model)
        )

    return open_run


def open_log(run: Path, model: TreeModel, data: Path | None) -> Prepared | None:
    """The prepared log of a run; None where no folder was given and the usual one is missing."""
    if data is not None:
        return open_data(run, model, data)
    try:
        return open_data(run, model)
    except (ValueError, OSError):
        return None


def read_tuned_beam(run: Path, model: TreeModel) -> Beam | None:
    """The beam that `beamtree tune` found for this model; None where there is none."""
    if not (run / TUNE).exists():
        return None
    try:
        return widths(model, load_tuned_beam(run))
    except ValueError as error:
        log.warning("the tuned beam is not used: %s", error)
        return None


@contextmanager
def open_journal(folder: Path | None) -> Iterator[Journal | None]:
    """The journal of changes in a folder; None for a read-only service."""
    journal = None if folder is None else Journal(folder)
    try:
        yield journal
    finally:
        if journal is not None:
            journal.close()


def last_served_run(run: Path, journal: Journal) -> Path:
    """The run that was served last, according to the journal: a folder beside `run`, or `run` itself."""
    chosen = [entry["run"] for entry in journal.entries if entry.get("kind") == "run"]
    folder = run.absolute().parent / chosen[-1] if chosen else run
    return folder if folder.is_dir() else run

"""What the service answers from: a model, what is known of its items and users, and how these change."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from beamtree.answers import History, history_of_user
from beamtree.beam import widths
from beamtree.data import Ids, Prepared
from beamtree.data.catalogue import Catalogue
from beamtree.live import ItemFields, LiveModel, NewItem, Snapshot
from beamtree.live.events import Time
from beamtree.live.opening import load_changes, open_live, read_items
from beamtree.model import TreeModel
from beamtree.storage.settings import fingerprint
from beamtree.storage.tuned import TUNE, tuned_beam
from beamtree.train.runs import ids_of, open_data, open_model, read_run

log = logging.getLogger("beamtree")
Beam = int | tuple[int, ...]  # k, or one width for each level that is searched


class Source(Protocol):
    """A model that may change while it is searched."""

    @property
    def snapshot(self) -> Snapshot:
        """What is searched, all of one moment: never changed under whoever holds it, but replaced."""

    @property
    def model(self) -> TreeModel:
        """What is searched."""

    @property
    def version(self) -> int:
        """How many changes were applied."""

    @property
    def catalogue(self) -> Catalogue:
        """Titles and categories."""

    def add_items(self, items: Mapping[str, NewItem | ItemFields]) -> int:
        """Add or show items, or change what is known of them, all or none; how many changed."""

    def remove_items(self, items: Iterable[str]) -> int:
        """Hide items; how many were there."""

    def forget_items(self, items: Iterable[str]) -> int:
        """Forget items; how many there were."""

    def record_events(
        self, events: Iterable[tuple[str, Sequence[str], Time | None]], request: str | None = None
    ) -> int:
        """Take note of what users chose, and when where that is known; how many were known items."""

    def retire_events(self, before: Time) -> int:
        """Leave out all events of before a time; how many there were."""

    def history(self, user: str) -> History | None:
        """What a user did, as far as that is known."""

    def record_run(self, run: str) -> None:
        """Take note of the run that is served from now on."""

    def close(self) -> None:
        """Let go of files."""


class FixedError(ValueError):
    """A change was asked for where nothing can change."""


class Fixed:
    """A model that does not change."""

    version = 0

    def __init__(
        self,
        model: TreeModel,
        catalogue: Catalogue | None = None,
        data: Prepared | None = None,
        saved: LiveModel | None = None,
    ) -> None:
        """`saved` knows what users chose between the end of the log and the day that the model was saved."""
        if model.ids is None:
            raise ValueError("the items of this model have numbers and no ids")
        self.model, self.catalogue, self._data = model, catalogue or Catalogue.plain(model.ids), data
        self._saved = saved

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.version, self.model, self.catalogue)

    def record_run(self, run: str) -> None:
        pass

    def add_items(self, items: Mapping[str, NewItem | ItemFields]) -> int:
        raise FixedError("the items of this service cannot change")

    def remove_items(self, items: Iterable[str]) -> int:
        raise FixedError("the items of this service cannot change")

    def forget_items(self, items: Iterable[str]) -> int:
        raise FixedError("the items of this service cannot change")

    def record_events(
        self, events: Iterable[tuple[str, Sequence[str], Time | None]], request: str | None = None
    ) -> int:
        raise FixedError("the users of this service cannot change")

    def retire_events(self, before: Time) -> int:
        raise FixedError("the users of this service cannot change")

    def history(self, user: str) -> History | None:
        if self._saved is not None:
            return self._saved.history(user)
        try:
            return None if self._data is None else history_of_user(self._data, user)
        except ValueError:  # who is not in the log
            return None

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Loaded:
    """A run that is being served."""

    source: Source
    name: str
    digest: str  # tells this very model from others
    run: Path | None = None
    about: dict[str, Any] = field(default_factory=dict)  # what run.json says
    data: Prepared | None = None  # the log, where it is here
    tuned: Beam | None = None  # the beam that `beamtree tune` found
    since: float = field(default_factory=time.time)

    @property
    def version(self) -> str:
        """The model, and after a point how many changes were applied to it."""
        return self.named(self.source.version)

    def named(self, changes: int) -> str:
        """The same after so many changes."""
        return f"{self.digest}.{changes}" if changes else self.digest

    @property
    def narrow(self) -> Beam | None:
        """The tuned beam, while it fits the tree: after a new level it does not."""
        model = self.source.model
        fits = isinstance(self.tuned, int) or len(self.tuned or ()) == model.tree.height + 1 - model.first_level
        return self.tuned if fits else None

    @property
    def ids(self) -> Ids:
        """The ids of the items."""
        return self.source.catalogue.ids


OpenRun = Callable[[Path], Loaded]
MakeSource = Callable[[Path, TreeModel, Path | None, Prepared | None], Source]


def open_fixed(
    name: str,
    device: str,
    items: Path | None = None,
    data: Path | None = None,
    model: Callable[[Path], TreeModel] | None = None,
) -> OpenRun:
    """How a run is opened that will not change, with a table of titles and with its log where these are there.

    Args:
        name: what it is called.
        device: where it is searched.
        items: a table of titles and categories; the one that the run names unless given.
        data: the prepared log, where it is not where it was.
        model: opens the model of a run's folder, where other ranks have parts of it.
    """

    def fixed(run: Path, model: TreeModel, items: Path | None, log: Prepared | None) -> Fixed:
        known, saved = read_run(run), load_changes(run)
        if saved is None:
            return Fixed(model, read_items(items, known, run, ids_of(run, model)), log)
        live = open_live(model, known, run, data=log, items=items, saved=saved)
        return Fixed(model, live.catalogue, log, live)

    return opening(name, device, items, data, fixed, model)


def opening(
    name: str,
    device: str,
    items: Path | None,
    data: Path | None,
    make_source: MakeSource,
    open_other: Callable[[Path], TreeModel] | None = None,
) -> OpenRun:
    """How a run is opened, whether it can change or not.

    Args:
        name: what it is called.
        device: where it is searched.
        items: a table of titles and categories.
        data: the prepared log, where it is not where it was.
        make_source: what is made of its folder, its model, the table and its log.
        open_other: opens the model of a folder, where that is not done as usual.
    """

    def opened(run: Path) -> Loaded:
        digest = fingerprint(run)
        model = (open_model(run, device) if open_other is None else open_other(run)).eval()
        ids, log = ids_of(run, model), log_of(run, model, data)
        ids.find(["ready"])  # so that nobody waits for the index of ids
        source = make_source(run, model, items, log)
        return Loaded(source, name, digest, run, read_run(run), log, tuned_for(run, model))

    return opened


def log_of(run: Path, model: TreeModel, data: Path | None) -> Prepared | None:
    """The prepared log of a run; None where nobody named one and it is not where it was."""
    if data is not None:
        return open_data(run, model, data)
    try:
        return open_data(run, model)
    except (ValueError, OSError):
        return None


def tuned_for(run: Path, model: TreeModel) -> Beam | None:
    """The beam that `beamtree tune` found for the model of a run; None where it found none for this very model."""
    if not (run / TUNE).exists():
        return None
    try:
        return widths(model, tuned_beam(run))
    except ValueError as error:
        log.warning("not used: %s", error)
        return None

"""What the service answers from: a model, what is known of its items and users, and how these change."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from beamtree.answers import History, history_of_user
from beamtree.beam import widths
from beamtree.data import Ids, Prepared
from beamtree.data.catalogue import Catalogue
from beamtree.live import NewItem, Now
from beamtree.model import TreeModel
from beamtree.storage.settings import fingerprint
from beamtree.storage.tuned import TUNE, tuned_beam
from beamtree.train.runs import ids_of, open_data, open_model, read_run, table_file

log = logging.getLogger("beamtree")
Beam = int | tuple[int, ...]  # k, or one width for each level that is searched


class Source(Protocol):
    """A model that may change while it is searched."""

    @property
    def now(self) -> Now:
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

    def add(self, item: str, new: NewItem) -> bool:
        """Add an item; False where it was there with the same facts."""

    def remove(self, item: str) -> bool:
        """Remove an item; False where it was not there."""

    def record(self, user: str, items: Sequence[str]) -> int:
        """Take note of what a user chose, newest last; how many were known items."""

    def history(self, user: str) -> History | None:
        """What a user did, as far as that is known."""

    def choose(self, run: str) -> None:
        """Take note of the run that is served from now on."""

    def close(self) -> None:
        """Let go of files."""


class FixedError(ValueError):
    """A change was asked for where nothing can change."""


class Fixed:
    """A model that does not change."""

    version = 0

    def __init__(self, model: TreeModel, catalogue: Catalogue | None = None, data: Prepared | None = None) -> None:
        if model.ids is None:
            raise ValueError("the items of this model have numbers and no ids")
        self.model, self.catalogue, self._data = model, catalogue or Catalogue.plain(model.ids), data

    @property
    def now(self) -> Now:
        return Now(self.version, self.model, self.catalogue)

    def choose(self, run: str) -> None:
        pass

    def add(self, item: str, new: NewItem) -> bool:
        raise FixedError("the items of this service cannot change")

    def remove(self, item: str) -> bool:
        raise FixedError("the items of this service cannot change")

    def record(self, user: str, items: Sequence[str]) -> int:
        raise FixedError("the users of this service cannot change")

    def history(self, user: str) -> History | None:
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
MakeSource = Callable[[Path, TreeModel, Catalogue, Prepared | None], Source]


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
        items: a table of titles and categories.
        data: the prepared log, where it is not where it was.
        model: opens the model of a run's folder, where other ranks have parts of it.
    """
    return opening(name, device, items, data, lambda run, model, titles, log: Fixed(model, titles, log), model)


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
        make_source: what is made of its folder, model, titles and log.
        open_other: opens the model of a folder, where that is not done as usual.
    """

    def opened(run: Path) -> Loaded:
        digest = fingerprint(run)
        model = (open_model(run, device) if open_other is None else open_other(run)).eval()
        ids, log = ids_of(run, model), log_of(run, model, data)
        ids.find(["ready"])  # so that nobody waits for the index of ids
        source = make_source(run, model, read_titles(items, ids) if items else titles_of(run, ids), log)
        return Loaded(source, name, digest, run, read_run(run), log, tuned_for(run, model))

    return opened


def read_titles(items: Path | None, ids: Ids) -> Catalogue:
    """The catalogue of a table, or one of ids alone."""
    if items is None:
        return Catalogue.plain(ids)
    from beamtree.ingest.catalogue import read_catalogue  # polars takes a moment

    return read_catalogue(items, ids)


def titles_of(run: Path, ids: Ids) -> Catalogue:
    """What the table of items says that a run names; ids alone where it is not there, or not readable."""
    try:
        return read_titles(table_file(run, "items"), ids)
    except ValueError as error:
        log.warning("titles and categories are not used: %s", error)
        return Catalogue.plain(ids)


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

"""Changes, one at a time: of items, of events, and of the whole model, which is swapped for one that has answered."""

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from beamtree.errors import short_message
from beamtree.serve.engine.engine import Engine
from beamtree.serve.engine.filters import Masks
from beamtree.serve.engine.search import Ask, View, search
from beamtree.serve.engine.source import Loaded, OpenRun, Source
from beamtree.storage.settings import fingerprint

log = logging.getLogger("beamtree")
T = TypeVar("T")


class Reload(NamedTuple):
    """What came of loading a run."""

    run: str
    error: str | None  # None where it is served
    at: float  # seconds since 1970


class Keeper:
    """Applies changes in one thread, in the order in which they came.

    A new run is opened beside the old one and must answer before it takes its place between two batches. Changes wait
    meanwhile, so none is lost between the two.
    """

    def __init__(self, engine: Engine, open_run: OpenRun, on_reload: Callable[[Reload], None] | None = None) -> None:
        self._engine, self._open, self._on_reload = engine, open_run, on_reload
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="beamtree-changes")
        self.last: Reload | None = None

    def change(self, work: Callable[[Source], T]) -> "Future[T]":
        """Apply a change to what is served."""
        return self._pool.submit(lambda: work(self._engine.loaded.source))

    def load(self, run: Path) -> "Future[Loaded]":
        """Serve another run, or go on with what is served, and a ValueError, where that one cannot be."""
        return self._pool.submit(self._load, run)

    def _load(self, run: Path) -> Loaded:
        try:
            loaded = self._open(run)
            probe(loaded, self._engine.beam_size)
        except Exception as error:  # whatever is wrong with it, the old one stays
            self._note(Reload(run.name, short_message(error), time.time()))
            raise ValueError(
                f"{run.name} cannot be served, so the model stays as it was: {short_message(error)}"
            ) from error
        self._engine.swap(loaded).source.close()
        self._note(Reload(run.name, None, time.time()))
        return loaded

    def _note(self, reload: Reload) -> None:
        self.last = reload
        log.info("run %s: %s", reload.run, reload.error or "is served now")
        if self._on_reload is not None:
            self._on_reload(reload)

    def close(self) -> None:
        """Finish what was begun, and close what is served."""
        self._pool.shutdown(wait=True)
        self._engine.loaded.source.close()


def probe(loaded: Loaded, beam_size: int) -> None:
    """Raise a ValueError where a model does not answer a history and an empty one as it should."""
    view = View(loaded, loaded.version, loaded.source.model, loaded.source.catalogue, Masks())
    ids = view.catalogue.ids
    if len(ids) == 0:
        raise ValueError("the model has no items")
    ask = Ask(_ignore, math.inf, [[ids[0]], []], m=min(10, len(ids)))
    (reply,) = search(view, max(beam_size, ask.m), [ask])
    if reply.short or not all(math.isfinite(score) for each in reply.answers for score in each.scores):
        raise ValueError("the model does not answer a first history")


def _ignore(outcome: Any) -> None:
    pass


class Watch:
    """Looks every few seconds whether another run lies in the place of the one that is served, and has it loaded."""

    def __init__(self, run: Path, engine: Engine, keeper: Keeper, every: float) -> None:
        self._run, self._engine, self._keeper = run, engine, keeper
        self._seen: object = None
        self._tried = stamp(run)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(every,), name="beamtree-watch", daemon=True)
        self._thread.start()

    def _look(self, every: float) -> None:
        while not self._end.wait(every):
            now, before = stamp(self._run), self._seen
            self._seen = now
            # Twice the same: a folder that is being written changes between two looks.
            if now is None or now != before or now == self._tried:
                continue
            self._tried = now
            try:
                if fingerprint(self._run) != self._engine.loaded.digest:
                    self._keeper.load(self._run).result()
                    self._keeper.change(lambda source: source.record_run(self._run.name)).result()
            except (ValueError, OSError, RuntimeError) as error:  # the last while the service stops
                log.warning("%s", short_message(error))

    def close(self) -> None:
        """Look no more."""
        self._end.set()
        self._thread.join()


def stamp(run: Path) -> object:
    """What tells that a run's folder was changed or replaced; None where it is not there."""
    try:
        files = [(path.name, path.stat()) for path in sorted(run.iterdir()) if path.is_file()]
        return run.resolve(), [(name, at.st_ino, at.st_mtime_ns, at.st_size) for name, at in files]
    except (OSError, RuntimeError):  # it may go away while it is looked at
        return None

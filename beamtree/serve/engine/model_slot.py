"""The model slot: applies changes to the model in use, and replaces it by another run without downtime."""

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from beamtree.beam import default_beam_size
from beamtree.errors import short_message
from beamtree.live import LiveModel
from beamtree.query import RecommendRequest
from beamtree.search.choice import AUTO, BEAM, batches
from beamtree.serve.engine.engine import Engine
from beamtree.serve.engine.served_run import LoadedRun, OpenRun, run_state

log = logging.getLogger("beamtree")
T = TypeVar("T")


class Reload(NamedTuple):
    """The outcome of loading a run."""

    run: str
    error: str | None  # None on success
    at: float  # seconds since 1970


class ModelSlot:
    """Applies changes in one thread, in order of arrival.

    A new run is opened beside the old one and must pass a smoke test before it replaces it between two batches.
    Changes wait meanwhile, so none is lost.
    """

    def __init__(self, engine: Engine, open_run: OpenRun, on_reload: Callable[[Reload], None] | None = None) -> None:
        self._engine, self._open, self._on_reload = engine, open_run, on_reload
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="beamtree-changes")
        self.last_reload: Reload | None = None

    def apply(self, change: Callable[[LiveModel], T]) -> "Future[T]":
        """Apply a change to the run in use."""
        return self._pool.submit(lambda: change(self._engine.loaded.live))

    def load(self, run: Path, name: str | None = None) -> "Future[LoadedRun]":
        """Serve another run, after a restart too if it has a name; on failure the old one stays.

        The future raises a ValueError if the run cannot be served, and an OSError if that cannot be stored.
        """
        return self._pool.submit(self._load, run, name)

    def _load(self, run: Path, name: str | None) -> LoadedRun:
        try:
            loaded = self._open(run)
            smoke_test(loaded, self._engine.beam_size, self._engine.search)
        except Exception as error:  # whatever is wrong with it, the old one stays
            message = short_message(error)
            self.report(Reload(run.name, message, time.time()))
            raise ValueError(f"run {run.name} cannot be served, the model stays as it was: {message}") from error
        try:
            if name is not None:
                loaded.live.record_run(name)
        except OSError as error:
            self.report(Reload(run.name, short_message(error), time.time()))
            raise
        self._replace(loaded)
        return loaded

    def replace(self, loaded: LoadedRun) -> "Future[None]":
        """Serve a run that was opened elsewhere."""
        return self._pool.submit(self._replace, loaded)

    def _replace(self, loaded: LoadedRun) -> None:
        self._engine.swap(loaded)
        self.report(Reload(loaded.name if loaded.run is None else loaded.run.name, None, time.time()))

    def report(self, reload: Reload) -> None:
        """Record the outcome of loading a run."""
        self.last_reload = reload
        log.info("run %s: %s", reload.run, reload.error or "now served")
        if self._on_reload is not None:
            self._on_reload(reload)

    def close(self) -> None:
        """Finish pending changes."""
        self._pool.shutdown(wait=True)


def smoke_test(run: LoadedRun, beam_size: int, search: str = BEAM) -> None:
    """Raise a ValueError where a model does not answer a history of one item and an empty one.

    Where `search` is auto, searches are timed, so that the first requests need not wait for that.
    """
    searcher = run.searcher()
    if len(searcher.ids) == 0:
        raise ValueError("the model has no items")
    m = min(10, len(searcher.ids))
    request = RecommendRequest([[searcher.ids.name(0)], []], m=m, beam_size=default_beam_size(m, beam_size))
    response = searcher.recommend(request)
    if response.short or not all(math.isfinite(score) for result in response.results for score in result.scores):
        raise ValueError("the model gives no valid scores for a first history")
    for users in batches(searcher.model) if search == AUTO else ():
        searcher.answer([RecommendRequest([[searcher.ids.name(0)]] * users, m=m)])


class RunWatcher:
    """Polls the folder of a run, and loads another run that takes its place.

    Args:
        run: the folder at present.
        engine: that serves it.
        load: loads it.
        interval: seconds between two looks.
    """

    def __init__(self, run: Callable[[], Path], engine: Engine, load: Callable[[], object], interval: float) -> None:
        self._run, self._engine, self._load = run, engine, load
        self._seen: object = None
        self._tried = folder_state(run())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, args=(interval,), name="beamtree-watch", daemon=True)
        self._thread.start()

    def _poll(self, interval: float) -> None:
        while not self._stop.wait(interval):
            run = self._run()
            state, before = folder_state(run), self._seen
            self._seen = state
            # Twice the same: a folder that is being written changes between two polls.
            if state is None or state != before or state == self._tried:
                continue
            self._tried = state
            try:
                if run_state(run) != self._engine.loaded.state:
                    self._load()
            except OSError as error:  # such as a full disk
                log.warning("%s: tried again", short_message(error))
                self._tried = None
            except (ValueError, RuntimeError) as error:  # the last while the service stops
                log.warning("%s", short_message(error))

    def close(self) -> None:
        """Stop polling."""
        self._stop.set()
        self._thread.join()


def folder_state(run: Path) -> object:
    """A value that changes when a run's folder is changed or replaced; None where it is missing."""
    try:
        files = [(path.name, path.stat()) for path in sorted(run.iterdir()) if path.is_file()]
        return run.resolve(), [(name, stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in files]
    except (OSError, RuntimeError):  # it may vanish meanwhile
        return None

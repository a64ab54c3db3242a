"""The engine: one thread that searches for everybody who asked within the same moment, and a queue that is bounded.

It knows nothing of HTTP. A request is asked with `Engine.ask`, and whoever asked hears of it on the engine's thread.
"""

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from beamtree.serve.engine.filters import Filter, Masks
from beamtree.serve.engine.pressure import Pressure, narrowed
from beamtree.serve.engine.search import Ask, View, search
from beamtree.serve.engine.source import Beam, Loaded

log = logging.getLogger("beamtree")
FEWEST = 8  # histories that are always searched together: one by one they take longer
SMOOTH = 0.1  # how much the newest batch counts in the time that a search is expected to take


class BusyError(Exception):
    """The queue is full, or so long that the answer would come too late."""


class StoppedError(Exception):
    """The engine takes no more."""


class LateError(Exception):
    """The deadline passed before the search."""


class Engine:
    """Searches for all who ask, batch by batch, in one thread.

    Args:
        loaded: what is served first.
        beam_size: k where a request does not say.
        window: seconds in which requests are gathered after the first.
        most: histories that are searched together; fewer where these would take longer than `slow`.
        queue: histories that may wait.
        slow: seconds of waiting after which the beam is narrowed.
        on_batch: hears of every batch: its histories and the seconds it took.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        beam_size: int = 400,
        window: float = 0.002,
        most: int = 64,
        queue: int = 512,
        slow: float = 0.04,
        on_batch: Callable[[int, float], None] | None = None,
    ) -> None:
        self.beam_size, self.window, self.most, self.queue = beam_size, window, most, queue
        self.pressure = Pressure(slow)
        self.waiting = 0  # histories in the queue
        self._loaded, self._masks = loaded, Masks()
        self._asks: deque[Ask] = deque()
        self._lock = threading.Condition()
        self._between = threading.Lock()  # held during a batch
        self._sleeping = self._stopped = False
        self._since = time.monotonic()  # when the last batch ended
        self._cost = 0.0  # seconds that a history takes, lately
        self._on_batch = on_batch
        self._thread = threading.Thread(target=self._run, name="beamtree-search", daemon=True)
        leave_alone()
        self._thread.start()

    @property
    def loaded(self) -> Loaded:
        """What is served now."""
        return self._loaded

    @property
    def step(self) -> int:
        """How many steps the beam is narrowed by now."""
        idle = time.monotonic() - self._since if self._sleeping else 0.0
        return self.pressure.rest(idle) if idle else self.pressure.step

    @property
    def beam_now(self) -> Beam:
        """The beam of requests that ask for none."""
        return narrowed(self.beam_size, self.step, 1, self._loaded.narrow)

    def ask(self, ask: Ask) -> None:
        """Put a request into the queue; a BusyError or StoppedError where it is not taken."""
        with self._lock:
            if self._stopped:
                raise StoppedError("the service is stopping")
            if self.waiting and self.waiting + ask.rows > self.queue:
                raise BusyError("too many requests are waiting")
            if ask.asked + self.waiting * self._cost > ask.deadline:
                raise BusyError("so many requests are waiting that this one would be answered too late")
            self._asks.append(ask)
            self.waiting += ask.rows
            if self._sleeping:
                self._lock.notify()

    def swap(self, loaded: Loaded) -> Loaded:
        """Serve something else from the next batch on; gives what was served, which nobody reads any longer."""
        with self._between:
            before, self._loaded = self._loaded, loaded
            leave_alone()
            return before

    def stop(self) -> None:
        """Answer all that wait, then end."""
        with self._lock:
            self._stopped = True
            self._lock.notify()
        self._thread.join()

    # The thread

    def _run(self) -> None:
        while batch := self._take():
            with self._between:
                try:
                    self._answer(batch)
                except Exception as error:  # nothing may end this thread
                    log.exception("a batch failed")
                    for ask in batch:
                        _tell(ask, error)
            self._since = time.monotonic()

    def _take(self) -> list[Ask]:
        """The requests of the next batch, at least one; none after the end."""
        with self._lock:
            slept = not self._asks
            self._sleeping = True
            self._lock.wait_for(lambda: self._asks or self._stopped)
            self._sleeping = False
            idle = time.monotonic() - self._since
        if slept and not self._stopped and self.waiting < self.most:
            time.sleep(self.window)
        with self._lock:
            if not self._asks:
                return []
            now = time.monotonic()
            self.pressure.feel(now, now - self._asks[0].asked, idle if slept else 0.0)
            batch = [self._asks.popleft()]
            rows = batch[0].rows
            most = self._room()
            while self._asks and rows + self._asks[0].rows <= most:
                batch.append(self._asks.popleft())
                rows += batch[-1].rows
            self.waiting -= rows
            return batch

    def _room(self) -> int:
        """How many histories are searched together: so many that whoever comes meanwhile does not wait for long."""
        if self._cost * self.most <= self.pressure.slow:
            return self.most
        return min(self.most, max(FEWEST, int(self.pressure.slow / self._cost)))

    def _answer(self, batch: list[Ask]) -> None:
        loaded = self._loaded
        snapshot = loaded.source.snapshot  # all of one moment: a change that comes meanwhile is for the next batch
        view = View(loaded, loaded.named(snapshot.version), snapshot.model, snapshot.catalogue, self._masks)
        groups: dict[tuple[Beam, bool, Filter | None], list[Ask]] = {}
        for ask in batch:
            if ask.dropped or time.monotonic() > ask.deadline:
                _tell(ask, LateError("the deadline passed before the search"))
            elif ask.work is not None:
                _tell(ask, _outcome(ask.work, view))
            else:
                try:
                    groups.setdefault((self._beam_of(ask, loaded), ask.exclude_seen, ask.only), []).append(ask)
                except ValueError as error:  # widths for another tree than the one that is served now
                    _tell(ask, error)
        for (beam, _, _), asks in groups.items():
            self._search(view, beam, asks)

    def _beam_of(self, ask: Ask, loaded: Loaded) -> Beam:
        asked = max(self.beam_size, ask.m) if ask.beam is None else ask.beam
        return narrowed(asked, self.pressure.step, ask.m, loaded.narrow)

    def _search(self, view: View, beam: Beam, asks: list[Ask]) -> None:
        start = time.monotonic()
        try:
            replies = search(view, beam, asks)
        except Exception as error:
            if len(asks) > 1:  # one that cannot be answered must not spoil the others
                for ask in asks:
                    self._search(view, beam, [ask])
                return
            if not isinstance(error, ValueError):
                log.exception("a search failed")
            _tell(asks[0], error)
            return
        now, rows = time.monotonic(), sum(ask.rows for ask in asks)
        self._cost += SMOOTH * ((now - start) / rows - self._cost)
        if self._on_batch is not None:
            self._on_batch(rows, now - start)
        for ask, reply in zip(asks, replies, strict=True):
            asked = max(self.beam_size, ask.m) if ask.beam is None else ask.beam
            wider, waited = asked if asked != beam else None, start - ask.asked
            _tell(ask, reply._replace(narrowed_from=wider, waited=waited, searched=now - start, together=rows))


def leave_alone() -> None:
    """Have Python's collector pass over what is loaded: to look through millions of ids takes it half a second."""
    gc.unfreeze()
    gc.freeze()


def _outcome(work: Callable[[View], Any], view: View) -> Any:
    try:
        return work(view)
    except Exception as error:
        if not isinstance(error, ValueError):
            log.exception("a request failed")
        return error


def _tell(ask: Ask, outcome: Any) -> None:
    try:
        ask.done(outcome)
    except Exception:  # whoever asked is gone
        log.debug("nobody heard an answer", exc_info=True)

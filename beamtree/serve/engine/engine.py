"""The engine: one thread that answers requests in batches, from a bounded queue."""

import gc
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from beamtree.beam import DEFAULT_BEAM_SIZE, BeamSize, default_beam_size
from beamtree.query import MaskCache, RecommendRequest, Searcher
from beamtree.search.choice import AUTO, BEAM, SCAN, resolve_search
from beamtree.serve.engine.load_control import LoadControl, narrow_beam
from beamtree.serve.engine.loop_future import LoopFuture
from beamtree.serve.engine.served_run import LoadedRun

log = logging.getLogger("beamtree")
MIN_BATCH = 8  # histories that are always searched together: one by one they take longer
SMOOTHING = 0.1  # weight of the newest batch in the moving average of the time per history


class BusyError(Exception):
    """The queue is full, or so long that the request would miss its deadline."""


class StoppedError(Exception):
    """The engine accepts no more requests."""


class DeadlineError(Exception):
    """The deadline passed before the search."""


@dataclass(eq=False, slots=True)
class Job:
    """A request, or a function that reads the model in the search thread, and the future of its result.

    The future raises DeadlineError if the job is still in the queue at its deadline. One that is cancelled in the queue
    is not searched.
    """

    future: "Future[Any] | LoopFuture[Any]"
    deadline: float = math.inf  # by time.monotonic
    request: RecommendRequest | None = None
    read: Callable[[Searcher], Any] | None = None
    submitted: float = field(default_factory=time.monotonic)

    @property
    def rows(self) -> int:
        return 1 if self.request is None else max(1, self.request.rows)


class EngineOptions(NamedTuple):
    """How requests are batched and searched."""

    beam_size: int | None = None  # k of requests that do not set it; `DEFAULT_BEAM_SIZE` if None
    batch_window: float = 0.002  # seconds to wait for more requests after the first
    max_batch: int = 64  # histories that are searched together; fewer if they take `degrade_after`
    max_queue: int = 512  # histories that may wait
    degrade_after: float = 0.04  # seconds in the queue after which the beam is narrowed
    search: str = AUTO  # of requests that do not say; a beam where a beam_size is given here or there


class Engine:
    """Answers requests batch by batch, in one thread.

    Args:
        run: the run to serve first.
        options: how requests are batched and searched.
        on_batch: called after every search with its number of histories and its seconds.
    """

    def __init__(
        self, run: LoadedRun, options: EngineOptions, on_batch: Callable[[int, float], None] | None = None
    ) -> None:
        beam_size, self.batch_window, self.max_batch, self.max_queue, degrade_after, search = options
        self.beam_size, self.search = beam_size or DEFAULT_BEAM_SIZE, resolve_search(search, beam_size)
        self.load_control = LoadControl(degrade_after)
        self.waiting = 0  # histories in the queue
        self._loaded, self._masks = run, MaskCache()
        self._queue: deque[Job] = deque()
        self._condition = threading.Condition()
        self._batch_lock = threading.Lock()  # held during a batch
        self._idle = self._stopped = False
        self._last_batch_end = time.monotonic()
        self._seconds_per_row = 0.0  # moving average
        self._on_batch = on_batch
        self._thread = threading.Thread(target=self._run, name="beamtree-search", daemon=True)
        freeze_garbage_collector()
        self._thread.start()

    @property
    def loaded(self) -> LoadedRun:
        """The run in use."""
        return self._loaded

    @property
    def steps_narrowed(self) -> int:
        """How many steps the beam is narrowed by at present."""
        idle = time.monotonic() - self._last_batch_end if self._idle else 0.0
        return self.load_control.step_after(idle)

    @property
    def current_beam(self) -> BeamSize:
        """The beam of requests that do not set one, at present."""
        return narrow_beam(self.beam_size, self.steps_narrowed, 1, self._loaded.fitting_tuned_beam)

    def submit(self, job: Job) -> None:
        """Queue a job; raises BusyError or StoppedError where it is not accepted."""
        with self._condition:
            if self._stopped:
                raise StoppedError("the service is stopping")
            if self.waiting and self.waiting + job.rows > self.max_queue:
                raise BusyError("too many requests are waiting")
            if job.submitted + self.waiting * self._seconds_per_row > job.deadline:
                raise BusyError("too many requests are waiting for this one to be answered before its deadline")
            self._queue.append(job)
            self.waiting += job.rows
            if self._idle:
                self._condition.notify()

    def swap(self, run: LoadedRun) -> None:
        """Serve another run from the next batch on; the previous one is no longer read."""
        with self._batch_lock:
            self._loaded = run
            freeze_garbage_collector()

    def stop(self) -> None:
        """Answer all requests in the queue, then end."""
        with self._condition:
            self._stopped = True
            self._condition.notify()
        self._thread.join()

    # The search thread

    def _run(self) -> None:
        while batch := self._next_batch():
            with self._batch_lock:
                try:
                    self._answer(batch)
                except Exception as error:  # nothing may end this thread
                    log.exception("a batch failed")
                    for job in batch:
                        if not job.future.done():
                            job.future.set_exception(error)
            self._last_batch_end = time.monotonic()

    def _next_batch(self) -> list[Job]:
        """The jobs of the next batch, at least one; none after the end."""
        with self._condition:
            was_idle = not self._queue
            self._idle = True
            self._condition.wait_for(lambda: self._queue or self._stopped)
            self._idle = False
            idle_seconds = time.monotonic() - self._last_batch_end
        if was_idle and not self._stopped and self.waiting < self.max_batch:
            time.sleep(self.batch_window)
        with self._condition:
            if not self._queue:
                return []
            now = time.monotonic()
            self.load_control.observe(now, now - self._queue[0].submitted, idle_seconds if was_idle else 0.0)
            max_rows = self.max_batch
            if (
                self._seconds_per_row * max_rows > self.load_control.degrade_after
            ):  # so that later requests do not wait for long
                max_rows = min(max_rows, max(MIN_BATCH, int(self.load_control.degrade_after / self._seconds_per_row)))
            batch = [self._queue.popleft()]
            rows = batch[0].rows
            while self._queue and rows + self._queue[0].rows <= max_rows:
                batch.append(self._queue.popleft())
                rows += batch[-1].rows
            self.waiting -= rows
            return batch

    def _answer(self, batch: list[Job]) -> None:
        """Answer a batch from one state of the model: with one search for all requests that can share it."""
        run = self._loaded
        searcher = run.searcher(self._masks)
        tuned_beam = run.tuned_beam_of(searcher.model)
        groups: dict[tuple[Any, ...], list[tuple[Job, RecommendRequest]]] = {}
        may_scan = not self.load_control.step or searcher.scans(sum(job.rows for job in batch))
        for job in batch:
            if not job.future.set_running_or_notify_cancel():
                continue
            if time.monotonic() > job.deadline:
                job.future.set_exception(DeadlineError("the deadline passed before the search"))
            elif job.request is None:
                self._call(job, searcher)
            else:
                request = job.request
                try:
                    search = self._requested_search(request)
                    beam = self._requested_beam(request) if search == BEAM or not (search == SCAN or may_scan) else None
                    if beam is not None:
                        search = BEAM
                        beam = narrow_beam(beam, self.load_control.step, request.m, tuned_beam)
                except ValueError as error:  # widths for another tree than the one in use
                    job.future.set_exception(error)
                    continue
                key = beam, search, request.exclude_seen, request.filter, request.rules
                groups.setdefault(key, []).append((job, request._replace(beam_size=beam, search=search)))
        for group in groups.values():
            self._answer_group(searcher, group)

    def _requested_search(self, request: RecommendRequest) -> str:
        search = resolve_search(request.search, request.beam_size)
        return self.search if search == AUTO else search

    def _requested_beam(self, request: RecommendRequest) -> BeamSize:
        if request.beam_size is None:
            return default_beam_size(request.m, self.beam_size)
        return request.beam_size if isinstance(request.beam_size, int) else tuple(request.beam_size)

    def _answer_group(self, searcher: Searcher, group: list[tuple[Job, RecommendRequest]]) -> None:
        start = time.monotonic()
        try:
            responses = searcher.answer([request for _, request in group])
        except Exception as error:
            if len(group) > 1:  # one bad request must not fail the others
                for member in group:
                    self._answer_group(searcher, [member])
                return
            if not isinstance(error, ValueError):
                log.exception("a search failed")
            group[0][0].future.set_exception(error)
            return
        seconds, rows = time.monotonic() - start, sum(job.rows for job, _ in group)
        self._seconds_per_row += SMOOTHING * (seconds / rows - self._seconds_per_row)
        if self._on_batch is not None:
            self._on_batch(rows, seconds)
        for (job, request), response in zip(group, responses, strict=True):
            assert job.request is not None
            requested = self._requested_beam(job.request)
            response.narrowed_from = None if request.beam_size in (None, requested) else requested
            response.queue_seconds, response.search_seconds = start - job.submitted, seconds
            response.batch_size = rows
            job.future.set_result(response)

    def _call(self, job: Job, searcher: Searcher) -> None:
        assert job.read is not None
        try:
            job.future.set_result(job.read(searcher))
        except Exception as error:
            if not isinstance(error, ValueError):
                log.exception("a request failed")
            job.future.set_exception(error)


def freeze_garbage_collector() -> None:
    """Exempt all loaded objects from garbage collection: scanning millions of ids takes half a second."""
    gc.unfreeze()
    gc.freeze()

"""The service behind the routes: submits requests to the engine, enforces limits and deadlines, applies changes."""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from beamtree.beam import DEFAULT_BEAM_SIZE
from beamtree.diagnose.explore import describe_model
from beamtree.live import Journal, LiveModel
from beamtree.query import Filter, RecommendRequest, RecommendResponse, Searcher
from beamtree.search.choice import SCAN, resolve_search
from beamtree.search.scan import covered_parts
from beamtree.serve.engine.engine import BusyError, DeadlineError, Engine, EngineOptions, Job, StoppedError
from beamtree.serve.engine.follower import Follower
from beamtree.serve.engine.loop_future import LoopFuture, LoopResults
from beamtree.serve.engine.model_slot import ModelSlot, RunWatcher, smoke_test
from beamtree.serve.engine.served_run import LoadedRun, OpenRun, beside, last_run
from beamtree.serve.http.access import Access, Limits
from beamtree.serve.http.errors import SCHEMA_HINT, ApiError, check_limit, read_only_error, storing
from beamtree.serve.http.metrics import Metrics

T = TypeVar("T")
ROWS_PER_TIMEOUT = 10  # histories or changes that the timeout is meant for; more get proportionally longer
AGE_STEP = 600  # seconds
RETRY_HINT = "try again later, or with a larger timeout_ms"


class Service:
    """A run that is served over HTTP.

    Args:
        run: its folder; other runs beside it may take its place.
        open_run: opens a run.
        first: the run to start with, if not `run`.
        options: of the engine.
        timeout: seconds for a request of up to 10 histories; one of 20 gets twice as long.
        limits: the maximum size of a request.
        access: tokens.
        watch: seconds between two checks for another run in the folder; no checks unless given.
        journal: where changes are stored, which others may follow.
        follower: applies the changes of another process; it opens the first run.
    """

    def __init__(
        self,
        run: Path,
        open_run: OpenRun,
        *,
        first: Path | None = None,
        options: EngineOptions | None = None,
        timeout: float = 1.0,
        limits: Limits | None = None,
        access: Access | None = None,
        watch: float | None = None,
        journal: Journal | None = None,
        follower: Follower | None = None,
    ) -> None:
        self.run, self.timeout = run, timeout
        self.limits, self.access, self.metrics = limits or Limits(), access or Access(), Metrics()
        self.stopping = False
        self._results: LoopResults | None = None
        self.journal, self.follower = journal, follower
        loaded, options = open_run(first or run) if follower is None else follower.open(), options or EngineOptions()
        search = resolve_search(options.search, options.beam_size)
        smoke_test(loaded, options.beam_size or DEFAULT_BEAM_SIZE, search)
        self.engine = Engine(loaded, options, self.metrics.count_batch)
        self.slot = ModelSlot(self.engine, open_run, self.metrics.count_reload)
        self.metrics.loaded.set(loaded.since)
        self._watcher = RunWatcher(self._watched_run, self.engine, self._reload, watch) if watch else None
        if journal is not None:
            self._record_new_version(journal)
        if follower is not None:
            self.metrics.follow(lambda: follower.state)
            follower.start(self.engine, self.slot)

    @property
    def loaded(self) -> LoadedRun:
        """The run in use."""
        return self.engine.loaded

    def _record_new_version(self, journal: Journal) -> None:
        """Record a run that took the place of the last one before this start, so that followers serve it too."""
        last, loaded = last_run(journal.entries), self.loaded
        is_same_run = last is not None and loaded.run is not None and beside(self.run, last) == loaded.run.absolute()
        if last is not None and is_same_run and last.get("model", loaded.digest) != loaded.digest:
            with suppress(OSError):  # a full disk is no reason not to answer
                loaded.live.record_run(last["run"])

    def _watched_run(self) -> Path:
        return self.run if self.follower is None else self.follower.wanted_run

    def _reload(self) -> None:
        if self.follower is not None:
            self.follower.reopen()
        else:
            self.slot.load(self.run, self.run.name).result()

    def close(self) -> None:
        """Finish requests in flight, and release everything."""
        self.stopping = True
        if self._watcher is not None:
            self._watcher.close()
        if self.follower is not None:
            self.follower.close()
        self.engine.stop()
        self.slot.close()

    # State

    def ready_json(self) -> dict[str, Any]:
        """Whether it takes requests; one that follows another says how well."""
        content: dict[str, Any] = {"ready": not self.stopping}
        if self.follower is not None:
            state = self.follower.state  # without addresses, since the probe needs no token
            names = ("connected", "seconds", "away_since", "behind")
            content["follows"] = {name: getattr(state, name) for name in names}
        return content

    def update_metrics(self) -> None:
        """Set the metrics that are read from the engine."""
        self.metrics.read_engine(self.engine)

    def model_json(self) -> dict[str, Any]:
        """The model in use, and the outcome of the last reload, as JSON."""
        loaded, last_reload = self.loaded, self.slot.last_reload
        return {
            **describe_model(loaded.name, loaded.live.model),
            "version": loaded.version,
            "run": None if loaded.run is None else loaded.run.name,
            "start_run": self.run.name,
            "posted": loaded.run is not None and loaded.run.absolute() != self.run.absolute(),
            "method": loaded.settings.get("method"),
            "beam_size": self.engine.beam_size,
            "search": self.engine.search,
            "tuned": loaded.tuned_beam,
            "changes": loaded.live.version,
            "since": loaded.since,
            "titles": loaded.live.catalogue.has_titles,
            "columns": loaded.live.catalogue.kinds,
            "vectors": loaded.live.has_vectors,
            "users": len(loaded.live.users),
            "limits": self.limits._asdict(),
            "last_reload": None if last_reload is None else last_reload._asdict(),
            "follows": None if self.follower is None else self.follower.state._asdict(),
        }

    # Requests

    async def recommend(self, request: RecommendRequest, timeout_ms: int | None = None) -> RecommendResponse:
        """Answer a request, with others in one batch."""
        request = present(request)
        self.check_limits(request)
        response: RecommendResponse = await self._in_engine(request, None, timeout_ms)
        self.metrics.count_response(response)
        return response

    async def read(self, function: Callable[[Searcher], T], timeout_ms: int | None = None) -> T:
        """Call a function that reads the model, in the search thread."""
        result: T = await self._in_engine(None, function, timeout_ms)
        return result

    def check_limits(self, request: RecommendRequest) -> None:
        """Raise a 422 where the request or its beam is too large, or the beam too narrow for m."""
        m, beam, limits, filter = request.m, request.beam_size, self.limits, request.filter or Filter()
        if request.search == SCAN and beam is not None:
            raise ApiError(422, "a scan scores every item and has no beam", "leave out beam_size")
        model = self.loaded.live.model
        if request.search == SCAN and model.tree.num_items > limits.beam_size and covered_parts(model) is None:
            items = f"the {model.tree.num_items:,} items of this model one by one"
            raise ApiError(422, f"a scan scores {items}, over the limit of {limits.beam_size}", "leave out search")
        check_limit("users", 0 if request.users is None else len(request.users), limits.histories, "users")
        check_limit("histories", len(request.histories), limits.histories, "histories")
        check_limit("history", max(map(len, request.histories), default=0), limits.history, "ids")
        check_limit("allowed", len(filter.allowed or ()), limits.listed, "ids")
        check_limit("exclude", len(filter.exclude), limits.listed, "ids")
        boosts = () if request.rules is None else request.rules.boosts
        check_limit("boosts", max((len(boost.items) for boost in boosts), default=0), limits.listed, "ids")
        widths = () if beam is None else (beam,) if isinstance(beam, int) else tuple(beam)
        if m > limits.m:
            raise ApiError(422, f"m={m} is over the limit of {limits.m}", f"use at most {limits.m}")
        if widths and max(widths) > limits.beam_size:
            raise ApiError(422, f"beam_size is over the limit of {limits.beam_size}", f"use at most {limits.beam_size}")
        if widths and widths[-1] < m:
            raise ApiError(422, f"m={m} is over beam_size={widths[-1]}", "use a beam_size of at least m")

    async def _in_engine(
        self, request: RecommendRequest | None, read: Callable[[Searcher], Any] | None, timeout_ms: int | None
    ) -> Any:
        """Submit a request, or a function that reads the model, to the engine with a deadline, and wait."""
        seconds = self.seconds_for(1 if request is None else request.rows)
        if timeout_ms is not None:
            seconds = min(seconds, timeout_ms / 1000)
        loop = asyncio.get_running_loop()
        if self._results is None or self._results.loop is not loop:
            self._results = LoopResults(loop)
        future = LoopFuture[Any](self._results)
        timer = loop.call_later(seconds, _expire, future.waiter)
        try:
            self.engine.submit(Job(future, time.monotonic() + seconds, request, read))
            return await future.waiter
        except BusyError as error:
            raise self._rejection("queue_full", 429, str(error)) from error
        except StoppedError as error:
            raise self._rejection("stopping", 503, str(error)) from error
        except DeadlineError as error:
            raise self._rejection("deadline", 504, f"no answer within {seconds * 1000:.0f} ms") from error
        except ValueError as error:
            raise ApiError(422, str(error), SCHEMA_HINT) from error
        finally:
            timer.cancel()

    def seconds_for(self, rows: int) -> float:
        """The timeout for a number of histories or changes."""
        return self.timeout * max(1.0, rows / ROWS_PER_TIMEOUT)

    def _rejection(self, reason: str, status: int, error: str) -> ApiError:
        """Count a rejected request; the client may retry."""
        self.metrics.rejected.labels(reason).inc()
        return ApiError(status, error, RETRY_HINT, {} if status == 504 else {"Retry-After": "1"})

    # Changes

    async def change(self, kind: str, change: Callable[[LiveModel], T], count: int = 1) -> tuple[T, str]:
        """Apply a change, or several together; returns its result, and the version that includes it."""
        self.check_writer()
        if self.loaded.read_only:
            raise read_only_error()
        future = self.slot.apply(lambda live: (change(live), self.loaded.version))
        result = await self._in_slot(future, self.seconds_for(count))
        self.metrics.changes.labels(kind).inc(count)
        return result

    def check_writer(self, hint: str = "send changes to") -> None:
        """Raise a 409 where another process makes the changes."""
        if self.follower is not None:
            writer = self.follower.writer
            raise ApiError(409, f"this service follows the changes of {writer}", f"{hint} {writer}")

    async def load(self, run: Path) -> LoadedRun:
        """Serve another run, also after a restart."""
        self.check_writer()
        name = os.path.relpath(run.absolute(), self.run.absolute().parent)
        return await self._in_slot(self.slot.load(run, name), None)

    async def _in_slot(self, future: "Future[T]", seconds: float | None) -> T:
        result = asyncio.wrap_future(future)
        await asyncio.wait([result], timeout=seconds)
        if not result.done() and future.cancel():  # behind a run that loads; one that has begun is waited for
            raise self._rejection("deadline", 503, "other changes are in progress")
        with storing(self.metrics):
            return await result


def present(request: RecommendRequest) -> RecommendRequest:
    """The request as one of now, unless it has a time. Ages change in steps, so that filters by them can be kept."""
    now = int(time.time())
    request = request.measured_at(lambda: now - now % AGE_STEP)
    return request._replace(time=now) if request.time is None else request


def _expire(waiter: "asyncio.Future[Any]") -> None:
    if not waiter.done():
        waiter.set_exception(DeadlineError("the deadline passed"))

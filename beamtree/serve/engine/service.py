"""The service without its routes: asks the engine, keeps deadlines, and applies changes."""

import asyncio
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from beamtree.serve.engine.engine import BusyError, Engine, LateError, StoppedError
from beamtree.serve.engine.filters import Filter
from beamtree.serve.engine.limits import Access, Limits
from beamtree.serve.engine.metrics import Metrics
from beamtree.serve.engine.model_slot import Keeper, Watch, probe
from beamtree.serve.engine.search import Ask, Reply, View
from beamtree.serve.engine.source import Beam, FixedError, Loaded, OpenRun, Source
from beamtree.serve.http.errors import SCHEMA, RefusedError

T = TypeVar("T")
MEANT_FOR = 10  # histories or changes that the timeout is meant for; more have as much longer
LONGER = "ask again later, or with a larger timeout_ms"


class Service:
    """A run that is served.

    Args:
        run: its folder; other runs beside it may take its place.
        open_run: how a run is opened.
        first: the run to begin with, where that is another one beside it.
        beam_size: k where a request does not say.
        window: seconds in which requests are gathered.
        most: histories that are searched together.
        queue: histories that may wait.
        slow: seconds of waiting after which the beam is narrowed.
        timeout: seconds that a request of up to 10 histories may take; one of 20 may take twice as long.
        limits: what one request may hold.
        access: who may ask and who may change.
        watch: seconds between two looks at the folder; none unless given.
    """

    def __init__(
        self,
        run: Path,
        open_run: OpenRun,
        *,
        first: Path | None = None,
        beam_size: int = 400,
        window: float = 0.002,
        most: int = 64,
        queue: int = 512,
        slow: float = 0.04,
        timeout: float = 1.0,
        limits: Limits | None = None,
        access: Access | None = None,
        watch: float | None = None,
    ) -> None:
        self.run, self.timeout = run, timeout
        self.limits, self.access, self.metrics = limits or Limits(), access or Access(), Metrics()
        self.stopping = False
        loaded = open_run(first or run)
        probe(loaded, beam_size)
        on_batch = self.metrics.searched_batch
        sizes = {"most": most, "queue": queue}
        self.engine = Engine(loaded, beam_size=beam_size, window=window, slow=slow, on_batch=on_batch, **sizes)
        self.keeper = Keeper(self.engine, open_run, self.metrics.reloaded)
        self.metrics.loaded.set(loaded.since)
        self._watch = Watch(run, self.engine, self.keeper, watch) if watch else None

    @property
    def loaded(self) -> Loaded:
        """What is served now."""
        return self.engine.loaded

    def close(self) -> None:
        """Finish what is in flight, and let go of everything."""
        self.stopping = True
        if self._watch is not None:
            self._watch.close()
        self.engine.stop()
        self.keeper.close()

    # Asking

    async def recommend(
        self,
        histories: Sequence[Sequence[object]],
        users: Sequence[str] | None = None,
        *,
        m: int = 10,
        beam: Beam | None = None,
        exclude_seen: bool = False,
        only: Filter | None = None,
        timeout_ms: int | None = None,
    ) -> Reply:
        """The m best items for each history or user.

        Args:
            histories: ids, oldest first.
            users: instead, users of the log.
            m: how many items.
            beam: k.
            exclude_seen: whether items of the history are left out.
            only: which items may be found.
            timeout_ms: after which the answer is of no use.
        """
        self.check_size(m, beam)
        ask = Ask(_nobody, math.inf, histories, users, m, beam, exclude_seen, only)
        reply: Reply = await self._ask(ask, timeout_ms)
        self.metrics.answered(reply)
        return reply

    async def read(self, work: Callable[[View], T], timeout_ms: int | None = None) -> T:
        """What something gives that reads the model, in the thread that searches."""
        found: T = await self._ask(Ask(_nobody, math.inf, work=work), timeout_ms)
        return found

    def check_size(self, m: int, beam: Beam | None) -> None:
        widths = beam if isinstance(beam, tuple) else () if beam is None else (beam,)
        if m > self.limits.m:
            raise RefusedError(422, f"m={m} is over the limit of {self.limits.m}", f"ask for {self.limits.m} at most")
        if widths and max(widths) > self.limits.beam_size:
            most = self.limits.beam_size
            raise RefusedError(422, f"beam_size is over the limit of {most}", f"ask for {most} at most")
        if widths and widths[-1] < m:
            raise RefusedError(422, f"m={m} is over beam_size={widths[-1]}", "ask for a beam_size of at least m")

    async def _ask(self, ask: Ask, timeout_ms: int | None) -> Any:
        most = self.seconds_for(ask.rows)
        seconds = most if timeout_ms is None else min(most, timeout_ms / 1000)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        ask.deadline = ask.asked + seconds
        ask.done = lambda outcome: loop.call_soon_threadsafe(_settle, future, outcome)
        try:
            self.engine.ask(ask)
        except BusyError as error:
            raise self.rejected("queue_full", 429, str(error)) from error
        except StoppedError as error:
            raise self.rejected("stopping", 503, str(error)) from error
        try:
            async with asyncio.timeout(ask.deadline - time.monotonic()):
                outcome = await future
        except TimeoutError as error:
            ask.dropped = True
            raise self.rejected("deadline", 504, f"no answer within {seconds * 1000:.0f} ms") from error
        if isinstance(outcome, LateError):
            raise self.rejected("deadline", 504, f"no answer within {seconds * 1000:.0f} ms") from outcome
        if isinstance(outcome, ValueError):
            raise RefusedError(422, str(outcome), SCHEMA) from outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def rejected(self, reason: str, status: int, error: str) -> RefusedError:
        """Count a request that is not answered, and say when to come back."""
        self.metrics.rejected.labels(reason).inc()
        return RefusedError(status, error, LONGER, {} if status == 504 else {"Retry-After": "1"})

    # Changing

    async def change(self, kind: str, work: Callable[[Source], T], count: int = 1) -> tuple[T, str]:
        """Apply a change in its turn, or several together; what it gives, and the version that shows it."""
        done = self.keeper.change(lambda source: (work(source), self.loaded.version))
        found = await self._wait(done, self.seconds_for(count))
        self.metrics.changes.labels(kind).inc(count)
        return found

    def seconds_for(self, count: int) -> float:
        """How long a request of so many histories or changes may take."""
        return self.timeout * max(1.0, count / MEANT_FOR)

    async def load(self, run: Path) -> Loaded:
        """Serve another run, also after a restart."""
        loaded = await self._wait(self.keeper.load(run), None)
        name = os.path.relpath(run.absolute(), self.run.absolute().parent)
        await self._wait(self.keeper.change(lambda source: source.record_run(name)), None)
        return loaded

    async def _wait(self, future: "Future[T]", seconds: float | None) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:  # a change that waits for a run to load; what was not begun is not done
            raise self.rejected("deadline", 503, "other changes take their time") from error
        except FixedError as error:
            raise RefusedError(409, str(error), "start it with --changes FOLDER, where they are kept") from error
        except ValueError as error:
            raise RefusedError(422, str(error), SCHEMA) from error


def _nobody(outcome: Any) -> None:
    """Hears an answer before anyone asked."""


def _settle(future: "asyncio.Future[Any]", outcome: Any) -> None:
    if not future.done():  # whoever asked may have given up
        future.set_result(outcome)

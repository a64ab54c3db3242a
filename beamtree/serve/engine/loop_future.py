"""Results that cross from the search thread to an event loop: those of a batch wake it once."""

import asyncio
from collections import deque
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LoopResults:
    """Results on their way to the futures of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._settled: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()

    def put(self, future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
        """Settle a future in its loop; called in one other thread."""
        self._settled.append((future, result, error))
        if len(self._settled) == 1:  # else the loop has been woken and has not taken them yet
            try:
                self.loop.call_soon_threadsafe(self._take)
            except RuntimeError:  # it is closed, and nobody waits
                self._settled.clear()

    def _take(self) -> None:
        while self._settled:
            future, result, error = self._settled.popleft()
            if future.done():  # cancelled, or too late
                continue
            if isinstance(error, StopIteration):  # which futures refuse
                error = RuntimeError(repr(error))
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)


class LoopFuture(Generic[T]):
    """The future of a request that an event loop waits for, with the methods that the engine calls."""

    __slots__ = ("_results", "waiter")

    def __init__(self, results: LoopResults) -> None:
        self.waiter: asyncio.Future[T] = results.loop.create_future()
        self._results = results

    def set_running_or_notify_cancel(self) -> bool:
        """Whether somebody still waits."""
        return not self.waiter.done()

    def done(self) -> bool:
        return self.waiter.done()

    def set_result(self, result: T) -> None:
        self._results.put(self.waiter, result, None)

    def set_exception(self, error: BaseException | None) -> None:
        self._results.put(self.waiter, None, error)

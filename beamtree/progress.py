"""What a user sees while a model is fitted: a short report, and progress with an estimate of the time that is left.

Lines go to the logger "beamtree" at INFO, details at DEBUG. Where that logger is not set up to show INFO, lines go to
standard error instead, unless the caller wants none.
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType

OnProgress = Callable[[str, int, int], None]  # (what is being done, how much of it is done, of how much)
log = logging.getLogger("beamtree")

EVERY = 10.0  # seconds between two lines of progress where there is no terminal
REDRAW = 0.1  # seconds between two updates on a terminal


def no_progress(what: str, done: int, total: int) -> None:
    """Show nothing."""


class Reporter:
    """Shows a report and progress to whoever called `fit`; `verbose=False` leaves it to the logger."""

    def __init__(self, verbose: bool = True) -> None:
        self._logs = log.isEnabledFor(logging.INFO) and log.hasHandlers()
        silenced = log.disabled or log.level > logging.INFO  # someone set the level of this very logger
        self._prints = verbose and not self._logs and not silenced
        self._terminal = self._prints and sys.stderr.isatty()
        self._what, self._began, self._shown = "", 0.0, 0.0
        self._status = ""  # the line that a terminal shows now

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw("")

    def line(self, text: str) -> None:
        """Show a line that stays."""
        self._draw("")
        if self._prints:
            print(text, file=sys.stderr, flush=True)
        else:
            log.info("%s", text)

    def stage(self, what: str) -> None:
        """Show what is being done, where it is not known how long it takes."""
        self.progress(what, 0, 0)

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how far something is, and about how long it will take."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._began, self._shown = what, now, 0.0 if self._terminal else now
        if now - self._shown < (REDRAW if self._terminal else EVERY):
            return
        self._shown = now
        text = f"{what}{_share(done, total)}{_left(now - self._began, done, total)}"
        if self._terminal:
            self._draw(text)
        elif self._prints:
            print(text, file=sys.stderr, flush=True)
        else:
            log.info("%s", text)

    def _draw(self, text: str) -> None:
        """Replace the line that a terminal shows."""
        if self._terminal and text != self._status:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._status = text


def _share(done: int, total: int) -> str:
    return f": {100 * done // total} %" if total else " …"


def _left(seconds: float, done: int, total: int) -> str:
    if not 0 < done < total or seconds < 1:
        return ""
    return f", about {clock(seconds * (total - done) / done)} left"


def clock(seconds: float) -> str:
    """Such as 0:31 or 1:02:15."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class Stages:
    """Progress over stages that take about known shares of the time, each of some trials.

    Args:
        what: the name of the whole.
        shares: of the stages, in order, in any unit; those that are not begun are passed over.
        on_progress: hears how much is done.
    """

    def __init__(self, what: str, shares: Mapping[str, int], on_progress: OnProgress) -> None:
        self._what, self._shares, self._on_progress = what, shares, on_progress
        self._before, self._share, self._trials, self._done = 0, 0, 1, 0

    def begin(self, name: str, trials: int) -> None:
        """Begin a stage of about so many trials."""
        names = list(self._shares)
        self._before = sum(self._shares[each] for each in names[: names.index(name)])
        self._share, self._trials, self._done = self._shares[name], trials, 0
        self._tell()

    def tick(self) -> None:
        """A trial of this stage is done."""
        self._done = min(self._done + 1, self._trials)
        self._tell()

    def end(self) -> None:
        """All stages are done."""
        self._before, self._share = sum(self._shares.values()), 0
        self._tell()

    def _tell(self) -> None:
        total = sum(self._shares.values())
        done = self._before + self._share * self._done / self._trials
        self._on_progress(self._what, int(100 * done / total), 100)

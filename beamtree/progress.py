"""The report and the progress shown while a model is fitted, with an estimate of the remaining time.

Lines go to the logger "beamtree" at INFO, details at DEBUG. If that logger does not show INFO, lines go to standard
error instead, unless the caller disables them.
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType

OnProgress = Callable[[str, int, int], None]  # (what, done, total)
log = logging.getLogger("beamtree")

LINE_SECONDS = 10.0  # between two lines of progress without a terminal
REDRAW_SECONDS = 0.1  # between two updates on a terminal

_aside = 0.0  # seconds that estimates leave out


def set_aside(seconds: float) -> None:
    """Leave seconds out of estimates of the time that is left: what took them will not come again."""
    global _aside
    _aside += seconds


def no_progress(what: str, done: int, total: int) -> None:
    """Show nothing."""


class Reporter:
    """Prints a report and progress; with `verbose=False` only the logger gets them.

    Progress is shown on a terminal after `delay` seconds, and elsewhere every ten seconds.
    """

    def __init__(self, verbose: bool = True, delay: float = 0.0) -> None:
        logs = log.isEnabledFor(logging.INFO) and log.hasHandlers()
        silenced = log.disabled or log.level > logging.INFO  # the level of this logger was set
        self._prints = verbose and not logs and not silenced
        self._terminal = self._prints and sys.stderr.isatty()
        self._what, self._began, self._shown, self._delay = "", 0.0, 0.0, delay
        self._aside = 0.0  # at the begin
        self._status = ""  # the line shown on a terminal

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw("")

    def write(self, *lines: str) -> None:
        """Show lines of the report."""
        self._draw("")
        for line in lines:
            if self._prints:
                print(line, file=sys.stderr, flush=True)
            else:
                log.info("%s", line)

    def stage(self, what: str) -> None:
        """Show what is being done, without an estimate of the time."""
        self.progress(what, 0, 0)

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how much is done, and about how much time is left."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._began, self._shown = what, now, 0.0 if self._terminal else now
            self._aside = _aside
        if now - self._began < self._delay or now - self._shown < (REDRAW_SECONDS if self._terminal else LINE_SECONDS):
            return
        self._shown = now
        seconds = now - self._began - (_aside - self._aside)
        text = f"{what}: {100 * done // total} %" if total else f"{what} …"
        if 0 < done < total and seconds >= 1:
            text += f", about {clock(seconds * (total - done) / done)} left"
        if self._terminal:
            self._draw(text)
        elif self._prints:
            print(text, file=sys.stderr, flush=True)
        else:
            log.info("%s", text)

    def _draw(self, text: str) -> None:
        """Replace the line shown on a terminal."""
        if self._terminal and text != self._status:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._status = text


def clock(seconds: float) -> str:
    """A duration as text, such as 0:31 or 1:02:15."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class Stages:
    """Progress over several stages with roughly known shares of the time, each of a number of trials.

    Args:
        what: the name of the work.
        shares: the share of each stage, in order and in any unit; stages may be skipped.
        on_progress: called with the percentage done.
    """

    def __init__(self, what: str, shares: Mapping[str, int], on_progress: OnProgress) -> None:
        self._what, self._shares, self._on_progress = what, shares, on_progress
        self._before, self._share, self._trials, self._done = 0, 0, 1, 0

    def begin(self, name: str, trials: int) -> None:
        """Begin a stage of about this many trials."""
        names = list(self._shares)
        self._before = sum(self._shares[earlier] for earlier in names[: names.index(name)])
        self._share, self._trials, self._done = self._shares[name], trials, 0
        self._report()

    def tick(self) -> None:
        """One trial of this stage is done."""
        self._done = min(self._done + 1, self._trials)
        self._report()

    def end(self) -> None:
        """All stages are done."""
        self._before, self._share = sum(self._shares.values()), 0
        self._report()

    def _report(self) -> None:
        total = sum(self._shares.values())
        done = self._before + self._share * self._done / self._trials
        self._on_progress(self._what, int(100 * done / total), 100)

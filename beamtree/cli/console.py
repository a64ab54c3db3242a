"""Terminal output: plain lines, tables, pictures and progress."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from beamtree.progress import OnProgress

out = Console()
err = Console(stderr=True)


def silence() -> None:
    """Print nothing from here on, because another process prints for all."""
    out.quiet = err.quiet = True


def write(*lines: str, bold: bool = False) -> None:
    """Print lines to standard output as they are, without markup and line breaks of Rich."""
    for line in lines:
        out.print(line, style="bold" if bold else None, highlight=False, soft_wrap=True, markup=False)


def note(*lines: str) -> None:
    """Print lines to standard error as they are."""
    for line in lines:
        err.print(line, highlight=False, soft_wrap=True, markup=False)


def printable(text: str) -> str:
    """Text with control characters escaped: an id from a log must not move the cursor or change colours."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def print_table(table: Table) -> None:
    """Print a table; where standard output is not a terminal, at least 120 characters wide."""
    (out if out.is_terminal else Console(width=max(out.width, 120))).print(table)


def draw(plot: Callable[[ModuleType], None], *pictures: Path) -> list[Path]:
    """Draw pictures with `beamtree.research.plots` and return them; without matplotlib print a note and return none."""
    try:
        plots = import_module("beamtree.research.plots")  # matplotlib takes a second to import, and is optional
    except ImportError:
        note("note: no picture, because matplotlib is not installed: pip install 'beamtree[plots]'")
        return []
    plot(plots)
    return list(pictures)


class ConsoleHandler(logging.Handler):
    """Prints log records to standard error, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        note(f"  {record.getMessage()}")


@contextmanager
def details() -> Iterator[None]:
    """Show what the library logs at DEBUG, such as penalties and weights."""
    log, handler = logging.getLogger("beamtree"), ConsoleHandler()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@contextmanager
def progress(total: int, unit: str) -> Iterator[tuple[Callable[[int], None], Callable[[str], None]]]:
    """Functions to advance and to print a line: a bar on a terminal, plain lines elsewhere."""
    if err.quiet:
        yield lambda count: None, lambda text: None
        return
    if not err.is_terminal:
        done = tenths = 0

        def advance(count: int) -> None:
            nonlocal done, tenths
            done += count
            if total and done * 10 // total > tenths:
                tenths = done * 10 // total
                print(f"{done:,} of {total:,} {unit}", file=sys.stderr, flush=True)

        yield advance, lambda text: print(text, file=sys.stderr, flush=True)
        return
    bar = Progress(
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=err,
    )
    with bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count), lambda text: bar.console.print(text, highlight=False)


@contextmanager
def percent(what: str, stages: int = 1) -> Iterator[OnProgress]:
    """A function to call with the progress of some work, of one stage or several of about the same length."""
    with progress(100 * stages, f"% of {what}") as (advance, _):
        current, before, above = "", 0, 0

        def on_progress(stage: str, done: int, total: int) -> None:
            nonlocal current, before, above
            if current and stage != current:
                above += 100
            current, now = stage, above + 100 * done // total
            advance(now - before)
            before = now

        yield on_progress

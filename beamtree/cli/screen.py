"""What the commands show: the two consoles, and progress."""

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

out = Console()
err = Console(stderr=True)


def hush() -> None:
    """Say nothing from here on: another process speaks for all."""
    out.quiet = err.quiet = True


def printable(text: str) -> str:
    """Text with control characters escaped: an id from a log must not move the cursor or change the colours."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def print_table(table: Table) -> None:
    """A table, as wide as it needs where nobody looks at it on a terminal."""
    (out if out.is_terminal else Console(width=max(out.width, 120))).print(table)


def draw(plot: Callable[[ModuleType], None], *pictures: Path) -> list[Path]:
    """Draw pictures with `beamtree.research.plots`; returns none, and prints a note, without matplotlib."""
    try:
        plots = import_module("beamtree.research.plots")  # takes a second to import, and may not be there
    except ImportError:
        note = "note: no picture, because matplotlib is not installed: pip install 'beamtree[plots]'"
        err.print(note, highlight=False, soft_wrap=True, markup=False)
        return []
    plot(plots)
    return list(pictures)


class Lines(logging.Handler):
    """Shows what is logged, above a bar of progress."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"  {record.getMessage()}", highlight=False, soft_wrap=True, markup=False)


@contextmanager
def details() -> Iterator[None]:
    """Show what the library logs in detail, such as penalties and weights."""
    log, handler = logging.getLogger("beamtree"), Lines()
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


@contextmanager
def progress(total: int, unit: str) -> Iterator[tuple[Callable[[int], None], Callable[[str], None]]]:
    """Ways to advance and to say a line: a bar on a terminal, plain lines elsewhere."""
    if err.quiet:
        yield lambda count: None, lambda text: None
        return
    if not err.is_terminal:
        done = shown = 0

        def advance(count: int) -> None:
            nonlocal done, shown
            done += count
            if total and done * 10 // total > shown:
                shown = done * 10 // total
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

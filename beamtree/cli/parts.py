"""`beamtree retrieve` from a folder of parts to another, in this process or on a cluster."""

import time as clock
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from beamtree.answers import Tally
from beamtree.answers.question import Question
from beamtree.cli.options import on_ray
from beamtree.cli.screen import err, out, printable, progress

if TYPE_CHECKING:
    from beamtree.answers.parts import Work


class Who(NamedTuple):
    """Who answers, as the options say it."""

    engine: str
    address: str | None
    workers: int | None
    gpus: float | None
    device: str

    def in_parts(self, output: Path | None) -> bool:
        """Whether answers go to a folder of parts; a ValueError where they do not and must."""
        folder = output is not None and not output.suffix
        if on_ray(self.engine, self.address, self.workers, self.gpus) and not folder:
            raise ValueError("--engine ray answers parts: give --input FOLDER and --output FOLDER")
        return folder

    @contextmanager
    def at_work(self) -> Iterator["Work"]:
        """A way to have parts answered, by this process or by a cluster for as long as it takes."""
        from beamtree.answers.parts import here

        if not on_ray(self.engine):
            yield here(self.device)
            return
        from beamtree.serve.batch.answers import on_cluster
        from beamtree.serve.batch.cluster import connected

        where = "starting Ray" if self.address is None else f"connecting to Ray at {self.address}"
        err.print(f"{where} …", highlight=False, soft_wrap=True)
        with connected(self.address, self.workers, gpus=self.device != "cpu") as cluster:
            yield on_cluster(cluster, self.device, self.gpus)


def answer_folder(question: Question, source: str, output: Path, who: Who) -> None:
    """Answer the parts of a folder that are not answered yet."""
    from beamtree.answers.parts import find_parts, unanswered  # polars takes a moment

    start, total = clock.monotonic(), Tally()
    parts = find_parts(question, source, output)
    with unanswered(question, parts, output) as left, progress(len(parts), "parts") as (advance, say):
        if len(left) < len(parts):
            say(f"{len(parts) - len(left):,} parts are there already")
            advance(len(parts) - len(left))
        if left:
            with who.at_work() as work:
                for tally in work(question, left):
                    total.join(tally)
                    advance(1)
    note(total)
    speed = total.users / (clock.monotonic() - start)
    err.print(f"{total.users:,} users, {speed:,.0f} per second", highlight=False)
    out.print(f"Saved {output}", highlight=False, soft_wrap=True, markup=False)


def note(tally: Tally) -> None:
    """What was not as it should be."""
    for line in tally.notes():
        err.print(f"note: {printable(line)}", highlight=False, soft_wrap=True, markup=False)

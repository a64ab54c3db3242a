"""`beamtree retrieve` from a folder of parts to another, in this process or on a cluster."""

import time as clock
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from beamtree.cli.options import on_ray
from beamtree.cli.screen import err, out, printable, progress
from beamtree.serve.batch.job import BatchJob, BatchSummary

if TYPE_CHECKING:
    from beamtree.serve.batch.folder import RunTasks


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
    def at_work(self) -> Iterator["RunTasks"]:
        """A way to have parts answered, by this process or by a cluster for as long as it takes."""
        from beamtree.serve.batch.folder import run_locally

        if not on_ray(self.engine):
            yield run_locally(self.device)
            return
        from beamtree.serve.batch.ray_cluster import connect
        from beamtree.serve.batch.ray_workers import run_on_cluster

        where = "starting Ray" if self.address is None else f"connecting to Ray at {self.address}"
        err.print(f"{where} …", highlight=False, soft_wrap=True)
        with connect(self.address, self.workers, gpus=self.device != "cpu") as cluster:
            yield run_on_cluster(cluster, self.device, self.gpus)


def answer_folder(job: BatchJob, source: str, output: Path, who: Who) -> None:
    """Answer the parts of a folder that are not answered yet."""
    from beamtree.serve.batch.folder import find_tasks, pending_tasks  # polars takes a moment

    start, total = clock.monotonic(), BatchSummary()
    tasks = find_tasks(job, source, output)
    with pending_tasks(job, tasks, output) as pending, progress(len(tasks), "parts") as (advance, say):
        if len(pending) < len(tasks):
            say(f"{len(tasks) - len(pending):,} parts are there already")
            advance(len(tasks) - len(pending))
        if pending:
            with who.at_work() as run_tasks:
                for summary in run_tasks(job, pending):
                    total.merge(summary)
                    advance(1)
    note(total)
    speed = total.users / (clock.monotonic() - start)
    err.print(f"{total.users:,} users, {speed:,.0f} per second", highlight=False)
    out.print(f"Saved {output}", highlight=False, soft_wrap=True, markup=False)


def note(summary: BatchSummary) -> None:
    """What was not as it should be."""
    for line in summary.notes():
        err.print(f"note: {printable(line)}", highlight=False, soft_wrap=True, markup=False)

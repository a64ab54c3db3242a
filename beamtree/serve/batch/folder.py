"""A folder of results with one file per input file, computed in any order by any process.

    answers.json    the model, the settings of the job, and the input files with their sizes
    NAME.parquet    the results for NAME.parquet (or NAME.csv, …), complete or missing

Existing results are not computed again, so an interrupted job continues where it stopped. Each input file is read by
itself: all events of a user belong in one file.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from beamtree.files.atomic import read_json, write_json
from beamtree.files.staging import folder_lock
from beamtree.ingest.readers import scan_file
from beamtree.ingest.sources import LINES, PARQUET, TEXT, Location, find_files
from beamtree.query import Searcher
from beamtree.serve.batch.files import open_histories, write_results
from beamtree.serve.batch.job import BatchJob, BatchSummary
from beamtree.storage.settings import fingerprint

MANIFEST, FORMAT = "answers.json", 1


class Task(NamedTuple):
    """An input file of histories, and the output file for its results."""

    source: Location
    output: Path


class TaskRunner:
    """Runs tasks of a job, with a model that is loaded once."""

    def __init__(self, job: BatchJob, device: str) -> None:
        self.job, self.device = job, device

    @cached_property
    def _searcher(self) -> Searcher:
        return self.job.open_searcher(self.device)

    def run(self, task: Task) -> BatchSummary:
        """Write the results of one task."""
        histories = open_histories(task.source, **self.job.columns)
        return write_results(self._searcher, self.job.request, histories, task.output, allow_empty=True)


RunTasks = Callable[[BatchJob, Sequence[Task]], Iterable[BatchSummary]]


def run_locally(device: str) -> RunTasks:
    """Run tasks in this process, one after the other."""
    return lambda job, tasks: map(TaskRunner(job, device).run, tasks)


def find_tasks(job: BatchJob, source: str | Path, folder: Path) -> list[Task]:
    """A task for each file of a folder; a ValueError where their columns differ or their outputs collide."""
    tasks: dict[str, Task] = {}
    first_columns: list[str] = []
    for file in find_files(source):
        name = f"{_stem(file.name)}.parquet"
        if name in tasks:
            raise ValueError(f"the results of {tasks[name].source} and {file} would both be {name}: rename one")
        columns = scan_file(file, job.names, ["user", "history"]).collect_schema().names()
        if tasks and columns != first_columns:
            first = next(iter(tasks.values())).source
            difference = f"{first} has {', '.join(first_columns)}; {file} has {', '.join(columns)}"
            raise ValueError(f"the input files have different columns: {difference}")
        first_columns = columns
        tasks[name] = Task(file, folder.absolute() / name)
    return list(tasks.values())


def _stem(name: str) -> str:
    """The name of a file without its suffix, which may have two dots."""
    suffix = next(kind for kind in sorted((*TEXT, *LINES, *PARQUET), key=len)[::-1] if name.lower().endswith(kind))
    return name[: -len(suffix)]


@contextmanager
def pending_tasks(job: BatchJob, tasks: Sequence[Task], folder: Path) -> Iterator[list[Task]]:
    """The tasks without results, while the folder is locked for this process.

    Raises a ValueError where the folder has results of another job, or other files.
    """
    with folder_lock(folder):
        _write_manifest(job, tasks, folder)
        yield [task for task in tasks if not task.output.exists()]


def _write_manifest(job: BatchJob, tasks: Sequence[Task], folder: Path) -> None:
    """Write the manifest of a folder, or check that it is of the same job; new input files are added to it."""
    path = folder / MANIFEST
    settings = {"format": FORMAT, "model": fingerprint(job.run), "settings": job.settings()}
    sizes = {task.output.name: _size(task.source) for task in tasks}
    if not path.exists():
        others = sorted(entry.name for entry in folder.iterdir())
        if others:
            raise ValueError(f"{folder} has other files, such as {others[0]}: choose another folder")
        write_json(path, {**settings, "run": str(job.run), "parts": sizes})
        return
    before = read_json(path, "choose another folder")
    if not isinstance(before, dict) or not isinstance(before.get("parts"), dict):
        raise ValueError(f"{path} is damaged: choose another folder")
    difference = next(_differences(before, settings, sizes), None)
    if difference is not None and any((folder / name).exists() for name in before["parts"]):
        raise ValueError(f"{folder} has results of another job, {difference}: choose another folder, or remove it")
    known = before["parts"] if difference is None else {}
    write_json(path, {**settings, "run": str(job.run), "parts": {**known, **sizes}})


def _differences(before: dict[str, Any], settings: dict[str, Any], sizes: dict[str, int | None]) -> Iterator[str]:
    if before.get("format") != FORMAT or before.get("model") != settings["model"]:
        yield f"the model {before.get('model')} of {before.get('run')}, not {settings['model']}"
    for name, value in settings["settings"].items():
        previous = before.get("settings", {}).get(name)
        if previous != value:
            yield f"with {name} {previous}, not {value}"
    for name, size in sizes.items():
        previous = before["parts"].get(name, size)
        if previous != size:
            yield f"for an input {name} of {previous:,} bytes, not {size:,}"


def _size(source: Location) -> int | None:
    """The size of a file in bytes; None where it is not on this machine."""
    return source.stat().st_size if isinstance(source, Path) else None

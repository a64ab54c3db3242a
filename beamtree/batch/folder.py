"""A folder of results with one file per input file, computed in this process or by workers on Ray, in any order.

    answers.json    the model, the settings of the job, and the input files with their sizes
    NAME.parquet    the results for NAME.parquet (or NAME.csv, …), complete or missing

Existing results are not computed again, so an interrupted job continues where it stopped. Each input file is read by
itself: all events of a user belong in one file.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from beamtree.batch.files import open_histories, write_results
from beamtree.batch.job import BatchJob, BatchSummary, make_searcher
from beamtree.batch.ray_cluster import (
    MAX_RETRIES,
    Cluster,
    check_versions,
    reraise_worker_errors,
    versions,
    wait_for_worker,
)
from beamtree.files.checksums import read_checked_json, write_checked_json
from beamtree.files.staging import folder_lock
from beamtree.ingest.readers import scan_file
from beamtree.ingest.sources import LINES, PARQUET, TEXT, Location, find_files
from beamtree.query import Searcher
from beamtree.storage.runs import open_model
from beamtree.storage.settings import fingerprint

MANIFEST = "answers.json"
FORMATS = 2, 1  # that are read, the first is written; 1 has no checksum
REMEDY = "choose another folder"


class Task(NamedTuple):
    """An input file of histories, and the output file for its results."""

    source: Location
    output: Path


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
    settings = {"model": fingerprint(job.run), "settings": job.settings()}
    sizes = {  # in bytes; None where a file is not on this machine
        task.output.name: task.source.stat().st_size if isinstance(task.source, Path) else None for task in tasks
    }
    if not path.exists():
        others = sorted(entry.name for entry in folder.iterdir())
        if others:
            raise ValueError(f"{folder} has other files, such as {others[0]}: choose another folder")
        write_checked_json(path, {**settings, "run": str(job.run), "parts": sizes}, FORMATS[0])
        return
    before = read_checked_json(path, FORMATS, REMEDY)
    if not isinstance(before.get("parts"), dict) or not isinstance(before.get("settings"), dict):
        raise ValueError(f"{path} is damaged: {REMEDY}")
    difference = next(_differences(before, settings, sizes), None)
    if difference is not None and any(path.suffix == ".parquet" for path in folder.iterdir()):
        raise ValueError(f"{folder} has results of another job, {difference}: choose another folder, or remove it")
    previous = before["parts"] if difference is None else {}
    write_checked_json(path, {**settings, "run": str(job.run), "parts": {**previous, **sizes}}, FORMATS[0])


def _differences(before: dict[str, Any], settings: dict[str, Any], sizes: dict[str, int | None]) -> Iterator[str]:
    if before.get("model") != settings["model"]:
        yield f"the model {before.get('model')} of {before.get('run')}, not {settings['model']}"
    for name, value in settings["settings"].items():
        previous = before["settings"].get(name)
        if previous != value:
            yield f"with {name} {previous}, not {value}"
    for name, size in sizes.items():
        previous = before["parts"].get(name, size)
        if previous != size:
            yield f"for an input {name} of {previous} bytes, not {size}"


# Running tasks

RunTasks = Callable[[BatchJob, Sequence[Task]], Iterable[BatchSummary]]


class TaskRunner:
    """Runs tasks of a job, with a model that is loaded once."""

    def __init__(self, job: BatchJob, device: str) -> None:
        self.job, self.device = job, device

    @cached_property
    def _searcher(self) -> Searcher:
        return make_searcher(self.job.run, open_model(self.job.run, self.device), self.job.request)

    def run(self, task: Task) -> BatchSummary:
        """Write the results of one task."""
        histories = open_histories(task.source, self.job.columns, self.job.names)
        return write_results(self._searcher, self.job.request, histories, task.output, allow_empty=True)


class RayWorker:
    """A `TaskRunner` in a process of its own."""

    def __init__(self, job: BatchJob, device: str, driver_versions: str) -> None:
        self.runner, self.driver_versions = TaskRunner(job, device), driver_versions

    def start(self) -> None:
        """Return once the worker is placed; a ValueError where it has other versions than the driver."""
        check_versions(self.driver_versions)

    def run(self, task: Task) -> BatchSummary:
        """Write the results of one task."""
        self.start()  # it may have been restarted on another machine
        return self.runner.run(task)


def run_locally(device: str) -> RunTasks:
    """Run tasks in this process, one after the other."""
    return lambda job, tasks: map(TaskRunner(job, device).run, tasks)


def run_on_cluster(cluster: Cluster, device: str, gpus: float | None = None) -> RunTasks:
    """Run tasks on the workers of a cluster.

    Args:
        cluster: a connection.
        device: of each worker, cpu or cuda; Ray assigns the GPU.
        gpus: GPUs per worker; unless given, one with cuda, else none.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device={device}: choose cpu or cuda; Ray assigns a GPU to each worker")
    share = (0.0 if device == "cpu" else 1.0) if gpus is None else gpus
    available = cluster.resources.get("GPU", 0.0)
    if share > 1:
        raise ValueError(f"gpus={share:g}: a worker uses one GPU, so give 1 or less")
    if share > available and device == "cpu":
        raise ValueError(f"gpus={share:g}: a worker on cpu needs no GPU, and the cluster has none: leave gpus out")
    if share > available:
        raise ValueError(f"device={device}: a worker needs {share:g} GPU, and the cluster has none: choose device=cpu")
    max_workers = cluster.workers if not share else min(cluster.workers, int(available / share))

    def run_tasks(job: BatchJob, tasks: Sequence[Task]) -> Iterator[BatchSummary]:
        # A worker may be lost any number of times over all tasks, over one task only MAX_RETRIES + 1 times.
        kind = cluster.ray.remote(num_cpus=1, num_gpus=share, max_restarts=-1, max_task_retries=MAX_RETRIES)(RayWorker)
        job = job._replace(run=job.run.absolute())
        workers = [kind.remote(job, device, versions()) for _ in range(min(max_workers, len(tasks)))]
        # Some of them may find no free CPU, so those that have started take the tasks. No reference to an idle worker
        # is kept: it ends, and its CPU is free for the replacement of a lost one.
        busy = {worker.start.remote(): worker for worker in workers}
        del workers
        wait_for_worker(cluster.ray, list(busy), "GPU" if share else "CPU")
        waiting, unfinished = deque(tasks), len(tasks)
        while unfinished:
            (done,), _ = cluster.ray.wait(list(busy))
            with reraise_worker_errors():
                summary: BatchSummary | None = cluster.ray.get(done)
            worker = busy.pop(done)
            if waiting:
                task = waiting.popleft()
                if isinstance(task.source, Path):  # workers have another working directory
                    task = task._replace(source=task.source.absolute())
                busy[worker.run.remote(task)] = worker
            del worker
            if summary is not None:
                unfinished -= 1
                yield summary

    return run_tasks

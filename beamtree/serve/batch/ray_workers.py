"""Batch jobs on Ray: each worker loads the model once, and takes the next task whenever it is free."""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from beamtree.serve.batch.folder import RunTasks, Task, TaskRunner
from beamtree.serve.batch.job import BatchJob, BatchSummary
from beamtree.serve.batch.ray_cluster import (
    MAX_RETRIES,
    Cluster,
    check_versions,
    reraise_worker_errors,
    versions,
    wait_for_worker,
)


class Worker:
    """A `TaskRunner` in a process of its own."""

    def __init__(self, driver_versions: str, job: BatchJob, device: str) -> None:
        self.driver_versions, self.runner = driver_versions, TaskRunner(job, device)

    def start(self) -> None:
        """Return once the worker is placed; a ValueError where it has other versions than the driver."""
        check_versions(self.driver_versions)

    def run(self, task: Task) -> BatchSummary:
        """Write the results of one task."""
        self.start()  # it may have been restarted on another machine
        return self.runner.run(task)


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
        kind = cluster.ray.remote(num_cpus=1, num_gpus=share, max_restarts=-1, max_task_retries=MAX_RETRIES)(Worker)
        job = job._replace(run=job.run.absolute())
        workers = [kind.remote(versions(), job, device) for _ in range(min(max_workers, len(tasks)))]
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
                busy[worker.run.remote(_with_absolute_paths(waiting.popleft()))] = worker
            del worker
            if summary is not None:
                unfinished -= 1
                yield summary

    return run_tasks


def _with_absolute_paths(task: Task) -> Task:
    """Workers have another working directory."""
    source = task.source.absolute() if isinstance(task.source, Path) else task.source
    return Task(source, task.output.absolute())

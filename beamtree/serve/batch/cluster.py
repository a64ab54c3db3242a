"""A cluster of Ray: a local one for as long as it is used, or one that answers at an address.

Who works there sees the same files under the same names as this process does, and has the same beamtree installed.
"""

import logging
import os
import re
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import polars as pl

from beamtree import __version__
from beamtree.errors import requires, short_message
from beamtree.ingest.engine import Engine
from beamtree.serve.batch.address import check_answers, take_token

SECONDS = 60  # that one waits for workers to end
STARTS = 300  # seconds within which a first worker must start, of a cluster that may have to add a machine for it
ROWS = 1 << 23  # of a log in one share
STORE = 128 << 20  # bytes of a local object store: what travels are names and counts
TRIES = 3  # more, where a worker is lost
SPARE = 1  # CPUs that a local cluster counts beyond those that work: with none, Ray waits where it needs one itself
INSTALL = f"install beamtree {__version__} on every machine of the cluster"
LONGEST = 40  # characters of a folder for Ray: its sockets lie deep inside, and a socket's name has 107 at most
ALONE = {"POLARS_MAX_THREADS": "1"}  # a worker is one CPU
LOCAL = {**ALONE, "RAY_worker_niceness": "0"}  # and here it counts as much as this process
# No reports to Ray's makers; and what Ray would print of lost workers to the standard output goes nowhere.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}


class Cluster(NamedTuple):
    """A cluster that this process is connected to."""

    ray: Any  # the library
    workers: int  # that may work at the same time
    resources: dict[str, float]  # of all its machines

    @property
    def engine(self) -> Engine:
        """For `prepare`."""
        return Engine(self.run, ROWS)

    def run(self, work: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Call a function with each of many arguments, on workers; the results come in the order of the arguments."""
        task = self.ray.remote(num_cpus=1, max_retries=TRIES)(_checked)
        asked, told, unfinished = deque(arguments), deque[Any](), list[Any]()
        try:
            while asked or told:
                while asked and len(unfinished) < self.workers:
                    told.append(task.remote(mark(), work, asked.popleft()))
                    unfinished.append(told[-1])
                _, unfinished = self.ray.wait(unfinished) if unfinished else ([], [])
                with plain_errors():
                    while told and told[0] not in unfinished:
                        yield self.ray.get(told.popleft())
        finally:  # after an error nobody goes on to write
            for each in unfinished:
                self.ray.cancel(each, force=True)
            if unfinished:
                self.ray.wait(unfinished, num_returns=len(unfinished), timeout=SECONDS)


def _checked(theirs: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What a worker runs."""
    check_mark(theirs)
    return work(*arguments)


def mark() -> str:
    """What must be the same wherever a part of the work is done."""
    return f"beamtree {__version__} and Polars {pl.__version__}"


def check_mark(theirs: str) -> None:
    """Raise a ValueError in a worker that has other versions than the one who sends it work."""
    if theirs != mark():
        raise ValueError(f"a worker on {socket.gethostname()} has {mark()}, not {theirs}: install the same there")


@contextmanager
def connected(address: str | None = None, workers: int | None = None, *, gpus: bool = False) -> Iterator[Cluster]:
    """A cluster to work with: the one at an address, else one on this machine that ends with this.

    Args:
        address: HOST:PORT of a cluster that this machine belongs to, ray://HOST:PORT of any, or auto for the one that
            runs here.
        workers: how many work at the same time; unless given, as many as there are CPUs.
        gpus: whether a cluster on this machine looks for GPUs.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if address is not None:
        take_token()
    with requires("ray", "working on Ray"):
        import ray
    with ExitStack() as stack:
        if address is None:
            workers = _cores() if workers is None else workers
            options: dict[str, Any] = {
                "address": "local",
                "num_cpus": workers + SPARE,
                **({} if gpus else {"num_gpus": 0}),
                "object_store_memory": STORE,
                "include_dashboard": False,
                "_temp_dir": stack.enter_context(_short_folder()),
            }
        else:
            options = {"address": check_answers(address), "runtime_env": {"env_vars": ALONE}}
        if ray.is_initialized():
            raise ValueError("this process is connected to Ray already: leave it with ray.shutdown() first")
        stack.callback(ray.shutdown)
        with _refused(address), _inherited(LOCAL):
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        if address is not None:
            first = ray.remote(num_cpus=1, max_retries=TRIES)(_checked).remote(mark(), bool, ())
            await_worker(ray, [first], "CPU")
            with plain_errors():
                ray.get(first)
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        yield Cluster(ray, workers or max(1, int(resources.get("CPU", 1))), resources)


@contextmanager
def _inherited(variables: Mapping[str, str]) -> Iterator[None]:
    """Variables for the processes that are started meanwhile; of this one, Polars has read them long ago."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _short_folder() -> Iterator[str]:
    """A folder for what Ray writes while it runs, with a short name."""
    usual = tempfile.gettempdir()
    place = tempfile.mkdtemp(prefix="beamtree-ray-", dir=usual if len(usual) < LONGEST else "/tmp")
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def await_worker(ray: Any, told: list[Any], what: str) -> None:
    """Wait for the first of some calls; an OSError where no worker starts, for want of CPUs or of GPUs.

    Ray would wait for ever.
    """
    done, _ = ray.wait(told, timeout=STARTS)
    if not done:
        free, there = ray.available_resources().get(what, 0.0), ray.cluster_resources().get(what, 0.0)
        counts = f"{free:g} of the {there:g} {what}s of the cluster are free"
        raise OSError(f"no worker has started within {STARTS} seconds, and {counts}: try again when more are")


@contextmanager
def _refused(address: str | None) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        where = "Ray does not start here" if address is None else f"address={address}: Ray cannot use it"
        raise ValueError(f"{where}: {short_message(error)}") from error


@contextmanager
def plain_errors() -> Iterator[None]:
    """Errors of workers as if they had come up here."""
    import ray

    try:
        yield
    except ray.exceptions.RayTaskError as error:
        _check_imports(str(error.cause), error)
        raise error.cause from None
    except ray.exceptions.OutOfMemoryError as error:
        raise MemoryError(f"on a worker of Ray: {short_message(error)}") from error
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.RayActorError) as error:
        _check_imports(str(error), error)
        raise OSError(
            f"a worker of Ray was lost {TRIES + 1} times over the same work: {short_message(error)}"
        ) from error
    except ray.exceptions.RayError as error:
        raise OSError(f"Ray: {short_message(error)}") from error


def _check_imports(text: str, error: Exception) -> None:
    """Raise a ValueError where a worker could not even import what it should do; Ray tells the whole story."""
    missing = re.search(r"^(ModuleNotFoundError|ImportError): (.*)", text, re.MULTILINE)
    if missing is not None:
        raise ValueError(f"a worker of Ray cannot start ({short_message(missing[2])}): {INSTALL}") from error

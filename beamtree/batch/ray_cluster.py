"""Connections to Ray: a local cluster for as long as it is used, or an existing one at an address.

Its workers see the same files under the same paths as this process, and have the same versions installed.
"""

import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from beamtree import __version__
from beamtree.errors import requires, short_message
from beamtree.ingest.prepare import Executor
from beamtree.kernels.threads import available_cpus

STOP_SECONDS = 60  # to wait for cancelled tasks
CONNECT_SECONDS = 60  # within which a cluster must answer
START_SECONDS = 300  # for a first worker, in a cluster that may have to add a machine for it
ROWS = 1 << 23  # of a log in one task
OBJECT_STORE_BYTES = 128 << 20  # of a local cluster: only names and counts are sent
MAX_RETRIES = 3  # after a worker is lost
SPARE_CPUS = 1  # that a local cluster has beyond its workers, for Ray itself
MAX_TEMP_PATH = 40  # characters: Ray's sockets are deep inside, and the path of a socket has 107 at most
CLIENT = "ray://"
AUTH_MODE, AUTH_TOKEN, AUTH_TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
AUTH_TOKEN_FILE = "~/.ray/auth_token"
ONE_THREAD = {"POLARS_MAX_THREADS": "1"}  # a worker is one CPU
LOCAL = {**ONE_THREAD, "RAY_worker_niceness": "0"}
# No usage statistics; and messages about lost workers do not go to the standard output.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}


class Cluster(NamedTuple):
    """A connection to a cluster."""

    ray: Any  # the library
    workers: int  # that may run at the same time
    resources: dict[str, float]  # of all machines

    @property
    def engine(self) -> Executor:
        """For `prepare`."""
        return Executor(self.run, ROWS)

    def run(self, function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Call a function on workers, once for each tuple of arguments; yields the results in order."""
        task = self.ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_call_checked)
        waiting, results, unfinished = deque(arguments), deque[Any](), list[Any]()
        try:
            while waiting or results:
                while waiting and len(unfinished) < self.workers:
                    results.append(task.remote(versions(), function, waiting.popleft()))
                    unfinished.append(results[-1])
                _, unfinished = self.ray.wait(unfinished) if unfinished else ([], [])
                with reraise_worker_errors():
                    while results and results[0] not in unfinished:
                        yield self.ray.get(results.popleft())
        finally:  # after an error no worker goes on writing
            for result in unfinished:
                self.ray.cancel(result, force=True)
            if unfinished:
                self.ray.wait(unfinished, num_returns=len(unfinished), timeout=STOP_SECONDS)


def _call_checked(driver_versions: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Runs on a worker."""
    check_versions(driver_versions)
    return function(*arguments)


def versions() -> str:
    """The versions that must be the same on all machines."""
    return f"beamtree {__version__} and Polars {pl.__version__}"


def check_versions(driver_versions: str) -> None:
    """Raise a ValueError on a worker that has other versions than the driver."""
    if driver_versions != versions():
        worker = f"the worker on {socket.gethostname()} has {versions()}"
        raise ValueError(f"{worker}, not {driver_versions}: install the same versions there")


@contextmanager
def connect(address: str | None = None, workers: int | None = None, *, gpus: bool = False) -> Iterator[Cluster]:
    """Connect to the cluster at an address, or start one on this machine and stop it at the end.

    Args:
        address: HOST:PORT of a cluster that this machine belongs to, ray://HOST:PORT of any other, or auto for one
            that runs on this machine.
        workers: that run at the same time; one per CPU unless given.
        gpus: whether a local cluster may use GPUs.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if address is not None:
        use_token()
    with requires("ray", "working on Ray"):
        import ray
    with ExitStack() as stack:
        if address is None:
            workers = available_cpus() if workers is None else workers
            temp = tempfile.gettempdir()
            parent = temp if len(temp) < MAX_TEMP_PATH else "/tmp"
            folder = tempfile.TemporaryDirectory(prefix="beamtree-ray-", dir=parent, ignore_cleanup_errors=True)
            options: dict[str, Any] = {
                "address": "local",
                "num_cpus": workers + SPARE_CPUS,
                **({} if gpus else {"num_gpus": 0}),
                "object_store_memory": OBJECT_STORE_BYTES,
                "include_dashboard": False,
                "_temp_dir": stack.enter_context(folder),
            }
        else:
            options = {"address": check_address(address), "runtime_env": {"env_vars": ONE_THREAD}}
        if ray.is_initialized():
            raise ValueError("this process is already connected to Ray: call ray.shutdown() first")
        stack.callback(ray.shutdown)
        try:
            with _environment(LOCAL):
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except Exception as error:
            prefix = "Ray does not start" if address is None else f"address={address}: cannot connect to Ray"
            raise ValueError(f"{prefix}: {short_message(error)}") from error
        if address is not None:
            first = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_call_checked).remote(versions(), bool, ())
            wait_for_worker(ray, [first], "CPU")
            with reraise_worker_errors():
                ray.get(first)
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        yield Cluster(ray, workers or max(1, int(resources.get("CPU", 1))), resources)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the processes that are started meanwhile."""
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


# Addresses


def use_token() -> None:
    """Have Ray send the token that it finds, if any; call before `import ray`.

    Ray does so by itself for a cluster on this machine only. A cluster without tokens accepts any.
    """
    has_token = os.environ.get(AUTH_TOKEN) or os.environ.get(AUTH_TOKEN_PATH)
    if AUTH_MODE in os.environ or not (has_token or Path(AUTH_TOKEN_FILE).expanduser().is_file()):
        return
    os.environ[AUTH_MODE] = "token"
    if "ray" in sys.modules:  # it has read its settings already
        sys.modules["ray"]._raylet.Config.initialize("")


# Connects in a process of its own: Ray retries for minutes where it is rejected, and may end the calling process.
PROBE = """
import ray, sys
try:
    ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
print(sys.argv[1] if "://" in sys.argv[1] else ray.get_runtime_context().gcs_address)
ray.shutdown()
"""


def check_address(address: str) -> str:
    """The address of a cluster that accepts connections, as Ray resolves it; a ValueError where there is none.

    Where several clusters run on this machine, auto is any of them, and not always the same.
    """
    if address != "auto":
        host, _, port = address.removeprefix(CLIENT).rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or "/" in host:
            raise ValueError(f"address={address}: give HOST:PORT, {CLIENT}HOST:PORT or auto")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS / 6).close()
        except (OSError, OverflowError) as error:
            raise ValueError(f"address={address}: cannot connect ({short_message(error)})") from error
    if address.startswith(CLIENT):
        with requires("ray", f"an address {CLIENT}HOST:PORT"):
            __import__("grpc")
    command = [sys.executable, "-c", PROBE, address]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=CONNECT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"address={address}: no Ray cluster answers within {CONNECT_SECONDS} seconds") from error
    if probe.returncode:
        message = short_message(probe.stderr.strip().rpartition("\n")[2]) or f"exit code {probe.returncode}"
        raise ValueError(f"address={address}: cannot connect to Ray: {message}")
    return probe.stdout.split()[-1]


# Workers


def wait_for_worker(ray: Any, calls: list[Any], resource: str) -> None:
    """Wait for the first of some calls; an OSError where no worker starts, for lack of CPUs or GPUs.

    Ray would wait forever.
    """
    done, _ = ray.wait(calls, timeout=START_SECONDS)
    if not done:
        free, total = (counts.get(resource, 0.0) for counts in (ray.available_resources(), ray.cluster_resources()))
        counts = f"{free:g} of the {total:g} {resource}s of the cluster are free"
        raise OSError(f"no worker has started within {START_SECONDS} seconds, and {counts}: try again later")


@contextmanager
def reraise_worker_errors() -> Iterator[None]:
    """Raise errors of workers as errors of this process, and those of Ray as an OSError in one line."""
    import ray

    try:
        yield
    except ray.exceptions.RayTaskError as error:
        # Ray's own where a worker cannot import beamtree: the traceback of the worker follows after the first line.
        if isinstance(error.cause, RuntimeError | ray.exceptions.RayError):
            message = short_message(str(error.cause).partition("\n")[0])
            raise OSError(f"a Ray worker failed: {message}") from error
        raise error.cause from None
    except ray.exceptions.OutOfMemoryError as error:
        raise MemoryError(f"on a Ray worker: {short_message(error)}") from error
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.RayActorError) as error:
        attempts = f"a Ray worker was lost {MAX_RETRIES + 1} times over the same task"
        raise OSError(f"{attempts}: {short_message(error)}") from error
    except ray.exceptions.RayError as error:
        raise OSError(f"Ray: {short_message(error)}") from error

"""Ranks: the processes that torchrun starts, and what they send each other.

All ranks run the same program and make the same calls in the same order, also those that have nothing to send. In an
ordinary program there is one rank, whose sums, gathers and exchanges return what they were given. Every call has a time
limit: see `TIME_LIMIT`.
"""

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from beamtree.model import BatchPart

T = TypeVar("T")
TIME_LIMIT = "BEAMTREE_TIME_LIMIT"  # environment variable: seconds that a rank waits for another
DEFAULT_SECONDS = 600.0


class PeerError(ValueError):
    """Raised on every rank when any rank fails; one rank prints it."""


class PeerLostError(Exception):
    """Another rank ended or did not answer in time."""


class Ranks:
    """One rank: an ordinary program."""

    rank = 0
    size = 1
    is_silent = False  # whether another rank prints the error that all have raised

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files and prints for all."""
        return self.rank == 0

    def share(self, total: int) -> BatchPart:
        """This rank's consecutive rows of a batch."""
        return BatchPart(total * self.rank // self.size, total * (self.rank + 1) // self.size, total)

    def sum_(self, values: Tensor) -> Tensor:
        """The sum over ranks of tensors of one shape, in place."""
        return values

    def broadcast_(self, values: Tensor, source: int = 0) -> Tensor:
        """The values of one rank, by default the first, in place."""
        return values

    def gather(self, value: T) -> list[T]:
        """The small values of all ranks, on all of them."""
        return [value]

    def broadcast(self, value: T) -> T:
        """The value of the first rank."""
        return self.gather(value)[0]

    def counts(self, sent: Sequence[int]) -> list[int]:
        """How many rows this rank will receive from each, given how many it sends to each."""
        return list(sent)

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send rows [Σ sent, ...], those for rank 0 first, and return the received rows [Σ received, ...]."""
        return rows

    # Built on these

    @contextmanager
    def fail_together(self) -> Iterator[bool]:
        """Around work that may fail on one rank: all ranks finish their part, and raise if any of them failed.

        Gives whether this rank is the first.
        """
        error: Exception | None = None
        try:
            yield self.is_first
        except (ValueError, OSError, MemoryError) as caught:
            error = caught
        messages = self.gather(None if error is None else str(error) or type(error).__name__)
        first = next((rank for rank, message in enumerate(messages) if message is not None), None)
        if first is None:
            return
        self.is_silent = self.rank != first
        if error is not None:
            raise error
        raise PeerError(f"rank {first}: {messages[first]}")

    def check_equal(self, **settings: object) -> None:
        """Raise a PeerError where a setting differs between ranks."""
        results = self.gather({name: str(value) for name, value in settings.items()})
        for name, text in results[0].items():
            other = next((rank for rank, each in enumerate(results) if each.get(name) != text), None)
            if other is not None:
                self.is_silent = not self.is_first
                theirs = str(results[other].get(name))[:200]
                raise PeerError(f"{name} is {text[:200]} on rank 0 and {theirs} on rank {other}: start all ranks alike")

    def split_rows(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A function of rows that each rank computes for its share; integer results are returned for all rows."""

        def split(*rows: Tensor) -> Tensor:
            share = self.share(len(rows[0]))
            part = function(*(share.of(each) for each in rows))
            result = part.new_zeros(share.total, *part.shape[1:])
            result[share.start : share.stop] = part[: share.stop - share.start]
            return self.sum_(result)

        return function if self.size == 1 else split


class _Group(Ranks):
    """Several ranks over torch.distributed: NCCL between GPUs, gloo for everything on CPUs."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum_(self, values: Tensor) -> Tensor:
        with _peer_errors():
            dist.all_reduce(values)
        return values

    def broadcast_(self, values: Tensor, source: int = 0) -> Tensor:
        buffer = values.contiguous()
        with _peer_errors():
            dist.broadcast(buffer, source)
        return values if buffer is values else values.copy_(buffer)

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        with _peer_errors():
            dist.all_gather_object(values, value)
        return values

    def counts(self, sent: Sequence[int]) -> list[int]:
        theirs = torch.empty(self.size, dtype=torch.int64)
        with _peer_errors():
            dist.all_to_all_single(theirs, torch.tensor(sent, dtype=torch.int64))
        counts: list[int] = theirs.tolist()
        return counts

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        theirs = rows.new_empty(sum(received), *rows.shape[1:])
        with _peer_errors():
            dist.all_to_all_single(theirs, rows.contiguous(), list(received), list(sent))
        return theirs


@contextmanager
def _peer_errors() -> Iterator[None]:
    """Communication errors in one line: a rank died, or is too late."""
    try:
        yield
    except RuntimeError as error:  # torch.distributed's are all of this kind
        if "out of memory" in str(error):
            raise
        line = f"rank {dist.get_rank()} lost another one, which ended or did not answer within {_timeout():,.0f} s"
        raise PeerLostError(f"{line}: see its output, and continue from the last checkpoint with --resume") from error


_ranks = Ranks()


def should_report() -> bool:
    """Whether this rank prints an error: the rank that failed, or else the first one that asks."""
    if _ranks.is_silent:
        return False
    if _ranks.size == 1:
        return os.environ.get("RANK", "0") == "0"
    try:
        store = dist.distributed_c10d._get_default_store()
        return bool(store.compare_set("reported", "", str(_ranks.rank)).decode() == str(_ranks.rank))
    except (RuntimeError, ValueError):  # the process with the store is gone
        return True


def ranks() -> Ranks:
    """The ranks that this process works with: itself, unless `join` was called under torchrun."""
    return _ranks


def connect(device: str = "cpu") -> Ranks:
    """Connect to all ranks that torchrun started, if it did and there are several."""
    global _ranks
    if _ranks.size == 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        on_gpu = torch.device(device).type == "cuda"
        if on_gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if not dist.is_initialized():
            _init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", _timeout())
            atexit.register(disconnect)
        _ranks = _Group()
    return _ranks


def check_single(command: str) -> None:
    """Raise a ValueError where torchrun started several processes for a command that is for one."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        raise ValueError(f"`beamtree {command}` is for one process: start it without torchrun")


def _init_process_group(backend: str, seconds: float) -> None:
    """Start the process group; after a restart under another name, since torchrun keeps the addresses of dead ranks."""
    rank, size, limit = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), timedelta(seconds=seconds)
    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        hosts = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        store: Any = dist.TCPStore(address, port, size, hosts, limit, multi_tenant=True)  # type: ignore[attr-defined]
        store = PrefixStore(f"beamtree/{_restarts()}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, ValueError, KeyError) as error:
        raise PeerLostError(
            f"the {size} ranks did not meet within {seconds:,.0f} s: start them all, with one address"
        ) from error


def disconnect() -> None:
    """Work alone again."""
    global _ranks
    _ranks = Ranks()
    if dist.is_initialized():
        dist.destroy_process_group()


def is_restarted() -> bool:
    """Whether torchrun started this process again after a failure."""
    return _restarts() > 0


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _timeout() -> float:
    text = os.environ.get(TIME_LIMIT, "")
    try:
        seconds = float(text or DEFAULT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValueError(f"{TIME_LIMIT}={text}: give seconds, above 0")
    return seconds

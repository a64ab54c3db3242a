"""Ranks: the processes of one training, as torchrun starts them. No other file knows that there are several.

Everywhere else `ranks()` stands for whoever works together. In an ordinary program that is one rank, whose sums,
gathers and exchanges give back what they were given. All ranks run the same program and come to the same calls in the
same order; whoever has nothing to ask still calls. No call waits for ever: see `LIMIT`.
"""

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

T = TypeVar("T")
LIMIT = "BEAMTREE_TIME_LIMIT"  # seconds that one rank waits for another, from the environment
SECONDS = 600.0  # unless it says otherwise


class ElsewhereError(ValueError):
    """Another rank met an error: all end with it, and one tells it."""


class LostError(RuntimeError):
    """Another rank does not answer."""


class Share(NamedTuple):
    """The rows of a batch that one rank works on: a run of neighbours.

    A rank that no row is left for takes the first for nothing, so that every rank goes through the same steps.
    """

    start: int
    stop: int
    total: int

    @property
    def is_empty(self) -> bool:
        return self.start == self.stop

    def of(self, rows: Tensor) -> Tensor:
        """These of all rows of the batch."""
        return rows[:1] if self.is_empty else rows[self.start : self.stop]


class Ranks:
    """One rank alone: the ordinary program."""

    rank = 0
    size = 1
    is_silent = False  # where all have agreed on an error, and another tells it

    @property
    def is_first(self) -> bool:
        """Whether this rank writes and speaks for all."""
        return self.rank == 0

    @property
    def patience(self) -> float:
        """Seconds that this rank waits for another."""
        return _limit()

    def share(self, total: int) -> Share:
        """The rows of a batch that are this rank's."""
        return Share(total * self.rank // self.size, total * (self.rank + 1) // self.size, total)

    def sum_(self, values: Tensor) -> Tensor:
        """The sum over ranks of tensors of one shape, in place."""
        return values

    def max_(self, values: Tensor) -> Tensor:
        """The largest over ranks of tensors of one shape, in place."""
        return values

    def broadcast_(self, values: Tensor, source: int = 0) -> Tensor:
        """The values of one rank, the first unless said, in place."""
        return values

    def gather(self, thing: T) -> list[T]:
        """What each rank gives, for all of them: small things."""
        return [thing]

    def first_says(self, yes: bool) -> bool:
        """What the first rank says."""
        return bool(self.broadcast_(torch.tensor(int(yes))))

    def counts(self, sent: Sequence[int]) -> list[int]:
        """How many rows each rank will send here, given how many go to each."""
        return list(sent)

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Rows [Σ sent, ...] to each rank in turn, for those that come from each in turn [Σ received, ...]."""
        return rows

    def wait(self) -> None:
        """Go on when all ranks are here."""

    # What follows from these

    @contextmanager
    def agreed(self) -> Iterator[bool]:
        """Work that may fail on one rank: an error there is an error on all, once each is through with its part.

        It gives whether this rank is the first, which writes for all.
        """
        error: Exception | None = None
        try:
            yield self.is_first
        except (ValueError, OSError, MemoryError) as found:
            error = found
        told = self.gather(None if error is None else str(error) or type(error).__name__)
        first = next((rank for rank, line in enumerate(told) if line is not None), None)
        if first is None:
            return
        self.is_silent = self.rank != first
        if error is not None:
            raise error
        raise ElsewhereError(f"rank {first}: {told[first]}")

    def same(self, **things: object) -> None:
        """Raise a ValueError where something is not the same on every rank."""
        texts = {name: str(thing) for name, thing in things.items()}
        found = self.gather(texts)
        for name, text in found[0].items():
            other = next((rank for rank, each in enumerate(found) if each.get(name) != text), None)
            if other is not None:
                theirs = found[other].get(name)
                line = (
                    f"{name} is {text[:200]} on rank 0 and {str(theirs)[:200]} on rank {other}: start all ranks alike"
                )
                self.is_silent = not self.is_first
                raise ElsewhereError(line)

    def shared_out(self, find: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A function of rows, each rank doing its share and all getting all: the results must be of whole numbers."""

        def found(*rows: Tensor) -> Tensor:
            share = self.share(len(rows[0]))
            own = find(*(share.of(each) for each in rows))
            whole = own.new_zeros(share.total, *own.shape[1:])
            whole[share.start : share.stop] = own[: share.stop - share.start]
            return self.sum_(whole)

        return find if self.size == 1 else found


class _Group(Ranks):
    """Several ranks over torch.distributed: gloo between CPUs, NCCL between GPUs, and gloo for what a CPU must know."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum_(self, values: Tensor) -> Tensor:
        with _answered():
            dist.all_reduce(values)
        return values

    def max_(self, values: Tensor) -> Tensor:
        with _answered():
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def broadcast_(self, values: Tensor, source: int = 0) -> Tensor:
        whole = values.contiguous()
        with _answered():
            dist.broadcast(whole, source)
        return values if whole is values else values.copy_(whole)

    def gather(self, thing: T) -> list[T]:
        found: list[Any] = [None] * self.size
        with _answered():
            dist.all_gather_object(found, thing)
        return found

    def counts(self, sent: Sequence[int]) -> list[int]:
        theirs = torch.empty(self.size, dtype=torch.int64)
        with _answered():
            dist.all_to_all_single(theirs, torch.tensor(sent, dtype=torch.int64))
        found: list[int] = theirs.tolist()
        return found

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        theirs = rows.new_empty(sum(received), *rows.shape[1:])
        with _answered():
            dist.all_to_all_single(theirs, rows.contiguous(), list(received), list(sent))
        return theirs

    def wait(self) -> None:
        self.counts([0] * self.size)


@contextmanager
def _answered() -> Iterator[None]:
    """Errors of the wire in one line: a rank died, or is too late."""
    try:
        yield
    except RuntimeError as error:  # torch.distributed's are all of this kind
        if "out of memory" in str(error):
            raise
        told = f"rank {dist.get_rank()} lost another one, which ended or did not answer within {_limit():,.0f} s"
        raise LostError(f"{told}: see what it said, and go on from the last checkpoint with --resume") from error


_now = Ranks()


def tells() -> bool:
    """Whether this rank is the one to tell an error: the one that all agreed on, or else the first that asks."""
    if _now.is_silent:
        return False
    if _now.size == 1:
        return os.environ.get("RANK", "0") == "0"
    try:
        store = dist.distributed_c10d._get_default_store()
        return bool(store.compare_set("told", "", str(_now.rank)).decode() == str(_now.rank))
    except (RuntimeError, ValueError):  # whoever kept the store is gone
        return True


def ranks() -> Ranks:
    """Those who work together now: this process alone, unless `join` was called under torchrun."""
    return _now


def join(device: str = "cpu") -> Ranks:
    """Work with all ranks that torchrun started, if it did and there are several."""
    global _now
    if _now.size == 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        on_gpu = torch.device(device).type == "cuda"
        if on_gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if not dist.is_initialized():
            with _met():
                _meet("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timedelta(seconds=_limit()))
            atexit.register(leave)
        _now = _Group()
    return _now


def _meet(backend: str, limit: timedelta) -> None:
    """Start the process group, under another name after a restart: torchrun keeps the addresses of ranks that died."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    keeps = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store: Any = dist.TCPStore(address, port, size, keeps, limit, multi_tenant=True)  # type: ignore[attr-defined]
    own = PrefixStore(f"beamtree/{_restarts()}", store)
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=limit)


def leave() -> None:
    """Work alone again."""
    global _now
    _now = Ranks()
    if dist.is_initialized():
        dist.destroy_process_group()


def is_restarted() -> bool:
    """Whether torchrun started this process in the place of one that failed."""
    return _restarts() > 0


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def _met() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, KeyError) as error:
        size = os.environ["WORLD_SIZE"]
        raise LostError(
            f"the {size} ranks did not meet within {_limit():,.0f} s: start them all, with one address"
        ) from error


def _limit() -> float:
    text = os.environ.get(LIMIT, "")
    try:
        seconds = float(text or SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValueError(f"{LIMIT}={text}: give seconds, above 0")
    return seconds

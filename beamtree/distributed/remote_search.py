"""Search over ranks in a program that only the first rank runs, such as a server; the others follow its commands.

The first rank's models look like any other. When one scores, the first rank broadcasts a command, a few numbers, and
then the users or the nodes, and all ranks score together. Without commands a heartbeat is sent every few seconds, so
that a rank that ended is noticed soon.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from beamtree.distributed.group import PeerLostError, Ranks
from beamtree.distributed.sharded_search import ShardedScorer
from beamtree.model import TreeModel
from beamtree.scorers import Scorer
from beamtree.tree import Tree

STOP, OPEN, USERS, SCORE, HEARTBEAT = range(5)
NOTHING = -1
HEARTBEAT_SECONDS = 2.0  # between two heartbeats without commands, at most
DTYPES = torch.int64, torch.int32, torch.float32, torch.float64  # of users and nodes
HEADER, INLINE = 7, 4096  # numbers of a command, and those of users or nodes that fit into the same message

OpenPart = Callable[[str], tuple[TreeModel, str]]  # opens this rank's part of a model, with a fingerprint


class Coordinator:
    """The first rank of several.

    Args:
        ranks: the ranks.
        open_part: opens this rank's part of a model; all ranks call it at once.
        on_lost: called when a rank ended or a search failed half way, with the error that is raised as well.
    """

    def __init__(
        self, ranks: Ranks, open_part: OpenPart, on_lost: Callable[[PeerLostError], None] | None = None
    ) -> None:
        self.ranks, self._open_part, self._on_lost = ranks, open_part, on_lost
        self._lock = threading.RLock()
        self._count = 0  # models and users so far, which number them
        self._free: deque[int] = deque()  # numbers of those that were garbage-collected here
        self._last_sent, self._stopped = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._send_heartbeats, name="beamtree-ranks", daemon=True)
        self._thread.start()

    def open(self, name: str) -> TreeModel:
        """A model that all ranks have a part of; a ValueError where one of them cannot open it."""
        with self._together():
            number = self._command(OPEN)
            self.ranks.gather(name)
            model = _open_together(self.ranks, self._open_part, name)
        if isinstance(model, str):
            raise ValueError(model)
        scorer = RemoteScorer(self, number, _scorer_of(model))
        self.free_with(scorer, number)
        return model.with_scorer(scorer).eval()

    def free_with(self, local: object, number: int) -> None:
        """Free the object of this number on the other ranks when its local one is garbage-collected."""
        finalize(local, self._free.append, number).atexit = False

    def users(self, model: int, tree: Tree, scorer: ShardedScorer, x: Tensor) -> "RemoteUsers":
        """Make the context of users on all ranks."""
        kind = DTYPES.index(x.dtype)
        with self._together():
            number = self._command(USERS, model, kind, *x.shape, sent=x)
            users = RemoteUsers(number, scorer.context(tree, x), len(x))
        self.free_with(users, number)
        return users

    def score(self, scorer: ShardedScorer, users: "RemoteUsers", level: int, nodes: Tensor) -> Tensor:
        """Score nodes [B or 1, W] of a level, on all ranks."""
        kind = torch.int32 if scorer.shard.num_nodes < 2**31 else torch.int64
        with self._together():
            self._command(SCORE, users.number, DTYPES.index(kind), *nodes.shape, level, sent=nodes.to(kind))
            scores: Tensor = scorer(users.context, level, nodes)
        return scores

    def close(self) -> None:
        """Stop the other ranks."""
        if not self._stopped.is_set():
            with self._together():
                self._command(STOP)
                self._stopped.set()
        self._thread.join()

    def _command(self, kind: int, *numbers: int, sent: Tensor | None = None) -> int:
        """Send a command, and what to free; returns the number of its result."""
        if self._stopped.is_set():
            raise PeerLostError("the ranks of this search have ended: start them again")
        while len(self._free) > 1:
            self._send(HEARTBEAT, self._free.popleft())
        self._send(kind, self._free.popleft() if self._free else NOTHING, *numbers, sent=sent)
        self._count += kind in (OPEN, USERS)
        return self._count

    def _send(self, kind: int, freed: int, *numbers: int, sent: Tensor | None = None) -> None:
        message = torch.full((HEADER + INLINE,), NOTHING)
        message[: 2 + len(numbers)] = torch.tensor([kind, freed, *numbers])
        inline = sent is not None and _fits_inline(sent)
        if sent is not None and inline:
            message[HEADER : HEADER + sent.numel()] = sent.flatten()
        self.ranks.broadcast_(message)
        if sent is not None and not inline:
            self.ranks.broadcast_(sent.contiguous())
        if kind == HEARTBEAT:
            self.ranks.wait()
        self._last_sent = time.monotonic()

    def _send_heartbeats(self) -> None:
        every = min(HEARTBEAT_SECONDS, self.ranks.timeout / 4)
        while not self._stopped.wait(every):
            if time.monotonic() - self._last_sent >= every:
                try:
                    with self._together():
                        if not self._stopped.is_set():
                            self._send(HEARTBEAT, NOTHING)
                except PeerLostError:  # the next command raises it again
                    return

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Around a command of all ranks; after an error no other command can follow."""
        with self._lock:
            try:
                yield
            except BaseException as error:
                self._stopped.set()
                if not isinstance(error, Exception):  # an interrupt, which all ranks get
                    raise
                ended = isinstance(error, PeerLostError)
                cause = "a rank ended, or did not answer in time" if ended else f"a search over ranks failed ({error})"
                lost = PeerLostError(f"{cause}: see its output, and start all ranks again")
                if self._on_lost is not None:
                    self._on_lost(lost)
                raise lost from error


class RemoteUsers:
    """The context of users on all ranks."""

    def __init__(self, number: int, context: Any, rows: int) -> None:
        self.number, self.context, self.rows = number, context, rows


class RemoteScorer(Scorer):
    """On the first rank: a scorer of which all ranks have a part."""

    capturable = False

    def __init__(self, coordinator: Coordinator, number: int, scorer: ShardedScorer) -> None:
        super().__init__()
        self.coordinator, self.number, self.scorer = coordinator, number, scorer

    @property
    def reads_items(self) -> bool:  # type: ignore[override]
        return self.scorer.reads_items

    @torch.no_grad()
    def context(self, tree: Tree, x: Tensor) -> RemoteUsers:
        return self.coordinator.users(self.number, tree, self.scorer, x)

    @torch.no_grad()
    def forward(self, context: RemoteUsers, level: int, nodes: Tensor) -> Tensor:
        if not nodes.shape[1]:
            return torch.empty(context.rows, 0, device=nodes.device)
        if self.scorer.is_local(level):
            scores: Tensor = self.scorer(context.context, level, nodes)
            return scores
        return self.coordinator.score(self.scorer, context, level, nodes)

    def calibrated(self, level: int, logits: Tensor) -> Tensor:
        return self.scorer.calibrated(level, logits)

    def settings(self) -> dict[str, Any]:
        return self.scorer.settings()

    def check(self, x: Tensor) -> None:
        self.scorer.check(x)


def follow(ranks: Ranks, open_part: OpenPart) -> None:
    """Follow the commands of the first rank until it stops; a PeerLostError where a rank ended."""
    try:
        _follow(ranks, open_part)
    except PeerLostError as error:
        line = f"rank {ranks.rank} lost another one, which ended or did not answer in time"
        raise PeerLostError(f"{line}: see its output, and start all ranks again") from error


@torch.no_grad()
def _follow(ranks: Ranks, open_part: OpenPart) -> None:
    objects: dict[int, tuple[TreeModel, Any]] = {}  # a model, or a model with users
    count, message = 0, torch.empty(HEADER + INLINE, dtype=torch.int64)
    while True:
        kind, freed, target, dtype, rows, width, level = ranks.broadcast_(message)[:HEADER].tolist()
        objects.pop(freed, None)
        count += kind in (OPEN, USERS)
        if kind == STOP:
            return
        if kind == HEARTBEAT:
            ranks.wait()
        elif kind == OPEN:
            model = _open_together(ranks, open_part, ranks.gather("")[0])
            if isinstance(model, TreeModel):
                objects[count] = model, None
        else:
            model, context = objects[target]
            sent = torch.empty(rows, width, dtype=DTYPES[dtype], device=model.tree.device)
            if _fits_inline(sent):
                sent.copy_(message[HEADER : HEADER + rows * width].view(rows, width))
            else:
                ranks.broadcast_(sent)
            if kind == USERS:
                objects[count] = model, _scorer_of(model).context(model.tree, sent)
            else:
                _scorer_of(model)(context, level, sent.long())


def _fits_inline(sent: Tensor) -> bool:
    """Whether users or nodes fit into the message of a command."""
    return sent.numel() <= INLINE and not sent.is_cuda and not sent.is_floating_point()


def _open_together(ranks: Ranks, open_part: OpenPart, name: str) -> TreeModel | str:
    """This rank's part of a model, or the error of a rank that has none."""
    model, digest, error = None, "", None
    try:
        model, digest = open_part(name)
    except (ValueError, OSError, MemoryError) as caught:
        error = str(caught) or type(caught).__name__
    results = ranks.gather((digest, error))
    for rank, (other, line) in enumerate(results):
        if line is not None:
            return f"{line} (on rank {rank})" if rank else line
        if other != results[0][0]:
            return f"rank 0 has opened model {results[0][0]} and rank {rank} {other}: start all ranks with the same run"
    assert model is not None
    return model


def _scorer_of(model: TreeModel) -> ShardedScorer:
    assert isinstance(model.scorer, ShardedScorer)
    return model.scorer

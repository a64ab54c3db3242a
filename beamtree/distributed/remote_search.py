"""One rank asks and the others follow: a search over ranks in a program that only the first of them runs.

The first rank's models look like any other. Whatever scores with them, the others hear of it: first a few numbers that
say what is to be done, then the users or the nodes, and all of them do it together. While nothing is asked a word goes
round every few seconds, so that a rank that ended is missed soon, and nobody waits for ever.
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

from beamtree.distributed.group import LostError, Ranks
from beamtree.distributed.sharded_search import PartedScorer
from beamtree.model import TreeModel
from beamtree.scorers import Scorer
from beamtree.tree import Tree

STOP, OPEN, USERS, SCORE, BEAT = range(5)
NOTHING = -1
BEATS = 2.0  # seconds between two words while nothing is asked, at most
KINDS = torch.int64, torch.int32, torch.float32, torch.float64  # of users and nodes on the wire
HEAD, ROOM = 7, 4096  # numbers that say what is to be done, and those of users or nodes that go with them if so few

OpenPart = Callable[[str], tuple[TreeModel, str]]  # a model of which this rank has its part, and what tells it apart


class Lead:
    """The first rank of several.

    Args:
        now: the ranks.
        open_part: opens this rank's part of a model; all ranks call it at once.
        on_lost: hears of a rank that ended, or of a search that failed half way; what it is told is raised as well.
    """

    def __init__(self, now: Ranks, open_part: OpenPart, on_lost: Callable[[LostError], None] | None = None) -> None:
        self.now, self._open_part, self._on_lost = now, open_part, on_lost
        self._lock = threading.RLock()
        self._count = 0  # models and users that were numbered
        self._free: deque[int] = deque()  # those that nobody here holds any longer
        self._spoke, self._over = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="beamtree-ranks", daemon=True)
        self._thread.start()

    def open(self, name: str) -> TreeModel:
        """A model that all ranks have a part of; a ValueError where one of them cannot open it."""
        with self._together():
            number = self._tell(OPEN)
            self.now.gather(name)
            model = _opened(self.now, self._open_part, name)
        if isinstance(model, str):
            raise ValueError(model)
        scorer = LedScorer(self, number, _parted(model))
        self.keep(scorer, number)
        return model.with_scorer(scorer).eval()

    def keep(self, thing: object, number: int) -> None:
        """Let the others forget something once nobody here holds it."""
        finalize(thing, self._free.append, number).atexit = False

    def users(self, model: int, tree: Tree, scorer: PartedScorer, x: Tensor) -> "LedUsers":
        """Put users to a model, on all ranks."""
        kind = KINDS.index(x.dtype)
        with self._together():
            number = self._tell(USERS, model, kind, *x.shape, sent=x)
            found = LedUsers(number, scorer.context(tree, x), len(x))
        self.keep(found, number)
        return found

    def score(self, scorer: PartedScorer, users: "LedUsers", level: int, nodes: Tensor) -> Tensor:
        """Score nodes [B or 1, W] of a level, on all ranks."""
        kind = torch.int32 if scorer.shard.num_nodes < 2**31 else torch.int64
        with self._together():
            self._tell(SCORE, users.number, KINDS.index(kind), *nodes.shape, level, sent=nodes.to(kind))
            scores: Tensor = scorer(users.context, level, nodes)
        return scores

    def close(self) -> None:
        """Let the others go."""
        if not self._over.is_set():
            with self._together():
                self._tell(STOP)
                self._over.set()
        self._thread.join()

    def _tell(self, kind: int, *numbers: int, sent: Tensor | None = None) -> int:
        """Say what is to be done, and forgotten; the number of what comes of it."""
        if self._over.is_set():
            raise LostError("the ranks of this search have ended: start them again")
        while len(self._free) > 1:
            self._say(BEAT, self._free.popleft())
        self._say(kind, self._free.popleft() if self._free else NOTHING, *numbers, sent=sent)
        self._count += kind in (OPEN, USERS)
        return self._count

    def _say(self, kind: int, freed: int, *numbers: int, sent: Tensor | None = None) -> None:
        told = torch.full((HEAD + ROOM,), NOTHING)
        told[: 2 + len(numbers)] = torch.tensor([kind, freed, *numbers])
        goes_along = sent is not None and _goes_along(sent)
        if sent is not None and goes_along:
            told[HEAD : HEAD + sent.numel()] = sent.flatten()
        self.now.broadcast_(told)
        if sent is not None and not goes_along:
            self.now.broadcast_(sent.contiguous())
        if kind == BEAT:
            self.now.wait()
        self._spoke = time.monotonic()

    def _beat(self) -> None:
        every = min(BEATS, self.now.patience / 4)
        while not self._over.wait(every):
            if time.monotonic() - self._spoke >= every:
                try:
                    with self._together():
                        if not self._over.is_set():
                            self._say(BEAT, NOTHING)
                except LostError:  # which whoever asks next will hear of
                    return

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What all ranks do at once, one thing at a time; where it fails half way, nothing can follow."""
        with self._lock:
            try:
                yield
            except BaseException as error:
                self._over.set()
                if not isinstance(error, Exception):  # somebody interrupts all of them
                    raise
                ended = isinstance(error, LostError)
                why = "a rank ended, or did not answer in time" if ended else f"a search over ranks failed ({error})"
                found = LostError(f"{why}: see what it said, and start all ranks again")
                if self._on_lost is not None:
                    self._on_lost(found)
                raise found from error


class LedUsers:
    """Users that were put to a model on all ranks."""

    def __init__(self, number: int, context: Any, rows: int) -> None:
        self.number, self.context, self.rows = number, context, rows


class LedScorer(Scorer):
    """On the first rank: a scorer of which all have a part, and which asks them itself."""

    def __init__(self, lead: Lead, number: int, scorer: PartedScorer) -> None:
        super().__init__()
        self.lead, self.number, self.scorer = lead, number, scorer

    @property
    def reads_items(self) -> bool:  # type: ignore[override]
        return self.scorer.reads_items

    @property
    def is_spread(self) -> bool:
        return True

    @torch.no_grad()
    def context(self, tree: Tree, x: Tensor) -> LedUsers:
        return self.lead.users(self.number, tree, self.scorer, x)

    @torch.no_grad()
    def forward(self, context: LedUsers, level: int, nodes: Tensor) -> Tensor:
        if not nodes.shape[1]:
            return torch.empty(context.rows, 0, device=nodes.device)
        if self.scorer.is_local(level):
            scores: Tensor = self.scorer(context.context, level, nodes)
            return scores
        return self.lead.score(self.scorer, context, level, nodes)

    def calibrated(self, level: int, logits: Tensor) -> Tensor:
        return self.scorer.calibrated(level, logits)

    def settings(self) -> dict[str, Any]:
        return self.scorer.settings()

    def check(self, x: Tensor) -> None:
        self.scorer.check(x)


def follow(now: Ranks, open_part: OpenPart) -> None:
    """Do what the first rank asks, until it is enough; a LostError where a rank ended, whichever it was."""
    try:
        _follow(now, open_part)
    except LostError as error:
        told = f"rank {now.rank} lost another one, which ended or did not answer in time"
        raise LostError(f"{told}: see what it said, and start all ranks again") from error


@torch.no_grad()
def _follow(now: Ranks, open_part: OpenPart) -> None:
    things: dict[int, tuple[TreeModel, Any]] = {}  # a model, or a model with users
    count, told = 0, torch.empty(HEAD + ROOM, dtype=torch.int64)
    while True:
        kind, freed, about, number, rows, width, level = now.broadcast_(told)[:HEAD].tolist()
        things.pop(freed, None)
        count += kind in (OPEN, USERS)
        if kind == STOP:
            return
        if kind == BEAT:
            now.wait()
        elif kind == OPEN:
            model = _opened(now, open_part, now.gather("")[0])
            if isinstance(model, TreeModel):
                things[count] = model, None
        else:
            model, context = things[about]
            sent = torch.empty(rows, width, dtype=KINDS[number], device=model.tree.device)
            if _goes_along(sent):
                sent.copy_(told[HEAD : HEAD + rows * width].view(rows, width))
            else:
                now.broadcast_(sent)
            if kind == USERS:
                things[count] = model, _parted(model).context(model.tree, sent)
            else:
                _parted(model)(context, level, sent.long())


def _goes_along(sent: Tensor) -> bool:
    """Whether users or nodes are so few that they go in one message with what is to be done."""
    return sent.numel() <= ROOM and not sent.is_cuda and not sent.is_floating_point()


def _opened(now: Ranks, open_part: OpenPart, name: str) -> TreeModel | str:
    """One rank's part of a model, or why some rank has none."""
    model, digest, error = None, "", None
    try:
        model, digest = open_part(name)
    except (ValueError, OSError, MemoryError) as found:
        error = str(found) or type(found).__name__
    told = now.gather((digest, error))
    for rank, (other, line) in enumerate(told):
        if line is not None:
            return f"{line} (on rank {rank})" if rank else line
        if other != told[0][0]:
            return f"rank 0 has opened model {told[0][0]} and rank {rank} {other}: start all ranks with the same run"
    assert model is not None
    return model


def _parted(model: TreeModel) -> PartedScorer:
    assert isinstance(model.scorer, PartedScorer)
    return model.scorer

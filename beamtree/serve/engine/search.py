"""One search for several requests: what is asked, what it is answered from, and what comes of it."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from beamtree.answers import Answer, History, answer, read_history
from beamtree.data.catalogue import Catalogue
from beamtree.mask import NodeMask
from beamtree.model import TreeModel
from beamtree.serve.engine.filters import Filter, Masks, may_be_found
from beamtree.serve.engine.source import Beam, Loaded


class Reply(NamedTuple):
    """What came of a request."""

    answers: list[Answer]
    version: str  # of the model that answered
    catalogue: Catalogue
    beam: Beam  # that was searched with
    narrowed_from: Beam | None = None  # where load made it narrower than asked
    left: int | None = None  # items that the filter allows, where there is one
    short: int = 0  # answers with fewer items than could be found
    unknown_users: Sequence[str] = ()
    waited: float = 0.0  # seconds in the queue
    searched: float = 0.0  # seconds of the search
    together: int = 1  # histories that were searched together


@dataclass(eq=False, slots=True)
class Ask:
    """What is asked: histories or users, how many items, and until when the answer is wanted."""

    done: Callable[[Any], object]  # hears a Reply, what `work` gives, or an exception
    deadline: float  # by time.monotonic
    histories: Sequence[Sequence[object]] = ()  # of ids, oldest first
    users: Sequence[str] | None = None  # instead of histories
    m: int = 10
    beam: Beam | None = None
    exclude_seen: bool = False
    only: Filter | None = None
    work: Callable[["View"], Any] | None = None  # instead of a search: anything that reads the model
    dropped: bool = False  # whether nobody waits for it any longer
    asked: float = field(default_factory=time.monotonic)

    @property
    def rows(self) -> int:
        return max(1, len(self.histories if self.users is None else self.users))


class View(NamedTuple):
    """What one batch is answered from: changes that come meanwhile are for the next."""

    loaded: Loaded
    version: str
    model: TreeModel
    catalogue: Catalogue
    masks: Masks

    def read(self, ask: Ask) -> tuple[list[History], list[str]]:
        """The histories of a request as numbers, and the users that are not known."""
        if ask.users is None:
            return [read_history(self.catalogue.ids, each) for each in ask.histories], []
        found = [(user, self.loaded.source.history(user)) for user in ask.users]
        return [each or History([]) for _, each in found], [user for user, each in found if each is None]


def search(view: View, beam: Beam, asks: Sequence[Ask]) -> list[Reply]:
    """Answer requests that share a beam, a filter and whether seen items are left out, in one search."""
    only, exclude_seen, m = asks[0].only, asks[0].exclude_seen, max(ask.m for ask in asks)
    mask, left = (None, None) if only is None else view.masks.of(only, view.model, view.catalogue)
    read = [view.read(ask) for ask in asks]
    rows = [history for histories, _ in read for history in histories]
    on_gpu = view.model.tree.device.type == "cuda"
    full = rows + rows[-1:] * (_even(len(rows)) - len(rows)) if on_gpu else rows
    found = answer(
        view.model,
        view.catalogue.ids,
        full,
        beam_size=beam,
        m=_even_m(m, beam) if on_gpu else m,
        exclude_seen=exclude_seen,
        allowed=mask,
        kept=m,
    )
    replies, start = [], 0
    for ask, (histories, unknown) in zip(asks, read, strict=True):
        answers = [_first(each, ask.m) for each in found[start : start + len(histories)]]
        start += len(histories)
        short = _short(view.model, mask, ask, zip(answers, histories, strict=True))
        replies.append(Reply(answers, view.version, view.catalogue, beam, None, left, short, unknown))
    return replies


def _even(rows: int) -> int:
    """The next power of two: a GPU replays a search that it knows, and it knows few shapes."""
    return 1 << max(0, rows - 1).bit_length()


def _even_m(m: int, beam: Beam) -> int:
    """The next power of two, as far as the last level is that wide."""
    return max(m, min(_even(m), beam if isinstance(beam, int) else beam[-1]))


def _first(found: Answer, m: int) -> Answer:
    """The best m of an answer: those who ask together ask for as many as the most demanding."""
    return found if len(found.items) <= m else found._replace(items=found.items[:m], scores=found.scores[:m])


def _short(model: TreeModel, mask: NodeMask | None, ask: Ask, found: Iterable[tuple[Answer, History]]) -> int:
    """How many answers have fewer items than asked for although more could be found."""
    few = [(len(each.items), history) for each, history in found if len(each.items) < ask.m]
    if not few:
        return 0
    allowed = mask or model.tree.mask
    could = [may_be_found(allowed, model, history.items if ask.exclude_seen else ()) for _, history in few]
    return sum(count < min(ask.m, most) for (count, _), most in zip(few, could, strict=True))

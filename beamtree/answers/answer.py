"""From a history of ids to the best items, as ids again."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from beamtree.answers.popular import popular_items
from beamtree.beam import BeamSize, retrieve
from beamtree.data import HISTORY, Ids, Prepared
from beamtree.data.ids import as_id
from beamtree.errors import requires
from beamtree.mask import NodeMask
from beamtree.model import TreeModel
from beamtree.tree import PAD

NAMED = 5  # unknown ids that a note shows


class History(NamedTuple):
    """What a user did, oldest first, as far as the model knows the items."""

    items: list[int]
    unknown: Sequence[str] = ()  # ids that the model does not know


class Answer(NamedTuple):
    """What was found for one user."""

    items: list[str]  # ids, best first; fewer than m where fewer may be found
    scores: list[float]  # p_g(z_n = 1 | x) of each; of popular items, their share of all events
    known: int  # items of the history that the model knows
    unknown: Sequence[str]  # and those that it does not
    is_popular: bool = False  # whether this is what everybody likes, for want of anything known


def split_ids(text: str, ids: Ids | None = None) -> list[str]:
    """The ids of a history that is written as text: one of these ids, JSON, or words between spaces, commas or |."""
    if ids is not None and text.strip() and ids.find([text])[0] is not None:
        return [as_id(text)]
    listed = json_list(text)
    if listed is not None:
        return [as_id(name) for name in listed if name is not None and as_id(name)]
    return [word for word in re.split(r"[\s,|]+", text) if word]


def json_list(text: str) -> list[object] | None:
    """The entries of a list, or the one string, that is written as JSON; None where the text is neither."""
    if not text.lstrip().startswith(("[", '"')):
        return None
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError):  # an id such as [a]
        return None
    return found if isinstance(found, list) else [found] if isinstance(found, str) else None


def read_history(ids: Ids, history: Iterable[object]) -> History:
    """A history of ids; unknown ones are passed over and remembered."""
    names = list(history)
    numbers = ids.find(names)
    if None not in numbers:  # nearly always
        return History(cast(list[int], numbers))
    known = [number for number in numbers if number is not None]
    return History(known, [as_id(name) for name, number in zip(names, numbers, strict=True) if number is None])


def read_histories(ids: Ids, histories: Any) -> tuple[str, list[tuple[Any, History]]]:
    """One history, several in a list, or several by user; and what a column that tells them apart is called.

    Several by user are a dict, or a frame of events: user, item and, unless its rows are in order, time.
    """
    if _is_id(histories) and not hasattr(histories, "batch"):
        name = repr(as_id(histories)[:80])
        ways = f"recommend([{name}]) for a history of one item, recommend(users={name}) for a user of the log"
        raise ValueError(f"{name} is no list of ids: {ways}")
    if _is_frame(histories):
        histories = _by_user(histories)
    if isinstance(histories, Mapping):
        return "user", [(as_id(user), read_history(ids, listed(each))) for user, each in histories.items()]
    histories = listed(histories)
    if all(_is_id(each) for each in histories):
        return "", [(0, read_history(ids, histories))]
    return "history", [(place, read_history(ids, listed(each))) for place, each in enumerate(histories)]


def _is_id(value: object) -> bool:
    """Whether this is one id and not a list of them: a string is an id, and so is an array without dimensions."""
    return isinstance(value, str) or not isinstance(value, Iterable) or getattr(value, "ndim", None) == 0


def _is_frame(value: object) -> bool:
    return hasattr(type(value), "columns")


def _by_user(frame: Any) -> dict[str, list[str]]:
    """What each user of a frame of events chose, oldest first."""
    with requires("", "reading a frame"):
        from beamtree.ingest.recent import read_events
    try:
        events = read_events(frame, None, None, None)
    except ValueError as error:
        raise ValueError(f"a frame of histories has the columns user, item and time: {error}") from error
    return {user: [item for item, _ in row] for user, row in events.items()}


def listed(value: Any) -> list[Any]:
    """Ids as a list: one id, or any list of them; a ValueError for what holds something else."""
    if isinstance(value, Tensor | NodeMask | Mapping) or _is_frame(value) or hasattr(value, "batch"):
        kind = type(value).__name__
        raise ValueError(f"a {kind} is no list of ids: give ids in a list, or a dict from user to list")
    return [value] if _is_id(value) else list(value)


def history_of_user(data: Prepared, user: object) -> History:
    """All that a user of the log did; a ValueError where there is no such user."""
    (row,) = data.users.find([user])
    if row is None:
        dropped = data.description.get("report", {}).get("users_with_few_events", 0)
        least = data.description.get("settings", {}).get("min_events")
        why = f": {dropped:,} users with fewer than {least} events were left out of it" if dropped else ""
        raise ValueError(f"user {as_id(user)!r} is not in the log {data.folder}{why}")
    for part in (data.train, data.val, data.test):
        if row < len(part):
            start, stop = part.events.offsets[row : row + 2].tolist()
            return History(part.events.items[start:stop].tolist())
        row -= len(part)
    raise ValueError(f"{data.folder} is damaged: it has more ids of users than users")


def item_filter(
    model: TreeModel, ids: Ids, allowed: Iterable[object] | None, exclude: Iterable[object] | None
) -> NodeMask | None:
    """The mask of items that may be found: of `allowed`, or all, less `exclude`. Unknown ids do not matter."""
    if allowed is None and exclude is None:
        return None
    kept = torch.full((len(ids),), allowed is None)
    if allowed is not None:
        kept[ids.known(listed(allowed))] = True
    if exclude is not None:
        kept[ids.known(listed(exclude))] = False
    return model.tree.allow(kept.nonzero().squeeze(1))


def answer(
    model: TreeModel,
    ids: Ids,
    histories: Sequence[History],
    *,
    beam_size: BeamSize = 400,
    m: int = 10,
    exclude_seen: bool = False,
    allowed: NodeMask | None = None,
    kept: int | None = None,
) -> list[Answer]:
    """The m best items for each history, all in one batch.

    Args:
        model: what is searched.
        ids: of its items.
        histories: oldest first; the newest 69 known items of each count.
        beam_size: k, or one width for each searched level.
        m: how many items.
        exclude_seen: whether items of a history are not to be found for it, however old.
        allowed: the items that may be found; all unless given.
        kept: how many of the m are told; all unless given.

    A history of which nothing is known gets what is popular.
    """
    if not histories:
        return []
    if len(ids) != model.tree.num_items:
        raise ValueError(f"{len(ids):,} ids for a tree of {model.tree.num_items:,} items: they are not of one run")
    known = [history.items for history in histories]
    device = model.tree.device
    x = as_users(known).to(device)
    exclude = _padded(known, max(map(len, known), default=0)).to(device) if exclude_seen else None
    items, log_p = retrieve(model, x, beam_size=beam_size, m=m, allowed=allowed, exclude=exclude)
    scores = log_p.exp()
    nothing = [not row and model.popularity is not None for row in known]
    if any(nothing):
        items[nothing], scores[nothing] = popular_items(model, m, allowed)
    found = (items != PAD).sum(1).tolist()
    names = ids.names
    told = [part[:, :kept].tolist() for part in (items, scores)]
    rows = zip(*told, found, histories, nothing, strict=True)  # PAD comes last
    return [
        Answer([names[item] for item in row[:count]], score[:count], len(history.items), history.unknown, popular)
        for row, score, count, history, popular in rows
    ]


def as_users(rows: Sequence[Sequence[int]]) -> Tensor:
    """Histories of item numbers, oldest first, as a model takes them: the newest 69, newest first [B, 69]."""
    return _padded([row[: -HISTORY - 1 : -1] for row in rows], HISTORY)


def as_columns(key: str, names: Sequence[Any], answers: Sequence[Answer]) -> dict[str, list[Any]]:
    """One row per item: whose it is, in a column called `key` if that is not empty, and rank, item and score."""
    columns: dict[str, list[Any]] = {}
    if key:
        columns[key] = [name for name, each in zip(names, answers, strict=True) for _ in each.items]
    columns["rank"] = [rank for each in answers for rank in range(1, len(each.items) + 1)]
    columns["item"] = [item for each in answers for item in each.items]
    columns["score"] = [score for each in answers for score in each.scores]
    return columns


def _padded(rows: Sequence[Sequence[int]], width: int) -> Tensor:
    """Rows of different lengths as one tensor, PAD at the end [B, width]."""
    filled = np.full((len(rows), width), PAD, np.int64)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    filled[np.arange(width) < lengths[:, None]] = np.fromiter(chain.from_iterable(rows), np.int64)
    return torch.from_numpy(filled)


@dataclass
class Tally:
    """What is worth a note about many answers."""

    users: int = 0
    unknown: int = 0  # events of items that the model does not know
    names: list[str] = field(default_factory=list)  # the first few of these items
    popular: int = 0  # users of whom not one item is known, who got what is popular
    nothing_found: int = 0  # users for whom no item was found
    rows: int = 0  # of a file that were used
    left_out: int = 0  # and that could not be

    def add(self, answers: Iterable[Answer]) -> None:
        for each in answers:
            self.users += 1
            self.unknown += len(each.unknown)
            self.popular += each.is_popular
            self.nothing_found += not each.items
            if len(self.names) < NAMED:
                self.names = list(dict.fromkeys([*self.names, *each.unknown]))[:NAMED]

    def join(self, other: "Tally") -> None:
        """Add what another tally counted."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        self.names = list(dict.fromkeys(self.names))[:NAMED]

    def notes(self) -> Iterator[str]:
        """One line for each thing that was not as it should be."""
        if self.left_out:
            yield f"{_count(self.left_out, 'row')} left out: without a user, an item or a readable time"
        if self.unknown:
            shown = ", ".join(self.names) + (", …" if len(self.names) == NAMED else "")
            which = f"items that the model does not know ({shown})"
            yield f"{_count(self.unknown, 'event')} passed over: of {which}"
        if self.popular:
            yield f"{_count(self.popular, 'user')} without a known item: answered with what is popular"
        if self.nothing_found:
            yield f"{_count(self.nothing_found, 'user')} without an answer: nothing is left that may be found"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

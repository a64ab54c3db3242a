"""Histories: parsed from what users pass, looked up in a log, and encoded as item numbers for a model."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from beamtree.data import Events, Ids, Prepared
from beamtree.data.contexts import Context
from beamtree.data.ids import as_given, as_id
from beamtree.data.inputs import NO_TIME, history_width
from beamtree.errors import requires
from beamtree.mask import NodeMask
from beamtree.model import TreeModel
from beamtree.query.times import check_unit, clock_seconds, is_one_of_pairs, split_pairs
from beamtree.scorers import context_part
from beamtree.scorers.context import CONTEXT
from beamtree.tree import PAD

POPULAR, ERROR = "popular", "error"  # what users get of whom nothing is known


class History(NamedTuple):
    """The items of a user's events, oldest first, and the context of a request."""

    items: list[int]  # numbers of the items that the model knows
    unknown: Sequence[str] = ()  # ids that it does not know
    dislikes: Sequence[int] = ()  # items that the user does not want
    seen: Sequence[int] = ()  # other items that the user chose, which were dropped from training
    context: Sequence[int] = ()  # numbers of the values of the context; none where nothing is known
    is_known: bool = True  # False for a user who has no events; such users may have dislikes
    times: Sequence[int] = ()  # of the items, in seconds since 1970; none where they are not known
    time: int = NO_TIME  # of the request


UNKNOWN_USER = History([], is_known=False)

# Parsing


def parse_ids(text: str, ids: Ids | None = None) -> list[str]:
    """The ids in a text: one of `ids`, a JSON list, or words separated by white space, commas or |."""
    if ids is not None and text.strip() and ids.find([text])[0] is not None:
        return [as_id(text)]
    values = _parse_json_list(text)
    if values is not None:
        return [_one_id(value) for value in values if value is not None and as_id(value)]
    return [word for word in re.split(r"[\s,|]+", text) if word]


def parse_history(text: str, ids: Ids) -> tuple[list[str], list[int]]:
    """The items in a text, as in `parse_ids`, and the times of their events where it is JSON of [item, time] pairs."""
    values = _parse_json_list(text)
    if values is None or not any(isinstance(value, list) for value in values):
        return parse_ids(text, ids), []
    items, times = split_pairs([tuple(value) if isinstance(value, list) else value for value in values])
    return list(map(_one_id, items)), times


def _one_id(value: object) -> str:
    if isinstance(value, list | dict):
        raise ValueError(f"{str(value)[:80]} is not an id: give ids as text or numbers")
    return as_id(value)


def _parse_json_list(text: str) -> list[object] | None:
    """The values of a JSON list, or a single JSON string; None for anything else."""
    if not text.lstrip().startswith(("[", '"')):
        return None
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError):  # an id such as [a]
        return None
    return value if isinstance(value, list) else [value] if isinstance(value, str) else None


class ParsedHistories(NamedTuple):
    """The histories that a caller passed."""

    key: str  # the name of the column that tells them apart, empty for none
    names: Sequence[Any] | np.ndarray  # the values of that column
    items: list[list[Any]]  # ids, oldest first
    times: list[list[int]] | None = None  # of the events, in seconds since 1970; none where they are not known


def parse_histories(histories: Any, ids: Ids) -> ParsedHistories:
    """The histories that a caller passed; the ids of the model tell pairs of ids from (item, time) pairs.

    Accepts one list of ids (no column), a list of lists (`history`: 0, 1, 2, …), a dict from user to list, or a frame
    of events with the columns user, item and, unless its rows are in order, time (`user`). A list may have (item, time)
    pairs instead of ids. Users who are whole numbers stay numbers.
    """
    if _is_id(histories) and not hasattr(histories, "batch"):
        name = repr(as_id(histories)[:80])
        usage = f"recommend([{name}]) for a history of one item, recommend(users={name}) for a user of the log"
        raise ValueError(f"{name} is not a list of ids: use {usage}")
    if is_frame(histories):
        return _group_by_user(histories)
    if isinstance(histories, Mapping):
        return _parsed("user", as_given(list(histories)), list(histories.values()))
    histories = id_list(histories)
    if all(map(_is_id, histories)) or is_one_of_pairs(histories, ids):
        return _parsed("", [0], [histories])
    return _parsed("history", list(range(len(histories))), histories)


def _parsed(key: str, names: Sequence[Any] | np.ndarray, rows: Sequence[Any]) -> ParsedHistories:
    """Histories of ids, or of (item, time) pairs."""
    items, times = list[list[Any]](), list[list[int]]()
    for row in rows:
        ids_of_row, seconds = split_pairs(id_list(row))
        items.append(ids_of_row)
        times.append(seconds)
    return ParsedHistories(key, names, items, times if any(times) else None)


def id_list(value: Any) -> list[Any]:
    """One id, or any iterable of ids, as a list; a ValueError for containers of something else."""
    if isinstance(value, Tensor | NodeMask | Mapping) or is_frame(value) or hasattr(value, "batch"):
        kind = type(value).__name__
        raise ValueError(f"a {kind} is not a list of ids: pass a list of ids, or a dict from user to list")
    return [value] if _is_id(value) else list(value)


def _is_id(value: object) -> bool:
    """Whether this is a single id: a string, a number, or an array without dimensions."""
    return isinstance(value, str) or not isinstance(value, Iterable) or getattr(value, "ndim", None) == 0


def is_frame(value: object) -> bool:
    """Whether this is a table in memory: of Polars, of pandas or of Arrow."""
    return hasattr(type(value), "columns") and not hasattr(type(value), "batch")  # views of a log have both


def _group_by_user(frame: Any) -> ParsedHistories:
    with requires("", "reading a frame"):
        from beamtree.ingest.user_events import read_events
    try:
        log = read_events(frame)
    except ValueError as error:
        raise ValueError(f"a frame of histories needs the columns user, item and time: {error}") from error
    users = np.array(list(log.events), np.int64) if log.integer_users else list(log.events)
    rows = log.events.values()
    given = [[time for _, time in row] for row in rows]
    check_unit(given)
    times = clock_seconds(given)
    return ParsedHistories("user", users, [[item for item, _ in row] for row in rows], times if any(times) else None)


def check_unknown(unknown: str) -> None:
    """Raise a ValueError unless this is something that unknown users can get."""
    if unknown not in (POPULAR, ERROR):
        raise ValueError(f"unknown={unknown!r}: choose {POPULAR} or {ERROR}")


# Item numbers


def encode_history(ids: Ids, history: Iterable[object], times: Sequence[int] = ()) -> History:
    """A list of ids as item numbers; unknown ids are left out, with their times, and listed."""
    names = list(history)
    numbers = ids.find(names)
    if None not in numbers:  # nearly always
        return History(cast(list[int], numbers), times=times)
    items = [number for number in numbers if number is not None]
    times = [time for time, number in zip(times, numbers, strict=True) if number is not None] if times else ()
    unknown = [as_id(name) for name, number in zip(names, numbers, strict=True) if number is None]
    return History(items, unknown, times=times)


def check_context(model: TreeModel, context: Context | Sequence[Context] | None, count: int) -> None:
    """Raise a ValueError unless this is a context for so many histories, or one for each, with known columns."""
    if context is None:
        return
    contexts = [context] if isinstance(context, Mapping) else context
    if not isinstance(context, Mapping) and len(contexts) != count:
        raise ValueError(
            f"{len(contexts):,} contexts for {count:,} histories: give one for each history, or one for all"
        )
    if not all(isinstance(each, Mapping) for each in contexts):
        raise ValueError('a context is a dict, such as {"country": "DE", "hour": 20}')
    fitted = model.scorer.hyperparameters
    known = fitted.get(CONTEXT, {}).get("columns", [])
    unknown = next((column for each in contexts for column in each if column not in known), None)
    if unknown is not None:
        columns = f"its columns are {', '.join(known)}" if known else "the model was fitted without `context`"
        raise ValueError(f"context: there is no column {str(unknown)[:80]!r}; {columns}")


def in_context(
    model: TreeModel, histories: list[History], context: Context | Sequence[Context] | None
) -> list[History]:
    """Histories with a context for all of them, or one for each; a ValueError for an unknown column."""
    check_context(model, context, len(histories))
    part = context_part(model.scorer)
    if context is None or part is None:  # it was left out
        return histories
    rows = part.index.find([context] if isinstance(context, Mapping) else context)
    rows = rows * len(histories) if isinstance(context, Mapping) else rows
    return [history._replace(context=row) for history, row in zip(histories, rows, strict=True)]


def model_input(model: TreeModel, histories: Sequence[History]) -> Tensor:
    """Histories as a model reads them, with their times and contexts if it reads them, on its device."""
    columns, rows = model.scorer.columns, [history.items for history in histories]
    width = history_width(max(map(len, rows), default=0), model.scorer.history)
    x = [pad_histories(rows, width)]
    if columns.clock:
        times = [history.times if len(history.times) == len(history.items) else () for history in histories]
        x += [pad_histories(times, width), torch.tensor([[history.time] for history in histories])]
    if columns.contexts:
        x.append(pad_rows([history.context for history in histories], columns.contexts))
    return torch.cat(x, dim=1).to(model.tree.device)


def logged_events(data: Prepared, user: object) -> tuple[Events, int, int] | None:
    """The events of the part of a log that has a user, and the range of the user's; None for an unknown user."""
    (row,) = data.users.find([user])
    if row is None:
        return None
    for part in data.stored:
        if row < len(part):
            start, stop = part.events.offsets[row : row + 2].tolist()
            return part.events, start, stop
        row -= len(part)
    raise ValueError(f"{data.folder} is damaged: it has more user ids than users")


def history_of_user(data: Prepared, user: object) -> History:
    """All events of a user of the log; a ValueError for an unknown user."""
    return histories_of_users(data, [user])[0]


def histories_of_users(data: Prepared, users: Sequence[object], ids: Ids | None = None) -> list[History]:
    """All events of each of some users of the log; a ValueError for an unknown user.

    `ids` are those of the model: it may have items that are not in training, but that users of the log know.
    """
    rows = data.users.find(users)
    if None in rows:
        dropped = data.description.get("report", {}).get("users_with_few_events", 0)
        min_events = data.description.get("settings", {}).get("min_events")
        reason = f": {dropped:,} users with fewer than {min_events} events were dropped from it" if dropped else ""
        raise ValueError(f"user {as_id(users[rows.index(None)])!r} is not in the log {data.folder}{reason}")
    numbers, first = np.array(rows, np.int64), 0
    items: list[list[int]] = [[] for _ in rows]
    times: list[Sequence[int]] = [()] * len(rows)
    for part in data.stored:
        chosen = np.flatnonzero((numbers >= first) & (numbers < first + len(part)))
        offsets, events, row = part.events.offsets.numpy(), part.events.items.numpy(), numbers[chosen] - first
        for index, start, stop in np.stack([chosen, offsets[row], offsets[row + 1]], axis=1).tolist():
            items[index] = events[start:stop].tolist()
            if part.events.times is not None and part.events.clock is not None:
                times[index] = (part.events.times[start:stop].numpy() // part.events.clock).tolist()
        first += len(part)
    if numbers.max(initial=-1) >= first:
        raise ValueError(f"{data.folder} is damaged: it has more user ids than users")
    columns = zip(items, times, data.dislikes(numbers.tolist(), ids), data.seen(numbers.tolist(), ids), strict=True)
    return [History(row, dislikes=dislikes, seen=seen, times=at) for row, at, dislikes, seen in columns]


def pad_histories(rows: Sequence[Sequence[int]], width: int) -> Tensor:
    """The items of histories as a model reads them: the newest, newest first, then PAD [B, width]."""
    return pad_rows([row[: -width - 1 : -1] for row in rows], width)


def pad_rows(rows: Sequence[Sequence[int]], width: int) -> Tensor:
    """Rows of different lengths as one tensor, PAD at the end [B, width]."""
    padded = np.full((len(rows), width), PAD, np.int64)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    padded[np.arange(width) < lengths[:, None]] = np.fromiter(chain.from_iterable(rows), np.int64)
    return torch.from_numpy(padded)

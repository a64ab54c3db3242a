"""Logs that are read into memory: new events by user, and users to evaluate on."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import polars as pl
import torch

from beamtree.data import BeforeAfter, Events, Ids
from beamtree.data.contexts import EventContexts
from beamtree.data.csr import offsets_of
from beamtree.data.times import common_unit
from beamtree.data.views import KnownUsers, OtherUsers
from beamtree.ingest.columns import USUAL_COLUMNS, LogColumns
from beamtree.ingest.contexts import DERIVED
from beamtree.ingest.event_weights import weighing_of
from beamtree.ingest.numbering import sort_events
from beamtree.ingest.readers import OpenedLog, are_integers, has_user_lines, open_logs, read_rows
from beamtree.ingest.sources import find_logs
from beamtree.ingest.times import detect_unix_unit


class LogEvents(NamedTuple):
    """The events of a log by the ids of users, as text."""

    events: dict[str, list[tuple[str, int | None]]]  # (item, time) of each user, oldest first
    dislikes: dict[str, list[str]]  # the items that users dislike
    integer_users: bool  # whether the users were integers in the log


def read_events(log: Any, columns: LogColumns = USUAL_COLUMNS, settings: Mapping[str, Any] | None = None) -> LogEvents:
    """The events and dislikes of a log, without rows that have no user or item.

    Args:
        log: in any form that `prepare` takes.
        columns: found by their usual names unless given; without times, rows are in order.
        settings: of the first log: where that has weights, and this one has their column, dislikes are told from
            events, and rows without a weight are left out; otherwise every row is an event.
    """
    rows, opened = _sorted_rows(log, columns, weighing_of(settings or {}))
    if "time" not in rows.columns:
        rows = rows.with_columns(time=None)
    disliked = rows.clear()
    if "weight" in rows.columns:
        disliked, rows = rows.filter(pl.col("weight") == 0), rows.filter(pl.col("weight") != 0)
    users = rows.group_by("user", maintain_order=True).agg("item", "time").rows()
    events = {name: list(zip(items, times, strict=True)) for name, items, times in users}
    dislikes = dict(disliked.group_by("user", maintain_order=True).agg("item").rows())
    return LogEvents(events, dislikes, "user" in opened.numeric and are_integers(rows["user"]))


def read_users(
    log: Any,
    ids: Ids,
    columns: LogColumns = USUAL_COLUMNS,
    *,
    exclude_seen: bool = False,
    context: Sequence[str] = (),
    items_of: Callable[[list[str]], Sequence[Sequence[int]]] | None = None,
) -> BeforeAfter:
    """The users of another log, to evaluate a model on: the first half of their events is history.

    Items that the model does not have are left out of the histories. As targets, they count as never retrieved. Users
    with a single event are left out.

    In files with one user a line, which have no order, the history of users whom the model knows is what it knows of
    them, and all other items of theirs are to be found.

    Args:
        log: in any form that `prepare` takes.
        ids: of the model's items.
        columns: found by their usual names unless given; without times, rows are in order.
        exclude_seen: whether unknown items of a user's history are no targets.
        context: the columns of the model's contexts; those that the log does not have are not known.
        items_of: gives the items that the model knows of some users, none for an unknown one.
    """
    logs = find_logs(log)
    rows, _ = _sorted_rows(logs, columns, context=context)
    if items_of is not None and all(map(has_user_lines, logs)):
        known = _known_users(rows, ids, items_of)
        if known is not None:
            return known
    rows = rows.select(name for name in ("user", "item", "time", "context") if name in rows.columns)
    position, count = pl.int_range(pl.len()).over("user"), pl.len().over("user")
    rows = rows.with_columns(after=position >= count // 2, count=count).filter(pl.col("count") > 1)
    if not len(rows):
        raise ValueError("the log has no user with two events: there is nothing to evaluate")
    numbers = pl.DataFrame({"item": ids.names}).with_row_index("number")
    rows = rows.join(numbers, on="item", how="left", maintain_order="left")
    unknown = pl.col("number").is_null()
    if exclude_seen:
        seen = (~pl.col("after")).any().over("user", "item")
        rows = rows.filter(~(unknown & pl.col("after") & seen))
    rows = rows.filter(pl.col("after") | ~unknown)
    new_number = len(ids) + pl.col("item").rank("dense") - 1  # its own number for each unknown item
    rows = rows.with_columns(number=pl.when(unknown).then(new_number).otherwise(pl.col("number")).cast(pl.Int64))
    counts = rows.group_by("user", maintain_order=True).agg(pl.len(), before=(~pl.col("after")).sum())
    lengths, cuts = (torch.from_numpy(counts[name].cast(pl.Int64).to_numpy().copy()) for name in ("len", "before"))
    offsets = offsets_of(lengths)
    times = torch.from_numpy(rows["time"].to_numpy().copy()) if "time" in rows.columns else None
    items = torch.from_numpy(rows["number"].to_numpy().copy())
    contexts = None
    if "context" in rows.columns:
        number = rows["context"].rank("dense").cast(pl.Int32) - 1
        distinct = rows["context"].unique().sort()
        contexts = EventContexts(torch.from_numpy(number.to_numpy().copy()), list(map(json.loads, distinct)))
    clock = None if times is None else common_unit(times)
    events = Events(offsets, items, "another log", ids, times=times, contexts=contexts, clock=clock)
    users = Ids(counts["user"].to_list())
    return OtherUsers(events, cuts, user_ids=users, user_rows=range(len(users)), num_items=len(ids))


def _known_users(
    rows: pl.DataFrame, ids: Ids, items_of: Callable[[list[str]], Sequence[Sequence[int]]]
) -> KnownUsers | None:
    """Those users of some rows whom a model knows, with their other items to be found; None where it knows nobody."""
    new = dict(rows.group_by("user", maintain_order=True).agg("item").rows())
    histories = {user: items for user, items in zip(new, items_of(list(new)), strict=True) if items}
    if not histories:
        return None
    if len(histories) < len(new):
        count = f"{len(new) - len(histories):,} of {len(new):,} users are unknown"
        warnings.warn(f"{count}: they are left out", UserWarning, stacklevel=4)
    numbers: dict[str, int] = {name: number for number, name in enumerate(ids.names)}
    names, items, cuts, lengths, repeated = list[str](), list[int](), list[int](), list[int](), 0
    for user, history in histories.items():
        chosen = [numbers.setdefault(item, len(numbers)) for item in new[user]]  # unknown ones have their own numbers
        known = {*history}
        targets = [item for item in dict.fromkeys(chosen) if item not in known]
        repeated += len(chosen) - len(targets)
        if targets:
            names.append(user)
            items += [*history, *targets]
            cuts.append(len(history))
            lengths.append(len(history) + len(targets))
    if repeated:
        message = f"{repeated:,} pairs are in the training log, or twice in this one: they are left out"
        warnings.warn(message, UserWarning, stacklevel=4)
    if not names:
        raise ValueError("the model knows all items of these users: there is nothing to evaluate")
    offsets = offsets_of(torch.tensor(lengths))
    events = Events(offsets, torch.tensor(items), "other items of known users", ids)
    user_rows = range(len(names))
    return KnownUsers(events, torch.tensor(cuts), user_ids=Ids(names), user_rows=user_rows, num_items=len(ids))


def _sorted_rows(
    log: Any, columns: LogColumns, weighing: Mapping[str, Any] | None = None, context: Sequence[str] = ()
) -> tuple[pl.DataFrame, OpenedLog]:
    """The rows of a log by user and time, cleaned as in `prepare`, with the weights and contexts that it has."""
    logs = find_logs(log)
    opened = open_logs(logs, columns)
    if weighing and weighing["weight"] in opened.ignored:
        opened = open_logs(logs, replace(columns, **weighing))
    has, scale = {*opened.ignored, *opened.columns}, opened.scale
    if scale is not None and not has.issuperset(context):
        scale = scale if scale.dates else detect_unix_unit(opened.events, scale)
        has |= DERIVED.keys() if scale.dates or scale.unit is not None else set()
    if known := [name for name in context if name in has]:
        opened = open_logs(logs, replace(columns, context=known))
    usable = (pl.col("user") != "") & (pl.col("item") != "")
    rows = read_rows(opened)
    if opened.columns.time is not None:
        usable &= pl.col("time").is_not_null()
        if untimed := rows["time"].null_count():
            counts = f"{untimed:,} of {len(rows):,} rows have no readable time"
            warnings.warn(f"{counts}: they are left out", UserWarning, stacklevel=4)
    return sort_events(rows.filter(usable)), opened

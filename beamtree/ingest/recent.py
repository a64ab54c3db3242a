"""A log beside the one that was learned from: new events by user, or other users to measure."""

from typing import Any

import polars as pl
import torch

from beamtree.data import BeforeAfter, Events, Ids
from beamtree.data.views import OtherUsers
from beamtree.errors import short_message
from beamtree.ingest.readers import find_logs, open_logs


def read_events(
    log: Any, user: str | None, item: str | None, time: str | None, time_format: str | None = None
) -> dict[str, list[tuple[str, int | None]]]:
    """What each user chose and when, oldest first, users in the order of their ids.

    Rows without a user or item are left out.

    Args:
        log: in any shape that `prepare` takes.
        user: the column of users, where it has an unusual name.
        item: the column of items, likewise.
        time: the column of times, likewise; without one, rows are in order.
        time_format: how dates are written, as in strptime; found out unless given.
    """
    rows = _in_order(log, user, item, time, time_format)
    times = rows["time"].to_list() if "time" in rows.columns else [None] * len(rows)
    found: dict[str, list[tuple[str, int | None]]] = {}
    for name, chosen, at in zip(rows["user"].to_list(), rows["item"].to_list(), times, strict=True):
        found.setdefault(name, []).append((chosen, at))
    return found


def read_users(
    log: Any,
    ids: Ids,
    *,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    time_format: str | None = None,
    exclude_seen: bool = False,
) -> BeforeAfter:
    """The users of a log of their own, to measure a model by: the first half of their events is history.

    Items that the model does not know are left out of the histories. Among those to be predicted they count as never
    found. Users of a single event are left out.

    Args:
        log: in any shape that `prepare` takes.
        ids: of the model's items.
        user: the column of users; found by usual names unless given, like the next two.
        item: the column of items.
        time: the column of times; without one, rows are in order.
        time_format: how dates are written, as in strptime; found out unless given.
        exclude_seen: whether unknown items that a user has seen before are not to be predicted.
    """
    rows = _in_order(log, user, item, time, time_format).select("user", "item")
    place, count = pl.int_range(pl.len()).over("user"), pl.len().over("user")
    rows = rows.with_columns(after=place >= count // 2, count=count).filter(pl.col("count") > 1)
    if not len(rows):
        raise ValueError("the log has no user with two events: nothing to measure")
    known = pl.DataFrame({"item": ids.names}).with_row_index("number")
    rows = rows.join(known, on="item", how="left", maintain_order="left")
    unknown = pl.col("number").is_null()
    if exclude_seen:
        seen = (~pl.col("after")).any().over("user", "item")
        rows = rows.filter(~(unknown & pl.col("after") & seen))
    rows = rows.filter(pl.col("after") | ~unknown)
    later = len(ids) + pl.col("item").rank("dense") - 1  # a number of its own for each unknown item
    rows = rows.with_columns(number=pl.when(unknown).then(later).otherwise(pl.col("number")).cast(pl.Int64))
    counts = rows.group_by("user", maintain_order=True).agg(pl.len(), before=(~pl.col("after")).sum())
    lengths, cuts = (torch.from_numpy(counts[name].cast(pl.Int64).to_numpy().copy()) for name in ("len", "before"))
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    events = Events(offsets, torch.from_numpy(rows["number"].to_numpy().copy()), "another log", ids)
    return OtherUsers(events, cuts, num_items=len(ids))


def _in_order(log: Any, user: str | None, item: str | None, time: str | None, time_format: str | None) -> pl.DataFrame:
    """The rows of a log by user and time, cleaned as `prepare` does it."""
    opened = open_logs(find_logs(log), None, user, item, time, time_format)
    timed = "time" in opened.events.collect_schema()
    usable = (pl.col("user") != "") & (pl.col("item") != "")
    try:
        rows = opened.events.with_columns(pl.col("user", "item").str.strip_chars()).collect()
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"the log cannot be read: {short_message(error)}") from error
    if not timed:
        return rows.filter(usable).sort("user", maintain_order=True)
    rows = rows.filter(usable & pl.col("time").is_not_null()).unique(keep="first", maintain_order=True)
    return rows.sort("user", "time", maintain_order=True)

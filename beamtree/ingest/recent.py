"""A log of new events, by user: small beside the one that was learned from."""

from typing import Any

import polars as pl

from beamtree.files.small import one_line
from beamtree.ingest.readers import find_logs, open_logs


def read_events(
    log: Any, user: str | None, item: str | None, time: str | None
) -> dict[str, list[tuple[str, int | None]]]:
    """What each user chose and when, oldest first, users in the order of their ids.

    Rows without a user or item are left out.

    Args:
        log: in any shape that `prepare` takes.
        user: the column of users, where it has an unusual name.
        item: the column of items, likewise.
        time: the column of times, likewise; without one, rows are in order.
    """
    opened = open_logs(find_logs(log), None, user, item, time)
    columns = opened.events.collect_schema().names()
    order = ["user", *(["time"] if "time" in columns else [])]
    try:
        rows = opened.events.with_columns(pl.col("user", "item").str.strip_chars()).collect()
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"the log cannot be read: {one_line(error)}") from error
    named = rows.filter((pl.col("user") != "") & (pl.col("item") != "")).sort(order, maintain_order=True)
    found: dict[str, list[tuple[str, int | None]]] = {}
    times = named["time"].to_list() if "time" in columns else [None] * len(named)
    for name, *event in zip(named["user"].to_list(), named["item"].to_list(), times, strict=True):
        found.setdefault(name, []).append((event[0], event[1]))
    return found

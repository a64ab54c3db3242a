"""Pairs of a user and an item beside the events: dislikes, and events of items that were dropped from training.

The users are those that are left in the log. Items without events in training are numbered after all others.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from beamtree.data import Prepared
from beamtree.data.ids import write_ids
from beamtree.data.prepared import DROPPED_ITEMS, PAIRS
from beamtree.ingest.readers import check_lines


def write_pairs(folder: Path, pairs: Mapping[str, pl.LazyFrame], users: pl.Series, items: pl.Series) -> None:
    """Write the files of pairs of a prepared folder, and the ids of the items that are only in these.

    Args:
        folder: to write to.
        pairs: the ids of users and items for each file; users who are not left are ignored.
        users: the ids of the rows of the folder; of several rows of a user, the pairs have the last.
        items: the ids of the items with events, in the order of their numbers.
    """
    rows = pl.LazyFrame({"user": users}).with_row_index("row").group_by("user").agg(pl.col("row").max())
    left = {file: each.unique().join(rows, on="user").filter(pl.col("item") != "") for file, each in pairs.items()}
    numbers = pl.LazyFrame({"item": items})
    named = pl.concat([each.select("item") for each in left.values()]).unique()
    dropped = named.join(numbers, on="item", how="anti").sort("item").collect()["item"]
    check_lines(dropped, "an item")
    if len(dropped):
        write_ids(folder / DROPPED_ITEMS, dropped)
    numbers = pl.concat([numbers, dropped.to_frame().lazy()]).with_row_index("number")
    for file, each in left.items():
        numbered = each.join(numbers, on="item").select(pl.col("row", "number").cast(pl.Int64))
        found = numbered.sort("row", "number").collect().to_numpy()
        if len(found):
            np.save(folder / file, found)


def read_pairs(data: Prepared) -> dict[str, pl.LazyFrame]:
    """The pairs of prepared data, by file, with the ids of users and items."""
    users, items = pl.Series(data.users.names), pl.Series([*data.items.names, *data.dropped_items.names])
    numbers = {file: data.pairs[file].numpy() if file in data.pairs else np.empty((0, 2), np.int64) for file in PAIRS}
    return {
        file: pl.LazyFrame({"user": users.gather(pairs[:, 0]), "item": items.gather(pairs[:, 1])})
        for file, pairs in numbers.items()
    }

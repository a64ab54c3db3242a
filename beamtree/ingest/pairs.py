"""Pairs of a user and an item beside the events: dislikes, and events of items that were dropped from training.

Users without events, and items without events in training, are numbered after all others.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from beamtree.data import Prepared
from beamtree.data.ids import write_ids
from beamtree.data.prepared import DROPPED_ITEMS, DROPPED_USERS, PAIRS
from beamtree.ingest.readers import check_lines


def write_pairs(folder: Path, pairs: Mapping[str, pl.LazyFrame], users: pl.Series, items: pl.Series) -> None:
    """Write the files of pairs of a prepared folder, and the ids of the items that are only in these.

    Args:
        folder: to write to.
        pairs: the ids of users and items for each file.
        users: the ids of the rows of the folder; of several rows of a user, the pairs have the last.
        items: the ids of the items with events, in the order of their numbers.
    """
    usable = pl.col("user").ne("") & pl.col("item").ne("")
    named = {file: each.unique().filter(usable) for file, each in pairs.items()}
    dropped_users = _write_others(folder / DROPPED_USERS, "a user", users.alias("user"), named)
    dropped_items = _write_others(folder / DROPPED_ITEMS, "an item", items.alias("item"), named)
    rows = pl.concat([pl.LazyFrame({"user": users}), dropped_users]).with_row_index("row")
    rows = rows.group_by("user").agg(pl.col("row").max())
    numbers = pl.concat([pl.LazyFrame({"item": items}), dropped_items]).with_row_index("number")
    for file, each in named.items():
        numbered = each.join(rows, on="user").join(numbers, on="item").select(pl.col("row", "number").cast(pl.Int64))
        found = numbered.sort("row", "number").collect().to_numpy()
        if len(found):
            np.save(folder / file, found)


def _write_others(file: Path, what: str, known: pl.Series, pairs: Mapping[str, pl.LazyFrame]) -> pl.LazyFrame:
    """Write and return the ids in a column of some pairs that are not known, sorted; no file where all are."""
    named = pl.concat([each.select(known.name) for each in pairs.values()]).unique()
    others = named.join(known.to_frame().lazy(), on=known.name, how="anti").sort(known.name).collect()[known.name]
    check_lines(others, what)
    if len(others):
        write_ids(file, others)
    return others.to_frame().lazy()


def read_pairs(data: Prepared) -> dict[str, pl.LazyFrame]:
    """The pairs of prepared data, by file, with the ids of users and items."""
    users = pl.Series([*data.users.names, *data.dropped_users.names])
    items = pl.Series([*data.items.names, *data.dropped_items.names])
    numbers = {file: data.pairs[file].numpy() if file in data.pairs else np.empty((0, 2), np.int64) for file in PAIRS}
    return {
        file: pl.LazyFrame({"user": users.gather(pairs[:, 0]), "item": items.gather(pairs[:, 1])})
        for file, pairs in numbers.items()
    }

"""What users know about their items: categories, vectors, or a whole tree, from a file or from memory."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from beamtree.data import Ids
from beamtree.data.catalogue import SEPARATORS
from beamtree.data.ids import as_id
from beamtree.errors import short_message
from beamtree.files.atomic import write_atomically
from beamtree.ingest.columns import ITEM, usual_column
from beamtree.ingest.frames import columns_of, is_frame, some_columns
from beamtree.ingest.readers import scan, text_id
from beamtree.tree import PAD, Tree

Table = Path | pl.DataFrame
log = logging.getLogger("beamtree")

CATEGORY = ("category", "categories", "categorypath", "genre", "genres", "class", "folder", "path", "department")
VECTOR = ("vector", "embedding", "vec", "values")
PATH = ("path", "leafpath")
SPARSE = 1024  # leaf slots to an item at most, in a tree that is read
STEP = "\x01"  # the same inside: before all other characters
DEPTH = 16  # lengths of a path that are told apart at most, the whole among them


def in_memory(name: str, source: Any) -> pl.DataFrame:
    """A table that a user has in memory: a frame, an Arrow table, or a dict from item to vector."""
    if is_frame(source):
        return some_columns(source, columns_of(source)).collect()
    if not isinstance(source, Mapping) or name != "vectors":
        more = ", or a dict from item to vector" if name == "vectors" else ""
        raise ValueError(f"{name} is a {type(source).__name__}: give a file, a frame of Polars or pandas{more}")
    vectors = []
    for item, vector in source.items():
        try:
            vectors.append(np.asarray(vector.cpu() if isinstance(vector, Tensor) else vector, np.float32).tolist())
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"vectors: the vector of item {as_id(item)!r} holds something that is no number"
            ) from error
        if not isinstance(vectors[-1], list) or any(isinstance(each, list) for each in vectors[-1]):
            raise ValueError(f"vectors: the vector of item {as_id(item)!r} is no list of numbers")
    items = [as_id(item) for item in source]
    return pl.DataFrame({"item": items, "vector": vectors}, schema={"item": pl.String, "vector": pl.List(pl.Float32)})


def read_categories(path: Table, ids: Ids) -> Tensor:
    """For each item, the rank of its category's path and of the first steps of it [M, depth], the whole path last.

    Paths are ordered step by step: `Books/Fiction` stands under `Books`. Items without a category are one group.
    """
    frame, item = open_table(path)
    column = _column(path, frame, CATEGORY, "category")
    category = pl.col(column).cast(pl.String).str.strip_chars().str.replace_all(SEPARATORS, STEP)
    found = by_item(path, frame.select(item=item, value=category), ids)
    found = found.with_columns(pl.col("value").fill_null(""))  # a path of no step, before all others
    missing = found.filter(pl.col("value") == "")
    if len(missing) == len(found):
        raise ValueError(f"{_name(path)} has no category for any item of the log: are the ids of its items the same?")
    if len(missing):
        some = f"{len(missing):,} of {len(found):,} items have no category, {missing['item'][0]!r} first"
        log.warning("%s: %s: they are one group", _name(path), some)
    steps = found["value"].str.split(STEP)
    depth = min(DEPTH, int(steps.list.len().to_numpy().max()))
    paths = [*(steps.list.head(length).list.join(STEP) for length in range(1, depth)), found["value"]]
    ranks = [torch.from_numpy((each.rank("dense").cast(pl.Int64) - 1).to_numpy().copy()) for each in paths]
    return torch.stack(ranks, dim=1)


def read_vectors(path: Table, ids: Ids) -> Tensor:
    """A vector for each item [M, dim], float32.

    An .npy file holds them in the order of the prepared folder's items.txt; a table has an item column and either one
    of lists, or columns of numbers. An item that a table does not have gets zeros, which are as near to all directions.
    """
    if isinstance(path, Path) and path.suffix == ".npy":
        if not path.exists():
            raise ValueError(f"{path} is not there")
        vectors = _load_array(path)
        if vectors.ndim != 2 or len(vectors) != len(ids) or not vectors.shape[1]:
            raise ValueError(f"{path} is {list(vectors.shape)}: give [{len(ids)}, dim], a row per line of items.txt")
    else:
        vectors = _table_of_vectors(path, ids)
    if vectors.dtype.kind not in "fiu":
        raise ValueError(f"{_name(path)} holds {vectors.dtype}: vectors are numbers")
    found = torch.from_numpy(np.array(vectors, np.float32))
    bad = ~torch.isfinite(found).all(1)
    if bool(bad.any()):
        raise ValueError(f"{_name(path)}: the vector of item {ids[int(bad.nonzero()[0])]!r} holds NaN or infinity")
    return found


def _load_array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{path} holds several arrays: save one, as .npy")
    return array


def _table_of_vectors(path: Table, ids: Ids) -> np.ndarray:
    frame, item = open_table(path)
    schema = frame.collect_schema()
    lists = usual_column(schema.names(), VECTOR)
    if lists is not None and schema[lists].is_nested():
        value = pl.col(lists).cast(pl.List(pl.Float32), strict=False)
    else:
        item_column = usual_column(schema.names(), ITEM)
        numbers = [name for name in schema.names() if name != item_column]
        if not numbers:
            raise ValueError(f"{_name(path)} has no column of vectors: call it vector, or give columns of numbers")
        value = pl.concat_list([pl.col(name).cast(pl.Float32, strict=False) for name in numbers])
    found = by_item(path, frame.select(item=item, value=value), ids)
    known, missing = found.filter(pl.col("value").is_not_null()), found.filter(pl.col("value").is_null())
    if 2 * len(missing) > len(found):
        some = f"{len(missing):,} of {len(found):,} items have no vector, {missing['item'][0]!r} first"
        raise ValueError(f"{_name(path)}: {some}: give a vector to at least half of them")
    length = known["value"].list.len()
    other = known.filter(length != length[0])
    if len(other):
        counts = f"{len(other['value'][0])} numbers, others {length[0]}"
        raise ValueError(f"{_name(path)}: the vector of item {other['item'][0]!r} has {counts}")
    _no_gaps(path, known, "vector", "number")
    vectors = np.zeros((len(found), length[0]), np.float32)
    vectors[found["value"].is_not_null().to_numpy()] = known["value"].explode().to_numpy().reshape(len(known), -1)
    if len(missing):
        some = f"{len(missing):,} of {len(found):,} items have no vector, {missing['item'][0]!r} first"
        log.warning("%s: %s: they are taken to be like no other", _name(path), some)
    return vectors


def write_tree(path: Path, tree: Tree, ids: Ids) -> None:
    """A tree as Parquet, whole or not at all: each item, and which child leads to it on every level from the root."""
    leaves = tree.leaf_of_item(torch.arange(tree.num_items, device=tree.device)).cpu() - tree.level(tree.height).start
    steps = [leaves // tree.arity ** (tree.height - level) % tree.arity for level in range(1, tree.height + 1)]
    width = pl.Int16 if tree.arity < 1 << 15 else pl.Int64
    paths = pl.Series("path", torch.stack(steps, dim=1).numpy()).cast(pl.List(width))
    write_atomically(path, pl.DataFrame({"item": ids.names, "path": paths}).write_parquet)


def read_tree(path: Path, ids: Ids, arity: int | None = None) -> Tree:
    """The tree of a table with an item and a path for every one of these items, all paths equally long.

    The arity is the least that the paths need, unless a higher one is given.
    """
    frame, item = open_table(path)
    column = _column(path, frame, PATH, "path")
    dtype = frame.collect_schema()[column]
    if not isinstance(dtype, pl.List | pl.Array):
        raise ValueError(f"{path}: column {column!r} holds {dtype}: a path is a list of whole numbers")
    numbers = pl.col(column).cast(pl.List(pl.Float64), strict=False)
    whole = numbers.list.eval(pl.when(pl.element() == pl.element().floor()).then(pl.element()))
    table = frame.select(item=item, value=whole.cast(pl.List(pl.Int64)))
    unknown = _collect(path, table.filter(~pl.col("item").is_in(pl.Series(ids.names).implode())).head(1))
    if len(unknown):
        raise ValueError(f"{path}: item {unknown['item'][0]!r} is not among the items of the data")
    found = by_item(path, table, ids)
    length = found["value"].list.len()
    missing = found.filter(length.is_null() | (length == 0))
    if len(missing):
        raise ValueError(f"{path}: {len(missing):,} items have no path, {missing['item'][0]!r} first")
    other = found.filter(length != length[0])
    if len(other):
        raise ValueError(
            f"{path}: item {other['item'][0]!r} lies {len(other['value'][0])} levels down, "
            f"{found['item'][0]!r} {length[0]}: give all leaves the same depth"
        )
    _no_gaps(path, found, "path", "whole number")
    steps = torch.from_numpy(found["value"].explode().to_numpy().reshape(len(found), -1).copy())
    return _from_paths(path, steps, ids, arity)


def _from_paths(path: Path, steps: Tensor, ids: Ids, arity: int | None) -> Tree:
    """The tree with item i at the end of path steps[i] [M, H]."""
    low, least = int(steps.min()), max(2, int(steps.max()) + 1)
    if low < 0:
        row = int((steps < 0).any(1).nonzero()[0])
        raise ValueError(f"{path}: the path of item {ids[row]!r} holds {low}: children are numbered from 0")
    arity = arity or least
    if arity < least:
        row = int((steps >= arity).any(1).nonzero()[0])
        raise ValueError(f"{path}: the path of item {ids[row]!r} names child {least - 1}, and there are {arity}")
    height = steps.shape[1]
    if arity**height > max(1 << 20, SPARSE * len(steps)):
        leaves = f"{arity**height:,} leaves for {len(steps):,} items"
        raise ValueError(f"{path}: {height} levels of {arity} children are {leaves}: too many")
    slot = (steps * arity ** torch.arange(height - 1, -1, -1)).sum(1)
    first = torch.full((arity**height,), PAD)
    first[slot.flip(0)] = torch.arange(len(slot)).flip(0)  # where two are, the earlier
    taken = first[slot] != torch.arange(len(slot))
    if bool(taken.any()):
        row = int(taken.nonzero()[0])
        raise ValueError(f"{path}: item {ids[row]!r} lies on the leaf of item {ids[int(first[slot[row]])]!r}")
    return Tree(first, arity)


def open_table(path: Table) -> tuple[pl.LazyFrame, pl.Expr]:
    """A table, unread, and its item column as text."""
    if isinstance(path, Path) and not path.exists():
        raise ValueError(f"{path} is not there")
    frame = scan(path, None, ["item"]) if isinstance(path, Path) else path.lazy()
    column = _column(path, frame, ITEM, "item")
    return frame, text_id(column, frame.collect_schema()[column]).str.strip_chars()


def _name(path: Table) -> str:
    return str(path) if isinstance(path, Path) else "the frame"


def _column(path: Table, frame: pl.LazyFrame, names: tuple[str, ...], what: str) -> str:
    columns = frame.collect_schema().names()
    column = usual_column(columns, names)
    if column is None:
        raise ValueError(f"{_name(path)} has no column {what!r}: it has {', '.join(columns)}")
    return column


def by_item(path: Table, table: pl.LazyFrame, ids: Ids) -> pl.DataFrame:
    """One row for each item in order, with null where the table does not have it."""
    rows = _collect(path, table)
    twice = rows.filter(pl.col("item").is_duplicated() & pl.col("item").is_in(pl.Series(ids.names).implode()))
    if len(twice):
        raise ValueError(f"{_name(path)} names item {twice['item'][0]!r} more than once: name every item once")
    return pl.DataFrame({"item": ids.names}).join(rows, on="item", how="left", maintain_order="left")


def _no_gaps(path: Table, found: pl.DataFrame, what: str, holds: str) -> None:
    gaps = found.filter(found["value"].list.eval(pl.element().is_null()).list.any())
    if len(gaps):
        raise ValueError(f"{_name(path)}: the {what} of item {gaps['item'][0]!r} holds something that is no {holds}")


def _collect(path: Table, table: pl.LazyFrame) -> pl.DataFrame:
    try:
        return table.collect()
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{_name(path)} cannot be read: {short_message(error)}") from error

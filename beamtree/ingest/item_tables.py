"""Tables of items: titles and categories, vectors, or a tree, from a file or from memory."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from beamtree.data import Ids
from beamtree.data.attributes import Attribute, ItemTable
from beamtree.data.catalogue import SEPARATORS, Catalogue, NewColumns
from beamtree.data.ids import as_id
from beamtree.data.values import display_texts, from_texts, inferred, kept, typed_column
from beamtree.errors import short_message
from beamtree.files.atomic import write_atomically
from beamtree.ingest.columns import ITEM, usual_column
from beamtree.ingest.readers import scan_file, text_id
from beamtree.ingest.sources import PARQUET, column_names, is_frame, select_columns
from beamtree.tree import PAD, Tree

Table = Path | pl.DataFrame
log = logging.getLogger("beamtree")

TITLE = ("title", "name", "itemname", "itemtitle", "productname", "producttitle", "label", "headline", "product")
CATEGORY = ("category", "categories", "categorypath", "genre", "genres", "class", "folder", "path", "department")
VECTOR = ("vector", "embedding", "vec", "values")
PATH = ("path", "leafpath")
MAX_SLOTS = 1024  # leaf slots per item of a tree that is read, at most
STEP = "\x01"  # separates the steps of a path: sorts before all other characters
DEPTH = 16  # prefixes of a category path that are ranked, at most, including the full path


def as_table(name: str, source: Any) -> pl.DataFrame:
    """A table in memory: a frame, an Arrow table, or a dict from item to vector."""
    if is_frame(source):
        return select_columns(source, column_names(source)).collect()
    if not isinstance(source, Mapping) or name != "vectors":
        more = ", or a dict from item to vector" if name == "vectors" else ""
        raise ValueError(f"{name} is a {type(source).__name__}: give a file, a frame of Polars or pandas{more}")
    vectors = []
    for item, vector in source.items():
        try:
            vectors.append(np.asarray(vector.cpu() if isinstance(vector, Tensor) else vector, np.float32).tolist())
        except (TypeError, ValueError) as error:
            raise ValueError(f"vectors: the vector of item {as_id(item)!r} has a value that is no number") from error
        if not isinstance(vectors[-1], list) or any(isinstance(value, list) for value in vectors[-1]):
            raise ValueError(f"vectors: the vector of item {as_id(item)!r} is not a list of numbers")
    items = [as_id(item) for item in source]
    return pl.DataFrame({"item": items, "vector": vectors}, schema={"item": pl.String, "vector": pl.List(pl.Float32)})


# Titles, categories and other columns


class ListedItems(NamedTuple):
    """A table of items that was read."""

    ids: pl.Series  # as text
    columns: pl.DataFrame  # all of them
    item: str  # the column of ids
    is_text: bool  # whether it comes from a file of text, which has no types


def read_catalogue(table: Table, ids: Ids) -> Catalogue:
    """The titles, categories and other columns of a table with an item column and at least one more.

    They are None for items without a row, and titles and categories for empty texts. Rows of other items are kept for
    when these are added.
    """
    ids_of_rows, frame, item, is_text = read_listed(table)
    names = [name for name in frame.columns if name != item]
    if not names:
        raise ValueError(f"{_label(table)} says nothing about its items: it has no other column than {item!r}")
    roles = _roles(names)
    if is_text:
        frame = frame.with_columns(inferred(frame[name]) for name in names if name not in roles.values())
    row = pl.int_range(len(frame), eager=True, dtype=pl.Int64)
    listed = pl.DataFrame({"item": ids_of_rows, "row": row}).filter(
        pl.col("item").is_not_null() & (pl.col("item") != "")
    )
    rows = pl.DataFrame({"item": ids.names}).join(listed, on="item", how="left", maintain_order="left")
    _check_unique(table, rows["item"])
    columns = {name: Attribute(frame[name].gather(rows["row"])) for name in frame.columns}
    missing = rows["row"].is_null().arg_true()
    without_row = pl.Series(ids.names, dtype=pl.String).gather(missing)
    columns[item] = columns[item].changed(missing.to_numpy(), kept(without_row, columns[item].dtype))
    others = listed.join(rows, on="item", how="anti", maintain_order="left").unique(
        "item", keep="first", maintain_order=True
    )
    other_rows = frame[others["row"]] if len(others) else None
    titles, categories = (
        [] if name is None else display_texts(columns[name].first(len(ids))) for name in roles.values()
    )
    return Catalogue(ids, titles, categories, ItemTable(columns, item, roles, other_rows, others["item"].to_list()))


class TableChanges(NamedTuple):
    """What a table says about items, for a catalogue."""

    ids: list[str]
    values: dict[str, Any]  # by column of the catalogue
    new: NewColumns | None  # columns that the catalogue does not have


def read_changes(listed: ListedItems, catalogue: Catalogue, leave_out: str | None = None) -> TableChanges:
    """What a table says, in the types of a catalogue; a ValueError for an item that is named twice, or not at all.

    Args:
        listed: the table.
        catalogue: that it changes.
        leave_out: a column that is not an attribute.
    """
    check_items(listed)
    items, table, values = listed.ids.to_list(), catalogue.table, dict[str, Any]()
    new_roles = _roles([name for name in listed.columns.columns if name != listed.item]).values()
    for name in listed.columns.columns:
        if name in (listed.item, leave_out):
            continue
        column = None if table is None else table.column_of(name)
        dtype, given = None if table is None or column is None else table.columns[column].dtype, listed.columns[name]
        if (column or name) in values or (table is not None and name == table.item):
            raise ValueError(f"the table has two columns for {column or name!r}: leave one out")
        is_path = column is not None and table is not None and table.role_of(column) is not None
        if is_path and dtype is not None and isinstance(dtype, pl.List) and given.dtype == pl.String:
            given = from_texts(given.to_list(), dtype)
        values[column or name] = typed_column(
            name, dtype, given, items, is_text=listed.is_text and (column is not None or name not in new_roles)
        )
    known = () if table is None else table.columns
    types = {name: column.dtype for name, column in values.items() if name not in known}
    names = [name for name in (*known, *types) if table is None or name != table.item]
    return TableChanges(items, values, NewColumns(types, _roles(names)) if types else None)


def read_listed(table: Table) -> ListedItems:
    """Read a table of items."""
    frame, item = _open_table(table)
    column, label = _find_column(table, frame, ITEM, "item"), "\0ids"
    rows = _collect(table, frame.with_columns(item.alias(label)))
    is_text = isinstance(table, Path) and not table.name.lower().endswith(PARQUET)
    return ListedItems(rows[label], rows.drop(label), column, is_text)


def check_items(listed: ListedItems) -> None:
    """Raise a ValueError where a table has no item in a row, or the same in two."""
    unnamed = listed.ids.is_null() | (listed.ids == "")
    if unnamed.any():
        raise ValueError(f"{int(unnamed.sum()):,} rows of the table have no item: remove them")
    _check_unique(None, listed.ids)


def vector_column(listed: ListedItems) -> str | None:
    """The column of vectors in a table of items."""
    name = usual_column(listed.columns.columns, VECTOR)
    return name if name is not None and listed.columns[name].dtype.is_nested() else None


def _roles(names: Sequence[str]) -> dict[str, str | None]:
    """The columns of titles and categories among some."""
    return {"title": usual_column(names, TITLE), "category": usual_column(names, CATEGORY)}


def _check_unique(table: Table | None, ids: pl.Series) -> None:
    twice = ids.filter(ids.is_duplicated())
    if len(twice):
        label = "the table" if table is None else _label(table)
        raise ValueError(f"{label} has item {twice[0]!r} more than once: keep one row of each item")


def read_categories(table: Table, ids: Ids) -> Tensor:
    """For each item, the ranks of the prefixes of its category path [M, depth], the full path last.

    Paths are ordered step by step: `Books/Fiction` is below `Books`. Items without a category are one group.
    """
    frame, item = _open_table(table)
    column = _find_column(table, frame, CATEGORY, "category")
    category = pl.col(column).cast(pl.String).str.strip_chars().str.replace_all(SEPARATORS, STEP)
    rows = _by_item(table, frame.select(item=item, value=category), ids)
    rows = rows.with_columns(pl.col("value").fill_null(""))  # a path without steps, before all others
    missing = rows.filter(pl.col("value") == "")
    if len(missing) == len(rows):
        raise ValueError(f"{_label(table)} has no category for any item of the log: are the ids of its items the same?")
    if len(missing):
        counts = f"{len(missing):,} of {len(rows):,} items have no category, {missing['item'][0]!r} first"
        log.warning("%s: %s: they form one group", _label(table), counts)
    steps = rows["value"].str.split(STEP)
    depth = min(DEPTH, int(steps.list.len().to_numpy().max()))
    prefixes = [*(steps.list.head(length).list.join(STEP) for length in range(1, depth)), rows["value"]]
    ranks = [torch.from_numpy((prefix.rank("dense").cast(pl.Int64) - 1).to_numpy().copy()) for prefix in prefixes]
    return torch.stack(ranks, dim=1)


# Vectors


def read_vectors(table: Table, ids: Ids) -> Tensor:
    """A vector for each item [M, dim], float32.

    An .npy file holds them in the order of items.txt of the prepared folder. A table has an item column and either a
    column of lists or columns of numbers. An item that a table does not have gets zeros.
    """
    if isinstance(table, Path) and table.suffix == ".npy":
        vectors = _load_array(table)
        if vectors.ndim != 2 or len(vectors) != len(ids) or not vectors.shape[1]:
            raise ValueError(f"{table} is {list(vectors.shape)}: give [{len(ids)}, dim], a row per line of items.txt")
    else:
        vectors = _read_vector_table(table, ids)
    if vectors.dtype.kind not in "fiu":
        raise ValueError(f"{_label(table)} holds {vectors.dtype}: vectors are numbers")
    result = torch.from_numpy(np.array(vectors, np.float32))
    bad = ~torch.isfinite(result).all(1)
    if bool(bad.any()):
        raise ValueError(f"{_label(table)}: the vector of item {ids[int(bad.nonzero()[0])]!r} holds NaN or infinity")
    return result


def _load_array(path: Path) -> np.ndarray:
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{path} holds several arrays: save one, as .npy")
    return array


def _read_vector_table(table: Table, ids: Ids) -> np.ndarray:
    frame, item = _open_table(table)
    schema = frame.collect_schema()
    lists = usual_column(schema.names(), VECTOR)
    if lists is not None and schema[lists].is_nested():
        value = pl.col(lists).cast(pl.List(pl.Float32), strict=False)
    else:
        item_column = usual_column(schema.names(), ITEM)
        numbers = [name for name in schema.names() if name != item_column]
        if not numbers:
            raise ValueError(f"{_label(table)} has no column of vectors: name it vector, or give columns of numbers")
        value = pl.concat_list([pl.col(name).cast(pl.Float32, strict=False) for name in numbers])
    rows = _by_item(table, frame.select(item=item, value=value), ids)
    present, missing = rows.filter(pl.col("value").is_not_null()), rows.filter(pl.col("value").is_null())
    counts = f"{len(missing):,} of {len(rows):,} items have no vector"
    if 2 * len(missing) > len(rows):
        raise ValueError(
            f"{_label(table)}: {counts}, {missing['item'][0]!r} first: give a vector to at least half of them"
        )
    length = present["value"].list.len()
    other = present.filter(length != length[0])
    if len(other):
        lengths = f"{len(other['value'][0])} numbers, others {length[0]}"
        raise ValueError(f"{_label(table)}: the vector of item {other['item'][0]!r} has {lengths}")
    _check_no_nulls(table, present, "vector", "number")
    vectors = np.zeros((len(rows), length[0]), np.float32)
    vectors[rows["value"].is_not_null().to_numpy()] = present["value"].explode().to_numpy().reshape(len(present), -1)
    if len(missing):
        log.warning("%s: %s, %r first: they are treated as like no other", _label(table), counts, missing["item"][0])
    return vectors


# Trees


def write_tree(path: Path, tree: Tree, ids: Ids) -> None:
    """Write a tree as Parquet, atomically: each item, and the child that leads to it on every level from the root."""
    leaves = tree.leaf_of_item(torch.arange(tree.num_items, device=tree.device)).cpu() - tree.level(tree.height).start
    steps = [leaves // tree.arity ** (tree.height - level) % tree.arity for level in range(1, tree.height + 1)]
    width = pl.Int16 if tree.arity < 1 << 15 else pl.Int64
    paths = pl.Series("path", torch.stack(steps, dim=1).numpy()).cast(pl.List(width))
    table = pl.DataFrame({"item": ids.column(np.arange(len(ids))), "path": paths})
    write_atomically(path, table.write_parquet)


def read_tree(path: Path, ids: Ids, arity: int | None = None) -> Tree:
    """The tree of a table with an item and a path for every item of `ids`, all paths equally long.

    The arity is the smallest that the paths need, unless a higher one is given.
    """
    frame, item = _open_table(path)
    column = _find_column(path, frame, PATH, "path")
    dtype = frame.collect_schema()[column]
    if not isinstance(dtype, pl.List | pl.Array):
        raise ValueError(f"{path}: column {column!r} holds {dtype}: a path is a list of integers")
    numbers = pl.col(column).cast(pl.List(pl.Float64), strict=False)
    integers = numbers.list.eval(pl.when(pl.element() == pl.element().floor()).then(pl.element()))
    table = frame.select(item=item, value=integers.cast(pl.List(pl.Int64)))
    unknown = _collect(path, table.filter(~pl.col("item").is_in(pl.Series(ids.names).implode())).head(1))
    if len(unknown):
        raise ValueError(f"{path}: item {unknown['item'][0]!r} is not among the items of the data")
    rows = _by_item(path, table, ids)
    length = rows["value"].list.len()
    missing = rows.filter(length.is_null() | (length == 0))
    if len(missing):
        raise ValueError(f"{path}: {len(missing):,} items have no path, {missing['item'][0]!r} first")
    other = rows.filter(length != length[0])
    if len(other):
        raise ValueError(
            f"{path}: item {other['item'][0]!r} is {len(other['value'][0])} levels deep, "
            f"{rows['item'][0]!r} {length[0]}: give all leaves the same depth"
        )
    _check_no_nulls(path, rows, "path", "integer")
    steps = torch.from_numpy(rows["value"].explode().to_numpy().reshape(len(rows), -1).copy())
    return _tree_of_paths(path, steps, ids, arity)


def _tree_of_paths(path: Path, steps: Tensor, ids: Ids, arity: int | None) -> Tree:
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
    if arity**height > max(1 << 20, MAX_SLOTS * len(steps)):
        leaves = f"{arity**height:,} leaves for {len(steps):,} items"
        raise ValueError(f"{path}: {height} levels of {arity} children are {leaves}: too many")
    slot = (steps * arity ** torch.arange(height - 1, -1, -1)).sum(1)
    first = torch.full((arity**height,), PAD)
    first[slot.flip(0)] = torch.arange(len(slot)).flip(0)  # of two items on a slot, the earlier
    taken = first[slot] != torch.arange(len(slot))
    if bool(taken.any()):
        row = int(taken.nonzero()[0])
        raise ValueError(f"{path}: item {ids[row]!r} is on the leaf of item {ids[int(first[slot[row]])]!r}")
    return Tree(first, arity)


# Any table


def _open_table(table: Table) -> tuple[pl.LazyFrame, pl.Expr]:
    """A table, unread, and its item column as text."""
    if isinstance(table, Path) and not table.exists():
        raise ValueError(f"{table} does not exist")
    frame = scan_file(table, None, ["item"]) if isinstance(table, Path) else table.lazy()
    column = _find_column(table, frame, ITEM, "item")
    return frame, text_id(column, frame.collect_schema()[column]).str.strip_chars()


def _label(table: Table) -> str:
    return str(table) if isinstance(table, Path) else "the frame"


def _find_column(table: Table, frame: pl.LazyFrame, names: tuple[str, ...], role: str) -> str:
    columns = frame.collect_schema().names()
    column = usual_column(columns, names)
    if column is None:
        raise ValueError(f"{_label(table)} has no column {role!r}: it has {', '.join(columns)}")
    return column


def _by_item(table: Table, rows: pl.LazyFrame, ids: Ids) -> pl.DataFrame:
    """One row for each item in order, with nulls if the table does not have it."""
    frame = _collect(table, rows)
    _check_unique(table, frame["item"].filter(frame["item"].is_in(ids.names)))
    return pl.DataFrame({"item": ids.names}).join(frame, on="item", how="left", maintain_order="left")


def _check_no_nulls(table: Table, rows: pl.DataFrame, column: str, kind: str) -> None:
    bad = rows.filter(rows["value"].list.eval(pl.element().is_null()).list.any())
    if len(bad):
        raise ValueError(f"{_label(table)}: the {column} of item {bad['item'][0]!r} has a value that is no {kind}")


def _collect(table: Table, rows: pl.LazyFrame) -> pl.DataFrame:
    try:
        return rows.collect()
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{_label(table)} cannot be read: {short_message(error)}") from error

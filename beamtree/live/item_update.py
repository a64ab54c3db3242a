"""What is to be changed about items: from a mapping of fields, a list of ids, or a table.

A mapping has the fields of some items: those of a `NewItem`, which say where a new one is placed, and columns of the
table of the items. What is left out stays, and None is no value. A table has all of its columns for all of its items,
so an empty cell is no value; a table may bring new columns, a mapping not. Ids alone add items, and show hidden ones.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from beamtree.data.catalogue import ROLES, Catalogue, NewColumns
from beamtree.data.ids import as_id
from beamtree.errors import requires, short_message
from beamtree.live.placement import NewItem, new_item
from beamtree.query import id_list, is_frame

log = logging.getLogger("beamtree")
PLACING = ("like", "histories", "vector")  # fields of a `NewItem` that are no attributes
ItemFields = Mapping[str, Any]


class ItemValues(NamedTuple):
    """Values of the same columns for several items."""

    rows: np.ndarray  # which of the items of an update [n]
    values: Mapping[str, Any]  # by column of the catalogue, as `Catalogue.typed` returns them [n] each


class ItemUpdate(NamedTuple):
    """Changes of items."""

    items: Sequence[str]  # ids, each once
    placing: Mapping[str, ItemFields] = {}  # by id: what says where an item is placed
    batches: Sequence[ItemValues] = ()
    bare: frozenset[str] = frozenset()  # ids that come with nothing
    new: NewColumns | None = None  # columns that the catalogue does not have
    vectors: Any = None  # of all items, a series of Polars: for those that the model does not have

    def fields_of(self, item: int) -> ItemFields:
        """What says where one of the items is placed."""
        name = self.items[item]
        vector = None if self.vectors is None else self.vectors[item]
        return self.placing.get(name, {}) if vector is None else {"vector": tuple(vector), **self.placing.get(name, {})}


def parse_update(items: Any, catalogue: Catalogue, has_vectors: bool) -> ItemUpdate:
    """Changes for the items of a catalogue; a ValueError in one line where they are not valid.

    Args:
        items: a mapping from id to fields, ids, a frame or Arrow table, or the path of a file.
        catalogue: that is changed.
        has_vectors: whether the model was built from vectors of the items.
    """
    if isinstance(items, str | Path) or is_frame(items):
        return _of_table(items, catalogue, has_vectors)
    if not isinstance(items, Mapping):
        names = dict.fromkeys(map(valid_id, id_list(items)))
        return ItemUpdate([*names], bare=frozenset(names))
    return _of_fields(items, catalogue, has_vectors)


def _of_fields(items: Mapping[Any, Any], catalogue: Catalogue, has_vectors: bool) -> ItemUpdate:
    row_of, placing, bare = dict[str, int](), dict[str, ItemFields](), set[str]()
    groups: dict[tuple[str, ...], dict[str, ItemFields]] = {}  # items with the same columns
    own = [field for field in PLACING if has_vectors or field != "vector" or field not in catalogue.fields]
    for item, given in items.items():
        name, fields = valid_id(item), _fields(item, given)
        row_of[name] = len(row_of)
        if not fields:
            bare.add(name)
        elif any(field in fields for field in own):
            placing[name] = placing_fields({field: fields[field] for field in own if field in fields})
            fields = {field: value for field, value in fields.items() if field not in own}
        if fields:
            groups.setdefault(tuple(fields), {})[name] = fields
    batches, allowed = [], (*PLACING, *catalogue.fields)
    for columns, members in groups.items():
        names = list(members)
        unknown = next((field for field in columns if field not in allowed), None)
        if unknown is not None:
            more = "" if catalogue.table is not None else "; columns need a table of the items"
            listed = short_message(", ".join(allowed), 200)
            raise ValueError(f"item {names[0][:80]!r}: there is no field {unknown[:80]!r}, but {listed}{more}")
        values = dict[str, Any]()
        for field in columns:
            column, typed = catalogue.typed(field, [fields[field] for fields in members.values()], names)
            if column in values:
                raise ValueError(f"item {names[0][:80]!r}: {field!r} is the column {column!r}: give one of them")
            values[column] = typed
        batches.append(ItemValues(np.array([*map(row_of.__getitem__, names)]), values))
    return ItemUpdate([*row_of], placing, batches, frozenset(bare))


def placing_fields(fields: ItemFields) -> ItemFields:
    """Those of some fields that say where an item is placed."""
    item = new_item(fields)._asdict()
    return {field: item[field] for field in PLACING if field in fields}


def _fields(item: object, given: Any) -> ItemFields:
    """The fields that an item comes with: of a `NewItem` those that are not empty."""
    if isinstance(given, NewItem):
        return {name: value for name, value in given._asdict().items() if value not in (None, ())}
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(field, str) for field in given)):
        raise ValueError(f"item {str(item)[:80]!r}: give a dict of fields, such as {{'title': 'Lamp', 'like': ['B1']}}")
    return given or {}


def _of_table(table: Any, catalogue: Catalogue, has_vectors: bool) -> ItemUpdate:
    with requires("", "reading a table of items"):
        from beamtree.ingest.inputs import table_argument
        from beamtree.ingest.item_tables import read_changes, read_listed, vector_column
    listed = read_listed(table_argument("items", table))
    vectors = vector_column(listed) if has_vectors else None
    is_attribute = catalogue.table is None or vectors in catalogue.table.columns
    items, values, new = read_changes(listed, catalogue, leave_out=None if is_attribute else vectors)
    if not values:
        return ItemUpdate(items, bare=frozenset(items) if vectors is None else frozenset())
    batches = [ItemValues(np.arange(len(items)), values)]
    return ItemUpdate(items, batches=batches, new=new, vectors=None if vectors is None else listed.columns[vectors])


def recorded_update(
    items: Sequence[str], values: Mapping[str, Mapping[str, Any]], catalogue: Catalogue
) -> tuple[Catalogue, ItemUpdate]:
    """Values by field and id that were recorded for a catalogue which may have been another one.

    Returns the catalogue with columns for all of them, and the changes. Values of another kind than a column has now
    are left out, with a warning.
    """
    row_of, batches, new = {name: row for row, name in enumerate(items)}, list[ItemValues](), dict[str, Any]()
    for field, by_item in values.items():
        names, given = list(by_item), list(by_item.values())
        try:
            if field in catalogue.fields:
                column, typed = catalogue.typed(field, given, names)
            else:
                with requires("", "attributes of items"):
                    from beamtree.data.values import typed_values
                column, typed = field, typed_values(field, None, given, names)
                new[field] = typed.dtype
        except ValueError as error:
            log.warning("changes of %r are not used: %s", field, error)
            continue
        batches.append(ItemValues(np.fromiter(map(row_of.__getitem__, names), np.int64, len(names)), {column: typed}))
    if new:
        roles = dict.fromkeys(ROLES) if catalogue.table is None else catalogue.table.roles
        catalogue = catalogue.with_columns(NewColumns(new, roles))
    return catalogue, ItemUpdate(items, batches=batches)


def valid_id(item: object) -> str:
    """An id that can be stored; a ValueError for another value."""
    name = as_id(item)
    if not name or not name.isprintable():
        raise ValueError(f"{item!r} is not an id: give one line of text")
    return name


def independent_groups(new: Iterable[tuple[str, ItemFields]]) -> Iterator[dict[str, ItemFields]]:
    """Items in order, in groups in which no item refers to another."""
    group: dict[str, ItemFields] = {}
    for name, fields in new:
        histories = fields.get("histories") or ()
        if group.keys() & {name, *(fields.get("like") or ()), *(item for history in histories for item in history)}:
            yield group
            group = {}
        group[name] = fields
    if group:
        yield group

"""Titles, categories and other attributes of items, to display and to filter by."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from beamtree.data.ages import AGE, NO_AGES, ItemStarts
from beamtree.data.columns import Column
from beamtree.data.ids import Ids
from beamtree.errors import requires

if TYPE_CHECKING:
    from beamtree.data.attributes import ItemTable, Texts

NO_ATTRIBUTES = "nothing is known about the items of this model: fit it with a table of them, `items`"
SEPARATORS = r"\s*[/|>]\s*"  # between the steps of a category path
ROLES = ("title", "category")  # what every item has, whatever the table calls it


class TextColumn(Column[list[str | None]]):
    """Texts to show: titles or categories."""

    def changed(self, rows: Sequence[int], new: Sequence[str | None]) -> "TextColumn":
        """The column with new texts of some items."""
        return self._with(rows, new) if len(rows) else self

    def _merge(
        self, values: list[str | None], rows: Sequence[int], new: Sequence[Any], length: int
    ) -> list[str | None]:
        values = values + [None] * (length - len(values))
        for row, text in zip(rows, new, strict=True):
            values[row] = text
        return values

    @cached_property
    def has_any(self) -> bool:
        """Whether any item has a text."""
        return any(text is not None for text in self.first(self.length))

    @cached_property
    def folded(self) -> list[str]:
        """The texts in lower case, to search in; empty where there is none."""
        return [(text or "").casefold() for text in self.first(self.length)]

    @cached_property
    def by_path(self) -> dict[tuple[str, ...], list[int]]:
        """The items of each category path."""
        texts, groups = self.first(self.length), defaultdict[tuple[str, ...], list[int]](list)
        steps = {text: category_steps(text) for text in set(texts) if text is not None}
        for item, text in enumerate(texts):
            if text is not None:
                groups[steps[text]].append(item)
        return groups


class NewColumns(NamedTuple):
    """Columns that a table brings to a catalogue."""

    types: Mapping[str, Any]  # of Polars
    roles: Mapping[str, str | None]  # the columns of titles and of categories, among these and those before


class Catalogue:
    """What is known about items. It never changes: `changed` makes another one, which shares what stays.

    Args:
        ids: of the items.
        titles: by item number, None if unknown.
        categories: likewise; a path such as `Books/Fiction` is below `Books`.
        table: all that was read about the items, to filter by.
        starts: when the items began; None where nobody knows.
    """

    def __init__(
        self,
        ids: Ids,
        titles: Sequence[str | None] | TextColumn = (),
        categories: Sequence[str | None] | TextColumn = (),
        table: "ItemTable | None" = None,
        starts: ItemStarts | None = None,
    ) -> None:
        self.ids, self.table, self.starts = ids, table, starts
        columns = zip(ROLES, (titles, categories), strict=True)
        self._texts = {
            role: texts if isinstance(texts, TextColumn) else TextColumn(list(texts)) for role, texts in columns
        }

    @classmethod
    def of_ids(cls, ids: Ids) -> "Catalogue":
        """A catalogue without titles and categories."""
        return cls(ids)

    def __repr__(self) -> str:
        titles, categories = (sum(text is not None for text in texts) for texts in (self.titles, self.categories))
        return f"Catalogue({len(self.ids):,} items, {titles:,} titles, {categories:,} categories)"

    # Titles and categories

    @cached_property
    def titles(self) -> list[str | None]:
        """The title of each item."""
        return self._texts["title"].first(len(self.ids))

    @cached_property
    def categories(self) -> list[str | None]:
        """The category of each item."""
        return self._texts["category"].first(len(self.ids))

    def text(self, role: str, number: int) -> str | None:
        """The title or category of one item."""
        text: str | None = self._texts[role].get(number)
        return text

    @property
    def has_titles(self) -> bool:
        """Whether any item has a title."""
        return self._texts["title"].has_any

    def in_category(self, category: str) -> list[int]:
        """The items of a category and of all categories below it; `Books` includes `Books/Fiction`."""
        steps, by_path = category_steps(category), self._texts["category"].by_path
        groups = [items for path, items in by_path.items() if path[: len(steps)] == steps]
        return sorted(item for items in groups for item in items) if steps else []

    def search(self, text: str, limit: int) -> list[int]:
        """The first items with this text in their id or title; those whose id begins with it come first."""
        titles = chain(self._texts["title"].folded, repeat(""))
        return search_texts(zip(self.ids.folded, titles, strict=False), text, limit)

    # Attributes

    @property
    def column_names(self) -> list[str]:
        """The columns that expressions can read; a ValueError where there are none."""
        names = ["item"] if self.table is None else [*self.table.columns]
        names += [role for role in ROLES if role not in names and self._texts[role].has_any]
        if names == ["item"]:
            raise ValueError(NO_ATTRIBUTES)
        return names

    def column(self, name: str) -> object:
        """A column of the table, or the titles or categories: the same object while none of its values changes."""
        if self.has_age([name]):
            return self.starts
        return self._column(name)

    def _column(self, name: str) -> Column[Any] | None:
        return self._texts.get(name) if self.table is None else self.table.columns.get(name) or self._texts.get(name)

    def frame(self, names: Iterable[str]) -> Any:
        """Some columns as a Polars frame with one row for each item."""
        with requires("", "filtering by attributes"):
            from beamtree.data.attributes import frame_of
        columns = {}
        for name in names:
            column = self._column(name)
            columns[name] = self.ids.names if column is None else column.first(len(self.ids))
        return frame_of(columns)

    @cached_property
    def attributes(self) -> Any:
        """All columns as a Polars frame with one row for each item."""
        return self.frame(self.column_names)

    def rows(self, numbers: Sequence[int]) -> Any:
        """All columns for some items, as a Polars frame with one row for each."""
        with requires("", "reading attributes"):
            from beamtree.data.attributes import frame_of
        columns = {} if self.table is None else self.table.at(np.asarray(numbers, np.int64), self.table.columns)
        roles = [role for role in ROLES if role not in columns and self._texts[role].has_any]
        return frame_of({**columns, **{role: [self.text(role, row) for row in numbers] for role in roles}})

    def where(self, expression: str) -> list[int]:
        """The items that an expression is true for, such as `category == 'lamps' and price < 50`."""
        numbers: list[int] = self.passes(expression).nonzero()[0].tolist()
        return numbers

    def passes(self, expression: str, time: int | None = None) -> np.ndarray:
        """Whether an expression is true for each item [M]; `time`, in seconds, is that of their age."""
        with requires("", "filtering by attributes"):
            from beamtree.data.expressions import rows_where
        names = self.columns_read(expression)
        if not self.has_age(names):
            return rows_where(self.frame(names or self.column_names[:1]), expression)
        with requires("", "filtering by attributes"):
            from beamtree.data.attributes import age_column
        if self.starts is None or time is None:
            raise ValueError(NO_AGES)
        frame = self.frame([name for name in names if name != AGE] or ["item"])
        return rows_where(frame.with_columns(age_column(self.starts.ages(len(self.ids), time))), expression)

    def columns_read(self, expression: str) -> list[str]:
        """The columns that an expression reads."""
        with requires("", "filtering by attributes"):
            from beamtree.data.expressions import columns_read
        if AGE not in expression and self.starts is None:
            return columns_read(expression, self.column_names)
        try:
            names = self.column_names
        except ValueError:
            names = ["item"]
        return columns_read(expression, names if AGE in names else [*names, AGE])

    def has_age(self, columns: Sequence[str]) -> bool:
        """Whether the age of items is among some columns, and not a column of the table that has its name."""
        return AGE in columns and (self.table is None or AGE not in self.table.columns)

    def with_starts(self, starts: ItemStarts | None) -> "Catalogue":
        """The same with other times at which the items began."""
        return Catalogue(self.ids, self._texts["title"], self._texts["category"], self.table, starts)

    def values(self, column: str) -> Any:
        """The values of a column as numbers, the same for the same value and -1 for none, as NumPy array [M]."""
        names = self.column_names
        with requires("", "limits on attributes"):
            from beamtree.data.attributes import group_numbers, no_column
        if column not in names:
            raise ValueError(f"at_most: {no_column(column, names)}")
        return group_numbers(column, self.frame([column])[column])

    # Changes

    @property
    def fields(self) -> list[str]:
        """What can be changed about an item: its title, its category, and all columns but that of ids."""
        names = () if self.table is None else (name for name in self.table.columns if name != self.table.item)
        return list(dict.fromkeys((*ROLES, *names)))

    @property
    def kinds(self) -> dict[str, str]:
        """What these are, in words; without those that only a frame can change."""
        if self.table is None:
            return dict.fromkeys(ROLES, "text")
        return dict.fromkeys(ROLES, "text") | self.table.kinds()

    def typed(self, field: str, values: Sequence[Any], items: Sequence[str]) -> tuple[str, Any]:
        """The column of one of the `fields`, and values of Python or JSON for some items as it has them.

        A ValueError names the first value of the wrong kind.
        """
        column = None if self.table is None else self.table.column_of(field)
        if self.table is not None and column is not None:
            return column, self.table.typed(column, values, items)
        wrong = next((pair for pair in zip(items, values, strict=True) if not isinstance(pair[1], str | None)), None)
        if wrong is not None:
            raise ValueError(f"item {wrong[0][:80]!r}: {field!r} takes text, not {repr(wrong[1])[:80]}")
        return field, values

    def field_of(self, column: str) -> str:
        """The name under which a column is recorded: title or category if it has these."""
        return (None if self.table is None else self.table.role_of(column)) or column

    def as_json(self, values: Any) -> list[Any]:
        """Values as `typed` returns them, as JSON has them."""
        if self.table is None or isinstance(values, list):
            return list(values)
        from beamtree.data.values import json_values

        return json_values(values)

    def changed(self, rows: np.ndarray, values: Mapping[str, Any]) -> tuple["Catalogue", np.ndarray]:
        """The catalogue with new values of some columns by item number [n] each, as `typed` returns them.

        Returns it, and which of the items had other values before [n].
        """
        columns = {} if self.table is None else self.table.columns
        table, differs = self.table, np.zeros(len(rows), bool)
        texts: Texts = {}
        if self.table is not None:
            table, differs, texts = self.table.changed(rows, {name: values[name] for name in values if name in columns})
        for role in values.keys() - columns.keys():  # texts that are in no column of the table
            pairs = zip(rows.tolist(), values[role], strict=True)
            is_new = np.array([self.text(role, row) != text for row, text in pairs], bool)
            texts[role] = rows[is_new].tolist(), [text for text, new in zip(values[role], is_new, strict=True) if new]
            differs |= is_new
        return (self._with(table, texts) if differs.any() else self), differs

    def cleared(self, rows: np.ndarray) -> "Catalogue":
        """The catalogue without what is known of some items [n]."""
        return self.restored(rows, Catalogue(self.ids))

    def restored(self, rows: np.ndarray, other: "Catalogue") -> "Catalogue":
        """The catalogue with what another one says about some items [n]."""
        values: dict[str, Any] = {
            role: [other.text(role, row) for row in rows.tolist()] for role in ROLES if self._is_text_only(role)
        }
        if self.table is not None:
            names, other_table = [name for name in self.table.columns if name != self.table.item], other.table
            values |= (other_table or self.table._replace(columns={})).at(rows, names)
        return self.changed(rows, values)[0]

    def grown(self, ids: Ids, names: Sequence[str]) -> "Catalogue":
        """The catalogue with more items: `ids` are all, and `names` those after the others."""
        if self.table is None:
            return self._with(None, {}, ids)
        table, texts = self.table.grown(len(self.ids), names)
        return self._with(table, texts, ids)

    def with_columns(self, new: NewColumns) -> "Catalogue":
        """The catalogue with more columns of a table, in which nothing is known yet but titles and categories."""
        with requires("", "attributes of items"):
            from beamtree.data.attributes import ItemTable
            from beamtree.data.values import from_texts
        before = self.table or ItemTable.of_ids(self.ids)
        table = before.with_columns(new.types, new.roles)
        for role, column in new.roles.items():
            texts = enumerate(self._texts[role].first(len(self.ids)) if column != before.roles[role] else ())
            known = {row: text for row, text in texts if text is not None}
            if column is not None and known:
                values = from_texts([*known.values()], table.columns[column].dtype)
                table = table.changed(np.array([*known]), {column: values})[0]
        return self._with(table, {})

    def table_to_save(self) -> Any:
        """The table as a Polars frame, with titles and categories that are in none of its columns."""
        assert self.table is not None
        roles = [role for role in ROLES if self._is_text_only(role) and self._texts[role].has_any]
        return self.table.with_others(self.frame([*self.table.columns, *roles]), self.ids.names)

    def _is_text_only(self, role: str) -> bool:
        return self.table is None or self.table.roles[role] is None

    def _with(self, table: "ItemTable | None", texts: "Texts", ids: Ids | None = None) -> "Catalogue":
        """The catalogue with another table and new titles and categories."""
        columns = {
            role: column.changed(*texts[role]) if role in texts else column for role, column in self._texts.items()
        }
        return Catalogue(ids or self.ids, columns["title"], columns["category"], table, self.starts)


def category_steps(category: str) -> tuple[str, ...]:
    """The case-folded steps of a category path."""
    return tuple(step for step in re.split(SEPARATORS, category.strip().casefold()) if step)


def search_texts(texts: Iterable[tuple[str, str]], text: str, limit: int) -> list[int]:
    """The indices of the first (id, title) pairs, case-folded, that contain a text; ids that begin with it first."""
    query = text.strip().casefold()
    first: list[int] = []
    others: list[int] = []
    for index, (name, title) in enumerate(texts):
        if name.startswith(query):
            first.append(index)
            if len(first) >= limit:
                break
        elif len(others) < limit and (query in name or query in title):
            others.append(index)
    return [*first, *others][:limit]

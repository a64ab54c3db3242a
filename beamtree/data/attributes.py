"""Attributes of items: the columns of their table, as they are now."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from beamtree.data.ages import AGE
from beamtree.data.columns import MAX_RECENT, Column
from beamtree.data.ids import Ids
from beamtree.data.values import common_type, display_texts, from_texts, json_values, kept, kind_of, typed_values
from beamtree.errors import short_message

SMALL_CHANGE = 50  # items whose values are compared one by one
Texts = dict[str, tuple[list[int], list[str | None]]]  # new titles and categories: of which items, and what they are


class Attribute(Column[pl.Series]):
    """A column of the table of items."""

    @property
    def dtype(self) -> pl.DataType:
        """The type of its values."""
        dtype: pl.DataType = self._state[0].dtype
        return dtype

    def get(self, row: int) -> Any:
        """The value of one item, as JSON has it."""
        return json_values(self.at(np.array([row])))[0]

    def at(self, rows: np.ndarray) -> pl.Series:
        """The values of some items [n]."""
        values, recent = self._state
        index = pl.Series(rows, dtype=pl.Int64)
        result: pl.Series = (
            values.gather(index.set(index >= len(values), None)) if len(values) else values.clear(len(rows))
        )
        if not recent:
            return result
        places = np.isin(rows, list(recent)).nonzero()[0]
        return _scattered(result, places, pl.Series([recent[row] for row in rows[places].tolist()], dtype=values.dtype))

    def differs(self, rows: np.ndarray, new: pl.Series) -> np.ndarray:
        """Which of some items have another value than a new one [n]."""
        if len(rows) <= SMALL_CHANGE:  # which is faster one by one
            pairs = zip(map(self._value, rows.tolist()), new.to_list(), strict=True)
            return np.array([old != value for old, value in pairs], bool)
        dtype = common_type(self.dtype, new.dtype)
        result: np.ndarray = self.at(rows).cast(dtype).ne_missing(new.cast(dtype)).to_numpy()
        return result

    def _value(self, row: int) -> Any:
        values, recent = self._state
        return recent[row] if row in recent else values[row : row + 1].to_list()[0] if row < len(values) else None

    def changed(self, rows: np.ndarray, new: pl.Series) -> "Attribute":
        """The column with new values of some items [n], in a type that holds all."""
        dtype, column = common_type(self.dtype, new.dtype), self
        if dtype != self.dtype:
            values = self.first(self.length)
            if dtype == pl.Int128:  # expressions have integers of 64 bits
                fits = values.cast(pl.Int64, strict=False).null_count() == values.null_count()
                dtype = pl.Int64() if fits else pl.Float64()
            column = Attribute(values.cast(dtype))
        if not len(rows):
            return column
        new = new.cast(dtype)
        return column._with(rows, new) if len(rows) > MAX_RECENT else column._with(rows.tolist(), new.to_list())

    def _merge(self, values: pl.Series, rows: Sequence[int], new: Any, length: int) -> pl.Series:
        values = values.extend_constant(None, length - len(values)) if length > len(values) else values
        new = new if isinstance(new, pl.Series) else pl.Series(new, dtype=values.dtype)
        return _scattered(values, np.asarray(rows, np.int64), new)


def _scattered(values: pl.Series, rows: np.ndarray, new: pl.Series) -> pl.Series:
    """A copy with new values in some rows; of a row that occurs twice, the last."""
    if not values.dtype.is_nested() and values.dtype != pl.Null:
        return values.clone().scatter(rows, new)
    index = np.arange(len(values))
    index[rows] = len(values) + np.arange(len(new))
    return pl.concat([values, new]).gather(index)


class ItemTable(NamedTuple):
    """The table of the items. A change makes a new one, which shares the columns that stay."""

    columns: dict[str, Attribute]
    item: str  # the column of ids
    roles: Mapping[str, str | None]  # the columns of titles and of categories, where there are any
    others: pl.DataFrame | None = None  # the rows of items that the model does not have, which may be added later
    other_ids: Sequence[str] = ()  # of these rows

    @classmethod
    def of_ids(cls, ids: Ids) -> "ItemTable":
        """A table that says nothing but which items there are."""
        column = pl.Series(ids.column(np.arange(len(ids))), dtype=pl.Int64() if ids.integer else pl.String())
        return cls({"item": Attribute(column)}, "item", {"title": None, "category": None})

    def role_of(self, column: str) -> str | None:
        """Whether a column has the titles or the categories."""
        return next((role for role, name in self.roles.items() if name == column), None)

    def column_of(self, field: str) -> str | None:
        """The column in which a field of an item is; None where none can be changed by that name."""
        column = field if field in self.columns else self.roles.get(field)
        return None if column == self.item else column

    def kinds(self) -> dict[str, str]:
        """What the columns that can be changed hold, in words."""
        kinds = {name: kind_of(column.dtype) for name, column in self.columns.items() if name != self.item}
        return {name: kind for name, kind in kinds.items() if kind is not None}

    def typed(self, column: str, values: Sequence[Any], items: Sequence[str]) -> pl.Series:
        """Values of Python or JSON for some items as a column has them; a ValueError names the first wrong one.

        Titles and categories may also be given as they are shown, as text.
        """
        dtype = self.columns[column].dtype
        if self.role_of(column) is None or not all(isinstance(value, str | None) for value in values):
            return typed_values(column, dtype, values, items)
        texts = typed_values(column, pl.String(), values, items)
        result = from_texts(texts.to_list(), dtype)
        wrong = (result.is_null() & texts.is_not_null()).arg_true().to_list()
        return result if not wrong else typed_values(column, dtype, [values[wrong[0]]], [items[wrong[0]]])

    def changed(self, rows: np.ndarray, values: Mapping[str, pl.Series]) -> tuple["ItemTable", np.ndarray, Texts]:
        """The table with new values of some columns, by item number [n] each.

        Returns it, which of the items had other values before [n], and what changes of titles and categories.
        """
        columns, any_differs, texts = dict(self.columns), np.zeros(len(rows), bool), Texts()
        for name, new in values.items():
            differs = columns[name].differs(rows, new)
            if differs.any():
                new_rows, new = rows[differs], new.filter(pl.Series(differs))
                columns[name] = columns[name].changed(new_rows, new)
                role = self.role_of(name)
                if role is not None:
                    texts[role] = new_rows.tolist(), display_texts(new)
                any_differs |= differs
        return self._replace(columns=columns), any_differs, texts

    def at(self, rows: np.ndarray, names: Iterable[str]) -> dict[str, pl.Series]:
        """The values of columns for some items [n] each; null in a column that this table does not have."""
        nothing = pl.Series([None] * len(rows))
        return {name: self.columns[name].at(rows) if name in self.columns else nothing for name in names}

    def with_columns(self, types: Mapping[str, pl.DataType], roles: Mapping[str, str | None]) -> "ItemTable":
        """The table with more columns, in which all is null."""
        new = {name: Attribute(pl.Series([], dtype=dtype)) for name, dtype in types.items()}
        return self._replace(columns={**self.columns, **new}, roles=roles)

    def grown(self, start: int, names: Sequence[str]) -> tuple["ItemTable", Texts]:
        """The table with more items, numbered from `start`, and what changes of titles and categories.

        They have what the table has said about them before the model had them.
        """
        ids, columns = pl.Series(names, dtype=pl.String), dict(self.columns)
        dtype = columns[self.item].dtype
        columns[self.item] = columns[self.item].changed(np.arange(start, start + len(names)), kept(ids, dtype))
        grown, row_of = self._replace(columns=columns), dict(zip(names, range(start, start + len(names)), strict=True))
        places = [place for place, name in enumerate(self.other_ids) if name in row_of]
        if self.others is None or not places:
            return grown, {}
        rows = np.array([row_of[self.other_ids[place]] for place in places])
        listed = self.others[places].drop(self.item)
        table, _, texts = grown.changed(rows, {name: listed[name] for name in listed.columns})
        return table, texts

    def with_others(self, frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
        """The columns of all items with the rows of items that are still not among them."""
        if self.others is None:
            return frame
        return pl.concat([frame, self.others.filter(~pl.Series(self.other_ids).is_in(names))], how="diagonal_relaxed")

    def described(self, row: int) -> dict[str, Any]:
        """All columns but that of ids for one item, as JSON has them."""
        return {name: column.get(row) for name, column in self.columns.items() if name != self.item}


def age_column(days: np.ndarray) -> pl.Series:
    """Ages as a column, without a value where they are not known."""
    return pl.Series(AGE, days).fill_nan(None)


def frame_of(columns: Mapping[str, Any]) -> pl.DataFrame:
    """A frame of columns, each a series or a list of texts."""
    series = {
        name: column if isinstance(column, pl.Series) else pl.Series(column, dtype=pl.String)
        for name, column in columns.items()
    }
    return pl.DataFrame(series)


def group_numbers(column: str, values: pl.Series) -> np.ndarray:
    """The values of a column as numbers, the same for the same value and -1 for null [rows]."""
    if values.dtype.is_nested():
        raise ValueError(f"at_most: column {column!r} holds {values.dtype}: an item must have one value")
    if values.dtype.is_float():
        values = values.fill_nan(None).set(values == 0, 0.0)  # NaN is no value, and -0.0 the same as 0.0
    try:
        texts = values.cast(pl.String)
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"at_most: column {column!r} holds {values.dtype}: give it as text") from error
    numbers = texts.rank("dense").cast(pl.Int64).fill_null(0) - 1
    return numbers.to_numpy()


def no_column(column: str, names: Sequence[str]) -> str:
    """Says that there is no such column, and which there are."""
    return f"there is no column {column[:80]!r}; there are {short_message(', '.join(names), 200)}"

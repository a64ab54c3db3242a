"""Attributes of items: the columns of their table as they are now."""

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from beamtree.errors import short_message

if TYPE_CHECKING:
    from beamtree.data.catalogue import Catalogue


def attribute_frame(catalogue: "Catalogue") -> pl.DataFrame:
    """The columns of the table of items, one row for each item, with titles and categories as they are now.

    Items that were added since have their id, title and category in the columns of these, and null in the others.
    `title` and `category` are columns too if the table calls them otherwise.
    """
    ids, table = catalogue.ids, catalogue.table
    texts = {"title": catalogue.titles, "category": catalogue.categories}
    frame = pl.DataFrame({"item": ids.column(np.arange(len(ids)))}) if table is None else table.frame
    if len(frame) < len(ids):
        frame = pl.concat([frame, frame.clear(len(ids) - len(frame))])
    if table is not None:
        missing = frame[table.item].is_null().arg_true().to_list()
        frame = frame.with_columns(_replaced(frame[table.item], missing, [ids.name(row) for row in missing]))
        for role, name, original in (
            ("title", table.title, table.titles),
            ("category", table.category, table.categories),
        ):
            current, count = texts[role], len(original)
            if name is not None and current is not original:
                changed = [row for row, text in enumerate(current) if row >= count or text is not original[row]]
                frame = frame.with_columns(_replaced(frame[name], changed, [current[row] for row in changed]))
    others = {role: column for role, column in texts.items() if role not in frame.columns and any(column)}
    return frame.with_columns(**{role: pl.Series(column, dtype=pl.String) for role, column in others.items()})


def _replaced(column: pl.Series, rows: list[int], texts: list[str | None]) -> pl.Series:
    """A column with other values in some rows, given as text; those of a column of lists as paths."""
    values = pl.Series(texts, dtype=pl.String)
    if isinstance(column.dtype, pl.List):
        values = values.str.split("/")
    if not rows:
        return column
    index = pl.Series(range(len(column)), dtype=pl.Int64).to_frame("row")
    new = pl.DataFrame({"row": pl.Series(rows, dtype=pl.Int64), "value": values.cast(column.dtype, strict=False)})
    joined = index.join(new.with_columns(changed=True), on="row", how="left", maintain_order="left")
    return column.zip_with(joined["changed"].is_null(), joined["value"]).alias(column.name)


def value_numbers(frame: pl.DataFrame, column: str) -> np.ndarray:
    """The values of a column as numbers, the same for the same value and -1 for null [rows]."""
    if column not in frame.columns:
        raise ValueError(f"at_most: {no_column(frame, column)}")
    values = frame[column]
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


def no_column(frame: pl.DataFrame, column: str) -> str:
    """Says that there is no such column, and which there are."""
    return f"there is no column {column[:80]!r}; there are {short_message(', '.join(frame.columns), 200)}"

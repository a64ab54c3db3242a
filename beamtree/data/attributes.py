"""Attributes of items: the columns of their table as they are now, and expressions over them."""

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from beamtree.errors import short_message

if TYPE_CHECKING:
    from beamtree.data.catalogue import Catalogue

MAX_LENGTH = 2000  # characters of an expression
KEYWORDS = {"and", "or", "not", "in", "is", "null", "like", "ilike", "between", "true", "false"}
FUNCTIONS = {
    "lower", "upper", "length", "starts_with", "ends_with", "array_contains",
    "abs", "round", "floor", "ceil", "coalesce", "date",
}  # fmt: skip
TOKEN = re.compile(
    r"""\s++
    | '(?:[^']|'')*+'(?!['"\w])              # text
    | (?P<quoted>"(?:[^"]|"")++")(?!['"\w])  # a column with an unusual name
    | (?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?(?!['"\w])
    | (?P<word>\w++)(?!['"])(?P<call>\s*+\()?
    | --|/\*|==|!=|<>|<=|>=|[=<>+\-*/%(),]""",
    re.VERBOSE,
)


def attribute_frame(catalogue: "Catalogue") -> pl.DataFrame:
    """The columns of the table of items, one row for each item, with titles and categories as they are now.

    Items that were added since have their id, title and category in the columns of these, and null in the others.
    `title` and `category` are columns too if the table calls them otherwise.
    """
    ids, table = catalogue.ids, catalogue.table
    texts = {"title": catalogue.titles, "category": catalogue.categories}
    frame = pl.DataFrame({"item": ids.names}) if table is None else table.frame
    if len(frame) < len(ids):
        frame = pl.concat([frame, frame.clear(len(ids) - len(frame))])
    if table is not None:
        missing = frame[table.item].is_null().arg_true().to_list()
        frame = frame.with_columns(_replaced(frame[table.item], missing, [ids[row] for row in missing]))
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


def rows_where(frame: pl.DataFrame, where: str) -> np.ndarray:
    """Which rows an expression such as `category == 'lamps' and price < 50` is true for, bool [rows].

    A ValueError for anything but columns, values, operators and the functions above: Polars would read files too.
    """
    _check_tokens(frame, where)
    try:
        result = frame.lazy().select(pl.sql_expr(where).alias("where")).collect()["where"]
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, UnicodeError) as error:
        raise ValueError(f"where={_quote(where)} cannot be used: {short_message(error, 160)}") from error
    if result.dtype != pl.Boolean:
        raise ValueError(f"where={_quote(where)} is {result.dtype}, not true or false: compare it with something")
    passes: np.ndarray = result.fill_null(False).to_numpy()
    return np.broadcast_to(passes, (len(frame),)) if len(passes) == 1 else passes


def value_numbers(frame: pl.DataFrame, column: str) -> np.ndarray:
    """The values of a column as numbers, the same for the same value and -1 for null [rows]."""
    if column not in frame.columns:
        raise ValueError(f"at_most: {_no_column(frame, column)}")
    values = frame[column]
    if values.dtype.is_nested():
        raise ValueError(f"at_most: column {column!r} holds {values.dtype}: an item must have one value")
    numbers = values.cast(pl.String).rank("dense").cast(pl.Int64).fill_null(0) - 1
    return numbers.to_numpy()


def _no_column(frame: pl.DataFrame, column: str) -> str:
    return f"there is no column {column[:80]!r}; there are {short_message(', '.join(frame.columns), 200)}"


def _check_tokens(frame: pl.DataFrame, where: str) -> None:
    """Raise a ValueError unless an expression consists of columns, values, operators and functions."""
    if len(where) > MAX_LENGTH:
        raise ValueError(f"where has {len(where):,} characters: at most {MAX_LENGTH:,} are possible")
    position = 0
    while position < len(where):
        token = TOKEN.match(where, position)
        if token is None or token.group() in ("--", "/*"):
            raise ValueError(f"where={_quote(where)} has an error at {_quote(where[position:], 20)}")
        position = token.end()
        word, quoted = token["word"], token["quoted"]
        if token["call"] is not None and word.lower() not in FUNCTIONS | {"in", "and", "or", "not", "between"}:
            raise ValueError(f"where: {word[:80]!r} is no function: use {', '.join(sorted(FUNCTIONS))}")
        if word is not None and (token["call"] is not None or word.lower() in KEYWORDS):
            continue
        column = word if quoted is None else quoted[1:-1].replace('""', '"')
        if column is not None and column not in frame.columns:
            hint = "" if quoted is None else " (text has single quotes)"
            raise ValueError(f"where: {_no_column(frame, column)}{hint}")


def _quote(text: str, limit: int = 80) -> str:
    return repr(text if len(text) <= limit else f"{text[:limit]}…")

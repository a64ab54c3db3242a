"""Values of the attributes of items: of which kind they are, checked and in the type of their column.

A column takes values of its kind: numbers, texts, true or false, dates, or lists of one of these. Where its type cannot
hold a value of the right kind, it becomes wider: whole numbers become floats, fixed categories become texts.
"""

import datetime
import math
import numbers
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

import numpy as np
import polars as pl

NUMBER, TEXT, BOOLEAN, DATE, LISTS = "numbers", "text", "true or false", "dates such as 2026-12-31", "lists of "
INTEGER = r"^[+-]?(0|[1-9]\d{0,17})$"  # 007 is no number, but a code
FLOAT = r"^[+-]?(0|[1-9]\d*)?(\.\d*)?([eE][+-]?\d+)?$"
PLAIN: dict[str, set[type]] = {NUMBER: {int, float, NoneType}, TEXT: {str, NoneType}, BOOLEAN: {bool, NoneType}}
MISSING = {"NAType", "NaTType"}  # of pandas


# Types


def kind_of(dtype: pl.DataType) -> str | None:
    """What a column holds, in words; None for what can only be changed by a frame of the same type."""
    if isinstance(dtype, pl.List | pl.Array):
        inner = kind_of(dtype.inner)  # type: ignore[arg-type]
        return None if inner is None or inner.startswith(LISTS) else LISTS + inner
    if dtype.is_numeric():
        return NUMBER
    if isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
        return TEXT
    return BOOLEAN if dtype == pl.Boolean else DATE if dtype in (pl.Date, pl.Datetime) else None


def type_of(kind: str) -> pl.DataType:
    """The narrowest type of a kind."""
    if kind.startswith(LISTS):
        return pl.List(type_of(kind.removeprefix(LISTS)))
    types: dict[str, pl.DataType] = {NUMBER: pl.Int64(), TEXT: pl.String(), BOOLEAN: pl.Boolean()}
    return types.get(kind, pl.Datetime("us"))


def common_type(one: pl.DataType, other: pl.DataType) -> pl.DataType:
    """The narrowest type that holds the values of two types of the same kind."""
    if one == other:
        return one
    frames = [pl.DataFrame(schema={"x": dtype}) for dtype in (one, other)]
    try:
        return pl.concat(frames, how="vertical_relaxed").schema["x"]
    except pl.exceptions.SchemaError:  # two Enums
        return pl.String()


def kept(new: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Values in the type of a column, if that loses nothing but digits of floats; else in their own."""
    if new.dtype == dtype:
        return new
    try:
        result = new.cast(dtype, strict=False)
        back = result.cast(new.dtype, strict=False)
    except pl.exceptions.PolarsError:  # lists of another length
        return new
    if _is_float(dtype) and _is_float(new.dtype):
        return new if result.null_count() > new.null_count() or _infinities(result) > _infinities(new) else result
    return result if back.equals(new, null_equal=True) else new


def _is_float(dtype: pl.DataType) -> bool:
    return _is_float(dtype.inner) if isinstance(dtype, pl.List | pl.Array) else dtype.is_float()  # type: ignore[arg-type]


def _infinities(values: pl.Series) -> int:
    values = values.explode() if values.dtype.is_nested() else values
    return int(values.is_infinite().sum())


# Values of Python and JSON


def typed_values(name: str, dtype: pl.DataType | None, values: Sequence[Any], items: Sequence[str]) -> pl.Series:
    """Values of a column for some items, in its type or in a wider one; a ValueError names the first wrong one.

    None and NaN are no value. Of a new column the first value decides what it holds.
    """
    plain = _plain_series(dtype, values)
    if plain is not None:
        return plain
    present = [value for value in values if not _is_missing(value)]
    if not present:
        return pl.Series([None] * len(values), dtype=dtype or pl.Null())
    kind = _kind_of_value(present[0]) if dtype is None or dtype == pl.Null else kind_of(dtype)
    if kind is None:
        holds = type(present[0]).__name__ if dtype is None else dtype
        raise ValueError(f"{name!r} holds {holds}: change it with a frame that has this type")
    parse, result = _parser(kind), list[Any]()
    for item, value in zip(items, values, strict=True):
        try:
            result.append(None if _is_missing(value) else parse(value))
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"item {item[:80]!r}: {name!r} takes {kind}, not {repr(value)[:80]}") from None
    if kind == DATE:
        return kept(_dates(result, getattr(dtype, "time_zone", None)), dtype or pl.Datetime("us"))
    series = _series(kind, result)
    return series if dtype is None or dtype == pl.Null else kept(series, dtype)


def _plain_series(dtype: pl.DataType | None, values: Sequence[Any]) -> pl.Series | None:
    """The usual case at once: values of Python that a column takes as they are; None for any other."""
    kind = None if dtype is None else kind_of(dtype)
    if dtype is None or kind is None or not (types := {*map(type, values)}) <= PLAIN.get(kind, set()):
        return None
    has_floats = float in types
    own = {NUMBER: pl.Float64 if has_floats else pl.Int64, TEXT: pl.String, BOOLEAN: pl.Boolean}[kind]
    try:
        series = pl.Series(values, dtype=own, strict=not has_floats)
    except (TypeError, ValueError, OverflowError):  # an integer beyond 64 bits, or half a character
        return None
    if has_floats:
        series = series.fill_nan(None)
        if series.is_infinite().any():
            return None
    return kept(series, dtype)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in MISSING


def _kind_of_value(value: Any) -> str | None:
    if isinstance(value, list | tuple | np.ndarray):
        inner = next((kind for each in value if not _is_missing(each) and (kind := _kind_of_value(each))), TEXT)
        return None if inner.startswith(LISTS) else LISTS + inner
    kinds = {bool: BOOLEAN, np.bool_: BOOLEAN, numbers.Real: NUMBER, str: TEXT, datetime.date: DATE}
    return next((kind for each, kind in kinds.items() if isinstance(value, each)), None)


def _parser(kind: str) -> Callable[[Any], Any]:
    """A function that checks a value of a kind, and makes it a plain one of Python."""
    if not kind.startswith(LISTS):
        return {NUMBER: _number, TEXT: _text, BOOLEAN: _boolean, DATE: _date}[kind]
    parse = _parser(kind.removeprefix(LISTS))

    def parse_list(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple | np.ndarray):
            raise TypeError
        return [None if _is_missing(each) else parse(each) for each in value]

    return parse_list


def _number(value: Any) -> int | float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError
    number = int(value) if isinstance(value, numbers.Integral) else float(value)
    if not (-(2**63) <= number < 2**64 if isinstance(number, int) else math.isfinite(number)):
        raise ValueError
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # JSON may have half a character
    return str(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError
    return bool(value)


def _date(value: Any) -> datetime.datetime:
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value.strip())
    if isinstance(value, datetime.datetime):
        return datetime.datetime(*value.timetuple()[:6], value.microsecond, value.tzinfo)
    if not isinstance(value, datetime.date):
        raise TypeError
    return datetime.datetime(value.year, value.month, value.day)


def _dates(values: Sequence[datetime.datetime | None], zone: str | None) -> pl.Series:
    """Times in a zone, or without one; those that come without a zone are of this one, otherwise UTC."""
    local = [value if value is not None and value.tzinfo is None else None for value in values]
    result = pl.Series(local, dtype=pl.Datetime("us"))
    others = [value.astimezone(datetime.UTC) if value is not None and value.tzinfo else None for value in values]
    utc = pl.Series(others, dtype=pl.Datetime("us", "UTC"))
    if zone is None:
        utc = utc.dt.replace_time_zone(None)
    else:
        result = result.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
        utc = utc.dt.convert_time_zone(zone)
    return result.zip_with(utc.is_null(), utc)


def _series(kind: str, values: list[Any]) -> pl.Series:
    if kind.startswith(LISTS):
        inner = _series(kind.removeprefix(LISTS), [each for value in values if value is not None for each in value])
        return pl.Series(values, dtype=pl.List(inner.dtype), strict=False)
    if kind == DATE:
        return _dates(values, None)
    if kind != NUMBER:
        return pl.Series(values, dtype=pl.String if kind == TEXT else pl.Boolean)
    present = [value for value in values if value is not None]
    if not all(isinstance(value, int) for value in present):
        return pl.Series([None if value is None else float(value) for value in values], dtype=pl.Float64)
    if max(present, default=0) < 2**63:
        return pl.Series(values, dtype=pl.Int64)
    return pl.Series(values, dtype=pl.UInt64 if min(present) >= 0 else pl.Float64)


def json_values(values: pl.Series) -> list[Any]:
    """The values as JSON has them: dates as text, and no value for what it does not have."""
    if values.dtype.is_float():
        values = pl.select(pl.when(values.is_finite()).then(values)).to_series()
        return values.to_list()
    result: list[Any] = values.to_list()
    is_plain = values.dtype.is_integer() or values.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null)
    return result if is_plain else [_as_json(value) for value in result]


def _as_json(value: Any) -> Any:
    if isinstance(value, pl.Series | list | tuple):
        return [_as_json(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _as_json(each) for key, each in value.items()}
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if value is None or isinstance(value, str | bool | int):
        return value
    try:
        return number if math.isfinite(number := float(value)) else None
    except (TypeError, ValueError, OverflowError):
        return None if isinstance(value, bytes) else str(value)


# Columns of tables


def typed_column(
    name: str, dtype: pl.DataType | None, column: pl.Series, items: Sequence[str], *, is_text: bool = False
) -> pl.Series:
    """A column of a table in the type of that of the items, or in a wider one.

    Args:
        name: of the column.
        dtype: of the items' column; None for a new one.
        column: the values.
        items: their ids, for errors.
        is_text: whether the table is a file of text, which has no types.
    """
    if column.dtype == pl.Object:
        raise ValueError(f"column {name!r} holds objects of Python: give numbers, text, dates or lists")
    if dtype is None or dtype == pl.Null:
        return inferred(column) if is_text else column
    if column.dtype in (dtype, pl.Null):
        return column.cast(dtype)
    kind, given = kind_of(dtype), kind_of(column.dtype)
    if kind is not None and given is not None and TEXT in given and (is_text or (given, kind) == (TEXT, DATE)):
        return _parsed(name, dtype, kind, column, items)
    if kind is None or kind != given:
        raise ValueError(f"column {name!r} holds {given or column.dtype}, and that of the items {kind or dtype}")
    zones = [getattr(each, "time_zone", None) for each in (column.dtype, dtype)]
    if zones[0] != zones[1] and kind == DATE:
        return typed_values(name, dtype, column.to_list(), items)
    return kept(column, dtype)


def _parsed(name: str, dtype: pl.DataType, kind: str, column: pl.Series, items: Sequence[str]) -> pl.Series:
    """Texts, or lists of texts, as values of a column."""
    if column.dtype.is_nested() or kind.startswith(LISTS):
        if not (column.dtype.is_nested() and kind.startswith(LISTS)):
            raise ValueError(f"column {name!r} holds {kind_of(column.dtype)}, and that of the items {kind}")
        lists = column.cast(pl.List(dtype.inner), strict=False)  # type: ignore[attr-defined]
        if lists.explode().null_count() > column.explode().null_count():
            raise ValueError(f"column {name!r} takes {kind}, and not all of its values are such")
        return kept(lists, dtype)
    texts = column.cast(pl.String).str.strip_chars()
    texts = texts.set(texts == "", None)
    if kind == DATE:
        return typed_values(name, dtype, texts.to_list(), items)
    if kind == NUMBER:
        values = texts.cast(pl.Int64, strict=False)
        values = texts.cast(pl.Float64, strict=False) if values.null_count() > texts.null_count() else values
    elif kind == BOOLEAN:
        values = texts.str.to_lowercase().replace_strict({"true": True, "false": False}, default=None)
        values = values.cast(pl.Boolean)
    else:
        values = texts
    wrong = (values.is_null() & texts.is_not_null()).arg_true()
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(f"item {items[row][:80]!r}: {name!r} takes {kind}, not {str(texts[row])[:80]!r}")
    return kept(values, dtype)


def inferred(column: pl.Series) -> pl.Series:
    """A column of a text file as numbers, true or false or dates, if all of its texts are such; else as it is."""
    if column.dtype == pl.List(pl.String):
        return column.cast(pl.List(inferred(column.explode()).dtype), strict=False)
    if column.dtype != pl.String:
        return column
    texts = column.str.strip_chars()
    texts = texts.set(texts == "", None)
    present = texts.drop_nulls()
    if not len(present):
        return column
    if present.str.contains(INTEGER).all():
        return texts.cast(pl.Int64)
    if present.str.contains(FLOAT).all() and present.cast(pl.Float64, strict=False).null_count() == 0:
        return texts.cast(pl.Float64)
    if present.str.contains(r"^(?i:true|false)$").all():
        return texts.str.to_lowercase() == "true"
    days = texts.str.to_date("%Y-%m-%d", strict=False)
    return days if days.null_count() == texts.null_count() else column


def display_texts(column: pl.Series) -> list[str | None]:
    """A column as texts without surrounding white space; lists are joined to a path; None if empty."""
    if isinstance(column.dtype, pl.List | pl.Array):
        lists = column.cast(pl.List(column.dtype.inner))
        column = lists.list.eval(pl.element().cast(pl.String)).list.join("/", ignore_nulls=True)
    texts = column.cast(pl.String).str.strip_chars()
    return texts.set(texts == "", None).to_list()


def from_texts(texts: Sequence[str | None], dtype: pl.DataType) -> pl.Series:
    """Texts as values of a column, those of a column of lists as paths; null where that is not possible."""
    values = pl.Series(texts, dtype=pl.String)
    return (values.str.split("/") if isinstance(dtype, pl.List) else values).cast(dtype, strict=False)

"""Logs that are in memory already: frames of Polars and pandas, tables of Arrow.

pandas and pyarrow are recognised by what they can do, and never imported.
"""

from collections.abc import Sequence
from typing import Any, cast

import polars as pl

from beamtree.data.frames import is_pandas

NAME = "a frame"  # in descriptions and errors, where a file has its own


def is_frame(source: object) -> bool:
    """Whether this is a table in memory: of Polars, of pandas, or anything that hands out Arrow's streams."""
    return isinstance(source, pl.LazyFrame) or hasattr(source, "__arrow_c_stream__") or _is_pandas(source)


def _is_pandas(source: object) -> bool:
    return is_pandas(source) and hasattr(source, "columns")


def columns_of(frame: Any) -> list[str]:
    """The names of a frame's columns."""
    if _is_pandas(frame):
        return [str(name) for name in frame.columns]
    return _lazy(frame).collect_schema().names()


def some_columns(frame: Any, columns: Sequence[str]) -> pl.LazyFrame:
    """Some columns of a frame; those of pandas are copied, and nothing else is."""
    if not _is_pandas(frame):
        return _lazy(frame).select(columns)
    names = columns_of(frame)
    for column in columns:
        if names.count(column) > 1:
            raise ValueError(f"the frame has {names.count(column)} columns {column!r}: give each its own name")
    return pl.DataFrame({column: _from_pandas(frame.iloc[:, names.index(column)]) for column in columns}).lazy()


def _lazy(frame: Any) -> pl.LazyFrame:
    return frame if isinstance(frame, pl.LazyFrame) else pl.DataFrame(frame).lazy()


def _from_pandas(column: Any) -> pl.Series:
    """A column of pandas; as text where its values are of several types, or pyarrow is needed and not there."""
    try:
        return cast(pl.Series, pl.from_pandas(column))
    except (ValueError, TypeError, NotImplementedError, ImportError):
        gone = column.isna()
        texts = [None if missing else _text(value) for value, missing in zip(column, gone, strict=True)]
        return pl.Series(texts, dtype=pl.String)


def _text(value: object) -> str:
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)

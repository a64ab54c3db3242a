"""Columns as a Polars frame; as a plain dict of lists where Polars is not installed."""

from typing import Any


def frame(columns: dict[str, list[Any]], types: dict[str, type] | None = None) -> Any:
    """A Polars DataFrame, or the columns themselves on a machine that has torch, numpy and safetensors alone.

    `types` says what each column holds, which an empty one does not show.
    """
    try:
        import polars as pl
    except ImportError:
        return columns
    return pl.DataFrame(columns, schema=None if types is None else {name: types[name] for name in columns})

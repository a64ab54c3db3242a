"""Columns as a Polars frame; as a plain dict of lists where Polars is not installed."""

from typing import Any


def frame(columns: dict[str, list[Any]]) -> Any:
    """A Polars DataFrame, or the columns themselves on a machine that has torch, numpy and safetensors alone."""
    try:
        import polars as pl
    except ImportError:
        return columns
    return pl.DataFrame(columns)

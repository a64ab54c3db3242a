"""Results as a frame of Polars or pandas, or as a dict of lists if neither is installed."""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

KINDS = ("polars", "pandas")


def make_frame(columns: Mapping[str, Any], types: dict[str, type] | None = None, kind: str | None = None) -> Any:
    """A DataFrame of Polars or, if that is the kind, of pandas.

    Columns are lists or arrays; an array of two dimensions is a column of vectors. `types` are the types of the
    columns, which empty ones do not show. Without either library, returns the columns as lists.
    """
    if kind == "pandas" and find_spec("pandas") is not None:
        rows = {name: list(column) if getattr(column, "ndim", 1) > 1 else column for name, column in columns.items()}
        frame = import_module("pandas").DataFrame(rows)
        if types is None:
            return frame
        missing = {int: "Int64", str: object}  # where some are: None would become text, and no whole number
        kinds = {name: missing.get(types[name], float) if frame[name].hasnans else types[name] for name in columns}
        return frame.astype(kinds)
    try:
        import polars as pl
    except ImportError:
        return {name: column.tolist() if hasattr(column, "tolist") else column for name, column in columns.items()}
    return pl.DataFrame(columns, schema=None if types is None else {name: types[name] for name in columns})


def check_frame_kind(kind: str | None) -> None:
    """Raise a ValueError if a kind of frame is unknown, or its library is not installed."""
    if kind is not None and kind not in KINDS:
        raise ValueError(f"frame={kind!r}: choose polars or pandas")
    if kind is not None and find_spec(kind) is None:
        raise ValueError(f"frame={kind!r} needs {kind}, which is not installed: pip install {kind}")


def is_pandas(source: object) -> bool:
    """Whether this is a frame or a column of pandas; pandas is not imported."""
    return type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "iloc")


def frame_kind(source: object) -> str | None:
    """The kind of a frame, or of the first of several; None for anything else."""
    if isinstance(source, list | tuple) and source:
        source = source[0]
    if is_pandas(source):
        return "pandas"
    return "polars" if type(source).__module__.split(".")[0] == "polars" else None

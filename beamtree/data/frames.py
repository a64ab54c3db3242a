"""Columns as a frame of Polars or pandas; as a plain dict of lists where neither is installed."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

KINDS = ("polars", "pandas")


def frame(columns: dict[str, list[Any]], types: dict[str, type] | None = None, kind: str | None = None) -> Any:
    """A DataFrame of Polars or, if that is the kind, of pandas.

    `types` says what each column holds, which an empty one does not show. The columns themselves come back on a machine
    that has torch, numpy and safetensors alone.
    """
    if kind == "pandas" and find_spec("pandas") is not None:
        made = import_module("pandas").DataFrame(columns)
        return made if types is None else made.astype({name: types[name] for name in columns})
    try:
        import polars as pl
    except ImportError:
        return columns
    return pl.DataFrame(columns, schema=None if types is None else {name: types[name] for name in columns})


def check_kind(kind: str | None) -> None:
    """Raise a ValueError where a kind of frame is unknown, or its library not installed."""
    if kind is not None and kind not in KINDS:
        raise ValueError(f"frame={kind!r}: choose polars or pandas")
    if kind is not None and find_spec(kind) is None:
        raise ValueError(f"frame={kind!r} needs {kind}, which is not installed: pip install {kind}")


def is_pandas(source: object) -> bool:
    """Whether this is a frame or a column of pandas, which is not imported for it."""
    return type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "iloc")


def kind_of(source: object) -> str | None:
    """The kind of a frame, or of the first of several; None where it is another thing."""
    if isinstance(source, list | tuple) and source:
        source = source[0]
    if is_pandas(source):
        return "pandas"
    return "polars" if type(source).__module__.split(".")[0] == "polars" else None

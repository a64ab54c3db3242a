"""Where a log comes from: files, folders, patterns such as log/*.parquet, URLs such as s3://bucket/log, and frames.

Frames of pandas and tables of Arrow are recognised by their interface; neither library is imported.
"""

import glob
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from beamtree.data.frames import is_pandas
from beamtree.data.ids import as_given
from beamtree.errors import requires, short_message

TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".txt")
LINES = (".jsonl", ".ndjson")
PARQUET = (".parquet",)
WILDCARDS = set("*?[")
FRAME = "a frame"  # in descriptions and errors, where a file has its name


class Url(str):
    """The URL of a file that is read over a network."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.rpartition("/")[2]


Location = Path | Url


def find_logs(sources: Any) -> list[Any]:
    """The files and frames of one source or several: a file, a folder of files, a pattern, a URL, a frame."""
    is_one = is_frame(sources) or isinstance(sources, str | Path | Mapping) or not isinstance(sources, Iterable)
    logs: dict[object, Any] = {}
    for source in [sources] if is_one else sources:
        if is_frame(source):
            logs[id(source)] = source
        elif isinstance(source, str | Path):
            logs |= {path: path for path in find_files(source)}  # a file that is named twice is read once
        else:
            raise ValueError(f"a log is a file, a folder of files or a frame, not a {type(source).__name__}")
    if not logs:
        raise ValueError("no log was given")
    return list(logs.values())


# Files


def find_files(source: str | Path) -> list[Location]:
    """The log files of a path, a folder, a pattern or a URL, sorted."""
    is_url = isinstance(source, str) and "://" in source
    paths, is_file = _list_url(str(source).rstrip("/")) if is_url else _list_path(Path(source))
    files = [path for path in paths if is_file or _is_log(path)]
    if not files or not all(map(_is_log, files)):
        raise ValueError(f"{source}: a log is {', '.join((*TEXT, *LINES, *PARQUET))}, or a folder of such files")
    return list(dict.fromkeys(files))


def _is_log(path: Location) -> bool:
    if isinstance(path, Url):
        return path.name.lower().endswith(PARQUET)
    return path.name.lower().endswith((*TEXT, *LINES, *PARQUET)) and path.is_file()


def _list_path(path: Path) -> tuple[list[Location], bool]:
    """The files of a path; and whether it is a single file, not a folder or a pattern."""
    if path.exists():
        return (sorted(path.iterdir()), False) if path.is_dir() else ([path], True)
    files = sorted(map(Path, glob.glob(str(path), recursive=True))) if WILDCARDS & set(str(path)) else []
    if not files:
        raise ValueError(f"{path} does not exist")
    return list(files), False


def _list_url(source: str) -> tuple[list[Location], bool]:
    """The same for a URL."""
    with requires("", "listing the files of a URL"):
        from pyarrow import fs

    folder, _, last = source.rpartition("/")
    pattern = last if WILDCARDS & set(last) else None
    base = folder if pattern else source
    try:
        system, path = fs.FileSystem.from_uri(base)
        info = system.get_file_info(path)
        if info.type == fs.FileType.File:
            return [Url(source)], True
        if info.type != fs.FileType.Directory:
            raise ValueError(f"{source} does not exist")
        listed = system.get_file_info(fs.FileSelector(path))
    except (OSError, NotImplementedError) as error:
        raise ValueError(f"{source} cannot be listed: {short_message(error)}") from error
    names = sorted(info.base_name for info in listed if info.type == fs.FileType.File)
    files: list[Location] = [Url(f"{base}/{name}") for name in names if pattern is None or fnmatch(name, pattern)]
    if not files:
        raise ValueError(f"{source} is empty")
    return files, False


# Frames


def is_frame(source: object) -> bool:
    """Whether this is a table in memory: of Polars, of pandas, or anything that exports Arrow streams."""
    return isinstance(source, pl.LazyFrame) or hasattr(source, "__arrow_c_stream__") or _is_pandas_frame(source)


def _is_pandas_frame(source: object) -> bool:
    return is_pandas(source) and hasattr(source, "columns")


def column_names(frame: Any) -> list[str]:
    """The names of a frame's columns."""
    if _is_pandas_frame(frame):
        return [str(name) for name in frame.columns]
    return _lazy(frame).collect_schema().names()


def select_columns(frame: Any, columns: Sequence[str]) -> pl.LazyFrame:
    """Some columns of a frame; only those of pandas are copied."""
    if not _is_pandas_frame(frame):
        return _lazy(frame).select(columns)
    names = column_names(frame)
    for column in columns:
        if names.count(column) > 1:
            raise ValueError(f"the frame has {names.count(column)} columns {column!r}: rename all but one")
    return pl.DataFrame({column: _from_pandas(frame.iloc[:, names.index(column)]) for column in columns}).lazy()


def _lazy(frame: Any) -> pl.LazyFrame:
    return frame if isinstance(frame, pl.LazyFrame) else pl.DataFrame(frame).lazy()


def _from_pandas(column: Any) -> pl.Series:
    """A column of pandas; as text if its values have several types.

    Where pyarrow is needed and missing, whole numbers are integers, and everything else is text.
    """
    try:
        return cast(pl.Series, pl.from_pandas(column))
    except (ValueError, TypeError, NotImplementedError, ImportError):
        missing = column.isna()
        values = [None if is_missing else value for value, is_missing in zip(column, missing, strict=True)]
        numbers = as_given([value for value in values if value is not None])
        if isinstance(numbers, np.ndarray):
            following = iter(numbers.tolist())
            return pl.Series([None if value is None else next(following) for value in values], dtype=pl.Int64)
        return pl.Series([None if value is None else _text(value) for value in values], dtype=pl.String)


def _text(value: object) -> str:
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)

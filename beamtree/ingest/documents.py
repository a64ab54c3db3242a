"""Documents and their labels in any form: lists, frames, files, and the text format of the extreme classification sets.

A file of that format has a header `documents features labels`, and a line `label,label feature:value …` per document.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from beamtree.errors import short_message
from beamtree.files.staging import staging_folder
from beamtree.ingest.readers import holds_numbers, scan_file, text_id, text_ids
from beamtree.ingest.sources import column_names, is_frame, select_columns

TEXTS = ("text", "title", "document", "content", "body", "abstract")
LABELS = ("labels", "label", "subjects", "tags", "classes", "categories")
SPARSE = (".svm", ".txt")  # files that may be of the text format


class Documents(NamedTuple):
    """What was read: texts or entries of features, and the labels of each document, if it has any."""

    texts: list[str] | None
    features: tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]] | None  # row, column, value, shape
    labels: list[list[str]] | None
    num_labels: int | None = None  # of a file that says so
    numeric_labels: bool = False  # whether the column of labels holds numbers


def read_documents(
    source: Any, *, text: str | None = None, labels: str | None = None, separator: str | None = None, needs_labels: bool
) -> Documents:
    """The documents of a frame or a file.

    Args:
        source: a frame of Polars, pandas or Arrow, or a file: Parquet, CSV, JSON lines or the text format.
        text: the column of texts. Default: found by its name.
        labels: the column of labels: lists, or one label. Default: found by its name.
        separator: between the labels of a text column.
        needs_labels: whether documents without labels are an error.
    """
    if not is_frame(source):
        path = Path(source)
        if not path.is_file():
            raise ValueError(f"{path} is not a file: give texts, a frame or a file")
        if path.suffix in SPARSE and (header := _header(path)):
            return _read_sparse(path, header)
        given, source = path, scan_file(path, None, [name for name in (text, labels) if name])
    else:
        given = source
    columns = column_names(source)
    text = _find(columns, text, TEXTS, "texts", "text")
    wanted = [text]
    if labels is not None or needs_labels or any(name in LABELS for name in map(str.lower, columns)):
        labels = _find(columns, labels, LABELS, "labels", "labels")
        wanted.append(labels)
    try:
        frame = select_columns(source, wanted).lazy().collect()
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"the documents cannot be read: {short_message(error)}") from error
    if frame[text].dtype != pl.String:
        raise ValueError(f"column {text!r} holds {frame[text].dtype}: documents are texts")
    found = None if labels is None else _labels(frame, labels, separator)
    numeric = labels is not None and holds_numbers(given, frame.lazy(), labels)
    return Documents(frame[text].fill_null("").to_list(), None, found, numeric_labels=numeric)


def _find(columns: Sequence[str], name: str | None, usual: Sequence[str], what: str, option: str) -> str:
    if name is None:
        lower = {column.lower(): column for column in reversed(columns)}
        name = next((lower[each] for each in usual if each in lower), None)
        if name is None:
            raise ValueError(f"no column looks like {what}: name it with `{option}`; there are {', '.join(columns)}")
    if name not in columns:
        raise ValueError(f"there is no column {name!r}: there are {', '.join(columns)}")
    return name


def _labels(frame: pl.DataFrame, column: str, separator: str | None) -> list[list[str]]:
    dtype = frame[column].dtype
    if isinstance(dtype, pl.List | pl.Array):
        lists = frame.select(text_ids(column, dtype).fill_null([]))[column].to_list()
    else:
        values = frame.select(text_id(column, dtype))[column].to_list()
        lists = [[] if each is None else each.split(separator) if separator else [each] for each in values]
    return [[label.strip() for label in each if label and label.strip()] for each in lists]


def _header(path: Path) -> tuple[int, int, int] | None:
    """Documents, features and labels of the text format; None for any other file."""
    with path.open(encoding="utf-8", errors="replace") as file:
        words = file.readline().split()
    if len(words) != 3 or not all(word.isascii() and word.isdigit() for word in words):
        return None
    return int(words[0]), int(words[1]), int(words[2])


def _read_sparse(path: Path, header: tuple[int, int, int]) -> Documents:
    num_documents, num_features, num_labels = header
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    labels: list[list[str]] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        next(file)
        for number, line in enumerate(file):
            head, _, rest = line.rstrip("\n").partition(" ")
            if ":" in head:  # no label
                head, rest = "", line
            own = [label for label in head.split(",") if label]
            try:
                if "_" in line or not line.isascii():  # Python reads 1_000 and digits of other scripts
                    raise ValueError
                pairs = [(int(column), float(value)) for column, value in (p.split(":") for p in rest.split())]
                wrong = [label for label in own if not 0 <= int(label) < num_labels]
            except ValueError:
                raise ValueError(
                    f"{path}, line {number + 2} is not `label,label feature:value …`: {line[:60]!r}"
                ) from None
            if wrong:
                raise ValueError(
                    f"{path}, line {number + 2} has the label {wrong[0]}; its header says {num_labels:,} labels"
                )
            if any(not 0 <= column < num_features for column, _ in pairs):
                column = next(column for column, _ in pairs if not 0 <= column < num_features)
                raise ValueError(
                    f"{path}, line {number + 2} has the feature {column}; its header says {num_features:,} features"
                )
            rows += [number] * len(pairs)
            columns += [column for column, _ in pairs]
            values += [value for _, value in pairs]
            labels.append([str(int(label)) for label in own])
    if len(labels) != num_documents:
        raise ValueError(f"{path} has {len(labels):,} documents; its header says {num_documents:,}")
    features = (np.array(rows, np.int64), np.array(columns, np.int64), np.array(values, np.float32))
    return Documents(None, (*features, (num_documents, num_features)), labels, num_labels, numeric_labels=True)


def read_names(source: Any) -> dict[str, str]:
    """The names of labels by id: a dict, or a frame or file with the columns label (or id) and name."""
    if isinstance(source, dict):
        return {str(key).strip(): str(value) for key, value in source.items()}
    table = source if is_frame(source) else scan_file(Path(source), None, [])
    columns = column_names(table)
    label = _find(columns, None, ("label", "id", "item", "subject"), "ids of labels", "names")
    name = _find(columns, None, ("name", "title", "text", "pref_label"), "names of labels", "names")
    frame = select_columns(table, [label, name]).lazy().collect()
    ids = frame.select(text_id(label, frame[label].dtype))[label].to_list()
    return {key: value for key, value in zip(ids, frame[name].to_list(), strict=True) if key and value}


def write_frame(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame as Parquet, CSV or JSON lines, by the end of the name; a file is there completely or not at all."""
    writers = {".parquet": frame.write_parquet, ".csv": frame.write_csv, ".jsonl": frame.write_ndjson}
    if path.suffix not in writers:
        raise ValueError(f"{path} must end in {', '.join(writers)}")
    with staging_folder(path) as draft:
        writers[path.suffix](draft / path.name)  # type: ignore[operator]
        os.replace(draft / path.name, path)

"""What users pass to fit and predict, in any form: texts or features, and labels.

Polars is imported only where a frame or a file has to be read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from beamtree.classify.matrix import Matrix, empty, from_any, from_entries
from beamtree.data import Ids
from beamtree.data.ids import as_id, is_integer
from beamtree.errors import requires


def is_text(documents: Any) -> bool:
    """Whether this is one text, and not the name of a file."""
    return isinstance(documents, str) and not Path(documents[:255]).is_file()


class LoadedDocuments(NamedTuple):
    """Documents as texts or features, and their labels: lists of ids, or a matrix of documents and labels."""

    texts: list[str] | None
    features: Matrix  # where there are no texts
    labels: Any
    num_labels: int | None = None  # of a file that says so
    numeric_labels: bool = False  # whether the ids of all labels were numbers

    @property
    def size(self) -> int:
        """The number of documents."""
        return self.features.rows if self.texts is None else len(self.texts)


def open_documents(
    documents: Any,
    labels: Any = None,
    *,
    text: str | None = None,
    label_column: str | None = None,
    separator: str | None = None,
    needs_labels: bool = False,
) -> LoadedDocuments:
    """Documents in any form, and their labels where they are needed; a ValueError in one line where that fails.

    Args:
        documents: texts, a matrix, a frame or a file.
        labels: lists of labels or a matrix; None for those of a frame or a file.
        text: the column of texts.
        label_column: the column of labels.
        separator: between labels.
        needs_labels: whether labels are needed.
    """
    if documents is None:
        raise ValueError("there are no documents")
    if isinstance(documents, Iterator):
        documents = list(documents)
    if isinstance(documents, bytes | int | float | set | dict):
        kind = type(documents).__name__
        raise ValueError(f"documents are a {kind}: give a list of texts, a matrix, a frame or a file")
    is_matrix = hasattr(documents, "tocsr") or isinstance(documents, np.ndarray | torch.Tensor | Matrix)
    if isinstance(documents, np.ndarray) and documents.dtype.kind in "OUS":
        documents, is_matrix = documents.tolist(), False
    if is_matrix:
        x = from_any(documents.numpy() if isinstance(documents, torch.Tensor) else documents)
        opened = LoadedDocuments(None, x, *_lists(labels))
    elif isinstance(documents, list | tuple) or (hasattr(documents, "to_list") and not hasattr(documents, "columns")):
        texts = documents.to_list() if hasattr(documents, "to_list") else list(documents)
        wrong = next((index for index, each in enumerate(texts) if not isinstance(each, str)), None)
        if wrong is not None:
            raise ValueError(f"document {wrong} is {texts[wrong]!r:.60}: documents are texts, or rows of a matrix")
        opened = LoadedDocuments(texts, empty(0, 0), *_lists(labels))
    else:
        with requires("", "reading documents"):
            from beamtree.ingest.documents import read_documents
        read = read_documents(
            documents, text=text, labels=label_column, separator=separator, needs_labels=needs_labels and labels is None
        )
        entries = empty(0, 0) if read.features is None else from_entries(*read.features).without_zeros()
        of_file = read.labels, read.num_labels, read.numeric_labels
        opened = LoadedDocuments(read.texts, entries, *(of_file if labels is None else _lists(labels)))
    if not opened.size:
        raise ValueError("there are no documents")
    if needs_labels and opened.labels is None:
        raise ValueError("labels are missing: give one list of labels per document")
    if needs_labels:
        given = opened.labels.rows if isinstance(opened.labels, Matrix) else len(opened.labels)
        if given != opened.size:
            raise ValueError(f"{opened.size:,} documents, but labels for {given:,}: give one list of labels for each")
    return opened


def _lists(labels: Any) -> tuple[Any, None, bool]:
    """Labels as lists of ids, or as a matrix of documents and labels; and whether all of them were numbers."""
    if labels is None:
        return None, None, False
    if hasattr(labels, "tocsr") or (isinstance(labels, np.ndarray) and labels.ndim == 2):
        return from_any(labels), None, True
    each_of = labels.to_list() if hasattr(labels, "to_list") else list(labels)
    lists = [[each] if isinstance(each, str | int | np.integer | float) else list(each or ()) for each in each_of]
    kinds = {type(label) for each in lists for label in each if label is not None}
    numeric = all(issubclass(kind, int | float | np.number) and kind is not bool for kind in kinds)
    return [[as_id(label) for label in each if label is not None and as_id(label)] for each in lists], None, numeric


def number_labels(lists: Any, num_labels: int | None, numeric: bool = False) -> tuple[Ids, Matrix]:
    """Ids of labels in the order of their numbers, and a matrix of documents and labels.

    `numeric` says whether all ids were numbers; they are integers again in answers if all are whole.
    """
    if isinstance(lists, Matrix):
        ones = lists._replace(values=np.ones(len(lists.columns), np.float32))
        return Ids([str(number) for number in range(lists.width)], integer=True), ones
    if num_labels is not None:
        names = [str(number) for number in range(num_labels)]
    else:
        names = sorted({label for each in lists for label in each})
    if not names:
        raise ValueError("no document has a label")
    ids = Ids(check_ids(names), integer=numeric and all(map(is_integer, names)))
    rows = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
    columns = np.array(ids.find([label for each in lists for label in each]), np.int64)
    y = from_entries(rows, columns, np.ones(len(rows)), (len(lists), len(ids)))
    return ids, y._replace(values=np.ones(len(y.columns), np.float32))


def relevant_labels(ids: Ids, lists: Any) -> Matrix:
    """Documents and their labels by number; labels that are not known have numbers above all others."""
    if isinstance(lists, Matrix):
        names, entries, offsets = [str(number) for number in range(lists.width)], lists.columns, lists.offsets
    else:
        index: dict[str, int] = {}
        entries = np.array([index.setdefault(label, len(index)) for each in lists for label in each], np.int64)
        names, offsets = list(index), np.cumsum([0, *map(len, lists)])
    numbers = [len(ids) + place if each is None else each for place, each in enumerate(ids.find(names))]
    columns = np.array(numbers, np.int64)[entries]
    return Matrix(offsets, columns, np.ones(len(columns), np.float32), len(ids) + len(names))


def check_ids(names: list[str]) -> list[str]:
    """The ids of labels; a ValueError where one has a line break, since they are saved as lines."""
    broken = next((name for name in names if len(name.splitlines()) != 1), None)
    if broken is not None:
        raise ValueError(f"the label {broken[:60]!r} is empty or has a line break: ids of labels are one line each")
    return names


def read_label_names(names: Any) -> dict[str, str]:
    """Names of labels by id, from a dict, a frame or a file; none where nothing is given."""
    if names is None:
        return {}
    with requires("", "reading names of labels"):
        from beamtree.ingest.documents import read_names
    return read_names(names)

"""Sparse rows in NumPy: documents by features, and documents by labels."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from beamtree.errors import MAX_LENGTH
from beamtree.kernels.sparse import starts_of

LARGEST = float(np.finfo(np.float32).max)


class Matrix(NamedTuple):
    """Row i has the columns[offsets[i]:offsets[i + 1]], rising, with a value each."""

    offsets: np.ndarray  # int64 [n + 1]
    columns: np.ndarray  # int32 [E]
    values: np.ndarray  # float32 [E]
    width: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.offsets) - 1

    @property
    def parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Offsets, columns and values."""
        return self.offsets, self.columns, self.values

    def row_of_entry(self) -> np.ndarray:
        """The row of each entry [E]."""
        return np.repeat(np.arange(self.rows), np.diff(self.offsets))

    def take(self, rows: np.ndarray) -> "Matrix":
        """Some rows, in the order given."""
        counts = np.diff(self.offsets)[rows]
        offsets = starts_of(counts)
        entries = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][rows] - offsets[:-1], counts)
        return Matrix(offsets, self.columns[entries], self.values[entries], self.width)

    def transposed(self) -> "Matrix":
        """Columns as rows."""
        order = np.argsort(self.columns, kind="stable")
        offsets = starts_of(np.bincount(self.columns, minlength=self.width))
        rows = self.row_of_entry()[order].astype(np.int32)
        return Matrix(offsets, rows, self.values[order], self.rows)

    def normalized(self) -> "Matrix":
        """Rows of length 1, but for empty ones."""
        squares = np.bincount(self.row_of_entry(), self.values.astype(np.float64) ** 2, minlength=self.rows)
        scale = 1 / np.sqrt(np.where(squares == 0, 1, squares))
        return self._replace(values=(self.values * scale[self.row_of_entry()]).astype(np.float32))

    def without_zeros(self) -> "Matrix":
        """The same without entries of 0: a document does not have these features."""
        real = self.values != 0
        offsets = starts_of(np.bincount(self.row_of_entry()[real], minlength=self.rows))
        return Matrix(offsets, self.columns[real], self.values[real], self.width)

    def with_column(self, values: np.ndarray) -> "Matrix":
        """With one more column, the last [n]."""
        ends = self.offsets[1:]
        columns, all_values = np.insert(self.columns, ends, self.width), np.insert(self.values, ends, values)
        return Matrix(self.offsets + np.arange(self.rows + 1), columns, all_values, self.width + 1)

    def dense(self) -> np.ndarray:
        """All cells [n, width], for tests and small matrices."""
        result = np.zeros((self.rows, self.width), np.float32)
        result[self.row_of_entry(), self.columns] = self.values
        return result


def empty(rows: int, width: int) -> Matrix:
    """Rows without entries."""
    return Matrix(np.zeros(rows + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32), width)


def stack(*parts: Matrix) -> Matrix:
    """The rows of several matrices, one after the other."""
    return Matrix(
        starts_of(np.concatenate([np.diff(part.offsets) for part in parts])),
        np.concatenate([part.columns for part in parts]),
        np.concatenate([part.values for part in parts]),
        max(part.width for part in parts),
    )


def from_entries(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> Matrix:
    """A matrix of entries in any order; equal ones are added. A ValueError where one is NaN or beyond float32."""
    keys, index = np.unique(rows.astype(np.int64) * max(shape[1], 1) + columns, return_inverse=True)
    with np.errstate(over="ignore"):
        total = np.bincount(index, values, minlength=len(keys)).astype(np.float32)
    row, column = np.divmod(keys, max(shape[1], 1))
    offsets = starts_of(np.bincount(row, minlength=shape[0]))
    return checked(Matrix(offsets, column.astype(np.int32), total, shape[1]))


def from_dicts(rows: Sequence[Mapping[str, float]], width: int) -> Matrix:
    """Rows given as values by number of a feature; a ValueError where one is no number, or not below `width`."""
    for row in rows:
        for name, value in row.items():
            is_number = name.isascii() and name.isdigit() and len(name) <= MAX_LENGTH
            if not (is_number and int(name) < width and abs(value) <= LARGEST):
                raise ValueError(f"feature {name[:40]!r} is not one of 0 … {width - 1}, or not a number")
    index = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    columns = np.array([int(name) for row in rows for name in row], np.int64)
    values = np.array([value for row in rows for value in row.values()], np.float64)
    return from_entries(index, columns, values, (len(rows), width)).without_zeros()


def from_any(source: Any) -> Matrix:
    """A SciPy sparse matrix or a dense array as a matrix; a ValueError where a value is NaN or infinite."""
    if isinstance(source, Matrix):
        return source
    if hasattr(source, "tocsr"):
        rows = source.tocsr(copy=True)
        rows.sum_duplicates()
        rows.eliminate_zeros()
        matrix = Matrix(
            rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data.astype(np.float32), rows.shape[1]
        )
    else:
        dense = np.asarray(source, np.float32)
        if dense.ndim != 2:
            raise ValueError(f"features have the shape {list(dense.shape)}: give one row per document")
        row, column = dense.nonzero()
        offsets = starts_of(np.bincount(row, minlength=len(dense)))
        matrix = Matrix(offsets, column.astype(np.int32), dense[row, column], dense.shape[1])
    return checked(matrix)


def checked(matrix: Matrix) -> Matrix:
    """The matrix; a ValueError where a value is NaN or infinite."""
    wrong = ~np.isfinite(matrix.values)
    if wrong.any():
        document = int(matrix.row_of_entry()[wrong.argmax()])
        raise ValueError(f"the features of document {document} hold NaN or infinity")
    return matrix

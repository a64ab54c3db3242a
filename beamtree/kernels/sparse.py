"""Sparse matrices of the closed form on a CPU: how the compiled functions are called."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beamtree.threads import parallel_map

ROWS_AT_ONCE = 512  # that a thread solves for

Rows = tuple[Tensor, Tensor, Tensor]  # offsets, columns and values of compressed rows


def distinct_rows(x: Tensor, weights: Tensor) -> Rows:
    """The items of lists x [B, T] as rows: of a repeated item the first counts, with the weight [≥ T] there."""
    offsets, items = np.empty(len(x) + 1, np.int64), np.empty(x.numel(), np.int32)
    values = np.empty(x.numel(), np.float32)
    _compiled().compact(x.numpy(), weights.numpy(), offsets, items, values)
    count = offsets[-1]
    return torch.from_numpy(offsets), torch.from_numpy(items[:count].copy()), torch.from_numpy(values[:count].copy())


def sum_products(first: Rows, second: Rows, size: int) -> Rows:
    """Σ_r a_ri b_rj over the rows of two matrices with columns 0 … size - 1, as rows of i whose columns j rise."""
    cpu_sparse = _compiled()
    a, b = ([part.numpy() for part in rows] for rows in (first, second))
    by_column = _transposed(b[0], b[1], b[2], size)
    counts = np.zeros(size, np.int64)
    spans = _spans(size)

    def count(span: tuple[int, int]) -> None:
        cpu_sparse.count_product(*span, *by_column[:2], *a[:2], np.full(size, -1, np.int64), counts)

    parallel_map(count, spans)
    offsets = np.concatenate([np.zeros(1, np.int64), counts.cumsum()])
    columns, values = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.float32)

    def fill(span: tuple[int, int]) -> None:
        cpu_sparse.product(*span, *by_column, *a, np.full(size, np.nan, np.float32), offsets, columns, values)

    parallel_map(fill, spans)
    offsets, columns, values = _transposed(offsets, columns, values, size, np.int64)
    return torch.from_numpy(offsets), torch.from_numpy(columns), torch.from_numpy(values)


def _transposed(offsets: Any, columns: Any, values: Any, size: int, dtype: Any = np.int32) -> tuple[Any, Any, Any]:
    """Arrays of rows for columns, with columns of a dtype."""
    result = np.zeros(size + 1, np.int64), np.empty(len(columns), dtype), np.empty(len(columns), np.float32)
    _compiled().transpose(offsets, columns, values, *result)
    return result


def strongest(row: Tensor, column: Tensor, value: Tensor, num_rows: int, most: int) -> Rows:
    """`data.csr.strongest` as offsets, columns and values."""
    cpu_sparse = _compiled()
    start, order = np.zeros(num_rows + 1, np.int64), np.empty(len(row), np.int64)
    cpu_sparse.group(row.numpy(), start, order)
    counts = np.empty(num_rows, np.int64)
    columns, values = np.empty((num_rows, most), np.int32), np.empty((num_rows, most), np.float32)

    def select(span: tuple[int, int]) -> None:
        cpu_sparse.strongest(*span, start, order, column.numpy(), value.numpy(), most, counts, columns, values)

    parallel_map(select, _spans(num_rows))
    return _packed(counts, columns, values)


def strongest_of_dense(weights: Tensor, per_column: int, most: int) -> Rows:
    """The strongest entries of each row of a matrix [n, c] among the `per_column` strongest of their columns."""
    cpu_sparse, rows = _compiled(), weights.contiguous().numpy()
    least = np.zeros(rows.shape[1], np.float32)
    if per_column < len(rows):
        by_column = weights.T.contiguous().numpy()
        parallel_map(lambda span: cpu_sparse.thresholds(*span, by_column, per_column, least), _spans(len(by_column)))
    most = min(most, rows.shape[1])
    counts = np.empty(len(rows), np.int64)
    columns, values = np.empty((len(rows), most), np.int32), np.empty((len(rows), most), np.float32)
    parallel_map(
        lambda span: cpu_sparse.strongest_of_dense(*span, rows, least, most, counts, columns, values),
        _spans(len(rows)),
    )
    return _packed(counts, columns, values)


def recalls(scores: Tensor, weights: Tensor, gain: Tensor, real: Tensor, cuts: list[int]) -> Tensor:
    """The recall of each user at each cut, of items in the order of weighted scores: see `cpu_sparse.recalls`."""
    cpu_sparse, result = _compiled(), np.empty((len(scores), len(cuts)), np.float32)
    arrays = [tensor.contiguous().numpy() for tensor in (scores, weights, gain, real)]
    parallel_map(lambda span: cpu_sparse.recalls(*span, *arrays, np.array(cuts), result), _spans(len(scores)))
    return torch.from_numpy(result)


def _spans(count: int) -> list[tuple[int, int]]:
    """Parts of a range, several for each thread."""
    steps = np.linspace(0, count, min(count, 4 * torch.get_num_threads()) + 1).astype(np.int64).tolist()
    return [span for span in pairwise(steps) if span[0] < span[1]]


def _packed(counts: Any, columns: Any, values: Any) -> Rows:
    """Offsets, columns and values of rows that have room for more."""
    real = np.arange(columns.shape[1]) < counts[:, None]
    offsets = np.concatenate([np.zeros(1, np.int64), counts.cumsum()])
    return torch.from_numpy(offsets), torch.from_numpy(columns[real]), torch.from_numpy(values[real])


def fold_in_rows(
    rows: Tensor, offsets: Tensor, columns: Tensor, vectors: Tensor, gram_diagonal: Tensor, penalty: float,
    everywhere: float, result: Tensor,
) -> None:  # fmt: skip
    """`scorers.factors.fold_in` of all entries of some rows, none longer than a vector, with weight 1, into result."""
    cpu_sparse = _compiled()

    def solve(each: Tensor) -> None:
        cpu_sparse.fold_in_rows(
            each.numpy(), offsets.numpy(), columns.numpy(), vectors.numpy(), gram_diagonal.numpy(),
            np.float32(penalty), np.float32(everywhere), result.numpy(),
        )  # fmt: skip

    parallel_map(solve, rows.split(ROWS_AT_ONCE))


def _compiled() -> Any:
    from beamtree.kernels import cpu_sparse  # Numba takes a moment to import

    return cpu_sparse

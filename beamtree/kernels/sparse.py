"""Sparse matrices of the closed form on a CPU: how the compiled functions are called."""

from threading import local
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beamtree.kernels import compiling
from beamtree.kernels.threads import parallel_map, spans

ROWS_AT_ONCE = 512  # that a thread solves for
# Entries that conjugate gradients read in all rounds, as a share of the cells: they take half of Cholesky
MAX_SHARE_READ = 0.2
ROUNDS = 4  # of conjugate gradients, at least
TOLERANCE = 1e-6  # as exact as Cholesky with float32

Rows = tuple[Tensor, Tensor, Tensor]  # offsets, columns and values of compressed rows
_SCRATCH = local()  # zeros that the functions of a thread share


def distinct_spans(
    events: Tensor, start: Tensor, stop: Tensor, weights: Tensor, worth: Tensor | None = None, *, newest_first: bool
) -> Rows:
    """The items of lists events[start … stop] [B] each as rows: the first ones, or newest first those at the end.

    There are at most as many as weights. Of a repeated item the first counts, with the weight there; PAD is left out.
    With `worth` of the events, an item has the largest size of its own instead of a weight.
    """
    most = int((stop - start).clamp(min=0, max=len(weights)).sum())
    offsets, items, values = np.empty(len(start) + 1, np.int64), np.empty(most, np.int32), np.empty(most, np.float32)
    own = np.empty(0, np.float32) if worth is None else worth.numpy()
    spans_of = (events.numpy(), start.numpy(), stop.numpy())
    compiling.load("compiled_sparse").compact_spans(
        *spans_of, newest_first, weights.numpy(), own, offsets, items, values
    )
    count = offsets[-1]
    return torch.from_numpy(offsets), torch.from_numpy(items[:count].copy()), torch.from_numpy(values[:count].copy())


def distinct_crops(start: Tensor, cut: Tensor, stop: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The start, cut and end of the distinct crops of each user [n] each, given R of everyone [R, U], and how often
    each of them occurs [n].
    """
    crops, times = np.empty((3, start.numel()), np.int64), np.empty(start.numel(), np.float32)
    count = compiling.load("compiled_sparse").distinct_crops(start.numpy(), cut.numpy(), stop.numpy(), crops, times)
    return *torch.from_numpy(crops[:, :count]), torch.from_numpy(times[:count])


def sum_products(first: Rows, second: Rows, size: int) -> Rows:
    """Σ_r a_ri b_rj over the rows of two matrices with columns 0 … size - 1, as rows of i whose columns j rise."""
    compiled_sparse = compiling.load("compiled_sparse")
    a, b = ([part.numpy() for part in each] for each in (first, second))
    by_column = _transposed(b[0], b[1], b[2], size)
    counts = np.zeros(size, np.int64)
    rows = spans(size)

    def count(span: tuple[int, int]) -> None:
        compiled_sparse.count_product(*span, *by_column[:2], *a[:2], np.full(size, -1, np.int64), counts)

    parallel_map(count, rows)
    offsets = starts_of(counts)
    columns, values = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.float32)

    def fill(span: tuple[int, int]) -> None:
        compiled_sparse.product(*span, *by_column, *a, np.full(size, np.nan, np.float32), offsets, columns, values)

    parallel_map(fill, rows)
    offsets, columns, values = _transposed(offsets, columns, values, size)
    return torch.from_numpy(offsets), torch.from_numpy(columns), torch.from_numpy(values)


def multiply(rows: Rows, dense: Tensor) -> Tensor:
    """The product of a sparse matrix with a dense one."""
    compiled_sparse, (offsets, columns, values) = compiling.load("compiled_sparse"), (part.numpy() for part in rows)
    result = np.empty((len(offsets) - 1, dense.shape[1]), np.float32)
    factor = dense.contiguous().numpy()
    parallel_map(
        lambda span: compiled_sparse.multiply(*span, offsets, columns, values, factor, result), spans(len(result))
    )
    return torch.from_numpy(result)


def transposed(rows: Rows, size: int) -> Rows:
    """Rows for columns 0 … size - 1."""
    offsets, columns, values = (part.numpy() for part in rows)
    offsets, columns, values = _transposed(offsets, columns, values, size)
    return torch.from_numpy(offsets), torch.from_numpy(columns), torch.from_numpy(values)


def _transposed(offsets: Any, columns: Any, values: Any, size: int) -> tuple[Any, Any, Any]:
    """Arrays of rows for columns."""
    result = np.zeros(size + 1, np.int64), np.empty(len(columns), np.int32), np.empty(len(columns), np.float32)
    compiling.load("compiled_sparse").transpose(offsets, columns, values, *result)
    return result


def strongest(row: Tensor, column: Tensor, value: Tensor, num_rows: int, most: int) -> Rows:
    """`data.csr.strongest` as offsets, columns and values."""
    compiled_sparse = compiling.load("compiled_sparse")
    start, order = np.zeros(num_rows + 1, np.int64), np.empty(len(row), np.int64)
    compiled_sparse.group(row.numpy(), start, order)
    counts = np.empty(num_rows, np.int64)
    columns, values = np.empty((num_rows, most), np.int32), np.empty((num_rows, most), np.float32)

    def select(span: tuple[int, int]) -> None:
        compiled_sparse.strongest(*span, start, order, column.numpy(), value.numpy(), most, counts, columns, values)

    parallel_map(select, spans(num_rows))
    return _packed(counts, columns, values)


def strongest_of_dense(weights: Tensor, per_column: int, most: int) -> Rows:
    """The strongest entries of each row of a matrix [n, c] among the `per_column` strongest of their columns."""
    compiled_sparse, rows = compiling.load("compiled_sparse"), weights.contiguous().numpy()
    least = np.zeros(rows.shape[1], np.float32)
    if per_column < len(rows):
        by_column = weights.T.contiguous().numpy()
        parallel_map(
            lambda span: compiled_sparse.thresholds(*span, by_column, per_column, least), spans(len(by_column))
        )
    most = min(most, rows.shape[1])
    counts = np.empty(len(rows), np.int64)
    columns, values = np.empty((len(rows), most), np.int32), np.empty((len(rows), most), np.float32)
    parallel_map(
        lambda span: compiled_sparse.strongest_of_dense(*span, rows, least, most, counts, columns, values),
        spans(len(rows)),
    )
    return _packed(counts, columns, values)


def recalls(scores: Tensor, weights: Tensor, gain: Tensor, real: Tensor, cuts: list[int]) -> Tensor:
    """The recall of each user at each cut, of items in the order of scores with the weights of each trial [T, U, cuts].

    Weights are [T, parts]; for the rest see `compiled_sparse.recalls`.
    """
    compiled_sparse = compiling.load("compiled_sparse")
    result = np.empty((len(weights), len(scores), len(cuts)), np.float32)
    arrays = [tensor.contiguous().numpy() for tensor in (scores, weights, gain, real)]
    parallel_map(lambda span: compiled_sparse.recalls(*span, *arrays, np.array(cuts), result), spans(len(scores)))
    return torch.from_numpy(result)


def starts_of(counts: Any) -> Any:
    """Where each of some rows starts, and the end [n + 1]."""
    return np.concatenate([np.zeros(1, np.int64), counts.cumsum()])


def _packed(counts: Any, columns: Any, values: Any) -> Rows:
    """Offsets, columns and values of rows that have room for more."""
    real = np.arange(columns.shape[1]) < counts[:, None]
    offsets = starts_of(counts)
    return torch.from_numpy(offsets), torch.from_numpy(columns[real]), torch.from_numpy(values[real])


def fold_in_rows(
    rows: Tensor, offsets: Tensor, columns: Tensor, weights: Tensor | None, vectors: Tensor, gram_diagonal: Tensor,
    penalty: float, unobserved_weight: float, result: Tensor,
) -> None:  # fmt: skip
    """`scorers.factors.fold_in` of all entries of some rows, none longer than a vector, into result.

    Their weights are 1 unless given.
    """
    compiled_sparse = compiling.load("compiled_sparse")
    values = np.empty(0, np.float32) if weights is None else weights.numpy()

    def solve(each: Tensor) -> None:
        compiled_sparse.fold_in_rows(
            each.numpy(), offsets.numpy(), columns.numpy(), values, vectors.numpy(), gram_diagonal.numpy(),
            np.float32(penalty), np.float32(unobserved_weight), result.numpy(),
        )  # fmt: skip

    parallel_map(solve, rows.split(ROWS_AT_ONCE))


def predictors(rows: Rows, block: Tensor, diagonal: Tensor, penalty: float, most: int) -> tuple[Tensor, Tensor]:
    """The items that predict a block best, with the block [S], and its rows as columns [S, b]."""
    arrays, items = [part.numpy() for part in rows], block.numpy()
    chosen = np.empty(most + len(items), np.int64)
    total, _ = _zeros(len(diagonal))
    count = compiling.load("compiled_sparse").predictors(
        items, *arrays, diagonal.numpy(), np.float32(penalty), most, total, chosen
    )
    best = torch.from_numpy(chosen[:count])
    return best, dense(rows, block, best).T


def dense(rows: Rows, which: Tensor, among: Tensor) -> Tensor:
    """Some rows of a matrix, of the columns `among` alone [rows, columns]."""
    result, arrays = np.zeros((len(which), len(among)), np.float32), [part.numpy() for part in rows]
    compiling.load("compiled_sparse").dense_rows(
        which.numpy(), among.numpy(), *arrays, _zeros(len(arrays[0]) - 1)[1], result
    )
    return torch.from_numpy(result)


def dense_block(rows: Rows, chosen: Tensor, rank: Tensor, dense: Tensor) -> Tensor:
    """The block of some items of a symmetric matrix [S, S]: see `compiled_sparse`."""
    system = np.zeros((len(chosen), len(chosen)), np.float32)
    arrays = [part.numpy() for part in (*rows, rank, dense)]
    compiling.load("compiled_sparse").dense_block(chosen.numpy(), *arrays, _zeros(len(rank))[1], system)
    return torch.from_numpy(system)


def solve_sparse(system: Tensor, right: Tensor) -> Tensor | None:
    """The solution of a positive definite system [S, S], mostly zeros, for a right side [S, b].

    It is found by conjugate gradients. None where the system has too many entries for that, or they do not converge.
    """
    most = int(MAX_SHARE_READ * system.numel() / ROUNDS)
    offsets, columns = np.empty(len(system) + 1, np.int64), np.empty(most, np.int32)
    values = np.empty(most, np.float32)
    count = compiling.load("compiled_sparse").compress(system.numpy(), offsets, columns, values)
    if not 0 < count <= most:
        return None
    diagonal, rounds = system.diagonal().contiguous().numpy(), int(MAX_SHARE_READ * system.numel() / count)
    solution = np.zeros(right.shape, np.float32)
    converged = compiling.load("compiled_sparse").conjugate_gradients(
        offsets, columns, values, diagonal, right.contiguous().numpy(), rounds, TOLERANCE, solution
    )
    return torch.from_numpy(solution) if converged else None


def largest_of_columns(weights: Tensor, most: int) -> Tensor:
    """The rows of the largest absolute values of each column [most, columns]."""
    by_column = weights.T.contiguous().numpy()
    chosen = np.empty((len(by_column), most), np.int64)
    compiling.load("compiled_sparse").largest_of_rows(by_column, most, chosen)
    return torch.from_numpy(chosen).T


def near_items(
    offsets: Tensor, items: Tensor, weights: Tensor | None, window: int, backward: float, scale: Tensor, most: int
) -> Rows:
    """Sequential rules of all items: partners within `window` events of a user, weighted by 1/gap and `scale` [M].

    The event of the partner counts with its weight [E], 1 unless given.
    """
    compiled_sparse, size = compiling.load("compiled_sparse"), len(scale)
    worth = np.empty(0, np.float32) if weights is None else weights.numpy()
    of_user = torch.repeat_interleave(offsets.diff()).numpy()
    starts, events = np.zeros(size + 1, np.int64), np.empty(len(items), np.int64)
    compiled_sparse.group(items.numpy(), starts, events)
    most = min(most, size)
    counts = np.empty(size, np.int64)
    columns, values = np.empty((size, most), np.int32), np.empty((size, most), np.float32)

    def find(span: tuple[int, int]) -> None:
        compiled_sparse.near_items(
            *span, starts, events, of_user, items.numpy(), worth, window, backward, scale.numpy(), most,
            np.zeros(size, np.float32), counts, columns, values,
        )  # fmt: skip

    parallel_map(find, spans(size))
    return _packed(counts, columns, values)


def _zeros(size: int) -> tuple[Any, Any]:
    """Zeros for every item, real and whole numbers, which are to be zero again after their use."""
    if getattr(_SCRATCH, "size", None) != size:
        _SCRATCH.size, _SCRATCH.zeros = size, (np.zeros(size, np.float32), np.zeros(size, np.int32))
    zeros: tuple[Any, Any] = _SCRATCH.zeros
    return zeros

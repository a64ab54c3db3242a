"""The strongest directions of a sparse matrix whose rows lie on several ranks, and whose columns are dealt out.

The columns are items. A vector for each of them, the basis, is dealt out too, so that no rank has all of it. A rank
pulls what its rows of the matrix hold, some rows at a time, and sends sums back. The result is that of one rank within
rounding, signs included: bases are turned as Householder's reflections, by which torch finds them, would turn them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from beamtree.distributed import exchange as routes
from beamtree.distributed.exchange import Dealt, Route, dealt, in_step
from beamtree.distributed.group import ranks

ROOM = 1 << 16  # rows that are multiplied by a small matrix at once
TWICE = 2  # the second time is for what rounding left of the first
NOTHING = 16.0  # roundings: a column that differs by less from those before it adds nothing to them
LEAST = 1e-13  # the same as the share of a square, below which double precision knows nothing


@dataclass(frozen=True)
class Piece:
    """Some rows of the matrix, with the distinct items that they hold: n.

    Args:
        start: the first of the rows, counted on this rank.
        matrix: sparse [rows, n].
        back: its transpose.
        route: of the n items to the ranks that they are dealt to.
        asked: which of the items here the ranks ask for, as places in a part.
    """

    start: int
    matrix: Tensor
    back: Tensor
    route: Route
    asked: Tensor

    def take(self, part: Tensor, weight: Tensor) -> Tensor:
        """The vectors of the n items, times their weights, of tables of which a part is here; all ranks must ask."""
        return self.route.back(part[self.asked].mul_(weight[self.asked]))

    def give_(self, part: Tensor, values: Tensor) -> None:
        """Add values for the n items to a table of which `part` is here; all ranks must give."""
        part.index_add_(0, self.asked, self.route.there(values))


class Matrix:
    """D_r^{-1/2} A D_i^{-1/2}, where D_r and D_i say how many entries each row and item has.

    All ranks make it together, and use it together.

    Args:
        row: the rows of A that this rank alone has, in order [E].
        item: what they hold, every pair once [E].
        num_items: M.
    """

    def __init__(self, row: Tensor, item: Tensor, num_items: int) -> None:
        self.num_items, device = num_items, row.device
        self._pieces = list(_pieces(row, item))
        times = torch.zeros(len(dealt(num_items)), dtype=torch.int64, device=device)
        for piece in self._pieces:
            piece.give_(times, torch.bincount(piece.back.indices()[0], minlength=len(piece.back)))
        self._weight = times.clamp(min=1).rsqrt().unsqueeze(1)  # of own items

    def times(self, part: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        """The product with a basis of which `part` is here, for some own rows after the other."""
        for piece in self._pieces:
            yield piece, torch.sparse.mm(piece.matrix, piece.take(part, self._weight))

    def there_and_back(self, part: Tensor) -> Tensor:
        """The product of the transpose and that product: the part of it that is here."""
        found = torch.zeros_like(part)
        for piece, along in self.times(part):
            piece.give_(found, torch.sparse.mm(piece.back, along))
        return found.mul_(self._weight)


def _pieces(row: Tensor, item: Tensor) -> Iterator[Piece]:
    """Rows one after the other with at most `routes.PULLED` entries, unless one has more; on all ranks equally many."""
    count = torch.bincount(row)
    ends = torch.nn.functional.pad(count.cumsum(0), (1, 0))
    value, cuts = count[row].rsqrt(), [0]
    while cuts[-1] < len(count):
        last = int(torch.searchsorted(ends, ends[cuts[-1]] + routes.PULLED, right=True)) - 1
        cuts.append(max(last, cuts[-1] + 1))
    for place in in_step(len(cuts) - 1):
        first, stop = (0, 0) if place is None else (cuts[place], cuts[place + 1])
        entries = slice(int(ends[first]), int(ends[stop]))
        ids, column = torch.unique(item[entries], return_inverse=True)
        at, shape = torch.stack([row[entries] - first, column]), (stop - first, len(ids))
        matrix = torch.sparse_coo_tensor(at, value[entries], shape, check_invariants=False).coalesce()
        route = Route(ids % ranks().size)
        yield Piece(first, matrix, matrix.t().coalesce(), route, route.there(ids) // ranks().size)


def orthonormal_(part: Tensor, num_items: int) -> Tensor:
    """Q of the QR decomposition of a basis of which `part` is here, in its place.

    Columns that add nothing to those before them become 0.
    """
    for _ in range(TWICE):
        _, inverse = triangle(ranks().sum_(_gram(part)), part.dtype)
        _turn_(part, inverse)
    first = Dealt(part, num_items).at(torch.arange(part.shape[1], device=part.device))
    return part.mul_(ranks().broadcast_(householder_signs(first)))


def strongest_(matrix: Matrix, part: Tensor, start: int, users: int) -> Tensor:
    """VΣ of the product of a matrix and an orthonormal basis of which `part` is here, in its place.

    Args:
        matrix: A.
        part: of the basis.
        start: the number that the first row of A on this rank has on one rank.
        users: how many rows follow it there.
    """
    width = part.shape[1]
    gram, top = part.new_zeros(width, width, dtype=torch.float64), part.new_zeros(width, width)
    for piece, along in matrix.times(part):
        gram += _gram(along)
        first = along[: max(0, min(users, width - start) - piece.start)]  # of those that are first on one rank
        top[start + piece.start :][: len(first)] = first
    root, inverse = triangle(ranks().sum_(gram), part.dtype)
    signs = householder_signs(ranks().sum_(top) @ inverse)
    _, strength, turn = torch.linalg.svd(root * signs.unsqueeze(1), full_matrices=False)
    return _turn_(part, ranks().broadcast_(turn.T * strength))


def triangle(gram: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """R with RᵀR = gram, diagonal above 0, and R⁻¹, by Cholesky in double precision [w, w].

    Columns that add nothing to those before them have a 0 on the diagonal, and are left out of R⁻¹.
    """
    size = gram.diagonal().sqrt()
    size = torch.where(size > 0, size, 1.0)
    scaled, low = gram / size / size.unsqueeze(1), torch.zeros_like(gram)
    least = max((NOTHING * torch.finfo(kind).eps) ** 2, LEAST)
    for j in range(len(gram)):
        left = scaled[j:, j] - low[j:, :j] @ low[j, :j]
        low[j:, j] = torch.where(left[0] > least, left / left[0].clamp(min=least).sqrt(), 0.0)
    adds = low.diagonal() > 0
    root, one = low.T * size, torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    inverse = torch.linalg.solve_triangular(torch.where(adds, root, one), one, upper=True) * adds
    return root.to(kind), ranks().broadcast_(inverse).to(kind)


def householder_signs(top: Tensor) -> Tensor:
    """The signs by which columns of Householder's Q differ from those of orthonormal columns whose R is above 0 [w].

    Of these, the first w rows are enough: the product of the reflections is I - YTYᵀ with a triangular Y, so the signs
    S are those for which an LU decomposition of Q - S never meets a small pivot (Ballard et al. 2014).
    """
    left = top.to(torch.float64, copy=True)
    signs = torch.ones_like(left[0])
    for j in range(len(left)):
        signs[j] = torch.where(left[j, j] < 0, 1.0, -1.0)
        rest = torch.outer(left[j + 1 :, j], left[j, j + 1 :]) / (left[j, j] - signs[j])
        left[j + 1 :, j + 1 :] = left[j + 1 :, j + 1 :] - rest
    return signs.to(top.dtype)


def _gram(rows: Tensor) -> Tensor:
    """The products of all columns, in double precision [w, w]."""
    found = rows.new_zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
    for some in rows.split(ROOM):
        double = some.double()
        found += double.T @ double
    return found


def _turn_(rows: Tensor, by: Tensor) -> Tensor:
    """The product with a small matrix, in the place of the rows."""
    for some in rows.split(ROOM):
        some.copy_(some @ by)
    return rows

"""A log as a graph of users and items: which items are two steps away, where those with many neighbours count less.

R̃ = D_u^-1/2 R D_i^-1/2, where R says which user chose which item. A user of more than 300 events has several rows, of
runs that are equally long. Where events have weights, R has the root of the highest of a row and an item. D_u are the
numbers of items of each row. D_i are the numbers of rows of each item; with weights, the sums of the rows of RᵀD_u⁻¹R,
which are the same without.
"""

from torch import Tensor

from beamtree.closed_form.cooccurrence import ItemMatrix
from beamtree.data.csr import CSR, concatenate, strongest
from beamtree.scorers.memory import PARTNERS

ENTRIES_AT_ONCE = 1 << 24  # of the matrix, that are sorted at once


def graph_partners(gram: ItemMatrix, items: Tensor, most: int = PARTNERS) -> CSR:
    """The largest entries of rows of R̃ᵀR̃, without the diagonal.

    Args:
        gram: RᵀD_u⁻¹R, from `cooccurrence` with the power 1.
        items: the rows [n].
        most: N partners of an item.
    """
    scale = gram.row_sums().clamp(min=1e-30).rsqrt()
    rows_at_once = max(1, ENTRIES_AT_ONCE * len(items) // max(1, len(gram.values)))
    parts = []
    for some in items.split(rows_at_once):
        index, column, value = ItemMatrix.rows(gram, some)
        column = column.long()
        value = (value * scale[some][index] * scale[column]).masked_fill_(column == some[index], 0.0)
        parts.append(strongest(index, column, value, len(some), most))
    return concatenate(parts)

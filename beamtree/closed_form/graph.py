"""A log as a graph of users and items: who is two steps away, and the smooth part of a history.

R̃ = D_u^-1/2 R D_i^-1/2, where R says which user, or run of a user with many events, chose which item. D_u are the
numbers of items of each row. D_i are the numbers of users of each item; where events have weights, the sums of the rows
of RᵀD_u⁻¹R, which are the same where they have none.
"""

import torch
from torch import Tensor

from beamtree.closed_form.cooccurrence import ItemMatrix, items_of_runs
from beamtree.data.csr import CSR, concatenate, strongest
from beamtree.data.events import Events
from beamtree.data.factors import singular_vectors
from beamtree.scorers.memory import PARTNERS

ENTRIES_AT_ONCE = 1 << 24  # of the matrix, that are sorted at once
DIM = 256  # of a low-pass


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


def low_pass(events: Events, num_items: int, dim: int = DIM, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The leading right singular vectors V of R̃, and the degrees D_i [M, dim], [M].

    A history x, a row like those of R, has the scores x D_i^-1/2 V Vᵀ D_i^1/2.
    """
    runs = items_of_runs(events, num_items, power=1.0)
    row, item = runs.row_of_entry(), runs.columns.long()
    assert runs.values is not None
    row_sums = torch.zeros(len(runs), device=row.device).index_add_(0, row, runs.values)
    degrees = torch.zeros(num_items, device=row.device).index_add_(0, item, runs.values * row_sums[row])
    value = runs.values * degrees.clamp(min=1e-30).rsqrt()[item]
    vectors, _ = singular_vectors(row, item, value, (len(runs), num_items), min(dim, num_items, len(runs)), seed)
    return vectors, degrees

"""Sparse matrices of users, histories and items."""

import numpy as np
import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from torch import Tensor

from beamtree.data import Events
from beamtree.data.csr import CSR
from beamtree.data.factors import weighted_pairs
from beamtree.tree import PAD


def user_items(events: Events, num_items: int) -> csr_matrix:
    """Where a user has an item, the highest weight of its events, 1 unless events have weights [U, M]."""
    user, item, weight = weighted_pairs(events.to("cpu"), num_items)
    values = torch.ones(len(user)) if weight is None else weight
    return csr_matrix((values.numpy(), (user.numpy(), item.numpy())), (len(events), num_items))


def history_items(x: Tensor, num_items: int) -> csr_matrix:
    """1 where a history of x [B, T] has an item [B, M]."""
    x = x.cpu()
    if len(x) and int(x.max()) >= num_items:
        raise ValueError(f"item {int(x.max())} in a history: the log has items 0…{num_items - 1}")
    row, column = (x != PAD).nonzero(as_tuple=True)
    values = np.ones(len(row), np.float32)
    matrix = csr_matrix((values, (row.numpy(), x[row, column].numpy())), (len(x), num_items))  # sums repeats
    matrix.data[:] = 1
    return matrix


def history_weights(x: Tensor, weights: Tensor, num_items: int) -> csr_matrix:
    """The weights [T] of the events of histories x [B, T], summed per item [B, M]."""
    row, column = (x != PAD).nonzero(as_tuple=True)
    values = weights[column].numpy().astype(np.float32)
    return csr_matrix((values, (row.numpy(), x[row, column].numpy())), (len(x), num_items))


def partner_matrix(partners: CSR) -> csr_matrix:
    """The weights of all items' partners [M, M]."""
    assert partners.values is not None
    parts = partners.values.numpy(), partners.columns.numpy(), partners.offsets.numpy()
    return csr_matrix(parts, (len(partners), len(partners)))


def matrix_bytes(matrix: csr_matrix) -> int:
    """The memory that a sparse matrix takes."""
    return int(matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes)

"""Item-CF: an item scores by its cosine with the items of the history, users being the axes."""

import numpy as np
import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from torch import Tensor

from beamtree.data import Events
from beamtree.tree import PAD

ROOM = 20_000_000  # scores of a few users, for items or for other users, that are held at once: 80 MB if dense


class ItemCF:
    """Item-CF over an item-item similarity [M, M], kept as the sparse factors whose product it is."""

    def __init__(self, *factors: csr_matrix) -> None:
        self._num_items = factors[0].shape[0]
        self._rows = max(1, ROOM // max(factors[0].shape))  # of a batch at once
        # Which of two equal items comes first: not the lower number, which is more popular among test users too.
        self._order = torch.randperm(self._num_items, generator=torch.Generator().manual_seed(0))
        self._factors = (*factors[:-1], factors[-1][:, self._order.numpy()])

    @property
    def num_bytes(self) -> int:
        """What it keeps."""
        return sum(map(matrix_bytes, self._factors))

    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m items most like the distinct items of each history x [B, T], and their scores [B, m].

        Items of the history itself are not left out. PAD and -inf where fewer items are like it at all.
        """
        items = torch.full((len(x), m), PAD)
        scores = torch.full((len(x), m), -torch.inf)
        width = min(m, self._num_items)
        for start in range(0, len(x), self._rows):
            part = slice(start, start + self._rows)
            values, place = self._scores(x[part]).topk(width)
            items[part, :width] = self._order[place].where(values > 0, PAD)
            scores[part, :width] = values.where(values > 0, -torch.inf)
        return items.to(x.device), scores.to(x.device)

    def _scores(self, x: Tensor) -> Tensor:
        """The score of every item, in their order here [B, M]."""
        scores = histories(x, self._num_items)
        for factor in self._factors:
            scores = scores @ factor
        return torch.from_numpy(scores.toarray())


def item_cf(events: Events, num_items: int) -> ItemCF:
    """Cosines of all pairs of items. They are never written down: a batch goes to users and back in two products."""
    cosine = _cosine(events, num_items)
    return ItemCF(cosine.T.tocsr(), cosine)


def item_cf_nearest(events: Events, num_items: int, neighbours: int = 100) -> ItemCF:
    """Only each item's nearest neighbours, as the implicit library finds them: quick where users have many events."""
    from implicit.nearest_neighbours import ItemItemRecommender  # type: ignore[import-untyped]

    model = ItemItemRecommender(K=min(neighbours, num_items))
    # Its CosineRecommender does the same, but warns that it is given the matrix it made itself.
    model.fit(_cosine(events, num_items).astype(np.float64), show_progress=False)
    return ItemCF(model.similarity.astype(np.float32))


def _cosine(events: Events, num_items: int) -> csr_matrix:
    """Which users have which items [U, M], each item's column of length 1: products of columns are cosines."""
    matrix = user_items(events, num_items)
    users = np.bincount(matrix.indices, minlength=num_items)  # [M]
    matrix.data /= np.sqrt(users, dtype=np.float32)[matrix.indices]
    return matrix


def matrix_bytes(matrix: csr_matrix) -> int:
    """What a sparse matrix takes."""
    return int(matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes)


def histories(x: Tensor, num_items: int) -> csr_matrix:
    """Which histories x [B, T] hold which items [B, M]."""
    x = x.cpu()
    if len(x) and int(x.max()) >= num_items:
        raise ValueError(f"item {int(x.max())} in a history: the log has items 0…{num_items - 1}")
    row, column = (x != PAD).nonzero(as_tuple=True)
    return _binary(row, x[row, column], (len(x), num_items))


def user_items(events: Events, num_items: int) -> csr_matrix:
    """Which users have which items [U, M]."""
    user = torch.repeat_interleave(events.counts().cpu())
    return _binary(user, events.item_numbers().cpu(), (len(events), num_items))


def _binary(row: Tensor, column: Tensor, shape: tuple[int, int]) -> csr_matrix:
    """1 at every pair, however often it occurs."""
    matrix = csr_matrix((np.ones(len(row), np.float32), (row.numpy(), column.numpy())), shape)  # sums repeats
    matrix.data[:] = 1
    return matrix

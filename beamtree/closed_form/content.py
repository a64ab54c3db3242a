"""What the features of items say about them: which items are alike, and a ridge regression on features."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.data.csr import CSR
from beamtree.kernels import classify, sparse

STEPS = 30  # of conjugate gradients
LEFT_OUT = 0.1  # of the squared length of an item that is searched for
TOLERANCE = 1e-4  # relative size of the residual at which they end


@dataclass
class FeatureMatrix:
    """The features of items in rows of length 1; an item without features has an empty row.

    Args:
        rows: the features of each item, with values.
        width: how many features there are.
    """

    rows: CSR
    width: int

    def __post_init__(self) -> None:
        row, values = self.rows.row_of_entry(), self.rows.values
        assert values is not None
        squares = torch.zeros(len(self.rows)).index_add_(0, row, values.square())
        values = values * squares.clamp(min=1e-12).rsqrt()[row]
        self.rows = CSR(self.rows.offsets, self.rows.columns, values)
        self._by_item = self.rows.offsets, self.rows.columns, values
        self._by_feature = sparse.transposed(self._by_item, self.width)

    def nearest(self, others: "FeatureMatrix", most: int, budget: float = math.inf) -> tuple[Tensor, Tensor]:
        """For each of other items, the most similar of these, best first, and their cosines [n, most] each.

        Where fewer have a feature in common, the rest is 0. The most common features of an item, up to a small share of
        its squared length, are left out: nearly all of the time would go into them. So are those with which more than
        `budget` entries of these items would be read for it.
        """
        rows, index = others.rows, self._by_feature
        assert rows.values is not None
        row, common = rows.row_of_entry(), index[0].diff()[rows.columns.long()]
        order = torch.argsort(-common, stable=True)
        order = order[torch.argsort(row[order], stable=True)]  # in each row the most common first
        length, read = rows.values[order].double().square().cumsum(0), common[order].cumsum(0)
        length -= pad(length, (1, 0))[rows.offsets[:-1]][row]
        read = pad(read, (1, 0))[rows.offsets[1:]][row] - read  # by the features after this one
        keep = (length > LEFT_OUT) & ((read + common[order] <= budget) | (read == 0))
        used = torch.empty(len(order), dtype=torch.bool).index_put_((order,), keep)
        rows = rows.filter(used)
        assert rows.values is not None
        queries = rows.offsets.numpy(), rows.columns.numpy(), rows.values.numpy()
        offsets, items, values = (part.numpy() for part in index)
        nearest, cosines = classify.nearest_rows(queries, (offsets, items, values), len(self.rows), most)
        return torch.from_numpy(nearest), torch.from_numpy(cosines)

    def regression(self, targets: Tensor, confidence: Tensor, penalty: float) -> Tensor:
        """W of the ridge regression Σ_i c_i |t_i - f_i W|² + λ |W|², by conjugate gradients [width, dim].

        Args:
            targets: t [M, dim].
            confidence: c [M].
            penalty: λ.
        """
        weight = confidence.unsqueeze(1)
        wanted = sparse.multiply(self._by_feature, (weight * targets).float())

        def product(x: Tensor) -> Tensor:
            return sparse.multiply(self._by_feature, weight * sparse.multiply(self._by_item, x)) + penalty * x

        return conjugate_gradients(product, wanted)

    def predict(self, weights: Tensor) -> Tensor:
        """f_i W for each item [M, dim]."""
        return sparse.multiply(self._by_item, weights)


def conjugate_gradients(product: Callable[[Tensor], Tensor], wanted: Tensor) -> Tensor:
    """x with product(x) = wanted, for each column, where the product is with a symmetric positive matrix."""
    x, residual = torch.zeros_like(wanted), wanted.clone()
    direction, size = residual.clone(), residual.square().sum(0)
    enough = TOLERANCE**2 * size.clamp(min=1e-30)
    for _ in range(STEPS):
        step = product(direction)
        length = size / (direction * step).sum(0).clamp(min=1e-30)
        x += length * direction
        residual -= length * step
        before, size = size, residual.square().sum(0)
        if bool((size <= enough).all()):
            break
        direction = residual + size / before.clamp(min=1e-30) * direction
    return x

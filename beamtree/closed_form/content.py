"""What the features of items say about them: which items are alike, and a ridge regression on features."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from beamtree.data.csr import CSR
from beamtree.kernels import sparse

STEPS = 30  # of conjugate gradients
TOLERANCE = 1e-4  # relative size of the residual at which they end
POWER = 3  # similar items count by their cosine to this power
AT_ONCE = 64  # items that are compared with all others together


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

    def similar(self, others: "FeatureMatrix", most: int) -> tuple[Tensor, Tensor]:
        """For each of other items, the most similar of these, and their shares, which sum to 1 [n, most] each.

        The share of an item is proportional to a power of its cosine. All are 0 where no features are in common.
        """
        items, shares = [], []
        for rows in torch.arange(len(others.rows)).split(AT_ONCE):
            some = others.rows.take(rows)
            assert some.values is not None
            queries = torch.zeros(self.width, len(rows))
            queries[some.columns.long(), some.row_of_entry()] = some.values
            best = sparse.multiply(self._by_item, queries).T.topk(min(most, len(self.rows)))
            share = best.values.clamp(min=0) ** POWER
            items.append(best.indices)
            shares.append(share / share.sum(1, keepdim=True).clamp(min=1e-9))
        empty = torch.empty(0, min(most, len(self.rows)))
        return torch.cat([empty.long(), *items]), torch.cat([empty, *shares])

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

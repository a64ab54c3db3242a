"""The paper's synthetic data: the toy of Sec. 4.1 and the Gaussian instances of Sec. 5.1."""

from dataclasses import dataclass

import torch
from torch import Tensor

from beamtree.data.instances import Instances
from beamtree.data.seeds import mix
from beamtree.tree import PAD


@dataclass(frozen=True)
class Gaussian:
    """Train and test instances with x ~ N(0, I) and η_j(x) = σ(w_jᵀx + c)."""

    train: Instances
    test: Instances
    weights: Tensor  # w [M, d]
    bias: float  # c

    def eta(self, x: Tensor) -> Tensor:
        """η(x) [B, M]: the true marginals."""
        return torch.sigmoid(x @ self.weights.T + self.bias)


def gaussian(
    num_items: int = 1000,
    dim: int = 10,
    bias: float = -5.0,
    *,
    train: int = 10_000,
    test: int = 1_000,
    seed: int = 0,
) -> Gaussian:
    """Synthetic instances with known marginals η = σ(wᵀx + c) (Sec. 5.1); the printed p(y|x) does not sum to one.

    Args:
        num_items: M.
        dim: of x.
        bias: c; the lower, the fewer relevant items.
        train: instances for training.
        test: instances for testing.
        seed: same seed, same instances.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(num_items, dim, generator=generator)
    x = torch.randn(train + test, dim, generator=generator)
    relevant = torch.zeros(len(x), num_items, dtype=torch.bool)
    empty = torch.arange(len(x))
    for _ in range(100):  # an instance without a relevant item is drawn again
        # 1,000 instances at a time, to save memory.
        for rows in empty.split(1000):
            eta = torch.sigmoid(x[rows] @ weights.T + bias)
            relevant[rows] = torch.rand(eta.shape, generator=generator) < eta
        empty = (~relevant.any(1)).nonzero().squeeze(1)
        if len(empty) == 0:
            break
        x[empty] = torch.randn(len(empty), dim, generator=generator)
    else:
        raise ValueError(f"bias={bias} with {num_items} items leaves instances without a relevant item: raise one")
    y = relevant_items(relevant)
    return Gaussian(Instances(x[:train], y[:train]), Instances(x[train:], y[train:]), weights, bias)


def relevant_items(relevant: Tensor) -> Tensor:
    """y [N, P] from a matrix of zeros and ones [N, M]."""
    row, item = relevant.nonzero(as_tuple=True)
    count = relevant.sum(1)
    y = torch.full((len(relevant), max(1, int(count.max()))), PAD)
    first = count.cumsum(0) - count
    y[row, torch.arange(len(row)) - first[row]] = item
    return y


def toy(num_items: int = 1000, *, seed: int = 0) -> Tensor:
    """η [M] of the toy experiment (Sec. 4.1), uniform in [0, 1]; items are independent and there is no x."""
    generator = torch.Generator().manual_seed(mix(seed, 0))
    return torch.rand(num_items, generator=generator)

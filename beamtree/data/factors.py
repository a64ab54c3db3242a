"""Co-occurrence factors: vectors in which items that the same users chose are near each other."""

import torch
from torch import Tensor

from beamtree.data.log import Log

DIM = 64
ROUNDS = 4  # of subspace iteration


def factors(log: Log, num_items: int, *, dim: int = DIM, seed: int = 0) -> Tensor:
    """VΣ of the truncated singular value decomposition of D_u^{-1/2} A D_i^{-1/2}, strongest first [M, ≤ dim].

    A says which user chose which item, D_u and D_i how many each user and item has. Rows have length 1 on average.
    """
    device = log.offsets.device
    rows = torch.repeat_interleave(torch.arange(len(log), device=device), log.offsets.diff())
    pairs = torch.unique(rows * num_items + log.item_numbers().long())  # whether, not how often
    user, item = pairs // num_items, pairs % num_items
    value = (torch.bincount(user)[user] * torch.bincount(item)[item]).rsqrt()
    shape = (len(log), num_items)
    matrix = torch.sparse_coo_tensor(torch.stack([user, item]), value, shape, check_invariants=False).coalesce()
    back = matrix.t().coalesce()
    generator = torch.Generator(device).manual_seed(seed)
    width = min(dim, num_items, len(log))
    basis = torch.randn(num_items, width, generator=generator, device=device)
    for _ in range(ROUNDS):
        basis = torch.linalg.qr(torch.sparse.mm(back, torch.sparse.mm(matrix, basis))).Q
    _, strength, turn = torch.linalg.svd(torch.sparse.mm(matrix, basis), full_matrices=False)
    vectors: Tensor = basis @ turn.T * strength
    length: Tensor = vectors.norm(dim=1).mean()
    return vectors / length

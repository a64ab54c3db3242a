"""Co-occurrence factors: vectors in which items that the same users chose are near each other."""

import torch
from torch import Tensor

from beamtree.data.log import Log
from beamtree.tree import PAD

DIM = 64
ROUNDS = 4  # of subspace iteration
NEAR = 10  # events of a run
MORE = 1.1  # runs are worth their rows where they tell so much more
USERS, OTHERS, FIRST = 500, 4096, 0.01  # how `telling` asks: so many users, so many other items, among the first 1 %


def factors(log: Log, num_items: int, *, near: int | None = None, dim: int = DIM, seed: int = 0) -> Tensor:
    """VΣ of the truncated singular value decomposition of D_r^{-1/2} A D_i^{-1/2}, strongest first [M, ≤ dim].

    A says which user chose which item; with `near`, there are also rows for runs of about so many events of a user, so
    that what was chosen together in time counts for more. D_r and D_i say how many each row and item has. The vectors
    have length 1 on average.
    """
    device = log.offsets.device
    row, item = pairs(log, num_items, near)
    value = (torch.bincount(row)[row] * torch.bincount(item)[item]).rsqrt()
    shape = (int(row[-1]) + 1, num_items)
    matrix = torch.sparse_coo_tensor(torch.stack([row, item]), value, shape, check_invariants=False).coalesce()
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


def pairs(log: Log, num_items: int, near: int | None = None) -> tuple[Tensor, Tensor]:
    """The rows of A and their items [E] each: whether an item was chosen, not how often."""
    row, items = _rows(log, near), log.item_numbers().long()
    found = torch.unique(row * num_items + items.repeat(len(row) // max(1, len(items))))
    return found // num_items, found % num_items


def _rows(log: Log, near: int | None) -> Tensor:
    """The row of A that each event belongs to [E]; after them, with `near`, those of its run [2E]."""
    count = log.offsets.diff()
    user = torch.repeat_interleave(torch.arange(len(log), device=count.device), count)
    if near is None:
        return user
    runs = (count + near - 1) // near  # of each user, equally long
    place = torch.arange(len(user), device=count.device) + log.offsets[0] - log.offsets[user]
    run = (runs.cumsum(0) - runs)[user] + place * runs[user] // count[user]
    return torch.cat([user, len(log) + run])


def choose_factors(train: Log, val: Log, num_items: int) -> tuple[int | None, Tensor]:
    """`near` and the factors: with runs where they tell clearly more about what users, here of `val`, choose next."""
    by_user = factors(train, num_items)
    if len(val):
        by_run = factors(train, num_items, near=NEAR)
        if telling(by_run, val) > MORE * telling(by_user, val):
            return NEAR, by_run
    return None, by_user


def telling(vectors: Tensor, log: Log, seed: int = 0) -> float:
    """The share of targets that are nearer to the mean of the history than all but 1 % of items drawn at random."""
    x, y = log.batch(torch.arange(min(USERS, len(log))))
    vectors = torch.nn.functional.normalize(vectors)
    history = (vectors[x.clamp(min=0)] * (x != PAD).unsqueeze(-1)).sum(1)  # [B, dim]
    drawn = torch.randint(len(vectors), (OTHERS,), generator=torch.Generator().manual_seed(seed))
    least = (history @ vectors[drawn.to(vectors.device)].T).topk(int(OTHERS * FIRST)).values[:, -1:]
    near = (vectors[y.clamp(min=0)] @ history.unsqueeze(-1)).squeeze(-1) > least
    real = y != PAD
    return float(((near & real).sum(1) / real.sum(1)).mean())

"""Co-occurrence factors: vectors in which items that the same users chose are near each other."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from beamtree.data.csr import offsets_of
from beamtree.data.events import Events
from beamtree.data.views import BeforeAfter
from beamtree.kernels import sparse
from beamtree.tree import PAD

Product = Callable[[Tensor], Tensor]

DIM = 64
ROUNDS = 4  # of subspace iteration
RUN_LENGTH = 10  # events of a run
BETTER = 1.1  # runs are used where their factors predict better by this factor
USERS, OTHERS, FIRST = 500, 4096, 0.01  # for `share_near_history`: users, random items, and the nearest 1 % of these


def factors(events: Events, num_items: int, *, run_length: int | None = None, dim: int = DIM, seed: int = 0) -> Tensor:
    """VΣ of the truncated singular value decomposition of D_r^{-1/2} A D_i^{-1/2}, strongest first [M, ≤ dim].

    A has a row per user, and with `run_length` also a row per run of about that many events of a user, so that items
    that were chosen close in time are closer. D_r and D_i are the entries of each row and item. The vectors have length
    1 on average.
    """
    device = events.offsets.device
    row, item = distinct_pairs(events, num_items, run_length)
    popularity = torch.bincount(item, minlength=num_items)
    value = (torch.bincount(row)[row] * popularity[item]).rsqrt()
    num_rows = int(row[-1]) + 1 if len(row) else 0
    by_row, by_item = _products(row, item, value, (num_rows, num_items))
    generator = torch.Generator(device).manual_seed(seed)
    width = min(dim, num_items, len(events))
    basis = torch.randn(num_items, width, generator=generator, device=device)
    for _ in range(ROUNDS):
        basis = by_item(by_row(basis))
        axes, strength = _principal_axes(basis)
        basis = basis @ (axes / strength.clamp(min=1e-6 * strength[0]))
    axes, strength = _principal_axes(by_row(basis))
    vectors: Tensor = basis @ axes * strength
    length: Tensor = vectors.norm(dim=1).mean()
    return vectors / length


def _principal_axes(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The right singular vectors of a tall matrix as columns, and its singular values, largest first."""
    squares, axes = torch.linalg.eigh((matrix.T @ matrix).double())
    return axes.flip(1).float(), squares.flip(0).clamp(min=1e-30).sqrt().float()


def _products(row: Tensor, column: Tensor, value: Tensor, shape: tuple[int, int]) -> tuple[Product, Product]:
    """Products with a sparse matrix, whose rows rise, and with its transpose."""
    if row.device.type == "cpu":
        offsets = offsets_of(torch.bincount(row, minlength=shape[0]))
        rows = offsets, column.int(), value
        return partial(sparse.multiply, rows), partial(sparse.multiply, sparse.transposed(rows, shape[1]))
    matrix = torch.sparse_coo_tensor(torch.stack([row, column]), value, shape, check_invariants=False).coalesce()
    return partial(torch.sparse.mm, matrix), partial(torch.sparse.mm, matrix.t().coalesce())


def distinct_pairs(events: Events, num_items: int, run_length: int | None = None) -> tuple[Tensor, Tensor]:
    """The rows of A and their items [E] each: whether an item was chosen, not how often."""
    row, items = _rows(events, run_length), events.item_numbers().long()
    pairs = torch.unique(row * num_items + items.repeat(len(row) // max(1, len(items))))
    return pairs // num_items, pairs % num_items


def weighted_pairs(events: Events, num_items: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """The user and the item of each distinct pair, and the highest weight of its events; None where all are 1."""
    weights = events.confidence()
    if weights is None:
        return *distinct_pairs(events, num_items), None
    pairs, index = torch.unique(_rows(events, None) * num_items + events.item_numbers().long(), return_inverse=True)
    highest = weights.new_zeros(len(pairs)).scatter_reduce_(0, index, weights, "amax")
    return pairs // num_items, pairs % num_items, highest


def _rows(events: Events, run_length: int | None) -> Tensor:
    """The row of A of each event [E]; with `run_length`, followed by the rows of their runs [2E]."""
    count = events.counts()
    user = torch.repeat_interleave(torch.arange(len(events), device=count.device), count)
    if run_length is None:
        return user
    runs = (count + run_length - 1) // run_length  # of each user, equally long
    index = torch.arange(len(user), device=count.device) + events.offsets[0] - events.offsets[user]
    run = (runs.cumsum(0) - runs)[user] + index * runs[user] // count[user]
    return torch.cat([user, len(events) + run])


def choose_factors(train: Events, val: BeforeAfter, num_items: int) -> tuple[int | None, Tensor]:
    """`run_length` and the factors: with runs where they predict clearly better what users of `val` choose next."""
    by_user = factors(train, num_items)
    if len(val):
        by_run = factors(train, num_items, run_length=RUN_LENGTH)
        if share_near_history(by_run, val) > BETTER * share_near_history(by_user, val):
            return RUN_LENGTH, by_run
    return None, by_user


def share_near_history(vectors: Tensor, users: BeforeAfter, seed: int = 0) -> float:
    """The share of targets that are nearer to the mean of the history than all but 1 % of random items."""
    x, y = users.batch(torch.arange(min(USERS, len(users))))
    others = torch.randint(len(vectors), (OTHERS,), generator=torch.Generator().manual_seed(seed)).to(x.device)

    def directions(items: Tensor) -> Tensor:
        return torch.nn.functional.normalize(vectors[items.clamp(min=0)], dim=-1)

    history = (directions(x) * (x != PAD).unsqueeze(-1)).sum(1)  # [B, dim]
    least = (history @ directions(others).T).topk(int(OTHERS * FIRST)).values[:, -1:]
    user, column = (y != PAD).nonzero(as_tuple=True)
    near = (directions(y[user, column]) * history[user]).sum(1) > least[user, 0]
    return float((torch.bincount(user[near], minlength=len(y)) / (y != PAD).sum(1)).mean())

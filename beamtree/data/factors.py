"""Co-occurrence factors: vectors in which items that the same users chose are near each other."""

import torch
from torch import Tensor

from beamtree.data.events import Events
from beamtree.data.subspace import Matrix, orthonormal_, strongest_
from beamtree.data.views import BeforeAfter
from beamtree.distributed.exchange import Dealt, deal, drawn
from beamtree.distributed.group import ranks
from beamtree.tree import PAD

DIM = 64
ALIKE = 1 << 24  # events up to which every rank does all of it: to the last bit what one rank does
ROUNDS = 4  # of subspace iteration
RUN_LENGTH = 10  # events of a run
BETTER = 1.1  # runs are worth their rows where they say so much more
USERS, OTHERS, FIRST = 500, 4096, 0.01  # how `share_near_history` asks: users, items drawn, and the first 1 % of these


def factors(events: Events, num_items: int, *, run_length: int | None = None, dim: int = DIM, seed: int = 0) -> Tensor:
    """VΣ of the truncated singular value decomposition of D_r^{-1/2} A D_i^{-1/2}, strongest first [M, ≤ dim].

    A says which user chose which item; with `run_length`, there are also rows for runs of about that many events of a
    user, so that what was chosen together in time counts for more. D_r and D_i say how many each row and item has. The
    vectors have length 1 on average.
    """
    return factors_by_rows(events, num_items, run_length=run_length, dim=dim, seed=seed).whole()


def factors_by_rows(
    events: Events, num_items: int, *, run_length: int | None = None, dim: int = DIM, seed: int = 0
) -> Dealt:
    """The same, dealt out: where the log is large no rank has them all, nor the rows of A but for its own users."""
    if ranks().size == 1 or len(events.item_numbers()) <= ALIKE:
        return deal(ranks().broadcast_(_alone(events, num_items, run_length, dim, seed)))
    own, generator = events.own(), torch.Generator(events.offsets.device).manual_seed(seed)
    matrix = Matrix(*pairs(own, num_items, run_length), num_items)
    basis = drawn(num_items, min(dim, num_items, len(events)), generator)
    for _ in range(ROUNDS):
        basis = matrix.there_and_back(basis)
        orthonormal_(basis, num_items)
    vectors = strongest_(matrix, basis, ranks().share(len(events)).start, len(own))
    length = ranks().sum_(vectors.norm(dim=1).sum()) / num_items
    return Dealt(vectors.div_(length), num_items)


def _alone(events: Events, num_items: int, run_length: int | None, dim: int, seed: int) -> Tensor:
    """All factors, as one rank finds them."""
    device = events.offsets.device
    row, item = pairs(events, num_items, run_length)
    popularity = torch.bincount(item, minlength=num_items)
    value = (torch.bincount(row)[row] * popularity[item]).rsqrt()
    shape = (int(row[-1]) + 1 if len(row) else 0, num_items)
    matrix = torch.sparse_coo_tensor(torch.stack([row, item]), value, shape, check_invariants=False).coalesce()
    back = matrix.t().coalesce()
    generator = torch.Generator(device).manual_seed(seed)
    width = min(dim, num_items, len(events))
    basis = torch.randn(num_items, width, generator=generator, device=device)
    for _ in range(ROUNDS):
        basis = torch.linalg.qr(torch.sparse.mm(back, torch.sparse.mm(matrix, basis))).Q
    _, strength, turn = torch.linalg.svd(torch.sparse.mm(matrix, basis), full_matrices=False)
    vectors: Tensor = basis @ turn.T * strength
    length: Tensor = vectors.norm(dim=1).mean()
    return vectors / length


def pairs(events: Events, num_items: int, run_length: int | None = None) -> tuple[Tensor, Tensor]:
    """The rows of A and their items [E] each: whether an item was chosen, not how often."""
    row, items = _rows(events, run_length), events.item_numbers().long()
    found = torch.unique(row * num_items + items.repeat(len(row) // max(1, len(items))))
    return found // num_items, found % num_items


def _rows(events: Events, run_length: int | None) -> Tensor:
    """The row of A that each event belongs to [E]; after them, with `run_length`, those of its run [2E]."""
    count = events.counts()
    user = torch.repeat_interleave(torch.arange(len(events), device=count.device), count)
    if run_length is None:
        return user
    runs = (count + run_length - 1) // run_length  # of each user, equally long
    place = torch.arange(len(user), device=count.device) + events.offsets[0] - events.offsets[user]
    run = (runs.cumsum(0) - runs)[user] + place * runs[user] // count[user]
    return torch.cat([user, len(events) + run])


def choose_factors(train: Events, val: BeforeAfter, num_items: int) -> tuple[int | None, Dealt]:
    """`run_length` and the factors: with runs where they say clearly more about what users of `val` choose next."""
    by_user = factors_by_rows(train, num_items)
    if len(val):
        by_run = factors_by_rows(train, num_items, run_length=RUN_LENGTH)
        near, near_by_user = (share_near_history(each, val) for each in (by_run, by_user))
        if ranks().gather(near > BETTER * near_by_user)[0]:
            return RUN_LENGTH, by_run
    return None, by_user


def share_near_history(vectors: Dealt, users: BeforeAfter, seed: int = 0) -> float:
    """The share of targets that are nearer to the mean of the history than all but 1 % of items drawn at random."""
    x, y = users.batch(torch.arange(min(USERS, len(users))))
    others = torch.randint(vectors.total, (OTHERS,), generator=torch.Generator().manual_seed(seed)).to(x.device)
    asked = torch.unique(torch.cat([x.flatten(), y.flatten(), others]).clamp(min=0))
    known = torch.nn.functional.normalize(vectors.at(asked))

    def of(items: Tensor) -> Tensor:
        return known[torch.searchsorted(asked, items.clamp(min=0))]

    history = (of(x) * (x != PAD).unsqueeze(-1)).sum(1)  # [B, dim]
    least = (history @ of(others).T).topk(int(OTHERS * FIRST)).values[:, -1:]
    near = (of(y) @ history.unsqueeze(-1)).squeeze(-1) > least
    real = y != PAD
    return float(((near & real).sum(1) / real.sum(1)).mean())

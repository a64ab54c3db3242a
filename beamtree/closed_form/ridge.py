"""Partners by ridge regression: EASE (Steck 2019) without an M × M matrix, and the same from the past to the future.

Items that lie near each other on a tree are solved for together, each block over the few thousand items that say most
about it. Where all items fit into one block this is the exact solution. Over ranks each solves for a part of the
blocks, and asks whoever keeps the rows of the matrix that it needs.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from beamtree.closed_form.cooccurrence import Pairs
from beamtree.closed_form.partners import PARTNERS, Collected, Partners
from beamtree.distributed.exchange import in_step
from beamtree.distributed.group import ranks
from beamtree.threads import in_threads, one_thread

T = TypeVar("T")

BLOCK = 256  # items that are solved for at once
FEATURES = 1024  # items that they are explained by, unless all items fit
WHOLE = 6144  # up to so many items all explain all
POPULAR = 6144  # items among which the matrix is kept dense
PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)  # λ of EASE that are worth a try, the middle first
SPARE = 2  # times N: partners that each target keeps before each source is cut to its N


def ridge_partners(
    gram: Pairs,
    order: Tensor,
    penalty: float,
    most: int = PARTNERS,
    *,
    features: int = FEATURES,
) -> Partners:
    """EASE: how much each item adds to another, given all others, which no item may explain itself by.

    Args:
        gram: XᵀX, from `together`.
        order: the items such that neighbours are alike, such as the leaves of a tree; those alone are explained [≤ M].
        penalty: λ.
        most: N partners of an item.
        features: items that explain a block.
    """

    def solve(system: Tensor, right: Tensor, own: Tensor) -> Tensor:
        """-P[:, b] / diag(P)[b], where P is the inverse; `own` is the place of each target among the features."""
        factor, column = torch.linalg.cholesky(system), torch.arange(len(own), device=own.device)
        if len(own) == len(system) and not system.is_cuda:  # all of P, in less than half the time on a CPU
            inverse = torch.cholesky_inverse(factor)
        else:
            unit = torch.zeros_like(right)
            unit[own, column] = 1.0
            inverse = torch.cholesky_solve(unit, factor)
        found = inverse.div_(-inverse[own, column])
        found[own, column] = 0.0
        return found

    return _by_blocks(gram, gram, order, penalty, solve, most, features)


def follow_partners(
    past: Pairs,
    future: Pairs,
    order: Tensor,
    penalty: float,
    most: int = PARTNERS,
    *,
    features: int = FEATURES,
) -> Partners:
    """The ridge regression of what follows on what came before: (PᵀP + λD)⁻¹PᵀF, where D is the mean of its diagonal.

    Args:
        past: PᵀP, from `followed`.
        future: PᵀF.
        order: the items such that neighbours are alike; those alone are explained [≤ M].
        penalty: λ, as a share of the mean of the diagonal.
        most: N partners of an item.
        features: items that explain a block.
    """
    diagonal = past.diagonal()
    mean = float(diagonal[diagonal > 0].mean()) if bool((diagonal > 0).any()) else 1.0

    def solve(system: Tensor, right: Tensor, own: Tensor) -> Tensor:
        return torch.cholesky_solve(right, torch.linalg.cholesky(system))

    return _by_blocks(past, future.turned(), order, penalty * mean, solve, most, features)


Solve = Callable[[Tensor, Tensor, Tensor], Tensor]  # (system [S, S], right side [S, b], targets' places [b]) -> [S, b]


def _by_blocks(
    gram: Pairs, by_target: Pairs, order: Tensor, penalty: float, solve: Solve, most: int, features: int
) -> Partners:
    """Solve block by block and keep what is strongest."""
    diagonal, square = gram.diagonal(), Square(gram)
    work = _own_blocks(order)
    entries = Collected(SPARE * most * sum(len(targets) for _, targets in work), order.device)
    for place in in_step(len(work)):
        block, targets = work[place] if place is not None else (order[:0], order[:0])
        chosen, right = _explain(by_target, diagonal, block, penalty, features)
        system = square.of(chosen)
        if not len(targets):  # others go on
            continue
        system.diagonal().add_(penalty)
        if len(targets) < len(block):
            right = right[:, torch.searchsorted(block, targets)]
        found = solve(system, right, torch.searchsorted(chosen, targets))  # [S, b]
        kept = _largest(found, min(SPARE * most, len(found)))
        entries.add(chosen[kept].flatten(), targets.expand_as(kept).flatten(), found.gather(0, kept).flatten())
    return entries.strongest(gram.num_items, most)


def _largest(values: Tensor, count: int) -> Tensor:
    """The places of the largest absolute values of each column [count, b]."""

    def largest(columns: Tensor) -> Tensor:
        return columns.abs().topk(count, dim=0).indices

    if values.is_cuda:
        return largest(values)
    return torch.cat(in_threads(largest, values.split(BLOCK, dim=1)), dim=1)


def _own_blocks(order: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Blocks of items, each in rising order, and those of them that this rank solves for.

    There is one block where all items fit, of which every rank takes a part; of more blocks it takes some whole.
    """
    if len(order) <= WHOLE:
        block = order.sort().values
        share = ranks().share(len(block))
        return [(block, block[share.start : share.stop])]
    blocks = order.split(BLOCK)
    share = ranks().share(len(blocks))
    return [(block, block) for block in (each.sort().values for each in blocks[share.start : share.stop])]


@one_thread()
def _explain(by_target: Pairs, diagonal: Tensor, block: Tensor, penalty: float, features: int) -> tuple[Tensor, Tensor]:
    """The items that say most about a block, the block among them, sorted [S], and the right side [S, b]."""
    place, source, value = by_target.pulled(block)
    if len(diagonal) <= WHOLE:
        chosen = torch.arange(len(diagonal), device=block.device)
    else:
        strength = value.square() / (diagonal[source] + penalty)
        distinct, where = torch.unique(source, return_inverse=True)
        total = strength.new_zeros(len(distinct)).index_add_(0, where, strength)
        best = distinct[total.topk(min(features, len(distinct))).indices]
        chosen = torch.unique(torch.cat([best, block]))
    right = value.new_zeros(len(chosen), len(block))
    at = torch.searchsorted(chosen, source).clamp_(max=len(chosen) - 1)
    there = chosen[at] == source
    right[at[there], place[there]] = value[there]
    return chosen, right


def climb(values: Sequence[T], attempt: Callable[[T], bool]) -> None:
    """Try the middle value, then up and down from it, each way as long as the newest is the best so far."""
    middle = len(values) // 2
    attempt(values[middle])
    for way in (values[middle + 1 :], values[:middle][::-1]):
        for value in way:
            if not attempt(value):
                break


class Square:
    """Rows and columns of some items out of a symmetric sparse matrix, dense.

    The rows of popular items are long, and popular items explain every block: among these the matrix is kept dense, and
    what they have with others is read from the others' rows.
    """

    @one_thread()
    def __init__(self, gram: Pairs) -> None:
        self.gram = gram
        count = gram.counts()
        self.popular = count.topk(min(POPULAR, len(count))).indices.sort().values
        self._place = torch.full((gram.num_items,), -1, dtype=torch.int64, device=count.device)
        self._rank = self._place.clone()  # among the popular
        self._rank[self.popular] = torch.arange(len(self.popular), device=count.device)
        self._dense = gram.values.new_zeros(len(self.popular), len(self.popular))
        for some in self.popular.split(256):
            row, column, value = gram.rows(some)
            at = self._rank[column]
            there = at >= 0
            self._dense[self._rank[some][row[there]], at[there]] = value[there]
        if gram.owner is not None:
            ranks().sum_(self._dense)

    @one_thread()
    def of(self, chosen: Tensor) -> Tensor:
        """The rows and columns of items in rising order [S, S]."""
        if len(chosen) == len(self.popular) == self.gram.num_items:
            return self._dense.clone()
        rank = self._rank[chosen]
        found = self.gram.values.new_zeros(len(chosen), len(chosen))
        known, rest = (rank >= 0).nonzero().squeeze(1), (rank < 0).nonzero().squeeze(1)
        found[known.unsqueeze(1), known] = self._dense[rank[known].unsqueeze(1), rank[known]]
        if len(self.popular) == self.gram.num_items:
            return found
        self._place[chosen] = torch.arange(len(chosen), device=chosen.device)
        row, column, value = self.gram.pulled(chosen[rest], chosen)
        at = self._place[column]
        there = at >= 0
        row, at, value = rest[row[there]], at[there], value[there]
        found[row, at] = value
        found[at, row] = value
        self._place[chosen] = -1
        return found

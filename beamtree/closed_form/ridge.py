"""Partners by ridge regression: EASE (Steck 2019) without an M × M matrix, and the same from the past to the future.

Items that are neighbours on a tree are solved for together, each block over the few thousand items that predict it
best. Where all items fit into one block this is the exact solution.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from beamtree.closed_form.cooccurrence import Entries, ItemMatrix
from beamtree.data.csr import CSR, strongest_in_rounds
from beamtree.kernels import sparse
from beamtree.kernels.threads import parallel_map
from beamtree.scorers.memory import PARTNERS

T = TypeVar("T")

BLOCK = 256  # items that are solved for at once
FEATURES = 1024  # items that predict a block, unless all items fit
SMALL_CATALOGUE = 6144  # in a catalogue of up to this many items, all predict all
# λ of EASE to try, the middle first. In sparse logs the best is far from the middle.
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 1e4, 3e4, 1e5)
AT_ONCE = 32  # blocks that threads solve before their results are collected
SPARE = 2  # each target keeps SPARE * N sources before each source is cut to N targets

Block = tuple[Tensor, Tensor]  # items of a block in rising order, and those of them to solve for


def ridge_partners(
    gram: ItemMatrix, order: Tensor, penalty: float, most: int = PARTNERS, *, features: int = FEATURES
) -> CSR:
    """EASE: how much each item adds to the score of another, given all others.

    Args:
        gram: XᵀX, from `cooccurrence`.
        order: items such that neighbours are similar, such as the leaves of a tree; only these are targets [≤ M].
        penalty: λ.
        most: N partners of an item.
        features: items that predict a block.
    """
    return collect(EASE(gram, penalty, features), blocks_of(order), most)


def follow_partners(
    past: ItemMatrix,
    future: ItemMatrix,
    order: Tensor,
    penalty: float,
    most: int = PARTNERS,
    *,
    features: int = FEATURES,
) -> CSR:
    """The ridge regression of the future on the past: (PᵀP + λD)⁻¹PᵀF, where D is the mean of its diagonal.

    Args:
        past: PᵀP, from `past_and_future`.
        future: FᵀP.
        order: items such that neighbours are similar; only these are targets [≤ M].
        penalty: λ, as a share of the mean of the diagonal.
        most: N partners of an item.
        features: items that predict a block.
    """
    return collect(Regression(past, future, penalty, features), blocks_of(order), most)


class BlockSolver:
    """Solves for the partners of one block of items after the other."""

    def __init__(self, gram: ItemMatrix, by_target: ItemMatrix, penalty: float, features: int) -> None:
        self.by_target, self.penalty, self.features = by_target, penalty, features
        self.diagonal, self.blocks = gram.diagonal(), gram.blocks

    @property
    def num_items(self) -> int:
        return len(self.diagonal)

    def solve(self, system: Tensor, right: Tensor, index: Tensor) -> Tensor:
        """The weights [S, b] for a system [S, S] and a right side [S, b]; `index` are the rows of the targets [b]."""
        raise NotImplementedError

    def weights(self, block: Tensor, targets: Tensor) -> tuple[Tensor, Tensor] | None:
        """The items that predict a block [S], and their weights for the targets [S, b]; None without targets."""
        chosen, right = self._predictors(block)
        system = self.blocks.of(chosen)
        if not len(targets):
            return None
        system.diagonal().add_(self.penalty)
        if len(targets) < len(block):
            right = right[:, torch.searchsorted(block, targets)]
        return chosen, self.solve(system, right, torch.searchsorted(chosen, targets))

    def __call__(self, block: Tensor, targets: Tensor, most: int) -> Entries | None:
        """The strongest sources of each target: source, target and weight; None where there are no targets."""
        solved = self.weights(block, targets)
        if solved is None:
            return None
        chosen, weights = solved
        count = min(SPARE * most, len(weights))
        keep = (
            weights.abs().topk(count, dim=0).indices if weights.is_cuda else sparse.largest_of_columns(weights, count)
        )
        return chosen[keep].flatten(), targets.expand_as(keep).flatten(), weights.gather(0, keep).flatten()

    def solve_all(self, blocks: Sequence[Block], most: int) -> list[Entries | None]:
        """The same for several blocks: in threads where nothing is on another device or rank."""
        if self.by_target.is_local:
            return parallel_map(lambda block: self(*block, most), blocks)
        return [self(*block, most) for block in blocks]

    def _predictors(self, block: Tensor) -> tuple[Tensor, Tensor]:
        """The items that predict a block best, the block among them, sorted [S], and the right side [S, b]."""
        if self.num_items <= SMALL_CATALOGUE:
            right = self.by_target.whole if len(block) == self.num_items else self.by_target.whole[block]
            return torch.arange(self.num_items, device=block.device), right.T
        if self.by_target.is_local:
            return sparse.predictors(self.by_target.arrays, block, self.diagonal, self.penalty, self.features)
        index, source, value = self.by_target.rows(block)
        strength = value.square() / (self.diagonal[source] + self.penalty)
        sources, where = torch.unique(source, return_inverse=True)
        total = strength.new_zeros(len(sources)).index_add_(0, where, strength)
        order = total.sort(descending=True, stable=True).indices  # the lower number first where strengths are equal
        best = sources[order[: self.features]]
        chosen = torch.unique(torch.cat([best, block]))
        right = value.new_zeros(len(chosen), len(block))
        row = torch.searchsorted(chosen, source).clamp_(max=len(chosen) - 1)
        inside = chosen[row] == source
        right[row[inside], index[inside]] = value[inside]
        return chosen, right


class EASE(BlockSolver):
    """-P[:, b] / diag(P)[b], where P = (XᵀX + λ)⁻¹, and 0 on the diagonal."""

    def __init__(self, gram: ItemMatrix, penalty: float, features: int = FEATURES) -> None:
        super().__init__(gram, gram, penalty, features)

    def solve(self, system: Tensor, right: Tensor, index: Tensor) -> Tensor:
        column = torch.arange(len(index), device=index.device)
        if len(index) == len(system) and not system.is_cuda:  # all of P, in less than half the time on a CPU
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(system))
        else:
            unit = torch.zeros_like(right, memory_format=torch.contiguous_format)
            unit[index, column] = 1.0
            inverse = solve_positive(system, unit)
        weights = inverse.div_(-inverse[index, column])
        weights[index, column] = 0.0
        return weights


class Regression(BlockSolver):
    """(PᵀP + λD)⁻¹PᵀF."""

    def __init__(self, past: ItemMatrix, future: ItemMatrix, penalty: float, features: int = FEATURES) -> None:
        diagonal = past.diagonal()
        mean = float(diagonal[diagonal > 0].mean()) if bool((diagonal > 0).any()) else 1.0
        super().__init__(past, future, penalty * mean, features)

    def solve(self, system: Tensor, right: Tensor, index: Tensor) -> Tensor:
        return solve_positive(system, right)


def solve_positive(system: Tensor, right: Tensor) -> Tensor:
    """The solution of a positive definite system [S, S] for a right side [S, b]."""
    if right.shape[1] < len(system) and not system.is_cuda:
        solution = sparse.solve_sparse(system, right)
        if solution is not None:
            return solution
    return torch.cholesky_solve(right, torch.linalg.cholesky(system))


def blocks_of(order: Tensor) -> list[Block]:
    """Blocks of items, each in rising order: one where all items fit."""
    blocks = [order] if len(order) <= SMALL_CATALOGUE else order.split(BLOCK)
    return [(block, block) for block in (each.sort().values for each in blocks)]


def collect(solver: BlockSolver, blocks: Iterable[Block], most: int) -> CSR:
    """Solve block by block and keep the strongest partners of each source."""
    blocks = list(blocks)
    if len(blocks) == 1 and solver.num_items <= SMALL_CATALOGUE and solver.diagonal.device.type == "cpu":
        block, targets = blocks[0]
        solved = solver.weights(block, targets)
        if solved is not None:
            offsets, columns, values = sparse.strongest_of_dense(solved[1], SPARE * most, most)
            return CSR(offsets, targets[columns.long()].int(), values)
    return strongest_partners(entries_of(solver, blocks, most), solver.num_items, most)


def entries_of(solver: BlockSolver, blocks: Sequence[Block], most: int) -> Entries:
    """The entries of all blocks, in tensors that are allocated once."""
    device = solver.diagonal.device
    room = SPARE * most * sum(len(targets) for _, targets in blocks)
    source, target = (torch.empty(room, dtype=torch.int32, device=device) for _ in range(2))
    weight, count = torch.empty(room, device=device), 0
    for start in range(0, len(blocks), AT_ONCE):
        several = blocks[start : start + AT_ONCE]
        for entries in solver.solve_all(several, most):
            if entries is not None:
                span = slice(count, count + len(entries[0]))
                source[span], target[span], weight[span] = entries
                count = span.stop
    return source[:count], target[:count], weight[:count]


def strongest_partners(entries: Entries, num_items: int, most: int) -> CSR:
    """The strongest targets of each source."""
    return strongest_in_rounds(*entries, num_items, most)


def climb(values: Sequence[T], attempt: Callable[[T], bool], first: int | None = None) -> None:
    """Try the middle value, or the `first`-th, then up and down from it, in each direction until `attempt` is False."""
    first = len(values) // 2 if first is None else first
    attempt(values[first])
    for direction in (values[first + 1 :], values[:first][::-1]):
        for value in direction:
            if not attempt(value):
                break

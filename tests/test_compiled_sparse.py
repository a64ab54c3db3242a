"""The compiled functions of the closed form against their definitions."""

import pytest
import torch

from beamtree.closed_form.als import _solve
from beamtree.data.csr import CSR
from beamtree.kernels import sparse
from beamtree.scorers.factors import Factors, fold_in
from beamtree.tree import PAD


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def dense(rows, size):
    offsets, columns, values = (torch.as_tensor(part) for part in rows)
    matrix = torch.zeros(len(offsets) - 1, size)
    for row in range(len(matrix)):
        for entry in range(int(offsets[row]), int(offsets[row + 1])):
            matrix[row, int(columns[entry])] += values[entry]
    return matrix


def distinct_rows(x, weights):
    """The rows of lists x [B, T]."""
    start = torch.arange(len(x)) * x.shape[1]
    return sparse.distinct_spans(x.flatten(), start, start + x.shape[1], weights, newest_first=False)


@pytest.mark.parametrize("newest_first", [False, True])
def test_lists_become_rows_without_repeats(generator, newest_first):
    events, weights = torch.randint(-1, 5, (40,), generator=generator).int(), torch.rand(6, generator=generator)
    start = torch.tensor([0, 3, 3, 10, 20, 39])
    stop = torch.tensor([4, 3, 12, 11, 40, 40])  # of no item, and of more than there are weights
    found = dense(sparse.distinct_spans(events, start, stop, weights, newest_first=newest_first), 5)
    expected = torch.zeros(6, 5)
    for row in range(6):
        x = events[start[row] : stop[row]].tolist()
        for t, item in reversed(list(enumerate((x[::-1] if newest_first else x)[:6]))):  # the first is written last
            if item != PAD:
                expected[row, item] = weights[t]
    torch.testing.assert_close(found, expected)
    none = torch.empty(0, dtype=torch.int64)
    offsets, items, values = sparse.distinct_spans(events, none, none, weights, newest_first=newest_first)
    assert (offsets.tolist(), items.tolist(), values.tolist()) == ([0], [], [])


def test_products_are_summed_over_rows(generator):
    first, second = (
        distinct_rows(torch.randint(-1, 9, (20, 5), generator=generator), torch.rand(5, generator=generator))
        for _ in range(2)
    )
    offsets, columns, values = sparse.sum_products(first, second, 9)
    torch.testing.assert_close(dense((offsets, columns, values), 9), dense(first, 9).T @ dense(second, 9))
    for row in range(9):
        in_row = columns[offsets[row] : offsets[row + 1]]
        assert (in_row[1:] > in_row[:-1]).all()


@pytest.mark.parametrize("per_column", [2, 6, 100])
@pytest.mark.parametrize("most", [1, 3, 50])
def test_the_strongest_of_a_matrix(generator, per_column, most):
    weights = torch.randn(11, 7, generator=generator)
    weights[2] = 0
    kept = torch.zeros_like(weights, dtype=torch.bool)
    kept.scatter_(0, weights.abs().topk(min(per_column, 11), dim=0).indices, True)
    offsets, columns, values = sparse.strongest_of_dense(weights, per_column, most)
    for row in range(11):
        entries = [j for j in range(7) if kept[row, j] and weights[row, j] != 0]
        entries = sorted(entries, key=lambda j: -abs(float(weights[row, j])))[:most]
        span = slice(int(offsets[row]), int(offsets[row + 1]))
        assert columns[span].tolist() == entries
        assert torch.equal(values[span], weights[row, entries])


def test_recalls_of_weighted_scores(generator):
    scores = torch.randn(9, 30, 3, generator=generator)
    trials = torch.tensor([[1.0, -0.5, 2.0], [1.0, 0.0, 2.0], [1.0, -100.0, 0.5]])
    gain = torch.rand(9, 30, generator=generator) * (torch.rand(9, 30, generator=generator) < 0.3)
    real = torch.rand(9, 30, generator=generator) < 0.8
    scores[:, 20:] = scores[:, :10]  # equal scores have the order of the items
    found = sparse.recalls(scores, trials, gain, real, [1, 5, 40])
    for weights, of_trial in zip(trials, found, strict=True):
        total = (scores @ weights).masked_fill(~real, -torch.inf)
        order = total.argsort(dim=1, descending=True, stable=True)
        sums = (gain * real).gather(1, order).cumsum(1)
        torch.testing.assert_close(of_trial, sums[:, [0, 4, 29]])
        torch.testing.assert_close(sparse.recalls(scores, weights[None], gain, real, [1, 5, 40])[0], of_trial)


def test_short_and_long_rows_are_folded_in(generator):
    counts = torch.tensor([0, 1, 5, 6, 9, 20])
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    chosen = CSR(offsets, torch.randint(30, (int(counts.sum()),), generator=generator))
    factors = Factors(torch.randn(30, 6, generator=generator), torch.rand(6, generator=generator), 0.02, 3.0)
    found = _solve(factors, chosen)
    exact = Factors(*(part.double() if isinstance(part, torch.Tensor) else part for part in factors))
    for row, count in enumerate(counts.tolist()):
        entries = chosen.columns[offsets[row] : offsets[row + 1]]
        expected = fold_in(exact, exact.items[entries].unsqueeze(0), torch.ones(1, count).double())[0]
        torch.testing.assert_close(found[row].double(), expected, rtol=1e-4, atol=1e-5)


def random_rows(generator, num_rows, size):
    lists = torch.randint(-1, size, (num_rows, 6), generator=generator)
    return distinct_rows(lists, torch.rand(6, generator=generator) + 0.1)


def test_a_sparse_matrix_times_a_dense_one(generator):
    rows, factor = random_rows(generator, 15, 9), torch.randn(9, 5, generator=generator)
    torch.testing.assert_close(sparse.multiply(rows, factor), dense(rows, 9) @ factor)
    torch.testing.assert_close(dense(sparse.transposed(rows, 9), 15), dense(rows, 9).T)


@pytest.mark.parametrize("most", [1, 3, 50])
def test_what_predicts_a_block_of_items(generator, most):
    first = random_rows(generator, 40, 20)
    rows = sparse.sum_products(first, first, 20)
    matrix, block = dense(rows, 20), torch.tensor([2, 3, 11])
    diagonal = matrix.diagonal()
    strength = (matrix[block] ** 2 / (diagonal + 1.5)).sum(0)
    expected = set(strength.argsort(descending=True)[:most].tolist()) | set(block.tolist())
    chosen, right = sparse.predictors(rows, block, diagonal.contiguous(), 1.5, most)
    assert chosen.tolist() == sorted(expected & set(strength.nonzero().flatten().tolist()) | set(block.tolist()))
    torch.testing.assert_close(right, matrix[block][:, chosen].T)


@pytest.mark.parametrize("popular", [[], [1, 4, 5], list(range(20))])
def test_a_block_of_a_symmetric_matrix(generator, popular):
    first = random_rows(generator, 40, 20)
    rows, popular = sparse.sum_products(first, first, 20), torch.tensor(popular, dtype=torch.int64)
    matrix, rank = dense(rows, 20), torch.full((20,), -1)
    rank[popular] = torch.arange(len(popular))
    among_popular = matrix[popular][:, popular].contiguous()
    for chosen in (torch.tensor([0, 1, 5, 17]), torch.tensor([3]), torch.arange(20)):
        block = sparse.dense_block(rows, chosen, rank, among_popular)
        torch.testing.assert_close(block, matrix[chosen][:, chosen])
        other = sparse.sum_products(first, random_rows(generator, 40, 20), 20)  # not symmetric
        torch.testing.assert_close(sparse.dense(other, chosen, chosen), dense(other, 20)[chosen][:, chosen])


def test_the_largest_of_each_column(generator):
    weights = torch.randn(12, 5, generator=generator)
    found = sparse.largest_of_columns(weights, 4)
    expected = weights.abs().topk(4, dim=0).indices
    assert torch.equal(found.sort(dim=0).values, expected.sort(dim=0).values)


def sparse_system(generator, penalty):
    """A Gram matrix of few entries plus a penalty, as a dense matrix [600, 600]."""
    first = distinct_rows(torch.randint(600, (600, 3), generator=generator), torch.rand(3, generator=generator) + 0.5)
    return dense(sparse.sum_products(first, first, 600), 600) + penalty * torch.eye(600)


@pytest.mark.parametrize("penalty", [3.0, 100.0])
def test_a_sparse_system_is_solved(generator, penalty):
    system, right = sparse_system(generator, penalty), torch.randn(600, 7, generator=generator)
    right[:, 3] = 0
    found = sparse.solve_sparse(system, right)
    expected = torch.linalg.solve(system.double(), right.double())
    torch.testing.assert_close(found.double(), expected, atol=2e-6 / penalty, rtol=1e-5)


def test_a_system_that_conjugate_gradients_do_not_suit_is_left_to_others(generator):
    right = torch.randn(600, 7, generator=generator)
    many_entries = torch.ones(600, 600) + 100 * torch.eye(600)
    assert sparse.solve_sparse(many_entries, right) is None
    assert sparse.solve_sparse(sparse_system(generator, 1e-6), right) is None  # nearly singular
    system = sparse_system(generator, 1.0)
    for scale in (1e30, 1e-25, torch.nan):  # beyond float32, or none
        assert sparse.solve_sparse(system, right * scale) is None
    assert sparse.solve_sparse(torch.zeros(600, 600), right) is None
    system[5], system[:, 5] = 0, 0
    assert sparse.solve_sparse(system, right) is None

"""Co-occurrence factors of a large log over ranks: those of one rank, and nowhere all of them."""

import sys

import polars as pl
import pytest
import torch
from ranks import run_ranks
from test_ranks import whole
from torch.overrides import TorchFunctionMode

import beamtree as bt
from beamtree.builders import cluster
from beamtree.data import Events, seeds
from beamtree.data.subspace import Matrix, householder_signs, orthonormal_, triangle
from beamtree.distributed import exchange as routes
from beamtree.distributed import partition as shards
from beamtree.distributed.group import join
from beamtree.train.recipes import deep_from_factors

room = sys.modules["beamtree.data.factors"]  # the package has a function of this name
SIZES = (2, 3)
ITEMS, DIM = 150, 6
LOGS = {"usual": 90, "few users": 2, "like each other": 61}  # users
CASES = [("usual", None), ("usual", 4), ("few users", 4), ("like each other", None)]  # with the length of runs
ASKED = 5, 100  # users and items by which factors are chosen: fewer than all


def a_log(name):
    """Users who choose around their taste, so that all of them go together with all; or six baskets again and again."""
    users, generator = LOGS[name], torch.Generator().manual_seed(1)
    counts = torch.randint(2, 25, (users,), generator=generator)
    taste = torch.rand(users, generator=generator).repeat_interleave(counts)
    share = torch.rand(len(taste), generator=generator).square()
    items = ((share + taste) * ITEMS / 2).long()
    events = Events(torch.nn.functional.pad(counts.cumsum(0), (1, 0)), items.int(), name)
    return events.of(torch.arange(users) % 4, name) if name == "like each other" else events


class Widths(TorchFunctionMode):
    """The most rows that any table of `dim` columns had."""

    def __init__(self, dim):
        super().__init__()
        self.dim, self.most = dim, 0

    def __torch_function__(self, function, kinds, given=(), named=None):
        found = function(*given, **(named or {}))
        for each in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(each, torch.Tensor) and each.dim() == 2 and each.shape[1] == self.dim:
                self.most = max(self.most, len(each))
        return found


# The pieces


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(4))
def test_orthonormal_columns_are_those_of_householder(kind, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(200, 9, generator=generator, dtype=kind) * torch.logspace(0, -2, 9, dtype=kind)
    rows = rows @ torch.randn(9, 9, generator=generator, dtype=kind)
    expected = torch.linalg.qr(rows)
    torch.testing.assert_close(orthonormal_(rows.clone(), 200), expected.Q, rtol=0, atol=1e4 * torch.finfo(kind).eps)
    root, inverse = triangle(rows.T.double() @ rows.double(), kind)
    signs = householder_signs((rows @ inverse)[:9])[:, None]
    scale = float(rows.norm()) * 1e4 * torch.finfo(kind).eps
    torch.testing.assert_close(root * signs, expected.R, rtol=0, atol=scale)


def test_columns_that_add_nothing_become_0():
    rows = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[:, 2], rows[:, 3] = rows[:, 0] - 3 * rows[:, 1], 0.0
    found = orthonormal_(rows.clone(), 40)
    torch.testing.assert_close(found.T @ found, torch.diag(torch.tensor([1.0, 1, 0, 0, 1], dtype=torch.float64)))
    torch.testing.assert_close(found @ (found.T @ rows), rows)  # nothing is lost
    assert bool((orthonormal_(torch.zeros(7, 3), 7) == 0).all())


def test_a_matrix_in_pieces_is_the_matrix(monkeypatch, in_double_precision):
    events = a_log("usual")
    row, item = room.pairs(events, ITEMS)
    dense = torch.zeros(len(events), ITEMS)
    dense[row, item] = 1.0
    dense = dense / dense.sum(1, keepdim=True).clamp(min=1).sqrt() / dense.sum(0).clamp(min=1).sqrt()
    basis = torch.randn(ITEMS, 4, generator=torch.Generator().manual_seed(0))
    for pulled in (1, 30, 1 << 19):
        monkeypatch.setattr(routes, "PULLED", pulled)
        matrix = Matrix(row, item, ITEMS)
        pieces = list(matrix.times(basis))
        assert len(pieces) == {1: len(events), 1 << 19: 1}.get(pulled, len(pieces))
        assert all(piece.matrix._nnz() <= pulled or len(along) == 1 for piece, along in pieces)
        torch.testing.assert_close(torch.cat([along for _, along in pieces]), dense @ basis)
        torch.testing.assert_close(matrix.there_and_back(basis), dense.T @ (dense @ basis))


# Over ranks


@pytest.fixture
def in_double_precision():
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(usual)


def a_frame(users=280, items=300):
    """Users who choose around their taste."""
    generator = torch.Generator().manual_seed(2)
    taste, rows = torch.rand(users, generator=generator), []
    for user in range(users):
        shares = torch.rand(14, generator=generator).square()
        rows += [(f"u{user:03}", f"i{int((share + taste[user]) * items / 2):03}") for share in shares]
    return pl.DataFrame(rows, schema=["user", "item"], orient="row")


def paths(num_items):
    """Two levels of categories, which know little."""
    shelf = torch.arange(num_items) * 7 % 12
    return torch.stack([shelf // 4, shelf], dim=1)


def made(data):
    """The run length, the trees among which `cluster_tree` chose, its choice, and a model that starts from factors."""
    tried, asked = [], cluster.shared_nodes

    def shared_nodes(tree, users):
        tried.append(tree.items().tolist())
        return asked(tree, users)

    cluster.shared_nodes = shared_nodes
    try:
        tree = bt.cluster_tree(data, categories=paths(data.num_items))
    finally:
        cluster.shared_nodes = asked
    model = bt.TreeModel(tree, deep_from_factors(tree, data, 3))
    return [data.run_length, tried, tree.items().tolist()], model


def over_ranks(folder):
    """All of it in double precision, of logs that count as large and in small pieces."""
    join()
    torch.set_default_dtype(torch.float64)
    small = bt.data.factors(a_log("usual"), ITEMS, dim=DIM).tolist()
    room.ALIKE, routes.PULLED, seeds.DRAWN, shards.TOP = 0, 100, 16, 8
    found = {"small": small} | {case: own_factors(*case) for case in CASES}
    routes.PULLED, room.USERS, room.OTHERS = 250, *ASKED
    data = bt.load_data(folder)
    with Widths(room.DIM) as seen:
        things, model = made(data)
    assert 0 < seen.most < data.num_items, "no rank ever has a vector for each item"
    assert model.scorer.is_spread
    return found, things, whole(model)


def own_factors(name, length):
    width = min(DIM, LOGS[name])
    with Widths(width) as seen:
        own = room.factors_by_rows(a_log(name), ITEMS, dim=DIM, run_length=length)
    assert own.part.shape == (len(routes.dealt(ITEMS)), width)
    assert 0 < seen.most < ITEMS, "no rank ever has a vector for each item"
    return own.whole().tolist()


@pytest.mark.parametrize("size", SIZES)
def test_factors_of_a_large_log_and_what_is_made_of_them_are_those_of_one_rank(
    size, tmp_path, monkeypatch, in_double_precision
):
    bt.prepare(a_frame(), tmp_path / "data", val_users=9, test_users=9)
    results = run_ranks(size, over_ranks, tmp_path / "data")
    monkeypatch.setattr(room, "USERS", ASKED[0])
    monkeypatch.setattr(room, "OTHERS", ASKED[1])
    expected, model = made(bt.load_data(tmp_path / "data"))
    assert len(expected[1]) == 3, "by factors, by events, by categories"
    for found, things, weights in results:
        small = bt.data.factors(a_log("usual"), ITEMS, dim=DIM)
        torch.testing.assert_close(torch.tensor(found["small"]), small, atol=1e-12, rtol=1e-12)
        for case in CASES:
            check_factors(*case, torch.tensor(found[case]))
        assert things == expected
        for name, values in whole(model).items():
            torch.testing.assert_close(torch.tensor(weights[name]), torch.tensor(values), atol=1e-8, rtol=0, msg=name)


def check_factors(name, length, theirs):
    ours = bt.data.factors(a_log(name), ITEMS, dim=DIM, run_length=length)
    torch.testing.assert_close(theirs @ theirs.T, ours @ ours.T, atol=1e-11, rtol=0, msg=f"{name}, {length}")
    if name == "usual":  # torch finds other signs where there are fewer directions or rows than columns
        torch.testing.assert_close(theirs, ours, atol=1e-9, rtol=0, msg=f"{name}, {length}")


def test_whole_and_own_factors_of_prepared_data_are_the_same(tmp_path):
    bt.prepare(a_frame(60), tmp_path / "data", val_users=9, test_users=9)
    data = bt.load_data(tmp_path / "data")
    assert data.factors is data.own_factors.part
    assert data.own_factors.total == data.num_items == len(data.factors)
    assert torch.equal(data.factors, room.factors(data.train.events, data.num_items, run_length=data.run_length))


def known_before_ranks_meet(folder):
    data = bt.load_data(folder)
    alone = data.factors
    join()
    some = torch.arange(5)
    return torch.equal(data.factors, alone) and torch.equal(data.own_factors.at(some), alone[some])


def test_factors_that_a_rank_found_alone_are_not_taken_for_a_part(tmp_path):
    bt.prepare(a_frame(60), tmp_path / "data", val_users=9, test_users=9)
    assert run_ranks(2, known_before_ranks_meet, tmp_path / "data", seconds=30) == [True, True]

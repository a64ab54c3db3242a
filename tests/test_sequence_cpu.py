"""The compiled transformer of a CPU against the one of torch: over lengths, sizes, times and changes of its weights."""

from copy import deepcopy

import pytest
import torch

import beamtree as bt
from beamtree import PAD, kernels
from beamtree.data.inputs import HISTORY, NO_TIME, Inputs
from beamtree.kernels import compiled_sequence, sequence_cpu
from beamtree.live.edits import without_items
from beamtree.scorers import SequenceScorer
from beamtree.scorers.sequence import SequenceEncoder

ITEMS = 50
FIRST = 1_700_000_000


def make_scorer(tree, dim=64, layers=2, length=HISTORY, clock=True):
    """With weights of every layer, norm and Gaussian that matter, which they do not before training."""
    encoder = SequenceEncoder(dim, layers, 0.3, length, clock, seed=3).requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for weight in encoder.parameters():
        weight += 0.3 * torch.randn(weight.shape, generator=generator)
    return SequenceScorer.from_items(tree, encoder, torch.randn(ITEMS, dim, generator=generator))


def make_x(counts, times="known", width=HISTORY, seed=0):
    """Histories with so many events, newest first, with gaps of PAD; `times` says which are known."""
    generator = torch.Generator().manual_seed(seed)
    items = torch.full((len(counts), width), PAD)
    for row, count in enumerate(counts):
        places = torch.randperm(width, generator=generator)[:count] if row % 2 else torch.arange(count)
        items[row, places] = torch.randint(ITEMS, (count,), generator=generator)
    if times in ("none", "no clock"):
        return items
    gaps = (torch.rand(items.shape, generator=generator) * 20).exp().long() - 1  # up to fifteen years
    moments = FIRST - gaps.cumsum(1)
    request = torch.full((len(counts), 1), FIRST + 3)
    if times == "half":
        moments[torch.rand(moments.shape, generator=generator) < 0.5] = NO_TIME
        request[::3] = NO_TIME
    elif times == "order":
        moments[:], request[:] = NO_TIME, NO_TIME
    elif times == "late":
        moments += 10**6  # events after the request
    return Inputs(items, moments, request, items[:, :0]).joined()


@torch.no_grad()
def check(scorer, tree, x):
    assert sequence_cpu.fits(scorer.encoder, scorer.table.weight)
    users = scorer.users(tree, x)
    with kernels.plain_operations():
        assert not sequence_cpu.fits(scorer.encoder, scorer.table.weight)
        expected = scorer.users(tree, x)
    torch.testing.assert_close(users, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("times", ["no clock", "known", "half", "order", "late", "none"])
def test_users_are_those_of_the_encoder(times):
    tree = bt.random_tree(ITEMS, seed=1)
    scorer = make_scorer(tree, clock=times != "no clock")
    x = make_x([0, 1, 2, 3, 5, 6, 7, 31, 32, 33, 63, 64, 65, 68, 69], times)
    check(scorer, tree, x)
    for row in x:  # alone
        check(scorer, tree, row.unsqueeze(0))


@pytest.mark.parametrize(
    ("dim", "layers", "length"), [(16, 1, HISTORY), (32, 3, HISTORY), (40, 2, 5), (128, 4, 200), (192, 2, HISTORY)]
)
@pytest.mark.parametrize("clock", [True, False])
def test_of_every_size(dim, layers, length, clock):
    tree = bt.random_tree(ITEMS, seed=1)
    scorer = make_scorer(tree, dim, layers, length, clock)
    check(scorer, tree, make_x([0, 4, 5, 6, 256, 199, 200, 201], "half" if clock else "none", width=256))


def test_items_without_a_leaf_are_left_out():
    model = bt.TreeModel(bt.random_tree(ITEMS, seed=1), make_scorer(bt.random_tree(ITEMS, seed=1)))
    model = without_items(model, list(range(0, ITEMS, 2)))
    check(model.scorer, model.tree, make_x([0, 1, 9, 40, 69]))


@torch.no_grad()
def test_changed_weights_are_read():
    tree, x = bt.random_tree(ITEMS, seed=1), make_x([9, 30])
    scorer = make_scorer(tree)
    check(scorer, tree, x)
    before = scorer.users(tree, x)
    scorer.encoder.blocks[1].mlp[0].weight += 0.1
    assert not torch.allclose(before, scorer.users(tree, x), atol=1e-3)
    check(scorer, tree, x)
    state = {name: weight + 0.1 for name, weight in scorer.encoder.state_dict().items()}
    scorer.encoder.load_state_dict(state, assign=True)
    check(scorer, tree, x)
    other = deepcopy(scorer)
    other.encoder.positions -= 0.1
    check(other, tree, x)
    check(scorer, tree, x)


@torch.no_grad()
def test_threads_share_histories(monkeypatch):
    tree, x = bt.random_tree(ITEMS, seed=1), make_x([5] * 41)
    scorer = make_scorer(tree)
    one = scorer.users(tree, x)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(scorer.users(tree, x), one)
    assert scorer.users(tree, x[:0]).shape == (0, 64)


@torch.no_grad()
def test_it_is_compiled_once():
    tree = bt.random_tree(ITEMS, seed=1)
    for scorer, x in (
        (make_scorer(tree), make_x([3, 9]).T.contiguous().T),
        (make_scorer(tree, 128, 3, 200), make_x([3], width=128)),
        (make_scorer(tree, clock=False), make_x([3, 9], "none")),
    ):
        check(scorer, tree, x)
    assert len(compiled_sequence.encode.signatures) == 1


def test_gradients_are_those_of_torch():
    tree, x = bt.random_tree(ITEMS, seed=1), make_x([3, 9])
    scorer = make_scorer(tree)
    scorer.encoder.requires_grad_(True)
    scorer.users(tree, x).sum().backward()
    assert scorer.encoder.start.grad is not None

"""Training over ranks: whatever their number, the same model."""

import pytest
import torch
from ranks import run_ranks

import beamtree as bt
from beamtree import shards
from beamtree.data.instances import Instances
from beamtree.distributed import join
from beamtree.methods import sized
from beamtree.scorers import DeepScorer
from beamtree.scorers.spread import SpreadTable
from beamtree.train import Schedule
from beamtree.train.optimizer import OPTIMIZERS
from beamtree.tree import PAD

ITEMS = 90
CASES = {
    # name: method, optimizer, arity, batch size, shared rows
    "otm, lazy": ("otm", "lazy", 2, 7, True),
    "otm, dense": ("otm", "adam", 3, 8, False),
    "plt, lazy": ("plt", "lazy", 3, 6, False),
    "plt, dense": ("plt", "adam", 2, 6, True),
    "tdm, lazy": ("tdm", "lazy", 2, 7, True),
    "tdm, dense": ("tdm-positives", "adam", 3, 5, True),
    "mixed": ("otm-mixed", "lazy", 3, 5, False),
    "hsm": ("hsm", "lazy", 2, 3, True),
    "stochastic": ("otm-stochastic", "lazy", 2, 5, False),
    "fewer users than ranks": ("otm", "lazy", 2, 2, True),
    "one user": ("tdm", "adam", 2, 1, True),
}


def histories(users=23, seed=0):
    """Instances whose last batch of an epoch is short."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(ITEMS, (users, 12), generator=generator)
    x[torch.rand(x.shape, generator=generator) < 0.2] = PAD
    return Instances(x, torch.randint(ITEMS, (users, 4), generator=generator))


def model_for(arity, share, dtype=torch.float64):
    tree = bt.random_tree(ITEMS, arity, seed=1)
    scorer = DeepScorer(tree.num_nodes, 6, scale=0.3, share=share, seed=2).to(dtype)
    return bt.TreeModel(tree, scorer, first_level=2)


def fitted(name, steps, dtype=torch.float64, **more):
    method, optimizer, arity, batch_size, share = CASES[name]
    model = model_for(arity, share, dtype)
    bt.fit(
        model,
        histories(),
        sized(method, 4, 6),
        steps=steps,
        batch_size=batch_size,
        optimizer=OPTIMIZERS[optimizer],
        schedule=Schedule(0.01),
        **more,
    )
    return model


def whole(model):
    """All weights of a model, of whichever rank they are."""
    weights = {name: value.tolist() for name, value in model.scorer.state_dict().items()}
    if model.scorer.is_spread:
        table = model.scorer.table
        assert isinstance(table, SpreadTable)
        rows = torch.zeros(table.num_nodes, table.weight.shape[1], dtype=table.weight.dtype)
        ranks = table.shard.ranks
        for place, (nodes, own) in enumerate(table.shard.pieces()):
            if place or ranks.is_first:
                rows[nodes.start : nodes.stop] = table.weight.detach()[own]
        weights["table.weight"] = ranks.sum_(rows).tolist()
    return weights


def train_all(names, steps, top, dtype=torch.float64):
    shards.TOP = top
    join()
    return {name: whole(fitted(name, steps, dtype)) for name in names}


def farthest(one, other):
    one, other = (
        {name: torch.tensor(value, dtype=torch.float64) for name, value in each.items()} for each in (one, other)
    )
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def check_same(size, names, steps, top):
    """In double precision: a beam that chooses another node by a rounding error would be another training."""
    found = run_ranks(size, train_all, names, steps, top)
    for name in names:
        alone = whole(fitted(name, steps))
        assert all(farthest(alone, ranks[name]) < 1e-6 for ranks in found), name


def test_two_ranks_train_the_same_model_as_one():
    check_same(2, list(CASES), 12, top=5)


def test_three_ranks_train_the_same_model_as_one():
    check_same(3, ["otm, lazy", "plt, dense", "hsm", "stochastic", "fewer users than ranks", "one user"], 12, top=10)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "top"), [(2, 5), (3, 10)])
def test_any_number_of_ranks_trains_the_same_model_for_100_steps(size, top):
    check_same(size, list(CASES)[:6], 100, top)

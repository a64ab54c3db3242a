from functools import partial

import pytest
import torch

import beamtree as bt
from beamtree import methods
from beamtree.beam import retrieve
from beamtree.data import Instances, relevant_items
from beamtree.data.seeds import epoch_order, mix
from beamtree.theory import regret
from beamtree.train import Schedule, Validation, constant

fit = partial(bt.fit, schedule=Schedule(1e-2, constant))

METHODS = {
    "plt": bt.plt(),
    "hsm": bt.hsm(),
    "tdm": bt.tdm(10),
    "tdm-positives": methods.tdm_positives(10),
    "otm": bt.otm(5),
    "otm-no-beam": methods.otm_no_beam(10),
    "otm-no-optest": methods.otm_no_optest(5),
    "otm-mixed": bt.otm_mixed(5, 10),
    "otm-mixed-all": methods.otm_mixed_all(5, 10),
    "otm-stochastic": methods.otm_stochastic(5),
    "otm-margin": methods.otm_margin(5),
    "otm-level-weights": methods.otm_level_weights(5),
    "dtr": methods.dtr(10),
}


def setting(num_items=60, train=600, bias=-2.0, seed=3):
    data = bt.gaussian(num_items, 5, bias, train=train, test=200, seed=seed)
    tree = bt.random_tree(num_items, seed=seed)
    return data, bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, 5))


def lost(model, data, k=5):
    items, _ = retrieve(model, data.test.x, beam_size=k, m=k)
    return float(regret(data.eta(data.test.x), items, k).mean())


def test_every_row_of_the_table_is_under_test():
    assert [method.name for method in METHODS.values()] == list(METHODS) == list(methods.METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns(name):
    data, model = setting()
    before = lost(model, data)
    losses = []
    fit(
        model,
        data.train,
        METHODS[name],
        epochs=12,
        batch_size=50,
        on_step=lambda t, n, loss: losses.append(float(loss)),
    )
    assert len(losses) == 12 * 12
    assert sum(losses[-12:]) < 0.8 * sum(losses[:12])
    assert lost(model, data) < 0.6 * before
    assert model.chained == (name in {"plt", "hsm"})
    assert not model.training


@pytest.mark.parametrize(("method", "warm_up"), [(bt.plt(), bt.tdm(10)), (bt.otm(5), bt.plt())])
def test_recall_is_measured_as_the_finished_model_is_searched(method, warm_up):
    """Also before the first step, and during a warm-up with the other p_g."""
    data, model = setting(train=100)
    chained = []
    val = Validation(data.test, 5, 5, every=1, on_check=lambda step, recall: chained.append(model.chained))
    schedule = Schedule(1e-2, constant, warm_up, 0.5)
    progress = bt.fit(model, data.train, method, steps=4, batch_size=30, schedule=schedule, val=val)
    assert chained == [method.chained] * 5
    assert model.chained == method.chained
    assert val.recall(model) == progress.best


@pytest.mark.extended
def test_otm_beats_plain_targets_on_the_paths_it_walks():
    """The paper's claim in the small: at m = k OTM loses less than TDM with as many nodes per level."""
    results = {}
    for name in ("tdm", "otm"):
        data, model = setting(num_items=200, train=2000, bias=-4.0)
        fit(model, data.train, METHODS[name], epochs=25, batch_size=100)
        results[name] = lost(model, data)
    assert results["otm"] < 0.95 * results["tdm"]


@pytest.mark.parametrize("name", ["tdm-positives", "otm-mixed", "otm-stochastic", "dtr"])
def test_same_seed_same_weights_and_another_seed_others(name):
    weights = []
    for seed in (1, 1, 2):
        data, model = setting(train=100)
        fit(model, data.train, METHODS[name], epochs=2, batch_size=30, seed=seed)
        weights.append(model.scorer.table.weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_training_leaves_the_global_randomness_alone():
    data, model = setting(train=100)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(model, data.train, bt.otm_mixed(5, 10), epochs=1, batch_size=30)
    assert torch.equal(torch.rand(3), expected)


def test_an_epoch_reads_every_instance_once_in_an_order_of_its_own():
    orders = [epoch_order(50, seed=1, epoch=e).tolist() for e in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert orders[1] == epoch_order(50, seed=1, epoch=1).tolist()


def test_mixed_seeds_do_not_collide():
    assert len({mix(seed, index) for seed in range(200) for index in range(200)}) == 40_000


@pytest.mark.slow
def test_proposition_3_in_training_a_free_table_reaches_zero_regret():
    """With capacity, OTM-mixed ends at p*: one x, a free logit per node, y drawn afresh from known η."""
    eta = torch.rand(30, generator=torch.Generator().manual_seed(4))
    tree = bt.random_tree(30, seed=4)
    y = torch.rand(20_000, 30, generator=torch.Generator().manual_seed(5)) < eta
    data = Instances(torch.zeros(20_000, 1), relevant_items(y))
    model = bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, 1))
    fit(model, data, methods.otm_mixed_all(3, 10), epochs=30, batch_size=500)
    for k in (1, 3, 10):
        items, _ = retrieve(model, torch.zeros(1, 1), beam_size=k, m=k)
        assert float(regret(eta.unsqueeze(0), items, k)) < 0.01

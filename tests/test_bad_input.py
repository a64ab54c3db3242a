"""What a user can get wrong: each a clear one-line error."""

import pytest
import torch

import beamtree as bt
from beamtree import PAD, methods, theory
from beamtree.data import Instances
from beamtree.train import Checkpoints, Schedule, Validation


def make_model(num_items=10, dim=3):
    tree = bt.random_tree(num_items)
    return bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, dim))


def fails(message):
    return pytest.raises(ValueError, match=message)


def test_trees_that_cannot_be():
    for make in (lambda: bt.random_tree(0), lambda: bt.Tree([]), lambda: bt.Tree([PAD, PAD])):
        with fails("at least one item"):
            make()
    for make in (lambda: bt.random_tree(5, arity=1), lambda: bt.Tree([0, 1], arity=1)):
        with fails("at least 2 children"):
            make()
    with fails("item 1 sits on more than one leaf"):
        bt.Tree([0, 1, 1, 2])
    with fails("item 7 is outside 0…2: number the items from 0 without gaps"):
        bt.Tree([0, 7, 1])
    with fails("item -3 is outside"):
        bt.Tree([0, -3, 1])


def test_searches_that_cannot_be():
    model, x = make_model(), torch.randn(2, 3)
    with fails("m=5 with beam_size=4"):
        bt.retrieve(model, x, beam_size=4, m=5)
    with fails("m=0"):
        bt.retrieve(model, x, beam_size=4, m=0)
    for beam_size in (0, -1):
        with fails(f"beam_size={beam_size}"):
            bt.retrieve(model, x, beam_size=beam_size, m=1)
        with fails(f"beam_size={beam_size}"):
            list(bt.beam.walk(model.query(x), beam_size))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_numbers_that_are_none(value):
    model, x = make_model(), torch.randn(4, 3)
    x[2, 1] = value
    with fails("NaN or infinity in row 2"):
        bt.retrieve(model, x)
    with fails("NaN or infinity in row 2"):
        bt.fit(model, Instances(x, torch.zeros(4, 1, dtype=torch.int64)), bt.otm(3), epochs=1)


def test_observations_of_the_wrong_shape():
    for x in (torch.randn(4, 5), torch.randn(3), torch.zeros(4, 3, dtype=torch.int64), torch.randn(4, 3).double()):
        with fails(r"takes torch.float32 \[B, 3\]"):
            bt.retrieve(make_model(), x)


def test_a_scorer_for_a_smaller_tree():
    with fails("the scorer knows 7 nodes and the tree has 31"):
        bt.TreeModel(bt.random_tree(10), bt.LinearScorer(7, 3))


def test_targets_that_are_missing_or_unknown():
    x = torch.randn(2, 3)
    with fails("y of instance 1 is empty"):
        Instances(x, torch.tensor([[3, PAD], [PAD, PAD]]))
    for y in (torch.tensor([3, 4]), torch.tensor([[3], [4]], dtype=torch.int32)):
        with fails("give int64"):
            Instances(x, y)
    with fails("2 observations with 1 sets of targets"):
        Instances(x, torch.tensor([[3]]))
    with fails("no instances"):
        Instances(x[:0], torch.zeros(0, 1, dtype=torch.int64))
    for item in (10, -2):
        with fails(f"item {item} is not in the tree, which holds items 0…9"):
            bt.fit(make_model(), Instances(x, torch.tensor([[3], [item]])), bt.otm(3), epochs=1)
        with fails(f"item {item} is not in the tree"):
            bt.evaluate(make_model(), Instances(x, torch.tensor([[3], [item]])))
    with fails("y of instance 0 is empty"):
        bt.metrics.precision_recall_f(torch.tensor([[1]]), torch.tensor([[PAD]]), 1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("epochs", lambda data, folder: {"epochs": 0}),
        ("batch_size", lambda data, folder: {"batch_size": 0}),
        ("lr", lambda data, folder: {"schedule": Schedule(lr=0)}),
        ("every", lambda data, folder: {"checkpoints": Checkpoints(folder, every=0)}),
        ("every", lambda data, folder: {"checkpoints": Checkpoints(folder, every=0), "val": data}),
        ("every", lambda data, folder: {"val": Validation(data, beam_size=4, m=2, every=0)}),
        ("patience", lambda data, folder: {"val": Validation(data, beam_size=4, m=2, patience=0)}),
    ],
)
def test_training_that_cannot_be(name, words, tmp_path):
    data = Instances(torch.randn(2, 3), torch.tensor([[3], [4]]))
    with fails(f"{name}=0: must be above 0"):
        bt.fit(make_model(), data, bt.otm(3), **{"epochs": 1, **words(data, tmp_path / "run")})
    assert not (tmp_path / "run").exists()


def test_training_of_less_than_no_steps():
    data = Instances(torch.randn(2, 3), torch.tensor([[3], [4]]))
    with fails("steps=-1: must be 0 or more"):
        bt.fit(make_model(), data, bt.otm(3), steps=-1)


@pytest.mark.parametrize(
    "make",
    [bt.tdm, methods.tdm_positives, bt.otm, methods.otm_no_beam, methods.otm_no_optest, methods.otm_stochastic],
)
def test_methods_that_train_nothing(make):
    with fails("at least 1"):
        make(0)


def test_mixed_that_mixes_nothing():
    with fails("at least 1"):
        bt.otm_mixed(0, 5)
    for make in (bt.otm_mixed, methods.otm_mixed_all):
        with fails("at least 1"):
            make(5, 0)


def test_regret_at_more_than_was_retrieved():
    with fails("1 items were retrieved: the regret at m=3"):
        theory.regret(torch.rand(2, 5), torch.tensor([[1], [2]]), 3)


def test_sparse_data_without_relevant_items():
    with fails("leaves instances without a relevant item"):
        bt.gaussian(2, 2, -50.0, train=5, test=5)

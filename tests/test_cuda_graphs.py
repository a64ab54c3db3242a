"""Searches recorded as CUDA graphs: what a replay finds is what the search finds, also with changed weights."""

import pytest
import torch
from random_parts import random_scorers

import beamtree as bt
from beamtree.beam import WARMUP_RUNS
from beamtree.data import Ids
from beamtree.kernels.cuda_graphs import CudaGraphCache, beside
from beamtree.model import ModelState
from beamtree.query import RecommendRequest, Searcher
from beamtree.scorers import RepeatScorer, SumScorer


def test_on_a_cpu_every_call_runs_the_function_anew():
    calls = []

    def double(x):
        calls.append(x)
        return (2 * x,)

    graphs = CudaGraphCache(warmup_runs=1)
    for value in range(5):
        (found,) = graphs("double", double, torch.tensor([value]))
        assert found.tolist() == [2 * value]
    assert len(calls) == 5


def test_requests_of_all_sizes_have_few_shapes_and_the_same_answers(monkeypatch):
    """Each shape is recorded for itself, and few are kept."""
    tree, shapes = bt.random_tree(3000), {True: set(), False: set()}
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, scale=1.0), first_level=6).eval()
    searcher = Searcher(model, Ids([f"i{item}" for item in range(3000)]))
    assert not searcher.round_shapes  # on a CPU

    def retrieve(model, x, *, exclude, m, **options):
        shapes[searcher.round_shapes].add((x.shape, exclude.shape, m))
        return bt.retrieve(model, x, exclude=exclude, m=m, **options)

    monkeypatch.setattr("beamtree.query.search.retrieve", retrieve)
    for length in [*range(1, 60), 100, 300, 700, 1500]:
        histories = [[f"i{item}" for item in range(length)]] * (1 + length % 4)
        request, items = RecommendRequest(histories, m=5 + length % 4, beam_size=50, exclude_seen=True), []
        for searcher.round_shapes in (False, True):
            items.append([result.items for result in searcher.recommend(request).results])
        assert items[0] == items[1]
    assert len(shapes[False]) > 60
    assert len({(x, exclude) for x, exclude, _ in shapes[True]}) <= 3 + 4
    assert {m for *_, m in shapes[True]} == {8}


def test_functions_beside_each_other_are_called_in_turn_on_a_cpu():
    assert beside(torch.device("cpu"), [lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]
    assert beside(torch.device("cpu"), []) == []


@pytest.mark.gpu
def test_a_recorded_scan_finds_what_a_plain_one_does():
    tree = bt.random_tree(5000)
    seed = torch.Generator().manual_seed(0)
    parts = random_scorers(tree, seed)
    del parts["deep"]
    model = bt.TreeModel(tree, SumScorer(parts, tree.height)).cuda().eval()
    for _ in range(2 * WARMUP_RUNS):
        x = torch.randint(5000, (3, 69), generator=seed).cuda()
        x = torch.cat([x, torch.randint(4, (3, 2), generator=seed).cuda()], dim=1)
        exclude = torch.randint(5000, (3, 5), generator=seed).cuda()
        found = bt.retrieve(model, x, m=20, exclude=exclude, search="scan")
        expected = bt.brute_force(model, x, m=20, exclude=exclude)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_a_recorded_search_finds_what_a_plain_one_does_and_follows_the_weights(monkeypatch):
    tree = bt.random_tree(5000)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, scale=1.0), first_level=6).cuda()
    seed = torch.Generator().manual_seed(0)
    for turn in range(3 * WARMUP_RUNS):
        x = torch.randint(5000, (3, 69), generator=seed).cuda()
        exclude = torch.randint(5000, (3, 5), generator=seed).cuda()
        found = bt.retrieve(model, x, beam_size=100, m=20, exclude=exclude)
        with monkeypatch.context() as patch:
            patch.setattr("beamtree.beam._graphs_of", lambda model: CudaGraphCache(WARMUP_RUNS))
            expected = bt.retrieve(model, x, beam_size=100, m=20, exclude=exclude)
        torch.testing.assert_close(found[1], expected[1])
        if turn == 2 * WARMUP_RUNS:
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(1.1)


def test_a_recorded_search_is_discarded_when_a_weight_a_part_or_the_tree_changes():
    tree = bt.random_tree(40)
    parts = random_scorers(tree, torch.Generator().manual_seed(0))
    scorer = SumScorer(parts, tree.height)
    model = bt.TreeModel(tree, scorer)
    for change in (
        lambda: scorer.set_weights(factors=2.0),
        lambda: parts["factors"].table.weight.mul_(2.0),
        lambda: setattr(parts["memory"], "recency", parts["memory"].recency.clone()),
        lambda: scorer.put("repeats", RepeatScorer()),
        lambda: setattr(parts["deep"].layers, "0", torch.nn.Linear(128, 64)),
        lambda: setattr(model, "tree", tree.with_hidden(torch.tensor([3]))),
    ):
        state = ModelState(model)
        assert state.is_of(model)
        with torch.no_grad():
            change()
        assert not state.is_of(model)

"""Searches recorded as CUDA graphs: what a replay finds is what the search finds, also with changed weights."""

import pytest
import torch

import beamtree as bt
from beamtree.beam import WARMUP_RUNS
from beamtree.kernels.cuda_graphs import CudaGraphCache


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

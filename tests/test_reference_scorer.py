"""What the benchmarks measure against computes the same."""

import pytest
import torch
from reference_scorer import ReferenceScorer

import beamtree as bt
from beamtree import PAD


@pytest.mark.parametrize("share", [True, False])
def test_the_literal_scorer_has_our_scores_and_gradients(share):
    torch.manual_seed(0)
    tree = bt.random_tree(50, arity=3, seed=1)
    scorer = bt.DeepScorer(tree.num_nodes, scale=1.0, share=share)
    x = torch.randint(0, 50, (5, 69))
    for row, length in enumerate((69, 0, 3, 20, 60)):
        x[row, length:] = PAD
    y = torch.randint(0, 50, (5, 4))
    found = []
    for each in (scorer, ReferenceScorer(scorer)):
        model = bt.TreeModel(tree, each)
        items, scores = bt.retrieve(model, x, beam_size=50, m=50)
        loss = bt.otm(6).loss(model, x, y, torch.Generator())
        scorer.zero_grad()
        loss.backward()
        grads = [weight.grad.clone() for weight in scorer.parameters()]
        found.append((scores, scores.gather(1, items.sort().indices), loss.detach(), *grads))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)

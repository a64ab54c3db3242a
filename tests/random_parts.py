"""Random trees and parts of a score, and whether two searches found the same."""

import torch

from beamtree import PAD, Tree
from beamtree.data.csr import CSR
from beamtree.scorers import (
    ContextScorer,
    DeepScorer,
    FactorScorer,
    MemoryScorer,
    NodeTable,
    RepeatScorer,
    SequenceScorer,
)
from beamtree.scorers.factors import Factors
from beamtree.scorers.memory import recency_weights


def random_tree(arity, num_items, spare, generator, hidden=0):
    slots = torch.full((num_items + spare,), PAD)
    slots[torch.randperm(len(slots), generator=generator)[:num_items]] = torch.arange(num_items)
    return Tree(slots, arity, hidden=torch.randperm(num_items, generator=generator)[:hidden])


def random_scorers(tree, generator):
    """A part of each kind with random numbers."""
    items = tree.num_items
    factors = Factors(torch.randn(items, 6, generator=generator), torch.rand(6, generator=generator), 0.05, 0.3 * items)
    counts = [torch.randint(0, 4, (items,), generator=generator) for _ in range(2)]
    lists = [
        CSR(
            torch.nn.functional.pad(count.cumsum(0), (1, 0)),
            torch.randint(items, (int(count.sum()),), generator=generator).int(),
            torch.rand(int(count.sum()), generator=generator),
        )
        for count in counts
    ]
    sequence = SequenceScorer(tree.num_nodes, dim=32, seed=int(torch.randint(99, (1,), generator=generator)))
    sequence.table.half()
    return {
        "factors": FactorScorer.from_factors(tree, factors, 0.6),
        "memory": MemoryScorer.from_partners(lists, [recency_weights(0.6), recency_weights(1.0, newest=3)]),
        "repeats": RepeatScorer(),
        "sequence": sequence,
        "deep": random_deep(tree, generator),
        "context": ContextScorer.from_table(
            NodeTable.from_rows(torch.randn(tree.num_nodes, 5, generator=generator)),
            {"country": ["DE", "FR"], "hour": ["1", "2"]},
            torch.randn(4, 5, generator=generator),
        ),
    }


def random_deep(tree, generator):
    """A deep part of any kind and size, with biases and slopes that differ."""
    dim, seed, share, lift = (int(torch.randint(most, (1,), generator=generator)) for most in (40, 99, 2, 2))
    scorer = DeepScorer(tree.num_nodes, dim + 1, scale=1.0, share=bool(share), lift=bool(lift), seed=seed)
    with torch.no_grad():
        for parameter in (*scorer.slopes, scorer.of_user.bias, *(layer.bias for layer in scorer.layers)):
            parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.3)
    return scorer


def check_equal(found, expected, model, x):
    """The same scores, and the same items unless others have the same score."""
    assert found[0].shape == expected[0].shape
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-4)
    assert torch.equal(found[0] == PAD, expected[0] == PAD)
    for items in found[0]:
        real = items[items != PAD]
        assert len(real.unique()) == len(real)
    leaves = model.tree.leaf_of_item(found[0])
    own = model.log_prob(x, model.tree.height, leaves)
    torch.testing.assert_close(own.masked_fill(leaves == PAD, -torch.inf), found[1], rtol=1e-4, atol=1e-4)

"""Scorers of every kind for a tree, each with users to score for."""

import torch

from beamtree import PAD
from beamtree.closed_form.als import rotate
from beamtree.data.csr import strongest
from beamtree.scorers import (
    ContextScorer,
    DeepScorer,
    FactorScorer,
    FixedScorer,
    LinearScorer,
    MemoryScorer,
    NodeTable,
    PopularityScorer,
    RepeatScorer,
    SequenceScorer,
    SumScorer,
    TrendScorer,
)
from beamtree.scorers.memory import recency_weights


def without_item(tree, item):
    """The same tree, where an item has no leaf."""
    slots = tree.items().clone()
    slots[slots == item] = PAD
    return tree.with_items(slots, tree.num_items)


def make_linear(tree):
    return LinearScorer(tree.num_nodes, 5), torch.randn(7, 5)


def make_fixed(tree):
    return FixedScorer(torch.randn(7, tree.num_nodes)), FixedScorer.every(7)


def make_deep(tree):
    return DeepScorer(tree.num_nodes, scale=1.0), histories(tree.num_items)


def make_deep_without_sharing(tree):
    return DeepScorer(tree.num_nodes, scale=1.0, share=False), histories(tree.num_items)


def make_memory(tree):
    source, target = torch.randint(tree.num_items, (2, 300)).unique(dim=1)
    partners = strongest(source, target, torch.randn(len(source)), tree.num_items)
    return MemoryScorer.from_partners([partners], [recency_weights(0.5)]), histories(tree.num_items)


def make_repeats(tree):
    return RepeatScorer(0.7), histories(tree.num_items)


def make_factors(tree):
    factors = rotate(torch.randn(tree.num_items, 6), 0.1, 0.05)
    return FactorScorer.from_factors(tree, factors, power=0.3), histories(tree.num_items)


def make_popularity(tree):
    return PopularityScorer.from_counts(tree, torch.randint(100, (tree.num_items,))), histories(tree.num_items)


def make_trend(tree):
    counts = torch.rand(tree.num_items, 2) * 50
    scorer = TrendScorer.from_counts(tree, counts, [6e5, 3e6], [0.7, 0.4], origin=1_700_000_000, newest=1_700_100_000)
    return scorer, histories(tree.num_items)


def make_sequence(tree):
    return SequenceScorer(tree.num_nodes, dim=32), histories(tree.num_items)


def make_context(tree):
    table = NodeTable.from_rows(torch.randn(tree.num_nodes, 6))
    scorer = ContextScorer.from_table(table, {"country": ["DE", "FR"], "hour": ["1"]}, torch.randn(3, 6))
    return scorer, torch.cat([histories(tree.num_items), contexts()], dim=1)


def contexts():
    """Values of two columns for seven users, some of them missing."""
    return torch.tensor([[0, 2], [1, 2], [PAD, 2], [0, PAD], [1, PAD], [PAD, PAD], [1, 2]])


def make_sum(tree):
    parts = {"memory": make_memory(tree)[0], "factors": make_factors(tree)[0], "deep": make_deep(tree)[0]}
    return SumScorer(parts, tree.height, "deep").set_weights(deep=0.5), histories(tree.num_items)


def make_sum_with_context(tree):
    parts = {"memory": make_memory(tree)[0], "context": make_context(tree)[0], "deep": make_deep(tree)[0]}
    x = torch.cat([histories(tree.num_items), contexts()], dim=1)
    return SumScorer(parts, tree.height, "deep").set_weights(deep=0.5), x


def histories(num_items):
    """Seven users: with a full history, with none, and between."""
    x = torch.randint(0, num_items, (7, 69))
    for row, length in enumerate((69, 0, 1, 4, 20, 49, 60)):
        x[row, length:] = PAD
    return x


NUM_ITEMS = 50


def make_partners(seed=0, most=8):
    generator = torch.Generator().manual_seed(seed)
    key = torch.randperm(NUM_ITEMS**2, generator=generator)[:400]
    weight = torch.randn(400, generator=generator)
    return strongest(key // NUM_ITEMS, key % NUM_ITEMS, weight, NUM_ITEMS, most)


def make_memory_sum(tree):
    memory = MemoryScorer.from_partners([make_partners()], [recency_weights(0.5)])
    parts = {"memory": memory, "repeats": RepeatScorer(), "deep": DeepScorer(tree.num_nodes, scale=1.0)}
    return SumScorer(parts, tree.height, "deep").set_weights(memory=2.0, repeats=0.5, deep=0.1)


def told_by(scorer):
    """What the parts say, whichever way vectors are turned and equal partners are put."""
    rows = {name: part.table.weight.float() for name, part in scorer.tables().items() if name != "deep"}
    memory = scorer.part("memory")
    said = torch.zeros(len(memory.offsets) - 1, memory.num_items)
    said[torch.repeat_interleave(memory.offsets.diff()), memory.partners.long()] = memory.weights.float()
    products = {name: each @ each.T for name, each in rows.items()}
    return {**products, "memory": said, "recency": memory.recency, "weights": scorer.weights}

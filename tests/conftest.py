"""Shared cases: trees of any shape, scorers and instances, from Hypothesis."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the threads of small operations wait for each other

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from beamtree import PAD, Tree, TreeModel
from beamtree.scorers import FixedScorer

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("beamtree", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("beamtree")


@dataclass
class Case:
    """One small tree with scores for B users and their relevant items, as tensors and as plain lists."""

    tree: Tree
    slots: list[int | None]
    logits: torch.Tensor  # [B, num_nodes]
    y: torch.Tensor  # [B, P]
    relevant: list[set[int]]

    @property
    def b(self):
        return self.tree.arity

    @property
    def height(self):
        return self.tree.height

    def model(self, chained=False):
        return TreeModel(self.tree, FixedScorer(self.logits), chained=chained)

    def query(self, chained=False):
        model = self.model(chained)
        return model.query(FixedScorer.every(len(self.logits)))


@st.composite
def cases(draw, max_items=40, rows=3, ties=True):
    arity = draw(st.integers(2, 5))
    num_items = draw(st.integers(1, max_items))
    spare = draw(st.integers(0, num_items))  # more empty slots, so that whole subtrees are empty
    seed = draw(st.integers(0, 2**20))
    generator = torch.Generator().manual_seed(seed)
    slots = torch.full((num_items + spare,), PAD)
    slots[torch.randperm(len(slots), generator=generator)[:num_items]] = torch.arange(num_items)
    tree = Tree(slots, arity)
    logits = torch.randn(rows, tree.num_nodes, generator=generator, dtype=torch.float64)
    if ties and draw(st.booleans()):
        logits = logits.round()
    counts = [draw(st.integers(1, num_items)) for _ in range(rows)]
    relevant = [set(torch.randperm(num_items, generator=generator)[:count].tolist()) for count in counts]
    y = torch.full((rows, max(counts) + draw(st.integers(0, 2))), PAD)
    for row, items in enumerate(relevant):
        order = torch.randperm(y.shape[1], generator=generator)[: len(items)]
        y[row, order] = torch.tensor(sorted(items))
    plain = [None if item == PAD else item for item in tree.items().tolist()]
    return Case(tree, plain, logits, y, relevant)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)

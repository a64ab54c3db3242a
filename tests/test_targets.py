from collections import Counter

import oracle
import pytest
import torch
from conftest import cases
from hypothesis import given
from hypothesis import strategies as st

import beamtree as bt
from beamtree import PAD, targets
from beamtree.beam import walk
from beamtree.targets import any_relevant, best_child


def every_label(case, levels):
    for level in range(1, case.height + 1):
        nodes = torch.tensor([[*case.tree.level(level), PAD]])
        labels = levels[level].at(nodes.expand(len(case.y), -1))
        for row, relevant in enumerate(case.relevant):
            assert not labels[row, -1]
            for n, label in zip(case.tree.level(level), labels[row].tolist(), strict=False):
                yield row, n, relevant, label


@pytest.mark.parametrize("whole_level", [4, 0, 0.25])
@given(case=cases())
def test_any_relevant_is_equation_1(whole_level, case):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "WHOLE_LEVEL_FACTOR", whole_level)
        levels = any_relevant(case.tree, case.y)
        for _, n, relevant, label in every_label(case, levels):
            assert label == oracle.z(case.slots, case.b, case.height, n, relevant)


@pytest.mark.parametrize("whole_level", [4, 0, 0.25])
@given(case=cases(), chained=st.booleans())
def test_best_child_is_equation_15(whole_level, case, chained):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "WHOLE_LEVEL_FACTOR", whole_level)
        levels = best_child(case.query(chained), any_relevant(case.tree, case.y))
        for row, n, relevant, label in every_label(case, levels):
            score = case.logits[row].tolist().__getitem__
            assert label == oracle.z_hat(case.slots, case.b, case.height, n, relevant, score)


@pytest.mark.parametrize("whole_level", [4, 0, 0.25])
@given(case=cases())
def test_relevant_lists_each_positive_once(whole_level, case):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "WHOLE_LEVEL_FACTOR", whole_level)
        for level, marked in enumerate(any_relevant(case.tree, case.y)):
            listed = marked.relevant()
            assert listed.shape[1] <= max(marked.most, 1)
            for row, relevant in enumerate(case.relevant):
                nodes = [n for n in listed[row].tolist() if n != PAD]
                positive = [n for n in case.tree.level(level) if oracle.z(case.slots, case.b, case.height, n, relevant)]
                assert sorted(nodes) == positive


class Counting(bt.Scorer):
    """A scorer that counts the nodes it is asked about."""

    def __init__(self):
        super().__init__()
        self.scored = Counter()

    def prepare(self, tree, x):
        return x

    def forward(self, prepared, level, nodes):
        real = (nodes != PAD).sum() * (len(prepared) if len(nodes) == 1 else 1)
        self.scored[level] += int(real)
        return torch.sin(nodes * 12.9898 + prepared) * 3

    def settings(self):
        return {}


@pytest.mark.parametrize("arity", [2, 3, 8, 64])
@pytest.mark.parametrize("targets_per_user", [1, 5])
def test_one_instance_costs_what_the_paper_says(arity, targets_per_user):
    """O(Hbk + Hb|I_x|) scorings for B̃ and ẑ, however many items there are."""
    k = 10
    for num_items in (5_000, 150_000):
        tree = bt.random_tree(num_items, arity)
        model = bt.TreeModel(tree, Counting())
        y = torch.randperm(num_items, generator=torch.Generator().manual_seed(1))[:targets_per_user].unsqueeze(0)
        query = model.query(torch.zeros(1, 1))
        for _ in walk(query, k):
            pass
        beam = sum(model.scorer.scored.values())
        assert beam <= tree.height * arity * k
        best_child(query, any_relevant(tree, y))
        total = sum(model.scorer.scored.values())
        # A small level is held whole: at most WHOLE_LEVEL_FACTOR·b|I_x| nodes, so the bound has that constant.
        assert total - beam <= targets.WHOLE_LEVEL_FACTOR * tree.height * arity * targets_per_user

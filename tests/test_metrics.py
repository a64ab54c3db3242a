import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import beamtree as bt
from beamtree import PAD
from beamtree.evaluate.metrics import hits, mrr, num_relevant, precision_recall_f


@given(st.data())
def test_metrics_are_equations_5_to_7(data):
    num_items = data.draw(st.integers(1, 15))
    retrieved = data.draw(st.permutations(range(num_items)))
    relevant = data.draw(st.sets(st.integers(0, num_items - 1), min_size=1))
    m = data.draw(st.integers(1, num_items))
    y = torch.tensor([[*relevant, PAD]])
    ours = precision_recall_f(torch.tensor([retrieved]), y, m)[0].tolist()
    assert ours == pytest.approx(oracle.precision_recall_f(retrieved, relevant, m), rel=1e-6)


@given(st.data())
def test_mrr_is_one_over_the_rank_of_the_first_relevant_item(data):
    """Rows of their own length: PAD where a search found fewer, and m beyond what was retrieved."""
    rows = data.draw(st.lists(st.permutations(range(8)), min_size=1, max_size=5))
    found = [row[: data.draw(st.integers(0, 8))] for row in rows]
    relevant = [data.draw(st.sets(st.integers(0, 9), min_size=1)) for _ in rows]
    m, width = data.draw(st.integers(1, 12)), data.draw(st.integers(8, 10))
    items = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in found])
    y = torch.tensor([[*wanted, *[PAD] * (10 - len(wanted))] for wanted in relevant])
    ours = mrr(hits(items, y), num_relevant(y), m).tolist()
    expected = [oracle.reciprocal_rank(row, wanted, m) for row, wanted in zip(found, relevant, strict=True)]
    assert ours == pytest.approx(expected, rel=1e-6)


def test_numbers_to_do_in_your_head():
    # 2 of 4 retrieved are relevant, 2 of 5 relevant are retrieved: P = 1/2, R = 2/5, F = 4/9.
    items, y = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[2, 4, 7, 8, 9]])
    assert precision_recall_f(items, y, 4)[0].tolist() == pytest.approx([1 / 2, 2 / 5, 4 / 9])


def test_f_is_zero_where_nothing_is_found():
    assert precision_recall_f(torch.tensor([[1]]), torch.tensor([[2]]), 1).tolist() == [[0, 0, 0]]


def test_missing_items_and_repeats_count_once_or_not_at_all():
    items, y = torch.tensor([[5, PAD]]), torch.tensor([[5, 5, PAD]])
    assert precision_recall_f(items, y, 2)[0].tolist() == pytest.approx([1 / 2, 1, 2 / 3])


def test_evaluate_averages_over_instances_whatever_the_batch():
    data = bt.gaussian(50, 4, 0.0, train=10, test=37, seed=1).test
    tree = bt.random_tree(50)
    model = bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, 4))
    one, many = (bt.evaluate(model, data, beam_size=20, m=(5, 20), batch_size=size) for size in (37, 5))
    assert one == pytest.approx(many)
    items, _ = bt.retrieve(model, data.x, beam_size=20, m=20)
    expected = precision_recall_f(items, data.y, 5).mean(0).tolist()
    assert [one[name, 5] for name in ("precision", "recall", "f1")] == pytest.approx(expected)

"""The graph of users and items, against its definition in numpy."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from sample_logs import by_user, random_events
from torch.nn.functional import pad

from beamtree.closed_form import graph
from beamtree.closed_form.cooccurrence import cooccurrence
from beamtree.closed_form.graph import graph_partners
from beamtree.data import Events

NUM_ITEMS = 30  # of which the last two have no events


def normalised(events):
    """R̃ = D_u^-1/2 R D_i^-1/2 [U, M], and D_i [M]."""
    matrix = np.zeros((len(events), NUM_ITEMS))
    for user, items in enumerate(by_user(events)):
        matrix[user, items] = 1
    of_users, of_items = matrix.sum(1), matrix.sum(0)
    return matrix / np.sqrt(of_users[:, None] * np.maximum(of_items, 1)), of_items


def partners_of(events, items, most):
    return graph_partners(cooccurrence(events, NUM_ITEMS, 1.0), items, most)


@pytest.mark.parametrize("at_once", [1 << 24, 40])
def test_partners_are_the_largest_entries_of_the_normalised_product(monkeypatch, at_once):
    monkeypatch.setattr(graph, "ENTRIES_AT_ONCE", at_once)
    events = random_events(0)
    matrix, _ = normalised(events)
    expected = matrix.T @ matrix
    np.fill_diagonal(expected, 0)
    found = partners_of(events, torch.arange(NUM_ITEMS), 5)
    assert len(found) == NUM_ITEMS
    for item, (first, last) in enumerate(zip(found.offsets[:-1], found.offsets[1:], strict=True)):
        columns, values = found.columns[first:last].long().numpy(), found.values[first:last].numpy()
        best = np.sort(expected[item])[::-1][:5]
        assert values == pytest.approx(best[best > 0], rel=1e-5)
        assert values == pytest.approx(expected[item, columns], rel=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_users_of_many_events_have_a_row_for_each_run(weighted):
    generator = torch.Generator().manual_seed(2)
    counts = torch.tensor([300, 7, 301, 1000, 40])
    runs = [1, 1, 2, 4, 1]  # of at most 300 events, as long as each other
    items = (torch.rand(int(counts.sum()), generator=generator) * 500).int()
    weights = torch.rand(len(items), generator=generator) + 0.1 if weighted else None
    events = Events(pad(counts.cumsum(0), (1, 0)), items, "test", weights=weights)
    rows, begin = [], 0
    for count, parts in zip(counts.tolist(), runs, strict=True):
        cuts = [begin + part * count // parts for part in range(parts + 1)]
        for first, last in pairwise(cuts):
            row = np.zeros(500)
            for event in range(first, last):
                root = 1.0 if weights is None else float(weights[event]) ** 0.5
                row[items[event]] = max(row[items[event]], root)
            rows.append(row)
        begin += count
    matrix = np.array(rows)
    assert matrix.shape == (sum(runs), 500)
    product = (matrix.T / (matrix > 0).sum(1)) @ matrix
    of_items = product.sum(1)
    if not weighted:
        assert of_items == pytest.approx(matrix.sum(0))
    roots = np.sqrt(np.maximum(of_items, 1e-12))
    expected = product / roots[:, None] / roots
    np.fill_diagonal(expected, 0)
    found = graph_partners(cooccurrence(events, 500, 1.0), torch.arange(500), 500)
    dense = np.zeros((500, 500))
    dense[found.row_of_entry().numpy(), found.columns.long().numpy()] = found.values.numpy()
    np.testing.assert_allclose(dense, expected, rtol=1e-5, atol=1e-9)


def test_partners_of_some_items_are_their_rows():
    events, some = random_events(1), torch.tensor([7, 0, 29])
    whole, found = partners_of(events, torch.arange(NUM_ITEMS), 9), partners_of(events, some, 9)
    assert found.columns.tolist() == whole.take(some).columns.tolist()

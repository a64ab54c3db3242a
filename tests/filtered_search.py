"""Searches that may find some items alone, drawn by Hypothesis, and what they find by definition."""

import math

import oracle
import pytest
import torch
from hypothesis import strategies as st

from beamtree import PAD, TreeModel
from beamtree.scorers import FixedScorer

ROWS = 3


@st.composite
def filters(draw, case):
    """Allowed items, or None for all; and what each user is not to be shown, with repeats and PAD, or None."""
    items = st.integers(0, case.tree.num_items - 1)
    allowed = draw(st.none() | st.sets(items))
    excluded = draw(st.none() | st.lists(st.lists(items | st.just(PAD), max_size=30), min_size=ROWS, max_size=ROWS))
    return allowed, excluded


def as_tensors(allowed, excluded):
    words = {}
    if allowed is not None:
        words["allowed"] = torch.tensor(sorted(allowed), dtype=torch.int64)
    if excluded is not None:
        width = max(map(len, excluded))
        rows = [[*row, *[PAD] * (width - len(row))] for row in excluded]
        words["exclude"] = torch.tensor(rows, dtype=torch.int64).view(len(rows), width)
    return words


def left_for(case, allowed, excluded, row):
    """What a user may be shown."""
    items = set(range(case.tree.num_items)) if allowed is None else allowed
    return items - set(excluded[row] if excluded is not None else ())


def draw_model(data, case):
    chained, first_level = data.draw(st.booleans()), data.draw(st.integers(1, case.height))
    return TreeModel(case.tree, FixedScorer(case.logits), chained=chained, first_level=first_level)


def p_of(case, model, row):
    """p_g of every node."""
    logits = case.logits[row].tolist()
    first_level = model.first_level if model.chained else None

    def p(n):
        if first_level is not None:
            return oracle.path_prob(case.b, n, logits.__getitem__, first_level)
        return 1 / (1 + math.exp(-logits[n]))

    return p


def check_search(case, model, found, sizes, m, allowed, excluded):
    """What a search finds, items and scores, is what the walk by definition finds where other leaves are empty."""
    items, scores = found
    first = case.tree.level(case.height).start
    for row in range(ROWS):
        slots, p = oracle.only(case.slots, left_for(case, allowed, excluded, row)), p_of(case, model, row)
        *_, (_, beam) = oracle.beam_search(slots, case.b, case.height, sizes, p, first_level=model.first_level)
        best = sorted(beam, key=p, reverse=True)[:m]
        assert items[row].tolist() == [slots[n - first] for n in best] + [PAD] * (m - len(best))
        assert scores[row].exp().tolist() == pytest.approx([p(n) for n in best] + [0] * (m - len(best)), rel=1e-6)

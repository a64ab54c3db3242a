"""What each event of a history gives to an item's score: each kind of part against its plain definition."""

import pytest
import torch
from conftest import cases
from hypothesis import given
from hypothesis import strategies as st
from sample_scorers import (
    NUM_ITEMS,
    histories,
    make_context,
    make_deep,
    make_factors,
    make_memory_sum,
    make_partners,
    make_sequence,
)

import beamtree as bt
from beamtree import PAD, TreeModel
from beamtree.scorers import FixedScorer, MemoryScorer, PopularityScorer, RepeatScorer, SumScorer, base
from beamtree.scorers.memory import recency_weights

ITEMS = torch.tensor([[3, 17, 42]])


@pytest.fixture
def tree():
    torch.manual_seed(0)
    return bt.random_tree(NUM_ITEMS, arity=3, seed=1)


def test_an_event_gives_the_weights_with_which_it_names_the_item_in_any_list(tree):
    lists = make_partners(0), make_partners(1)
    memory = MemoryScorer.from_partners(lists, [recency_weights(0.5), 2 * recency_weights(1.0, newest=3)])
    x = histories(NUM_ITEMS)
    found = memory.contributions(tree, x, ITEMS).entries
    for user, history in enumerate(x.tolist()):
        for index, item in enumerate(ITEMS[0].tolist()):
            for t, event in enumerate(history):
                expected = 0.0
                for partners, by in zip(lists, ((1 + t) ** -0.5, 2 * (1 + t) ** -1.0 * (t < 3)), strict=True):
                    a, b = partners.offsets[event : event + 2].tolist() if event != PAD else (0, 0)
                    weights = partners.values[a:b].half().tolist()
                    pairs = zip(partners.columns[a:b].tolist(), weights, strict=True)
                    expected += by * sum(weight for partner, weight in pairs if partner == item)
                assert float(found[user, index, t]) == pytest.approx(expected, abs=1e-5)


def test_a_memory_without_partners_gives_nothing(tree):
    nothing = make_partners().filter(torch.zeros(len(make_partners().columns), dtype=torch.bool))
    memory = MemoryScorer.from_partners([nothing], [recency_weights(0.5)])
    assert not memory.contributions(tree, histories(NUM_ITEMS), ITEMS).entries.any()


def test_an_event_of_the_item_itself_gives_its_repeat(tree):
    x = torch.tensor([[17, 3, 17, PAD]])
    found = RepeatScorer(power=1.0).contributions(tree, x, ITEMS)
    assert found.entries[0].tolist() == [[0, pytest.approx(1 / 2), 0, 0], [1, 0, pytest.approx(1 / 3), 0], [0] * 4]
    assert not found.rest.any()


def test_an_event_gives_what_the_others_leave_unexplained_of_it(tree):
    """u = Σ A⁻¹ w_t (1 - ⟨u, v_t⟩) v_t, where u is the solution of the normal equations, in 64 bits."""
    scorer, _ = make_factors(tree)
    x = torch.tensor([[3, 8, 3, 20, PAD, 41], [5] + [PAD] * 5, [PAD] * 6])
    found = scorer.contributions(tree, x, ITEMS).entries
    table = scorer.table.weight.double()
    for user, history in enumerate(x.tolist()):
        newest = [item != PAD and item not in history[:t] for t, item in enumerate(history)]
        w = torch.tensor([(1 + t) ** -scorer.power * new for t, new in enumerate(newest)], dtype=torch.float64)
        v = table[tree.leaf_of_item(x[user]).clamp(min=0)]
        a = scorer.spread.double() + scorer.penalty * (w.sum() + scorer.unobserved_weight)
        u = torch.linalg.solve(v.T @ torch.diag(w) @ v + torch.diag(a), v.T @ w)
        terms = (w * (1 - v @ u)).unsqueeze(1) * v / a
        torch.testing.assert_close(terms.sum(0), u)
        expected = table[tree.leaf_of_item(ITEMS[0])] @ terms.T * scorer.scale
        torch.testing.assert_close(found[user].double(), expected, rtol=1e-3, atol=1e-5)


def test_of_two_events_that_say_the_same_each_gives_half(tree):
    scorer, _ = make_factors(tree)
    scorer = scorer.with_power(0.0)
    first, second = tree.leaf_of_item(torch.tensor([3, 8])).tolist()
    scorer.table.weight[second] = scorer.table.weight[first]
    given = scorer.contributions(tree, torch.tensor([[3, 8, 20]]), ITEMS).entries[0]
    torch.testing.assert_close(given[:, 0], given[:, 1])


def test_each_value_of_a_context_gives_its_own_product(tree):
    scorer, x = make_context(tree)
    entries = scorer.contributions(tree, x, ITEMS).entries
    assert not entries[:, :, : -len(scorer.values)].any()
    targets = scorer.table.weight[tree.leaf_of_item(ITEMS[0])].float()
    for user, values in enumerate(x[:, -2:].tolist()):
        for column, value in enumerate(values):
            expected = torch.zeros(3) if value == PAD else targets @ scorer.vectors[value]
            torch.testing.assert_close(entries[user, :, column - 2], expected)


def test_popularity_is_no_events_doing(tree):
    counts = torch.arange(NUM_ITEMS)
    found = PopularityScorer.from_counts(tree, counts).scaled(3.0).contributions(tree, histories(NUM_ITEMS), ITEMS)
    assert not found.entries.any()
    expected = 3 * (ITEMS[0] / (NUM_ITEMS - 1)).sqrt()
    torch.testing.assert_close(found.rest, expected.expand(7, -1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("make", [make_sequence, make_deep])
def test_where_events_work_together_each_gives_what_is_lost_without_it(tree, monkeypatch, make):
    monkeypatch.setattr(base, "AT_ONCE", 5)
    scorer, x = make(tree)
    x = x[:4, :8]

    def score(users):
        with torch.no_grad():
            return scorer(scorer.prepare(tree, users), tree.height, tree.leaf_of_item(ITEMS))

    found = scorer.contributions(tree, x, ITEMS)
    for t in range(8):
        left_out = x.clone()
        left_out[:, t] = PAD
        torch.testing.assert_close(found.entries[:, :, t], score(x) - score(left_out), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.rest, score(x) - found.entries.sum(2))
    assert found.entries[0].any(1).all()


def test_parts_of_a_sum_count_with_their_weights_on_the_leaves(tree):
    scorer, x = make_memory_sum(tree), histories(NUM_ITEMS)
    scorer.weights[:-1] = 7.0  # of other levels
    scorer.set_weights(repeats=0.0)
    scorer.weights[-1, 2] = 0.3
    found = scorer.contributions_by_part(tree, x, ITEMS)
    assert list(found) == ["memory", "deep"]
    alone = {name: scorer.part(name).contributions(tree, x, ITEMS) for name in found}
    for name, weight in {"memory": 2.0, "deep": 0.3}.items():
        torch.testing.assert_close(found[name].entries, weight * alone[name].entries)
        torch.testing.assert_close(found[name].rest, weight * alone[name].rest)


@given(cases(rows=1, max_items=20), st.booleans())
def test_a_model_without_parts_has_one(case, chained):
    model = TreeModel(case.tree, FixedScorer(case.logits), chained=chained)
    items = torch.arange(case.tree.num_items).unsqueeze(0)
    leaves, x = case.tree.leaf_of_item(items), FixedScorer.every(1)
    ((name, found),) = model.contributions(x, items).items()
    expected = model.log_prob(x, case.tree.height, leaves) if chained else case.logits[:1, leaves[0]]
    assert name == "score"
    torch.testing.assert_close(found.entries.sum(2) + found.rest, expected)


def test_a_sum_of_parts_with_a_context_says_which_entries_are_whose(tree):
    context, x = make_context(tree)
    scorer = SumScorer({"repeats": RepeatScorer(), "context": context}, tree.height).set_weights(context=0.5)
    found = scorer.contributions_by_part(tree, x, ITEMS)
    assert {part.entries.shape for part in found.values()} == {(7, 3, x.shape[1])}
    assert not found["repeats"].entries[:, :, -2:].any()
    assert found["context"].entries[:, :, -2:].any()

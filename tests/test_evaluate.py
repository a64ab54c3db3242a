"""Means over users, their intervals, and what was seen."""

import math

import pytest
import torch

import beamtree as bt
from beamtree import PAD, Log
from beamtree.evaluate import Evaluation, Score
from beamtree.metrics import NAMES, all_metrics, bootstrap, hits, num_relevant


def a_market(users=40, items=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(4, 15, (users,), generator=generator)
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return Log(offsets, torch.randint(0, items, (int(offsets[-1]),), generator=generator).int(), "market")


def a_model(items=30):
    tree = bt.random_tree(items, seed=1)
    return bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, scale=1.0))


def test_ndcg_and_hit_rate_are_numbers_to_do_in_your_head():
    items, y = torch.tensor([[7, 1, 2], [7, 8, 9]]), torch.tensor([[1, 5], [1, 5]])
    values = all_metrics(hits(items, y), num_relevant(y), 3)
    named = dict(zip(NAMES, values[0].tolist(), strict=True))
    assert named["ndcg"] == pytest.approx((1 / math.log2(3)) / (1 + 1 / math.log2(3)))
    assert named["hit_rate"] == 1
    assert values[1].tolist() == [0, 0, 0, 0, 0]
    perfect = all_metrics(hits(torch.tensor([[5, 1]]), y[:1]), num_relevant(y[:1]), 2)
    assert perfect[0].tolist() == pytest.approx([1, 1, 1, 1, 1])


def test_bootstrap_intervals_are_as_wide_as_the_mean_is_uncertain():
    values = torch.randn(400, 2, generator=torch.Generator().manual_seed(1)) * torch.tensor([1.0, 3.0])
    low, high = bootstrap(values, rounds=2000)
    error = values.double().std(0) / 20
    assert torch.allclose(high - low, 2 * 1.96 * error, rtol=0.1)
    assert ((low < values.mean(0)) & (values.mean(0) < high)).all()
    again = bootstrap(values, rounds=2000)
    assert torch.equal(low, again[0])


def test_evaluate_is_the_mean_over_users_of_what_retrieve_finds():
    log, model = a_market(), a_model()
    found = bt.evaluate(model, log, beam_size=10, m=(5, 10), metrics=("recall", "ndcg"), batch_size=7)
    x, y = log.batch(torch.arange(len(log)))
    items, _ = bt.retrieve(model, x, beam_size=10, m=10)
    by_hand = [
        len(set(row[:5].tolist()) & set(ys.tolist()) - {PAD}) / len(set(ys.tolist()) - {PAD})
        for row, ys in zip(items, y, strict=True)
    ]
    assert found["recall", 5] == pytest.approx(sum(by_hand) / len(by_hand))
    assert found.users == 40
    assert all(score.low <= score.value <= score.high for score in found.scores)
    assert "@10" in str(found)
    assert "recall" in str(found)


def test_what_was_seen_is_neither_retrieved_nor_expected():
    log, model = a_market(), a_model()
    rows = torch.arange(len(log))
    asked = []

    def find(x, exclude):
        items, _ = bt.retrieve(model, x, beam_size=30, m=30, exclude=exclude)
        asked.append(items)
        for row, left_out in zip(items, exclude, strict=True):
            assert not set(row.tolist()) & set(left_out.tolist()) - {PAD}
        return items

    found = bt.measure(find, log, m=(30,), exclude_seen=True, batch_size=len(log))
    new = [
        set(ys.tolist()) - set(seen.tolist()) - {PAD}
        for ys, seen in zip(log.batch(rows)[1], log.past(rows), strict=True)
    ]
    assert found.users == sum(1 for targets in new if targets)
    assert found["recall", 30] == pytest.approx(1.0)  # all that is not seen is retrieved


def test_brute_force_is_a_beam_that_loses_nothing():
    log, model = a_market(), a_model()
    x, _ = log.batch(torch.arange(12))
    for chained in (False, True):
        model.chained = chained
        items, scores = bt.brute_force(model, x, m=8, together=7)
        wide, wide_scores = bt.retrieve(model, x, beam_size=30, m=8)
        torch.testing.assert_close(scores, wide_scores)
        assert torch.equal(items, wide)


def test_an_unknown_metric_is_named():
    with pytest.raises(ValueError, match="metric 'mrr' is unknown: choose from precision"):
        bt.evaluate(a_model(), a_market(), beam_size=10, m=(5,), metrics=("mrr",))


def test_numbers_beside_each_other_do_not_run_together():
    scores = [Score(metric, m, 1.0, 1.0, 1.0) for metric in ("recall", "precision") for m in (10, 200)]
    heads, *lines = (line.split("  ") for line in str(Evaluation(scores, torch.zeros(3, 2, 2))).splitlines())
    assert [head.strip() for head in heads if head] == ["%", "@10", "@200"]
    for line in lines:
        assert [cell.strip() for cell in line if cell][-2:] == ["100.00 [100.00, 100.00]"] * 2

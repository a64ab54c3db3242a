"""Coverage, novelty, popularity bias, diversity and weighted recall, against plain definitions."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import beamtree as bt
from beamtree import PAD
from beamtree.data import BeforeAfter, Events
from beamtree.evaluate import measure
from beamtree.evaluate.beyond_accuracy import LIST_METRICS, ItemFacts
from beamtree.evaluate.metrics import recall, weighted_hits

ITEMS = 12


def padded(rows):
    width = max([1, *map(len, rows)])
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])


def of_lists(name, lists, histories, facts):
    metric = LIST_METRICS[name]
    return metric.finish(metric.keep(padded(lists), padded(histories), facts), facts)


lists = st.lists(st.lists(st.integers(0, ITEMS - 1), min_size=1, max_size=6, unique=True), min_size=2, max_size=8)
counts = st.lists(st.integers(0, 20), min_size=ITEMS, max_size=ITEMS).filter(any)


@given(lists)
def test_coverage_is_the_share_of_items_in_any_list_and_values_are_those_of_the_jackknife(rows):
    def plain(rows):
        return len(set(itertools.chain(*rows))) / ITEMS

    values = of_lists("coverage", rows, rows, ItemFacts(ITEMS))
    assert float(values.mean()) == pytest.approx(plain(rows))
    without = np.array([plain(rows[:user] + rows[user + 1 :]) for user in range(len(rows))])
    variance = (len(rows) - 1) / len(rows) * ((without - without.mean()) ** 2).sum()  # of the jackknife
    n = len(rows)
    assert float(values.var(unbiased=False)) / n == pytest.approx(variance * (n - 1) / n, abs=1e-12)


@given(lists, counts)
def test_novelty_is_the_mean_information_of_the_items_of_a_list(rows, popularity):
    values = of_lists("novelty", rows, rows, ItemFacts(popularity=torch.tensor(popularity)))
    total = sum(popularity)
    expected = [sum(-math.log2(max(popularity[item], 1) / total) for item in row) / len(row) for row in rows]
    assert values.tolist() == pytest.approx(expected)


@given(lists, counts, st.data())
def test_popularity_bias_is_the_ratio_of_mean_popularities_of_lists_and_histories(rows, popularity, data):
    event = st.integers(0, ITEMS - 1).filter(lambda item: popularity[item] > 0)
    histories = [data.draw(st.lists(event, max_size=5)) for _ in rows]
    if not any(histories):
        histories[0] = [max(range(ITEMS), key=popularity.__getitem__)]
    values = of_lists("popularity_bias", rows, histories, ItemFacts(popularity=torch.tensor(popularity)))
    pairs = [(row, history) for row, history in zip(rows, histories, strict=True) if history]
    ours, theirs = (
        np.mean([np.mean([popularity[item] for item in each]) for each in side]) for side in zip(*pairs, strict=True)
    )
    assert float(values.mean()) == pytest.approx(ours / theirs)


def test_the_spread_of_a_users_bias_is_that_of_the_resampled_ratio():
    generator = torch.Generator().manual_seed(0)
    kept = torch.rand(400, 2, generator=generator, dtype=torch.float64) + 0.5
    values = LIST_METRICS["popularity_bias"].finish(kept, ItemFacts())
    means = kept[torch.randint(400, (4000, 400), generator=generator)].mean(1)
    assert float((means[:, 0] / means[:, 1]).std()) == pytest.approx(float(values.std()) / 20, rel=0.05)


@given(lists, st.integers(0, 1000))
def test_diversity_is_one_minus_the_mean_cosine_of_two_items(rows, seed):
    vectors = torch.randn(ITEMS, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    vectors[0] = 0  # no direction: a cosine of 0
    values = of_lists("diversity", rows, rows, ItemFacts(vectors=lambda items: vectors[items]))
    units = [vector / (vector.norm() or 1) for vector in vectors]
    for row, value in zip(rows, values.tolist(), strict=True):
        cosines = [float(units[first] @ units[second]) for first, second in itertools.combinations(row, 2)]
        assert value == pytest.approx(1 - sum(cosines) / len(cosines) if cosines else 0.0, abs=1e-6)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=6), min_size=1, max_size=5)
)
def test_weighted_recall_counts_targets_by_their_weight(rows):
    y, weights = padded([[item for item, _ in row] for row in rows]), padded([[w for _, w in row] for row in rows])
    items = torch.tensor([[3, 1, 4, 7]]).expand(len(rows), -1)
    values = recall(*weighted_hits(items, y, weights.float()), 3)
    for row, value in zip(rows, values.tolist(), strict=True):
        heaviest = {item: max(w for other, w in row if other == item) for item, _ in row}
        found = sum(weight for item, weight in heaviest.items() if item in (3, 1, 4))
        assert value == pytest.approx(found / sum(heaviest.values()))


def make_shop(users=30, seed=0):
    """Users with weights and times, and a model with vectors and popularity."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, 15, (users,), generator=generator)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    items = torch.randint(0, 40, (int(offsets[-1]),), generator=generator).int()
    weights = torch.randint(1, 6, items.shape, generator=generator).float()
    weights[::7] *= -1
    for start in offsets[1:].tolist():
        weights[start - 1] = weights[start - 1].abs()  # everyone has a target
    data = BeforeAfter(Events(offsets, items, "shop", weights=weights))
    tree = bt.random_tree(40, seed=1)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, scale=1.0))
    model.popularity = data.events.popularity(40)
    return data, model


def test_evaluate_gives_metrics_of_lists_beside_the_others_with_intervals():
    data, model = make_shop()
    names = ("recall", "weighted_recall", *[name for name in LIST_METRICS if name != "age"])  # which needs times
    result = bt.evaluate(model, data, beam_size=20, m=(5, 10), metrics=names, batch_size=7)
    x, y = data.batch(torch.arange(len(data)))
    items, _ = bt.retrieve(model, x, beam_size=20, m=10)
    popularity = model.popularity.double()
    for m in (5, 10):
        assert result["coverage", m] == pytest.approx(len(set(items[:, :m].flatten().tolist())) / 40)
        bits = -(popularity[items[:, :m]].clamp(min=1) / popularity.sum()).log2()
        assert result["novelty", m] == pytest.approx(float(bits.mean()), rel=1e-5)
        history = data.seen(torch.arange(len(data)))
        chosen = [popularity[row[row != PAD]].mean() for row in history]
        bias = popularity[items[:, :m]].mean() / torch.stack(chosen).mean()
        assert result["popularity_bias", m] == pytest.approx(float(bias), rel=1e-5)
        vectors = torch.nn.functional.normalize(model.item_vectors(), dim=1)[items[:, :m]]
        cosines = (torch.bmm(vectors, vectors.mT).sum((1, 2)) - m) / (m * (m - 1))
        assert result["diversity", m] == pytest.approx(1 - float(cosines.mean()), abs=1e-5)
    by_hand = []
    for user in range(len(data)):
        start, stop = data.events.offsets[user : user + 2].tolist()
        target = {}
        for event in range(start + (stop - start) // 2, stop):
            weight, item = float(data.events.weights[event]), int(data.events.items[event])
            if weight > 0:
                target[item] = max(weight, target.get(item, 0))
        found = sum(weight for item, weight in target.items() if item in items[user, :5].tolist())
        by_hand.append(found / sum(target.values()))
    assert result["weighted_recall", 5] == pytest.approx(sum(by_hand) / len(by_hand))
    assert all(score.low <= score.value + 1e-9 and score.value <= score.high + 1e-9 for score in result.scores)
    assert "not in percent: novelty, popularity_bias" in str(result)
    assert y.shape[1] > 0


def test_what_a_metric_lacks_is_told():
    data, model = make_shop()
    unweighted = BeforeAfter(Events(data.events.offsets, data.events.items, "shop"))
    with pytest.raises(ValueError, match="weighted_recall: all events count the same; prepare the log with `weight`"):
        bt.evaluate(model, unweighted, beam_size=20, m=5, metrics="weighted_recall")
    model.popularity = None
    with pytest.raises(ValueError, match="popularity of this model's items is unknown"):
        bt.evaluate(model, data, beam_size=20, m=5, metrics="novelty")
    with pytest.raises(ValueError, match="coverage needs the number of items"):
        measure(lambda x, exclude: x, data, m=5, metrics="coverage")
    with pytest.raises(ValueError, match="diversity needs vectors of the items"):
        measure(lambda x, exclude: x, data, m=5, metrics="diversity")

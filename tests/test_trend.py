"""Trends: counts that fade, as they are defined; live events; and what a fit makes of them."""

import pytest
import torch

import beamtree as bt
from beamtree import PAD
from beamtree.data import Events
from beamtree.data.times import DAY
from beamtree.parts.trend import HALF_LIVES, decayed_counts, half_lives
from beamtree.scorers import TrendScorer

END, WEEK, MONTH = 1_700_000_000, 7 * DAY, 30 * DAY
ITEMS = 40


def make_events(weights=None, clock=1):
    generator = torch.Generator().manual_seed(0)
    items = torch.randint(0, ITEMS, (300,), generator=generator)
    times = (END - torch.randint(0, 90 * DAY, (300,), generator=generator)) * clock
    times[17] = END * clock
    return Events(torch.tensor([0, 120, 120, 300]), items.int(), "log", weights=weights, times=times, clock=clock)


def plain_counts(events, half_life, weights=None):
    """The definition, event by event."""
    counts, seconds = [0.0] * ITEMS, [time // events.clock for time in events.times.tolist()]
    for index, item in enumerate(events.items.tolist()):
        weight = 1.0 if weights is None else max(float(weights[index]), 0.0)
        counts[item] += weight * 2 ** (-(max(seconds) - seconds[index]) / half_life)
    return torch.tensor(counts)


@pytest.mark.parametrize("clock", [1, 1000])
@pytest.mark.parametrize("half_life", [WEEK, MONTH])
def test_counts_are_as_defined(half_life, clock):
    events = make_events(clock=clock)
    torch.testing.assert_close(decayed_counts(events, ITEMS, half_life), plain_counts(events, half_life))


def test_events_count_as_much_as_they_weigh_and_those_that_are_not_to_be_predicted_do_not():
    weights = torch.rand(300, generator=torch.Generator().manual_seed(1)) * 3 - 0.5
    expected = plain_counts(make_events(), WEEK, weights)
    torch.testing.assert_close(decayed_counts(make_events(weights), ITEMS, WEEK), expected)


def test_half_lives_are_short_beside_the_log():
    day = make_events()
    assert [HALF_LIVES[name] / DAY for name in half_lives(day)] == [7, 1, 0.25]


def tree_and_scorer(weights=(2.0, 0.5), arity=3):
    tree = bt.random_tree(ITEMS, arity=arity, seed=1)
    counts = torch.stack([decayed_counts(make_events(), ITEMS, half_life) for half_life in (WEEK, MONTH)], dim=1)
    return tree, TrendScorer.from_counts(tree, counts, [WEEK, MONTH], weights, END)


def node_scores(tree, scorer):
    x = torch.full((1, 69), PAD)
    prepared = scorer.prepare(tree, x)
    return torch.cat([scorer.whole_level(prepared, tree, level)[0] for level in range(tree.height + 1)])


def plain_score(counts, age=0):
    """What items [M] score, by the definition, `age` seconds after the counts [M, 2]."""
    return sum(
        weight * (counts[:, column] * 2 ** (-age / half_life)).sqrt()
        for column, (weight, half_life) in enumerate([(2.0, WEEK), (0.5, MONTH)])
    )


def item_scores(tree, scorer):
    return node_scores(tree, scorer)[tree.leaf_of_item(torch.arange(ITEMS))]


def test_an_item_scores_as_defined_and_a_node_as_much_as_the_largest_counts_below_it():
    tree, scorer = tree_and_scorer()
    torch.testing.assert_close(item_scores(tree, scorer), plain_score(scorer.counts), rtol=2e-3, atol=2e-3)
    rows, leaves = scorer.table.weight, tree.leaf_of_item(torch.arange(ITEMS))
    for level in range(tree.height):
        above = tree.ancestor(leaves, level)
        for node in above.unique().tolist():
            torch.testing.assert_close(rows[node], rows[leaves[above == node]].amax(0))


def test_with_one_half_life_a_narrow_beam_finds_the_best_items():
    tree = bt.random_tree(ITEMS, arity=2, seed=3)
    counts = decayed_counts(make_events(), ITEMS, WEEK)
    scorer = TrendScorer.from_counts(tree, counts.unsqueeze(1), [WEEK], [1.0], END)
    model = bt.TreeModel(tree, scorer)
    found = bt.retrieve(model, torch.full((1, 69), PAD), beam_size=5, m=5)[0]
    assert found[0].tolist() == counts.topk(5).indices.tolist()


@pytest.mark.parametrize("age", [3600, 40 * DAY])  # changed in place, and with counts of another time
def test_after_live_events_it_is_what_it_would_be_if_the_log_had_had_them(age):
    tree, scorer = tree_and_scorer()
    items, times = torch.tensor([3, 5, 3, 39]), END + torch.tensor([age // 2, age // 3, age, 0])
    events = make_events()
    joined = Events(
        torch.tensor([0, 304]), torch.cat([events.items, items.int()]), "all", times=torch.cat([events.times, times]),
        clock=1,
    )  # fmt: skip
    counts = torch.stack([decayed_counts(joined, ITEMS, half_life) for half_life in (WEEK, MONTH)], dim=1)
    refitted = TrendScorer.from_counts(tree, counts, [WEEK, MONTH], [2.0, 0.5], END + age)
    later = scorer
    for some in ([0, 1], [2], [3]):
        later = later.with_events(tree, items[some], times[some], in_place=True)
    assert (later is scorer) == (age == 3600)
    torch.testing.assert_close(node_scores(tree, later), node_scores(tree, refitted), rtol=2e-3, atol=2e-3)


def test_live_events_do_not_copy_the_table_or_change_its_version():
    """The arrays of a compiled search are made again for another version."""
    tree, scorer = tree_and_scorer()
    before = scorer.table.weight._version, scorer.table.weight.data_ptr()
    assert scorer.with_events(tree, torch.tensor([7]), torch.tensor([END + 60]), in_place=True) is scorer
    assert (scorer.table.weight._version, scorer.table.weight.data_ptr()) == before


def test_without_later_events_time_does_not_pass():
    tree, scorer = tree_and_scorer()
    expected = plain_score(scorer.counts, 2 * WEEK)
    later = scorer.with_events(tree, torch.tensor([0]), torch.tensor([END + 2 * WEEK]))
    torch.testing.assert_close(item_scores(tree, later)[1:], expected[1:], rtol=2e-3, atol=2e-3)


def test_it_follows_the_items_to_another_tree():
    tree, scorer = tree_and_scorer()
    scorer = scorer.with_events(tree, torch.tensor([7]), torch.tensor([END + 60]))
    for other, moved in (
        (bt.random_tree(ITEMS, arity=4, seed=8), scorer.on_tree),
        (tree.with_extra_level(), scorer.with_extra_level),
    ):
        found = moved(tree, other)
        torch.testing.assert_close(item_scores(other, found), item_scores(tree, scorer))
        assert found.table.num_nodes == other.num_nodes

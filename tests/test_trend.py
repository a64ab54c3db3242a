"""Trends: counts that fade, as they are defined, and the scores of items and nodes."""

import oracle
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
    users = torch.repeat_interleave(events.counts()).tolist()
    weights = [1.0] * len(users) if weights is None else weights.tolist()
    seconds = [time // events.clock for time in events.times.tolist()]
    counts = oracle.trend_counts(list(zip(users, events.items.tolist(), seconds, weights, strict=True)), half_life)
    return torch.tensor([counts.get(item, 0.0) for item in range(ITEMS)])


def repeated(events):
    """Every event once more, an hour earlier."""
    times = events.times.reshape(-1, 1) - torch.tensor([3600 * events.clock, 0])
    items, weights = events.items.repeat_interleave(2), events.weights
    weights = None if weights is None else torch.stack([weights.flip(0), weights], dim=1).flatten()
    return Events(events.offsets * 2, items, "twice", weights=weights, times=times.flatten(), clock=events.clock)


@pytest.mark.parametrize("clock", [1, 1000])
def test_counts_are_as_defined(clock):
    for events in (make_events(clock=clock), repeated(make_events(clock=clock))):
        days = (events.times // (DAY * clock)).unique()
        assert len(days) < days.max() - days.min()  # on some nothing was recorded
        expected = torch.stack([plain_counts(events, half_life) for half_life in (WEEK, MONTH)], dim=1)
        torch.testing.assert_close(decayed_counts(events, ITEMS, [WEEK, MONTH]), expected)


def test_events_count_as_much_as_they_weigh_and_those_that_are_not_to_be_predicted_do_not():
    weights = torch.rand(300, generator=torch.Generator().manual_seed(1)) * 3 - 0.5
    for events in (make_events(weights), repeated(make_events(weights))):
        expected = plain_counts(events, WEEK, events.weights)
        torch.testing.assert_close(decayed_counts(events, ITEMS, [WEEK])[:, 0], expected)


def test_half_lives_are_short_beside_the_log():
    day = make_events()
    assert [HALF_LIVES[name] / DAY for name in half_lives(day)] == [7, 1, 0.25]


def tree_and_scorer(weights=(2.0, 0.5), arity=3):
    tree = bt.random_tree(ITEMS, arity=arity, seed=1)
    counts = decayed_counts(make_events(), ITEMS, [WEEK, MONTH])
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
    counts = decayed_counts(make_events(), ITEMS, [WEEK])
    scorer = TrendScorer.from_counts(tree, counts, [WEEK], [1.0], END)
    model = bt.TreeModel(tree, scorer)
    found = bt.retrieve(model, torch.full((1, 69), PAD), beam_size=5, m=5)[0]
    assert found[0].tolist() == counts[:, 0].topk(5).indices.tolist()


def test_live_events_do_not_copy_the_table_or_change_its_version():
    """The arrays of a compiled search are made again for another version."""
    tree, scorer = tree_and_scorer()
    before = scorer.table.weight._version, scorer.table.weight.data_ptr()
    assert scorer.after_events(tree, torch.tensor([7]), torch.tensor([END + 60])) is scorer
    assert (scorer.table.weight._version, scorer.table.weight.data_ptr()) == before


@pytest.mark.parametrize("pause", [0, 30 * DAY])
def test_time_passes_between_events_but_for_pauses(pause):
    for age in (3600, 2 * WEEK):  # changed in place, and with counts of another time
        tree, scorer = tree_and_scorer()
        expected = plain_score(scorer.counts, age)
        later = scorer.after_events(tree, torch.tensor([0]), torch.tensor([END + age + pause]), pause=pause)
        assert (later is scorer) == (age == 3600)
        assert later.newest == END + age + pause
        torch.testing.assert_close(item_scores(tree, later)[1:], expected[1:], rtol=2e-3, atol=2e-3)


def test_it_follows_the_items_to_another_tree():
    tree, scorer = tree_and_scorer()
    scorer = scorer.after_events(tree, torch.tensor([7]), torch.tensor([END + 60]))
    for other, moved in (
        (bt.random_tree(ITEMS, arity=4, seed=8), scorer.on_tree),
        (tree.with_extra_level(), scorer.with_extra_level),
    ):
        found = moved(tree, other)
        torch.testing.assert_close(item_scores(other, found), item_scores(tree, scorer))
        assert found.table.num_nodes == other.num_nodes

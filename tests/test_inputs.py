"""x: items, times and contexts of requests in the columns of one tensor, and histories longer than 69 events."""

from dataclasses import replace

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import beamtree as bt
from beamtree.closed_form.part_weights import scores_at_leaves
from beamtree.data import HISTORY, BeforeAfter, Events
from beamtree.data.csr import group_rows
from beamtree.data.inputs import NO_TIME, WHOLE_HISTORY, WIDTHS, InputColumns, Inputs, history_width
from beamtree.scorers import FactorScorer, MemoryScorer, RepeatScorer, Scorer, with_inputs
from beamtree.scorers.factors import Factors, fold_in, newest_of_each
from beamtree.tree import PAD

COLUMNS = [InputColumns(clock, contexts) for clock in (False, True) for contexts in (0, 2)]


def some_input(columns, width, rows=3):
    parts = [torch.arange(rows * width).view(rows, width)]
    none = parts[0][:, :0]
    parts += [parts[0] + 10_000, torch.full((rows, 1), 99_999)] if columns.clock else [none, none]
    parts.append(torch.tensor([[7, 8]]).expand(rows, -1) if columns.contexts else none)
    return Inputs(*parts)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_joined_is_split_again(columns, width):
    inputs = some_input(columns, width)
    for before, after in zip(inputs, columns.split(inputs.joined()), strict=True):
        assert torch.equal(before, after)
    columns.check(inputs.joined())


@given(st.sampled_from(COLUMNS), st.sampled_from(COLUMNS), st.sampled_from(WIDTHS), st.sampled_from(WIDTHS))
def test_a_scorer_that_reads_less_gets_the_newest_events_and_its_columns(columns, to, width, history):
    to = InputColumns(to.clock and columns.clock, min(to.contexts, columns.contexts))
    given_x = some_input(columns, width)
    found = to.split(columns.narrowed(given_x.joined(), to, history))
    assert torch.equal(found.items, given_x.items[:, :history])
    if to.clock:
        assert torch.equal(found.times, given_x.times[:, :history])
        assert torch.equal(found.request, given_x.request)
    if to.contexts:
        assert torch.equal(found.context, given_x.context)


@pytest.mark.parametrize("columns", COLUMNS)
def test_an_x_of_at_most_69_columns_is_histories_alone(columns):
    x = torch.arange(2 * HISTORY).view(2, HISTORY)
    assert torch.equal(columns.items(x), x)
    assert columns.split(x).times.shape == (2, 0)
    columns.check(x)


def test_columns_that_do_not_fit_are_one_clear_line():
    with pytest.raises(ValueError, match="x has 140 columns: give items, times"):
        InputColumns(clock=True).check(torch.zeros(1, 140, dtype=torch.int64))
    with pytest.raises(ValueError, match="takes histories, int64"):
        InputColumns().check(torch.zeros(1, 70))


def test_widths_are_few():
    assert [history_width(count, WHOLE_HISTORY) for count in (0, 69, 70, 129, 999, 5000)] == [
        69,
        69,
        128,
        256,
        1000,
        1000,
    ]
    assert history_width(5000, 200) == 200
    assert history_width(5000, 10) == HISTORY


def test_users_of_a_log_come_with_times():
    """Each event has its own second, the request that of the first coming event, also where it is not a target."""
    lengths = [150, 3, 2]
    owner = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    times = (1_700_000_000 + torch.arange(len(owner)) * 60) * 1000
    weights = torch.ones(len(owner))
    weights[-1] = -1.0  # nothing to predict for the last user
    offsets = torch.tensor([0, 150, 153, 155])
    items = torch.arange(len(owner), dtype=torch.int32)
    events = Events(offsets, items, "log", weights=weights, times=times, clock=1000)
    users = BeforeAfter(events, torch.tensor([140, 1, 1]), history=WHOLE_HISTORY).with_times()
    x, y = users.batch(torch.arange(3))
    inputs = users.columns.split(x)
    assert inputs.items.shape == (3, 256)
    for row, (start, cut) in enumerate(((0, 140), (150, 151), (153, 154))):
        expected = list(range(start, cut))[::-1]
        assert inputs.items[row, : len(expected)].tolist() == expected
        assert (inputs.items[row, len(expected) :] == PAD).all()
        assert inputs.times[row, : len(expected)].tolist() == [int(times[place]) // 1000 for place in expected]
        assert (inputs.times[row, len(expected) :] == NO_TIME).all()
    assert inputs.request[:, 0].tolist() == [int(times[140]) // 1000, int(times[151]) // 1000, NO_TIME]
    assert y[0, 0] == 140


def test_times_that_are_only_an_order_are_not_known():
    events = Events(torch.tensor([0, 3]), torch.arange(3), "log", times=torch.arange(3))
    users = BeforeAfter(events).with_times()
    inputs = users.columns.split(users.batch(torch.arange(1))[0])
    assert (inputs.times == NO_TIME).all()
    assert (inputs.request == NO_TIME).all()
    assert inputs.items[0, 0] == 0


# Histories of more than 69 events


@given(st.integers(0, 10_000))
def test_the_newest_event_of_each_item_is_found_in_long_histories_too(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-1, 40, (2, 300), generator=generator)
    expected = [[item != PAD and item not in row[:t] for t, item in enumerate(row)] for row in x.tolist()]
    assert newest_of_each(x).tolist() == expected


@pytest.mark.parametrize("length", [5, 69, 100, 400])
def test_the_compiled_fold_in_of_long_histories_is_the_definition(length):
    """Also where a history is longer than a vector, where another system is solved."""
    generator = torch.Generator().manual_seed(length)
    tree = bt.random_tree(60, seed=1)
    factors = Factors(torch.randn(60, 16, generator=generator), torch.rand(16, generator=generator) + 0.1, 0.01, 3.0)
    scorer = FactorScorer.from_factors(tree, factors, power=0.4)
    x = torch.randint(-1, 60, (4, length), generator=generator)
    vectors = scorer.table.read(tree, share=False)
    rows = scorer.history_vectors(tree, vectors, tree.leaf_of_item(x))
    weights = newest_of_each(x) * scorer.recency[:length]
    expected = fold_in(scorer.fold_in_settings(rows), rows, weights)
    assert torch.allclose(scorer.encode(tree, vectors, x), expected, rtol=2e-3, atol=2e-3)


def sum_of(parts: dict[str, Scorer], tree: bt.Tree) -> bt.TreeModel:
    return bt.TreeModel(tree, bt.scorers.SumScorer(parts, tree.height))


def test_a_search_reads_a_whole_history(monkeypatch):
    """Compiled, walked and by brute force, with parts of different lengths."""
    generator = torch.Generator().manual_seed(0)
    tree = bt.random_tree(80, seed=2)
    factors = Factors(torch.randn(80, 8, generator=generator), torch.rand(8, generator=generator) + 0.1, 0.01, 3.0)
    user, item = torch.randint(80, (2, 400), generator=generator)
    partners = group_rows(user, item, 80, torch.rand(400, generator=generator))
    lists = [replace(partners, columns=partners.columns.int())]
    memory = MemoryScorer.from_partners(lists, [torch.linspace(1, 0.1, 20)])
    parts = {"factors": FactorScorer.from_factors(tree, factors), "memory": memory, "repeats": RepeatScorer()}
    model = sum_of(parts, tree)
    x = torch.randint(80, (5, 256), generator=generator)
    items, scores = bt.retrieve(model, x, beam_size=80, m=80)
    _, expected_scores = bt.brute_force(model, x, m=80)
    assert torch.allclose(scores, expected_scores, atol=2e-3)
    shorter, _ = bt.retrieve(model, x[:, :HISTORY], beam_size=80, m=80)
    assert not torch.equal(items, shorter)
    monkeypatch.setattr("beamtree.beam.search_parts", lambda *arguments: None)
    assert torch.allclose(bt.retrieve(model, x, beam_size=80, m=80)[1], expected_scores, atol=2e-3)


def test_users_with_long_histories_are_scored_in_parts_where_memory_is_small(monkeypatch):
    """As on a GPU: the same items and scores, also where items are excluded."""
    generator = torch.Generator().manual_seed(1)
    tree = bt.random_tree(50, seed=2)
    user, item = torch.randint(50, (2, 300), generator=generator)
    partners = group_rows(user, item, 50, torch.rand(300, generator=generator))
    memory = MemoryScorer.from_partners([replace(partners, columns=partners.columns.int())], [torch.ones(400)])
    model = sum_of({"memory": memory, "repeats": RepeatScorer()}, tree)
    x, items = (torch.randint(50, (7, width), generator=generator) for width in (512, 9))
    for exclude in (None, torch.randint(-1, 50, (7, 4), generator=generator)):
        expected = bt.retrieve(model, x, beam_size=50, m=20, exclude=exclude), scores_at_leaves(model, x, items)
        with monkeypatch.context() as patch:
            for module in ("beamtree.beam", "beamtree.closed_form.part_weights"):
                patch.setattr(f"{module}.users_at_once", lambda model, x: 3)
            found = bt.retrieve(model, x, beam_size=50, m=20, exclude=exclude), scores_at_leaves(model, x, items)
        assert torch.equal(found[0][0], expected[0][0])
        assert torch.equal(found[0][1], expected[0][1])
        torch.testing.assert_close(found[1], expected[1])  # sums of floats, in another order


def test_a_recommender_reads_more_than_69_events(tmp_path):
    """What was chosen long ago decides where nothing newer says anything; saved models read as much."""
    rows = [(f"u{user}", f"{'ab'[user % 2]}{(user + step) % 9}", step) for user in range(60) for step in range(8)]
    log = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    shop = bt.Recommender(seed=0).fit(log, verbose=False)
    assert shop.model.scorer.history == WHOLE_HISTORY
    history = ["a1", "a2", "a3"] + ["b5"] * 100
    long, short = shop.score(history, ["a4"]), shop.score(history[3:], ["a4"])
    assert long["score"][0] > short["score"][0]
    shop.save(tmp_path / "shop")
    assert bt.Recommender.load(tmp_path / "shop").score(history, ["a4"])["score"][0] == long["score"][0]
    users = with_inputs(shop.model.scorer, shop.data.test)
    assert users.history == WHOLE_HISTORY

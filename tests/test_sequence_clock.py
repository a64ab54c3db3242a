"""The sequence part with a clock: against its definition, without times, and that nothing comes from the future."""

from copy import deepcopy
from dataclasses import replace

import polars as pl
import pytest
import torch
from literal_transformer import literal_state
from sample_logs import some_events, walks
from sample_scorers import without_item

import beamtree as bt
from beamtree import PAD
from beamtree.data import HISTORY
from beamtree.data.inputs import NO_TIME, Inputs
from beamtree.ingest.prepare import prepare
from beamtree.parts.sequence import (
    LENGTH,
    TIMELESS,
    SequenceSettings,
    draw_windows,
    fit_sequence,
    sequence_settings,
    user_vectors,
)
from beamtree.scorers import RepeatScorer, SequenceScorer, SumScorer
from beamtree.scorers.sequence import SequenceEncoder
from beamtree.storage.exported import export_program

DAY = 86_400
FIRST = 1_700_000_000


def clock_encoder(length=HISTORY, layers=2):
    """An encoder whose weights of Gaussians are not zero, as they are before training."""
    encoder = SequenceEncoder(64, layers, 0.0, length, clock=True, seed=3).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for name, weight in encoder.named_parameters():
        if "bias.time" in name or "bias.order" in name or name == "since_newest":
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return encoder


def some_times(rows, count, seed=0):
    """Rising times, some of them equal, some years apart [rows, count]."""
    generator = torch.Generator().manual_seed(seed)
    gaps = (torch.rand(rows, count, generator=generator) * 20).exp().long() - 1
    return FIRST + gaps.cumsum(1)


def timed_input(items, times, request, width=HISTORY):
    """x of one user from lists, oldest first."""
    x = [torch.full((1, width), PAD) for _ in range(2)]
    for row, values in zip(x, (items, times), strict=True):
        row[0, : len(values)] = torch.tensor(values[::-1], dtype=torch.int64)
    return Inputs(*x, torch.tensor([[request]]), x[0][:, :0]).joined()


def clock_scorer(tree, length=HISTORY):
    items = torch.randn(tree.num_items, 64, generator=torch.Generator().manual_seed(4)).half().float()
    return SequenceScorer.from_items(tree, clock_encoder(length), items), items


def leaf_scores(scorer, tree, x):
    leaves = tree.leaf_of_item(torch.arange(tree.num_items)).unsqueeze(0)
    return scorer(scorer.prepare(tree, x), tree.height, leaves)


@torch.no_grad()
def test_scores_are_those_of_the_literal_transformer():
    tree = bt.random_tree(20, seed=1)
    scorer, vectors = clock_scorer(tree)
    times = some_times(1, 8)[0].tolist()
    unknown = [times[0], NO_TIME, *times[2:7]]
    cases = [
        ([3, 5, 5, 8, 1, 0, 19], times[:7], times[7]),
        ([3, 5, 5, 8, 1, 0, 19], unknown, times[7]),
        ([4], [FIRST], FIRST + 5 * 365 * DAY),  # longer ago than the last Gaussian
        ([4, 2], [FIRST, FIRST + 10], FIRST + 3),  # a request before the last event
        ([], [], FIRST),
    ]
    for items, of_events, request in cases:
        user = literal_state(scorer.encoder, [vectors[item] for item in items], of_events, [*of_events, request])
        found = leaf_scores(scorer, tree, timed_input(items, of_events, request))
        torch.testing.assert_close(found, (vectors @ user).unsqueeze(0), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_without_the_time_of_the_request_the_order_remains():
    tree = bt.random_tree(20, seed=1)
    scorer, vectors = clock_scorer(tree)
    items, times = [3, 5, 8, 1], some_times(1, 4)[0].tolist()
    x = timed_input(items, times, NO_TIME)
    expected = vectors @ literal_state(scorer.encoder, [vectors[item] for item in items])
    for same in (x, timed_input(items, [NO_TIME] * 4, NO_TIME), x[:, :HISTORY], x[:, :9]):
        torch.testing.assert_close(leaf_scores(scorer, tree, same)[0], expected, rtol=1e-4, atol=1e-4)
    timed = leaf_scores(scorer, tree, timed_input(items, times, times[-1] + DAY))
    assert not torch.allclose(timed[0], expected, atol=0.1)


@torch.no_grad()
def test_a_state_does_not_depend_on_what_comes_after_its_moment():
    torch.manual_seed(0)
    encoder = clock_encoder()
    vectors, times = torch.randn(2, 9, 64), some_times(2, 10)
    before = encoder(vectors, times[:, :9], times)
    for count in range(10):
        one, other, moments = vectors.clone(), times[:, :9].clone(), times.clone()
        one[:, count:], other[:, count:], moments[:, count + 1 :] = 0.0, FIRST, FIRST
        torch.testing.assert_close(encoder(one, other, moments)[:, : count + 1], before[:, : count + 1])
        moments[:, count] = times[:, max(0, count - 1)] + 12 * 3600
        changed = not torch.allclose(encoder(one, other, moments)[:, count], before[:, count], atol=1e-3)
        assert changed == (count > 0)  # before the first event nothing is known that a moment could be after


@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 3])
def test_the_last_state_is_that_of_all_states(layers):
    encoder = clock_encoder(layers=layers)
    vectors, times = torch.randn(5, 9, 64), some_times(5, 10)
    count = torch.tensor([0, 9, 3, 1, 8])
    for clock in ([times[:, :9], times], []):
        states = encoder(vectors, *clock)[torch.arange(5), count]
        torch.testing.assert_close(encoder.last(vectors, count, *clock), states, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_items_without_a_leaf_are_left_out_with_their_times():
    tree = bt.random_tree(20, seed=1)
    removed = without_item(tree, 5)
    scorer, _ = clock_scorer(tree)
    a, b, c, request = some_times(1, 4)[0].tolist()
    users = [
        scorer.prepare(removed, timed_input(items, times, request)).user
        for items, times in (([8, 5, 3], [a, b, c]), ([8, 3], [a, c]))
    ]
    torch.testing.assert_close(*users)


@torch.no_grad()
def test_many_users_are_encoded_in_parts(monkeypatch):
    tree = bt.random_tree(20, seed=1)
    scorer, _ = clock_scorer(tree, LENGTH)
    generator = torch.Generator().manual_seed(0)
    items = torch.randint(-1, 20, (7, 256), generator=generator)
    times = some_times(7, 257)
    x = Inputs(items, times[:, :-1].flip(1), times[:, -1:], items[:, :0]).joined()
    whole = scorer.users(tree, x)
    monkeypatch.setattr("beamtree.scorers.sequence.PAIRS", {"cpu": 2 * 201**2})
    torch.testing.assert_close(scorer.users(tree, x), whole)
    newest = Inputs(items[:, :LENGTH], times[:, :-1].flip(1)[:, :LENGTH], times[:, -1:], items[:, :0]).joined()
    torch.testing.assert_close(scorer.users(tree, newest), whole)


def test_a_sum_gives_the_part_its_columns():
    """Beside a part that reads a longer history and no times."""
    tree = bt.random_tree(30, seed=1)
    scorer, _ = clock_scorer(tree, 100)
    generator = torch.Generator().manual_seed(0)
    items, times = torch.randint(-1, 30, (4, 256), generator=generator), some_times(4, 257)
    newest_first = times[:, :-1].flip(1)
    x = Inputs(items, newest_first, times[:, -1:], items[:, :0]).joined()
    own = Inputs(items[:, :100], newest_first[:, :100], times[:, -1:], items[:, :0]).joined()
    total = SumScorer({"sequence": scorer, "repeats": RepeatScorer()}, tree.height)
    expected = leaf_scores(scorer, tree, own) + leaf_scores(RepeatScorer(), tree, items)
    model = bt.TreeModel(tree, total)
    torch.testing.assert_close(leaf_scores(total, tree, x), expected)
    assert torch.equal(bt.retrieve(model, x, beam_size=64, m=5)[0], expected.topk(5, dim=1).indices)


# Windows


def timed_events(counts, num_items):
    events = some_events(counts, num_items)
    return replace(events, times=(FIRST + torch.arange(len(events.items)) * 60) * 1000, clock=1000)


def test_a_position_is_asked_about_at_the_time_of_its_next_event():
    events = timed_events([3, 400, 2], 30)
    seconds = events.seconds(torch.arange(405))
    users = torch.tensor([0, 1, 2] * 300)
    windows = draw_windows(events, users, 4, 2, torch.Generator().manual_seed(0), 100, seconds)
    assert windows.x.shape == windows.times.shape == (900, 100)
    assert windows.asked.shape == (900, 101)
    lost = 0
    for user, x, times, asked in zip(users.tolist(), windows.x, windows.times, windows.asked, strict=True):
        count = int((x != PAD).sum())
        assert torch.equal(times, asked[:-1])
        if bool((asked == NO_TIME).all()):
            lost += 1
            continue
        first = int((asked[0] - FIRST) // 60)
        events_of_user = range((0, 3, 403)[user], (3, 403, 405)[user])
        expected = [FIRST + 60 * index if index in events_of_user else NO_TIME for index in range(first, first + 101)]
        assert asked.tolist() == expected
        assert x[:count].tolist() == events.items[first : first + count].tolist()
    assert lost / 900 == pytest.approx(TIMELESS, abs=0.05)


def test_times_change_nothing_else_in_windows():
    events = timed_events([3, 400, 2], 30)
    users = torch.tensor([0, 1, 2] * 3)
    found = [
        draw_windows(events, users, 4, 2, torch.Generator().manual_seed(7), 100, seconds)
        for seconds in (None, events.seconds(torch.arange(405)))
    ]
    assert torch.equal(found[0].x, found[1].x)
    assert torch.equal(found[0].y, found[1].y)
    assert found[0].times is found[0].asked is None


@pytest.mark.parametrize("loss", [{}, {"sampled": 8}])
def test_the_same_seed_gives_the_same_encoder(loss):
    events = timed_events([5, 80, 2, 1, 9] * 4, 30)
    settings = SequenceSettings(32, 0.2, 0.1, 3, 12, 5, None, batch_size=4, length=40, clock=True)
    settings = replace(settings, **loss)
    one, other = (fit_sequence(events, 30, settings, seed=4) for _ in range(2))
    assert torch.equal(one[1], other[1])
    assert all(map(torch.equal, one[0].parameters(), other[0].parameters()))
    assert one[0].clock
    assert bool(one[0].since_newest.any())


def test_an_order_gives_an_encoder_without_a_clock():
    encoder, _ = fit_sequence(some_events([5, 80], 30), 30, SequenceSettings(32, 0.2, 0.1, 3, 2, 5, 8, batch_size=4))
    assert not encoder.clock
    assert encoder.length == HISTORY
    assert not [name for name in encoder.state_dict() if "bias." in name or "since" in name]


# In a model


def rhythm(users=240, length=24, seed=0):
    """Walks around a ring of items: 1 within the hour, 7 after a week. Only the time tells which step it is."""
    generator = torch.Generator().manual_seed(seed)
    long = torch.rand(users, length, generator=generator) < 0.5
    item = (torch.randint(31, (users, 1), generator=generator) + torch.where(long, 7, 1).cumsum(1)) % 31
    time = FIRST + torch.where(long, 7 * DAY, 600).cumsum(1)
    user = torch.arange(users).unsqueeze(1).expand_as(item)
    columns = {"user": user, "item": item, "time": time}
    return pl.DataFrame({name: column.flatten().numpy() for name, column in columns.items()})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("log") / "rhythm"
    prepare(rhythm(), folder, split="leave-one-out")
    return bt.load_data(folder)


@pytest.fixture(scope="module")
def model(data):
    """The part alone."""
    settings = SequenceSettings(32, 0.1, 0.0, 1, 300, 300, None, batch_size=32, length=LENGTH, clock=True)
    encoder, vectors = fit_sequence(data.train.events, data.num_items, settings)
    tree = bt.random_tree(data.num_items, seed=1)
    return bt.TreeModel(tree, SequenceScorer.from_items(tree, encoder, vectors), ids=data.items)


@torch.no_grad()
def test_what_is_found_depends_on_the_time_of_the_request(model):
    number = {name: index for index, name in enumerate(model.ids.names)}
    found = {}
    for pause, step in ((600, 1), (7 * DAY, 7)):
        items = [number[str(item)] for item in (20, 21, 28, 29)]
        times = [FIRST, FIRST + 600, FIRST + 600 + 7 * DAY, FIRST + 1200 + 7 * DAY]
        x = timed_input(items, times, times[-1] + pause)
        found[step] = model.ids.names[int(bt.retrieve(model, x, beam_size=32, m=1)[0])]
    assert found == {1: "30", 7: "5"}


def test_a_model_with_a_clock_is_saved_loaded_and_moved(model, tmp_path):
    bt.save_model(model, tmp_path / "run")
    other = bt.load_model(tmp_path / "run")
    assert other.scorer.settings() == {**model.scorer.settings(), "clock": True, "length": LENGTH}
    times = some_times(1, 5)[0].tolist()
    x = timed_input([3, 4, 5, 9], times[:4], times[4])
    expected = bt.retrieve(model, x, beam_size=32, m=5)
    for one, two in zip(expected, bt.retrieve(other, x, beam_size=32, m=5), strict=True):
        assert torch.equal(one, two)
    moved = other.on_tree(bt.random_tree(model.tree.num_items, seed=5))
    assert torch.equal(bt.retrieve(moved, x, beam_size=128, m=5)[0], bt.brute_force(model, x, m=5)[0])


def test_a_model_with_a_clock_is_exported(model):
    program = export_program(model, beam_size=8, m=5).module()
    x = torch.full((4, HISTORY), PAD)
    x[0, :3], x[1, :1] = torch.tensor([3, 9, 4]), 7
    assert torch.equal(program(x)[0], bt.retrieve(model, x, beam_size=8, m=5)[0])


def test_inner_nodes_are_fitted_to_users_with_times(model, data):
    part, unaware = model.scorer, deepcopy(model.scorer)
    torch.nn.init.zeros_(unaware.encoder.since_newest)
    users, others = (user_vectors(each, model.tree, data.train, count=50) for each in (part, unaware))
    assert not torch.allclose(users, others)


def test_settings_follow_the_clock_and_how_dense_a_log_is(data, tmp_path):
    prepare(walks(60, 61, 16), tmp_path / "order")
    prepare(walks(400, 15, 16), tmp_path / "dense")
    order, dense = (bt.load_data(tmp_path / name) for name in ("order", "dense"))
    for device in ("cpu", "cuda"):
        with_clock, without, many = (sequence_settings(each, device) for each in (data, order, dense))
        assert with_clock.clock
        assert with_clock.layers == (4 if device == "cuda" else 2)  # the log is dense
        assert with_clock.length == (LENGTH if device == "cuda" else HISTORY)  # minutes of a CPU are few
        assert not without.clock
        assert without.layers == 2
        assert without.length == HISTORY
        assert not many.clock
        assert (many.layers, many.length) == ((4, LENGTH) if device == "cuda" else (2, HISTORY))

"""Training the sequence part for some minutes: it ends in time, the best state is kept, too few minutes are said."""

from dataclasses import replace

import pytest
import torch
from sample_logs import cyclic_log, walks

import beamtree as bt
from beamtree.evaluate.metrics import hits, num_relevant
from beamtree.ingest.prepare import prepare
from beamtree.parts import sequence
from beamtree.parts.sequence import SEQUENCE, SequencePart, recall_alone
from beamtree.scorers import SequenceScorer, with_inputs
from beamtree.scorers.sequence import SequenceEncoder
from beamtree.train.options import TrainingOptions
from beamtree.train.recipes import resolve_settings


@pytest.fixture
def seconds(monkeypatch):
    """Every look at the clock takes a second, and time can be read off."""
    passed = [0]

    def monotonic():
        passed[0] += 1
        return float(passed[0])

    monkeypatch.setattr(sequence, "monotonic", monotonic)
    return passed


def fitted(**options):
    return bt.Recommender(sequence=True, refit=False, **options).fit(cyclic_log(), verbose=False)


@pytest.mark.extended
def test_training_ends_with_its_minutes(seconds, monkeypatch):
    """Four looks at most for each check, so about a quarter of the budget in checks, fifty steps each."""
    monkeypatch.setattr(sequence, "LEAST_STEPS", 1)
    record = fitted(minutes=0.5).model.scorer.hyperparameters[SEQUENCE]
    assert seconds[0] >= 30
    assert record.get("steps", 0) <= 30 * sequence.TIMED


def test_minutes_that_are_too_few_are_said(seconds):
    shop = fitted(minutes=0.05)
    assert SEQUENCE not in shop.model.scorer.names
    (line,) = SequencePart().report(shop.model.scorer)
    assert line.startswith("The sequence part was left out: the minutes given are enough for about")
    assert seconds[0] < 10


def test_the_recall_of_the_part_alone_is_as_defined(tmp_path):
    prepare(walks(60, 40, 12), tmp_path / "data")
    data = bt.load_data(tmp_path / "data")
    tree = bt.random_tree(data.num_items, seed=1)
    part = SequenceScorer.from_items(tree, SequenceEncoder(32, 1, 0.0, seed=2), torch.randn(data.num_items, 32))
    model = bt.TreeModel(tree, bt.scorers.SumScorer({SEQUENCE: part}, tree.height))
    x, y = with_inputs(part, data.val).batch(torch.arange(len(data.val)))
    everything = bt.brute_force(model, x, m=data.num_items)[0]
    hit = hits(everything, y).float()
    expected = [(hit[:, :m].sum(1) / num_relevant(y)).mean() for m in (10, 50, 100, 200)]
    assert recall_alone(part, tree, data.val) == pytest.approx(float(sum(expected)) / 4, abs=1e-6)


@pytest.mark.parametrize(("events", "trained"), [(1, True), (10**6, False)])
def test_a_cpu_trains_the_part_by_default_where_the_log_is_long(events, trained, monkeypatch, shop_folder):
    monkeypatch.setattr("beamtree.train.recipes.LEAST_EVENTS", events)
    data = bt.load_data(shop_folder / "data")
    settings = resolve_settings(data, TrainingOptions())
    assert settings.sequence == trained
    (part,) = [part for part in settings.parts if part.name == SEQUENCE] or [None]
    assert not trained or part.minutes == sequence.MINUTES
    assert not resolve_settings(data, TrainingOptions(steps=0)).sequence
    assert not resolve_settings(data, TrainingOptions(sequence=False)).sequence


@pytest.mark.parametrize("minutes", [0, -1.0, "5", float("nan"), float("inf"), True])
def test_minutes_are_above_zero(minutes):
    with pytest.raises(ValueError, match=r"minutes=.*: must be above 0 and finite; `sequence=False` trains no tran"):
        bt.Recommender(minutes=minutes)


def test_the_part_reads_as_many_events_as_it_is_told(monkeypatch):
    trained = []
    monkeypatch.setattr(sequence, "fit_sequence", lambda events, items, settings, **how: trained.append(settings))
    options = {"refit": False, "seed": 0}
    bt.Recommender(parts=(SequencePart(length=500),), **options).fit(cyclic_log(), verbose=False)
    bt.Recommender(sequence=True, **options).fit(cyclic_log(), verbose=False)
    assert [settings.length for settings in trained] == [500, 69]
    assert replace(trained[0], length=69) == trained[1]


@pytest.mark.parametrize("length", [0, 1001, True, 2.0, "9"])
def test_the_events_that_are_read_are_a_number(length):
    with pytest.raises(ValueError, match=r"^length=.*: give a whole number from 1 to 1,000$"):
        SequencePart(length=length)


def test_minutes_of_a_part_that_is_not_trained_are_refused():
    with pytest.raises(
        ValueError, match=r"^`minutes` are for the sequence part, which is left out: give one of the two$"
    ):
        bt.Recommender(minutes=5, sequence=False)
    bt.Recommender(minutes=5, sequence=False, parts=(SequencePart(),))

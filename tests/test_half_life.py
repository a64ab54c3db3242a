"""Old events count less in the closed form: where that finds more, and only where times are a clock."""

import random
from dataclasses import replace

import polars as pl
import pytest
import torch

import beamtree as bt
from beamtree.data import Events
from beamtree.data.times import DAY
from beamtree.live.refit import refit_parts
from beamtree.parts.closed_form import HALF_LIFE

START, DAYS = 1_704_067_200, 320
CHANGES = 40  # days after which other items go together


def make_events(weights=None, clock=1000):
    times = torch.tensor([0, 10, 30, 20, 40]) * DAY * clock
    return Events(torch.tensor([0, 3, 5]), torch.arange(5).int(), "log", weights=weights, times=times, clock=clock)


@pytest.mark.parametrize("weights", [None, torch.tensor([2.0, -1.0, 1.0, 0.5, 3.0])])
def test_weights_are_as_defined(weights):
    events = make_events(weights)
    expected = [
        (1.0 if weights is None else float(weights[index])) * 2 ** (-(40 - day) / 10)
        for index, day in enumerate([0, 10, 30, 20, 40])
    ]
    mean = sum(map(abs, expected)) / 5
    found = events.decayed(10 * DAY)
    torch.testing.assert_close(found.weights, torch.tensor([weight / mean for weight in expected]))
    assert torch.equal(found.is_target(torch.arange(5)), events.is_target(torch.arange(5)))


def test_some_users_of_a_file_have_weights_from_their_own_newest_event_on():
    whole = make_events()
    part = replace(whole, offsets=whole.offsets[:2])
    assert part.span_of_time() == 30 * DAY
    weights = part.decayed(10 * DAY).weights[:3]
    torch.testing.assert_close(weights / weights[2], torch.tensor([2**-3.0, 2**-2.0, 1.0]))


def test_times_that_are_only_an_order_have_no_span():
    assert replace(make_events(), clock=None).span_of_time() == 0
    assert replace(make_events(), times=None).span_of_time() == 0


def changing_log(changes):
    """Six groups of ten items, which are other items every few weeks where `changes`; a user stays in one group."""
    draw, rows = random.Random(0), []
    for user in range(900):
        at, group = START + draw.randrange(DAYS * DAY), draw.randrange(6)
        for _ in range(12):
            season = (at - START) // (CHANGES * DAY) if changes else 0
            items = random.Random(season).sample(range(60), 60)
            rows.append((f"u{user}", f"i{items[10 * group + draw.randrange(10)]}", at))
            at += draw.randrange(8 * DAY)
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row").sort("user", "time")


def fitted(log, tmp_path):
    date = pl.from_epoch(pl.Series([START + (DAYS - 20) * DAY])).dt.to_string("%Y-%m-%d")[0]
    data = bt.prepare(log, tmp_path / "data", split=f"time:{date}", val_users=60, test_users=20)
    shop = bt.Recommender(steps=0, sequence=False, refit=False).fit(tmp_path / "data", verbose=False)
    return shop, data


@pytest.fixture(scope="module")
def changing(tmp_path_factory):
    return fitted(changing_log(changes=True), tmp_path_factory.mktemp("changing"))[0]


def test_where_what_goes_together_changes_old_events_count_less(changing):
    half_life = changing.model.scorer.hyperparameters[HALF_LIFE]
    assert 0 < half_life <= DAYS * DAY / 2


def test_a_refit_has_the_same_half_life_and_the_same_parts_on_the_same_events(changing):
    data = changing.data
    again = refit_parts(changing.model, data, data.train.events, 0)
    assert again.scorer.hyperparameters[HALF_LIFE] == changing.model.scorer.hyperparameters[HALF_LIFE]
    before, after = (model.scorer.state_dict() for model in (changing.model, again))
    for name, value in before.items():
        torch.testing.assert_close(after[name], value)


def test_logs_without_a_clock_have_none(shop_folder):
    fitted = bt.Recommender.load(shop_folder / "run").model.scorer.hyperparameters
    assert HALF_LIFE not in fitted
    assert not any(name.startswith("trend") for name in fitted["weights"])

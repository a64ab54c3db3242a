"""Logs with little to learn: parts keep one scale, nothing saturates, and popularity is the least that is found."""

import numpy as np
import polars as pl
import pytest
import torch

import beamtree as bt
from beamtree.closed_form.part_weights import Candidates
from beamtree.evaluate.metrics import hits
from beamtree.ingest.user_events import read_users
from beamtree.scorers import PopularityScorer
from beamtree.train.recipes import parts_report

# Users, items, events of a user, and the share of events that come from the user's own block of items.
LOGS = [
    (users, items, events, block)
    for users, items, events in ((300, 100, 2), (400, 100, 20), (1500, 800, 5), (600, 3000, 50), (3000, 6000, 6))
    for block in (0.0, 0.1, 0.3, 0.6, 0.95)
]
LOGS += [(2000, 50_000, 1.5, 0.0), (2000, 50_000, 10, 0.0), (2000, 50_000, 10, 0.9), (900, 20_000, 50, 0.5)]
LOGS += [(5000, 300, 1.2, 0.5)]
QUICK = [(400, 100, 20, 0.95)]


def made_up_log(users, items, events, block, seed=0):
    """Users choose by popularity (Zipf), or within one of 20 blocks of items."""
    draw = np.random.default_rng(seed)
    counts = 1 + draw.poisson(max(0.0, events - 1), users)
    owner = np.repeat(np.arange(users), counts)
    share = 1 / np.arange(1, items + 1)
    item = draw.choice(items, len(owner), p=share / share.sum())
    own = draw.random(len(owner)) < block
    item[own] = (item[own] // 20 * 20 + owner[own] % 20) % items
    return pl.DataFrame({"user": owner, "item": item, "time": np.arange(len(owner))})


def check_fit(*log):
    """Fit to a log, and compare with popularity what is found for 3,000 other users like those of the log."""
    log, others = made_up_log(*log), made_up_log(3000, *log[1:], seed=1)
    shop = bt.Recommender(steps=0, refit=False).fit(log, verbose=False)
    scorer, data = shop.model.scorer, shop.data
    weights = {**scorer.hyperparameters["weights"], **{name: scorer.weight_of(name) for name in scorer.names}}
    del weights["repeats"]
    assert all(abs(weight) <= 1000 for weight in weights.values()), weights
    for part in (scorer.part(name) for name in scorer.names if name != "deep"):
        for name, tensor in part.state_dict().items():
            assert bool(torch.isfinite(tensor).all()), name
    users = read_users(others, shop.model.ids)
    x, y = users.batch(torch.arange(len(users)))
    m = min(50, data.num_items // 2)
    items, scores = bt.retrieve(shop.model, x, beam_size=400, m=m)
    assert bool(((scores > -30) & (scores < -1e-6)).all()), "a probability is 0 or 1"
    popular = data.train.events.popularity(data.num_items).topk(m).indices.expand(len(x), m)
    assert float(hits(items, y).sum()) >= 0.98 * float(hits(popular, y).sum())
    return shop


@pytest.mark.parametrize("log", QUICK)
def test_a_fit_to_any_log_has_one_scale_and_finds_what_is_popular(log):
    check_fit(*log)


@pytest.mark.extended
@pytest.mark.parametrize("log", [each for each in LOGS if each not in QUICK])
def test_a_fit_to_many_logs_has_one_scale_and_finds_what_is_popular(log):
    check_fit(*log)


def test_a_fit_that_gives_everybody_one_list_says_so():
    """Every choice is by popularity, which is steep."""
    draw = np.random.default_rng(1)
    share = 1 / np.arange(1, 201) ** 2.5
    log = pl.DataFrame({"user": np.repeat(np.arange(800), 4), "item": draw.choice(200, 3200, p=share / share.sum())})
    shop = bt.Recommender(steps=0).fit(log.with_columns(time=pl.int_range(3200)), verbose=False)
    assert any("nearly the same list" in line for line in parts_report(shop.model.scorer))


def test_factors_that_would_vanish_are_named_and_get_no_weight(monkeypatch):
    monkeypatch.setattr("beamtree.closed_form.als.STRENGTHS", ((20.0, 0.1), (30.0, 0.1)))  # no λ near is weak enough
    monkeypatch.setattr("beamtree.closed_form.als.WEAKEST", 10.0)
    shop = bt.Recommender(steps=0).fit(made_up_log(600, 200, 6, 0.5), verbose=False)
    scorer = shop.model.scorer
    assert scorer.weight_of("factors") == 0
    assert any("Factors are left out" in line for line in parts_report(scorer))
    assert len(shop.recommend(["1", "2"], m=10)) == 10


def test_popularity_is_weighed_where_users_choose_by_it():
    """Validation users do not find less with all parts than with popularity alone, at the cuts that weights are for."""
    shop = bt.Recommender(steps=0).fit(made_up_log(1500, 800, 5, 0.0, seed=3), verbose=False)
    scorer, data = shop.model.scorer, shop.data
    popularity = PopularityScorer.from_counts(shop.model.tree, data.train.events.popularity(data.num_items))
    parts = {"all": scorer, "popularity": popularity}
    candidates = Candidates(shop.model.tree, parts, data.val, shop.model.first_level, "cpu")
    mine, alone = (
        candidates.user_recalls(w).mean(0) for w in ({"all": 1.0, "popularity": 0}, {"all": 0, "popularity": 1.0})
    )
    assert float((mine / alone.clamp(min=1e-9)).mean()) >= 0.99

"""Training on a log: validation, early stopping, the best model, exact resume."""

import json

import pytest
import torch

import beamtree as bt
from beamtree import Log
from beamtree.data import factors
from beamtree.train import Journal, loop

OPTIONS = {"epochs": 6, "batch_size": 16, "seed": 3}


def two_tastes(users=80, seed=0):
    """Users who like the even items, and users who like the odd ones."""
    generator = torch.Generator().manual_seed(seed)
    events = [2 * torch.randint(0, 16, (10,), generator=generator) + u % 2 for u in range(users)]
    return Log(torch.arange(users + 1) * 10, torch.cat(events).int(), f"tastes {seed}")


def a_model():
    tree = bt.random_tree(32, seed=1)
    return bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes), first_level=2)


def train(model, folder=None, **changes):
    options = {**OPTIONS, "val": two_tastes(20, seed=9), "warm_up": bt.tdm_uniform(8), **changes}
    bt.fit(model, two_tastes().drawn(), bt.otm_mixed(4, 4), folder=folder, **options)
    return model


def weights(model):
    return torch.cat([value.detach().flatten() for value in model.scorer.state_dict().values()])


def test_a_scorer_that_starts_from_factors_knows_tastes_and_keeps_them():
    model, test = a_model(), two_tastes(20, seed=9)
    vectors = factors(two_tastes(), 32)

    def recall():
        return bt.evaluate(model, test, beam_size=16, m=(16,))["recall", 16]

    assert recall() < 0.6  # half of the items are the other taste's
    model.scorer.start_from(model.tree, vectors)
    assert recall() > 0.8
    train(model)
    assert recall() > 0.8


def scripted(monkeypatch, values):
    """Have validation say these recalls, one after the other."""
    left = iter(values)
    monkeypatch.setattr(loop, "recall_of", lambda model, val: next(left))


def test_training_stops_when_recall_has_not_risen_and_keeps_the_best(monkeypatch):
    scripted(monkeypatch, [0.05, 0.1, 0.3, 0.2, 0.3, 0.1])
    kept, seen = [], []

    def on_check(step, recall):
        kept.append(weights(model))
        seen.append((step, recall))

    model = a_model()
    train(model, patience=3, epochs=20, check_every=2, on_check=on_check)
    assert seen == [(0, 0.05), (2, 0.1), (4, 0.3), (6, 0.2), (8, 0.3), (10, 0.1)]  # a tie is no progress
    assert torch.equal(weights(model), kept[2])


def test_a_start_that_training_only_spoils_is_kept(monkeypatch):
    scripted(monkeypatch, [0.5, 0.1, 0.2])
    model = a_model()
    before = weights(model)
    train(model, patience=2, epochs=20, check_every=2)
    assert torch.equal(weights(model), before)


@pytest.mark.parametrize("stop", [3, 4, 7, 10])
def test_a_run_stopped_anywhere_ends_like_one_that_was_not(tmp_path, monkeypatch, stop):
    class Stopped(Exception):  # noqa: N818
        pass

    def on_step(done, total, loss):
        if done == stop:
            raise Stopped

    recalls = {0: 0.05, 2: 0.1, 4: 0.3, 6: 0.2, 8: 0.25, 10: 0.28, 12: 0.3}
    at = {}

    def recall(model, val):
        at["step"] += 2
        return recalls[at["step"] - 2]

    monkeypatch.setattr(loop, "recall_of", recall)
    options = {"check_every": 2, "save_every": 3, "patience": 4}
    at["step"] = 0
    whole = train(a_model(), tmp_path / "whole", **options)
    at["step"] = 0
    with pytest.raises(Stopped):
        train(a_model(), tmp_path / "run", on_step=on_step, **options)
    at["step"] = (stop // 3) * 3 // 2 * 2 + 2  # after the last check that the last checkpoint knows of
    resumed = train(a_model(), tmp_path / "run", resume=True, **options)
    assert torch.equal(weights(resumed), weights(whole))
    best = [bt.load_model(tmp_path / run / "best") for run in ("whole", "run")]
    assert torch.equal(weights(best[0]), weights(best[1]))
    again = train(a_model(), tmp_path / "run", resume=True, **options)  # nothing is left to do
    assert torch.equal(weights(again), weights(whole))


def test_the_first_steps_are_those_of_the_warm_up_alone():
    """With all steps in the warm-up, the method does not matter."""
    log = two_tastes().drawn()
    models = [a_model(), a_model()]
    bt.fit(models[0], log, bt.otm(4), **OPTIONS, warm_up=bt.tdm_uniform(8), warm_share=1.0)
    bt.fit(models[1], log, bt.tdm_uniform(8), **OPTIONS)
    assert torch.equal(weights(models[0]), weights(models[1]))


def test_schedules_start_and_end_where_they_say():
    assert {bt.constant(share) for share in (0.0, 0.5, 1.0)} == {1.0}
    assert bt.cosine(0.0) == pytest.approx(0.01, abs=1e-3)
    assert bt.cosine(0.01) == pytest.approx(1.0, abs=1e-2)
    assert bt.cosine(1.0) == pytest.approx(0.02)
    assert all(bt.cosine(a / 100) > bt.cosine((a + 1) / 100) for a in range(2, 99))


def test_a_journal_drops_what_a_resumed_run_will_write_again(tmp_path):
    path = tmp_path / "log.jsonl"
    journal = Journal(path)
    for step in (1, 2, 3):
        journal.write(step, loss=float(step))
    journal.close()
    path.write_text(path.read_text() + '{"step": 4, "lo')  # killed while writing
    journal = Journal(path, step=2)
    journal.write(3, loss=30.0)
    journal.close()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(r["step"], r["loss"]) for r in records] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert list((tmp_path / "tensorboard").glob("events.*"))

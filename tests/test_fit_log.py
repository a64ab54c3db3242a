"""Training on a log: validation, early stopping, the best model, exact resume."""

import json

import pytest
import torch

import beamtree as bt
from beamtree.data import BeforeAfter, Events, factors
from beamtree.storage.runs import RunLog
from beamtree.train import Checkpoints, Schedule, Validation, constant, cosine

OPTIONS = {"epochs": 6, "batch_size": 16, "seed": 3}


def two_tastes(users=80, seed=0):
    """Users who like the even items, and users who like the odd ones."""
    generator = torch.Generator().manual_seed(seed)
    items = [2 * torch.randint(0, 16, (10,), generator=generator) + u % 2 for u in range(users)]
    return BeforeAfter(Events(torch.arange(users + 1) * 10, torch.cat(items).int(), f"tastes {seed}"))


def make_model():
    tree = bt.random_tree(32, seed=1)
    return bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes), first_level=2)


def train(model, checkpoints=None, validation=None, **changes):
    options = {
        **OPTIONS,
        "schedule": Schedule(warm_up=bt.tdm(8)),
        "val": Validation(two_tastes(20, seed=9), **(validation or {})),
        "checkpoints": checkpoints,
        **changes,
    }
    return bt.fit(model, two_tastes().random_crops(), bt.otm_mixed(4, 4), **options)


def weights(model):
    return torch.cat([value.detach().flatten() for value in model.scorer.state_dict().values()])


def test_a_scorer_that_starts_from_factors_knows_tastes_and_keeps_them():
    model, test = make_model(), two_tastes(20, seed=9)
    vectors = factors(two_tastes().events, 32)

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
    monkeypatch.setattr(Validation, "recall", lambda self, model: next(left))


def test_training_stops_when_recall_has_not_risen_and_keeps_the_best(monkeypatch):
    scripted(monkeypatch, [0.05, 0.1, 0.3, 0.2, 0.3, 0.1])
    kept, seen = [], []

    def on_check(step, recall):
        kept.append(weights(model))
        seen.append((step, recall))

    model = make_model()
    progress = train(model, epochs=20, validation={"patience": 3, "every": 2, "on_check": on_check})
    assert seen == [(0, 0.05), (2, 0.1), (4, 0.3), (6, 0.2), (8, 0.3), (10, 0.1)]  # a tie is no progress
    assert torch.equal(weights(model), kept[2])
    assert (progress.start, progress.best, progress.best_step, progress.step) == (0.05, 0.3, 4, 10)
    assert progress.checks_since_best == 3
    assert not progress.kept_the_start


def test_a_start_that_training_only_spoils_is_kept(monkeypatch):
    scripted(monkeypatch, [0.5, 0.1, 0.2])
    model = make_model()
    before = weights(model)
    progress = train(model, epochs=20, validation={"patience": 2, "every": 2})
    assert torch.equal(weights(model), before)
    assert progress.kept_the_start
    assert progress.start == progress.best == 0.5


@pytest.mark.extended
@pytest.mark.parametrize("stop", [3, 4, 7, 10])
def test_a_run_stopped_anywhere_ends_like_one_that_was_not(tmp_path, monkeypatch, stop):
    class Stopped(Exception):  # noqa: N818
        pass

    def on_step(done, total, loss):
        if done == stop:
            raise Stopped

    recalls = {0: 0.05, 2: 0.1, 4: 0.3, 6: 0.2, 8: 0.25, 10: 0.28, 12: 0.3}
    at = {}

    def recall(self, model):
        at["step"] += 2
        return recalls[at["step"] - 2]

    monkeypatch.setattr(Validation, "recall", recall)

    def run(name, resume=False, on_step=None):
        model = make_model()
        checkpoints = Checkpoints(tmp_path / name, every=3, seconds=None, resume=resume)
        train(model, checkpoints, {"every": 2, "patience": 4}, on_step=on_step)
        return model

    at["step"] = 0
    whole = run("whole")
    at["step"] = 0
    with pytest.raises(Stopped):
        run("run", on_step=on_step)
    at["step"] = (stop // 3) * 3 // 2 * 2 + 2  # after the last check that the last checkpoint knows of
    resumed = run("run", resume=True)
    assert torch.equal(weights(resumed), weights(whole))
    best = [bt.load_model(tmp_path / name / "best") for name in ("whole", "run")]
    assert torch.equal(weights(best[0]), weights(best[1]))
    again = run("run", resume=True)  # nothing is left to do
    assert torch.equal(weights(again), weights(whole))


def test_the_first_steps_are_those_of_the_warm_up_alone():
    """With all steps in the warm-up, the method does not matter."""
    data = two_tastes().random_crops()
    models = [make_model(), make_model()]
    bt.fit(models[0], data, bt.otm(4), **OPTIONS, schedule=Schedule(warm_up=bt.tdm(8), warm_share=1.0))
    bt.fit(models[1], data, bt.tdm(8), **OPTIONS)
    assert torch.equal(weights(models[0]), weights(models[1]))


def test_schedules_start_and_end_where_they_say():
    assert {constant(share) for share in (0.0, 0.5, 1.0)} == {1.0}
    assert cosine(0.0) == pytest.approx(0.01, abs=1e-3)
    assert cosine(0.01) == pytest.approx(1.0, abs=1e-2)
    assert cosine(1.0) == pytest.approx(0.02)
    assert all(cosine(a / 100) > cosine((a + 1) / 100) for a in range(2, 99))


def test_a_journal_drops_what_a_resumed_run_will_write_again(tmp_path):
    path = tmp_path / "log.jsonl"
    journal = RunLog(path)
    for step in (1, 2, 3):
        journal.write(step, loss=float(step))
    journal.close()
    path.write_text(path.read_text() + '{"step": 4, "lo')  # killed while writing
    journal = RunLog(path, step=2)
    journal.write(3, loss=30.0)
    journal.close()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(r["step"], r["loss"]) for r in records] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert list((tmp_path / "tensorboard").glob("events.*"))

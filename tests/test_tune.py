"""`beamtree tune`: the ranks it narrows by, what it promises of the beam it chooses, and the command."""

import json
from itertools import pairwise

import oracle
import pytest
import torch
from command import beamtree
from conftest import cases
from filtered_search import ROWS
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import make_prepared_run

import beamtree as bt
from beamtree import PAD, TreeModel
from beamtree.beam import walk
from beamtree.data import Instances
from beamtree.diagnose import tune as module
from beamtree.diagnose.tune import max_nodes_scored, narrowing_path, needed_widths, reachable_widths, tune
from beamtree.scorers import FixedScorer
from beamtree.storage.tuned import load_tuned_beam
from beamtree.tree import distinct

EVERY = FixedScorer.every(ROWS)


@given(cases(), st.data(), st.booleans())
def test_the_width_that_an_item_needs_is_the_rank_of_its_ancestor(case, data, chained):
    model = case.model(chained)
    k = data.draw(st.integers(1, 12))
    m = data.draw(st.integers(1, k))
    needed, weights = needed_widths(model, Instances(EVERY, distinct(case.y)), [k] * case.height, m)
    items, _ = bt.retrieve(model, EVERY, beam_size=k, m=m)
    steps = [(step.beam.expand(ROWS, -1).tolist(), step.scores.tolist()) for step in walk(model.query(EVERY), k)]
    expected = []
    for row in range(ROWS):
        for item in (item for item in distinct(case.y)[row].tolist() if item != PAD and item in items[row].tolist()):
            n, ranks = int(case.tree.leaf_of_item(torch.tensor(item))), []
            for beam, scores in reversed(steps):
                score = dict(zip(beam[row], scores[row], strict=True))
                ranks.insert(0, sum(1 for other in beam[row] if other != PAD and score[other] >= score[n]))
                n = oracle.parent(case.b, n)
            expected.append((ranks, 1 / len(case.relevant[row]) / ROWS))
    assert needed.tolist() == [ranks for ranks, _ in expected]
    assert weights.tolist() == pytest.approx([weight for _, weight in expected])


@given(cases(ties=False), st.data())
def test_a_beam_as_wide_as_an_item_needs_keeps_it(case, data):
    """Exactly so where the ranks come from a beam that holds the whole tree."""
    model, m = case.model(), case.tree.num_items
    whole = [max(m, case.b**level) for level in range(1, case.height + 1)]
    needed, _ = needed_widths(model, Instances(EVERY, distinct(case.y)), whole, m)
    place = data.draw(st.integers(0, len(needed) - 1))
    items = [(row, item) for row in range(ROWS) for item in distinct(case.y)[row].tolist() if item != PAD]
    row, item = items[place]
    *_, last = walk(model.query(EVERY), needed[place].tolist())
    assert int(case.tree.leaf_of_item(torch.tensor(item))) in last.beam.expand(ROWS, -1)[row].tolist()


@given(cases(), st.data(), st.booleans())
def test_nodes_are_counted_as_a_search_scores_them(case, data, chained):
    """At most, since of a few nodes of a level more may be empty than of the whole; exactly where none is empty."""
    model = case.model(chained)
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=case.height, max_size=case.height))
    steps = walk(model.query(EVERY), sizes, skip_full_levels=True)
    scored = [int((step.candidates != PAD).sum(1).max()) for step in steps]
    assert sum(scored) <= max_nodes_scored(model, sizes)
    full = TreeModel(bt.Tree(range(case.b**case.height), case.b), FixedScorer(case.logits), chained=chained)
    steps = walk(full.query(EVERY), sizes, skip_full_levels=True)
    assert sum(step.candidates.shape[1] for step in steps) == max_nodes_scored(full, sizes)


@given(cases(ties=False), st.data())
def test_a_beam_without_room_that_nothing_fills_is_the_same_beam(case, data):
    model = case.model()
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=case.height, max_size=case.height))
    held = reachable_widths(model, sizes)
    assert held[-1] == sizes[-1]
    assert all(one <= other for one, other in zip(held, sizes, strict=True))
    both = (bt.retrieve(model, EVERY, beam_size=each, m=1) for each in (sizes, held))
    assert all(torch.equal(one, other) for one, other in zip(*both, strict=True))


@pytest.fixture(scope="module")
def model_and_users():
    """200 users of 256 items: a leaf knows its item, and the nodes above know it the worse the higher they are."""
    generator = torch.Generator().manual_seed(0)
    y = torch.stack([torch.randperm(256, generator=generator)[:5] for _ in range(200)])
    tree = bt.random_tree(256, seed=1)
    below = torch.randn(200, 256, generator=generator).scatter_add_(
        1, tree.leaf_of_item(y) - 255, torch.full((200, 5), 4.0)
    )
    levels = [below]
    while levels[0].shape[1] > 1:
        best = levels[0].unflatten(1, (-1, 2)).amax(2)
        levels.insert(0, best + 0.5 * torch.randn(best.shape, generator=generator))
    return TreeModel(tree, FixedScorer(torch.cat(levels, dim=1))), Instances(FixedScorer.every(200), y)


@pytest.fixture
def counted(monkeypatch):
    """Times that depend on nothing but the nodes a query scores: a millisecond for a hundred."""
    monkeypatch.setattr(
        module,
        "query_milliseconds",
        lambda model, x, beams, m: [max_nodes_scored(model, sizes) / 100 for sizes in beams],
    )


def test_every_beam_of_the_path_scores_fewer_nodes_and_keeps_m(model_and_users):
    model, users = model_and_users
    top = (2, 4, 8, 16, 32, 64, 64, 64)
    path = list(narrowing_path(model, top, 5, *needed_widths(model, users, top, 5)))
    assert len(path) > 5
    assert all(max_nodes_scored(model, fewer) < max_nodes_scored(model, more) for more, fewer in pairwise([top, *path]))
    for beam in path:
        assert beam[-1] == 64
        assert all(width >= min(5, 2 ** (level + 1)) for level, width in enumerate(beam))


@pytest.mark.parametrize("share", [0.9, 0.99, 1.0])
def test_the_share_of_recall_that_is_asked_for_is_kept(model_and_users, counted, share):
    model, users = model_and_users
    found = tune(model, users, recall=share, m=10, widest=64)
    widest = found.tried[0]
    assert found.users == 100
    assert set(widest.beam_size) == {64}
    assert found.chosen.recall >= share * widest.recall
    assert found.share == pytest.approx(found.chosen.recall / widest.recall)
    assert found.chosen.nodes < widest.nodes
    assert found.chosen in found.tried


def test_less_recall_to_keep_is_a_narrower_beam(model_and_users, counted):
    model, users = model_and_users
    nodes = [tune(model, users, recall=share, m=10, widest=64).chosen.nodes for share in (1.0, 0.9, 0.7)]
    assert nodes == sorted(nodes, reverse=True)
    assert nodes[-1] < nodes[0]


@pytest.mark.parametrize("budget", [2.0, 3.0, 4.0])
def test_the_time_that_is_asked_for_is_kept_and_used(model_and_users, counted, budget):
    """No beam before it on the path would do."""
    model, users = model_and_users
    found = tune(model, users, milliseconds=budget, m=10, widest=64)
    assert budget / 2 < found.chosen.milliseconds <= budget
    alike = [trial for trial in found.tried if trial.is_uniform and trial.milliseconds <= budget]
    assert all(found.chosen.high >= trial.low for trial in alike)


def test_the_same_seed_chooses_the_same_beam_and_tells_of_every_beam(model_and_users, counted):
    model, users = model_and_users
    heard = []
    one, again = (tune(model, users, recall=0.95, m=10, widest=64, seed=7, on_beam=heard.append) for _ in range(2))
    assert one == again
    assert {trial.beam_size for trial in one.tried} <= set(heard)
    assert tune(model, users, recall=0.95, m=10, widest=64, users=50).users == 25


def test_times_are_measured_where_nobody_replaces_them(model_and_users):
    model, users = model_and_users
    wide, narrow = module.query_milliseconds(model, users.x[:3], [(64,) * 8, (10,) * 8], 10)
    assert wide > 0
    assert narrow > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "give recall or milliseconds: one of the two"),
        ({"recall": 0.9, "milliseconds": 1.0}, "one of the two"),
        ({"recall": 0.0}, "recall=0: must be a share"),
        ({"recall": 1.5}, "recall=1.5: must be a share"),
        ({"milliseconds": 0.0}, "milliseconds=0: must be above 0"),
        ({"milliseconds": 0.01}, "the narrowest beam takes .* milliseconds: allow more, or ask for a smaller m"),
        ({"recall": 0.9, "users": 1}, "two users are needed"),
    ],
)
def test_what_cannot_be_tuned_is_said(model_and_users, counted, words, message):
    model, users = model_and_users
    with pytest.raises(ValueError, match=message):
        tune(model, users, m=10, widest=64, **words)


# The command


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return make_prepared_run(tmp_path_factory.mktemp("tune"), train=10, val=20, test=10)


def test_the_command_keeps_the_beam_and_others_use_it(run_folder):
    done = beamtree(
        "tune", "run", "--recall", "0.8", "--m", "5", "--widest", "20", "--json", "found.json", folder=run_folder
    )
    kept = json.loads((run_folder / "run" / "tune.json").read_text())
    assert all(kept.pop(key) for key in ("model", "format", "seal"))
    assert kept == json.loads((run_folder / "found.json").read_text())
    assert kept["m"] == 5
    assert kept["users"] == 10
    assert len(kept["beam_size"]) == 4
    assert kept["tried"][0]["beam_size"] == [20] * 4
    assert (run_folder / "run" / "tune.png").exists()
    assert "measuring a beam of 20\n" in done.stderr
    assert "Next: beamtree evaluate run --beam-size tuned --m 5" in done.stdout
    cells = []
    for beam in ("tuned", ",".join(map(str, kept["beam_size"]))):
        beamtree("evaluate", "run", "--beam-size", beam, "--m", "5", "--json", "cells.json", folder=run_folder)
        cells.append(json.loads((run_folder / "cells.json").read_text()))
    assert cells[0] == cells[1]
    beamtree("retrieve", "run", "--history", "item 1", "--m", "5", "--beam-size", "tuned", folder=run_folder)


def test_a_beam_of_another_model_is_refused(tmp_path):
    folder = make_prepared_run(tmp_path, train=4, val=4, test=4)
    words = ("evaluate", "run", "--beam-size", "tuned", "--m", "5")
    done = beamtree(*words, folder=folder, check=False)
    assert (done.returncode, "run has no tuned beam: tune it with" in done.stderr) == (2, True)
    beamtree("tune", "run", "--m", "5", "--widest", "10", folder=folder)
    assert len(load_tuned_beam(folder / "run")) == 4
    model = bt.load_model(folder / "run")
    with torch.no_grad():
        model.scorer.table.weight.add_(1.0)
    bt.save_model(model, folder / "run")
    done = beamtree(*words, folder=folder, check=False)
    assert (done.returncode, "tune.json belongs to another model: tune it with" in done.stderr) == (2, True)
    for text in ("{", "[]", '{"beam_size": [1, "2"]}', '{"beam_size": [0]}'):
        (folder / "run" / "tune.json").write_text(text)
        with pytest.raises(ValueError, match="damaged"):
            load_tuned_beam(folder / "run")


def test_a_users_error_is_one_line(run_folder):
    for words, message in (
        (["--recall", "2"], "--recall 2: must be a share"),
        (["--recall", "1", "--milliseconds", "1"], "one of the two"),
        (["--plot", "data"], "data: the name of a picture must end in .png"),
        (["--widest", "0"], "--widest"),
    ):
        done = beamtree("tune", "run", *words, folder=run_folder, check=False)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert message in done.stderr

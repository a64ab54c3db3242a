"""The beam-loss report: the slow definition beside it, what must always hold, and the command."""

import json
import math
from itertools import pairwise

import numpy as np
import oracle
import pytest
import torch
from command import beamtree
from conftest import cases
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import make_prepared_run

import beamtree as bt
from beamtree import PAD, Tree, TreeModel
from beamtree.data import Instances
from beamtree.diagnose.inspect import CutLoss, Inspection, LevelLoss, Quality, inspect
from beamtree.scorers import DeepScorer, FixedScorer, LinearScorer

USERS = 7


# Against the definition


def slow_user(model, logits, y, k, cuts):
    """One user's numbers, as the docstrings define them: a list per level, a dict per m."""
    tree, first = model.tree, model.first_level
    b, height = tree.arity, tree.height
    slots = [None if item == PAD else item for item in tree.items().tolist()]
    start = oracle.nodes_of(b, height).start
    relevant = {item for item in y if item != PAD}

    def is_real(n):
        return bool(oracle.items_below(slots, b, height, n))

    def level_of(n):
        return 0 if n == 0 else 1 + level_of(oracle.parent(b, n))

    def prob(n):
        p = 1 / (1 + math.exp(-logits[n]))
        above = model.chained and level_of(n) > first
        return p * prob(oracle.parent(b, n)) if above else p

    leaves = [n for n in oracle.nodes_of(b, height) if is_real(n)]
    best = [slots[n - start] for n in sorted(leaves, key=prob, reverse=True)][: cuts[-1]]
    beam = [n for n in oracle.nodes_of(b, first - 1) if is_real(n)]
    alive, levels = relevant, []
    for level in range(first, height + 1):
        candidates = [c for n in beam for c in oracle.children(b, n) if is_real(c)]
        beam = sorted(candidates, key=prob, reverse=True)[:k]
        left = {item for n in beam for item in oracle.items_below(slots, b, height, n)} & relevant
        lost = alive - left
        shares = [len(some) / len(relevant) for some in (left, lost, lost & set(best))]
        levels.append([sum(1 for n in oracle.nodes_of(b, level) if is_real(n)), len(candidates), *shares])
        alive = left
    ranked = [slots[n - start] for n in sorted(beam, key=prob, reverse=True)]
    p = {slots[n - start]: prob(n) for n in leaves}
    searches = []
    for m in cuts:
        found = {}
        for name, items in (("beam", ranked), ("brute_force", best)):
            found[name] = [*oracle.precision_recall_f(items, relevant, m), sum(p[item] for item in items[:m]) / m]
        found["overlap"] = len(set(best[:m]) & set(ranked[:m])) / len(best[:m])
        found["ranked_below"] = len(relevant & set(ranked[m:])) / len(relevant)
        found["regret"] = sum(p[item] for item in best[:m]) / m - sum(p[item] for item in ranked[:m]) / m
        searches.append(found)
    return levels, searches


def mean(values):
    return np.mean(np.array(values, dtype=float), axis=0)


def check_against_the_oracle(model, x, y, k, cuts):
    ours = inspect(model, Instances(x, y), beam_size=k, m=cuts, batch_size=3)
    query = model.query(x)
    whole = [torch.zeros(len(x), 1), *(query.whole_level(h) for h in range(1, model.tree.height + 1))]
    logits = torch.cat(whole, dim=1).tolist()
    users = [slow_user(model, *user, k, cuts) for user in zip(logits, y.tolist(), strict=True)]
    assert ours.users == len(x)
    assert [each.level for each in ours.levels] == list(range(model.first_level, model.tree.height + 1))
    np.testing.assert_allclose([each[1:] for each in ours.levels], mean([levels for levels, _ in users]), atol=1e-6)
    for index, cut in enumerate(ours.cuts):
        found = [searches[index] for _, searches in users]
        assert cut.m == cuts[index]
        for name in ("beam", "brute_force", "overlap", "ranked_below", "regret"):
            np.testing.assert_allclose(getattr(cut, name), mean([each[name] for each in found]), atol=1e-6)
        gaps = [each["brute_force"][1] - each["beam"][1] for each in found]
        assert cut.difference == pytest.approx(np.mean(gaps), abs=1e-6)
        assert cut.error == pytest.approx(np.std(gaps, ddof=1) / math.sqrt(len(gaps)), abs=1e-6)


@given(cases(ties=False), st.data(), st.booleans())
def test_every_number_is_its_definition(case, data, chained):
    k = data.draw(st.integers(2, 12))
    first_level = data.draw(st.integers(1, case.height))
    model = TreeModel(case.tree, FixedScorer(case.logits), chained=chained, first_level=first_level)
    y = torch.cat([case.y, case.y[:, :1]], dim=1)  # a repeat counts once
    check_against_the_oracle(model, FixedScorer.every(len(y)), y, k, (1, k // 2 + 1))


def histories(num_items, generator):
    x = torch.randint(num_items, (USERS, 69), generator=generator)
    x[1:3, 5:] = PAD
    return x


SCORED = {
    "linear": lambda tree, g: (LinearScorer(tree.num_nodes, 4), torch.randn(USERS, 4, generator=g).double()),
    "given": lambda tree, g: (FixedScorer(torch.randn(USERS, tree.num_nodes, generator=g)), FixedScorer.every(USERS)),
    "deep": lambda tree, g: (DeepScorer(tree.num_nodes, scale=1.0), histories(tree.num_items, g)),
}


def make_model(scorer, arity, generator, chained=False, first_level=1):
    """A model of 50 items, with empty slots among and after them, and 7 users with up to 6 relevant items."""
    slots = torch.full((61,), PAD)
    slots[torch.randperm(61, generator=generator)[:50]] = torch.arange(50)
    tree = Tree(slots, arity)
    weights, x = SCORED[scorer](tree, generator)
    y = torch.randint(50, (USERS, 6), generator=generator)
    y[0, 1:], y[1], y[2, 3:] = PAD, 7, PAD
    return TreeModel(tree, weights, chained=chained, first_level=first_level).double(), x, y


@pytest.mark.parametrize("scorer", SCORED)
@pytest.mark.parametrize(
    ("arity", "chained", "first_level"), [(2, False, 1), (2, True, 3), (3, False, 2), (3, True, 1)]
)
def test_every_scorer_is_read_the_same_way(scorer, arity, chained, first_level, generator):
    model, x, y = make_model(scorer, arity, generator, chained, first_level)
    check_against_the_oracle(model, x, y, 9, (1, 4, 9))


# What must hold


@given(cases(), st.integers(1, 12), st.booleans())
def test_every_relevant_item_is_found_or_lost_at_one_place(case, k, chained):
    found = inspect(case.model(chained), Instances(FixedScorer.every(3), case.y), beam_size=k, m=(k,))
    survival = [1.0, *(each.survival for each in found.levels)]
    assert all(above >= below for above, below in pairwise(survival))
    assert survival[-1] == pytest.approx(1 - sum(each.lost for each in found.levels))
    (cut,) = found.cuts
    assert cut.beam.recall + cut.ranked_below == pytest.approx(survival[-1], abs=1e-6)
    avoidable = sum(each.avoidable for each in found.levels)
    assert avoidable <= cut.brute_force.recall + 1e-6
    assert all(0 <= each.avoidable <= each.lost + 1e-6 for each in found.levels)
    assert cut.difference <= avoidable + cut.ranked_below + 1e-6  # brute force's lead is what the beam lost
    assert cut.regret >= -1e-6


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("scorer", SCORED)
def test_a_beam_over_all_leaves_is_brute_force(scorer, chained, generator):
    model, x, y = make_model(scorer, 3, generator, chained)
    found = inspect(model, Instances(x, y), beam_size=81, m=(1, 10, 81))  # 50 items: the last m is short of some
    assert all(each.survival == 1 and each.lost == each.avoidable == 0 for each in found.levels)
    for cut in found.cuts:
        assert cut.overlap == 1
        assert cut.regret == pytest.approx(0, abs=1e-12)
        assert cut.difference == cut.error == 0
    assert found.cuts[-1].beam.recall == 1
    assert found.verdict == 0


def test_a_number_you_can_do_in_your_head():
    """Four leaves; a beam of one goes left and takes item 0, while the best leaf is item 2, on the right."""
    logits = torch.tensor([[0.0, 2.0, 1.0, 0.0, -1.0, 3.0, -2.0]])
    model = TreeModel(Tree(range(4)), FixedScorer(logits))
    y = torch.tensor([[0, 1, 2, 2, PAD]])
    found = inspect(model, Instances(FixedScorer.every(1), y), beam_size=1, m=(1,))
    top, leaves = found.levels
    assert (top.nodes, top.candidates, leaves.nodes, leaves.candidates) == (2, 2, 4, 2)
    assert [top.survival, top.lost, top.avoidable] == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert [leaves.survival, leaves.lost, leaves.avoidable] == pytest.approx([1 / 3, 1 / 3, 0])
    (cut,) = found.cuts
    assert cut.overlap == 0
    assert cut.regret == pytest.approx(1 / (1 + math.exp(-3)) - 1 / 2)


def test_the_size_of_batches_changes_nothing_and_progress_is_told(generator):
    model, x, y = make_model("deep", 2, generator)
    told = []
    one = inspect(model, Instances(x, y), beam_size=8, m=(4, 2), batch_size=3, on_users=told.append)
    other = inspect(model, Instances(x, y), beam_size=8, m=(2, 4))
    assert told == [3, 3, 1]
    for ours, theirs in zip(one.records(), other.records(), strict=True):
        assert ours.pop("value") == pytest.approx(theirs.pop("value"), abs=1e-9)
        assert ours == theirs


def test_only_the_first_users_are_looked_at(generator):
    model, x, y = make_model("linear", 2, generator)
    some = inspect(model, Instances(x, y), beam_size=8, m=(4,), users=3)
    assert some.users == 3
    assert some == inspect(model, Instances(x[:3], y[:3]), beam_size=8, m=(4,))
    many = Instances(x.repeat(200, 1), y.repeat(200, 1))
    assert inspect(model, many, beam_size=8, m=(4,), batch_size=500).users == 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"m": (4, 9)}, "m=9 with beam_size=8"),
        ({"m": (0, 4)}, "m=0: give a whole number of at least 1"),
        ({"m": ()}, "m is empty"),
        ({"users": 0}, "must be at least 1"),
    ],
)
def test_what_cannot_be_inspected_is_said(words, message, generator):
    model, x, y = make_model("linear", 2, generator)
    with pytest.raises(ValueError, match=message):
        inspect(model, Instances(x, y), beam_size=8, **{"m": (4,), **words})


# In words


def make_inspection(beam, brute_force, error=0.0, **followed):
    levels = (LevelLoss(4, 16, 16, 0.9, 0.1, 0.0), LevelLoss(5, 32, 20, 0.6, 0.3, 0.2), LevelLoss(6, 64, 20, 0.5, 0, 0))
    searches = (Quality(0.1, recall, 0.1, 0.1) for recall in (beam, brute_force))
    return Inspection(1000, 10, levels, (CutLoss(10, *searches, 0.5, 0.1, error),), **followed)


def test_advice_depends_on_what_the_beam_loses():
    pruned = make_inspection(0.20, 0.30).advice
    assert "most at level 5 of 6" in pruned
    assert "OTM" in pruned
    assert "widen" in pruned
    assert "rows are noisy" in make_inspection(0.241, 0.229).advice  # amazon's TDM in the prototype
    assert "loses little" in make_inspection(0.453, 0.453).advice  # movielens
    assert "loses little" in make_inspection(0.30, 0.303).advice
    assert "inspect more users" in make_inspection(0.20, 0.30, error=0.06).advice
    assert [make_inspection(*r).verdict for r in ((0.2, 0.3), (0.3, 0.2), (0.3, 0.303), (0.2, 0.3, 0.06))] == [
        1,
        -1,
        0,
        0,
    ]
    assert "Nothing relevant is found" in make_inspection(0.0, 0.0).advice


def test_no_advice_is_given_that_is_followed_already():
    told = {name: make_inspection(*recalls) for name, recalls in SEARCHES.items()}
    assert "train with OTM, or widen the beam" in told["loses much"].advice
    assert all("share rows" in told[name].advice or "sharing rows" in told[name].advice for name in ("noisy", "little"))
    on_beams = make_inspection(*SEARCHES["loses much"], trained_on_beams=True)
    assert on_beams.advice.endswith(", most at level 5 of 6: widen the beam.")
    for name in ("noisy", "little"):
        shared = make_inspection(*SEARCHES[name], shared_rows=True)
        assert shared.verdict == told[name].verdict
        assert "rows with ancestors" not in shared.advice
        assert "regularise" in shared.advice or "longer training or more data" in shared.advice


SEARCHES = {"loses much": (0.20, 0.30), "noisy": (0.3, 0.2), "little": (0.3, 0.303)}  # recall of the beam, of all


@pytest.mark.parametrize("recalls", [(0.0, 0.0), *SEARCHES.values()])
def test_every_verdict_shows_the_difference_with_its_interval(recalls):
    beam, best = recalls
    told = make_inspection(beam, best, error=0.01).advice
    assert f"{abs(best - beam) * 100:.2f} ± 1.96 points apart" in told


def test_a_difference_inside_its_interval_is_no_verdict():
    assert make_inspection(0.20, 0.2197, error=0.01).verdict == 1  # 1.97 ± 1.96 points
    assert make_inspection(0.20, 0.2195, error=0.01).verdict == 0
    assert make_inspection(0.2195, 0.20, error=0.01).verdict == 0
    assert make_inspection(0.2197, 0.20, error=0.01).verdict == -1


def test_the_scorer_says_whether_rows_are_shared(generator):
    for share in (True, False):
        model, x, y = make_model("deep", 2, generator)
        model.scorer = DeepScorer(model.tree.num_nodes, scale=1.0, share=share).double()
        assert inspect(model, Instances(x, y), beam_size=8, m=(4,), users=2).shared_rows is share
    model, x, y = make_model("linear", 2, generator)
    found = inspect(model, Instances(x, y), beam_size=8, m=(4,), users=2, trained_on_beams=True)
    assert (found.trained_on_beams, found.shared_rows) == (True, False)


def test_a_report_prints_as_tables_and_its_records_are_flat(generator):
    model, x, y = make_model("given", 3, generator)
    found = inspect(model, Instances(x, y), beam_size=6, m=(2, 5))
    lines = str(found).splitlines()
    assert len(lines) == 3 + model.tree.height + 2 + 1
    assert lines[-1] == found.advice
    records = found.records()
    names = [tuple(value for key, value in record.items() if key != "value") for record in records]
    assert len(set(names)) == len(names) == 5 * model.tree.height + 2 * (2 * 4 + 4) + 2
    assert all(isinstance(record["value"], int | float) and "metric" in record for record in records)
    assert {record["table"] for record in records} == {"levels", "search", "misses"}


# The command


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run that was trained on 18 users, with 12 to test it."""
    folder = make_prepared_run(tmp_path_factory.mktemp("inspect"), train=18, val=0, test=12)
    (folder / "folder.png").mkdir()
    return folder


def test_the_command_prints_saves_and_draws(run_folder):
    words = ("run", "--beam-size", "10", "--m", "5,10", "--json", "out/cells.json")
    done = beamtree("inspect", *words, folder=run_folder)
    assert "12 of 12 users" in done.stderr
    assert "lost here" in done.stdout
    assert "Next: beamtree inspect run --beam-size" in done.stdout or "Next: beamtree evaluate run" in done.stdout
    assert (run_folder / "run" / "inspect.png").stat().st_size > 10_000
    expected = inspect(
        bt.load_model(run_folder / "run"), bt.load_data(run_folder / "data").test, beam_size=10, m=(5, 10)
    )
    assert expected.advice in done.stdout
    records = json.loads((run_folder / "out" / "cells.json").read_text())
    assert records == expected.records()
    assert [r["level"] for r in records if r["metric"] == "survival"] == [3, 4, 5, 6]


def test_the_command_takes_other_users_and_another_picture(run_folder):
    words = ("run", "--data", "data", "--split", "train", "--users", "4", "--m", "10", "--plot", "seen.png")
    done = beamtree("inspect", *words, folder=run_folder)
    assert "4 of 4 users" in done.stderr
    assert "100.00" in done.stdout  # a beam of 400 holds all 60 items
    assert "Next: beamtree inspect run --beam-size 200" in done.stdout  # so half of it may do
    assert (run_folder / "seen.png").exists()


def test_the_command_takes_one_width_per_level(run_folder):
    words = ("--beam-size", "8,16,32,40", "--m", "10", "--json", "cells.json")
    done = beamtree("inspect", "run", *words, folder=run_folder)
    assert "k = 8,16,32,40" in " ".join(done.stdout.split())
    assert "--beam-size 4,8,16,20" in done.stdout
    found = json.loads((run_folder / "cells.json").read_text())
    assert [r["value"] for r in found if r["metric"] == "candidates"] == [8, 16, 32, 60]  # all: the tree is small
    beamtree("evaluate", "run", *words, folder=run_folder)
    recall = [r["value"] for r in found if r.get("search") == "beam" and r["metric"] == "recall"]
    cells = json.loads((run_folder / "cells.json").read_text())
    assert [r["value"] for r in cells if r["metric"] == "recall"] == pytest.approx(recall)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--beam-size", "10"], "--m 200 with --beam-size 10: the beam holds fewer items than that"),
        (["run", "--beam-size", "9,9,9,9"], "--m 200 with --beam-size 9,9,9,9: the beam holds fewer items than that"),
        (["run", "--beam-size", "9,20", "--m", "9"], "has 2 widths and levels 3 to 6 are searched: give 4, or one"),
        (["run", "--beam-size", "0"], "--beam-size '0': give a whole number, or one for each searched level"),
        (["run", "--beam-size", "9,,9"], "--beam-size '9,,9': give a whole number"),
        (["run", "--m", "many"], "give whole numbers separated by commas"),
        (["run", "--split", "val"], "data has no val users: choose another --split, or prepare with --val-users"),
        (["run", "--split", "all"], "choose test, val or train"),
        (["run", "--users", "0"], "--users"),
        (["run", "--plot", "folder.png"], "cannot be written: it is a folder"),
        (["run", "--plot", "data"], "data: the name of a picture must end in .png"),
        (["run", "--json", "/proc/no/cells.json"], "/proc/no"),
        (["run", "--device", "tpu"], "is not here"),
        (["data"], "data is not a run"),
        (["run", "--data", "run"], "holds no prepared data"),
    ],
)
def test_a_users_error_is_one_line(run_folder, words, message):
    done = beamtree("inspect", *words, folder=run_folder, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("beamtree: ")
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr

"""An artifact finds what the library finds, and torch alone opens it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sample_scorers
import torch
from command import WITHOUT, beamtree
from sample_runs import make_prepared_run
from torch.nn.functional import pad

import beamtree as bt
from beamtree import PAD, TreeModel
from beamtree.cli import export as export_command
from beamtree.data import Ids
from beamtree.data.views import HISTORY
from beamtree.scorers import SCORERS, FixedScorer, SequenceScorer, SubtreeMaxScorer, SumScorer
from beamtree.storage.exported import SearchModule, export_program, write_artifact

EXAMPLE = Path(__file__).parent.parent / "examples" / "load_artifact.py"


def make_varied_sum(tree):
    """A memory that counts differently from level to level, repeats that do not, and a calibration."""
    parts = {
        "memory": sample_scorers.make_memory(tree)[0],
        "repeats": sample_scorers.make_repeats(tree)[0],
        "more": sample_scorers.make_repeats(tree)[0],
        "deep": sample_scorers.make_deep(tree)[0],
    }
    found = SumScorer(parts, tree.height, "deep").set_weights(repeats=0.3, more=-0.2)
    found.weights[:, 0] = torch.linspace(0.1, 1, tree.height + 1)
    found.calibration.copy_(torch.tensor([0.5, -2.0]))
    return found, sample_scorers.histories(tree.num_items)


KINDS = [
    sample_scorers.make_linear,
    sample_scorers.make_deep,
    sample_scorers.make_deep_without_sharing,
    sample_scorers.make_memory,
    sample_scorers.make_repeats,
    sample_scorers.make_factors,
    sample_scorers.make_sequence,
    sample_scorers.make_context,
    sample_scorers.make_sum,
    sample_scorers.make_sum_with_context,
    make_varied_sum,
]
whole = pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)


def make_model(make, items=50, arity=2, **how):
    """A model with random weights, and as many users as its scorer was made for."""
    torch.manual_seed(0)
    tree = bt.random_tree(items, arity, seed=1)
    scorer, x = make(tree)
    x = x if x.is_floating_point() else pad(x, (0, max(0, HISTORY - x.shape[1])), value=PAD)
    return TreeModel(tree, scorer, **how).eval(), x


def check_same(search, model, x, beam_size, m):
    """The same scores in the same order, and the same items but where two score alike."""
    items, scores = search(*x.split([HISTORY, 2], dim=1)) if model.scorer.context_values else search(x)
    best, log_p = bt.retrieve(model, x, beam_size=beam_size, m=m)
    torch.testing.assert_close(scores, log_p.exp(), rtol=1e-4, atol=1e-6)
    assert torch.equal(items == PAD, best == PAD)
    for row in range(len(x)):
        both = [dict(zip(found[row].tolist(), scores[row].tolist(), strict=True)) for found in (items, best)]
        last = min(scores[row].tolist())
        for one, other in (both, both[::-1]):
            assert all(item in other or score == pytest.approx(last, rel=1e-4) for item, score in one.items())


def test_every_scorer_of_the_package_can_be_exported():
    assert all(scorer.exportable for scorer in SCORERS)


@whole
@pytest.mark.parametrize(
    ("items", "arity", "how", "beam_size", "m"),
    [
        (50, 2, {"first_level": 2}, 12, 8),
        (50, 3, {"chained": True}, 12, 12),
        (81, 3, {}, [3, 9, 4, 20], 4),
        (64, 2, {"first_level": 3}, [8, 2, 30, 64], 2),
        (5, 2, {}, 20, 9),
    ],
    ids=["some empty", "chained", "one width per level", "a level kept whole below others", "fewer than m"],
)
def test_the_search_in_plain_tensors_finds_what_the_library_finds(make, items, arity, how, beam_size, m):
    model, x = make_model(make, items, arity, **how)
    with torch.no_grad():
        search = SearchModule(model, beam_size, m)
        check_same(search, model, x, beam_size, m)
        if not x.is_floating_point():
            x[0] = PAD  # of whom nothing is known
            x[1, 1:] = PAD
            check_same(search, model, x, beam_size, m)


@pytest.mark.extended
@whole
def test_the_exported_program_finds_what_the_library_finds_for_any_number_of_users(make):
    model, x = make_model(make, first_level=3)
    program = export_program(model, beam_size=10, m=6).module()
    for users in (len(x), 1, 2):
        check_same(program, model, x[:users], 10, 6)


@pytest.mark.extended
@pytest.mark.parametrize("make", [sample_scorers.make_sum, sample_scorers.make_sum_with_context])
def test_an_artifact_is_opened_and_queried_without_the_package(make, tmp_path):
    model, _ = make_model(make, first_level=2)
    model.ids = Ids([f"item {number}" for number in range(50)])
    description = write_artifact(
        model, tmp_path / "model.pt2", beam_size=[10, 10, 20, 20, 20], m=7, about={"run": "mine"}
    )
    assert description["beam_size"] == [10, 10, 20, 20, 20]
    words = ["load_artifact.py", str(tmp_path / "model.pt2"), "item 3", "of another shop", "item 41", "item 3"]
    code = WITHOUT.format(names=["beamtree", "polars"]) + (
        f"import runpy; sys.argv = {words!r}; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    x = torch.full((1, HISTORY), PAD)
    x[0, :3] = torch.tensor([3, 41, 3])
    items, log_p = bt.retrieve(model, x, beam_size=[10, 10, 20, 20, 20], m=7)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [name for name, _ in rows] == [f"item {item}" for item in items[0].tolist()]
    assert [float(score) for _, score in rows] == pytest.approx(log_p[0].exp().tolist(), rel=1e-4)


@pytest.mark.extended
def test_the_values_of_contexts_are_in_the_description(tmp_path):
    model, x = make_model(sample_scorers.make_sum_with_context)
    write_artifact(model, tmp_path / "model.pt2", beam_size=20, m=6)
    files = {"beamtree.json": ""}
    search = torch.export.load(tmp_path / "model.pt2", extra_files=files).module()
    columns = json.loads(files["beamtree.json"])["context"]
    assert columns == model.scorer.part("context").values
    pairs = [(column, value) for column, values in columns.items() for value in values]
    number_of = {pair: number for number, pair in enumerate(pairs)}
    row = [number_of["country", "FR"], PAD]  # the hour is not known
    _, scores = search(x[:1, :HISTORY], torch.tensor([row]))
    _, log_p = bt.retrieve(model, torch.cat([x[:1, :HISTORY], torch.tensor([row])], dim=1), beam_size=20, m=6)
    torch.testing.assert_close(scores, log_p.exp(), rtol=1e-4, atol=1e-6)
    _, without = search(x[:1, :HISTORY], torch.tensor([[PAD, PAD]]))
    assert not torch.allclose(scores, without)


def test_the_loader_has_twenty_lines_and_needs_torch_alone():
    code = EXAMPLE.read_text().partition('"""\n\n')[2]
    lines = [line for line in code.splitlines() if line]
    assert len(lines) <= 20
    assert "beamtree" not in code.replace("beamtree.json", "")


class LastItems(SubtreeMaxScorer):
    """A scorer from outside: the newest item and the one after it."""

    def entries(self, x):
        return torch.cat([x[:, :1], (x[:, :1] + 1) % 50], dim=1), torch.tensor([[1.0, 0.5]]).expand(x.shape[0], 2)

    def settings(self):
        return {}


def test_a_scorer_from_outside_can_take_part():
    def make(tree):
        scorer, x = sample_scorers.make_sum(tree)
        return scorer.with_part("last", LastItems(), 0.7), x

    model, x = make_model(make, first_level=3)
    with torch.no_grad():
        check_same(SearchModule(model, 20, 6), model, x, 20, 6)
    check_same(export_program(model, beam_size=20, m=6).module(), model, x[:2], 20, 6)


def test_a_scorer_that_does_not_say_that_it_can_is_refused():
    model = TreeModel(bt.Tree(range(4)), FixedScorer(torch.zeros(1, 7)))
    with pytest.raises(ValueError, match="FixedScorer cannot be exported"):
        export_program(model, beam_size=2, m=1)


@pytest.mark.parametrize(
    ("sizes", "read"), [({}, None), ({"length": 200}, "200 events"), ({"clock": True}, "69 events and their times")]
)
def test_the_command_says_what_the_sequence_part_does_not_get(sizes, read, tmp_path, monkeypatch):
    folder = make_prepared_run(tmp_path, train=4, val=4, test=4)
    tree = bt.random_tree(60, seed=1)
    parts = {"sequence": SequenceScorer(tree.num_nodes, dim=32, **sizes), "deep": bt.DeepScorer(tree.num_nodes)}
    model = TreeModel(tree, SumScorer(parts, tree.height, "deep"), ids=Ids(folder / "data" / "items.txt"))
    monkeypatch.setattr(export_command, "open_model", lambda *_: model)
    monkeypatch.setattr(export_command, "write_artifact", lambda _, path, **how: path.write_text("") and {})
    done = beamtree("export", "run", "--out", "model.pt2", folder=folder)
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    message = "the exported search reads the newest 69 events and no times; the sequence part of this run reads"
    assert notes == ([] if read is None else [f"note: {message} {read}"])


@pytest.mark.extended
def test_the_command_writes_what_retrieve_answers(tmp_path):
    folder = make_prepared_run(tmp_path, train=4, val=4, test=4)
    done = beamtree("export", "run", "--out", "model.pt2", "--beam-size", "20", "--m", "5", folder=folder)
    assert "Saved model.pt2" in done.stdout
    files = {"items.txt": "", "beamtree.json": ""}
    search = torch.export.load(folder / "model.pt2", extra_files=files).module()
    about = json.loads(files["beamtree.json"])
    assert (about["m"], about["beam_size"], about["num_items"], about["run"]) == (5, 20, 60, "run")
    assert files["items.txt"].split("\n")[:-1] == [f"item {number}" for number in range(60)]
    x = torch.full((1, HISTORY), PAD)
    x[0, :2] = torch.tensor([8, 7])
    beamtree(
        "retrieve", "run", "--history", '["item 7", "item 8"]', "--beam-size", "20", "--m", "5", "--json", "found.json",
        folder=folder,
    )  # fmt: skip
    found = json.loads((folder / "found.json").read_text())
    items, scores = search(x)
    assert [f"item {item}" for item in items[0].tolist()] == [row["item"] for row in found]
    assert scores[0].tolist() == pytest.approx([row["score"] for row in found], rel=1e-4)
    for words, message in (
        (["--out", "model.pt"], "model.pt: end the name of an artifact in .pt2"),
        (["--out", "m.pt2", "--m", "30", "--beam-size", "20"], "--m 30 with --beam-size 20: the beam holds fewer"),
        (["--out", "m.pt2", "--beam-size", "tuned"], "run has no tuned beam"),
        (["--out", "/proc/no/m.pt2"], "/proc/no"),
    ):
        done = beamtree("export", "run", *words, folder=folder, check=False)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert not (folder / "m.pt2").exists()

"""A run killed at any moment resumes from the last good checkpoint and ends with the same weights."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

import beamtree as bt
from beamtree import methods
from beamtree.data import Ids, Instances
from beamtree.scorers import FixedScorer, RepeatScorer
from beamtree.storage.settings import SETTINGS, holds_model
from beamtree.train import Checkpoints, Schedule, constant, steps_done
from stress.checksums import update_checksums

EPOCHS = 4
OTM_MIXED = bt.otm_mixed(4, 6)


def setting(tree_seed=0):
    data = bt.gaussian(40, 4, -1.0, train=200, test=10, seed=1)
    tree = bt.random_tree(40, seed=tree_seed)
    return data, bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, 4))


def train(folder, model=None, data=None, *, method=OTM_MIXED, save_every=3, resume=True, lr=1e-2, **changes):
    if model is None:
        data, model = setting()
    options = {"epochs": EPOCHS, "batch_size": 20, "seed": 7, "schedule": Schedule(lr, constant), **changes}
    checkpoints = Checkpoints(folder, every=save_every, seconds=None, resume=resume)
    bt.fit(model, data.train, method, checkpoints=checkpoints, **options)
    return model


def weights(model):
    return model.scorer.table.weight.detach()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return weights(train(tmp_path_factory.mktemp("unbroken")))


def test_a_saved_model_comes_back_whole(tmp_path):
    for chained, admit_empty in ((False, False), (True, True)):
        tree = bt.random_tree(37, arity=3, seed=5, admit_empty=admit_empty)
        model = bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, 4, scale=0.5), chained=chained)
        bt.save_model(model, tmp_path / "model")
        again = bt.load_model(tmp_path / "model")
        assert again.tree.fingerprint() == tree.fingerprint()
        assert (again.chained, again.tree.admit_empty) == (chained, admit_empty)
        x = torch.randn(6, 4)
        for ours, theirs in zip(bt.retrieve(model, x, m=5), bt.retrieve(again, x, m=5), strict=True):
            assert torch.equal(ours, theirs)
        assert not list((tmp_path / "model").glob("*.new"))


def test_a_run_stopped_in_an_epoch_ends_like_one_that_was_not(tmp_path, unbroken):
    class Stopped(Exception):  # noqa: N818
        pass

    def stop_at(step):
        def on_step(done, total, loss):
            if done == step:
                raise Stopped

        return on_step

    folder = tmp_path / "broken"
    for step in (2, 5, 13, 14, 31):
        with pytest.raises(Stopped):
            train(folder, on_step=stop_at(step))
    assert torch.equal(weights(train(folder)), unbroken)
    assert torch.equal(weights(bt.load_model(folder)), unbroken)


def test_a_run_can_be_made_longer(tmp_path):
    train(tmp_path / "long", epochs=2)
    longer = train(tmp_path / "long", epochs=4)
    assert torch.equal(weights(longer), weights(train(tmp_path / "whole", epochs=4)))


@pytest.mark.parametrize("moment", ["save_file", "os.replace", "fsync", "unlink"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_save_cut_short_anywhere_leaves_the_old_or_the_new_one(tmp_path, monkeypatch, unbroken, moment, call):
    folder = tmp_path / "run"
    train(folder, epochs=2)
    old = weights(bt.load_model(folder))
    owner, name = {
        "save_file": (safetensors.torch, "save_file"),
        "os.replace": (os, "replace"),
        "fsync": (os, "fsync"),
        "unlink": (Path, "unlink"),
    }[moment]
    real, calls = getattr(owner, name), 0

    def dies(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == call:
            if moment == "save_file":
                Path(args[1]).write_bytes(b"half a file")
            raise OSError("No space left on device")
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dies)
        with pytest.raises(OSError, match="No space left"):
            train(folder)
    found = weights(bt.load_model(folder))
    assert found.shape == old.shape
    if moment == "save_file":
        assert torch.equal(found, old)
    assert torch.equal(weights(train(folder)), unbroken)
    assert len(list(folder.glob("*.safetensors"))) == 3  # nothing left lying about


SCRIPT = """
import sys, time
sys.path.insert(0, sys.argv[2])
import test_checkpoint

def on_step(done, total, loss):
    print(done, flush=True)
    time.sleep(0.02)

test_checkpoint.train(sys.argv[1], save_every=1, on_step=on_step)
"""


@pytest.mark.extended
def test_a_killed_process_resumes_to_the_same_weights(tmp_path, unbroken):
    folder = tmp_path / "killed"
    kills = 0
    for steps_to_live in (1, 6, 2, 9):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(steps_to_live):
            line = process.stdout.readline()
        time.sleep(0.005 * steps_to_live)  # somewhere inside a step or a save
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        kills += 1
        assert int(line) > 0
        settings = json.loads((folder / SETTINGS).read_text())
        assert settings["progress"]["step"] >= int(line)
    assert kills == 4
    assert torch.equal(weights(train(folder, save_every=1)), unbroken)


def deep_model(share):
    torch.manual_seed(0)
    tree = bt.random_tree(60, seed=3)
    return bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, scale=1.0, share=share), first_level=2)


@pytest.mark.parametrize("share", [True, False])
def test_a_loaded_deep_model_answers_and_learns_as_the_one_that_was_saved(tmp_path, share):
    model = deep_model(share)
    x, y = torch.randint(0, 60, (12, 69)), torch.randint(0, 60, (12, 3))
    bt.save_model(model, tmp_path)
    again = bt.load_model(tmp_path)
    assert not any(weight.is_meta for weight in again.state_dict().values())
    for ours, theirs in zip(bt.retrieve(model, x, m=9), bt.retrieve(again, x, m=9), strict=True):
        assert torch.equal(ours, theirs)
    bt.save_model(again, tmp_path)  # over the files that it reads from
    for one in (model, again):
        bt.fit(one, Instances(x, y), bt.otm(4), epochs=2, batch_size=4)
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(bt.retrieve(model, x, m=9), bt.retrieve(again, x, m=9), strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(weights(bt.load_model(tmp_path)), weights(again))  # what was learned stays in memory


def test_a_finished_model_comes_with_the_vectors_that_a_search_reads(tmp_path):
    model = deep_model(share=True)
    bt.save_model(model, tmp_path)
    table = bt.load_model(tmp_path).scorer.table
    with torch.no_grad():
        assert torch.equal(table._cached[2], model.scorer.table.vectors(model.tree))
    (search,) = tmp_path.glob("search*")
    update_checksums(tmp_path, lambda settings: settings["files"].pop("search"))  # as a checkpoint of training has none
    search.unlink()
    x = torch.randint(0, 60, (3, 69))
    for ours, theirs in zip(bt.retrieve(model, x, m=9), bt.retrieve(bt.load_model(tmp_path), x, m=9), strict=True):
        assert torch.equal(ours, theirs)


# Bad input


def test_a_folder_with_a_checkpoint_is_not_overwritten_by_accident(tmp_path):
    train(tmp_path / "run", epochs=1)
    with pytest.raises(ValueError, match="holds a checkpoint: resume it"):
        train(tmp_path / "run", resume=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.5}, r"was trained with lr=0.01, not 0.5"),
        ({"seed": 8}, r"was trained with seed=7, not 8"),
        ({"method": bt.otm(4)}, r"was trained with method=otm-mixed, not otm"),
        ({"method": bt.otm_mixed(4, 7)}, r"candidates=beam_and_leaves\(beam_size=4, extra=6\), not .*extra=7\)"),
        ({"method": replace(OTM_MIXED, labels=methods.every_positive)}, r"labels=best_child, not every_positive"),
        ({"schedule": Schedule(1e-2)}, r"was trained with schedule=constant, not cosine"),
        ({"schedule": Schedule(1e-2, constant, warm_up=bt.tdm(5))}, r"was trained with steps=any, not 40"),
        ({"batch_size": 10}, r"was trained with batch_size=20, not 10"),
    ],
)
def test_a_run_resumes_only_as_it_began(tmp_path, changes, message):
    train(tmp_path / "run", epochs=1)
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "run", **changes)


def test_a_checkpoint_from_another_tree_is_refused(tmp_path, unbroken):
    train(tmp_path / "run", epochs=1)
    data, model = setting(tree_seed=9)
    before = weights(model).clone()
    with pytest.raises(ValueError, match="was trained on another tree"):
        train(tmp_path / "run", model, data)
    assert torch.equal(weights(model), before)
    assert torch.equal(weights(train(tmp_path / "run")), unbroken)  # nothing saved was lost


@pytest.mark.parametrize("part", ["settings.json", "tree", "weights", "optimizer"])
def test_a_checkpoint_cut_in_half_is_one_clear_line(tmp_path, part):
    folder = tmp_path / "run"
    train(folder, epochs=1)
    (path,) = folder.glob(f"{part}*")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    others = {p.name: p.read_bytes() for p in folder.iterdir() if p != path}
    with pytest.raises(ValueError, match="is damaged") as caught:
        train(folder)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)
    assert others == {p.name: p.read_bytes() for p in folder.iterdir() if p != path}


def test_missing_parts_are_named(tmp_path):
    with pytest.raises(ValueError, match="holds no model"):
        bt.load_model(tmp_path)
    data, model = setting()
    bt.save_model(model, tmp_path / "model")
    with pytest.raises(ValueError, match="without its training"):
        train(tmp_path / "model", model, data)
    (weight,) = (tmp_path / "model").glob("weights*")
    weight.unlink()
    with pytest.raises(ValueError, match="is missing"):
        bt.load_model(tmp_path / "model")


def test_a_scorer_without_weights_is_saved_too(tmp_path):
    model = bt.TreeModel(bt.random_tree(20, 2, seed=0), RepeatScorer())
    bt.save_model(model, tmp_path)
    x = torch.tensor([[3, 4, -1], [-1, -1, -1]])
    again = bt.load_model(tmp_path)
    assert torch.equal(bt.retrieve(again, x, beam_size=5, m=3)[0], bt.retrieve(model, x, beam_size=5, m=3)[0])


def test_saving_leaves_other_peoples_files_alone(tmp_path):
    _, model = setting()
    (tmp_path / "another.safetensors").write_bytes(b"precious")
    bt.save_model(model, tmp_path)
    bt.save_model(model, tmp_path)
    assert (tmp_path / "another.safetensors").read_bytes() == b"precious"
    bt.load_model(tmp_path)
    for text in ('{"format": 99, "files": {}}', "null", "[]", '{"format": 2}', '{"format": 1, "files": {}}', "{"):
        (tmp_path / SETTINGS).write_text(text)
        for attempt in (
            lambda: bt.save_model(model, tmp_path),
            lambda: bt.load_model(tmp_path),
            lambda: train(tmp_path),
        ):
            with pytest.raises(ValueError, match=r"damaged|not have format") as caught:
                attempt()
            assert "\n" not in str(caught.value)
        assert (tmp_path / SETTINGS).read_text() == text


def test_a_model_with_another_models_tree_is_refused(tmp_path):
    for name, seed in (("a", 0), ("b", 9)):
        bt.save_model(setting(tree_seed=seed)[1], tmp_path / name)
    (tmp_path / "b" / "tree-0.safetensors").write_bytes((tmp_path / "a" / "tree-0.safetensors").read_bytes())
    with pytest.raises(ValueError, match="its checksum does not match"):
        bt.load_model(tmp_path / "b")
    update_checksums(tmp_path / "b")
    with pytest.raises(ValueError, match="the tree of another model"):
        bt.load_model(tmp_path / "b")


def test_a_double_model_comes_back_double(tmp_path):
    _, model = setting()
    bt.save_model(model.double(), tmp_path)
    assert weights(bt.load_model(tmp_path)).dtype == torch.float64


def test_other_data_or_empty_nodes_let_in_are_another_run(tmp_path):
    train(tmp_path / "run", epochs=1)
    data, model = setting()
    other = Instances(data.train.x.flip(0), data.train.y)
    with pytest.raises(ValueError, match="was trained with data="):
        train(tmp_path / "run", model, replace(data, train=other))
    tree = bt.Tree(model.tree.items(), admit_empty=True)
    with pytest.raises(ValueError, match="was trained on another tree"):
        train(tmp_path / "run", bt.TreeModel(tree, model.scorer), data)


def test_a_run_is_not_made_shorter(tmp_path):
    train(tmp_path / "run", epochs=2)
    with pytest.raises(ValueError, match="has 20 steps behind it, more than the 10"):
        train(tmp_path / "run", epochs=1)


def test_a_refused_run_leaves_the_model_as_it_was(tmp_path):
    train(tmp_path / "run", epochs=1)
    data, model = setting()
    before = weights(model).clone()
    with pytest.raises(ValueError, match="was trained with method"):
        train(tmp_path / "run", model, data, method=bt.plt())
    assert not model.chained
    assert torch.equal(weights(model), before)


def test_what_cannot_be_saved_is_said_before_the_first_step(tmp_path):
    data, model = setting()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        train(tmp_path / "file", model, data, on_step=lambda *_: pytest.fail("trained"))


class OwnScorer(bt.LinearScorer):
    """One from outside the package."""


def test_a_scorer_of_your_own_is_saved_and_comes_back_where_its_class_is_given(tmp_path):
    tree = bt.random_tree(40)
    model = bt.TreeModel(tree, OwnScorer(tree.num_nodes, 4))
    bt.save_model(model, tmp_path)
    again = bt.load_model(tmp_path, scorers=[OwnScorer])
    assert type(again.scorer) is OwnScorer
    assert torch.equal(weights(again), weights(model))
    for others in ([], [FixedScorer]):  # no name in a file decides which code is run
        with pytest.raises(ValueError, match=r"holds a OwnScorer, .* pass its class, scorers=\[OwnScorer\]"):
            bt.load_model(tmp_path, scorers=others)


def test_a_model_keeps_the_ids_of_its_items_and_how_often_each_was_chosen(tmp_path):
    data, model = setting()
    names = [f"item-{number}" for number in range(40)]
    bt.fit(model, replace(data.train, ids=Ids(names)), bt.otm(4), steps=2, batch_size=20)
    chosen = data.train.y.flatten().tolist()
    for turn in range(2):  # and saved over the very files that it is read from
        assert model.ids.names == names, turn
        assert model.popularity.tolist() == [chosen.count(item) for item in range(40)]
        bt.save_model(model, tmp_path)
        model = bt.load_model(tmp_path)
    (file,) = tmp_path.glob("items-*.txt")
    assert file.read_text().splitlines() == names
    bt.save_model(setting()[1], tmp_path)  # one without ids
    assert bt.load_model(tmp_path).ids is None
    assert not list(tmp_path.glob("items*"))


def test_a_checkpoint_is_written_when_its_seconds_are_over(tmp_path):
    data, model = setting()
    saved = []
    bt.fit(
        model,
        data.train,
        bt.otm(4),
        steps=6,
        batch_size=20,
        checkpoints=Checkpoints(tmp_path, every=1000, seconds=0.0),
        on_step=lambda done, total, loss: saved.append(steps_done(tmp_path) if holds_model(tmp_path) else 0),
    )
    assert saved[0] == 1  # the first is written at once, others as soon as they cost little
    assert saved[-1] == 6

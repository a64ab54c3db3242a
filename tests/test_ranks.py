"""Training over ranks: whatever their number, the same model."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command import beamtree
from ranks import environment, errors_of, farthest, free_port, run_ranks, whole

import beamtree as bt
from beamtree.data.instances import Instances
from beamtree.distributed import partition as shards
from beamtree.distributed.sharding import is_sharded
from beamtree.distributed.training import join
from beamtree.methods import sized
from beamtree.scorers import DeepScorer
from beamtree.train import Checkpoints, Schedule, Validation, constant
from beamtree.train.backend import current_backend
from beamtree.train.optimizer import OPTIMIZERS
from beamtree.tree import PAD

ITEMS = 90
CASES = {
    # name: method, optimizer, arity, batch size, shared rows
    "otm, lazy": ("otm", "lazy", 2, 7, True),
    "otm, dense": ("otm", "adam", 3, 8, False),
    "plt, lazy": ("plt", "lazy", 3, 6, False),
    "plt, dense": ("plt", "adam", 2, 6, True),
    "tdm, lazy": ("tdm", "lazy", 2, 7, True),
    "tdm, dense": ("tdm-positives", "adam", 3, 5, True),
    "mixed": ("otm-mixed", "lazy", 3, 5, False),
    "hsm": ("hsm", "lazy", 2, 3, True),
    "stochastic": ("otm-stochastic", "lazy", 2, 5, False),
    "fewer users than ranks": ("otm", "lazy", 2, 2, True),
    "one user": ("tdm", "adam", 2, 1, True),
    "margin": ("otm-margin", "lazy", 2, 7, True),
    "level weights": ("otm-level-weights", "adam", 3, 8, False),
    "dtr": ("dtr", "lazy", 2, 5, True),
}


def histories(users=23, seed=0):
    """Instances whose last batch of an epoch is short."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(ITEMS, (users, 12), generator=generator)
    x[torch.rand(x.shape, generator=generator) < 0.2] = PAD
    return Instances(x, torch.randint(ITEMS, (users, 4), generator=generator))


def model_for(name, dtype=torch.float64):
    _, _, arity, _, share = CASES[name]
    tree = bt.random_tree(ITEMS, arity, seed=1)
    scorer = DeepScorer(tree.num_nodes, 6, scale=0.3, share=share, seed=2).to(dtype)
    return bt.TreeModel(tree, scorer, first_level=2)


def fitted(name, steps, dtype=torch.float64, **more):
    method, optimizer, _, batch_size, _ = CASES[name]
    model = model_for(name, dtype)
    bt.fit(
        model,
        histories(),
        sized(method, 4, 6),
        steps=steps,
        batch_size=batch_size,
        optimizer=OPTIMIZERS[optimizer],
        schedule=Schedule(0.01, constant),
        **more,
    )
    return model


def train_all(names, steps, top, dtype=torch.float64):
    shards.TOP = top
    join()
    return {name: whole(fitted(name, steps, dtype)) for name in names}


def check_same(size, names, steps, top):
    """In double precision: a beam that chooses another node by a rounding error would be another training."""
    found = run_ranks(size, train_all, names, steps, top)
    for name in names:
        alone = whole(fitted(name, steps))
        assert all(farthest(alone, ranks[name]) < 1e-6 for ranks in found), name


FEW = ["otm, lazy", "plt, dense", "stochastic"]


def test_two_ranks_train_the_same_model_as_one():
    check_same(2, FEW, 12, top=5)


@pytest.mark.extended
def test_two_ranks_train_the_same_model_as_one_with_other_methods():
    check_same(2, [name for name in CASES if name not in FEW], 12, top=5)


@pytest.mark.extended
def test_three_ranks_train_the_same_model_as_one():
    check_same(3, ["otm, lazy", "plt, dense", "hsm", "stochastic", "fewer users than ranks", "one user"], 12, top=10)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "top"), [(2, 5), (3, 10)])
def test_any_number_of_ranks_trains_the_same_model_for_100_steps(size, top):
    check_same(size, list(CASES)[:6], 100, top)


def go_on(name, folder, steps, top=6):
    """Train on to so many steps from whatever is in the folder."""
    shards.TOP = top
    join()
    return whole(fitted(name, steps, checkpoints=Checkpoints(folder, every=1000, seconds=None, resume=True)))


@pytest.mark.extended
@pytest.mark.parametrize(("name", "first", "last"), [("otm, lazy", 4, 2), ("plt, dense", 2, 3)])
def test_a_run_goes_on_with_any_number_of_ranks(tmp_path, name, first, last, monkeypatch):
    """Several, then one, then others: the weights of a run that was never broken."""
    monkeypatch.setattr(shards, "TOP", 6)
    run_ranks(first, go_on, name, tmp_path, 4)
    assert len(list(tmp_path.glob("shard-*-4.safetensors"))) == first
    go_on(name, tmp_path, 8)
    assert (tmp_path / "weights-8.safetensors").exists()
    assert not list(tmp_path.glob("shard-*"))
    for weights in run_ranks(last, go_on, name, tmp_path, 12):
        assert farthest(whole(fitted(name, 12)), weights) < 1e-6


@pytest.mark.extended
def test_a_checkpoint_of_fewer_files_than_ranks_wrote_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "TOP", 6)
    run_ranks(2, go_on, "otm, lazy", tmp_path, 2)
    lost = tmp_path / "shard-1-2.safetensors"
    lost.unlink()
    told = f"{lost} is missing: copy the folder again, or train again (3 files from 2 ranks belong to {tmp_path})"
    with pytest.raises(ValueError, match="is missing") as error:
        go_on("otm, lazy", tmp_path, 4)
    assert str(error.value) == told
    assert run_ranks(2, errors_of, go_on, "otm, lazy", tmp_path, 4) == [told, told]


@pytest.mark.extended
def test_ranks_that_do_not_mean_the_same_end_with_one_line(tmp_path):
    told = run_ranks(2, errors_of, fitted_by_rank, "otm, lazy")
    assert set(told) == {"batch_size is 7 on rank 0 and 8 on rank 1: start all ranks alike"}


def fitted_by_rank(name):
    method, _, _, batch_size, _ = CASES[name]
    bt.fit(model_for(name), histories(), sized(method, 4, 6), steps=3, batch_size=batch_size + join().rank)


def validated(folder, top):
    """Recall along the way, the best weights, and how the model is opened again."""
    shards.TOP = top
    join()
    found = []
    val = Validation(
        histories(9, seed=5), beam_size=8, m=6, every=2, on_check=lambda step, recall: found.append(recall)
    )
    model = fitted("otm, lazy", 8, val=val, checkpoints=Checkpoints(folder / "training"))
    current_backend().save_model(model, folder / "model")
    return found, whole(model)


@pytest.mark.extended
def test_validation_is_split_and_the_model_opens_on_one_machine(tmp_path):
    recalls, weights = validated(tmp_path / "alone", 6)
    for seen, theirs in run_ranks(3, validated, tmp_path / "three", 6):
        assert seen == recalls
        assert farthest(weights, theirs) < 1e-6
    model = bt.load_model(tmp_path / "three" / "model")
    assert not is_sharded(model)
    assert farthest(weights, whole(model)) < 1e-6
    x = histories(9, seed=5).x
    assert torch.equal(
        bt.retrieve(model, x, beam_size=8, m=6)[0],
        bt.retrieve(bt.load_model(tmp_path / "alone" / "model"), x, beam_size=8, m=6)[0],
    )


@pytest.mark.extended
def test_a_rank_that_dies_takes_the_others_down_with_one_line():
    """The others hear of it by the connection, long before the time limit."""
    script = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import test_ranks as here
from beamtree.cli import app
from beamtree.distributed import training as step

def dies(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

if os.environ["RANK"] == "1":
    step.sum_gradients = dies
app.app = lambda standalone_mode: (here.join(), here.fitted("otm, lazy", 3))
app.main()
"""
    port, started = free_port(), []
    for rank in range(3):
        own = os.environ | environment(rank, 3, port) | {"BEAMTREE_TIME_LIMIT": "500"}
        words = [sys.executable, "-c", script.format(tests=str(Path(__file__).parent))]
        started.append(subprocess.Popen(words, env=own, stderr=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=200)[1] for process in started]
    assert [process.returncode for process in started] == [2, -signal.SIGKILL, 2]
    lines = [line for text in said for line in text.splitlines() if line.startswith("beamtree: ")]
    assert len(lines) in (1, 2), said  # two where the first rank, which keeps what all know here, is gone already
    assert all("lost another one, which ended or did not answer within 500 s" in line for line in lines)
    assert "Traceback" not in "".join(said)


def started_by_torchrun(tmp_path, *words, ranks=2, restarts=0, script=None):
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    launch += ["--master-port", str(free_port()), *(script or ["-m", "beamtree"]), *words]
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        [sys.executable, *launch], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=500, check=False
    )


USUAL = ("--recipe", "deep", "--steps", "6", "--batch-size", "7", "--beam-size", "10")


@pytest.mark.slow
def test_torchrun_trains_what_one_process_does(tmp_path, market_data):
    done = started_by_torchrun(tmp_path, "train", str(market_data.folder), "--out", "two", *USUAL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Saved two") == 1
    beamtree("train", str(market_data.folder), "--out", "one", *USUAL, folder=tmp_path)
    one, two = (whole(bt.load_model(tmp_path / name)) for name in ("one", "two"))
    assert farthest(one, two) < 1e-3  # in single precision: Adam makes a step of a gradient that is a rounding error
    assert [recalls(tmp_path / name) for name in ("one", "two")] == [recalls(tmp_path / "one")] * 2


def recalls(run):
    records = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [record["recall"] for record in records if "recall" in record]


@pytest.mark.slow
def test_a_restart_by_torchrun_goes_on_from_the_last_checkpoint(tmp_path, market_data):
    """The second rank is killed in its fifth step, once."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    words = ("train", str(market_data.folder), "--out", "run", *USUAL)
    done = started_by_torchrun(tmp_path, *words, restarts=1, script=[str(script)])
    assert done.returncode == 0, done.stderr
    assert "Continuing from step 4 of 6" in done.stdout
    whole_run = started_by_torchrun(tmp_path, *words[:3], "other", *USUAL)
    assert whole_run.returncode == 0, whole_run.stderr
    assert farthest(*(whole(bt.load_model(tmp_path / name)) for name in ("run", "other"))) < 1e-6


KILLED = """
import os, signal
from beamtree.cli import train
from beamtree.distributed import training as step

if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    was, steps = step.sum_gradients, []

    def sum_gradients(*arguments):
        steps.append(1)
        if len(steps) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return was(*arguments)

    step.sum_gradients = sum_gradients
often = train.Checkpoints
train.Checkpoints = lambda folder, every, resume: often(folder, every=2, resume=resume)
from beamtree.__main__ import main
main()
"""


@pytest.mark.slow
def test_data_that_a_rank_cannot_see_and_other_settings_are_one_line(tmp_path, market_data):
    usual = ["train", str(market_data.folder), "--out", "run", *USUAL]
    apart = {
        "holds no prepared data": ["train", str(market_data.folder / "nowhere"), "--out", "run", *USUAL],
        "seed is 0 on rank 0 and 5 on rank 1: start all ranks alike": [*usual, "--seed", "5"],
    }
    for told, other in apart.items():
        port = free_port()
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "beamtree", *words],
                cwd=tmp_path,
                env=os.environ | environment(rank, 2, port),
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, words in enumerate((usual, other))
        ]
        lines = [line for process in ranks for line in process.communicate(timeout=200)[1].splitlines()]
        assert [process.returncode for process in ranks] == [2, 2]
        assert len(lines) == 1, lines
        assert told in lines[0]
    assert not (tmp_path / "run").exists()

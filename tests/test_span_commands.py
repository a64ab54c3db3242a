"""Commands over ranks, as users start them: one answer, one line where something is wrong, and no endless wait."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import httpx
import polars as pl
import pytest
import torch
from ranks import environment, free_port

import beamtree as bt
from beamtree.data import Ids
from beamtree.scorers import DeepScorer, RepeatScorer, SumScorer
from beamtree.storage.runs import write_run

ITEMS = 9000  # more than the levels have that every rank holds
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node"]
PATIENT = {"BEAMTREE_TIME_LIMIT": "60", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def save_run(folder, seed=0):
    """A run that was never trained."""
    tree = bt.random_tree(ITEMS, seed=seed)
    parts = {"deep": DeepScorer(tree.num_nodes, 6, scale=1.0, seed=seed), "repeats": RepeatScorer()}
    model = bt.TreeModel(tree, SumScorer(parts, tree.height), first_level=4)
    model.ids, model.popularity = Ids([f"i{number}" for number in range(ITEMS)]), torch.arange(ITEMS, 0, -1)
    folder.mkdir(parents=True)
    write_run(folder, {"data": None, "method": "otm"})
    bt.save_model(model.eval(), folder)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    return save_run(place / "one"), save_run(place / "other", seed=1)


def torchrun(size, *words, **how):
    """The command under torchrun, which must be told where its own words end: it would read --m as its own."""
    command = [sys.executable, *TORCHRUN, str(size), "-m", "--", "beamtree", *map(str, words)]
    return subprocess.Popen(command, env={**os.environ, **PATIENT}, stderr=subprocess.PIPE, text=True, **how)


def ranks_of(*words_of_each):
    """One process per rank without torchrun: what each said, and its exit code."""
    port, size = free_port(), len(words_of_each)
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "beamtree", *map(str, words)],
            env={**os.environ, **PATIENT, **environment(rank, size, port)},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank, words in enumerate(words_of_each)
    ]
    return [(each.communicate(timeout=100)[1], each.returncode) for each in started]


def ours(said):
    """The lines of the command, among those of torchrun."""
    return [line for line in said.splitlines() if line.startswith("beamtree:")]


@pytest.mark.extended
def test_retrieve_over_ranks_writes_what_one_rank_writes(runs, tmp_path):
    rows = [{"user": f"u{n}", "history": " ".join(f"i{7 * n + k}" for k in range(n))} for n in range(9)]
    pl.DataFrame(rows).write_csv(tmp_path / "in.csv")
    words = ["--input", tmp_path / "in.csv", "--m", 5, "--beam-size", 20, "--exclude-seen"]
    with torchrun(2, "retrieve", runs[0], *words, "--output", tmp_path / "two.jsonl", stdout=subprocess.PIPE) as done:
        said, notes = done.communicate(timeout=110)
    assert done.returncode == 0, notes
    assert re.sub(r"\s", "", said) == f"Saved{tmp_path}/two.jsonl"
    assert notes.count("9 users,") == 1
    one = ["retrieve", runs[0], *words, "--output", tmp_path / "one.jsonl"]
    subprocess.run([sys.executable, "-m", "beamtree", *map(str, one)], check=True, capture_output=True)
    two, alone = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()] for name in ("two", "one")
    )
    assert [each["items"] for each in two] == [each["items"] for each in alone]
    assert [each["user"] for each in two] == [each["user"] for each in alone]
    for mine, other in zip(two, alone, strict=True):
        assert mine["scores"] == pytest.approx(other["scores"], rel=1e-4)


@contextlib.contextmanager
def served(size, *words):
    """A service under torchrun, a client of it, and the processes of its ranks."""
    port = free_port()
    patient = ["--drain", 0, "--timeout", 60000, "--slow", 60000]  # a busy machine must not narrow the beam
    started = torchrun(size, "serve", *words, "--port", port, *patient)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            for _ in range(400):
                with contextlib.suppress(httpx.HTTPError):
                    if client.get("/readyz").status_code == 200:
                        break
                assert started.poll() is None, started.stderr.read()
                time.sleep(0.2)
            yield started, client, children(started.pid)
    finally:
        if started.poll() is None:
            started.terminate()
        started.wait(60)
        started.stderr.close()


def children(parent):
    """The ranks that a torchrun started, in their order."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=True)
    found = {}
    for pid in listed.stdout.split():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ") as file:
            known = dict(each.partition("=")[::2] for each in file.read().split("\0"))
            if "RANK" in known:
                found[int(known["RANK"])] = int(pid)
    return [found[rank] for rank in sorted(found)]


def ask(client, **asked):
    answer = client.post("/v1/recommend", json={"history": ["i3", "i50", "i800"], "m": 6, "beam_size": 30, **asked})
    assert answer.status_code == 200, answer.text
    assert answer.json()["degraded"] is None
    return answer.json()["results"][0]["items"]


@pytest.mark.extended
def test_a_service_over_ranks_answers_as_one_rank_does_and_stops_cleanly(runs):
    def expected(run, **filters):
        shop = bt.Recommender.load(run)
        return shop.recommend(["i3", "i50", "i800"], m=6, beam_size=30, **filters)["item"].to_list()

    few = [f"i{n}" for n in range(0, ITEMS, 500)]
    with served(2, runs[0]) as (started, client, ranks):
        assert ask(client) == expected(runs[0])
        assert ask(client, allowed=few, exclude_seen=True) == expected(runs[0], allowed=few, exclude_seen=True)
        refused = client.post("/v1/model", json={"run": "nowhere"})
        assert refused.status_code == 422
        assert "nowhere" in refused.json()["error"]
        assert ask(client) == expected(runs[0])
        assert client.post("/v1/model", json={"run": "other"}).status_code == 200
        assert ask(client) == expected(runs[1])
        time.sleep(4)  # nothing is asked, and nobody is missed
        assert ask(client) == expected(runs[1])
        assert client.put("/v1/items/new", json={"like": ["i3"]}).status_code == 409
        os.kill(ranks[0], signal.SIGTERM)
        assert started.wait(60) == 0
        assert ours(started.stderr.read()) == []


@pytest.mark.parametrize(
    "victim", [pytest.param(0, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.extended)]
)
def test_a_rank_that_is_killed_ends_the_service_with_one_line(runs, victim):
    with served(3, runs[0]) as (started, client, ranks):
        ask(client)
        os.kill(ranks[victim], signal.SIGKILL)
        assert started.wait(60) != 0
        (line,) = ours(started.stderr.read())
        assert "start all ranks again" in line


@pytest.mark.extended
def test_ranks_with_different_runs_are_told_in_one_line(runs, tmp_path):
    """On another machine another one lies in the place of the run."""
    shutil.copytree(runs[1], tmp_path / "one")
    first, second = ranks_of(*(("retrieve", run, "--history", "i3") for run in (runs[0], tmp_path / "one")))
    assert first[1] == 2
    (line,) = ours(first[0])
    assert re.search(r"rank 0 has opened model \w+ and rank 1 \w+: start all ranks with the same run", line)
    assert ours(second[0]) == []


@pytest.mark.extended
def test_a_rank_that_cannot_see_the_run_is_named(runs, tmp_path):
    first, second = ranks_of(*(("retrieve", run, "--history", "i3") for run in (runs[0], tmp_path / "one")))
    assert (first[1], ours(second[0])) == (2, [])
    (line,) = ours(first[0])
    assert f"{tmp_path / 'one'} is not a run" in line
    assert line.endswith("(on rank 1)")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("words", "found"), [(("serve", 0), "command is retrieve"), (("retrieve", 1, "--history", "i3"), "run is one")]
)
def test_ranks_that_were_started_otherwise_are_told_in_one_line(runs, words, found):
    done = ranks_of(("retrieve", runs[0], "--history", "i3"), (words[0], runs[words[1]], *words[2:]))
    assert [code for _, code in done] == [2, 2]
    (line,) = [line for said, _ in done for line in ours(said)]
    assert re.search(rf"{found} on rank 0 and \w+ on rank 1: start all ranks alike", line)


@pytest.mark.extended
def test_changes_are_refused_over_ranks(runs, tmp_path):
    first, second = ranks_of(*[("serve", runs[0], "--port", 0, "--changes", tmp_path / "changes")] * 2)
    assert (first[1], second) == (2, ("", 0))
    assert ours(first[0]) == ["beamtree: items cannot change while a model is searched over ranks: leave out --changes"]

"""The recipe that people use, over ranks: weights, contexts and the sequence part as in one process, saved whole."""

import os
import subprocess
import sys
from dataclasses import replace

import polars as pl
import pytest
import torch
from ranks import environment, free_port, run_ranks
from sample_logs import device_log, some_events, tours

import beamtree as bt
from beamtree.distributed.training import join
from beamtree.ingest.prepare import prepare
from beamtree.parts import sequence
from beamtree.parts.sequence import SequenceSettings, fit_sequence
from beamtree.scorers import ContextScorer, SequenceScorer

# Without dropout, whose draws depend on the number of ranks
SMALL = SequenceSettings(32, 0.0, 0.0, 4, 300, 150, None, batch_size=30)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """One whose events have weights and contexts, and one in which the order tells what comes next."""
    folder = tmp_path_factory.mktemp("logs")
    log = device_log().with_columns(worth=(pl.int_range(pl.len()) % 3).cast(pl.Float64) + 1)
    how = {"weight": "worth", "target": 2, "dislike": 0}  # a third of the events are not to be predicted
    prepare(log, folder / "contexts", context=["device", "other"], split="leave-one-out", **how)
    prepare(tours(1000, 61, 10), folder / "order", val_users=300)
    return folder


def fitted(folder, out):
    """Fit and save, with the sequence part where the order tells something."""
    join()
    sequence.sequence_settings = lambda data, device, minutes: SMALL
    shop = bt.Recommender(sequence=folder.name == "order", steps=0, tree="random", seed=0)
    shop.fit(folder, verbose=False).save(out)
    scorer = shop.model.scorer
    return {name: scorer.weight_of(name) for name in scorer.names}


@pytest.mark.extended
@pytest.mark.parametrize(("log", "kind"), [("contexts", ContextScorer), ("order", SequenceScorer)])
def test_two_ranks_fit_and_save_the_whole_recipe_of_one_process(logs, log, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(sequence, "sequence_settings", sequence.sequence_settings)  # put back at the end
    one = fitted(logs / log, tmp_path / "one")
    for weights in run_ranks(2, fitted, logs / log, tmp_path / "two"):
        assert weights == pytest.approx(one, rel=1e-2)
    ours, theirs = (bt.Recommender.load(tmp_path / name) for name in ("one", "two"))
    assert not list((tmp_path / "two").glob("shard-*"))
    for shop in (ours, theirs):
        assert any(isinstance(part, kind) and shop.model.scorer.weight_of(name) for name, part in parts_of(shop))
    names = ours.model.ids.names[:60]
    histories = [names[first : first + 5] for first in range(0, 50, 7)]
    for context in [{"device": "phone"}, {"device": "desktop"}] if log == "contexts" else [None]:
        expected, found = (shop.recommend(histories, m=50, context=context) for shop in (ours, theirs))
        both = expected.join(found, on=["history", "item"], how="inner")
        assert len(both) > 0.95 * len(expected), "the last items of a list may differ by rounding"
        assert both["score_right"].to_list() == pytest.approx(both["score"].to_list(), rel=0.05, abs=2e-3)


def parts_of(shop):
    return shop.model.scorer.scorers().items()


LOSSES = {
    "all items": {},
    "sample": {"sampled": 8},
    "clock": {"clock": True, "length": 100},
}


def encoders():
    join()
    events = some_events([5, 80, 2, 1, 9] * 4, 30)
    events = replace(events, times=torch.arange(len(events.items)) * 3_600, clock=1)
    found = {}
    for name, loss in LOSSES.items():
        settings = replace(SMALL, steps=25, batch_size=6, **loss)
        encoder, vectors = fit_sequence(events, 30, settings, seed=4)
        found[name] = [part.tolist() for part in (*encoder.parameters(), vectors)]
    return found


@pytest.mark.extended
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_train_the_encoder_of_one_process(size):
    """Also where there are more ranks than windows in a batch: the last one of an epoch has two."""
    expected = encoders()
    for found in run_ranks(size, encoders):
        for name, parts in expected.items():
            for ours, theirs in zip(parts, found[name], strict=True):
                torch.testing.assert_close(torch.tensor(theirs), torch.tensor(ours), atol=2e-4, rtol=2e-3, msg=name)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["serve", "run"], "`beamtree serve` is for one process: start it without torchrun"),
        (["retrieve", "run", "--history", "a"], "`beamtree retrieve` is for one process: start it without torchrun"),
        (
            ["train", "data", "--out", "run", "--features", "items.csv"],
            "--features needs a single process: train without it, and then run `beamtree items run items.csv`",
        ),
    ],
)
def test_what_needs_one_process_says_so_at_once(words, line, tmp_path):
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "beamtree", *words],
            cwd=tmp_path,
            env=os.environ | environment(rank, 2, port),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [process.communicate(timeout=200)[1] for process in started]
    assert [process.returncode for process in started] == [2, 2]
    assert "".join(told) == f"beamtree: {line}\n"

"""Defaults that pages state are those that the code resolves: each sentence is made from the code, and looked up."""

import inspect
from pathlib import Path

import polars as pl
import pytest

from beamtree.beam import DEFAULT_BEAM_SIZE
from beamtree.classify import Classifier, classifier, model
from beamtree.cli.serve import serve_run as serve
from beamtree.cli.train import train
from beamtree.closed_form import als
from beamtree.data.inputs import HISTORY, WHOLE_HISTORY
from beamtree.ingest import clock, splits
from beamtree.ingest.prepare import prepare
from beamtree.parts import sequence
from beamtree.recommender import Recommender
from beamtree.scorers.memory import PARTNERS
from beamtree.train.options import TrainingOptions
from beamtree.train.recipes import RECIPES, resolve_settings

ROOT = Path(__file__).parent.parent


def words_of(page):
    """A page as one line."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").replace(">", "").split())


def argument(function, name):
    """The default of an argument."""
    return inspect.signature(function).parameters[name].default


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log whose epochs do not make the number of steps uneven."""
    folder = tmp_path_factory.mktemp("log") / "prepared"
    rows = [(f"u{user}", f"i{(user + place) % 50}", place) for user in range(1_200) for place in range(10)]
    prepare(pl.DataFrame(rows, ["user", "item", "time"], orient="row"), folder)
    from beamtree.data import load_data

    return load_data(folder)


@pytest.fixture(scope="module")
def resolved(log):
    """What is trained by default on a CPU and on a GPU, and with the network alone."""

    def settings(**options):
        return resolve_settings(log, TrainingOptions(**options))

    return {
        "cpu": settings(),
        "gpu": settings(device="cuda"),
        "deep": settings(recipe="deep"),
        "deep on a GPU": settings(recipe="deep", device="cuda"),
        "paper": settings(recipe="paper"),
        "closed": settings(device="cuda", steps=0),
    }


def test_the_table_of_training_options(log, resolved):
    cpu, gpu = resolved["cpu"], resolved["gpu"]
    alone, on_gpu = (round(resolved[name].num_steps(log), -3) for name in ("deep", "deep on a GPU"))
    assert cpu.num_steps(log) == gpu.num_steps(log) == 0
    page = words_of("docs/train.md")
    for row in (
        f"| `beam_size` | {cpu.beam_size} on a CPU, {gpu.beam_size} on a GPU |",
        f"| `batch_size` | {cpu.batch_size} on a CPU, {gpu.batch_size} on a GPU |",
        "| `epochs` or `steps` | none beside closed-form parts; for the network alone "
        f'(`recipe="deep"`) {on_gpu:,} steps on a GPU and {alone:,} on a CPU; '
        f'{resolved["paper"].epochs} epochs with `recipe="paper"` |',
        f"| `lr` | {cpu.lr:g} |",
        f"| `optimizer` | `{cpu.optimizer}` |",
        f"| `patience` | {cpu.patience} checks |",
        f"| `recipe` | `{TrainingOptions().recipe}` |",
        f"| `method` | `{TrainingOptions().method}` |",
        f"| `tree`, `items`, `vectors`, `arity` | `{TrainingOptions().tree}`, binary |",
        f"| `seed` | {cpu.seed} |",
        f"| `device` | `{cpu.device}` |",
    ):
        assert row in page, row
    assert TrainingOptions().arity == 2


def test_where_a_sequence_part_is_trained(log, resolved):
    assert {name for name, settings in resolved.items() if settings.sequence} == {"gpu"}
    page = words_of("docs/train.md")
    events, minutes = f"at least {sequence.LEAST_EVENTS:,} events", f"{sequence.MINUTES:g}"
    assert f"| `sequence` | on a GPU, and on a CPU for logs of {events}, except with `steps=0` |" in page
    assert f"| `minutes` | {minutes} on a CPU; on a GPU as long as validation users find more |" in page
    assert f"On a CPU it takes five minutes (`minutes={minutes}`)" in words_of("docs/quickstart.md")
    assert f"Default: {minutes} on a CPU" in words_of("beamtree/recommender.py")
    assert events in words_of("beamtree/recommender.py")
    assert f"for five minutes on a CPU if there are {events};" in words_of("README.md")
    cpu, gpu = (sequence.sequence_settings(log, device) for device in ("cpu", "cuda"))
    assert f"at most {gpu.steps:,} steps of {gpu.batch_size} windows" in page
    assert f"{cpu.steps:,} smaller steps" in page
    batches = f"batches of {sequence.CPU_BATCH} to {sequence.BATCH} windows"
    assert f"newest {cpu.length} events, on {batches}" in page
    assert f"the first {sequence.TIMED} steps" in page
    assert f"fewer than {sequence.LEAST_STEPS:,}, it is left out" in page
    assert sequence.CPU_BATCH <= cpu.batch_size <= gpu.batch_size


def test_where_a_model_is_refitted(resolved):
    assert {name for name, settings in resolved.items() if settings.refit} == {"cpu", "gpu", "closed"}
    assert {name for name, recipe in RECIPES.items() if recipe.parts} == {"beamtree"}
    assert "| `refit` | wherever there are closed-form parts |" in words_of("docs/train.md")


def test_sizes_of_the_closed_form():
    page = words_of("docs/train.md")
    assert f"implicit ALS with {als.DIM} factors" in page
    assert f"{PARTNERS} partners per item" in page
    glossary = words_of("docs/how_it_works.md")
    assert f"up to {WHOLE_HISTORY:,} of the newest are used" in glossary
    assert f"newest {WHOLE_HISTORY:,} events" in words_of("docs/prepare.md")
    assert f"The newest {WHOLE_HISTORY:,} items of a history are used" in words_of("docs/recommend.md")
    assert f"`[users, {HISTORY}]`" in words_of("docs/export.md")


def test_the_search():
    assert argument(Recommender.recommend, "m") == 10
    assert argument(Recommender.recommend, "beam_size") is None
    assert f"by default {DEFAULT_BEAM_SIZE}, or the largest m" in words_of("docs/evaluate.md")
    assert f"Default: {DEFAULT_BEAM_SIZE} or m" in words_of("beamtree/recommender.py")


def test_how_a_log_is_split():
    page = words_of("docs/prepare.md")
    share, most = 100 // splits.EVAL_FRACTION, splits.MAX_EVAL_USERS
    assert f"other users, {share} % each, at most {most:,}" in page
    assert f"at least {splits.EVAL_EVENTS} events" in page
    assert "Users with few events are kept" in page
    assert argument(prepare, "min_events") in (None, 1)
    assert argument(Recommender.fit, "min_events") is None
    assert f"at least {splits.MIN_CUT_USERS} users have events before and after the cut" in page
    assert f"a quarter, at most {splits.MAX_EVAL_USERS:,}, test, and at most {splits.MAX_VAL_USERS:,} others" in page
    assert (splits.TEST_FRACTION, clock.NEWEST) == (4, 10)
    assert f"Elsewhere the default is `{splits.HALVES}`" in page
    assert argument(prepare, "split") is None
    assert argument(Recommender.fit, "split") is None


def test_the_settings_of_a_service():
    options = {name: argument(serve, name) for name in inspect.signature(serve).parameters}
    page = words_of("docs/serving.md")
    for row in (
        f"| `--host`, `--port` | `BEAMTREE_HOST`, `BEAMTREE_HTTP_PORT` | {options['host']}, {options['port']} |",
        f"| `--beam-size` | `BEAMTREE_BEAM_SIZE` | {DEFAULT_BEAM_SIZE} |",
        f"| `--search` | `BEAMTREE_SEARCH` | {options['search']} |",
        f"`BEAMTREE_BATCH` | {options['batch_window_ms']:g} ms, {options['batch']} histories |",
        f"| {options['queue']} histories, {options['degrade_after_ms']:g} ms, {options['timeout']:,.0f} ms for 10 "
        "histories |",
        f"| {options['max_m']:,}, {options['max_beam']:,} |",
        f"| {options['max_history']:,} ids, {options['max_histories']:,} histories |",
        f"| {options['max_list']:,} ids, {options['max_body'] >> 20} MiB |",
        f"| {options['max_changes']:,} items or events in a request |",
        f"| off, {options['drain']:g} s |",
    ):
        assert row in page, row
    assert options["watch"] is None


def test_the_classifier():
    page = words_of("docs/classification.md")
    assert f"(`beam_size`, {classifier.BEAM_SIZE} by default)" in page
    assert f"groups of about {classifier.GROUP} labels" in page
    assert f"weight {model.OF_GROUPS:g}" in page
    trees = {2: "two", 3: "three"}[argument(Classifier, "trees")]
    assert f"probabilities of {trees} trees" in page
    assert f"at most {classifier.MAX_PAIRS_WITH_NEGATIVES // 10**6} million" in page


def test_python_and_the_command_train_alike():
    for name, parameter in inspect.signature(train).parameters.items():
        if name in TrainingOptions.__dataclass_fields__ and name != "items":
            assert parameter.default == getattr(TrainingOptions(), name), name

"""What `fit` shows: a short report, progress with an estimate, and nothing where nobody wants it."""

import io
import logging
import re
import subprocess
import sys

import polars as pl
import pytest

import beamtree as bt
from beamtree import progress as reporting
from beamtree.progress import Reporter, Stages, clock
from beamtree.train.validation import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def unconfigured(monkeypatch):
    """The logger as most programs have it: nobody has set anything up."""
    log = logging.getLogger("beamtree")
    monkeypatch.setattr(log, "propagate", False)  # away from the handlers of pytest
    return log


@pytest.fixture
def log():
    rows = [(f"u{user}", f"i{(user + place) % 12}", 5, place) for user in range(40) for place in range(2 + user % 12)]
    rows.append((None, "i1", 5, 3))
    return pl.DataFrame(rows, schema=["user", "item", "rating", "time"], orient="row")


def fitted(log, **options):
    return bt.Recommender(steps=2, beam_size=5, batch_size=10, recipe="deep").fit(log, **options)


def test_fit_reports_rows_columns_what_was_dropped_and_what_was_reached(log, unconfigured, capsys):
    fitted(log)
    shown = capsys.readouterr()
    assert shown.out == ""
    first, counts, dropped, times, left, few, building, reached, last = shown.err.splitlines()
    assert first == f"Read {len(log)} rows: user user, item item, time time; not used: rating."
    assert counts == (
        "Every row counts as one event, whatever the unused columns say; with weight=rating events count by their "
        "rating."
    )
    assert dropped == "Dropped 1 rows without a user."
    assert times == "The times of this log are only an order."
    assert left.startswith(f"40 users, 12 items and {len(log) - 1} events are left; 2 users validate and 2 test")
    assert few.startswith(
        "Only 2 users to measure: the 95 % interval of recall is about ± 35 points; prepare with more"
    )
    assert building == "Building a cluster tree over 12 items."
    assert reached.startswith("Recall@")
    assert re.fullmatch(r"Fitted in \d+:\d\d\.", last)


def test_fit_is_silent_on_request(log, unconfigured, capsys):
    fitted(log, verbose=False)
    unconfigured.setLevel(logging.WARNING)
    fitted(log)
    unconfigured.setLevel(logging.NOTSET)
    assert capsys.readouterr() == ("", "")


def test_where_logging_is_set_up_the_report_goes_there_and_nowhere_else(log, caplog, capsys):
    with caplog.at_level(logging.INFO, logger="beamtree"):
        fitted(log)
    assert "not used: rating" in caplog.text
    assert capsys.readouterr() == ("", "")


def test_users_who_were_dropped_are_counted_with_the_reason(log, unconfigured, capsys):
    fitted(log, min_events=5)
    few = log.drop_nulls().group_by("user").len().filter(pl.col("len") < 5)
    expected = f"{few['len'].sum()} rows of users with fewer than 5 events ({len(few)} users)."
    assert expected in capsys.readouterr().err


def test_a_terminal_shows_one_line_that_changes_with_the_time_that_is_left(unconfigured, monkeypatch):
    now, terminal = [100.0], Terminal()
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", terminal)
    with Reporter() as report:
        for done in range(5):
            report.progress("Fitting", done, 5)
            now[0] += 10
        report.write("Done.")
    assert "Fitting: 20 %, about 0:40 left" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[KDone.\n")
    assert terminal.getvalue().count("\n") == 1


def test_elsewhere_progress_is_a_line_now_and_then(unconfigured, monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now[0])
    with Reporter() as report:
        for done in range(50):
            report.progress("Fitting", done, 50)
            now[0] += 1
    assert capsys.readouterr().err.splitlines() == [
        "Fitting: 20 %, about 0:40 left",
        "Fitting: 40 %, about 0:30 left",
        "Fitting: 60 %, about 0:20 left",
        "Fitting: 80 %, about 0:10 left",
    ]


def test_seconds_that_do_not_come_again_are_not_in_the_estimate(unconfigured, monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now[0])
    with Reporter() as report:
        report.progress("Fitting", 0, 50)
        now[0] += 30
        reporting.set_aside(20)
        report.progress("Fitting", 5, 50)
    assert capsys.readouterr().err.splitlines() == ["Fitting: 10 %, about 1:30 left"]


@pytest.mark.extended
def test_compiling_is_not_in_the_estimate():
    """In a fresh installation it takes longer than a small fit."""
    code = """
import time
import numba.core.caching as caching
caching.CacheImpl._locator_classes = []
import torch, beamtree as bt
from beamtree import progress
from beamtree.scorers import RepeatScorer
model, began = bt.TreeModel(bt.Tree(range(8)), RepeatScorer()), time.monotonic()
bt.retrieve(model, torch.tensor([[3, 5]]), beam_size=4, m=2)
print(progress._aside / (time.monotonic() - began))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0.5 < float(done.stdout) < 1


def test_stages_that_are_passed_over_count_as_done():
    heard = []
    stages = Stages("all", {"a": 50, "b": 30, "c": 20}, lambda *each: heard.append(each))
    stages.begin("a", 2)
    stages.tick()
    stages.begin("c", 1)
    stages.tick()
    stages.tick()  # more trials than were planned
    stages.end()
    assert heard == [("all", done, 100) for done in (0, 25, 80, 100, 100, 100)]


@pytest.mark.parametrize(
    ("progress", "closed_form", "line"),
    [
        (Progress(300, 0.5, 0.5, 0), True, "50.0 % by the closed form. Training found nothing better, as on most logs"),
        (Progress(300, 0.5, 0.52, 200), True, "50.0 % by the closed form, 52.0 % after 200 steps of training."),
        (Progress(0, 0.5, 0.5, 0), True, "50.0 % by the closed form, without training of a network."),
        (Progress(300, 0.5, 0.5, 0), False, "50.0 % at the start. Training did not improve on it: train longer"),
        (Progress(300), True, "no validation users, so nothing was measured"),
    ],
)
def test_what_was_reached_is_said_as_what_it_is(progress, closed_form, line):
    assert line in progress.as_report(1000, 40, "the closed form" if closed_form else "")


def test_clock():
    assert [clock(seconds) for seconds in (0.4, 31, 75, 3735)] == ["0:00", "0:31", "1:15", "1:02:15"]

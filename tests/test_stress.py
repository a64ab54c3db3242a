"""The short form of `make stress`: some trials of every kind, and that the harness can tell."""

import subprocess
import sys
from pathlib import Path

import pytest

from stress.forked_command import Outcome
from stress.sandbox import digest, temporary_files

ROOT = Path(__file__).parent.parent


TRIALS = [
    ("kills", 6),
    ("damage", 16),
    ("concurrent", 2),
    ("disk", 3),
    ("expressions", 200),
    ("payloads", 12),
    ("journal", 4),
    ("threads", 1),
]


@pytest.mark.extended
@pytest.mark.parametrize(("kind", "tries"), TRIALS)
def test_promises_are_kept_under_stress(kind, tries):
    words = ["--only", kind, "--tries", str(tries), "--jobs", "1", "--seed", "7"]
    done = subprocess.run([sys.executable, "-m", "stress", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].split() == ["all", str(tries), "0"]


@pytest.mark.parametrize(
    ("ended", "fault"),
    [
        (Outcome(0, False, "", 3, 1.0), None),
        (Outcome(2, False, "a line\nbeamtree: no such file\n", 3, 1.0), None),
        (Outcome(2, False, "", 3, 1.0), "fails without a message"),
        (Outcome(1, False, "Traceback (most recent call last):\n", 3, 1.0), "traceback"),
        (Outcome(139, False, "", 3, 1.0), "exit code 139"),
        (Outcome(None, True, "", 3, 60.0), "hangs"),
    ],
)
def test_what_is_wrong_with_an_end_is_told(ended, fault):
    assert ended.fault == fault


def test_what_is_left_behind_and_what_differs_is_told(tmp_path):
    (tmp_path / "run" / "a.new-beamtree").mkdir(parents=True)
    assert temporary_files(tmp_path) == ["run/a.new-beamtree"]
    (tmp_path / "found.csv").write_text("a")
    before = digest(tmp_path / "found.csv")
    (tmp_path / "found.csv").write_text("b")
    assert digest(tmp_path / "found.csv") != before

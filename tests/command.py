"""The command as a user types it."""

import contextlib
import io
import resource
import subprocess
import sys
import time
from unittest import mock

import pytest

import beamtree as bt
from beamtree import cli
from beamtree.cli import train as train_command


def beamtree(*words, folder, check=True):
    """Type the command in a folder; in this process, since a new one spends seconds on importing torch."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        mock.patch.object(sys, "argv", ["beamtree", *words]),
        pytest.raises(SystemExit) as end,
    ):
        cli.main()
    done = subprocess.CompletedProcess(words, end.value.code or 0, stdout.getvalue(), stderr.getvalue())
    if check:
        assert done.returncode == 0, done.stderr
    return done


@contextlib.contextmanager
def largest_file(size):
    """No file may grow beyond `size` bytes: as near to a full disk as a test can come."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def wait_for(condition, seconds=60):
    """Wait until the condition holds; returns its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return value


WITHOUT = """
import sys
names = {names!r}
sys.modules.update(dict.fromkeys(names))
"""


def train_again_after_a_kill(data, folder, monkeypatch):
    """A run that was killed before its refit and continued, and one that was not."""
    words = ["train", str(data), "--steps", "4", "--beam-size", "20", "--batch-size", "20"]
    beamtree(*words, "--out", "whole", folder=folder)

    def killed(*given, **named):
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(train_command, "refit_to_all", killed)
        assert beamtree(*words, "--out", "run", folder=folder, check=False).returncode == 2
    with pytest.raises(ValueError, match="is not finished"):
        bt.Recommender.load(folder / "run")
    beamtree(*words, "--out", "run", "--resume", folder=folder)
    return [bt.Recommender.load(folder / name) for name in ("run", "whole")]

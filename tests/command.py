"""The command as a user types it."""

import contextlib
import io
import resource
import subprocess
import sys
import time
from unittest import mock

import pytest

from beamtree import cli


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

"""A command that is ended from outside leaves a line and nothing else."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import wait_for

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are watched on Linux alone")

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from beamtree.cli.errors import run_guarded

def command():
    Path("out.new-beamtree").mkdir()
    Path("out.new-beamtree/part").write_text("half")
    Path("worker").write_text(str(os.getpid()))
    {work}

run_guarded(command, ["prepare", "log.csv", "--out", "out"])
print("came back")
"""


def start(folder, work):
    words = [sys.executable, "-c", SCRIPT.format(work=work)]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=folder, stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL, text=True)


@pytest.mark.extended
@pytest.mark.parametrize(("work", "name"), [("os.abort()", "SIGABRT"), ("os.kill(os.getpid(), 9)", "SIGKILL")])
def test_a_command_that_is_ended_says_why_and_leaves_no_draft(tmp_path, work, name):
    with start(tmp_path, work) as done:
        _, said = done.communicate(timeout=60)
    assert done.returncode == 2
    line = said.strip().splitlines()[-1]
    assert line.startswith(f"beamtree: ended by {name}, most likely out of memory (")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["worker"]


@pytest.mark.extended
def test_a_command_ends_with_its_own_exit_code(tmp_path):
    with start(tmp_path, "sys.exit(7)") as done:
        assert done.wait(60) == 7
    (tmp_path / "out.new-beamtree" / "part").unlink()
    (tmp_path / "out.new-beamtree").rmdir()
    with start(tmp_path, "") as done:
        assert done.communicate(timeout=60)[0] == "came back\n"
    assert done.returncode == 0


def read_pid(path):
    return int(wait_for(lambda: path.exists() and path.read_text()))


def is_alive(process):
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.extended
def test_a_signal_to_the_command_reaches_the_one_that_works(tmp_path):
    with start(tmp_path, "time.sleep(60)") as done:
        worker = read_pid(tmp_path / "worker")
        done.send_signal(signal.SIGTERM)
        assert done.wait(30) == -signal.SIGTERM
    assert not is_alive(worker)


@pytest.mark.extended
def test_no_worker_outlives_its_watcher(tmp_path):
    with start(tmp_path, "time.sleep(60)") as done:
        worker = read_pid(tmp_path / "worker")
        done.kill()
    end = time.monotonic() + 30
    while is_alive(worker):
        assert time.monotonic() < end
        time.sleep(0.01)

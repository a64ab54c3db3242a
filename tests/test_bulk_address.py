"""Clusters of Ray that others started: by HOST:PORT, by ray:// and by auto, with a token and without, and refusals."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from ranks import free_port
from sample_answers import ITEMS, MANY, all_answers, content, expected, make_popular_run, same, write_parts, write_users

from beamtree.batch import ray_cluster
from beamtree.ingest.prepare import prepare

pytest.importorskip("ray")
slow = pytest.mark.slow  # a cluster takes seconds to start, and so does a client of it
ROOT = Path(__file__).parent.parent
TOKEN = "of-the-tests"  # any text will do
START = "import ray, sys; from ray.scripts.scripts import main; {}; sys.exit(main())"


def clean(home, **more):
    """The environment of a user who has nothing to do with Ray yet."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", **more}


def answers(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def head(env, *options, first="pass"):
    """A cluster that `ray start` started, in a folder that is not ours, and which ends with this: its two addresses."""
    port, client = free_port(), free_port()
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as place:
        words = ["--head", "--block", "--include-dashboard=false", "--object-store-memory=134217728", *options]
        words += [f"--port={port}", f"--ray-client-server-port={client}", f"--temp-dir={place}"]
        command = [sys.executable, "-c", START.format(first), "start", *words]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, cwd=place, env=env, start_new_session=True, **quiet)
        try:
            for each in (port, client):
                while not answers(each):
                    assert process.poll() is None
                    time.sleep(0.1)
            yield f"127.0.0.1:{port}", f"ray://127.0.0.1:{client}"
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            finally:
                stop(process.pid)


def stop(session):
    """End what a cluster left behind, by the session that it was started in."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:  # it has ended meanwhile
            pass


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_popular_run(tmp_path_factory.mktemp("runs") / "run", ITEMS)


@pytest.fixture(scope="module")
def guarded(home):
    """A cluster that asks for a token, of two CPUs and what it takes for a GPU."""
    with head(clean(home, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN), "--num-cpus=2", "--num-gpus=1") as found:
        yield found


def beamtree(folder, env, *words):
    command = [sys.executable, "-m", "beamtree", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=200)


PREPARE = ["prepare", "log", "--user", "who", "--item", "what", "--out", "out", "--engine", "ray"]


@slow
@pytest.mark.parametrize("kind", [0, 1], ids=["HOST:PORT", "ray://"])
def test_both_commands_work_at_an_address(tmp_path, home, run, guarded, kind):
    """With a token alone, and paths that mean nothing in the folder of the cluster; more workers than CPUs."""
    write_parts(tmp_path / "log")
    write_users(tmp_path / "users")
    prepare(tmp_path / "log", tmp_path / "one", user="who", item="what")
    env, to = clean(home, RAY_AUTH_TOKEN=TOKEN), ["--address", guarded[kind]]
    done = beamtree(tmp_path, env, *PREPARE, *to)
    assert done.returncode == 0, done.stderr
    (tmp_path / "out" / "summary.png").unlink(missing_ok=True)
    assert content(tmp_path / "out") == content(tmp_path / "one")
    asked = ["retrieve", os.path.relpath(run, tmp_path), "--input", "users", "--output", "answers", "--engine", "ray"]
    done = beamtree(tmp_path, env, *asked, "--workers", 4, *to)
    assert done.returncode == 0, done.stderr
    same(all_answers(tmp_path / "answers"), dict(sorted(expected(run, MANY).items())))


@slow
@pytest.mark.parametrize("kind", [0, 1], ids=["HOST:PORT", "ray://"])
@pytest.mark.parametrize("token", [{}, {"RAY_AUTH_TOKEN": "another"}], ids=["none", "another"])
def test_a_cluster_that_rejects_the_token_is_one_line(home, guarded, kind, token):
    script = "import sys; from beamtree.batch import ray_cluster; ray_cluster.CONNECT_SECONDS = 20; "
    command = [sys.executable, "-c", f"{script} ray_cluster.check_address(sys.argv[1])", guarded[kind]]
    done = subprocess.run(command, env=clean(home, **token), capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ValueError: address={guarded[kind]}: ")


GPUS = """
import os, sys
from pathlib import Path
import ray  # before there is a word of a token
from beamtree.batch import folder, ray_cluster
from beamtree.batch.folder import Task
from beamtree.batch.job import BatchJob, BatchSummary

class RecordingWorker(folder.RayWorker):
    def run(self, task):
        ids = ray.get_gpu_ids(), os.environ["CUDA_VISIBLE_DEVICES"], self.runner.device
        Path(task.output).write_text(repr(ids))
        return BatchSummary()

tasks = [Task(Path(f"{n}"), Path(f"seen-{n}").absolute()) for n in range(3)]
with ray_cluster.connect(sys.argv[1]) as cluster:
    original, folder.RayWorker = folder.RayWorker, RecordingWorker
    list(folder.run_on_cluster(cluster, "cuda")(BatchJob(Path("run")), tasks))
    folder.RayWorker = original
    try:
        task = Task(Path(sys.argv[3]), Path("answered.parquet").absolute())
        list(folder.run_on_cluster(cluster, "cuda")(BatchJob(Path(sys.argv[2])), [task]))
    except ValueError as error:
        print(error)
"""


@slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_worker_on_cuda_takes_a_gpu_of_the_cluster(tmp_path, home, guarded, run):
    """Ray believes in a GPU that is not there: the worker is placed with it, and says itself that it finds none."""
    users = write_users(tmp_path / "users")
    command = [sys.executable, "-c", GPUS, guarded[0], str(run), str(users / "part-0.parquet")]
    env = clean(home, RAY_AUTH_TOKEN=TOKEN)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    seen = [(tmp_path / f"seen-{part}").read_text() for part in range(3)]
    assert [set(each.replace("'", "").split(", ")[1:]) for each in seen] == [{"0", "cuda)"}] * 3
    assert done.stdout.splitlines() == ["device 'cuda' is not here: this machine offers cpu"]


@slow
def test_a_cluster_of_another_version_is_one_line(tmp_path, home):
    write_parts(tmp_path / "log")
    with head(clean(home), "--num-cpus=1", first="ray.__version__ = '2.0.0'") as addresses:
        for each in addresses:
            done = beamtree(tmp_path, clean(home), *PREPARE, "--address", each)
            assert done.returncode == 2
            assert done.stderr.splitlines()[-1].startswith(f"beamtree: --address {each}: ")


@slow
def test_a_cluster_without_tokens_or_cpus_is_one_line(tmp_path, home):
    """A token that it does not ask for is no fault; a head that does no work itself, and has nobody else, is one."""
    script = (
        "import sys; from beamtree.batch import ray_cluster; ray_cluster.START_SECONDS = 3; "
        "ray_cluster.connect(sys.argv[1]).__enter__()"
    )
    with head(clean(home), "--num-cpus=0") as (at, _):
        command = [sys.executable, "-c", script, at]
        env = clean(home, RAY_AUTH_TOKEN="of another cluster")
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
    line = (
        "OSError: no worker has started within 3 seconds, and 0 of the 0 CPUs of the cluster are free: try again later"
    )
    assert done.stderr.splitlines()[-1].startswith(line)


@pytest.mark.extended
def test_something_else_at_an_address_is_one_line(monkeypatch):
    """It takes the connection, and never says a word."""
    monkeypatch.setattr(ray_cluster, "CONNECT_SECONDS", 5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"address={address}: no Ray cluster answers within 5 seconds"):
            ray_cluster.connect(address).__enter__()


def test_a_client_needs_its_part_of_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = r"^an address ray://HOST:PORT needs grpc, which is not installed: pip install 'beamtree\[ray\]'$"
        with pytest.raises(ValueError, match=line):
            ray_cluster.check_address(f"ray://127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize("address", ["nowhere", "ray://nowhere", "http://127.0.0.1:80", "127.0.0.1:", ":6379"])
def test_what_is_no_address_is_one_line(address):
    with pytest.raises(ValueError, match=rf"^address={address}: give HOST:PORT, ray://HOST:PORT or auto$"):
        ray_cluster.check_address(address)

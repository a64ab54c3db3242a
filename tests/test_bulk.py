"""On Ray as in one process: the same files byte for byte, no part missing or double, also where workers are killed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest
from command import beamtree
from sample_answers import (
    ITEMS,
    MANY,
    all_answers,
    content,
    expected,
    make_popular_run,
    same,
    write_log,
    write_parts,
    write_rows,
    write_users,
)

from beamtree.batch import files, folder, ray_cluster
from beamtree.batch.folder import find_tasks, pending_tasks, run_locally
from beamtree.batch.job import BatchJob, BatchSummary
from beamtree.ingest import arrays, numbering
from beamtree.ingest.columns import LogColumns
from beamtree.ingest.prepare import Executor, prepare
from beamtree.ingest.readers import open_logs
from beamtree.query import RecommendRequest

pytest.importorskip("ray")
WORKERS = 2
slow = pytest.mark.slow  # a worker of Ray takes seconds to start


@pytest.fixture(scope="module")
def ray():
    """A local Ray of two workers, for all tests here."""
    with ray_cluster.connect(workers=WORKERS) as found:
        yield found


# Logs


OPTIONS = [
    {},
    {"min_events": 2, "val_users": 4, "test_users": 6, "seed": 3},
    {"min_events": 5, "min_item_events": 6},
    {"split": "leave-one-out", "min_events": 3},
    {"split": "time:60", "min_events": 3, "min_item_events": 2},
]


@pytest.mark.extended
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("times", [True, False])
def test_shares_and_ranges_do_not_change_a_byte(tmp_path, monkeypatch, options, times):
    """What Ray does, done here: any share can be read in any process, and any range sorted."""
    if "time:" in options.get("split", "") and not times:
        pytest.skip("there is nothing to split by")
    log = write_parts(tmp_path / "log", times=times)
    names = {"user": "who", "item": "what"}
    prepare(log, tmp_path / "one", **names, **options)
    for at_once, rows in ((1 << 24, 100), (50, 70), (60, None)):
        monkeypatch.setattr(arrays, "EVENTS_AT_ONCE", at_once)
        prepare(log, tmp_path / "many", engine=Executor(backwards, rows), **names, **options)
        assert content(tmp_path / "many") == content(tmp_path / "one")


def backwards(work, arguments):
    """An engine that does the last first, and everything twice."""
    results = [(work(*each), work(*each))[1] for each in list(arguments)[::-1]]
    return iter(results[::-1])


@pytest.mark.parametrize("rows", [1, 70, 500, 10_000])
def test_shares_are_the_log_in_its_order(tmp_path, rows):
    log = write_parts(tmp_path / "log")
    opened = open_logs(sorted(log.iterdir()), LogColumns(user="who", item="what"))
    found = numbering.split_log(opened, rows)
    frames = [numbering.events_of(share).collect() for share in found]
    assert pl.concat(frames).equals(opened.events.collect())
    assert all(len(frame) <= 2 * rows for frame in frames)


def test_a_draft_of_a_killed_worker_is_not_sorted(tmp_path):
    (tmp_path / "numbered").mkdir()
    numbered = {"user": pl.Series([0, 2, 1], dtype=pl.UInt32), "item": pl.Series([5, 6, 7], dtype=pl.UInt32)}
    pl.DataFrame(numbered).write_parquet(tmp_path / "numbered" / "000000-000000")
    (tmp_path / "numbered" / "000000-000001.4f2c").write_bytes(b"half a file")
    block = numbering.sort_range(tmp_path / "numbered", 0, 2, 1, tmp_path / "sorted")
    assert pl.read_ipc(block.path)["item"].to_list() == [5, 7]


@pytest.mark.extended
@pytest.mark.parametrize("options", [OPTIONS[0], *(pytest.param(each, marks=slow) for each in OPTIONS[1:])], ids=str)
def test_ray_prepares_the_same_files(tmp_path, monkeypatch, ray, options):
    log = write_parts(tmp_path / "log")
    names = {"user": "who", "item": "what"}
    prepare(log, tmp_path / "one", **names, **options)
    monkeypatch.setattr(arrays, "EVENTS_AT_ONCE", 200)
    monkeypatch.setattr(ray_cluster, "ROWS", 150)
    prepare(f"{log}/*.parquet", tmp_path / "pattern", engine=ray.engine, **names, **options)
    prepare(log.as_uri(), tmp_path / "address", engine=ray.engine, **names, **options)
    assert content(tmp_path / "pattern") == content(tmp_path / "one") == content(tmp_path / "address")


@slow
def test_ray_reads_what_else_a_log_may_be(tmp_path, ray):
    rows = [(f"u{n % 7}", f"i{n * n % 11}", f"2020-01-0{1 + n % 9}") for n in range(200)]
    (tmp_path / "log").mkdir()
    for part, suffix in enumerate(("a.csv", "b.csv")):
        lines = [",".join(row) for row in rows[part::2]]
        (tmp_path / "log" / suffix).write_text("\n".join(["user,item,date", *lines]) + "\n")
    prepare(tmp_path / "log", tmp_path / "one")
    prepare(tmp_path / "log", tmp_path / "ray", engine=ray.engine)
    assert content(tmp_path / "ray") == content(tmp_path / "one")


@pytest.mark.extended
@pytest.mark.parametrize("when", [pytest.param("before", marks=slow), "after"])
def test_a_worker_that_is_killed_while_preparing_changes_nothing(tmp_path, monkeypatch, ray, when):
    """The first task of each kind dies: before its work, or when its files are there and nobody knows."""
    log, marks = write_parts(tmp_path / "log"), tmp_path / "marks"
    marks.mkdir()

    def run(work, arguments):
        def fatal(*each):
            first = not (marks / work.__name__).exists()
            (marks / work.__name__).touch()
            result = None if first and when == "before" else work(*each)
            if first:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return ray.run(fatal, arguments)

    names = {"user": "who", "item": "what"}
    prepare(log, tmp_path / "one", **names)
    monkeypatch.setattr(arrays, "EVENTS_AT_ONCE", 200)
    prepare(log, tmp_path / "ray", engine=Executor(run, 150), **names)
    assert content(tmp_path / "ray") == content(tmp_path / "one")
    assert {path.name for path in marks.iterdir()} == {"write_distinct", "write_numbered", "sort_range"}


@pytest.mark.extended
def test_work_that_kills_every_worker_is_one_line(ray, monkeypatch):
    monkeypatch.setattr(ray_cluster, "MAX_RETRIES", 0)

    def fatal(_):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(OSError, match="a Ray worker was lost 1 times over the same task"):
        list(ray.run(fatal, [(1,)]))


def damage(path):
    """Change what is inside, not at the ends."""
    whole = bytearray(path.read_bytes())
    middle = len(whole) // 3
    whole[20:middle] = b"\xff" * (middle - 20)
    path.write_bytes(whole)


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.extended)])
def test_a_damaged_part_is_named(tmp_path, request, engine):
    log = write_parts(tmp_path / "log")
    damage(log / "part.002.parquet")
    asked = {"engine": request.getfixturevalue("ray").engine} if engine == "ray" else {}
    with pytest.raises(ValueError, match=r"part\.002\.parquet cannot be read: ") as error:
        prepare(log, tmp_path / "out", user="who", item="what", **asked)
    assert "\n" not in str(error.value)
    assert sorted(os.listdir(tmp_path)) == ["log"]


@pytest.mark.extended
def test_a_worker_with_other_versions_is_one_line(ray, monkeypatch):
    monkeypatch.setattr(ray_cluster, "versions", lambda: "beamtree 9 and Polars 9")
    with pytest.raises(ValueError, match="not beamtree 9 and Polars 9: install the same versions there"):
        list(ray.run(len, [([],)]))


# Users


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_popular_run(tmp_path_factory.mktemp("runs") / "run", ITEMS)


def run_job(job, source, folder, run_tasks):
    total = BatchSummary()
    with pending_tasks(job, find_tasks(job, source, folder), folder) as tasks:
        for summary in run_tasks(job, tasks):
            total.merge(summary)
    return total


@pytest.mark.extended
@pytest.mark.parametrize("write", [write_rows, pytest.param(write_log, marks=slow)])
def test_parts_are_answered_the_same_here_and_on_ray(tmp_path, ray, run, write):
    users = write_users(tmp_path / "users", write)
    job = BatchJob(run, RecommendRequest(m=7, beam_size=30))
    one = run_job(job, users, tmp_path / "here", run_locally("cpu"))
    other = run_job(job, users, tmp_path / "ray", folder.run_on_cluster(ray, "cpu"))
    some = {user: history for user, history in MANY.items() if history or write is write_rows}
    same(all_answers(tmp_path / "here"), dict(sorted(expected(run, some, m=7, beam_size=30).items())))
    same(all_answers(tmp_path / "ray"), all_answers(tmp_path / "here"))
    inside = sorted(os.listdir(tmp_path / "ray"))
    assert inside == sorted(["answers.json", *os.listdir(users)]) == sorted(os.listdir(tmp_path / "here"))
    assert one == other
    assert one.users == len(some)


@pytest.mark.extended
def test_what_was_answered_is_not_answered_again(tmp_path, ray, run):
    users, out = write_users(tmp_path / "users"), tmp_path / "out"
    job = BatchJob(run, RecommendRequest(m=3, beam_size=20))
    run_job(job, users, out, run_locally("cpu"))
    before = content(out)
    (out / "part-1.parquet").unlink()
    (out / "part-2.parquet.new-beamtree").mkdir()  # of a process that was killed
    stamp = (out / "part-2.parquet").stat().st_mtime_ns
    assert run_job(job, users, out, folder.run_on_cluster(ray, "cpu")).users == len(list(MANY)[1::4])
    same(all_answers(out), dict(sorted(expected(run, MANY, m=3, beam_size=20).items())))
    assert (out / "part-2.parquet").stat().st_mtime_ns == stamp
    assert content(out).keys() == before.keys()
    write_rows(users / "part-late.parquet", {"late": ["007"]})
    assert run_job(job, users, out, run_locally("cpu")).users == 1
    assert "part-late.parquet" in json.loads((out / "answers.json").read_text())["parts"]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("over", "when"),
    [("one", "within"), *(pytest.param("every", each, marks=slow) for each in ("before", "within", "after"))],
)
def test_a_worker_that_is_killed_while_answering_loses_no_part(tmp_path, monkeypatch, ray, run, over, when):
    """One dies over a part: before its work, over a half-written file, or when it is there and nobody knows.

    Of every part there are more than a single one has tries.
    """
    users, marks = write_users(tmp_path / "users"), tmp_path / "marks"
    marks.mkdir()

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    class Fatal(folder.RayWorker):
        def run(self, task):
            first = not (marks / task.output.name).exists() and (over == "every" or not any(marks.iterdir()))
            (marks / task.output.name).touch()
            if first and when == "before":
                die()
            if first and when == "within":
                files.move_into_place = die
            summary = super().run(task)
            if first:
                die()
            return summary

    monkeypatch.setattr(folder, "RayWorker", Fatal)
    one_worker = folder.run_on_cluster(ray._replace(workers=1), "cpu")
    summary = run_job(BatchJob(run), users, tmp_path / "out", one_worker)
    assert sorted(os.listdir(marks)) == sorted(os.listdir(users))
    assert len(os.listdir(marks)) > ray_cluster.MAX_RETRIES + 1
    assert summary.users == len(MANY)
    assert sorted(os.listdir(tmp_path / "out")) == sorted(["answers.json", *os.listdir(users)])
    for part in os.listdir(users):
        asked = pl.read_parquet(users / part)["user"].to_list()
        answered = pl.read_parquet(tmp_path / "out" / part).group_by("user").len()
        assert dict(answered.iter_rows()) == dict.fromkeys(asked, 10)
    same(all_answers(tmp_path / "out"), dict(sorted(expected(run, MANY).items())))


@slow
@pytest.mark.extended
def test_a_part_that_kills_every_worker_is_one_line_and_the_others_stay(tmp_path, monkeypatch, ray, run):
    users, out = write_users(tmp_path / "users"), tmp_path / "out"
    for module_ in (folder, ray_cluster):
        monkeypatch.setattr(module_, "MAX_RETRIES", 1)

    class Fatal(folder.RayWorker):
        def run(self, task):
            if task.output.name == "part-none.parquet":  # the last
                os.kill(os.getpid(), signal.SIGKILL)
            return super().run(task)

    with monkeypatch.context() as patch:
        patch.setattr(folder, "RayWorker", Fatal)
        one_worker = folder.run_on_cluster(ray._replace(workers=1), "cpu")
        with pytest.raises(OSError, match="was lost 2 times over the same task") as error:
            run_job(BatchJob(run), users, out, one_worker)
    assert "\n" not in str(error.value)
    assert sorted(os.listdir(out)) == ["answers.json", *(f"part-{part}.parquet" for part in range(4))]
    assert run_job(BatchJob(run), users, out, folder.run_on_cluster(ray, "cpu")).users == 0
    same(all_answers(out), dict(sorted(expected(run, MANY).items())))


@pytest.mark.extended
def test_workers_without_a_place_are_not_waited_for(tmp_path, monkeypatch, ray, run):
    """More of them than the cluster has CPUs; and paths that mean something else in the folder of a worker."""
    write_users(tmp_path / "users")
    monkeypatch.chdir(tmp_path)
    signal.alarm(100)  # with a part each, they were waited for without end
    job = BatchJob(Path(os.path.relpath(run)))
    run_job(job, "users", Path("out"), folder.run_on_cluster(ray._replace(workers=5), "cpu"))
    signal.alarm(0)
    same(all_answers(Path("out")), dict(sorted(expected(run, MANY).items())))


@pytest.mark.extended
def test_a_cluster_without_a_place_is_one_line(tmp_path, monkeypatch, ray, run):
    """It counts a GPU that no machine has, as one does whose machine has gone."""
    monkeypatch.setattr(ray_cluster, "START_SECONDS", 2)
    users = write_users(tmp_path / "users")
    line = "no worker has started within 2 seconds, and 0 of the 0 GPUs of the cluster are free: try again later"
    with pytest.raises(OSError, match=line):
        run_job(
            BatchJob(run),
            users,
            tmp_path / "out",
            folder.run_on_cluster(ray._replace(resources={"GPU": 1.0}), "cuda"),
        )


@pytest.mark.extended
@pytest.mark.parametrize(
    ("device", "gpus", "line"),
    [
        ("cuda", None, "device=cuda: a worker needs 1 GPU, and the cluster has none: choose device=cpu"),
        ("cuda", 0.5, "device=cuda: a worker needs 0.5 GPU, and the cluster has none: choose device=cpu"),
        ("cpu", 0.5, "gpus=0.5: a worker on cpu needs no GPU, and the cluster has none: leave gpus out"),
        ("cuda", 2.0, "gpus=2: a worker uses one GPU, so give 1 or less"),
        ("cuda:1", None, "device=cuda:1: choose cpu or cuda; Ray assigns a GPU to each worker"),
    ],
)
def test_gpus_that_are_not_there_are_one_line(ray, device, gpus, line):
    with pytest.raises(ValueError, match=f"^{line}$"):
        folder.run_on_cluster(ray, device, gpus)


@slow
def test_a_worker_without_beamtree_is_one_line(ray, monkeypatch):
    """Or without a file of it: what is sent by name is not there."""
    monkeypatch.setitem(sys.modules, "nowhere", ModuleType("nowhere"))
    exec("def work():\n    pass", vars(sys.modules["nowhere"]))
    with pytest.raises(OSError, match=r"^a Ray worker failed: System error: No module named 'nowhere'$"):
        list(ray.run(sys.modules["nowhere"].work, [()]))


@slow
def test_errors_of_workers_are_those_of_this_process(tmp_path, ray, run):
    users = write_users(tmp_path / "users")
    damage(users / "part-3.parquet")
    for work in (run_locally("cpu"), folder.run_on_cluster(ray, "cpu")):
        with pytest.raises(ValueError, match=r"part-3\.parquet cannot be read: ") as error:
            run_job(BatchJob(run), users, tmp_path / "out", work)
        assert "\n" not in str(error.value)


# The command


def refused(folder, *words):
    done = beamtree(*map(str, words), folder=folder, check=False)
    assert done.returncode == 2
    return done.stderr.splitlines()[-1].removeprefix("beamtree: ")


@slow
def test_the_command_starts_a_ray_and_leaves_nothing_of_it(tmp_path, run):
    write_parts(tmp_path / "log")
    write_users(tmp_path / "users")
    names = {"user": "who", "item": "what"}
    prepare(tmp_path / "log", tmp_path / "one", **names)
    asked = [word for name, column in names.items() for word in (f"--{name}", column)]
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        for words in (
            ["prepare", "log", "--out", "out", *asked],
            ["retrieve", str(run), "--input", "users", "--output", "answers"],
        ):
            command = [sys.executable, "-m", "beamtree", *words, "--engine", "ray", "--workers", "2"]
            done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "TMPDIR": place}, capture_output=True)
            assert done.returncode == 0, done.stderr
            assert b"raylet" not in done.stdout + done.stderr
            assert os.listdir(place) == []
            commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
            assert not [each for each in commands if place.encode() in each]
    (tmp_path / "out" / "summary.png").unlink(missing_ok=True)
    assert content(tmp_path / "out") == content(tmp_path / "one")
    same(all_answers(tmp_path / "answers"), dict(sorted(expected(run, MANY).items())))


def test_the_command_answers_parts(tmp_path, run):
    write_users(tmp_path / "users")
    words = ["retrieve", str(run), "--input", "users", "--output", "out", "--m", "4", "--beam-size", "20"]
    assert "5 of 5 parts" in beamtree(*words, folder=tmp_path).stderr
    same(all_answers(tmp_path / "out"), dict(sorted(expected(run, MANY, m=4, beam_size=20).items())))
    again = beamtree(*words, folder=tmp_path).stderr
    assert "5 parts are already answered" in again
    assert "0 users" in again


def test_a_folder_of_another_run_is_left_alone(tmp_path, run):
    write_users(tmp_path / "users")
    other = make_popular_run(tmp_path / "other", ITEMS[::-1])
    words = ["retrieve", run, "--input", "users", "--output", "out"]
    beamtree(*map(str, words), folder=tmp_path)
    before = content(tmp_path / "out")
    line = "out has results of another job"
    assert refused(tmp_path, *words, "--m", "4").startswith(f"{line}, with m 10, not 4: choose another folder")
    assert refused(tmp_path, *words, "--beam-size", "30").startswith(f"{line}, with beam_size None, not 30")
    assert refused(tmp_path, words[0], other, *words[2:], "--engine", "ray").startswith(f"{line}, the model ")
    write_rows(tmp_path / "users" / "part-1.parquet", {"other": ["007"] * 50})
    assert refused(tmp_path, *words).startswith(f"{line}, for an input part-1.parquet of ")
    assert content(tmp_path / "out") == before
    assert refused(tmp_path, *words[:4], "--output", "users").endswith("users is the input too: choose another name")
    for path in (tmp_path / "out").glob("*.parquet"):
        path.unlink()
    beamtree(*map(str, words), "--m", "4", folder=tmp_path)  # there is nothing to be mixed up any more
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("")
    assert "has other files, such as notes" in refused(tmp_path, *words[:4], "--output", "full")


def test_parts_that_are_not_alike_are_one_line(tmp_path, run):
    users = write_users(tmp_path / "users")
    pl.DataFrame({"user": ["a"], "past": ["007"]}).write_parquet(users / "part-9.parquet")
    words = ["retrieve", run, "--input", "users", "--output", "out"]
    line = (
        "the input files have different columns: users/part-0.parquet has age, user, history; users/part-9.parquet has "
    )
    assert refused(tmp_path, *words) == f"{line}user, past"
    (users / "part-9.parquet").write_text("")
    assert refused(tmp_path, *words).startswith("users/part-9.parquet cannot be read")
    (users / "part-9.parquet").unlink()
    (users / "part-1.csv").write_text("age,user,history\n")
    assert "would both be part-1.parquet" in refused(tmp_path, *words)
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path, *words[:3], "empty", *words[4:]).startswith("empty: a log is .csv")
    assert refused(tmp_path, *words[:3], "empty/*.parquet", *words[4:]) == "empty/*.parquet does not exist"
    assert sorted(os.listdir(tmp_path)) == ["empty", "users"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--engine", "spark"], "--engine 'spark' is unknown: choose from local, ray"),
        (["--address", "auto"], "--address, --workers and --gpus are for a cluster: add --engine ray"),
        (["--engine", "ray", "--address", "nowhere"], "--address nowhere: give HOST:PORT, ray://HOST:PORT or auto"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "--address 127.0.0.1:1: cannot connect ("),
        (["--engine", "ray", "--address", "ray://127.0.0.1:1"], "--address ray://127.0.0.1:1: cannot connect ("),
    ],
)
def test_clusters_that_do_not_answer_are_one_line(tmp_path, run, words, line):
    write_parts(tmp_path / "log")
    write_users(tmp_path / "users")
    before = sorted(os.listdir(tmp_path))
    prepare_words = ["prepare", "log", "--user", "who", "--item", "what", "--out", "out"]
    for command in (prepare_words, ["retrieve", run, "--input", "users", "--output", "answers"]):
        assert refused(tmp_path, *command, *words).startswith(line)
    assert sorted(set(os.listdir(tmp_path)) - {"answers"}) == before


def test_ray_wants_a_folder_and_its_extra(tmp_path, run, monkeypatch):
    write_users(tmp_path / "users")
    words = ["retrieve", run, "--input", "users", "--engine", "ray", "--output"]
    assert refused(tmp_path, *words, "a.csv") == "--engine ray writes a folder: give --input FOLDER and --output FOLDER"
    monkeypatch.setitem(sys.modules, "ray", None)
    line = "working on Ray needs ray, which is not installed: pip install 'beamtree[ray]'"
    assert refused(tmp_path, *words, "out") == line
    write_parts(tmp_path / "log")
    words = ["prepare", "log", "--user", "who", "--item", "what", "--out", "prepared", "--engine", "ray"]
    assert refused(tmp_path, *words) == line


def test_histories_of_a_file_without_users_are_an_error_but_not_of_a_part(tmp_path, run):
    write_rows(tmp_path / "none.parquet", {})
    words = ["retrieve", run, "--input", "none.parquet", "--output"]
    assert "there is no user in the input" in refused(tmp_path, *words, "none.csv")
    beamtree(*map(str, words), "out", folder=tmp_path)
    assert pl.read_parquet(tmp_path / "out" / "none.parquet").columns == ["user", "rank", "item", "score"]
    assert files.RESULTS.keys() == {"user", "items", "scores"}
